//! Files over RDMA: the network cards with the registered memory of the arena and of the volumes, and
//! the listeners.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use appliance_config::{Config, FileListener, Transport};
use files_rdma::{
    Endpoint, EndpointError, RdmaCounters, RdmaFileOptions, RdmaFilePoller, RdmaFileService,
};
use files_service::FileCore;
use hugemem::{Arena, Region};
use rdma::{Error, Provider as _, Unavailable, Verbs};
use reactors::Poller;

/// Why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum RdmaError {
    #[error("file_listener {name}: {cause}: {}", .cause.remedy())]
    Unavailable { name: String, cause: Unavailable },
    #[error("file_listener {name}")]
    Endpoint {
        name: String,
        #[source]
        cause: EndpointError,
    },
}

impl RdmaError {
    fn new(listener: &FileListener, cause: EndpointError) -> Self {
        let name = listener.name.to_string();
        match cause {
            EndpointError::Unavailable(Error::Unavailable(cause))
            | EndpointError::Listen {
                source: Error::Unavailable(cause),
                ..
            } => Self::Unavailable { name, cause },
            cause => Self::Endpoint { name, cause },
        }
    }
}

/// The devices and listeners.
pub(super) struct FileEndpoint(Endpoint<Verbs>);

impl FileEndpoint {
    /// Registers memory with every network card, for a listener.
    pub(super) fn open(listener: &FileListener, regions: &[&Region]) -> Result<Self, RdmaError> {
        let failed = |cause| RdmaError::new(listener, cause);
        let unavailable = |cause: Unavailable| failed(EndpointError::Unavailable(cause.into()));
        let provider = Verbs::open().map_err(unavailable)?;
        Endpoint::new(&provider, regions).map(Self).map_err(failed)
    }

    /// Listens on the address of a listener. Returns it with the assigned port.
    pub(super) fn listen(&mut self, listener: &FileListener) -> Result<SocketAddr, RdmaError> {
        let address = listener.address.socket_addr();
        let bound = self.0.listen(address);
        bound.map_err(|cause| RdmaError::new(listener, cause))
    }

    /// The poller of the reactor.
    pub(super) fn into_poller(
        self,
        core: Rc<RefCell<FileCore>>,
        arena: Arc<Arena>,
        counters: Arc<RdmaCounters>,
    ) -> io::Result<Box<dyn Poller>> {
        let service = RdmaFileService::new(RdmaFileOptions {
            core,
            arena,
            endpoint: self.0,
            counters,
        })?;
        let poller = RdmaFilePoller::new(Rc::new(RefCell::new(service)))?;
        Ok(poller.into_poller())
    }
}

/// Why the RDMA listeners of `config` cannot work on this machine.
pub(super) fn problem(config: &Config) -> Option<String> {
    let mut listeners = config.files.listeners.iter();
    let listener = listeners.find(|it| it.transport == Transport::Rdma)?;
    let found = Verbs::open()
        .map_err(Error::from)
        .and_then(|it| it.devices());
    let cause = EndpointError::Unavailable(found.err()?);
    Some(RdmaError::new(listener, cause).to_string())
}
