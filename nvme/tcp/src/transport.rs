//! The poller that drives a reactor's NVMe/TCP connections over a [`Network`].
//!
//! Recently active sockets of I/O queues are read without asking epoll. Epoll reports events of the
//! others, and a sleeping reactor waits on it. A listener belongs to one reactor, which hands new connections to
//! the least loaded reactor. The network accepts and closes sockets.

mod handover;

use std::io;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use nvme_fabrics::{ControlOf, ListenerMessage, PortControl, Ports};
use nvme_spec::tcp::Framing;
use nvme_target::PortId;
use reactors::mesh::Port;
use reactors::ring::Receiver;
use reactors::{Nanos, Placement, PlacementResult, Poller, Progress, ReactorHandle, StopState};

use crate::acceptor::AcceptorPort;
use crate::config::PortSettings;
use crate::connection::ConnectionAudit;
use crate::connections::{Arrivals, ConnectionSet};
use crate::listeners::Listeners;
use crate::network::{Accepted, Interest, Network, Ready, Sockets};
use crate::socket_stream::SocketStream;
use handover::HandoverState;
pub use handover::{Exported, HandoverMessage, NotReady, PassedConnection, RestoreFailure};

/// Sockets that are read without asking epoll first.
const RECENT_MAX: usize = 8;
/// How long a socket counts as recently active.
const RECENT_FOR: Nanos = Nanos::from_millis(1);
/// Turns between two calls of epoll while there are recently active sockets.
const TURNS_PER_EPOLL: u32 = 16;
/// Accepted connections that are placed in one poll at most.
const ACCEPTS_PER_POLL_MAX: usize = 16;

/// A connection on its way to the reactor that will serve it.
#[derive(Debug)]
pub struct Handoff<S = SocketStream> {
    /// The connected stream.
    pub stream: S,
    /// The framing, if its host has received its ICResp.
    pub framing: Option<Framing>,
    /// The port it was accepted on.
    pub port: PortId,
    /// Whether the limit of connections is reached, so that the reactor must evict one for it.
    pub replaces: bool,
}

/// A control message to the transport. The result of listening is whether it can watch the
/// listener.
pub type PortMessage<L = std::net::TcpListener, S = SocketStream> =
    ListenerMessage<L, PortSettings, io::Result<()>, HandoverMessage<S>>;

/// The control messages of a transport over the network `N`.
type Control<N> = PortControl<
    <N as Network>::Listener,
    PortSettings,
    io::Result<()>,
    HandoverMessage<<N as Network>::Stream>,
>;

/// One reactor's NVMe/TCP: a [`Poller`].
pub struct TcpTransport<N: Network = Sockets> {
    connections: ConnectionSet<N::Stream>,
    recent: ArrayVec<u16, RECENT_MAX>,
    /// Connections whose stream holds received bytes, which epoll does not report.
    holding: Vec<u16>,
    turns_since_epoll: u32,
    network: N,
    listeners: Listeners,
    ports: Control<N>,
    handoffs: Port<Handoff<N::Stream>>,
    placement: Placement,
    reactors: Vec<ReactorHandle>,
    stopping: bool,
    handover: HandoverState,
    /// Connections that arrived while the others are held.
    late: Vec<Handoff<N::Stream>>,
}

impl TcpTransport<Sockets> {
    /// Drives `connections` on the reactor that `handoffs` belongs to, and accepts them through
    /// `acceptor`, which wakes the reactor if `reactors` has it.
    ///
    /// # Errors
    /// The system's, if epoll fails.
    pub fn new(
        connections: ConnectionSet<SocketStream>,
        handoffs: Port<Handoff>,
        acceptor: AcceptorPort,
        placement: Placement,
        reactors: Vec<ReactorHandle>,
    ) -> io::Result<Self> {
        let own = reactors.get(handoffs.index());
        let waker = own.map(|reactor| reactor.waker().clone());
        Ok(Self::with_network(
            Sockets::new(acceptor, waker)?,
            connections,
            handoffs,
            placement,
            reactors,
        ))
    }

    /// The transport as a poller of a reactor.
    ///
    /// This function is not generic, so that the data path over the kernel's sockets is compiled
    /// with this crate and not again with each crate that uses it. Optimised programs compile it
    /// themselves, which saves up to 3 % of the instructions of a request.
    #[cfg_attr(not(debug_assertions), inline)]
    #[must_use]
    pub fn into_poller(self) -> Box<dyn Poller> {
        Box::new(self)
    }
}

