//! Fingerprints of secrets, by which a revoked secret is recognized without being kept.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest;

use crate::{Kind, Secret};

/// Distinguishes fingerprints from other hashes of the same secret.
const PURPOSE: &[u8] = b"windlass key fingerprint\0";

/// Length in bytes: that of SHA-256.
const LEN: usize = 32;

/// A hash of a secret. The secret has at least 32 random bytes, so it cannot be found from the hash.
///
/// Secrets with the same bytes have the same fingerprint, whatever their kind and their hash are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; LEN]);

/// Text is not a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint has {0} hexadecimal digits", 2 * LEN)]
pub struct InvalidFingerprint;

impl<K: Kind> Secret<K> {
    /// The fingerprint of the secret.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(PURPOSE);
        context.update(self.expose());
        let mut bytes = [0; LEN];
        bytes.copy_from_slice(context.finish().as_ref());
        Fingerprint(bytes)
    }
}

/// In hexadecimal digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.as_bytes();
        let is_hexadecimal = digits.iter().all(u8::is_ascii_hexdigit);
        if digits.len() != 2 * LEN || !is_hexadecimal {
            return Err(InvalidFingerprint);
        }
        let mut bytes = [0; LEN];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| InvalidFingerprint)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| InvalidFingerprint)?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chap, Hash, Tls};

    #[test]
    fn only_the_bytes_of_a_secret_matter() {
        let secret = |byte| Secret::<Chap>::new(Hash::Sha256, &[byte; 32]).unwrap();
        let plain = Secret::<Chap>::new(Hash::None, &[1; 32]).unwrap();
        let tls = Secret::<Tls>::new(Hash::Sha256, &[1; 32]).unwrap();
        assert_eq!(secret(1).fingerprint(), plain.fingerprint());
        assert_eq!(secret(1).fingerprint(), tls.fingerprint());
        assert_ne!(secret(1).fingerprint(), secret(2).fingerprint());
        // A hash of the secret alone could be compared with those that others publish.
        let alone = digest::digest(&digest::SHA256, &[1; 32]);
        assert_ne!(plain.fingerprint().0, alone.as_ref());
    }

    #[test]
    fn text_of_a_fingerprint_is_read_again() {
        let secret = Secret::<Chap>::new(Hash::Sha256, &[0xa5; 32]).unwrap();
        let text = secret.fingerprint().to_string();
        assert_eq!(text.parse(), Ok(secret.fingerprint()));
        let with_sign = format!("+{}", &text[1..]);
        for wrong in [
            "",
            &text[1..],
            &format!("{text}0"),
            &"g".repeat(64),
            &with_sign,
        ] {
            assert_eq!(wrong.parse::<Fingerprint>(), Err(InvalidFingerprint));
        }
    }
}
