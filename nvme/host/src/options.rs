//! Options of a connection: the host's identity, the target, and the transport.

use std::net::SocketAddr;
use std::time::Duration;

use nvme_spec::fabrics::ConnectData;
use nvme_spec::nqn::{self, UUID_NQN_PREFIX};
use uuid::Uuid;

use crate::authentication::ChapOptions;
use crate::error::HostError;
use crate::transport::Transport;

/// Receive buffer of an I/O queue in bytes: room for some tens of 4 KiB reads, and small enough to
/// stay in the cache.
const RECEIVE_BYTES: usize = 128 * 1024;

/// The identity of a host (Base 2.1 §4.7, §5.1.25.1.28: NQN and Host Identifier remain the same
/// over the life of a host).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIdentity {
    /// Host NQN.
    pub nqn: String,
    /// Host Identifier; must not be all zero.
    pub id: [u8; 16],
}

impl HostIdentity {
    /// The identity of a host with a UUID (Base 2.1 §4.7, second form of an NQN).
    #[must_use]
    pub fn from_uuid(uuid: [u8; 16]) -> Self {
        let text = Uuid::from_bytes(uuid).hyphenated();
        Self {
            nqn: format!("{UUID_NQN_PREFIX}{text}"),
            id: uuid,
        }
    }

    /// A new random identity.
    #[must_use]
    pub fn random() -> Self {
        Self::from_uuid(Uuid::new_v4().into_bytes())
    }
}

/// Options of a connection to a controller.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The target's listener.
    pub address: SocketAddr,
    /// The subsystem's NQN.
    pub subsystem_nqn: String,
    /// The host's identity.
    pub identity: HostIdentity,
    /// The transport.
    pub transport: Transport,
    /// Whether to protect PDU headers by CRC32C (TCP). If the target does not support it,
    /// connecting fails.
    pub header_digest: bool,
    /// Whether to protect data by CRC32C (TCP). If the target does not support it, connecting
    /// fails.
    pub data_digest: bool,
    /// Keep Alive Timeout; zero disables it. [`crate::Controller::run_periodic`] sends the Keep
    /// Alive commands.
    pub keep_alive: Duration,
    /// Time limit of each step of the control path.
    pub timeout: Duration,
    /// Receive buffer of an I/O queue in bytes (TCP).
    pub receive_bytes: usize,
    /// Congestion control for data sent to the target (TCP), by the kernel's name; `None` for the
    /// system's default.
    pub congestion_control: Option<String>,
    /// The secrets for authentication by DH-HMAC-CHAP; `None`: the host does not authenticate
    /// itself.
    pub chap: Option<ChapOptions>,
}

impl ConnectOptions {
    /// TCP without digests, a Keep Alive Timeout of 15 s, 10 s for each step.
    #[must_use]
    pub fn new(address: SocketAddr, subsystem_nqn: &str, identity: HostIdentity) -> Self {
        Self {
            address,
            subsystem_nqn: subsystem_nqn.to_owned(),
            identity,
            transport: Transport::tcp(),
            header_digest: false,
            data_digest: false,
            keep_alive: Duration::from_secs(15),
            timeout: Duration::from_secs(10),
            receive_bytes: RECEIVE_BYTES,
            congestion_control: None,
            chap: None,
        }
    }

    /// The Keep Alive Timeout in milliseconds, the unit of Connect; at most 49 days.
    pub(crate) fn keep_alive_ms(&self) -> u32 {
        u32::try_from(self.keep_alive.as_millis()).unwrap_or(u32::MAX)
    }

    /// Data of the Connect command for a controller (FFFFh: any).
    pub(crate) fn connect_data(&self, cntlid: u16) -> Result<ConnectData, HostError> {
        let field = |name: &str| {
            nqn::to_field(name).map_err(|source| HostError::Nqn {
                name: name.into(),
                source,
            })
        };
        let (subsystem, host) = (field(&self.subsystem_nqn)?, field(&self.identity.nqn)?);
        Ok(ConnectData::new(self.identity.id, cntlid, subsystem, host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(subsystem: &str) -> ConnectOptions {
        let address = SocketAddr::from(([127, 0, 0, 1], 4420));
        ConnectOptions::new(address, subsystem, HostIdentity::from_uuid([7; 16]))
    }

    #[test]
    fn host_identity_is_derived_from_its_uuid() {
        let identity = HostIdentity::from_uuid([0xab; 16]);
        let expected = "nqn.2014-08.org.nvmexpress:uuid:abababab-abab-abab-abab-abababababab";
        assert_eq!((identity.nqn.as_str(), identity.id), (expected, [0xab; 16]));
        assert!(nqn::validate(&identity.nqn).is_ok());
        assert_ne!(HostIdentity::random(), HostIdentity::random());
    }

    #[test]
    fn invalid_subsystem_names_are_refused_locally() {
        assert!(
            options("nqn.2026-11.org.windlass:test")
                .connect_data(1)
                .is_ok()
        );
        let error = options(&"x".repeat(300))
            .connect_data(1)
            .expect_err("too long");
        assert!(error.to_string().contains("longer than 223"), "{error}");
        assert!(options("").connect_data(1).is_err());
    }

    #[test]
    fn keep_alive_saturates() {
        let mut options = options("nqn.2026-11.org.windlass:test");
        options.keep_alive = Duration::MAX;
        assert_eq!(options.keep_alive_ms(), u32::MAX);
    }
}
