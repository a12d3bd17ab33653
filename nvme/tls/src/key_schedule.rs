//! The parts of the key schedule (RFC 8446 §7) that are needed outside of the handshake: binder
//! keys, and keys of records.

use std::fmt;

use aws_lc_rs::{aead, digest, hkdf, hmac};
use nvme_keys::{PskHash, SecretBytes, expand, extract};
use zeroize::Zeroizing;

use crate::Suite;

/// Length of the IV in bytes, which is that of a nonce.
pub(crate) const IV_BYTES: usize = aead::NONCE_LEN;
/// An empty transcript.
pub(crate) fn transcript(hash: PskHash) -> digest::Context {
    digest::Context::new(match hash {
        PskHash::Sha256 => &digest::SHA256,
        PskHash::Sha384 => &digest::SHA384,
    })
}

/// HKDF-Expand-Label (RFC 8446 §7.1).
fn expand_label(key: &hkdf::Prk, label: &str, context: &[u8], output_len: usize) -> SecretBytes {
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
    expand(key, &info, output_len)
}

/// The key of the binders that prove an external pre-shared key (RFC 8446 §4.2.11.2).
pub(crate) fn binder_key(hash: PskHash, psk: &SecretBytes) -> hmac::Key {
    let empty = transcript(hash).finish();
    let early = extract(hash, psk);
    let secret = expand_label(&early, "ext binder", empty.as_ref(), hash.len());
    let secret = hkdf::Prk::new_less_safe(hash.hkdf(), secret.expose());
    let finished = expand_label(&secret, "finished", &[], hash.len());
    hmac::Key::new(hash.hmac(), finished.expose())
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

    /// The secret as a key of HKDF-Expand.
    fn prk(&self) -> hkdf::Prk {
        hkdf::Prk::new_less_safe(self.suite.hash().hkdf(), self.secret.expose())
    }

    /// Key and IV of its records (RFC 8446 §7.3).
    #[must_use]
    pub fn record_key(&self) -> RecordKey {
        let prk = self.prk();
        let iv = expand_label(&prk, "iv", &[], IV_BYTES);
        RecordKey {
            key: expand_label(&prk, "key", &[], self.suite.aead().key_len()),
            iv: Zeroizing::new(*iv.expose().first_chunk().expect("the requested length")),
        }
    }

    /// The secret after a KeyUpdate (RFC 8446 §7.2).
    #[must_use]
    pub fn next(&self) -> Self {
        let hash_len = self.suite.hash().len();
        Self {
            suite: self.suite,
            secret: expand_label(&self.prk(), "traffic upd", &[], hash_len),
        }
    }
}

/// What protects records from number 0.
pub struct RecordKey {
    /// The key of the AEAD.
    pub key: SecretBytes,
    /// The IV, of which the number of a record makes a nonce.
    pub iv: Zeroizing<[u8; IV_BYTES]>,
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordKey(hidden)")
    }
}

/// What protects the records of one direction.
pub(crate) struct RecordKeys {
    secret: TrafficSecret,
    pub(crate) key: aead::LessSafeKey,
    iv: Zeroizing<[u8; IV_BYTES]>,
    /// The number of the next record, and of those that the current key has protected.
    pub(crate) sequence: u64,
}

impl fmt::Debug for RecordKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordKeys(hidden)")
    }
}

impl RecordKeys {
    /// Key and IV of a secret's records (RFC 8446 §7.3), from the record with the number 0.
    pub(crate) fn new(secret: TrafficSecret) -> Self {
        let RecordKey { key, iv } = secret.record_key();
        let algorithm = secret.suite.aead();
        let key = aead::UnboundKey::new(algorithm, key.expose()).expect("a key of its length");
        Self {
            secret,
            key: aead::LessSafeKey::new(key),
            iv,
            sequence: 0,
        }
    }

    /// Replaces the key, for a KeyUpdate.
    pub(crate) fn update(&mut self) {
        *self = Self::new(self.secret.next());
    }

    /// The nonce of the next record (RFC 8446 §5.3).
    #[inline]
    pub(crate) fn nonce(&self) -> aead::Nonce {
        let mut nonce = *self.iv;
        let number = self.sequence.to_be_bytes();
        for (byte, number) in nonce[IV_BYTES - 8..].iter_mut().zip(number) {
            *byte ^= number;
        }
        aead::Nonce::assume_unique_for_key(nonce)
    }
}

#[cfg(test)]
mod tests;
