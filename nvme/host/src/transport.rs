//! Which transport carries capsules and data; everything above is the same for all of them.

use std::fmt::Debug;
use std::sync::Arc;

use hugemem::{Arena, Lease};
use nvme_spec::log::TransportType;

use crate::error::HostError;
use crate::link::Link;
use crate::options::ConnectOptions;
use crate::tcp::stream::ByteStream;
use crate::tcp::{Tcp, dial_socket};

/// The queue of an admin connection.
pub(crate) type AdminLink = Box<dyn Link<Vec<u8>> + Send>;

/// The queue of an I/O connection.
pub(crate) type IoLink = Box<dyn Link<Lease>>;

/// What is known of a queue before it is connected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueParameters {
    /// Queue identifier.
    pub(crate) qid: u16,
    /// Commands in flight.
    pub(crate) depth: u16,
    /// The controller's identifier, for I/O queues.
    pub(crate) cntlid: u16,
    /// The most data in a command capsule, bytes.
    pub(crate) in_capsule_max_bytes: u32,
    /// Data descriptors of one command, 0 without limit (Identify Controller, MSDBD).
    pub(crate) descriptors_max: u8,
}

/// How a transport connects queues.
pub(crate) trait Fabric: Debug + Send + Sync {
    /// What it is called in discovery logs.
    fn kind(&self) -> TransportType;

    /// See [`Transport::attach`].
    fn attach(&self, arena: &Arc<Arena>) -> Result<(), HostError>;

    /// A connection for an admin queue, before Connect.
    fn connect_admin(
        &self,
        options: &ConnectOptions,
        parameters: &QueueParameters,
    ) -> Result<AdminLink, HostError>;

    /// A connection for an I/O queue, before Connect.
    fn connect_io(
        &self,
        options: &ConnectOptions,
        parameters: &QueueParameters,
    ) -> Result<IoLink, HostError>;
}

/// A transport, with what its connections share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Transport(pub(crate) Arc<dyn Fabric>);

impl Transport {
    /// NVMe/TCP.
    #[must_use]
    pub fn tcp() -> Self {
        Self(Arc::new(Tcp(dial_socket)))
    }

    /// NVMe/TCP over streams that `dial` makes, one for each connection, in place of sockets: for
    /// targets in the same process, well-behaved or not.
    #[must_use]
    pub fn tcp_over<S: ByteStream + Send + 'static>(
        dial: impl Fn(&ConnectOptions) -> Result<S, HostError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Tcp(dial)))
    }

    /// Which transport it is.
    #[must_use]
    pub fn kind(&self) -> TransportType {
        self.0.kind()
    }

    /// Makes an arena known whose leases will carry the data of I/O queues, before the first of
    /// them is opened. RDMA registers it, once for each device, and keeps it for as long as the
    /// transport lives; TCP needs none of this.
    ///
    /// # Errors
    /// [`HostError`] where a device that is in use already cannot register it.
    pub fn attach(&self, arena: &Arc<Arena>) -> Result<(), HostError> {
        self.0.attach(arena)
    }
}

impl Default for Transport {
    fn default() -> Self {
        Self::tcp()
    }
}
