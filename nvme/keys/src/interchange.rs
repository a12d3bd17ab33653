//! `NVMeTLSkey-1:HH:base64(key || CRC-32):` and `DHHC-1:HH:base64(secret || CRC-32):`.
//!
//! The CRC is little-endian and covers the secret, but not the hash `HH`.

use std::fmt;
use std::marker::PhantomData;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use zeroize::{Zeroize as _, Zeroizing};

use crate::{SecretBytes, hmac_of};

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
pub trait Kind: sealed::Sealed {
    /// The beginning of an interchange string, with its colon.
    const PREFIX: &'static str;
    /// The known values of the field `HH`, for messages.
    const HASHES: &'static str;

    /// Whether secrets of this kind may have this hash.
    fn permits(hash: Hash) -> bool;

    /// Whether a secret with this hash may have `len` bytes.
    fn permits_len(hash: Hash, len: usize) -> bool {
        match hash {
            Hash::None => [Hash::Sha256, Hash::Sha384, Hash::Sha512]
                .into_iter()
                .any(|hash| Self::permits(hash) && hash.len() == Some(len)),
            hash => Self::permits(hash) && hash.len() == Some(len),
        }
    }
}

/// A configured pre-shared key for TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {}

/// A secret for DH-HMAC-CHAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chap {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Tls {}
    impl Sealed for super::Chap {}
}

impl Kind for Tls {
    const PREFIX: &'static str = "NVMeTLSkey-1:";
    const HASHES: &'static str = "00, 01 and 02";

    fn permits(hash: Hash) -> bool {
        hash != Hash::Sha512
    }
}

impl Kind for Chap {
    const PREFIX: &'static str = "DHHC-1:";
    const HASHES: &'static str = "00, 01, 02 and 03";

    fn permits(_: Hash) -> bool {
        true
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
    /// Every hash.
    pub const ALL: [Self; 4] = [Self::None, Self::Sha256, Self::Sha384, Self::Sha512];

    /// Length of secrets with this hash in bytes; `None` if there are several.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no secret is empty")]
    pub const fn len(self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Sha256 => Some(32),
            Self::Sha384 => Some(48),
            Self::Sha512 => Some(64),
        }
    }

    const fn digits(self) -> &'static str {
        match self {
            Self::None => "00",
            Self::Sha256 => "01",
            Self::Sha384 => "02",
            Self::Sha512 => "03",
        }
    }
}

/// The name of the hash, or "no hash".
impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "no hash",
            Self::Sha256 => "SHA-256",
            Self::Sha384 => "SHA-384",
            Self::Sha512 => "SHA-512",
        })
    }
}

/// Why text is not a secret. No error contains a part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// No text.
    #[error("the key is empty")]
    Empty,
    /// Longer than [`INTERCHANGE_LEN_MAX`].
    #[error("the key has {0} characters, more than {INTERCHANGE_LEN_MAX}")]
    TooLong(usize),
    /// A space, tab or line break anywhere.
    #[error("the key contains white space: remove it")]
    WhiteSpace,
    /// The prefix of no kind.
    #[error("the key begins with neither {} nor {}", Tls::PREFIX, Chap::PREFIX)]
    UnknownPrefix,
    /// Not the prefix of the expected kind.
    #[error("the key does not begin with {0}")]
    WrongPrefix(&'static str),
    /// `HH` is not two known digits and a colon.
    #[error("the key has an unknown hash after its prefix: {0} are known")]
    UnknownHash(&'static str),
    /// The last character is not a colon.
    #[error("the key does not end with a colon: copy all of it")]
    NoTrailingColon,
    /// The part between the last two colons is not base64.
    #[error("the key is not valid base64: copy it again")]
    WrongBase64,
    /// A length that does not fit the hash.
    #[error("the key has {len} bytes, which does not fit {hash}")]
    WrongLength {
        /// Length of the secret without its CRC, in bytes.
        len: usize,
        /// The hash of the key.
        hash: Hash,
    },
    /// The CRC is not that of the secret.
    #[error("the key's CRC-32 is wrong: copy it again")]
    WrongCrc,
}

/// A secret with its hash.
pub struct Secret<K> {
    hash: Hash,
    bytes: SecretBytes,
    kind: PhantomData<K>,
}

/// A configured pre-shared key for TLS.
pub type TlsKey = Secret<Tls>;

/// A secret for DH-HMAC-CHAP.
pub type ChapSecret = Secret<Chap>;

impl<K: Kind> Secret<K> {
    /// A secret of `bytes`, which the caller has drawn at random.
    ///
    /// # Errors
    ///
    /// [`FormatError::WrongLength`] if the length does not fit the hash, or if secrets of this kind
    /// do not have the hash.
    pub fn new(hash: Hash, bytes: &[u8]) -> Result<Self, FormatError> {
        let len = bytes.len();
        if !K::permits_len(hash, len) {
            return Err(FormatError::WrongLength { len, hash });
        }
        Ok(Self {
            hash,
            bytes: SecretBytes::copy_of(bytes),
            kind: PhantomData,
        })
    }

    /// Parses an interchange string.
    ///
    /// # Errors
    ///
    /// The first problem of the text, in the order of its fields.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        check_text(text)?;
        let rest = text
            .strip_prefix(K::PREFIX)
            .ok_or(FormatError::WrongPrefix(K::PREFIX))?;
        let unknown = FormatError::UnknownHash(K::HASHES);
        let (digits, rest) = rest.split_once(':').ok_or(unknown)?;
        let hash = Hash::ALL
            .into_iter()
            .find(|hash| K::permits(*hash) && hash.digits() == digits)
            .ok_or(unknown)?;
        let encoded = rest.strip_suffix(':').ok_or(FormatError::NoTrailingColon)?;
        // A buffer of our own, so that an error leaves no decoded part behind.
        let mut decoded = Zeroizing::new([0; INTERCHANGE_LEN_MAX]);
        let len = STANDARD
            .decode_slice(encoded, &mut decoded[..])
            .map_err(|_| FormatError::WrongBase64)?;
        let Some((bytes, crc)) = decoded[..len].split_last_chunk::<CRC_LEN>() else {
            return Err(FormatError::WrongLength { len: 0, hash });
        };
        let secret = Self::new(hash, bytes)?;
        if *crc != crc_of(bytes) {
            return Err(FormatError::WrongCrc);
        }
        Ok(secret)
    }

    /// The hash that transforms it.
    #[must_use]
    pub const fn hash(&self) -> Hash {
        self.hash
    }

    /// The secret itself.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        self.bytes.expose()
    }

    pub(crate) const fn bytes(&self) -> &SecretBytes {
        &self.bytes
    }

    /// The interchange string. It contains the secret.
    #[must_use]
    pub fn expose_interchange(&self) -> Zeroizing<String> {
        let bytes = self.expose();
        let mut checked = Zeroizing::new([0; SECRET_LEN_MAX + CRC_LEN]);
        let len = bytes.len();
        checked[..len].copy_from_slice(bytes);
        checked[len..len + CRC_LEN].copy_from_slice(&crc_of(bytes));
        let mut encoded = STANDARD.encode(&checked[..len + CRC_LEN]);
        let mut text = Zeroizing::new(String::with_capacity(INTERCHANGE_LEN_MAX));
        for part in [K::PREFIX, self.hash.digits(), ":", &encoded, ":"] {
            text.push_str(part);
        }
        encoded.zeroize();
        text
    }
}

