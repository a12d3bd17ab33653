//! What the appliance decides about NVMe/TCP, with its limits.

use nvme_target::PortId;
use reactors::Nanos;

/// Whether a digest is used, against what the host asks for in its ICReq.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DigestPolicy {
    /// Refused; a host that asks for it goes on without.
    Off,
    /// Used when the host asks for it.
    #[default]
    Allowed,
    /// Always used: the ICResp enables it whether the host asked or not.
    Required,
}

/// Largest in-capsule data that an I/O queue may be given, in bytes.
pub const IN_CAPSULE_BYTES_MAX: u32 = 64 << 10;
/// Bytes of a receive buffer.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 128 << 10;
/// Receive buffers of a reactor: one in use, the others for connections whose in-capsule data waits
/// for a lease.
pub(crate) const RECEIVE_BUFFERS: usize = 8;
/// Connections that one reactor serves at most; the token of a request has 16 bits for it.
pub const CONNECTIONS_PER_REACTOR_MAX: usize = 8192;

/// Of the spare receive buffers, those that the connections of one host keep at most.
pub(crate) const KEPT_BUFFERS_PER_HOST_MAX: usize = 2;

/// A connection is closed when its host sends nothing of the data that it was asked for, or takes
/// nothing of the data that it asked for, for this time.
pub(crate) const PROGRESS_TIMEOUT: Nanos = Nanos::from_secs(30);
/// The same where the connection holds memory of a size for which a host waits that has none of it.
pub(crate) const PROGRESS_TIMEOUT_CONTENDED: Nanos = Nanos::from_secs(2);
/// How often a connection is looked at that may make no progress.
pub(crate) const PROGRESS_CHECK_INTERVAL: Nanos = Nanos::from_millis(500);

const _: () = assert!(KEPT_BUFFERS_PER_HOST_MAX < RECEIVE_BUFFERS - 1);
const _: () = assert!(PROGRESS_TIMEOUT_CONTENDED.as_nanos() < PROGRESS_TIMEOUT.as_nanos());
const _: () = assert!(CONNECTIONS_PER_REACTOR_MAX <= 1 << 16);

/// What hosts of one port get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSettings {
    /// In-capsule data that I/O queues may carry, bytes, a multiple of 16.
    pub in_capsule_bytes: u32,
    /// Header digest.
    pub header_digest: DigestPolicy,
    /// Data digest.
    pub data_digest: DigestPolicy,
}

impl Default for PortSettings {
    fn default() -> Self {
        Self {
            in_capsule_bytes: 16 << 10,
            header_digest: DigestPolicy::default(),
            data_digest: DigestPolicy::default(),
        }
    }
}

/// Settings of one reactor's NVMe/TCP transport.
#[derive(Debug, Clone)]
pub struct TcpConfig {
    /// The ports that do not have the default settings.
    pub ports: Vec<(PortId, PortSettings)>,
    /// Largest data of one H2CData PDU, bytes, a multiple of 4 and at least 4,096 (MAXH2CDATA).
    pub host_data_bytes_max: u32,
    /// Whether a read that succeeded ends with the C2HData PDU's SUCCESS flag in place of a
    /// response capsule, on queues whose host disabled SQ flow control.
    pub success_flag: bool,
    /// Connections at most on this reactor.
    pub connections_max: usize,
    /// A host must have sent its ICReq and Connect within this time.
    pub setup_timeout: Nanos,
    /// A host must have closed its side within this time after a termination request or a shutdown.
    pub close_timeout: Nanos,
}

impl TcpConfig {
    /// What hosts of `port` get.
    #[must_use]
    pub fn port(&self, port: PortId) -> PortSettings {
        let found = self.ports.iter().find(|(id, _)| *id == port);
        found.map_or_else(PortSettings::default, |(_, settings)| *settings)
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            host_data_bytes_max: 1 << 20,
            success_flag: true,
            connections_max: 1024,
            setup_timeout: Nanos::from_secs(10),
            close_timeout: Nanos::from_secs(1),
        }
    }
}
