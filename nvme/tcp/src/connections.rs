//! A reactor's connections: their table, and the traffic between them, the buffer pool and the
//! target core.
//!
//! Knows no sockets: who drives it says when a stream may have something, and it works with any
//! [`ByteStream`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use hugemem::Pool;
use nvme_target::{PortId, TargetCore, TransportId, TransportKind};
use reactors::sim::planted;
use reactors::{LogLimit, Nanos, Placement};

use crate::config::{CONNECTIONS_PER_REACTOR_MAX, PortSettings, TcpConfig};
use crate::connection::{Connection, ConnectionAudit, Context, Ended};
use crate::counters::TcpCounters;
use crate::receive_buffers::ReceiveBuffers;
use crate::stream::ByteStream;
use crate::token::{GENERATIONS, RequestToken};

/// Silence after which a connection that is not attached to an export may end to make room. Hosts
/// that are being set up send at once.
const EVICTABLE_AFTER: Nanos = Nanos::from_millis(500);

/// Connections of one reactor over streams of type `S`.
pub struct ConnectionSet<S> {
    places: Vec<Place<S>>,
    free: Vec<u16>,
    /// Connections with something to send, each once.
    to_flush: Vec<u16>,
    /// Streams that have ended since the last look, for who drives the set.
    ended: Vec<u16>,
    /// The earliest deadline of a connection that is being set up or closed; may be early, never
    /// late.
    next_deadline: Option<Nanos>,
    buffers: ReceiveBuffers,
    /// Connections that may end to make room, about in the order in which they were last heard.
    evictable: VecDeque<RequestToken>,
    shared: Shared,
}

struct Place<S> {
    generation: u32,
    connection: Option<Box<Connection<S>>>,
}

struct Shared {
    core: Rc<RefCell<TargetCore>>,
    pool: Pool,
    config: TcpConfig,
    counters: Arc<TcpCounters>,
    transport: TransportId,
    log: LogLimit,
    /// Where evictable connections are counted, and the reactor that they are counted for.
    placement: (Placement, usize),
}

impl Shared {
    fn context<'a>(
        &'a self,
        core: &'a mut TargetCore,
        buffers: &'a mut ReceiveBuffers,
        now: Nanos,
    ) -> Context<'a> {
        Context {
            core,
            buffers,
            pool: &self.pool,
            config: &self.config,
            counters: &self.counters,
            log: &self.log,
            placement: &self.placement,
            transport: self.transport,
            now,
        }
    }
}

impl<S: ByteStream> ConnectionSet<S> {
    /// An empty set that serves `core` with buffers of `pool`. Takes its storage now.
    #[must_use]
    pub fn new(
        core: Rc<RefCell<TargetCore>>,
        pool: Pool,
        config: TcpConfig,
        counters: Arc<TcpCounters>,
    ) -> Self {
        let transport = core.borrow_mut().register_transport(TransportKind::Tcp);
        let places = config.connections_max.clamp(1, CONNECTIONS_PER_REACTOR_MAX);
        Self {
            places: (0..places)
                .map(|_| Place {
                    generation: 0,
                    connection: None,
                })
                .collect(),
            free: (0..places as u16).rev().collect(),
            to_flush: Vec::with_capacity(places),
            ended: Vec::with_capacity(places),
            next_deadline: None,
            buffers: ReceiveBuffers::new(),
            evictable: VecDeque::with_capacity(2 * places),
            shared: Shared {
                core,
                pool,
                config,
                counters,
                transport,
                log: LogLimit::default(),
                placement: (Placement::new(1), 0),
            },
        }
    }

    /// What each connection holds.
    pub fn audit(&self) -> impl Iterator<Item = (&S, ConnectionAudit)> {
        let connections = self.places.iter().filter_map(|it| it.connection.as_ref());
        connections.map(|it| (it.stream(), it.audit()))
    }

    /// Has connections that may end to make room counted in `placement`, as those of `reactor`. To
    /// be called before the first connection comes.
    pub(crate) fn count_evictable_in(&mut self, placement: Placement, reactor: usize) {
        debug_assert!(self.is_empty(), "connections were counted elsewhere");
        self.shared.placement = (placement, reactor);
    }

