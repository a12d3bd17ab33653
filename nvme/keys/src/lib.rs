//! Keys and secrets of hosts: pre-shared keys for TLS and secrets for DH-HMAC-CHAP.
//!
//! Parses and prints the interchange formats ([`TlsKey`], [`ChapSecret`]), and derives from them the
//! identities and pre-shared keys of TLS ([`Candidate`]) and the keys of DH-HMAC-CHAP
//! ([`ChapSecret::transformed`]). Performs no I/O and draws no random bytes.
//!
//! # Secrets
//!
//! Memory with a secret is zeroized on drop, no `Debug` prints one, and comparisons take constant
//! time. A function whose result contains a secret has `expose` in its name.

#![forbid(unsafe_code)]

mod bytes;
mod candidate;
mod derivation;
mod fingerprint;
mod interchange;
mod names;

pub use bytes::SecretBytes;
pub use candidate::{Candidate, GeneratedKey, IdentityVersion, WrongKeyLength};
pub use derivation::{Derivation, PskHash, expand, extract};
pub use fingerprint::{Fingerprint, InvalidFingerprint};
pub use interchange::{
    AnySecret, Chap, ChapSecret, FormatError, Hash, INTERCHANGE_LEN_MAX, Kind, Secret, Tls, TlsKey,
};
pub use names::{InvalidNqn, NQN_LEN_MAX, Names};

/// `HMAC(key, parts)`.
fn hmac_of(algorithm: aws_lc_rs::hmac::Algorithm, key: &[u8], parts: &[&str]) -> SecretBytes {
    let key = aws_lc_rs::hmac::Key::new(algorithm, key);
    let mut context = aws_lc_rs::hmac::Context::with_key(&key);
    for part in parts {
        context.update(part.as_bytes());
    }
    SecretBytes::copy_of(context.sign().as_ref())
}
