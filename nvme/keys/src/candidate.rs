//! Identities and pre-shared keys of TLS (TCP 1.1 §3.6.1.3).
//!
//! An identity is `NVMe0R01 HOST SUBSYSTEM` (version 0) or `NVMe1R01 HOST SUBSYSTEM DIGEST` (version
//! 1). `R` means a retained key, `G` one that DH-HMAC-CHAP has generated; `01` is the hash. A target
//! cannot know how a host has derived its key, so it lists all possibilities; identities of version
//! 0 do not depend on the derivation, and only the binder distinguishes their keys.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::derivation::expand_label;
use crate::{Derivation, Hash, Names, PskHash, SecretBytes, TlsKey, hmac_of};

/// The version of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityVersion {
    /// Without a digest: all keys of a host for a subsystem have the same identity.
    V0,
    /// With a digest of the key.
    V1,
}

/// The source of the key in an identity.
#[derive(Clone, Copy)]
enum Source {
    Retained,
    Generated,
}

/// A pre-shared key that a host may use, and its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The identity in the ClientHello, which is also the description in the host's keyring.
    pub identity: String,
    /// The pre-shared key for TLS.
    pub psk: SecretBytes,
    /// The hash of the key, and of the cipher suite.
    pub hash: PskHash,
    /// The version of the identity.
    pub version: IdentityVersion,
    /// The derivation of the key.
    pub derivation: Derivation,
}

impl TlsKey {
    /// The hash of the pre-shared keys. A configured key (`00`) has that of its length.
    #[must_use]
    pub fn psk_hash(&self) -> PskHash {
        PskHash::of_len(self.expose().len()).expect("the length was checked")
    }

    /// Every pre-shared key that a host may derive for a subsystem: version 1 before version 0, as
    /// Linux prefers them, and the standard derivation before the old one.
    ///
    /// A name of version 0 that is too long for the standard derivation has only the old one.
    #[must_use]
    pub fn candidates(&self, names: Names<'_>) -> Vec<Candidate> {
        let retained = [Derivation::Standard, Derivation::OldLibnvme]
            .map(|derivation| (derivation, self.retained(derivation, names.host())));
        let mut candidates = Vec::with_capacity(4);
        for version in [IdentityVersion::V1, IdentityVersion::V0] {
            for (derivation, key) in &retained {
                let input = Input {
                    source: Source::Retained,
                    hash: self.psk_hash(),
                    key,
                };
                candidates.extend(input.candidate(names, version, *derivation));
            }
        }
        candidates
    }

    /// The retained key, which replaces the configured one on a host. A key `00` is one already.
    fn retained(&self, derivation: Derivation, host_nqn: &str) -> SecretBytes {
        let configured = self.bytes();
        match self.hash() {
            Hash::None => configured.clone(),
            Hash::Sha256 | Hash::Sha384 | Hash::Sha512 => {
                expand_label(derivation, self.psk_hash(), configured, "HostNQN", host_nqn)
                    .expect("an NQN has at most 223 bytes")
            }
        }
    }
}

/// The length of a generated key is not that of its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a generated key has the length of its hash, not {0} bytes")]
pub struct WrongKeyLength(usize);

/// A key that DH-HMAC-CHAP has generated for a secure channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedKey {
    hash: PskHash,
    bytes: SecretBytes,
}

impl GeneratedKey {
    /// A copy of a key.
    ///
    /// # Errors
    ///
    /// The length is not that of the hash.
    pub fn new(hash: PskHash, bytes: &[u8]) -> Result<Self, WrongKeyLength> {
        if bytes.len() != hash.len() {
            return Err(WrongKeyLength(bytes.len()));
        }
        let bytes = SecretBytes::copy_of(bytes);
        Ok(Self { hash, bytes })
    }

    /// Every pre-shared key that a host may derive, all with the same identity.
    #[must_use]
    pub fn candidates(&self, names: Names<'_>) -> Vec<Candidate> {
        let input = Input {
            source: Source::Generated,
            hash: self.hash,
            key: &self.bytes,
        };
        [Derivation::Standard, Derivation::OldLinux]
            .into_iter()
            .filter_map(|derivation| input.candidate(names, IdentityVersion::V1, derivation))
            .collect()
    }
}

/// A retained or generated key.
struct Input<'a> {
    source: Source,
    hash: PskHash,
    key: &'a SecretBytes,
}

impl Input<'_> {
    /// The identity and the key; `None` if the derivation cannot encode the identity.
    fn candidate(
        &self,
        names: Names<'_>,
        version: IdentityVersion,
        derivation: Derivation,
    ) -> Option<Candidate> {
        let (host, subsystem) = (names.host(), names.subsystem());
        let digits = self.hash.digits();
        let source = match self.source {
            Source::Retained => 'R',
            Source::Generated => 'G',
        };
        let (identity, context) = match version {
            IdentityVersion::V0 => {
                let identity = format!("NVMe0{source}{digits} {host} {subsystem}");
                (identity.clone(), identity)
            }
            IdentityVersion::V1 => {
                let digest = self.digest(names);
                let identity = format!("NVMe1{source}{digits} {host} {subsystem} {digest}");
                (identity, format!("{digits} {digest}"))
            }
        };
        let psk = expand_label(derivation, self.hash, self.key, "nvme-tls-psk", &context)?;
        Some(Candidate {
            identity,
            psk,
            hash: self.hash,
            version,
            derivation,
        })
    }

    /// The digest of the key in identities of version 1.
    fn digest(&self, names: Names<'_>) -> String {
        let parts = [names.host(), " ", names.subsystem(), " NVMe-over-Fabrics"];
        STANDARD.encode(hmac_of(self.hash.hmac(), self.key.expose(), &parts).expose())
    }
}

#[cfg(test)]
mod tests;
