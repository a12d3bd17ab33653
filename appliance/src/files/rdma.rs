//! Files over RDMA: the network cards with the registered memory of the arena and of the volumes, and
//! the listeners.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use appliance_config::{Config, FileListener, Transport};
use files_rdma::{
    Endpoint, EndpointError, RdmaCounters, RdmaFileOptions, RdmaFilePoller, RdmaFileService,
};
use files_service::FileCore;
use hugemem::{Arena, Region};
use rdma::{DomainMemory, Error, Provider as _, Unavailable, Verbs};
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
pub(super) struct FileEndpoint {
    endpoint: Endpoint<Verbs>,
    /// The first addresses of the registered regions.
    attached: BTreeSet<usize>,
}

impl FileEndpoint {
    /// Registers memory with every network card, for a listener.
    pub(super) fn open(listener: &FileListener, regions: &[&Region]) -> Result<Self, RdmaError> {
        let failed = |cause| RdmaError::new(listener, cause);
        let unavailable = |cause: Unavailable| failed(EndpointError::Unavailable(cause.into()));
        let provider = Verbs::open().map_err(unavailable)?;
        Ok(Self {
            endpoint: Endpoint::new(&provider, regions).map_err(failed)?,
            attached: regions.iter().map(|it| it.base_address()).collect(),
        })
    }

    /// Listens on the address of a listener. Returns it with the assigned port.
    pub(super) fn listen(&mut self, listener: &FileListener) -> Result<SocketAddr, RdmaError> {
        let address = listener.address.socket_addr();
        let bound = self.endpoint.listen(address);
        bound.map_err(|cause| RdmaError::new(listener, cause))
    }

    /// The memory that the network cards access.
    pub(super) fn memory(&self) -> FileMemory {
        FileMemory {
            domains: self.endpoint.domains().to_vec(),
            attached: Mutex::new(self.attached.clone()),
        }
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
            endpoint: self.endpoint,
            counters,
        })?;
        let poller = RdmaFilePoller::new(Rc::new(RefCell::new(service)))?;
        Ok(poller.into_poller())
    }
}

/// The registered memory of the network cards.
pub(super) struct FileMemory {
    domains: Vec<Arc<DomainMemory<Verbs>>>,
    /// The first addresses of the registered regions. The control path only.
    attached: Mutex<BTreeSet<usize>>,
}

impl FileMemory {
    fn attached(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers memory of a device with every network card, unless it is.
    pub(super) fn attach(&self, region: &Region) -> Result<(), String> {
        if !self.attached().insert(region.base_address()) {
            return Ok(());
        }
        for domain in &self.domains {
            if let Err(error) = domain.attach_region(region) {
                self.detach(region);
                return Err(format!("memory cannot be registered for RDMA: {error}"));
            }
        }
        Ok(())
    }

    /// Ends the registration.
    pub(super) fn detach(&self, region: &Region) {
        if self.attached().remove(&region.base_address()) {
            for domain in &self.domains {
                domain.detach_region(region);
            }
        }
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