    /// Ends a connection that is not attached to an export and was silent longest, about; `false`
    /// when there is none that was silent for [`EVICTABLE_AFTER`].
    pub(crate) fn evict(&mut self, now: Nanos) -> bool {
        // Each is looked at once: one that was heard since then goes to the end.
        for _ in 0..self.evictable.len() {
            let Some(token) = self.evictable.pop_front() else {
                return false;
            };
            let Some(connection) = named(&mut self.places, token) else {
                continue;
            };
            if connection.is_attached() {
                continue;
            }
            if now.saturating_sub(connection.opened_at) < EVICTABLE_AFTER {
                // Those behind it came later, or were heard later.
                self.evictable.push_front(token);
                return false;
            }
            if now.saturating_sub(connection.last_arrival) < EVICTABLE_AFTER {
                self.evictable.push_back(token);
                continue;
            }
            if let Some(withheld) = self.shared.log.admit(now) {
                let host = connection.stream().host_address();
                tracing::info!(?host, withheld, "ending an idle connection to make room");
            }
            self.with(token.connection(), now, |_, _| Err::<(), _>(Ended::Evicted));
            return true;
        }
        false
    }

    /// Forgets evictable connections that have ended or are attached, when there are many.
    fn tidy_evictable(&mut self) {
        if self.evictable.len() < 2 * self.places.len() {
            return;
        }
        let mut tokens = std::mem::take(&mut self.evictable);
        tokens.retain(|token| {
            named(&mut self.places, *token).is_some_and(|connection| !connection.is_attached())
        });
        self.evictable = tokens;
    }

    /// Connections in the table, those included that are being set up or closed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A connection had to be turned away before it came here.
    pub(crate) fn count_refused(&self) {
        self.shared.counters.connections_refused.add(1);
    }

    /// Takes in a stream that was accepted on `port`; returns its place.
    ///
    /// # Errors
    /// The stream itself when the table is full.
    pub fn insert(&mut self, stream: S, port: PortId, now: Nanos) -> Result<u16, S> {
        let Some(index) = self.free.pop() else {
            self.shared.counters.connections_refused.add(1);
            return Err(stream);
        };
        let place = &mut self.places[usize::from(index)];
        place.generation = (place.generation + 1) % GENERATIONS;
        let token = RequestToken::new()
            .with_transport(self.shared.transport.0)
            .with_connection(index)
            .with_generation(place.generation);
        let mut core = self.shared.core.borrow_mut();
        let cx = self.shared.context(&mut core, &mut self.buffers, now);
        let connection = Connection::new(stream, port, token, &cx);
        sooner(&mut self.next_deadline, connection.deadline());
        place.connection = Some(Box::new(connection));
        drop(core);
        let (placement, reactor) = &self.shared.placement;
        placement.add_evictable(*reactor);
        self.tidy_evictable();
        self.evictable.push_back(token);
        self.shared.counters.connections_opened.add(1);
        self.shared.counters.connections.set(self.len() as u64);
        Ok(index)
    }

    /// The stream at `index`, while its connection lives.
    #[must_use]
    pub fn stream(&self, index: u16) -> Option<&S> {
        let place = self.places.get(usize::from(index))?;
        place
            .connection
            .as_ref()
            .map(|connection| connection.stream())
    }

    /// When bytes last arrived at `index`.
    pub(crate) fn last_arrival(&self, index: u16) -> Option<Nanos> {
        let place = self.places.get(usize::from(index))?;
        place
            .connection
            .as_ref()
            .map(|connection| connection.last_arrival)
    }

    /// Receives what the stream at `index` has; returns the number of receives that brought
    /// something.
    pub fn receive(&mut self, index: u16, now: Nanos) -> u32 {
        self.with(index, now, Connection::receive).unwrap_or(0)
    }

    /// The stream at `index` is writable again.
    pub fn writable(&mut self, index: u16) {
        if let Some(connection) = connection_at(&mut self.places, index) {
            connection.awaits_writable = false;
            list_for_flush(&mut self.to_flush, index, connection);
        }
    }

    /// Begins a turn. What comes in may be answered at once, and must not overtake answers that were
    /// made since the last turn's [`take_responses`](Self::take_responses): these go first.
    /// Returns how many.
    #[inline]
    pub fn begin_turn(&mut self, now: Nanos) -> u32 {
        self.shared.core.borrow_mut().begin_turn(now);
        self.take_responses(now)
    }

