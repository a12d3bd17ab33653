//! The parts of a ClientHello that decide whether a handshake begins (RFC 8446 §4.1.2).
//!
//! The handshake checks the rest. The parser accepts any bytes, copies nothing, and its work is
//! bounded by the length of the message.

use arrayvec::ArrayVec;

use crate::reader::Reader;
use crate::{Alert, Suite};

/// Identities of one ClientHello that are considered. Hosts offer one.
pub const IDENTITIES_MAX: usize = 8;
/// Extensions that a ClientHello may have.
const EXTENSIONS_MAX: usize = 64;
/// Longest session identifier in bytes.
const SESSION_BYTES_MAX: usize = 32;

const CLIENT_HELLO: u8 = 1;
const TLS_1_3: [u8; 2] = [3, 4];
/// The key exchange mode with a pre-shared key and (EC)DHE (RFC 8446 §4.2.9).
const PSK_DHE_KE: u8 = 1;

/// The groups of the handshake (RFC 8446 §4.2.7): P-256, P-384 and X25519.
const GROUPS: [[u8; 2]; 3] = [[0, 23], [0, 24], [0, 29]];

/// Numbers of extensions (RFC 8446 §4.2).
mod extension {
    pub(super) const SUPPORTED_GROUPS: u16 = 10;
    pub(super) const PRE_SHARED_KEY: u16 = 41;
    pub(super) const SUPPORTED_VERSIONS: u16 = 43;
    pub(super) const PSK_KEY_EXCHANGE_MODES: u16 = 45;
    pub(super) const KEY_SHARE: u16 = 51;
}

/// An identity, and the binder that proves its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedKey<'a> {
    /// The identity.
    pub identity: &'a [u8],
    /// The binder.
    pub binder: &'a [u8],
}

/// A ClientHello that may begin a handshake with a pre-shared key.
#[derive(Clone, Debug)]
pub struct Hello<'a> {
    message: &'a [u8],
    suites: &'a [u8],
    keys: ArrayVec<OfferedKey<'a>, IDENTITIES_MAX>,
    /// Position of the list of binders in the message.
    binders_at: usize,
}

impl<'a> Hello<'a> {
    /// Reads a handshake message with its header.
    ///
    /// # Errors
    ///
    /// The alert for a message that is invalid, or does not offer TLS 1.3 with a pre-shared key and
    /// (EC)DHE.
    pub fn parse(message: &'a [u8]) -> Result<Self, Alert> {
        let mut reader = Reader::new(message);
        if reader.u8()? != CLIENT_HELLO {
            return Err(Alert::UNEXPECTED_MESSAGE);
        }
        if reader.u24()? != message.len() - reader.position() {
            return Err(Alert::DECODE_ERROR);
        }
        let (_version, _random) = (reader.u16()?, reader.bytes(32)?);
        if reader.short_field()?.len() > SESSION_BYTES_MAX {
            return Err(Alert::DECODE_ERROR);
        }
        let suites = reader.field()?;
        if suites.is_empty() || suites.len() % 2 != 0 {
            return Err(Alert::DECODE_ERROR);
        }
        let compression = reader.short_field()?;
        if reader.is_empty() {
            // Extensions are optional before TLS 1.3.
            return Err(Alert::PROTOCOL_VERSION);
        }
        let extensions = Extensions::read(&mut reader)?;
        reader.finish()?;
        extensions.check_version()?;
        if compression != [0] {
            return Err(Alert::ILLEGAL_PARAMETER);
        }
        let (keys, binders_at) = extensions.offered_keys(message)?;
        Ok(Self {
            message,
            suites,
            keys,
            binders_at,
        })
    }

    /// The first [`IDENTITIES_MAX`] offered keys, in the order of the host's preference.
    #[must_use]
    pub fn keys(&self) -> &[OfferedKey<'a>] {
        &self.keys
    }

    /// Whether the host offers a suite.
    #[must_use]
    pub fn offers(&self, suite: Suite) -> bool {
        let code = suite.code().to_be_bytes();
        self.suites.chunks_exact(2).any(|it| it == code)
    }

    /// The part of the message that binders cover (RFC 8446 §4.2.11.2).
    #[must_use]
    pub fn covered_by_binders(&self) -> &'a [u8] {
        &self.message[..self.binders_at]
    }

    /// The whole message.
    #[must_use]
    pub const fn message(&self) -> &'a [u8] {
        self.message
    }
}

