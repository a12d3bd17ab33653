//! `NVMeTLSkey-1:HH:base64(key || CRC-32):` and `DHHC-1:HH:base64(secret || CRC-32):`.
//!
//! The CRC is little-endian and covers the secret, but not the hash `HH`.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

/// Longest accepted interchange string, in bytes. The longest valid one has 102.
pub const INTERCHANGE_LEN_MAX: usize = 128;

/// Longest secret, in bytes.
const SECRET_LEN_MAX: usize = 64;
/// Length of the CRC-32, in bytes.
const CRC_LEN: usize = 4;

const _: () = assert!(
    "NVMeTLSkey-1:00::".len() + (SECRET_LEN_MAX + CRC_LEN).div_ceil(3) * 4 <= INTERCHANGE_LEN_MAX
);

/// What a secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A configured pre-shared key for TLS.
    TlsKey,
    /// A secret for DH-HMAC-CHAP.
    ChapSecret,
}

impl Kind {
    /// What an interchange string begins with, with its colon.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::TlsKey => "NVMeTLSkey-1:",
            Self::ChapSecret => "DHHC-1:",
        }
    }
}

/// The hash that transforms a secret: the field `HH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// `00`: the secret is used as it is.
    None,
    /// `01`
    Sha256,
    /// `02`
    Sha384,
    /// `03`, for DH-HMAC-CHAP only.
    Sha512,
}

impl Hash {
    const fn digits(self) -> &'static str {
        match self {
            Self::None => "00",
            Self::Sha256 => "01",
            Self::Sha384 => "02",
            Self::Sha512 => "03",
        }
    }

    fn parse(digits: &str, kind: Kind) -> Option<Self> {
        match (digits, kind) {
            ("00", _) => Some(Self::None),
            ("01", _) => Some(Self::Sha256),
            ("02", _) => Some(Self::Sha384),
            ("03", Kind::ChapSecret) => Some(Self::Sha512),
            _ => None,
        }
    }

    fn allows(self, len: usize, kind: Kind) -> bool {
        match (self, kind) {
            (Self::None, Kind::TlsKey) => len == 32 || len == 48,
            (Self::None, Kind::ChapSecret) => len == 32 || len == 48 || len == 64,
            (Self::Sha256, _) => len == 32,
            (Self::Sha384, _) => len == 48,
            (Self::Sha512, kind) => kind == Kind::ChapSecret && len == 64,
        }
    }
}

/// Why text is not a secret. No error contains a part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Longer than [`INTERCHANGE_LEN_MAX`].
    #[error("the key has {0} characters, more than {INTERCHANGE_LEN_MAX}")]
    TooLong(usize),
    /// Another prefix.
    #[error("the key does not begin with {0}")]
    WrongPrefix(&'static str),
    /// `HH` is not two known digits and a colon.
    #[error("the key names an unknown hash after its prefix")]
    UnknownHash,
    /// The last character is not a colon.
    #[error("the key does not end with a colon")]
    NoTrailingColon,
    /// The part between the last two colons is not base64.
    #[error("the key is not valid base64")]
    WrongBase64,
    /// A length that does not fit the hash.
    #[error("the key has {0} bytes, which does not fit its hash")]
    WrongLength(usize),
    /// The CRC is not that of the secret.
    #[error("the key's CRC-32 is wrong: copy the key again")]
    WrongCrc,
}

/// A secret with its kind and hash. Its memory is zeroed on drop.
#[derive(Clone)]
pub struct Secret {
    kind: Kind,
    hash: Hash,
    bytes: Zeroizing<Vec<u8>>,
}

impl Secret {
    /// A secret of `bytes`, which the caller has drawn at random.
    ///
    /// # Errors
    ///
    /// [`FormatError::WrongLength`] if the length does not fit the hash.
    pub fn new(kind: Kind, hash: Hash, bytes: &[u8]) -> Result<Self, FormatError> {
        if !hash.allows(bytes.len(), kind) {
            return Err(FormatError::WrongLength(bytes.len()));
        }
        let bytes = Zeroizing::new(bytes.to_vec());
        Ok(Self { kind, hash, bytes })
    }

    /// Parses an interchange string.
    ///
    /// # Errors
    ///
    /// The first problem of the text, in the order of its fields.
    pub fn parse(kind: Kind, text: &str) -> Result<Self, FormatError> {
        if text.len() > INTERCHANGE_LEN_MAX {
            return Err(FormatError::TooLong(text.len()));
        }
        let rest = text
            .strip_prefix(kind.prefix())
            .ok_or(FormatError::WrongPrefix(kind.prefix()))?;
        let (digits, rest) = rest.split_once(':').ok_or(FormatError::UnknownHash)?;
        let hash = Hash::parse(digits, kind).ok_or(FormatError::UnknownHash)?;
        let encoded = rest.strip_suffix(':').ok_or(FormatError::NoTrailingColon)?;
        let decoded = STANDARD
            .decode(encoded)
            .map_err(|_| FormatError::WrongBase64)?;
        let decoded = Zeroizing::new(decoded);
        let Some((bytes, crc)) = decoded.split_last_chunk::<CRC_LEN>() else {
            return Err(FormatError::WrongLength(0));
        };
        let secret = Self::new(kind, hash, bytes)?;
        if *crc != crc_of(bytes) {
            return Err(FormatError::WrongCrc);
        }
        Ok(secret)
    }

    /// What the secret is for.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The hash that transforms it.
    #[must_use]
    pub const fn hash(&self) -> Hash {
        self.hash
    }

    /// The secret itself.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.bytes
    }

    /// The interchange string. It contains the secret.
    #[must_use]
    pub fn expose_interchange(&self) -> Zeroizing<String> {
        let mut checked = Zeroizing::new([0; SECRET_LEN_MAX + CRC_LEN]);
        let len = self.bytes.len();
        checked[..len].copy_from_slice(&self.bytes);
        checked[len..len + CRC_LEN].copy_from_slice(&crc_of(&self.bytes));
        let mut encoded = STANDARD.encode(&checked[..len + CRC_LEN]);
        let mut text = Zeroizing::new(String::with_capacity(INTERCHANGE_LEN_MAX));
        for part in [self.kind.prefix(), self.hash.digits(), ":", &encoded, ":"] {
            text.push_str(part);
        }
        encoded.zeroize();
        text
    }
}

/// Compares the secrets in constant time.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.hash == other.hash
            && bool::from(self.bytes.ct_eq(&other.bytes))
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("kind", &self.kind)
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

fn crc_of(bytes: &[u8]) -> [u8; CRC_LEN] {
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, bytes);
    u32::try_from(crc)
        .expect("a CRC-32 has 32 bits")
        .to_le_bytes()
}

#[cfg(test)]
mod tests;
