//! The connections of one reactor, with their devices and listeners.

mod devices;

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use files_service::{ConnectionKey, Connections, FileCore, TransportIndex};
use files_spec::rdma::PrivateData;
use hugemem::Arena;
use rdma::{
    CompletionQueue, ConnectParameters, ConnectRequest, Connection as _, ConnectionEvent, Device,
    DeviceUser, Domain, Event, EventChannel, Provider, QueuePairCapacity, QueuePairOptions,
    RNR_RETRY_FOREVER, Token, WorkCompletion,
};
use reactors::ring::Receiver;
use reactors::{LogLimit, Nanos};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::changes::RdmaChange;
use crate::connection::{Connection, Parts};
use crate::context::{Context, Fault};
use crate::counters::RdmaCounters;
use crate::endpoint::{Endpoint, Source};
use crate::limits::{
    CHECK_MS, CONNECTIONS_MAX, CREDITS_MAX, CREDITS_MIN, CREDITS_SHARE, MESSAGE_BYTES,
    MESSAGES_SHARE, SEND_REQUESTS_MAX,
};
use crate::messages::Messages;
use crate::posted::{GENERATION_MASK, WorkId};
use devices::DeviceState;

/// Completions taken from a completion queue with one call.
const BATCH: usize = 64;
/// Batches taken from one completion queue in one turn.
const BATCHES_PER_TURN_MAX: usize = 4;
/// Events of the connection manager that are handled at once.
const EVENTS_MAX: usize = 32;

/// What a service over RDMA is made with.
pub struct RdmaFileOptions<P: Provider> {
    /// The service.
    pub core: Rc<RefCell<FileCore>>,
    /// The memory of its pool.
    pub arena: Arc<Arena>,
    /// Devices and listeners.
    pub endpoint: Endpoint<P>,
    /// What is counted.
    pub counters: Arc<RdmaCounters>,
    /// What the control thread asks for.
    pub changes: Option<Receiver<RdmaChange>>,
}

