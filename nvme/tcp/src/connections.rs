//! The NVMe/TCP connections of one reactor: moves requests, leases and completions between them,
//! the buffer pool and the target core.
//!
//! It works with any [`ByteStream`] and performs no polling of its own: the caller says which stream
//! may have data.

mod handover;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use hugemem::Pool;
use nvme_fabrics::{Connection as _, ConnectionTable, RequestToken, earliest};
use nvme_spec::tcp::Framing;
use nvme_target::{PortId, TargetCore, TransportId, TransportKind};
use reactors::{LogLimit, Nanos, Placement};

pub use handover::BusyConnections;

use crate::config::{CONNECTIONS_PER_REACTOR_MAX, PortSettings, TcpConfig};
use crate::connection::{Connection, ConnectionAudit, Context, Ended};
use crate::counters::TcpCounters;
use crate::initialisation::InitialisationTerms;
use crate::receive_buffers::ReceiveBuffers;
use crate::stream::ByteStream;
use crate::tls::TlsPolicy;

/// A connection that is not attached to an export may be ended to make room after it has received
/// nothing for this time. Hosts that set up a connection send without such a pause.
const EVICTABLE_AFTER: Nanos = Nanos::from_millis(500);

/// The result of receiving from a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrivals {
    /// Receives that returned data.
    pub count: u32,
    /// Whether the stream holds something to receive that no readiness event announces.
    pub is_holding: bool,
}

/// Connections of one reactor over streams of type `S`.
pub struct ConnectionSet<S> {
    table: ConnectionTable<Connection<S>>,
    /// Places and streams of connections that have ended since the last
    /// [`take_ended`](Self::take_ended).
    ended: Vec<(u16, S)>,
    buffers: ReceiveBuffers,
    /// Connections that may be ended to make room, ordered approximately by when they last
    /// received something.
    evictable: VecDeque<RequestToken>,
    shared: Shared,
}

struct Shared {
    core: Rc<RefCell<TargetCore>>,
    pool: Pool,
    config: TcpConfig,
    counters: Arc<TcpCounters>,
    transport: TransportId,
    log: LogLimit,
    /// Counts evictable connections, and the reactor that they are counted for.
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
    /// An empty set that serves `core` with buffers of `pool`. Allocates its storage.
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
            table: ConnectionTable::new(places, transport),
            ended: Vec::with_capacity(places),
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

    /// The memory that each connection holds.
    pub fn audit(&self) -> impl Iterator<Item = (&S, ConnectionAudit)> {
        self.table.iter().map(|it| (it.stream(), it.audit()))
    }

    /// Counts evictable connections in `placement`, as those of `reactor`. Must be called before the
    /// first connection is inserted.
    pub(crate) fn count_evictable_in(&mut self, placement: Placement, reactor: usize) {
        debug_assert!(self.is_empty(), "connections were counted elsewhere");
        self.shared.placement = (placement, reactor);
    }