impl<N: Network> TcpTransport<N> {
    /// Drives `connections` over `network` on the reactor that `handoffs` belongs to.
    #[must_use]
    pub fn with_network(
        network: N,
        connections: ConnectionSet<N::Stream>,
        handoffs: Port<Handoff<N::Stream>>,
        placement: Placement,
        reactors: Vec<ReactorHandle>,
    ) -> Self {
        let mut connections = connections;
        connections.count_evictable_in(placement.clone(), handoffs.index());
        Self {
            connections,
            recent: ArrayVec::new(),
            holding: Vec::new(),
            turns_since_epoll: 0,
            network,
            listeners: Listeners::default(),
            ports: PortControl::default(),
            handoffs,
            placement,
            reactors,
            stopping: false,
            handover: HandoverState::Serving,
            late: Vec::new(),
        }
    }

    /// Accepts connections from `listener` as those of `port`.
    ///
    /// # Errors
    /// The system's, if the listener cannot be watched.
    pub fn listen(&mut self, listener: N::Listener, port: PortId) -> io::Result<()> {
        let index = self.listeners.next_index();
        // First, so that no connection is accepted without them.
        self.network.offer(index, self.connections.terms(port));
        self.network.add_listener(index, listener)?;
        self.listeners.insert(port);
        Ok(())
    }

    /// The memory that each connection holds.
    pub fn audit(&self) -> impl Iterator<Item = (&N::Stream, ConnectionAudit)> {
        self.connections.audit()
    }

    /// Receives control messages from `port_messages` from now on. Their sender wakes this reactor.
    pub fn receive_port_messages(
        &mut self,
        port_messages: Receiver<PortMessage<N::Listener, N::Stream>>,
    ) {
        self.ports.receive_from(port_messages);
    }

    /// Places accepted connections. Returns the number of reports about listeners.
    #[inline]
    fn accept(&mut self, now: Nanos) -> u32 {
        let mut reports = 0;
        while reports < ACCEPTS_PER_POLL_MAX as u32
            && let Some(accepted) = self.network.accept()
        {
            reports += 1;
            match accepted {
                Accepted::ListenerClosed(index) => self.listeners.remove(index),
                Accepted::Stream {
                    listener,
                    stream,
                    framing,
                } => match self.listeners.open_port(listener) {
                    Some(port) => self.assign_connection(stream, framing, port, now),
                    None => self.network.close_stream(stream),
                },
            }
        }
        reports
    }

    /// Hands a new connection to the least loaded reactor, or to one that can evict a connection
    /// for it.
    fn assign_connection(
        &mut self,
        stream: N::Stream,
        framing: Option<Framing>,
        port: PortId,
        now: Nanos,
    ) {
        let (chosen, replaces) = match self.placement.choose_or_replace(&self.reactors, now) {
            PlacementResult::Available(chosen) => (chosen, false),
            PlacementResult::Replacing(chosen) => (chosen, true),
            PlacementResult::Full => return self.refuse(stream),
        };
        let handoff = Handoff {
            stream,
            framing,
            port,
            replaces,
        };
        if chosen == self.handoffs.index() {
            self.adopt(handoff, now);
        } else if let Err(Handoff { stream, .. }) = self.handoffs.send(chosen, handoff) {
            // The ring is full, so that reactor already has hundreds of new connections: this one
            // is refused.
            self.placement.release(chosen);
            self.refuse(stream);
        }
    }

    fn refuse(&mut self, stream: N::Stream) {
        self.connections.count_refused();
        self.network.close_stream(stream);
    }

    fn adopt(&mut self, handoff: Handoff<N::Stream>, now: Nanos) {
        if self.handover != HandoverState::Serving {
            return self.late.push(handoff);
        }
        let Handoff {
            stream,
            framing,
            port,
            replaces,
        } = handoff;
        let is_permitted = self.connections.permits(&stream, port);
        if !is_permitted || (replaces && !self.connections.evict(now)) {
            self.placement.release(self.handoffs.index());
            return self.refuse(stream);
        }
        let index = match self
            .connections
            .insert_negotiated(stream, framing, port, now)
        {
            Ok(index) => index,
            Err(stream) => {
                self.placement.release(self.handoffs.index());
                return self.network.close_stream(stream);
            }
        };
        if let Some(stream) = self.connections.stream(index)
            && let Err(error) = self.network.add_stream(index, stream)
        {
            tracing::error!(%error, "a connection cannot be watched");
        }
    }

    fn receive(&mut self, index: u16, now: Nanos) -> u32 {
        if self.stopping && !self.connections.awaits_host_data(index) {
            return 0;
        }
        let Arrivals {
            count: arrivals,
            is_holding,
        } = self.connections.receive(index, now);
        if is_holding && !self.holding.contains(&index) {
            self.holding.push(index);
        }
        // Connections that come and go would cost a fruitless receive in each turn.
        if arrivals > 0 && !self.recent.contains(&index) && self.connections.serves_io(index) {
            // With more active sockets than places, epoll finds them more cheaply.
            let _ = self.recent.try_push(index);
        }
        arrivals
    }

