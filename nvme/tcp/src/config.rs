//! The settings of the NVMe/TCP transport, with their limits.

use nvme_fabrics::settings_of;
use nvme_target::PortId;
use reactors::Nanos;

use crate::initialisation::InitialisationTerms;
use crate::tls::{TlsPolicy, TlsRecords};

/// Whether a digest is used, depending on the host's request in its ICReq.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DigestPolicy {
    /// Not used; a host that requests it continues without it.
    Off,
    /// Used if the host requests it.
    #[default]
    Allowed,
    /// Always used. A host that does not request it is refused.
    Required,
}

/// Largest in-capsule data size of an I/O queue, in bytes.
pub const IN_CAPSULE_BYTES_MAX: u32 = 64 << 10;
/// Bytes of a receive buffer.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 128 << 10;
/// Receive buffers of a reactor: one to receive into, and spare ones for connections whose
/// in-capsule data waits for a lease.
pub(crate) const RECEIVE_BUFFERS: usize = 8;
/// Connections that one reactor serves at most.
pub const CONNECTIONS_PER_REACTOR_MAX: usize = 8192;

/// Spare receive buffers that the connections of one host keep at most.
pub(crate) const HELD_BUFFERS_PER_HOST_MAX: usize = 2;

/// A connection is closed when its host, for this time, sends none of the data requested by R2T, or
/// receives none of the data of its reads.
pub(crate) const PROGRESS_TIMEOUT: Nanos = Nanos::from_secs(30);
/// The same, if the connection holds leases of a size that another host without leases waits for.
pub(crate) const PROGRESS_TIMEOUT_CONTENDED: Nanos = Nanos::from_secs(2);
/// Interval of the progress checks of a connection.
pub(crate) const PROGRESS_CHECK_INTERVAL: Nanos = Nanos::from_millis(500);
/// The same while the stream waits for memory and solicited data is behind that.
pub(crate) const RESERVE_RETRY_INTERVAL: Nanos = Nanos::from_millis(20);

const _: () = assert!(HELD_BUFFERS_PER_HOST_MAX < RECEIVE_BUFFERS - 1);
const _: () = assert!(PROGRESS_TIMEOUT_CONTENDED.as_nanos() < PROGRESS_TIMEOUT.as_nanos());
const _: () = assert!(CONNECTIONS_PER_REACTOR_MAX <= 1 << 16);

/// Settings for the hosts of one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSettings {
    /// In-capsule data size of I/O queues in bytes, a multiple of 16.
    pub in_capsule_bytes: u32,
    /// Header digest.
    pub header_digest: DigestPolicy,
    /// Data digest.
    pub data_digest: DigestPolicy,
    /// TLS.
    pub tls: TlsPolicy,
    /// What seals and opens its records.
    pub tls_records: TlsRecords,
}

impl PortSettings {
    /// What hosts of the port are offered when they initialise a connection.
    pub(crate) fn terms(&self, host_data_bytes_max: u32) -> InitialisationTerms {
        InitialisationTerms {
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            host_data_bytes_max,
            tls: self.tls,
            tls_records: self.tls_records,
        }
    }
}

impl Default for PortSettings {
    fn default() -> Self {
        Self {
            in_capsule_bytes: 16 << 10,
            header_digest: DigestPolicy::default(),
            data_digest: DigestPolicy::default(),
            tls: TlsPolicy::default(),
            tls_records: TlsRecords::default(),
        }
    }
}

/// Settings of one reactor's NVMe/TCP transport.
#[derive(Debug, Clone)]
pub struct TcpConfig {
    /// Settings of ports that do not have the defaults.
    pub ports: Vec<(PortId, PortSettings)>,
    /// Largest data of one H2CData PDU in bytes, a multiple of 4 and at least 4,096 (MAXH2CDATA).
    pub host_data_bytes_max: u32,
    /// Whether a successful read ends with the C2HData PDU's SUCCESS flag instead of a response
    /// capsule, on queues whose host disabled SQ flow control.
    pub success_flag: bool,
    /// Connections of this reactor at most.
    pub connections_max: usize,
    /// Time within which a host must send its ICReq and Connect.
    pub setup_timeout: Nanos,
    /// Time within which a host must close its side after a termination request or a shutdown.
    pub close_timeout: Nanos,
}

impl TcpConfig {
    /// The settings for hosts of `port`.
    #[must_use]
    pub fn port(&self, port: PortId) -> PortSettings {
        settings_of(&self.ports, port)
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
