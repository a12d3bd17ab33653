//! The NVMe/RDMA connections of one reactor: moves requests, leases and completions between their
//! queue pairs, the buffer pool and the target core.

mod devices;
mod opening;

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use hugemem::{Arena, Pool};
use nvme_fabrics::{Connection as _, ConnectionTable, Entry, RequestToken, earliest};
use nvme_target::{PortId, TargetCore, TransportId, TransportKind};
use rdma::{
    CompletionQueue, ConnectionEvent, DeviceIndex, Domains, Event, MemoryMap, Provider, Token,
    WorkCompletion,
};
use reactors::{LogLimit, Nanos};

use crate::config::{
    CONNECTIONS_PER_REACTOR_MAX, DEVICES_MAX, PortSettings, RECEIVES_MAX, RdmaConfig,
};
use crate::connection::{Cause, Connection, ConnectionAudit, Context};
use crate::counters::RdmaCounters;
use crate::listeners::Listeners;
use crate::poll_group::DevicePollGroup;
use crate::posted::CompletedReceive;
use crate::private_data::NegotiatedParameters;
use crate::queue_pairs::QueuePairTable;
use crate::token::{EventSubject, EventToken, RECEIVES, WorkId};

/// Completions taken from a completion queue with one call.
const BATCH: usize = 64;
/// Batches taken from one completion queue in one poll, before the next queue is polled.
const BATCHES_PER_POLL_MAX: usize = 4;

/// The parts of a [`ConnectionSet`].
#[derive(Debug)]
pub struct SetParts<P: Provider> {
    /// The event channel of the connection manager, with the listeners.
    pub listeners: Listeners<P>,
    /// The devices and their registered memory.
    pub domains: Arc<Domains<P>>,
    /// The arena that its leases are from.
    pub arena: Arc<Arena>,
    /// Commands outstanding at once, at most.
    pub commands_max: usize,
    /// Its settings.
    pub config: RdmaConfig,
    /// Its counters.
    pub counters: Arc<RdmaCounters>,
}

/// A valid connection request on its way to the reactor that will serve it.
#[derive(Debug)]
pub struct Handoff<P: Provider> {
    /// The request.
    pub(crate) request: P::ConnectRequest,
    /// The port that it arrived on.
    pub(crate) port: PortId,
    /// The parameters from its private data.
    pub(crate) negotiated: NegotiatedParameters,
}

/// Connections of one reactor.
pub struct ConnectionSet<P: Provider> {
    // Declared in the order of dropping: queue pairs before the queues and memory that they use.
    table: ConnectionTable<Connection<P>>,
    devices: Vec<Option<DevicePollGroup<P>>>,
    queue_pairs: QueuePairTable,
    /// Number of connections that have ended since the last [`take_ended`](Self::take_ended).
    ended: usize,
    batch: Vec<WorkCompletion>,
    /// A device failed, or is retired and has no connections left.
    any_failed: bool,
    /// A device has no buffers for what its hosts send.
    receives_starved: bool,
    /// Devices whose removal a connection's event reported. Other reactors use them too, so the
    /// transport takes them from here and passes the event on.
    removed: Vec<DeviceIndex>,
    listeners: Listeners<P>,
    shared: Shared<P>,
}

struct Shared<P: Provider> {
    core: Rc<RefCell<TargetCore>>,
    pool: Pool,
    arena: Arc<Arena>,
    domains: Arc<Domains<P>>,
    config: RdmaConfig,
    counters: Arc<RdmaCounters>,
    transport: TransportId,
    log: LogLimit,
    stopping: bool,
}

impl<P: Provider> Shared<P> {
    fn context<'a>(
        &'a self,
        core: &'a mut TargetCore,
        map: &'a MemoryMap<P>,
        now: Nanos,
    ) -> Context<'a, P> {
        Context {
            core,
            pool: &self.pool,
            config: &self.config,
            counters: &self.counters,
            log: &self.log,
            map,
            transport: self.transport,
            stopping: self.stopping,
            now,
        }
    }
}