    /// Hands out the responses that the target core has. Returns how many.
    #[inline]
    pub fn take_responses(&mut self, now: Nanos) -> u32 {
        let mut core = self.shared.core.borrow_mut();
        if !core.has_completions(self.shared.transport) {
            return 0;
        }
        let mut cx = self.shared.context(&mut core, &mut self.buffers, now);
        hand_out(&mut self.places, &mut self.to_flush, &mut cx)
    }

    /// Hands out what the pool and the target core have for the connections. Returns how much.
    pub fn dispatch(&mut self, now: Nanos) -> u32 {
        let mut core = self.shared.core.borrow_mut();
        let mut moved = 0;
        let mut cx = self.shared.context(&mut core, &mut self.buffers, now);
        loop {
            // Answers leave in the order in which they were made, as SQHD promises (Base 2.1
            // §4.2.1), so those that wait go before any that a grant makes.
            moved += hand_out(&mut self.places, &mut self.to_flush, &mut cx);
            let Some((token, lease)) = cx.pool.next_grant(now.as_nanos()) else {
                break;
            };
            let token = RequestToken::from_bits(token.0);
            // A request that was given up has cancelled its wait, so the name is always a living
            // one.
            if let Some(connection) = named(&mut self.places, token) {
                connection.granted(&mut cx, token.slot(), lease);
                list_for_flush(&mut self.to_flush, token.connection(), connection);
                moved += 1;
            }
        }
        while let Some(close) = cx.core.next_close(cx.transport) {
            let index = close.connection as u16;
            if let Some(connection) = connection_at(&mut self.places, index)
                && connection.queue() == Some(close.queue)
            {
                if let Some(withheld) = cx.log.admit(now) {
                    let host = connection.stream().host_address();
                    tracing::info!(?host, reason = ?close.reason, withheld, "closing a connection");
                }
                connection.close(&mut cx);
                sooner(&mut self.next_deadline, connection.deadline());
                list_for_flush(&mut self.to_flush, index, connection);
                moved += 1;
            }
        }
        moved
    }

    /// Sends what is queued. `blocked` hears of streams to watch until they are writable. Returns
    /// how many sent.
    pub fn flush(&mut self, now: Nanos, mut blocked: impl FnMut(u16, &S)) -> u32 {
        let mut flushed = 0;
        for position in (0..self.to_flush.len()).rev() {
            let index = self.to_flush[position];
            self.to_flush.swap_remove(position);
            let Some(connection) = connection_at(&mut self.places, index) else {
                continue;
            };
            connection.flush_listed = false;
            flushed += 1;
            let outcome = self.with(index, now, |connection, cx| {
                let waits = connection.flush(cx)?;
                connection.awaits_writable = waits;
                Ok(waits)
            });
            if outcome == Some(true)
                && !planted("blocked-forgotten")
                && let Some(stream) = self.stream(index)
            {
                blocked(index, stream);
            }
        }
        flushed
    }