/// Why a connection request is rejected.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("its listener is not open")]
    NoListener,
    #[error("the limit of connections is reached")]
    TooMany,
    #[error("its device is not used")]
    UnknownDevice,
    #[error("more devices than it serves")]
    TooManyDevices,
    #[error("the device has no room for its completions")]
    NoCompletions,
    #[error("the arena has no memory for its messages")]
    NoMemory,
    #[error("a queue pair or a completion queue cannot be had")]
    Rdma(#[from] rdma::Error),
    #[error("its receives cannot be posted")]
    Receives(#[from] Fault),
}

/// A place for a connection.
struct Place<P: Provider> {
    generation: u16,
    connection: Option<Box<Connection<P>>>,
}

/// NFS over RDMA on one reactor.
pub struct RdmaFileService<P: Provider> {
    // Declared in the order of dropping: queue pairs before what they use.
    places: Vec<Place<P>>,
    places_by_key: Connections<u16>,
    /// `None` for a device that has failed or was removed.
    devices: Vec<Option<DeviceState<P>>>,
    endpoint: Endpoint<P>,
    /// The devices whose events it receives.
    watched: Vec<P::Device>,
    /// Memory for events of descriptors.
    events: Vec<epoll::Event>,
    changes: Option<Receiver<RdmaChange>>,
    core: Rc<RefCell<FileCore>>,
    arena: Arc<Arena>,
    counters: Arc<RdmaCounters>,
    scratch: Box<[u8; MESSAGE_BYTES]>,
    batch: Vec<WorkCompletion>,
    log: LogLimit,
    next_check: Nanos,
    is_stopping: bool,
}

impl<P: Provider> RdmaFileService<P> {
    /// A service without connections.
    #[must_use]
    pub fn new(options: RdmaFileOptions<P>) -> Self {
        let RdmaFileOptions {
            core,
            arena,
            endpoint,
            counters,
            changes,
        } = options;
        let place = || Place {
            generation: 0,
            connection: None,
        };
        let mut service = Self {
            places: (0..CONNECTIONS_MAX).map(|_| place()).collect(),
            places_by_key: Connections::default(),
            devices: Vec::new(),
            endpoint,
            watched: Vec::new(),
            events: Vec::with_capacity(EVENTS_MAX),
            changes,
            core,
            arena,
            counters,
            scratch: Box::new([0; MESSAGE_BYTES]),
            batch: vec![WorkCompletion::default(); BATCH],
            log: LogLimit::default(),
            next_check: Nanos::ZERO,
            is_stopping: false,
        };
        service.watch_devices();
        service
    }

    /// Number of connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.places_by_key.len()
    }

    /// Readable if the connection manager has an event, or after [`Self::arm`] a device has.
    pub(crate) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.endpoint.epoll
    }

    /// Changes listeners and devices as the control thread asks. Returns the number of changes.
    pub(crate) fn carry_out_changes(&mut self, now: Nanos) -> usize {
        let mut count = 0;
        while let Some(change) = self.changes.as_mut().and_then(Receiver::recv) {
            count += 1;
            // A response without a receiver is not needed.
            let _ = match change {
                RdmaChange::Listen {
                    number,
                    address,
                    reply,
                } => reply.send(self.endpoint.listen(number, address)).is_ok(),
                RdmaChange::Open { number, reply } => {
                    self.endpoint.open(number);
                    reply.send(()).is_ok()
                }
                RdmaChange::Close { number, reply } => {
                    self.close_listener(number, now);
                    reply.send(()).is_ok()
                }
                RdmaChange::UpdateDevices { reply } => {
                    self.update_devices(now);
                    reply.send(()).is_ok()
                }
            };
        }
        count
    }

    /// Whether a change waits.
    pub(crate) fn has_changes(&self) -> bool {
        self.changes.as_ref().is_some_and(|it| !it.is_empty())
    }

    /// Closes a listener with its connections.
    fn close_listener(&mut self, number: u32, now: Nanos) {
        self.endpoint.close(number);
        self.count_listeners();
        self.close_where(now, |parts| parts.listener == number);
    }

    /// Closes the connections of which something is so.
    fn close_where(&mut self, now: Nanos, is_so: impl Fn(&Parts<P>) -> bool) {
        for place in 0..self.places.len() as u16 {
            let connection = self.places[usize::from(place)].connection.as_deref();
            if connection.is_some_and(|it| is_so(&it.parts)) {
                self.close(place, None, now);
            }
        }
    }

    fn count_listeners(&self) {
        let down = self.endpoint.down();
        self.counters.listeners_down.set(down as u64);
    }

    /// Handles events of the connection manager and of devices. Returns their number.
    pub fn poll_events(&mut self, now: Nanos) -> usize {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let no_wait = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let buffer = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.endpoint.epoll, buffer, Some(&no_wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll failed"),
        }
        let has = |source: Source| {
            let mut sources = events.iter().map(|event| event.data);
            sources.any(|found| found.u64() == source.data().u64())
        };
        let (manager, device) = (has(Source::Manager), has(Source::Device));
        self.events = events;
        let mut count = 0;
        if device || self.has_device_events() {
            count += self.poll_devices(now);
        }
        if manager {
            count += self.poll_manager(now);
        }
        count
    }

    fn poll_manager(&mut self, now: Nanos) -> usize {
        let mut count = 0;
        while count < EVENTS_MAX {
            match self.endpoint.channel.next_event() {
                Ok(Some(event)) => self.handle(event, now),
                Ok(None) => break,
                Err(error) => {
                    if self.log.admit(now).is_some() {
                        tracing::error!(%error, "events of connections of files cannot be had");
                    }
                    break;
                }
            }
            count += 1;
        }
        count
    }

    fn handle(&mut self, event: Event<P>, now: Nanos) {
        match event {
            Event::ConnectRequest { listener, request } => self.accept(listener, request, now),
            Event::ListenerFailed { listener } => {
                self.endpoint.failed(listener, now);
                self.count_listeners();
                // Not every device reports its removal itself.
                self.poll_devices(now);
            }
            Event::Connection { token, event } => self.connection_event(token, event, now),
        }
    }

    fn connection_event(&mut self, token: Token, event: ConnectionEvent, now: Nanos) {
        let id = WorkId::from_bits(token.0);
        let Some(connection) = self.connection_of(id) else {
            return;
        };
        match event {
            ConnectionEvent::Established { .. } => {
                connection.established();
                self.work(id.place(), now);
            }
            ConnectionEvent::Disconnected
            | ConnectionEvent::Rejected { .. }
            | ConnectionEvent::Unreachable
            | ConnectionEvent::ConnectFailed(_) => self.close(id.place(), None, now),
            ConnectionEvent::DeviceRemoved => {
                let place = connection.parts.device;
                let state = self.devices[place].as_ref();
                let device = state.map(|it| it.memory.domain().device().index());
                if let Some(device) = device {
                    let events = self.endpoint.domains.events();
                    events.report_removal(device, DeviceUser::Files);
                    self.remove_device(device, "it is being removed", now);
                }
            }
            // After a change of address, work in flight fails by itself.
            ConnectionEvent::AddressChanged
            | ConnectionEvent::TimewaitExit
            | ConnectionEvent::AddressResolved
            | ConnectionEvent::AddressFailed(_)
            | ConnectionEvent::RouteResolved
            | ConnectionEvent::RouteFailed(_)
            | ConnectionEvent::Other { .. } => {}
        }
    }

    fn connection_of(&mut self, id: WorkId) -> Option<&mut Connection<P>> {
        let place = self.places.get_mut(usize::from(id.place()))?;
        match place.generation & GENERATION_MASK == id.generation() {
            true => place.connection.as_deref_mut(),
            false => None,
        }
    }

    fn accept(&mut self, listener: Token, request: P::ConnectRequest, now: Nanos) {
        let client = request.peer_address();
        if let Err(error) = self.open(listener, request, now) {
            self.counters.connections_rejected.add(1);
            if let Some(withheld) = self.log.admit(now) {
                tracing::warn!(%client, %error, withheld, "a connection for files is rejected");
            }
        }
    }

    /// Opens the connection of a request. A request that is dropped is rejected.
    fn open(
        &mut self,
        listener: Token,
        request: P::ConnectRequest,
        now: Nanos,
    ) -> Result<(), OpenError> {
        let listener = self.endpoint.number_of(listener);
        let listener = listener.ok_or(OpenError::NoListener)?;
        let free = self.places.iter().position(|it| it.connection.is_none());
        let place = free
            .filter(|_| !self.is_stopping)
            .ok_or(OpenError::TooMany)?;
        let device = self.device(request.device().index())?;
        let (receives, sends) = Messages::take_both(&self.arena, self.credits());
        if receives.count() < CREDITS_MIN {
            return Err(OpenError::NoMemory);
        }
        let announced = PrivateData::decode(request.private_data().as_slice());
        let reads = request.initiator_depth();
        let address = request.peer_address().ip();
        let mut core = self.core.borrow_mut();
        let key = core.connect(TransportIndex::Rdma, address.to_canonical());
        drop(core);
        let key = key.ok_or(OpenError::TooMany)?;
        let opened = self.open_on(
            (device, place as u16),
            request,
            reads,
            |place, connection, queue_pair| Parts {
                queue_pair,
                connection,
                key,
                place,
                device,
                listener,
                receives,
                sends,
                send_bytes: announced.receive_bytes.min(MESSAGE_BYTES),
                invalidates: announced.invalidates_remotely,
            },
            now,
        );
        match opened {
            Ok(()) => {
                self.places_by_key.put(key, place as u16);
                self.counters.connections.set(self.connections() as u64);
                Ok(())
            }
            Err(error) => {
                self.core.borrow_mut().disconnect(key);
                Err(error)
            }
        }
    }

    /// Most credits of a new connection: fewer, the more memory the messages of others have.
    fn credits(&self) -> usize {
        let all = self.arena.region().len() / MESSAGES_SHARE / (2 * MESSAGE_BYTES);
        let connections = self.places.iter().filter_map(|it| it.connection.as_deref());
        let used: usize = connections.map(|it| it.parts.receives.count()).sum();
        let left = all.saturating_sub(used);
        let share = (left / CREDITS_SHARE).max(CREDITS_MIN);
        share.min(left).min(CREDITS_MAX)
    }

    fn open_on(
        &mut self,
        (device, place): (usize, u16),
        request: P::ConnectRequest,
        reads: u8,
        parts: impl FnOnce((u16, u16), P::Connection, P::QueuePair) -> Parts<P>,
        now: Nanos,
    ) -> Result<(), OpenError> {
        let generation = self.places[usize::from(place)].generation;
        let id = WorkId::new()
            .with_place(place)
            .with_generation(generation & GENERATION_MASK);
        let state = self.devices[device].as_mut();
        let state = state.ok_or(OpenError::UnknownDevice)?;
        let limits = *state.memory.domain().device().limits();
        let entries = SEND_REQUESTS_MAX + CREDITS_MAX as u32;
        if state.reserved + entries > state.completions.entries() {
            return Err(OpenError::NoCompletions);
        }
        let mut connection = request.into_connection(
            &mut self.endpoint.channel,
            DeviceUser::Files.token(id.into_bits()),
        )?;
        let capacity = QueuePairCapacity {
            send_requests: SEND_REQUESTS_MAX,
            receive_requests: CREDITS_MAX as u32,
            send_sges: 2,
            receive_sges: 2,
            inline_bytes: 0,
        };
        let options = QueuePairOptions {
            send_completions: &state.completions,
            receive_completions: &state.completions,
            shared_receives: None,
            capacity,
        };
        let queue_pair = connection.create_queue_pair(state.memory.domain(), &options)?;
        let own = PrivateData {
            invalidates_remotely: true,
            send_bytes: MESSAGE_BYTES,
            receive_bytes: MESSAGE_BYTES,
        };
        let mut core = self.core.borrow_mut();
        let mut cx = Context {
            core: &mut core,
            map: &state.map,
            zeroes: &state.zeroes,
            counters: &self.counters,
            scratch: &mut self.scratch,
            now,
        };
        let made = Connection::new(parts((place, generation), connection, queue_pair), &mut cx);
        let mut made = match made {
            Ok(made) => made,
            Err(failed) => {
                let (made, fault) = *failed;
                made.end(&mut core, now);
                return Err(fault.into());
            }
        };
        let accepted = made.parts.connection.accept(&ConnectParameters {
            private_data: &own.encode(),
            initiator_depth: reads.min(limits.reads_outgoing),
            // No key is given to clients, so they have nothing to read.
            responder_resources: 0,
            retries: 7,
            // How often the client's device retries a call while no receive is posted, because the
            // client has more outstanding than its credits, or this side lacks memory.
            rnr_retries: RNR_RETRY_FOREVER,
        });
        if let Err(error) = accepted {
            made.end(&mut core, now);
            return Err(error.into());
        }
        state.reserved += entries;
        self.places[usize::from(place)].connection = Some(Box::new(made));
        Ok(())
    }

    /// Handles completions of all devices. Returns their number.
    pub fn poll_completions(&mut self, now: Nanos) -> usize {
        let mut batch = std::mem::take(&mut self.batch);
        let mut count = 0;
        for device in 0..self.devices.len() {
            for _ in 0..BATCHES_PER_TURN_MAX {
                let Some(state) = &mut self.devices[device] else {
                    break;
                };
                if state.map.version() != state.memory.version() {
                    state.map = state.memory.map();
                }
                let taken = match state.completions.poll(&mut batch) {
                    Ok(taken) => taken,
                    Err(error) => {
                        let why = format!("its completion queue failed: {error}");
                        self.give_up(device, &why, now);
                        break;
                    }
                };
                for completion in &batch[..taken] {
                    self.completed(completion, now);
                }
                count += taken;
                if taken < batch.len() {
                    break;
                }
            }
        }
        self.batch = batch;
        count
    }

    fn completed(&mut self, completion: &WorkCompletion, now: Nanos) {
        let id = WorkId::from_bits(completion.wr_id);
        if self.connection_of(id).is_none() {
            return;
        }
        let result = self.with(id.place(), now, |connection, cx| {
            if !id.is_receive() {
                return connection.completed(cx, completion);
            }
            if !completion.is_success() {
                return Err(Fault::Failed(completion.status));
            }
            connection.received(id.number(), completion.byte_len);
            connection.work(cx)
        });
        if let Err(fault) = result {
            self.close(id.place(), Some(&fault), now);
        }
    }

    fn with(
        &mut self,
        place: u16,
        now: Nanos,
        act: impl FnOnce(&mut Connection<P>, &mut Context<'_, P>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let place = &mut self.places[usize::from(place)];
        let Some(connection) = place.connection.as_deref_mut() else {
            return Ok(());
        };
        let Some(state) = &self.devices[connection.parts.device] else {
            return Ok(());
        };
        let mut core = self.core.borrow_mut();
        act(
            connection,
            &mut Context {
                core: &mut core,
                map: &state.map,
                zeroes: &state.zeroes,
                counters: &self.counters,
                scratch: &mut self.scratch,
                now,
            },
        )
    }

    /// Does what a connection can do now.
    fn work(&mut self, place: u16, now: Nanos) {
        let result = self.with(place, now, |connection, cx| {
            connection.work(cx)?;
            connection.flush()
        });
        if let Err(fault) = result {
            self.close(place, Some(&fault), now);
        }
    }

    /// Passes replies and data to read to their connections, and lets each connection do what it can
    /// and post it. Returns the number of replies and data.
    pub fn flush(&mut self, now: Nanos) -> usize {
        let count = self.take_work(now);
        if self.places_by_key.is_empty() {
            return count;
        }
        for place in 0..self.places.len() as u16 {
            let connection = self.places[usize::from(place)].connection.as_deref();
            if connection.is_some_and(|it| it.is_waiting() || it.has_queued()) {
                self.work(place, now);
            }
        }
        count
    }

    fn take_work(&mut self, now: Nanos) -> usize {
        let mut core = self.core.borrow_mut();
        let mut count = 0;
        let mut replies = core.take_replies(TransportIndex::Rdma);
        count += replies.len();
        for (key, job) in replies.drain(..) {
            match connection_by_key(&self.places_by_key, &mut self.places, key) {
                Some(connection) => connection.reply(job),
                None => {
                    if let Some(taken) = core.jobs().take(job) {
                        core.end_request(job, taken);
                    }
                }
            }
        }
        core.keep_replies(TransportIndex::Rdma, replies);
        while let Some(fetch) = core.next_fetch() {
            count += 1;
            match connection_by_key(&self.places_by_key, &mut self.places, fetch.connection) {
                Some(connection) => connection.fetch(fetch),
                None => core.fetched(fetch.job, fetch.piece, None, now),
            }
        }
        count
    }

    /// Whether replies or data to read wait for [`Self::flush`].
    pub(crate) fn has_work(&self) -> bool {
        let core = self.core.borrow();
        core.has_replies(TransportIndex::Rdma) || core.has_fetches()
    }

    /// Whether a connection waits for memory or room.
    pub(crate) fn is_waiting(&self) -> bool {
        let connections = self.places.iter().filter_map(|it| it.connection.as_deref());
        connections.into_iter().any(Connection::is_waiting)
    }

    fn close(&mut self, place: u16, fault: Option<&Fault>, now: Nanos) {
        let own = &mut self.places[usize::from(place)];
        let Some(connection) = own.connection.take() else {
            return;
        };
        own.generation = own.generation.wrapping_add(1);
        if let Some(state) = &mut self.devices[connection.parts.device] {
            state.reserved -= SEND_REQUESTS_MAX + CREDITS_MAX as u32;
        }
        self.places_by_key.take(connection.parts.key);
        if let Some(fault) = fault {
            self.counters.connections_failed.add(1);
            if let Some(withheld) = self.log.admit(now) {
                let client = connection.parts.connection.peer_address();
                let client = client.map_or_else(String::new, |it| it.to_string());
                tracing::warn!(client, %fault, withheld, "a connection for files is closed");
            }
        }
        connection.end(&mut self.core.borrow_mut(), now);
        self.counters.connections.set(self.connections() as u64);
    }

    /// Does what time requires.
    pub fn tick(&mut self, now: Nanos) {
        if now < self.next_check {
            return;
        }
        self.next_check = now.saturating_add(Nanos::from_millis(CHECK_MS));
        for place in 0..self.places.len() as u16 {
            let connection = self.places[usize::from(place)].connection.as_deref_mut();
            let Some(connection) = connection else {
                continue;
            };
            connection.copy_borrowed(&mut self.core.borrow_mut());
            let is_unused = connection.is_unused(now);
            match connection.check(now) {
                Err(fault) => self.close(place, Some(&fault), now),
                Ok(()) if is_unused => self.close(place, None, now),
                Ok(()) => {}
            }
        }
        if !self.is_stopping && self.endpoint.listen_again(now) {
            self.count_listeners();
        }
    }

    /// When [`Self::tick`] is due.
    pub(crate) fn tick_at(&self) -> Option<Nanos> {
        match self.places_by_key.is_empty() {
            true => self.endpoint.next_deadline(),
            false => Some(self.next_check),
        }
    }

    /// Ends all connections and listeners.
    pub fn end(&mut self, now: Nanos) {
        self.is_stopping = true;
        self.endpoint.close_all();
        for place in 0..self.places.len() as u16 {
            self.close(place, None, now);
        }
        // What was passed to connections that have ended does not wait for them.
        self.take_work(now);
    }
}

fn connection_by_key<'p, P: Provider>(
    places_by_key: &Connections<u16>,
    places: &'p mut [Place<P>],
    key: ConnectionKey,
) -> Option<&'p mut Connection<P>> {
    let place = *places_by_key.get(key)?;
    places[usize::from(place)].connection.as_deref_mut()
}
