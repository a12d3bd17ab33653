//! The transport of capsules and data. All layers above are independent of it.

use std::fmt::Debug;
use std::sync::Arc;

use hugemem::{Arena, Lease};
use nvme_spec::log::TransportType;

use crate::error::HostError;
use crate::link::Link;
use crate::options::ConnectOptions;
use crate::tcp::protected::{ProtectedSocket, TlsOptions};
use crate::tcp::stream::ByteStream;
use crate::tcp::{Tcp, connect_socket};

/// A connected admin queue.
pub(crate) type AdminLink = Box<dyn Link<Vec<u8>> + Send>;

/// A connected I/O queue.
pub(crate) type IoLink = Box<dyn Link<Lease>>;

/// Parameters of a queue before it is connected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueParameters {
    /// Queue identifier.
    pub(crate) qid: u16,
    /// Maximum number of commands in flight.
    pub(crate) depth: u16,
    /// Controller identifier, for I/O queues.
    pub(crate) cntlid: u16,
    /// Maximum data bytes in a command capsule.
    pub(crate) in_capsule_max_bytes: u32,
    /// Maximum number of data descriptors of one command; 0 means no limit (Identify Controller,
    /// MSDBD).
    pub(crate) descriptors_max: u8,
}

/// A transport's functions for connecting queues.
pub(crate) trait Fabric: Debug + Send + Sync {
    /// The transport type, as in discovery logs.
    fn kind(&self) -> TransportType;

    /// See [`Transport::attach`].
    fn attach(&self, arena: &Arc<Arena>) -> Result<(), HostError>;

    /// Opens the connection of an admin queue, before Connect.
    fn connect_admin(
        &self,
        options: &ConnectOptions,
        parameters: &QueueParameters,
    ) -> Result<AdminLink, HostError>;

    /// Opens the connection of an I/O queue, before Connect.
    fn connect_io(
        &self,
        options: &ConnectOptions,
        parameters: &QueueParameters,
    ) -> Result<IoLink, HostError>;
}

/// A transport, with the state shared by its connections. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Transport(pub(crate) Arc<dyn Fabric>);

impl Transport {
    /// NVMe/TCP.
    #[must_use]
    pub fn tcp() -> Self {
        Self(Arc::new(Tcp(connect_socket)))
    }

    /// NVMe/TCP over streams created by `connect_stream`, one per connection, instead of sockets:
    /// for targets in the same process, correct or misbehaving.
    #[must_use]
    pub fn tcp_over<S: ByteStream + Send + 'static>(
        connect_stream: impl Fn(&ConnectOptions) -> Result<S, HostError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Tcp(connect_stream)))
    }

    /// NVMe/TCP over sockets that TLS protects with the key of `tls`.
    #[must_use]
    pub fn tls(tls: TlsOptions) -> Self {
        Self::tcp_over(move |options: &ConnectOptions| ProtectedSocket::connect(options, &tls))
    }

    /// The transport type.
    #[must_use]
    pub fn kind(&self) -> TransportType {
        self.0.kind()
    }

    /// Registers an arena whose leases will carry the data of I/O queues. Call it before opening
    /// the first of them. RDMA registers the arena once for each device, and keeps it for the
    /// lifetime of the transport; TCP does nothing.
    ///
    /// # Errors
    /// [`HostError`] if a device in use cannot register it.
    pub fn attach(&self, arena: &Arc<Arena>) -> Result<(), HostError> {
        self.0.attach(arena)
    }
}

impl Default for Transport {
    fn default() -> Self {
        Self::tcp()
    }
}