impl<P: Provider> ConnectionSet<P> {
    /// An empty set that serves `core`. Allocates its storage, except that of each device, which is
    /// allocated on the device's first use.
    #[must_use]
    pub fn new(core: Rc<RefCell<TargetCore>>, parts: SetParts<P>) -> Self {
        let SetParts {
            listeners,
            domains,
            arena,
            commands_max,
            mut config,
            counters,
        } = parts;
        let transport = core.borrow_mut().register_transport(TransportKind::Rdma);
        let places = config.connections_max.clamp(1, CONNECTIONS_PER_REACTOR_MAX);
        config.receives = config.receives.clamp(1, RECEIVES_MAX);
        // All commands, Connects and receives may wait for a lease at the same time.
        let waiters = commands_max + places + config.receives as usize * DEVICES_MAX;
        Self {
            table: ConnectionTable::new(places, transport),
            devices: (0..DEVICES_MAX).map(|_| None).collect(),
            queue_pairs: QueuePairTable::new(places),
            ended: 0,
            batch: vec![WorkCompletion::default(); BATCH],
            any_failed: false,
            receives_starved: false,
            removed: Vec::new(),
            listeners,
            shared: Shared {
                core,
                pool: arena.pool(waiters),
                arena,
                domains,
                config,
                counters,
                transport,
                log: LogLimit::default(),
                stopping: false,
            },
        }
    }

    /// Number of connections, including those that are being set up or closed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory that each connection holds. For tests and simulations.
    pub fn audit(&self) -> impl Iterator<Item = ConnectionAudit> {
        self.table.iter().map(Connection::audit)
    }

