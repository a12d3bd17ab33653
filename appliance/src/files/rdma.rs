//! Files over RDMA by a provider: the network cards with the registered memory of the arena and of the
//! volumes, and the listeners.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use appliance_config::{Config, FileListener, Transport};
use files_rdma::{
    Endpoint, RdmaChange, RdmaCounters, RdmaFileOptions, RdmaFilePoller, RdmaFileService,
};
use hugemem::Region;
use rdma::{DeviceEvents, Domains, Error, Provider, Unavailable, Verbs};
use reactors::ring::Receiver;
use reactors::{InitError, Poller, ReactorHandle};

use super::rdma_listeners::{FileContext, RdmaListeners};
use crate::error::{Failure, with_causes};
use crate::event_loop::{EventLoop, aside};
use crate::late_poller::{Fill, LatePoller};
use crate::messages::MessageRings;
use crate::rdma_devices::{ListenError, Search, register};

/// The place of the only reactor of the service in rings of messages.
const ONLY: usize = 0;

#[derive(Debug, thiserror::Error)]
#[error("its part was handed out before")]
struct SetUpTwice;

/// The service is used before it is prepared.
#[derive(Debug, thiserror::Error)]
#[error("no listener over RDMA has been prepared")]
struct NotPrepared;

/// The verbs of this system, or a replacement.
pub(crate) struct System<P: Provider> {
    /// Opens the provider, which looks for libraries.
    pub(crate) open: Box<dyn Fn() -> Result<P, Unavailable> + Send + Sync>,
    /// Makes a poller; not generic, so that its code is compiled once.
    pub(crate) into_poller: fn(RdmaFilePoller<P>) -> Box<dyn Poller>,
    /// The events of its devices, which other services use, too.
    pub(crate) events: Arc<DeviceEvents>,
}

/// Files over RDMA, over the verbs of this system.
pub(crate) fn system(events: Arc<DeviceEvents>) -> Arc<dyn RdmaListeners> {
    Arc::new(FileRdma::new(System {
        open: Box::new(Verbs::open),
        into_poller: RdmaFilePoller::into_poller,
        events,
    }))
}

/// How far the service is set up. It advances only.
enum State<P: Provider> {
    /// No listener has existed.
    Unused,
    /// Listeners are bound, and the reactor does not run yet.
    Bound(P, Endpoint<P>),
    /// The reactor has its part.
    Serving(P),
}

/// Files over RDMA.
pub(crate) struct FileRdma<P: Provider> {
    system: System<P>,
    domains: Arc<Domains<P>>,
    counters: Arc<RdmaCounters>,
    changes: MessageRings<RdmaChange>,
    fills: MessageRings<Fill<FileContext>>,
    /// The reactor's ends of the rings.
    receivers: Mutex<Receivers>,
    /// The control path only, and the reactor's start.
    state: Mutex<State<P>>,
    search: Mutex<Search>,
}

/// The reactor's ends of the rings, until it takes them.
struct Receivers {
    changes: Option<Receiver<RdmaChange>>,
    fills: Option<Receiver<Fill<FileContext>>>,
}

/// The part that the reactor takes.
struct ReactorPart<P: Provider> {
    endpoint: Endpoint<P>,
    changes: Receiver<RdmaChange>,
    counters: Arc<RdmaCounters>,
    into_poller: fn(RdmaFilePoller<P>) -> Box<dyn Poller>,
}

impl<P: Provider> ReactorPart<P> {
    /// Creates the poller, on the reactor.
    fn into_poller(self, context: &FileContext) -> Box<dyn Poller> {
        let service = RdmaFileService::new(RdmaFileOptions {
            core: Rc::clone(&context.core),
            arena: Arc::clone(&context.arena),
            endpoint: self.endpoint,
            counters: self.counters,
            changes: Some(self.changes),
        });
        let service = Rc::new(RefCell::new(service));
        (self.into_poller)(RdmaFilePoller::new(service))
    }
}

