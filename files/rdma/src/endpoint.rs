//! What the control thread prepares: the devices with all memory registered, and the listeners.

use std::net::SocketAddr;
use std::sync::Arc;

use hugemem::Region;
use rdma::{Access, Device, DomainMemory, Error, EventChannel, Listener, Provider, Token};

use crate::limits::BACKLOG;

/// Why nothing can be served over RDMA.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// There are no devices, or no events of connections.
    #[error("RDMA is not available")]
    Unavailable(#[source] Error),
    /// Memory cannot be registered with a device.
    #[error("memory cannot be registered with {device}")]
    Memory {
        /// Its name.
        device: String,
        /// The reason.
        source: Error,
    },
    /// An address cannot be listened on.
    #[error("{address} cannot be listened on")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: Error,
    },
}

/// A listener; without the object while its device or address is gone.
#[derive(Debug)]
pub(crate) struct Listening<P: Provider> {
    pub(crate) listener: Option<P::Listener>,
    pub(crate) address: SocketAddr,
}

/// The devices and listeners of one reactor.
#[derive(Debug)]
pub struct Endpoint<P: Provider> {
    // Listeners are closed before their channel.
    pub(crate) listeners: Vec<Listening<P>>,
    pub(crate) channel: P::EventChannel,
    pub(crate) domains: Vec<Arc<DomainMemory<P>>>,
}

/// Marks the token of a listener.
pub(crate) const LISTENER: u64 = 1 << 63;

impl<P: Provider> Endpoint<P> {
    /// The devices of a provider, with `regions` registered. Takes time in proportion to the memory.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub fn new(provider: &P, regions: &[&Region]) -> Result<Self, EndpointError> {
        let unavailable = EndpointError::Unavailable;
        let channel = provider.event_channel().map_err(unavailable)?;
        let mut domains = Vec::new();
        for device in provider.devices().map_err(unavailable)? {
            let failed = |source| EndpointError::Memory {
                device: device.name().to_owned(),
                source,
            };
            let domain = device.create_domain().map_err(failed)?;
            // Only work requests of this side access it: clients get no key.
            let memory = DomainMemory::new(domain, Access::LOCAL);
            for region in regions {
                memory.attach_region(region).map_err(failed)?;
            }
            domains.push(Arc::new(memory));
        }
        Ok(Self {
            listeners: Vec::new(),
            channel,
            domains,
        })
    }

    /// Listens on an address. Returns it with the assigned port.
    ///
    /// # Errors
    /// [`EndpointError::Listen`].
    pub fn listen(&mut self, address: SocketAddr) -> Result<SocketAddr, EndpointError> {
        let token = Token(LISTENER | self.listeners.len() as u64);
        let listener = self.channel.listen(address, BACKLOG, token);
        let listener = listener.map_err(|source| EndpointError::Listen { address, source })?;
        let address = listener.local_address();
        self.listeners.push(Listening {
            listener: Some(listener),
            address,
        });
        Ok(address)
    }
}