    /// The event channel of the connection manager, with the listeners.
    pub fn listeners(&mut self) -> &mut Listeners<P> {
        &mut self.listeners
    }

    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.listeners.epoll()
    }

    pub(crate) fn counters(&self) -> &RdmaCounters {
        &self.shared.counters
    }

    pub(crate) fn domains(&self) -> &Domains<P> {
        &self.shared.domains
    }

    /// The next event that does not concern a connection of this set. Handles the others.
    pub fn next_event(&mut self, now: Nanos, moved: &mut u32) -> Option<Event<P>> {
        loop {
            match self.listeners.next_event() {
                Ok(Some(Event::Connection { token, event })) => {
                    *moved += 1;
                    self.connection_event(token, event, now);
                }
                Ok(other) => return other,
                Err(error) => {
                    if self.shared.log.admit(now).is_some() {
                        tracing::error!(%error, "events of connections cannot be had");
                    }
                    return None;
                }
            }
        }
    }

    fn connection_event(&mut self, token: Token, event: ConnectionEvent, now: Nanos) {
        let token = EventToken::from(token);
        let Some(index) = self.connection_of(token) else {
            return;
        };
        match event {
            ConnectionEvent::Established { .. } => {
                self.with(index, now, Connection::established);
            }
            ConnectionEvent::Disconnected => self.abort(index, Cause::Disconnected, now),
            ConnectionEvent::Rejected { .. }
            | ConnectionEvent::Unreachable
            | ConnectionEvent::ConnectFailed(_) => {
                self.abort(index, Cause::Fault("the connection was not made"), now);
            }
            ConnectionEvent::DeviceRemoved => {
                if let Some(device) = self.table.get(index).map(|it| it.device) {
                    self.remove_device(device, "the device is being removed");
                }
            }
            // After a change of address, work in flight fails by itself. Until then the connection
            // continues.
            ConnectionEvent::AddressChanged
            | ConnectionEvent::TimewaitExit
            | ConnectionEvent::AddressResolved
            | ConnectionEvent::AddressFailed(_)
            | ConnectionEvent::RouteResolved
            | ConnectionEvent::RouteFailed(_)
            | ConnectionEvent::Other { .. } => {
                tracing::debug!(?event, "an event that changes nothing");
            }
        }
        self.release_failed(now);
    }

    fn abort(&mut self, index: u16, cause: Cause, now: Nanos) {
        self.with(index, now, |connection, cx| connection.abort(cx, cause));
    }

    /// Polls completion queues and handles the completions; returns their number.
    pub fn poll_completions(&mut self, now: Nanos) -> u32 {
        let mut batch = std::mem::take(&mut self.batch);
        let mut moved = 0;
        let mut starved = false;
        for place in 0..self.devices.len() {
            let Some(group) = &mut self.devices[place] else {
                continue;
            };
            group.renew_map();
            for queue in 0..group.completions.len() {
                moved += self.poll_queue(place as u16, queue, &mut batch, now);
            }
            let Some(group) = &mut self.devices[place] else {
                continue;
            };
            starved |= group.receives.are_starved();
            if let Err(error) = group.receives.flush() {
                tracing::error!(%error, "receives cannot be posted");
                self.fail_device(place as u16, "receives cannot be posted");
            }
        }
        self.batch = batch;
        if starved != self.receives_starved {
            self.receives_starved = starved;
            let mut core = self.shared.core.borrow_mut();
            core.set_receive_stalled(self.shared.transport, starved, now);
        }
        self.release_failed(now);
        moved
    }

    #[inline]
    fn poll_queue(
        &mut self,
        place: u16,
        queue: usize,
        batch: &mut [WorkCompletion],
        now: Nanos,
    ) -> u32 {
        let mut moved = 0;
        for _ in 0..BATCHES_PER_POLL_MAX {
            let Some(group) = &mut self.devices[usize::from(place)] else {
                break;
            };
            let taken = match group.completions[queue].queue.poll(batch) {
                Ok(0) => break,
                Ok(taken) => taken,
                Err(error) => {
                    tracing::error!(%error, "a completion queue failed");
                    self.fail_device(place, "a completion queue failed");
                    break;
                }
            };
            self.shared.counters.completions.add(taken as u64);
            self.take_completions(place, &batch[..taken], now);
            moved += taken as u32;
            if taken < batch.len() {
                break;
            }
        }
        moved
    }

    #[inline]
    fn take_completions(&mut self, place: u16, completions: &[WorkCompletion], now: Nanos) {
        let Self {
            table,
            devices,
            queue_pairs,
            any_failed,
            shared,
            ..
        } = self;
        let Some(group) = &mut devices[usize::from(place)] else {
            return;
        };
        let mut core = shared.core.borrow_mut();
        let DevicePollGroup {
            receives,
            map,
            failed,
            ..
        } = group;
        let mut cx = shared.context(&mut core, map, now);
        // Consecutive completions are mostly of the same queue pair and share its lookup.
        let mut number = None;
        let mut found: Option<Entry<'_, Connection<P>>> = None;
        for completion in completions {
            if number != Some(completion.qp_number) {
                if let Some(entry) = found {
                    entry.note();
                }
                number = Some(completion.qp_number);
                let index = queue_pairs.find(place, completion.qp_number);
                found = index.and_then(|index| table.entry(index));
            }
            let id = WorkId::from_bits(completion.wr_id);
            if !id.receive() {
                match &mut found {
                    Some(entry) if entry.connection.is_named_by(id) => {
                        entry.connection.sent(&mut cx, id, completion);
                    }
                    _ => shared.counters.stale_completions.add(1),
                }
                continue;
            }
            if !receives.contains(id.sequence()) {
                shared.counters.stale_completions.add(1);
                continue;
            }
            let receive = CompletedReceive::of(completion, id.sequence() as u16);
            match &mut found {
                Some(entry) if completion.is_success() => {
                    let connection = &mut entry.connection;
                    connection.receive(&mut cx, receives, &receive, completion.byte_len);
                }
                Some(entry) => entry.connection.receive_failed(&mut cx, completion.status),
                None => shared.counters.stale_completions.add(1),
            }
            if let Err(error) = receives.post_again(receive, cx.pool, map, cx.counters, cx.now) {
                tracing::error!(%error, "a receive is lost");
                failed.get_or_insert("a receive was refused");
                *any_failed = true;
            }
        }
        if let Some(entry) = found {
            entry.note();
        }
    }

    /// Begins a turn. Commands that are received now may complete inline. The responses made since
    /// the last turn's [`take_responses`](Self::take_responses) are older, so they are queued first.
    /// Returns their number.
    #[inline]
    pub fn begin_turn(&mut self, now: Nanos) -> u32 {
        self.shared.core.borrow_mut().begin_turn(now);
        self.take_responses(now)
    }

    /// Passes the target core's completions to their connections. Returns their number.
    #[inline]
    pub fn take_responses(&mut self, now: Nanos) -> u32 {
        let some = (self.shared.core.borrow()).has_completions(self.shared.transport);
        if !some {
            return 0;
        }
        let core = Rc::clone(&self.shared.core);
        self.pass_completions(&mut core.borrow_mut(), now)
    }

    #[inline]
    fn pass_released(&mut self, core: &mut TargetCore, now: Nanos) -> u32 {
        let mut moved = 0;
        while let Some(released) = core.next_released(self.shared.transport) {
            let token = RequestToken::from_bits(released.tag);
            moved += 1;
            self.for_request(core, token, now, |connection, cx| {
                connection.rate_released(cx, token.slot(), released);
            });
        }
        moved
    }

    fn pass_completions(&mut self, core: &mut TargetCore, now: Nanos) -> u32 {
        let mut moved = 0;
        while let Some(done) = core.next_completion(self.shared.transport) {
            let token = RequestToken::from_bits(done.tag);
            moved += 1;
            self.for_request(core, token, now, |connection, cx| {
                connection.completed(cx, token.slot(), done);
            });
        }
        moved
    }

    /// Passes completions, granted leases and requests to close to the connections. Returns their
    /// number.
    pub fn dispatch(&mut self, now: Nanos) -> u32 {
        let core = Rc::clone(&self.shared.core);
        let mut core = core.borrow_mut();
        let mut moved = 0;
        loop {
            // Pending responses are older than those that a granted lease produces.
            moved += self.pass_completions(&mut core, now);
            moved += self.pass_released(&mut core, now);
            let Some((token, lease)) = self.shared.pool.next_grant(now.as_nanos()) else {
                break;
            };
            let token = RequestToken::from_bits(token.0);
            moved += 1;
            if token.connection() == RECEIVES {
                self.receive_granted(token, lease);
            } else {
                self.for_request(&mut core, token, now, |connection, cx| {
                    connection.granted(cx, token.slot(), lease);
                });
            }
        }
        while let Some(close) = core.next_close(self.shared.transport) {
            moved += 1;
            let Some(connection) = self.table.get(close.connection as u16) else {
                continue;
            };
            if connection.queue() != Some(close.queue) {
                continue;
            }
            if let Some(withheld) = self.shared.log.admit(now) {
                let (host, reason) = (connection.host_address(), close.reason);
                tracing::info!(?host, ?reason, withheld, "closing a connection");
            }
            let token = connection.token();
            self.for_request(&mut core, token, now, Connection::close);
        }
        drop(core);
        self.flush_receives(now);
        moved
    }

    fn receive_granted(&mut self, token: RequestToken, lease: hugemem::Lease) {
        let place = token.generation() as usize;
        // A device that fails cancels its waits.
        let Some(group) = self.devices.get_mut(place).and_then(Option::as_mut) else {
            return;
        };
        let DevicePollGroup { receives, map, .. } = group;
        if let Err(error) = receives.granted(token.slot(), lease, map) {
            tracing::error!(%error, "a receive is lost");
            self.fail_device(place as u16, "a receive was refused");
        }
    }

    /// Posts receives whose buffers were granted outside of a poll.
    fn flush_receives(&mut self, now: Nanos) {
        for place in 0..self.devices.len() {
            if let Some(group) = &mut self.devices[place]
                && let Err(error) = group.receives.flush()
            {
                tracing::error!(%error, "receives cannot be posted");
                self.fail_device(place as u16, "receives cannot be posted");
            }
        }
        self.release_failed(now);
    }

    /// Posts what is queued and removes finished connections. Returns the number of
    /// connections flushed.
    pub fn flush(&mut self, now: Nanos) -> u32 {
        let mut flushed = 0;
        for position in (0..self.table.listed()).rev() {
            let Some(index) = self.table.take_listed(position) else {
                continue;
            };
            flushed += 1;
            let is_finished = self.with(index, now, |connection, cx| {
                connection.flush(cx);
                connection.is_finished()
            });
            if is_finished == Some(true) {
                self.remove(index);
            }
        }
        flushed
    }

    /// Whether there is work that no descriptor will announce.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.table.listed() > 0 || self.shared.pool.may_grant()
    }

    /// Arms every notification and then polls once more. Returns `false` if there is work.
    pub fn prepare_sleep(&mut self, now: Nanos) -> bool {
        for place in 0..self.devices.len() {
            if let Some(group) = &mut self.devices[place]
                && let Err(error) = group.arm()
            {
                tracing::error!(%error, "a completion queue cannot be armed");
                self.fail_device(place as u16, "a completion queue cannot be armed");
            }
        }
        self.poll_completions(now) == 0 && !self.has_pending()
    }

    /// Calls `visit` with the epoll, and the descriptor of each completion queue that is not watched
    /// yet.
    pub(crate) fn show_descriptors(
        &mut self,
        mut visit: impl FnMut(BorrowedFd<'_>, BorrowedFd<'_>),
    ) {
        let epoll = self.listeners.epoll();
        for group in self.devices.iter_mut().flatten() {
            for completions in &mut group.completions {
                if !std::mem::replace(&mut completions.watched, true) {
                    visit(epoll, completions.queue.descriptor());
                }
            }
        }
    }

    /// When [`expire`](Self::expire) must be called next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let retry_at = self.shared.pool.retry_at_ns().map(Nanos);
        let deadline = earliest(self.table.next_deadline(), retry_at);
        earliest(deadline, self.listeners.next_deadline())
    }

    /// Checks connections whose time for set-up, closing or draining has passed.
    pub fn expire(&mut self, now: Nanos) {
        if self.table.take_expired(now) {
            for index in self.table.places() {
                self.with(index, now, Connection::check_deadline);
            }
        }
    }

    /// Closes every connection that has nothing in flight; call again until none is left. Commands
    /// that arrive from now on are dropped.
    pub fn drain(&mut self, now: Nanos) -> usize {
        self.shared.stopping = true;
        for index in self.table.places() {
            self.with(index, now, |connection, cx| {
                if connection.is_idle() {
                    connection.close(cx);
                }
            });
        }
        self.len()
    }

    /// Sets the settings for hosts that connect to each port from now on; other ports get the
    /// default.
    pub fn set_ports(&mut self, ports: Vec<(PortId, PortSettings)>) {
        self.shared.config.ports = ports;
    }

    /// Closes every connection of `port` when its requests are answered, or its time is over; call
    /// again until none is left. Returns how many are open.
    pub fn close_port(&mut self, port: PortId, now: Nanos) -> usize {
        let mut open = 0;
        for index in self.table.places() {
            if self.table.get(index).is_some_and(|it| it.port() == port) {
                open += 1;
                self.with(index, now, Connection::finish);
            }
        }
        open
    }

    /// Number of connections that have ended since the last call.
    pub fn take_ended(&mut self) -> usize {
        std::mem::take(&mut self.ended)
    }

    /// The place of the connection that an event names, unless it has ended.
    fn connection_of(&self, token: EventToken) -> Option<u16> {
        if token.subject() != EventSubject::Connection {
            return None;
        }
        let connection = self.table.get(token.index())?;
        (connection.token().generation() == token.generation()).then_some(token.index())
    }

    /// Runs `action` on the connection at `index`, and lists it for the flush if it has something
    /// to post.
    fn with<T>(
        &mut self,
        index: u16,
        now: Nanos,
        action: impl FnOnce(&mut Connection<P>, &mut Context<'_, P>) -> T,
    ) -> Option<T> {
        let entry = self.table.entry(index)?;
        let group = self.devices[usize::from(entry.connection.device)].as_ref()?;
        let mut core = self.shared.core.borrow_mut();
        let mut cx = self.shared.context(&mut core, &group.map, now);
        let value = action(entry.connection, &mut cx);
        entry.note();
        Some(value)
    }

    /// The same for the connection that a request's token names, unless it has ended.
    #[inline]
    fn for_request(
        &mut self,
        core: &mut TargetCore,
        token: RequestToken,
        now: Nanos,
        action: impl FnOnce(&mut Connection<P>, &mut Context<'_, P>),
    ) {
        let Some(entry) = self.table.entry_of(token) else {
            return;
        };
        if let Some(group) = &self.devices[usize::from(entry.connection.device)] {
            let mut cx = self.shared.context(core, &group.map, now);
            action(entry.connection, &mut cx);
            entry.note();
        }
    }

    /// Removes a finished connection. Its queue pair is destroyed first, after which the device
    /// no longer accesses its memory.
    fn remove(&mut self, index: u16) {
        let Some(mut connection) = self.table.remove(index) else {
            return;
        };
        let device = connection.device;
        self.queue_pairs
            .remove(device, connection.queue_pair_number());
        if let Some(group) = &mut self.devices[usize::from(device)] {
            group.release_sends(connection.completion_queue, connection.send_requests());
            group.connections -= 1;
        }
        if let Err(error) = connection.end() {
            let number = connection.queue_pair_number();
            tracing::error!(number, %error, "a queue pair was not destroyed: its memory is given up");
            self.shared.counters.queue_pairs_leaked.add(1);
            // Its memory stays registered.
            if let Some(group) = &self.devices[usize::from(device)] {
                std::mem::forget(Arc::clone(&group.map));
            }
        }
        drop(connection);
        let group = self.devices[usize::from(device)].as_ref();
        self.any_failed |= group.is_some_and(|it| it.retired && it.connections == 0);
        self.ended += 1;
        self.shared.counters.connections.set(self.len() as u64);
    }
}
