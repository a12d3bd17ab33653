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
    /// The devices of a provider, with `regions` registered. Those that refuse are left out. Takes
    /// time in proportion to the memory.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub fn new(provider: &P, regions: &[&Region]) -> Result<Self, EndpointError> {
        let unavailable = EndpointError::Unavailable;
        let channel = provider.event_channel().map_err(unavailable)?;
        let mut domains = Vec::new();
        let mut refusal = None;
        for device in provider.devices().map_err(unavailable)? {
            match registered(&device, regions) {
                Ok(memory) => domains.push(Arc::new(memory)),
                Err(source) => {
                    let device = device.name().to_owned();
                    tracing::warn!(device, %source, "an RDMA device serves no files");
                    refusal = Some(EndpointError::Memory { device, source });
                }
            }
        }
        if let Some(refusal) = refusal.filter(|_| domains.is_empty()) {
            return Err(refusal);
        }
        Ok(Self {
            listeners: Vec::new(),
            channel,
            domains,
        })
    }

    /// The memory of each device, for the control thread.
    #[must_use]
    pub fn domains(&self) -> &[Arc<DomainMemory<P>>] {
        &self.domains
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

/// The protection domain of a device, with all memory.
fn registered<P: Provider>(
    device: &P::Device,
    regions: &[&Region],
) -> Result<DomainMemory<P>, Error> {
    // Only work requests of this side access it: clients get no key.
    let memory = DomainMemory::new(device.create_domain()?, Access::LOCAL);
    for region in regions {
        memory.attach_region(region)?;
    }
    Ok(memory)
}
