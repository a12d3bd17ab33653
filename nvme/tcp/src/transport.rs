//! The poller that drives a reactor's NVMe/TCP connections over a [`Network`].
//!
//! Recently active sockets are read without asking epoll. Epoll reports events of the others, and a
//! sleeping reactor waits on it. A listener belongs to one reactor, which hands new sockets to the
//! least loaded reactor.

use std::io;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use nvme_fabrics::{ListenerMessage, ListenerTable, PortControl, Ports, earliest};
use nvme_target::PortId;
use reactors::mesh::Port;
use reactors::ring::Receiver;
use reactors::{Nanos, Placement, PlacementResult, Poller, Progress, ReactorHandle, StopState};

use crate::config::PortSettings;
use crate::connection::ConnectionAudit;
use crate::connections::ConnectionSet;
use crate::network::{Interest, Network, Sockets, Source};
use crate::stream::TcpSocket;

/// Sockets that are read without asking epoll first.
const RECENT_MAX: usize = 8;
/// How long a socket counts as recently active.
const RECENT_FOR: Nanos = Nanos::from_millis(1);
/// Turns between two calls of epoll while there are recently active sockets.
const TURNS_PER_EPOLL: u32 = 16;
/// Connections accepted in one poll at most.
const ACCEPTS_PER_POLL_MAX: usize = 16;
/// Pause after a failed accept (no descriptors left), which prevents a busy loop.
const ACCEPT_PAUSE: Nanos = Nanos::from_millis(100);

/// A socket on its way to the reactor that will serve it.
#[derive(Debug)]
pub struct Handoff<A = std::net::TcpStream> {
    /// The connected socket.
    pub stream: A,
    /// The port it was accepted on.
    pub port: PortId,
    /// Whether the limit of connections is reached, so that the reactor must evict one for it.
    pub replaces: bool,
}

/// A control message to the transport. The result of listening is whether it can watch the
/// listener.
pub type PortMessage<L = std::net::TcpListener> = ListenerMessage<L, PortSettings, io::Result<()>>;

/// One reactor's NVMe/TCP: a [`Poller`].
pub struct TcpTransport<N: Network = Sockets> {
    connections: ConnectionSet<N::Stream>,
    recent: ArrayVec<u16, RECENT_MAX>,
    turns_since_epoll: u32,
    network: N,
    /// The network identifies listeners by their numbers in this table.
    listeners: ListenerTable<N::Listener>,
    ports: PortControl<N::Listener, PortSettings, io::Result<()>>,
    handoffs: Port<Handoff<N::Accepted>>,
    placement: Placement,
    reactors: Vec<ReactorHandle>,
    stopping: bool,
}

impl TcpTransport<Sockets> {
    /// Drives `connections` on the reactor that `handoffs` belongs to.
    ///
    /// # Errors
    /// The system's, if epoll fails.
    pub fn new(
        connections: ConnectionSet<TcpSocket>,
        handoffs: Port<Handoff>,
        placement: Placement,
        reactors: Vec<ReactorHandle>,
    ) -> io::Result<Self> {
        Ok(Self::with_network(
            Sockets::new()?,
            connections,
            handoffs,
            placement,
            reactors,
        ))
    }
}

impl<N: Network> TcpTransport<N> {
    /// Drives `connections` over `network` on the reactor that `handoffs` belongs to.
    #[must_use]
    pub fn with_network(
        network: N,
        connections: ConnectionSet<N::Stream>,
        handoffs: Port<Handoff<N::Accepted>>,
        placement: Placement,
        reactors: Vec<ReactorHandle>,
    ) -> Self {
        let mut connections = connections;
        connections.count_evictable_in(placement.clone(), handoffs.index());
        Self {
            connections,
            recent: ArrayVec::new(),
            turns_since_epoll: 0,
            network,
            listeners: ListenerTable::default(),
            ports: PortControl::default(),
            handoffs,
            placement,
            reactors,
            stopping: false,
        }
    }

    /// Accepts connections from `listener` as those of `port`.
    ///
    /// # Errors
    /// The system's, if the listener cannot be watched.
    pub fn listen(&mut self, listener: N::Listener, port: PortId) -> io::Result<()> {
        let index = self.listeners.next_index();
        self.network.add_listener(index, &listener)?;
        self.listeners.insert(listener, port);
        Ok(())
    }

    /// The memory that each connection holds.
    pub fn audit(&self) -> impl Iterator<Item = (&N::Stream, ConnectionAudit)> {
        self.connections.audit()
    }

    /// Receives control messages from `port_messages` from now on. Their sender wakes this reactor.
    pub fn receive_port_messages(&mut self, port_messages: Receiver<PortMessage<N::Listener>>) {
        self.ports.receive_from(port_messages);
    }