impl<P: Provider> FileRdma<P> {
    /// Files over RDMA without a listener.
    pub(crate) fn new(system: System<P>) -> Self {
        let (changes, of_changes) = MessageRings::new(1);
        let (fills, of_fills) = MessageRings::new(1);
        let receivers = Receivers {
            changes: of_changes.into_iter().next(),
            fills: of_fills.into_iter().next(),
        };
        let domains = Domains::new().with_events(Arc::clone(&system.events));
        Self {
            system,
            domains: Arc::new(domains),
            counters: Arc::default(),
            changes,
            fills,
            receivers: Mutex::new(receivers),
            state: Mutex::new(State::Unused),
            search: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The provider, if the reactor has its part.
    fn serving(&self) -> Option<P> {
        match &*self.state() {
            State::Serving(provider) => Some(provider.clone()),
            State::Unused | State::Bound(..) => None,
        }
    }

    fn open_endpoint(&self) -> Result<(P, Endpoint<P>), Error> {
        let provider = (self.system.open)()?;
        let endpoint = Endpoint::new(&provider, Arc::clone(&self.domains))?;
        Ok((provider, endpoint))
    }

    fn part(&self, endpoint: Endpoint<P>) -> Result<ReactorPart<P>, SetUpTwice> {
        let mut receivers = self
            .receivers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(ReactorPart {
            endpoint,
            changes: receivers.changes.take().ok_or(SetUpTwice)?,
            counters: Arc::clone(&self.counters),
            into_poller: self.system.into_poller,
        })
    }

    /// Gives the running reactor its part, for the first listener. Blocks, except for the registration
    /// of memory.
    fn set_up_late(
        &self,
        listener: &FileListener,
        memory: &[&Region],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        let failed = |cause| failure(listener, cause);
        let (provider, mut endpoint) = self.open_endpoint().map_err(failed)?;
        // An address that is not of an RDMA device is found before memory is registered.
        let probe = u32::MAX;
        endpoint
            .listen(probe, listener.address.socket_addr())
            .map_err(failed)?;
        endpoint.close(probe);
        self.register_all(&provider, listener, memory, event_loop)?;
        let part = self.part(endpoint)?;
        // From here on the part exists, also if the reactor responds late.
        *self.state() = State::Serving(provider);
        let make = Box::new(move |context: &FileContext| part.into_poller(context));
        self.fills
            .ask(ONLY, event_loop, |reply| Fill { make, reply })?;
        tracing::info!("files over RDMA are set up");
        Ok(())
    }

    /// Registers `memory` with every network card, beside the event loop.
    fn register_all(
        &self,
        provider: &P,
        listener: &FileListener,
        memory: &[&Region],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), String> {
        let registered = aside(event_loop, || {
            let registered = register(provider, &self.domains, memory);
            registered.map_err(|error| with_causes(&error))
        });
        registered.map_err(|error| format!("file_listener {}: {error}", listener.name))
    }

    /// Makes the reactor take in the devices, and release those that were removed.
    fn update_devices(&self, event_loop: &mut dyn EventLoop) -> Result<(), String> {
        let update = |reply| RdmaChange::UpdateDevices { reply };
        let updated = self.changes.ask(ONLY, event_loop, update);
        updated.map_err(|error| error.to_string())
    }
}

impl<P: Provider> RdmaListeners for FileRdma<P> {
    fn bind(
        &self,
        number: u32,
        listener: &FileListener,
        memory: &[&Region],
    ) -> Result<SocketAddr, Failure> {
        let failed = |cause| failure(listener, cause);
        let mut state = self.state();
        if let State::Unused = *state {
            let (provider, endpoint) = self.open_endpoint().map_err(failed)?;
            register(&provider, &self.domains, memory)?;
            *state = State::Bound(provider, endpoint);
        }
        let State::Bound(_, endpoint) = &mut *state else {
            return Err(SetUpTwice.into());
        };
        let address = listener.address.socket_addr();
        let address = endpoint.listen(number, address).map_err(failed)?;
        endpoint.open(number);
        Ok(address)
    }

    fn poller(&self, context: FileContext) -> Result<Box<dyn Poller>, InitError> {
        let mut state = self.state();
        if let State::Bound(..) = *state {
            let State::Bound(provider, endpoint) = std::mem::replace(&mut *state, State::Unused)
            else {
                return Err(SetUpTwice.into());
            };
            *state = State::Serving(provider);
            return Ok(self.part(endpoint)?.into_poller(&context));
        }
        let mut receivers = self
            .receivers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let fills = receivers.fills.take().ok_or(SetUpTwice)?;
        Ok(Box::new(LatePoller::new("files-rdma", context, fills)))
    }

    fn set_wakers(&self, reactor: &[ReactorHandle]) {
        self.fills.set_wakers(reactor);
        self.changes.set_wakers(reactor);
    }

    fn listen(
        &self,
        number: u32,
        listener: &FileListener,
        memory: &[&Region],
        event_loop: &mut dyn EventLoop,
    ) -> Result<SocketAddr, Failure> {
        match self.serving() {
            None => self.set_up_late(listener, memory, event_loop)?,
            Some(provider) if self.domains.devices().is_empty() => {
                self.register_all(&provider, listener, memory, event_loop)?;
                self.update_devices(event_loop)?;
            }
            Some(_) => {}
        }
        let address = listener.address.socket_addr();
        let listen = |reply| RdmaChange::Listen {
            number,
            address,
            reply,
        };
        let bound = self.changes.ask(ONLY, event_loop, listen)?;
        Ok(bound.map_err(|cause| failure(listener, cause))?)
    }

    fn open(&self, number: u32, event_loop: &mut dyn EventLoop) -> Result<(), Failure> {
        self.serving().ok_or(NotPrepared)?;
        let open = |reply| RdmaChange::Open { number, reply };
        Ok(self.changes.ask(ONLY, event_loop, open)?)
    }

    fn close(&self, number: u32, event_loop: &mut dyn EventLoop) -> Result<(), Failure> {
        self.serving().ok_or(NotPrepared)?;
        let close = |reply| RdmaChange::Close { number, reply };
        Ok(self.changes.ask(ONLY, event_loop, close)?)
    }

    fn release(&self, event_loop: &mut dyn EventLoop) {
        let is_in_use = !self.domains.devices().is_empty() || !self.domains.lost().is_empty();
        if self.serving().is_none() || !is_in_use {
            return;
        }
        let memory = self.domains.clear();
        // The reactor releases its queues, and this thread the memory: that takes time for each page,
        // in which the reactor would serve no client.
        let released = self.update_devices(event_loop);
        let deregistered = aside(event_loop, move || {
            drop(memory);
            Ok(())
        });
        match released.and(deregistered) {
            Ok(()) => tracing::info!(
                "no listener for files over RDMA is left: the memory is no longer registered"
            ),
            Err(error) => tracing::error!("memory is still registered for files: {error}"),
        }
    }

    fn restore(&self, has_listeners: bool, memory: &[&Region], event_loop: &mut dyn EventLoop) {
        let Some(provider) = self.serving() else {
            return;
        };
        let mut search = self.search.lock().unwrap_or_else(PoisonError::into_inner);
        let devices = (&provider, &*self.domains);
        if search.look(devices, has_listeners, memory, event_loop)
            && let Err(error) = self.update_devices(event_loop)
        {
            tracing::error!("an RDMA device that has returned serves no files: {error}");
        }
    }

    fn attach_memory(&self, region: &Region) -> Result<(), Failure> {
        Ok(self.domains.attach(region)?)
    }

    fn detach_memory(&self, region: &Region) {
        self.domains.detach(region);
    }

    fn missing(&self) -> usize {
        self.domains.lost().len()
    }

    fn counters(&self) -> &RdmaCounters {
        &self.counters
    }
}

fn failure(listener: &FileListener, cause: Error) -> ListenError {
    let name = format!("file_listener {}", listener.name);
    ListenError::new(name, listener.address.socket_addr(), cause)
}

/// Why the RDMA listeners of `config` cannot work on this machine.
pub(super) fn problem(config: &Config) -> Option<String> {
    let listener = config.files.listeners_of(Transport::Rdma).next()?;
    let found = Verbs::open()
        .map_err(Error::from)
        .and_then(|it| it.devices());
    Some(failure(listener, found.err()?).to_string())
}
