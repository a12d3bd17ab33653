//! What the TLS of a listener needs: its policy, the keys of hosts, and the counters of handshakes.

use std::sync::{Arc, Mutex, PoisonError};

use nvme_keys::{Candidate, Derivation};
use nvme_target::{GeneratedKeys, KeyOwner, SecureChannel};
use nvme_tls::{ChangingKeys, KeyTable};
use nvme_tls_handshake::Established;

/// Whether the connections of a listener are protected by TLS 1.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsPolicy {
    /// They are not.
    #[default]
    Off,
    /// The first byte of a host decides.
    Allowed,
    /// They are. Others are refused.
    Required,
}

/// What seals and opens the records of a listener's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsRecords {
    /// This process.
    #[default]
    Own,
    /// The kernel, if it has TLS; otherwise this process.
    Kernel,
}

/// The keys of hosts, with their owners.
pub type TlsKeys = KeyTable<Arc<KeyOwner>>;

/// The keys that hosts generate while the target runs, for [`TlsKeys::with_changing`].
#[derive(Debug)]
pub struct GeneratedTlsKeys(pub GeneratedKeys);

impl ChangingKeys<Arc<KeyOwner>> for GeneratedTlsKeys {
    fn candidates(&self, identity: &[u8]) -> Vec<(Arc<KeyOwner>, Candidate)> {
        self.0.candidates(identity)
    }
}

/// The keys at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct VersionedTlsKeys {
    /// Number of changes before.
    pub(crate) version: u64,
    pub(crate) keys: Arc<TlsKeys>,
}

/// The keys that handshakes use. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct SharedTlsKeys(Arc<Mutex<VersionedTlsKeys>>);

impl SharedTlsKeys {
    /// Handshakes that begin from now on use `keys`. Returns their version.
    pub fn replace(&self, keys: TlsKeys) -> u64 {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let version = shared.version + 1;
        let keys = Arc::new(keys);
        *shared = VersionedTlsKeys { version, keys };
        version
    }

    pub(crate) fn get(&self) -> VersionedTlsKeys {
        let shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.clone()
    }
}

nvme_fabrics::transport_counters! {
    /// Counts of the handshakes of all listeners since the start.
    pub struct TlsCounters {
        /// Connections whose handshake is not complete (a level).
        handshakes_open,
        /// Handshakes that were completed.
        handshakes,
        /// Handshakes that failed because the host has none of the keys.
        handshakes_refused,
        /// Handshakes that failed for another reason.
        handshakes_failed,
        /// Connections closed because the handshake was not completed in time.
        handshake_timeouts,
        /// Connections refused because too many handshakes were in progress.
        handshakes_rejected,
        /// Connections without TLS refused by a listener that requires it.
        plain_connections_refused,
    }
}

/// What the target learns of the channel of a handshake with keys of this version.
pub(crate) fn secure_channel(
    established: &Established<Arc<KeyOwner>>,
    keys_version: u64,
) -> SecureChannel {
    let candidate = established.found.candidate();
    SecureChannel {
        owner: Arc::clone(established.found.key()),
        keys_version,
        cipher: established.secrets.suite.name(),
        group: established.secrets.group.name(),
        has_kernel_records: false,
        derivation: match candidate.derivation {
            Derivation::Standard => "standard",
            Derivation::OldLibnvme => "old-libnvme",
            Derivation::OldLinux => "old-linux",
        },
    }
}
