//! Hash functions and Diffie-Hellman groups (Base 2.1 §8.3.4.5.2).

use aws_lc_rs::{digest, hmac};
use nvme_spec::authentication::{GroupId, HashId};

/// The longest hash, bytes.
pub const HASH_BYTES_MAX: usize = 64;

/// The longest public value of a group, bytes.
pub const PUBLIC_VALUE_BYTES_MAX: usize = 1024;

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// Every hash function.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// The function of an identifier; `None` if it is unknown.
    pub const fn from_id(id: HashId) -> Option<Self> {
        match id {
            HashId::SHA_256 => Some(Self::Sha256),
            HashId::SHA_384 => Some(Self::Sha384),
            HashId::SHA_512 => Some(Self::Sha512),
            _ => None,
        }
    }

    /// The identifier on the wire.
    pub const fn id(self) -> HashId {
        match self {
            Self::Sha256 => HashId::SHA_256,
            Self::Sha384 => HashId::SHA_384,
            Self::Sha512 => HashId::SHA_512,
        }
    }

    /// Length of the hash, bytes; it is also the length of challenges and responses.
    pub const fn bytes(self) -> u8 {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Whether TLS 1.3 has pre-shared keys of this hash, so that one can be generated.
    pub const fn has_tls_psk(self) -> bool {
        match self {
            Self::Sha256 | Self::Sha384 => true,
            Self::Sha512 => false,
        }
    }

    pub(crate) fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }

    pub(crate) fn digest(self) -> &'static digest::Algorithm {
        match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha384 => &digest::SHA384,
            Self::Sha512 => &digest::SHA512,
        }
    }
}

/// A Diffie-Hellman group (RFC 7919), or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// No Diffie-Hellman exchange: a recorded exchange can be attacked offline.
    Null,
    /// ffdhe2048.
    Ffdhe2048,
    /// ffdhe3072.
    Ffdhe3072,
    /// ffdhe4096.
    Ffdhe4096,
    /// ffdhe6144.
    Ffdhe6144,
    /// ffdhe8192.
    Ffdhe8192,
}

impl Group {
    /// Every group.
    pub const ALL: [Self; 6] = [
        Self::Null,
        Self::Ffdhe2048,
        Self::Ffdhe3072,
        Self::Ffdhe4096,
        Self::Ffdhe6144,
        Self::Ffdhe8192,
    ];

    /// The group of an identifier; `None` if it is unknown.
    pub const fn from_id(id: GroupId) -> Option<Self> {
        match id {
            GroupId::NULL => Some(Self::Null),
            GroupId::FFDHE2048 => Some(Self::Ffdhe2048),
            GroupId::FFDHE3072 => Some(Self::Ffdhe3072),
            GroupId::FFDHE4096 => Some(Self::Ffdhe4096),
            GroupId::FFDHE6144 => Some(Self::Ffdhe6144),
            GroupId::FFDHE8192 => Some(Self::Ffdhe8192),
            _ => None,
        }
    }

    /// The identifier on the wire.
    pub const fn id(self) -> GroupId {
        match self {
            Self::Null => GroupId::NULL,
            Self::Ffdhe2048 => GroupId::FFDHE2048,
            Self::Ffdhe3072 => GroupId::FFDHE3072,
            Self::Ffdhe4096 => GroupId::FFDHE4096,
            Self::Ffdhe6144 => GroupId::FFDHE6144,
            Self::Ffdhe8192 => GroupId::FFDHE8192,
        }
    }

    /// Length of a public value, bytes: that of the prime; 0 for the null group.
    pub const fn public_value_len(self) -> u16 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }
}
