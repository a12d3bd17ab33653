//! HKDF-Expand-Label of RFC 8446 §7.1, and the variants of it that hosts use.
//!
//! A host and a target derive the same pre-shared key only if they encode the `HkdfLabel` alike.
//! The specification demands the encoding of RFC 8446. Widely used hosts have other ones.

use aws_lc_rs::{hkdf, hmac};

use crate::SecretBytes;

/// The hash of a pre-shared key, which is that of the cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PskHash {
    /// SHA-256, for `TLS_AES_128_GCM_SHA256`.
    Sha256,
    /// SHA-384, for `TLS_AES_256_GCM_SHA384`.
    Sha384,
}

impl PskHash {
    /// Both hashes.
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Sha384];

    /// The hash for keys of `len` bytes, which is as long. `None` if there is none.
    #[must_use]
    pub fn of_len(len: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.len() == len)
    }

    /// Length of the hash and of its keys, in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no hash is empty")]
    pub const fn len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
        }
    }

    /// The two digits in identities.
    pub(crate) const fn digits(self) -> &'static str {
        match self {
            Self::Sha256 => "01",
            Self::Sha384 => "02",
        }
    }

    /// The HMAC of the hash.
    #[must_use]
    pub fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
        }
    }

    /// The HKDF of the hash.
    #[must_use]
    pub fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Self::Sha256 => hkdf::HKDF_SHA256,
            Self::Sha384 => hkdf::HKDF_SHA384,
        }
    }
}

/// How the `HkdfLabel` is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// As RFC 8446 §7.1 demands: libnvme 1.16 and later, SPDK.
    Standard,
    /// libnvme before 1.16, which Debian 13 has: the length is little-endian, and label and
    /// context have no length of their own.
    OldLibnvme,
    /// Generated keys of Linux from 6.15 until it got `hkdf_expand_label`: label and context have
    /// no length of their own.
    OldLinux,
}

/// The length of the output, for the interface of [`hkdf`].
struct OutputLen(usize);

impl hkdf::KeyType for OutputLen {
    fn len(&self) -> usize {
        self.0
    }
}

/// `HKDF-Extract(0, key)`.
#[must_use]
pub fn extract(hash: PskHash, key: &SecretBytes) -> hkdf::Prk {
    let zeros = [0; PskHash::Sha384.len()];
    hkdf::Salt::new(hash.hkdf(), &zeros[..hash.len()]).extract(key.expose())
}

/// `HKDF-Expand(key, info, output_len)`.
///
/// # Panics
/// The output is longer than 255 times the hash.
#[must_use]
pub fn expand(key: &hkdf::Prk, info: &[&[u8]], output_len: usize) -> SecretBytes {
    let mut output = SecretBytes::zeros(output_len);
    key.expand(info, OutputLen(output_len))
        .and_then(|expanded| expanded.fill(output.expose_mut()))
        .expect("the output has a permitted length");
    output
}

/// `HKDF-Expand-Label(HKDF-Extract(0, key), label, context, L)`, with `L` the length of the hash.
/// `None` if the context is longer than the encoding permits.
pub(crate) fn expand_label(
    derivation: Derivation,
    hash: PskHash,
    key: &SecretBytes,
    label: &str,
    context: &str,
) -> Option<SecretBytes> {
    let output_len = hash.len() as u16;
    let (length, has_part_lengths) = match derivation {
        Derivation::Standard => (output_len.to_be_bytes(), true),
        Derivation::OldLibnvme => (output_len.to_le_bytes(), false),
        Derivation::OldLinux => (output_len.to_be_bytes(), false),
    };
    let mut info = length.to_vec();
    for (prefix, text) in [("tls13 ", label), ("", context)] {
        if has_part_lengths {
            info.push(u8::try_from(prefix.len() + text.len()).ok()?);
        }
        info.extend_from_slice(prefix.as_bytes());
        info.extend_from_slice(text.as_bytes());
    }
    Some(expand(&extract(hash, key), &[&info], hash.len()))
}