/// The contents of the extensions that matter here.
#[derive(Debug, Default)]
struct Extensions<'a> {
    versions: Option<&'a [u8]>,
    modes: Option<&'a [u8]>,
    groups: Option<&'a [u8]>,
    has_key_share: bool,
    /// With its position in the message.
    pre_shared_key: Option<(&'a [u8], usize)>,
}

impl<'a> Extensions<'a> {
    fn read(message: &mut Reader<'a>) -> Result<Self, Alert> {
        let bytes = usize::from(message.u16()?);
        let end = message.position() + bytes;
        let mut found = Self::default();
        let mut seen = ArrayVec::<u16, EXTENSIONS_MAX>::new();
        while message.position() < end {
            // It must be the last one (RFC 8446 §4.2.11).
            if found.pre_shared_key.is_some() {
                return Err(Alert::ILLEGAL_PARAMETER);
            }
            let number = message.u16()?;
            let content = message.field()?;
            if seen.contains(&number) || seen.try_push(number).is_err() {
                return Err(Alert::ILLEGAL_PARAMETER);
            }
            match number {
                extension::SUPPORTED_VERSIONS => found.versions = Some(content),
                extension::PSK_KEY_EXCHANGE_MODES => found.modes = Some(content),
                extension::SUPPORTED_GROUPS => found.groups = Some(content),
                extension::KEY_SHARE => found.has_key_share = true,
                extension::PRE_SHARED_KEY => {
                    found.pre_shared_key = Some((content, message.position() - content.len()));
                }
                _ => {}
            }
        }
        if message.position() != end {
            return Err(Alert::DECODE_ERROR);
        }
        Ok(found)
    }

    fn check_version(&self) -> Result<(), Alert> {
        let mut list = Reader::new(self.versions.ok_or(Alert::PROTOCOL_VERSION)?);
        let versions = list.short_field()?;
        list.finish()?;
        if versions.is_empty() || versions.len() % 2 != 0 {
            return Err(Alert::DECODE_ERROR);
        }
        if versions.chunks_exact(2).any(|it| it == TLS_1_3) {
            Ok(())
        } else {
            Err(Alert::PROTOCOL_VERSION)
        }
    }

    /// Reads the identities and binders, and returns the position of the binders in the message.
    fn offered_keys(
        &self,
        message: &[u8],
    ) -> Result<(ArrayVec<OfferedKey<'a>, IDENTITIES_MAX>, usize), Alert> {
        let (content, position) = self.pre_shared_key.ok_or(Alert::MISSING_EXTENSION)?;
        let mut modes = Reader::new(self.modes.ok_or(Alert::MISSING_EXTENSION)?);
        let offered_modes = modes.short_field()?;
        modes.finish()?;
        let mut groups = Reader::new(self.groups.ok_or(Alert::MISSING_EXTENSION)?);
        let offered_groups = groups.field()?;
        groups.finish()?;
        if !self.has_key_share {
            return Err(Alert::MISSING_EXTENSION);
        }
        debug_assert_eq!(position + content.len(), message.len());
        let mut reader = Reader::new(content);
        let mut identities = Reader::new(reader.field()?);
        let binders_at = position + reader.position();
        let mut binders = Reader::new(reader.field()?);
        reader.finish()?;
        if identities.is_empty() || binders.is_empty() {
            return Err(Alert::DECODE_ERROR);
        }
        let mut keys = ArrayVec::new();
        while !identities.is_empty() {
            let identity = identities.field()?;
            let _obfuscated_ticket_age = identities.bytes(4)?;
            // As many binders as identities (RFC 8446 §4.2.11).
            if binders.is_empty() {
                return Err(Alert::ILLEGAL_PARAMETER);
            }
            let binder = binders.short_field()?;
            if identity.is_empty() || binder.len() < 32 {
                return Err(Alert::DECODE_ERROR);
            }
            let _ = keys.try_push(OfferedKey { identity, binder });
        }
        if !binders.is_empty() {
            return Err(Alert::ILLEGAL_PARAMETER);
        }
        let has_group = offered_groups
            .chunks_exact(2)
            .any(|it| GROUPS.iter().any(|own| own == it));
        if !offered_modes.contains(&PSK_DHE_KE) || !has_group {
            return Err(Alert::HANDSHAKE_FAILURE);
        }
        Ok((keys, binders_at))
    }
}

#[cfg(test)]
pub(crate) mod tests;