    fn poll_recent(&mut self, now: Nanos) -> u32 {
        let mut arrivals = 0;
        for position in (0..self.recent.len()).rev() {
            let index = self.recent[position];
            arrivals += self.receive(index, now);
            let active = self
                .connections
                .last_arrival(index)
                .is_some_and(|last| now.saturating_sub(last) < RECENT_FOR);
            if !active {
                self.recent.swap_remove(position);
            }
        }
        arrivals
    }

    /// Receives again from the connections whose stream holds something.
    #[inline]
    fn poll_holding(&mut self, now: Nanos) -> u32 {
        let mut arrivals = 0;
        for position in (0..self.holding.len()).rev() {
            let index = self.holding.swap_remove(position);
            arrivals += self.receive(index, now);
        }
        arrivals
    }

    fn poll_epoll(&mut self, now: Nanos) -> u32 {
        self.turns_since_epoll = 0;
        let mut moved = 0;
        for position in 0..self.network.poll_events() {
            let Ready { index, writable } = self.network.ready(position);
            if writable {
                self.connections.writable(index);
                if let Some(stream) = self.connections.stream(index) {
                    watch(&self.network, index, stream, Interest::Readable);
                }
            }
            if !self.recent.contains(&index) {
                moved += self.receive(index, now);
            }
        }
        moved
    }

    fn release_ended(&mut self) {
        while let Some((index, stream)) = self.connections.take_ended() {
            self.recent.retain(|recent| *recent != index);
            self.holding.retain(|holding| *holding != index);
            self.network.close_stream(stream);
            self.placement.release(self.handoffs.index());
        }
    }
}

impl<N: Network> Ports for TcpTransport<N> {
    type Listener = N::Listener;
    type Settings = PortSettings;
    type Reply = io::Result<()>;
    type Handover = HandoverMessage<N::Stream>;

    #[inline]
    fn port_control(&mut self) -> &mut ControlOf<Self> {
        &mut self.ports
    }

    fn open_port(&mut self, listener: N::Listener, port: PortId) -> io::Result<()> {
        self.listen(listener, port)
    }

    fn set_ports(&mut self, ports: Vec<(PortId, PortSettings)>) {
        self.connections.set_ports(ports);
        for (index, port) in self.listeners.open() {
            self.network.offer(index, self.connections.terms(port));
        }
    }

    fn stop_listening(&mut self, port: PortId) {
        self.listeners
            .close(|it| it == port, |index| self.network.close_listener(index));
    }

    fn close_connections(&mut self, port: PortId, now: Nanos) -> usize {
        // The listener counts until it is closed, so that its address is free afterwards.
        self.listeners.count(port) + self.connections.close_port(port, now)
    }

    fn hand_over(&mut self, message: HandoverMessage<N::Stream>, now: Nanos) {
        self.carry_out_handover(message, now);
    }
}

impl<N: Network> Poller for TcpTransport<N> {
    fn name(&self) -> &str {
        "nvme-tcp"
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        let mut moved = self.poll_ports(now);
        if self.handover == HandoverState::Frozen {
            return Progress::from_count(moved as usize);
        }
        while let Some((_, handoff)) = self.handoffs.recv_in_turn() {
            self.adopt(handoff, now);
            moved += 1;
        }
        moved += self.connections.begin_turn(now);
        moved += self.poll_holding(now);
        moved += self.poll_recent(now);
        self.turns_since_epoll += 1;
        if self.recent.is_empty() || self.turns_since_epoll >= TURNS_PER_EPOLL {
            moved += self.accept(now);
            moved += self.poll_epoll(now);
        }
        moved += self.connections.dispatch(now);
        self.connections.expire(now);
        Progress::from_count(moved as usize)
    }

    fn flush(&mut self, now: Nanos) {
        if self.handover == HandoverState::Frozen {
            return;
        }
        let Self {
            connections,
            network,
            ..
        } = self;
        connections.take_responses(now);
        connections.flush(now, |index, stream| {
            watch(network, index, stream, Interest::ReadableOrWritable);
        });
        self.release_ended();
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.connections.next_deadline()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        self.network.wake_source()
    }

    fn prepare_sleep(&mut self) -> bool {
        let is_idle = !self.connections.has_pending() && self.handoffs.is_empty();
        let is_idle = is_idle && self.holding.is_empty();
        is_idle && !self.network.has_accepted() && !self.ports.has_messages()
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        self.stopping = true;
        self.listeners
            .close(|_| true, |index| self.network.close_listener(index));
        match self.listeners.len() + self.connections.drain(now) {
            0 => StopState::Stopped,
            open => StopState::Outstanding(open as u32),
        }
    }
}

fn watch<N: Network>(network: &N, index: u16, stream: &N::Stream, interest: Interest) {
    if let Err(error) = network.watch_stream(index, stream, interest) {
        tracing::error!(%error, "a connection cannot be watched");
    }
}