    /// Ends the connection, among those not attached to an export, that has been silent about the
    /// longest. Returns `false` if none has been silent for [`EVICTABLE_AFTER`].
    pub(crate) fn evict(&mut self, now: Nanos) -> bool {
        // Each is checked once: one that received something since it was queued is queued again.
        for _ in 0..self.evictable.len() {
            let Some(token) = self.evictable.pop_front() else {
                return false;
            };
            let Some(connection) = self.table.find(token) else {
                continue;
            };
            if connection.is_attached() {
                continue;
            }
            if now.saturating_sub(connection.opened_at) < EVICTABLE_AFTER {
                // Those behind it were opened, or received something, later.
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

    /// When the queue is full, drops connections from it that have ended or are attached.
    fn compact_evictable(&mut self) {
        let Self {
            evictable, table, ..
        } = self;
        if evictable.len() < 2 * table.places().len() {
            return;
        }
        evictable.retain(|token| table.find(*token).is_some_and(|it| !it.is_attached()));
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

    /// Counts a connection that was refused before it reached this set.
    pub(crate) fn count_refused(&self) {
        self.shared.counters.connections_refused.add(1);
    }

    /// Whether the settings of `port` permit the stream: a plain one that was accepted before TLS was
    /// required is not.
    pub(crate) fn permits(&self, stream: &S, port: PortId) -> bool {
        let tls = self.shared.config.port(port).tls;
        tls != TlsPolicy::Required || stream.channel().is_some()
    }

    /// Inserts a stream that was accepted on `port`; returns its place.
    ///
    /// # Errors
    /// The stream itself if the table is full.
    pub fn insert(&mut self, stream: S, port: PortId, now: Nanos) -> Result<u16, S> {
        self.insert_negotiated(stream, None, port, now)
    }

    /// The same for a stream whose host has received its ICResp, if there is a `framing`.
    pub(crate) fn insert_negotiated(
        &mut self,
        stream: S,
        framing: Option<Framing>,
        port: PortId,
        now: Nanos,
    ) -> Result<u16, S> {
        let Some(token) = self.table.next_token() else {
            self.count_refused();
            return Err(stream);
        };
        let mut core = self.shared.core.borrow_mut();
        let cx = self.shared.context(&mut core, &mut self.buffers, now);
        let connection = Connection::new(stream, framing, port, token, &cx);
        drop(core);
        let index = self.table.insert(connection);
        let (placement, reactor) = &self.shared.placement;
        placement.add_evictable(*reactor);
        self.compact_evictable();
        self.evictable.push_back(token);
        self.shared.counters.connections_opened.add(1);
        self.shared.counters.connections.set(self.len() as u64);
        Ok(index)
    }

    /// The stream at `index`, until its connection ends.
    #[must_use]
    pub fn stream(&self, index: u16) -> Option<&S> {
        self.table.get(index).map(Connection::stream)
    }

    /// Whether the connection at `index` is that of an I/O queue.
    pub(crate) fn serves_io(&self, index: u16) -> bool {
        self.table.get(index).is_some_and(Connection::serves_io)
    }

    /// When the connection at `index` last received bytes.
    pub(crate) fn last_arrival(&self, index: u16) -> Option<Nanos> {
        self.table.get(index).map(|it| it.last_arrival)
    }

    /// Receives from the stream at `index`.
    pub fn receive(&mut self, index: u16, now: Nanos) -> Arrivals {
        let received = self.with(index, now, |connection, cx| {
            let count = connection.receive(cx)?;
            let is_holding = connection.stream().has_received();
            Ok(Arrivals { count, is_holding })
        });
        received.unwrap_or_default()
    }

    /// The stream at `index` is writable again.
    pub fn writable(&mut self, index: u16) {
        if let Some(mut entry) = self.table.entry(index) {
            entry.connection.awaits_writable = false;
            entry.list_for_flush();
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
        let mut core = self.shared.core.borrow_mut();
        if !core.has_completions(self.shared.transport) {
            return 0;
        }
        let mut cx = self.shared.context(&mut core, &mut self.buffers, now);
        take_completions(&mut self.table, &mut cx)
    }

    /// Passes completions, granted leases and requests to close to the connections. Returns their
    /// number.
    pub fn dispatch(&mut self, now: Nanos) -> u32 {
        let mut core = self.shared.core.borrow_mut();
        let mut moved = 0;
        let mut cx = self.shared.context(&mut core, &mut self.buffers, now);
        loop {
            // Pending responses are older than those that a granted lease produces.
            moved += take_completions(&mut self.table, &mut cx);
            moved += take_released(&mut self.table, &mut cx);
            let Some((token, lease)) = cx.pool.next_grant(now.as_nanos()) else {
                break;
            };
            let token = RequestToken::from_bits(token.0);
            // A request that is abandoned cancels its wait, so the connection always exists.
            if let Some(mut entry) = self.table.entry_of(token) {
                entry.connection.granted(&mut cx, token.slot(), lease);
                entry.list_for_flush();
                moved += 1;
            }
        }
        while let Some(close) = cx.core.next_close(cx.transport) {
            if let Some(entry) = self.table.entry(close.connection as u16)
                && entry.connection.queue() == Some(close.queue)
            {
                if let Some(withheld) = cx.log.admit(now) {
                    let host = entry.connection.stream().host_address();
                    tracing::info!(?host, reason = ?close.reason, withheld, "closing a connection");
                }
                entry.connection.close(&mut cx);
                entry.note();
                moved += 1;
            }
        }
        moved
    }

    /// Sends what is queued. Calls `blocked` for each stream that must be watched until it is
    /// writable. Returns the number of connections flushed.
    pub fn flush(&mut self, now: Nanos, mut blocked: impl FnMut(u16, &S)) -> u32 {
        let mut flushed = 0;
        for position in (0..self.table.listed()).rev() {
            let Some(index) = self.table.take_listed(position) else {
                continue;
            };
            flushed += 1;
            let outcome = self.with(index, now, |connection, cx| {
                let waits = connection.flush(cx)?;
                connection.awaits_writable = waits;
                Ok(waits)
            });
            if outcome == Some(true)
                && let Some(stream) = self.stream(index)
            {
                blocked(index, stream);
            }
        }
        flushed
    }

    /// Whether there is work that no stream will announce.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.table.listed() > 0 || self.shared.pool.may_grant()
    }

    /// When [`expire`](Self::expire) must be called next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let retry_at = self.shared.pool.retry_at_ns().map(Nanos);
        earliest(self.table.next_deadline(), retry_at)
    }

    /// Checks connections whose deadlines have passed: ends those that exceeded the time for set-up
    /// or closing, and ends borrows of device memory by hosts that do not receive.
    pub fn expire(&mut self, now: Nanos) {
        if self.table.take_expired(now) {
            for index in self.table.places() {
                self.with(index, now, Connection::check_deadline);
            }
        }
    }

    /// Closes every connection that has nothing in flight; call again until none is left. Until
    /// then, call `receive` only where [`awaits_host_data`](Self::awaits_host_data) is true.
    pub fn drain(&mut self, now: Nanos) -> usize {
        for index in self.table.places() {
            self.with(index, now, |connection, cx| {
                let idle = connection.requests_in_flight() == 0 && !connection.awaits_host_data();
                if idle && !connection.has_output() {
                    connection.close(cx);
                }
                Ok(())
            });
        }
        self.len()
    }

    /// What hosts that connect to `port` are offered.
    pub(crate) fn terms(&self, port: PortId) -> InitialisationTerms {
        let config = &self.shared.config;
        config.port(port).terms(config.host_data_bytes_max)
    }

    /// Sets the settings for hosts that connect to each port from now on; other ports get the
    /// default.
    pub fn set_ports(&mut self, ports: Vec<(PortId, PortSettings)>) {
        self.shared.config.ports = ports;
    }

    /// Closes every connection of `port`; call again until none is left. Returns how many are open.
    pub fn close_port(&mut self, port: PortId, now: Nanos) -> usize {
        let mut open = 0;
        for index in self.table.places() {
            if self.table.get(index).is_some_and(|it| it.port() == port) {
                open += 1;
                self.with(index, now, |connection, cx| {
                    connection.close(cx);
                    Ok(())
                });
            }
        }
        open
    }

    /// Whether the connection at `index` waits for data of a request that has begun.
    #[must_use]
    pub fn awaits_host_data(&self, index: u16) -> bool {
        self.table
            .get(index)
            .is_some_and(Connection::awaits_host_data)
    }

    /// The place of a connection that has ended, and its stream, which the caller closes.
    pub fn take_ended(&mut self) -> Option<(u16, S)> {
        self.ended.pop()
    }

    /// Runs `action` on the connection at `index`. Removes the connection if `action` returns an
    /// error; otherwise lists it for the flush if it has something to send.
    fn with<T>(
        &mut self,
        index: u16,
        now: Nanos,
        action: impl FnOnce(&mut Connection<S>, &mut Context<'_>) -> Result<T, Ended>,
    ) -> Option<T> {
        let entry = self.table.entry(index)?;
        let mut core = self.shared.core.borrow_mut();
        let mut cx = self.shared.context(&mut core, &mut self.buffers, now);
        match action(entry.connection, &mut cx) {
            Ok(value) => {
                entry.note();
                Some(value)
            }
            Err(ended) => {
                entry.connection.release_queue(&mut cx);
                entry.connection.release_buffer(&mut cx);
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
        if let Some(connection) = self.table.remove(index) {
            if !connection.is_attached() {
                let (placement, reactor) = &self.shared.placement;
                placement.remove_evictable(*reactor);
            }
            self.ended.push((index, connection.into_stream()));
        }
        self.shared.counters.connections.set(self.len() as u64);
    }
}

/// Continues the requests whose wait for a rate has ended; returns their number.
#[inline]
fn take_released<S: ByteStream>(
    table: &mut ConnectionTable<Connection<S>>,
    cx: &mut Context<'_>,
) -> u32 {
    let mut moved = 0;
    while let Some(released) = cx.core.next_released(cx.transport) {
        let token = RequestToken::from_bits(released.tag);
        if let Some(mut entry) = table.entry_of(token) {
            entry.connection.rate_released(cx, token.slot(), released);
            entry.list_for_flush();
            moved += 1;
        }
    }
    moved
}

/// Passes the target core's completions to their connections; returns their number.
fn take_completions<S: ByteStream>(
    table: &mut ConnectionTable<Connection<S>>,
    cx: &mut Context<'_>,
) -> u32 {
    let mut moved = 0;
    while let Some(done) = cx.core.next_completion(cx.transport) {
        let token = RequestToken::from_bits(done.tag);
        if let Some(mut entry) = table.entry_of(token) {
            entry.connection.completed(cx, token.slot(), done);
            entry.list_for_flush();
            moved += 1;
        }
    }
    moved
}