    fn accept(&mut self, index: u16, now: Nanos) -> u32 {
        let mut accepted = 0;
        for _ in 0..ACCEPTS_PER_POLL_MAX {
            let Some((listener, port)) = self.listeners.get(index) else {
                return accepted;
            };
            match N::accept(listener) {
                Ok(stream) => {
                    accepted += 1;
                    self.assign_connection(stream, port, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return accepted,
                Err(error) if is_about_the_peer(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections for now");
                    self.listeners.fail(index, now.saturating_add(ACCEPT_PAUSE));
                    self.watch_listener(index, Interest::Nothing);
                    return accepted;
                }
            }
        }
        accepted
    }

    fn watch_listener(&self, index: u16, interest: Interest) {
        let Some((listener, _)) = self.listeners.get(index) else {
            return;
        };
        if let Err(error) = self.network.watch_listener(index, listener, interest) {
            tracing::error!(%error, "a listener can no longer be watched");
        }
    }

    fn resume_listeners(&mut self, now: Nanos) {
        while let Some(index) = self.listeners.take_due(now) {
            self.watch_listener(index, Interest::Readable);
        }
    }

    /// Hands a new socket to the least loaded reactor, or to one that can evict a connection for
    /// it.
    fn assign_connection(&mut self, stream: N::Accepted, port: PortId, now: Nanos) {
        let (chosen, replaces) = match self.placement.choose_or_replace(&self.reactors, now) {
            PlacementResult::Available(chosen) => (chosen, false),
            PlacementResult::Replacing(chosen) => (chosen, true),
            PlacementResult::Full => return self.connections.count_refused(),
        };
        let handoff = Handoff {
            stream,
            port,
            replaces,
        };
        if chosen == self.handoffs.index() {
            self.adopt(handoff, now);
        } else if self.handoffs.send(chosen, handoff).is_err() {
            // The ring is full, so that reactor already has hundreds of new sockets: this one is
            // refused.
            self.placement.release(chosen);
            self.connections.count_refused();
        }
    }

    fn adopt(&mut self, handoff: Handoff<N::Accepted>, now: Nanos) {
        if handoff.replaces && !self.connections.evict(now) {
            self.connections.count_refused();
            return self.placement.release(self.handoffs.index());
        }
        let stream = match N::adopt(handoff.stream) {
            Ok(stream) => stream,
            Err(error) => {
                // The host has most likely disconnected.
                tracing::debug!(%error, "a new connection cannot be used");
                return self.placement.release(self.handoffs.index());
            }
        };
        let Ok(index) = self.connections.insert(stream, handoff.port, now) else {
            return self.placement.release(self.handoffs.index());
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
        let arrivals = self.connections.receive(index, now);
        if arrivals > 0 && !self.recent.contains(&index) {
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

    fn poll_epoll(&mut self, now: Nanos) -> u32 {
        self.turns_since_epoll = 0;
        let mut moved = 0;
        for position in 0..self.network.poll_events() {
            let ready = self.network.ready(position);
            match ready.source {
                Source::Listener(index) => moved += self.accept(index, now),
                Source::Connection(index) => {
                    if ready.writable {
                        self.connections.writable(index);
                        if let Some(stream) = self.connections.stream(index) {
                            watch(&self.network, index, stream, Interest::Readable);
                        }
                    }
                    if !self.recent.contains(&index) {
                        moved += self.receive(index, now);
                    }
                }
            }
        }
        moved
    }

    fn release_ended(&mut self) {
        while let Some(index) = self.connections.take_ended() {
            self.recent.retain(|recent| *recent != index);
            self.placement.release(self.handoffs.index());
        }
    }
}

impl<N: Network> Ports for TcpTransport<N> {
    type Listener = N::Listener;
    type Settings = PortSettings;
    type Reply = io::Result<()>;

    #[inline]
    fn port_control(&mut self) -> &mut PortControl<N::Listener, PortSettings, io::Result<()>> {
        &mut self.ports
    }

    fn open_port(&mut self, listener: N::Listener, port: PortId) -> io::Result<()> {
        self.listen(listener, port)
    }

    fn set_ports(&mut self, ports: Vec<(PortId, PortSettings)>) {
        self.connections.set_ports(ports);
    }

    fn stop_listening(&mut self, port: PortId) {
        // The network stops watching a listener that is dropped.
        self.listeners.remove_port(port);
    }

    fn close_connections(&mut self, port: PortId, now: Nanos) -> usize {
        self.connections.close_port(port, now)
    }
}

impl<N: Network> Poller for TcpTransport<N> {
    fn name(&self) -> &str {
        "nvme-tcp"
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        let mut moved = self.poll_ports(now);
        while let Some((_, handoff)) = self.handoffs.recv_in_turn() {
            self.adopt(handoff, now);
            moved += 1;
        }
        moved += self.connections.begin_turn(now);
        moved += self.poll_recent(now);
        self.turns_since_epoll += 1;
        if self.recent.is_empty() || self.turns_since_epoll >= TURNS_PER_EPOLL {
            moved += self.poll_epoll(now);
        }
        moved += self.connections.dispatch(now);
        self.connections.expire(now);
        self.resume_listeners(now);
        Progress::from_count(moved as usize)
    }

    fn flush(&mut self, now: Nanos) {
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
        earliest(
            self.connections.next_deadline(),
            self.listeners.next_retry(),
        )
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        self.network.wake_source()
    }

    fn prepare_sleep(&mut self) -> bool {
        let is_idle = !self.connections.has_pending() && self.handoffs.is_empty();
        is_idle && !self.ports.has_messages()
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        self.stopping = true;
        self.listeners.clear();
        match self.connections.drain(now) {
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

/// Whether an accept failed because of the peer's connection, not for lack of resources.
fn is_about_the_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
    )
}
