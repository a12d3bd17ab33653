//! The parts of the key schedule (RFC 8446 §7) that are needed outside of the handshake: binder
//! keys, and keys of records.

use std::fmt;

use aws_lc_rs::{aead, digest, hkdf, hmac};
use nvme_keys::{PskHash, SecretBytes};
use zeroize::Zeroizing;

use crate::Suite;

/// Length of the IV in bytes, which is that of a nonce.
pub(crate) const IV_BYTES: usize = aead::NONCE_LEN;
/// Longest secret and key in bytes.
const SECRET_BYTES_MAX: usize = PskHash::Sha384.len();

/// The length of the output, for the interface of [`hkdf`].
struct OutputLen(usize);

impl hkdf::KeyType for OutputLen {
    fn len(&self) -> usize {
        self.0
    }
}

fn hkdf_of(hash: PskHash) -> hkdf::Algorithm {
    match hash {
        PskHash::Sha256 => hkdf::HKDF_SHA256,
        PskHash::Sha384 => hkdf::HKDF_SHA384,
    }
}

pub(crate) fn hmac_of(hash: PskHash) -> hmac::Algorithm {
    match hash {
        PskHash::Sha256 => hmac::HMAC_SHA256,
        PskHash::Sha384 => hmac::HMAC_SHA384,
    }
}

/// An empty transcript.
pub(crate) fn transcript(hash: PskHash) -> digest::Context {
    digest::Context::new(match hash {
        PskHash::Sha256 => &digest::SHA256,
        PskHash::Sha384 => &digest::SHA384,
    })
}

/// HKDF-Expand-Label (RFC 8446 §7.1).
fn expand_label(
    hash: PskHash,
    secret: &[u8],
    label: &str,
    context: &[u8],
    output_len: usize,
) -> SecretBytes {
    let length = (output_len as u16).to_be_bytes();
    let prefix = b"tls13 ";
    let label_len = [(prefix.len() + label.len()) as u8];
    let context_len = [context.len() as u8];
    let info: [&[u8]; 6] = [
        &length,
        &label_len,
        prefix,
        label.as_bytes(),
        &context_len,
        context,
    ];
    let mut output = Zeroizing::new([0; SECRET_BYTES_MAX]);
    let output = &mut output[..output_len];
    hkdf::Prk::new_less_safe(hkdf_of(hash), secret)
        .expand(&info, OutputLen(output_len))
        .and_then(|expanded| expanded.fill(output))
        .expect("one block of output has a permitted length");
    SecretBytes::copy_of(output)
}

/// The key of the binders that prove an external pre-shared key (RFC 8446 §4.2.11.2).
pub(crate) fn binder_key(hash: PskHash, psk: &SecretBytes) -> hmac::Key {
    let zeros = [0; SECRET_BYTES_MAX];
    let early = hmac::sign(
        &hmac::Key::new(hmac_of(hash), &zeros[..hash.len()]),
        psk.expose(),
    );
    let early = SecretBytes::copy_of(early.as_ref());
    let empty = transcript(hash).finish();
    let secret = expand_label(
        hash,
        early.expose(),
        "ext binder",
        empty.as_ref(),
        hash.len(),
    );
    let finished = expand_label(hash, secret.expose(), "finished", &[], hash.len());
    hmac::Key::new(hmac_of(hash), finished.expose())
}

/// A secret does not have the length of its suite's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a traffic secret of {suite} has {expected} bytes, not {found}", suite = .suite.name())]
pub struct WrongSecretLength {
    suite: Suite,
    expected: usize,
    found: usize,
}

/// The secret of one direction of a connection, from which keys of records are derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficSecret {
    suite: Suite,
    secret: SecretBytes,
}

impl TrafficSecret {
    /// A copy of a secret.
    ///
    /// # Errors
    ///
    /// The length is not that of the suite's hash.
    pub fn new(suite: Suite, secret: &[u8]) -> Result<Self, WrongSecretLength> {
        let expected = suite.hash().len();
        if secret.len() != expected {
            return Err(WrongSecretLength {
                suite,
                expected,
                found: secret.len(),
            });
        }
        let secret = SecretBytes::copy_of(secret);
        Ok(Self { suite, secret })
    }

    /// The suite that it belongs to.
    #[must_use]
    pub const fn suite(&self) -> Suite {
        self.suite
    }

    /// The secret after a KeyUpdate (RFC 8446 §7.2).
    pub(crate) fn next(&self) -> Self {
        let hash = self.suite.hash();
        let secret = expand_label(hash, self.secret.expose(), "traffic upd", &[], hash.len());
        Self {
            suite: self.suite,
            secret,
        }
    }

    /// Key and IV of records (RFC 8446 §7.3).
    pub(crate) fn record_keys(&self) -> RecordKeys {
        let hash = self.suite.hash();
        let algorithm = self.suite.aead();
        let secret = self.secret.expose();
        let key = expand_label(hash, secret, "key", &[], algorithm.key_len());
        let iv = expand_label(hash, secret, "iv", &[], IV_BYTES);
        let key = aead::UnboundKey::new(algorithm, key.expose()).expect("a key of its length");
        RecordKeys {
            key: aead::LessSafeKey::new(key),
            iv: Zeroizing::new(*iv.expose().first_chunk().expect("the requested length")),
        }
    }
}

/// What protects the records of one direction until its next KeyUpdate.
pub(crate) struct RecordKeys {
    pub(crate) key: aead::LessSafeKey,
    iv: Zeroizing<[u8; IV_BYTES]>,
}

impl fmt::Debug for RecordKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordKeys(hidden)")
    }
}

impl RecordKeys {
    /// The nonce of the record with this number (RFC 8446 §5.3).
    #[inline]
    pub(crate) fn nonce(&self, sequence: u64) -> aead::Nonce {
        let mut nonce = *self.iv;
        for (byte, number) in nonce[IV_BYTES - 8..].iter_mut().zip(sequence.to_be_bytes()) {
            *byte ^= number;
        }
        aead::Nonce::assume_unique_for_key(nonce)
    }
}

#[cfg(test)]
mod tests;