impl ChapSecret {
    /// The key K of DH-HMAC-CHAP: the secret, hashed with the NQN of the host for the host's key,
    /// or with that of the subsystem for the controller's key.
    #[must_use]
    pub fn transformed(&self, nqn: &str) -> SecretBytes {
        let algorithm = match self.hash {
            Hash::None => return self.bytes.clone(),
            Hash::Sha256 => hmac::HMAC_SHA256,
            Hash::Sha384 => hmac::HMAC_SHA384,
            Hash::Sha512 => hmac::HMAC_SHA512,
        };
        hmac_of(algorithm, self.expose(), &[nqn, "NVMe-over-Fabrics"])
    }
}

impl<K> Clone for Secret<K> {
    fn clone(&self) -> Self {
        Self {
            hash: self.hash,
            bytes: self.bytes.clone(),
            kind: PhantomData,
        }
    }
}

/// Compares the secrets in constant time.
impl<K> PartialEq for Secret<K> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.bytes == other.bytes
    }
}

impl<K> Eq for Secret<K> {}

impl<K: Kind> fmt::Debug for Secret<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("kind", &K::PREFIX)
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

/// A secret of either kind, as its prefix says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnySecret {
    /// A key for TLS.
    Tls(TlsKey),
    /// A secret for DH-HMAC-CHAP.
    Chap(ChapSecret),
}

impl AnySecret {
    /// Parses an interchange string of either kind.
    ///
    /// # Errors
    ///
    /// The first problem of the text, in the order of its fields.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        check_text(text)?;
        if text.starts_with(Tls::PREFIX) {
            TlsKey::parse(text).map(Self::Tls)
        } else if text.starts_with(Chap::PREFIX) {
            ChapSecret::parse(text).map(Self::Chap)
        } else {
            Err(FormatError::UnknownPrefix)
        }
    }

    /// The interchange string. It contains the secret.
    #[must_use]
    pub fn expose_interchange(&self) -> Zeroizing<String> {
        match self {
            Self::Tls(key) => key.expose_interchange(),
            Self::Chap(secret) => secret.expose_interchange(),
        }
    }
}

/// Checks what is the same for every kind.
fn check_text(text: &str) -> Result<(), FormatError> {
    if text.is_empty() {
        return Err(FormatError::Empty);
    }
    if text.len() > INTERCHANGE_LEN_MAX {
        return Err(FormatError::TooLong(text.len()));
    }
    if text.contains(char::is_whitespace) {
        return Err(FormatError::WhiteSpace);
    }
    Ok(())
}

fn crc_of(bytes: &[u8]) -> [u8; CRC_LEN] {
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, bytes);
    u32::try_from(crc)
        .expect("a CRC-32 has 32 bits")
        .to_le_bytes()
}

#[cfg(test)]
mod tests;