    /// Whether something waits that no stream will announce.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.to_flush.is_empty() || self.shared.pool.may_grant()
    }

    /// When [`expire`](Self::expire) must be called next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let mut earliest = self.next_deadline;
        sooner(&mut earliest, self.shared.pool.retry_at_ns().map(Nanos));
        earliest
    }

    /// Looks at connections whose deadlines have passed: ends those whose time for set-up or closing is
    /// over, and takes back what devices lend to those that do not take it.
    pub fn expire(&mut self, now: Nanos) {
        if self.next_deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.next_deadline = None;
        for index in 0..self.places.len() as u16 {
            self.with(index, now, Connection::check_deadline);
        }
    }

    /// Closes every connection that has nothing in flight; call again until none is left. While it
    /// goes on, `receive` is to be called only where [`awaits_host_data`](Self::awaits_host_data)
    /// says so.
    pub fn drain(&mut self, now: Nanos) -> usize {
        for index in 0..self.places.len() as u16 {
            self.with(index, now, |connection, cx| {
                let idle = connection.requests_in_flight() == 0 && !connection.awaits_host_data();
                if idle && !connection.wants_flush() {
                    connection.close(cx);
                }
                Ok(())
            });
        }
        self.len()
    }

    /// What hosts of each port get that connect from now on; those of others get the default.
    pub fn set_ports(&mut self, ports: Vec<(PortId, PortSettings)>) {
        self.shared.config.ports = ports;
    }

    /// Closes every connection that came in by `port`; call again until none is left. Returns how
    /// many there are.
    pub fn close_port(&mut self, port: PortId, now: Nanos) -> usize {
        let mut open = 0;
        for index in 0..self.places.len() as u16 {
            if connection_at(&mut self.places, index).is_some_and(|it| it.port() == port) {
                open += 1;
                self.with(index, now, |connection, cx| {
                    connection.close(cx);
                    Ok(())
                });
            }
        }
        open
    }

    /// Whether the host at `index` still owes data for a request that has begun.
    #[must_use]
    pub fn awaits_host_data(&self, index: u16) -> bool {
        let place = self.places.get(usize::from(index));
        place
            .and_then(|place| place.connection.as_ref())
            .is_some_and(|connection| connection.awaits_host_data())
    }

    /// The places whose connections have ended since the last call.
    pub fn take_ended(&mut self) -> Option<u16> {
        self.ended.pop()
    }

    /// Runs `action` on the connection at `index`, removes it when that ends it, and lists it when
    /// it has to send.
    fn with<T>(
        &mut self,
        index: u16,
        now: Nanos,
        action: impl FnOnce(&mut Connection<S>, &mut Context<'_>) -> Result<T, Ended>,
    ) -> Option<T> {
        let connection = connection_at(&mut self.places, index)?;
        let mut core = self.shared.core.borrow_mut();
        let mut cx = self.shared.context(&mut core, &mut self.buffers, now);
        match action(connection, &mut cx) {
            Ok(value) => {
                list_for_flush(&mut self.to_flush, index, connection);
                sooner(&mut self.next_deadline, connection.deadline());
                Some(value)
            }
            Err(ended) => {
                if !planted("queue-never-closed") {
                    connection.release_queue(&mut cx);
                }
                connection.release_buffer(&mut cx);
                drop(core);
                self.remove(index, ended);
                None
            }
        }
    }

    fn remove(&mut self, index: u16, ended: Ended) {
        let counters = &self.shared.counters;
        match ended {
            Ended::SetupTimeout => counters.setup_timeouts.add(1),
            Ended::SendTimeout => counters.send_timeouts.add(1),
            Ended::NoCopy => counters.copy_failures.add(1),
            Ended::Closed | Ended::Broken | Ended::Evicted => {}
        }
        let connection = self.places[usize::from(index)].connection.take();
        if connection.is_some_and(|connection| !connection.is_attached()) {
            let (placement, reactor) = &self.shared.placement;
            placement.remove_evictable(*reactor);
        }
        self.free.push(index);
        self.ended.push(index);
        self.shared.counters.connections.set(self.len() as u64);
    }
}

fn connection_at<S>(places: &mut [Place<S>], index: u16) -> Option<&mut Connection<S>> {
    places
        .get_mut(usize::from(index))?
        .connection
        .as_deref_mut()
}

/// The connection that a request's token names, unless it has ended since.
fn named<S: ByteStream>(
    places: &mut [Place<S>],
    token: RequestToken,
) -> Option<&mut Connection<S>> {
    connection_at(places, token.connection())
        .filter(|connection| connection.token().names_same_connection(token))
}

/// Gives the answers that the target core has to their connections; returns how many.
fn hand_out<S: ByteStream>(
    places: &mut [Place<S>],
    to_flush: &mut Vec<u16>,
    cx: &mut Context<'_>,
) -> u32 {
    let mut moved = 0;
    while let Some(done) = cx.core.next_completion(cx.transport) {
        let token = RequestToken::from_bits(done.tag);
        if let Some(connection) = named(places, token) {
            connection.completed(cx, token.slot(), done);
            list_for_flush(to_flush, token.connection(), connection);
            moved += 1;
        }
    }
    moved
}

/// Notes that the connection has something to send, unless its stream takes nothing now.
fn list_for_flush<S: ByteStream>(
    to_flush: &mut Vec<u16>,
    index: u16,
    connection: &mut Connection<S>,
) {
    if !connection.flush_listed && !connection.awaits_writable && connection.wants_flush() {
        connection.flush_listed = true;
        to_flush.push(index);
    }
}

fn sooner(earliest: &mut Option<Nanos>, other: Option<Nanos>) {
    *earliest = match (*earliest, other) {
        (Some(one), Some(two)) => Some(one.min(two)),
        (one, two) => one.or(two),
    };
}
