//! The cipher suites of NVMe/TCP.

use aws_lc_rs::aead;
use nvme_keys::PskHash;

/// A cipher suite. A pre-shared key determines it by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// `TLS_AES_128_GCM_SHA256`
    Aes128GcmSha256,
    /// `TLS_AES_256_GCM_SHA384`
    Aes256GcmSha384,
}

impl Suite {
    /// Both suites.
    pub const ALL: [Self; 2] = [Self::Aes128GcmSha256, Self::Aes256GcmSha384];

    /// The suite of keys with this hash.
    #[must_use]
    pub const fn of_hash(hash: PskHash) -> Self {
        match hash {
            PskHash::Sha256 => Self::Aes128GcmSha256,
            PskHash::Sha384 => Self::Aes256GcmSha384,
        }
    }

    /// Its number in messages.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::Aes128GcmSha256 => 0x1301,
            Self::Aes256GcmSha384 => 0x1302,
        }
    }

    /// The suite with this number; `None` for others.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.code() == code)
    }

    /// Its hash.
    #[must_use]
    pub const fn hash(self) -> PskHash {
        match self {
            Self::Aes128GcmSha256 => PskHash::Sha256,
            Self::Aes256GcmSha384 => PskHash::Sha384,
        }
    }

    /// Its name in RFC 8446.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128GcmSha256 => "TLS_AES_128_GCM_SHA256",
            Self::Aes256GcmSha384 => "TLS_AES_256_GCM_SHA384",
        }
    }

    pub(crate) fn aead(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128GcmSha256 => &aead::AES_128_GCM,
            Self::Aes256GcmSha384 => &aead::AES_256_GCM,
        }
    }
}
