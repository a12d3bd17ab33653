//! A network in memory, with streams that are cut, stall, arrive byte by byte, or lose their host.
//!
//! One [`Wire`] is one TCP connection with two directions. Sent data is in flight for some time and
//! arrives in pieces that the network chooses; data that the receiver does not read limits the
//! sender. The target's end is a [`TargetStream`], found through [`SimNetwork`] as production finds
//! sockets through epoll.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nvme_tcp::{Accepted, ByteStream, Interest, Network, Ready, Transferred};
use reactors::Nanos;
use rustix::io::Errno;

use crate::random::Random;
use crate::time::SharedTime;

/// The port of hosts, which has no meaning.
const HOST_PORT: u16 = 50_000;
/// Maximum number of bytes that a target may have in flight to a host that does not read.
const STALLED_WINDOW: usize = 4096;

/// The behaviour of a network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkBehaviour {
    /// Minimum latency of a byte.
    pub latency_min: Nanos,
    /// Maximum latency of a byte, apart from stalls.
    pub latency_max: Nanos,
    /// Maximum size of a piece, which is the most that one receive returns, in bytes.
    pub grain: usize,
    /// Maximum number of bytes that are sent and not yet read.
    pub window: usize,
}

/// Bytes in flight in one direction.
struct Direction {
    flying: VecDeque<(Nanos, Vec<u8>)>,
    flying_bytes: usize,
    arrived: VecDeque<u8>,
    /// The sender has finished the stream.
    finished: bool,
    stalled_until: Nanos,
    last_due: Nanos,
    /// Sent data is lost, and the receiver is not notified.
    swallows: bool,
}

impl Direction {
    fn new() -> Self {
        Self {
            flying: VecDeque::new(),
            flying_bytes: 0,
            arrived: VecDeque::new(),
            finished: false,
            stalled_until: Nanos::ZERO,
            last_due: Nanos::ZERO,
            swallows: false,
        }
    }

    fn deliver(&mut self, now: Nanos) {
        if now < self.stalled_until || self.swallows {
            return;
        }
        while let Some((due, _)) = self.flying.front()
            && *due <= now
        {
            if let Some((_, bytes)) = self.flying.pop_front() {
                self.flying_bytes -= bytes.len();
                self.arrived.extend(bytes);
            }
        }
    }

    fn held(&self) -> usize {
        self.flying_bytes + self.arrived.len()
    }

    fn at_end(&self) -> bool {
        self.finished && self.flying.is_empty() && self.arrived.is_empty() && !self.swallows
    }

    /// The next time after `now` at which data arrives.
    fn next_due(&self, now: Nanos) -> Option<Nanos> {
        if self.swallows {
            return None;
        }
        let (due, _) = self.flying.front()?;
        Some((*due).max(self.stalled_until)).filter(|due| *due > now)
    }
}

/// Both directions of a connection.
struct Link {
    /// The host's address.
    from: IpAddr,
    behaviour: NetworkBehaviour,
    random: Random,
    to_target: Direction,
    to_host: Direction,
    /// The connection is unusable for both ends.
    reset: bool,
    /// The network caused the reset.
    cut: bool,
    /// The last send of the target found no room.
    target_blocked: bool,
    target_gone: bool,
    /// Bytes that were reported to the target as available.
    promised: usize,
}

impl Link {
    /// Maximum number of bytes that the target may have in flight now.
    fn window_to_host(&self, now: Nanos) -> usize {
        match now < self.to_host.stalled_until {
            true => self.behaviour.window.min(STALLED_WINDOW),
            false => self.behaviour.window,
        }
    }

    fn send(&mut self, to_target: bool, bytes: &[u8], now: Nanos) {
        let (least, most) = (
            self.behaviour.latency_min.as_nanos(),
            self.behaviour.latency_max.as_nanos(),
        );
        let flight = Nanos(self.random.between(least, most));
        let direction = if to_target {
            &mut self.to_target
        } else {
            &mut self.to_host
        };
        let due = (now + flight).max(direction.last_due);
        direction.last_due = due;
        direction.flying_bytes += bytes.len();
        direction.flying.push_back((due, bytes.to_vec()));
    }
}

/// A connection, as the host and the world use it.
#[derive(Clone)]
pub struct Wire {
    link: Arc<Mutex<Link>>,
    time: SharedTime,
}

/// The identity of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WireId(usize);

/// The state of the connection at the host's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEnd {
    /// More data may arrive.
    Open,
    /// The target has closed it in order.
    Finished,
    /// The target has closed it with unread data.
    Reset,
    /// The network broke it.
    Cut,
}

impl Wire {
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its identifier, unique among all connections.
    #[must_use]
    pub fn id(&self) -> WireId {
        WireId(Arc::as_ptr(&self.link).addr())
    }

    /// Sends from the host; never waits.
    pub fn send(&self, bytes: &[u8]) {
        let now = self.time.now();
        let mut link = self.link();
        if !link.reset {
            link.send(true, bytes, now);
        }
    }

    /// Receives at the host everything that has arrived.
    pub fn receive(&self, into: &mut Vec<u8>) -> HostEnd {
        let now = self.time.now();
        let mut link = self.link();
        if link.cut {
            return HostEnd::Cut;
        }
        if link.reset {
            // Data that arrived before the reset may still be read.
            into.extend(link.to_host.arrived.drain(..));
            return HostEnd::Reset;
        }
        link.to_host.deliver(now);
        into.extend(link.to_host.arrived.drain(..));
        if link.to_host.at_end() {
            HostEnd::Finished
        } else {
            HostEnd::Open
        }
    }

    /// Closes the host's end in order.
    pub fn finish(&self) {
        self.link().to_target.finished = true;
    }

    /// Breaks the connection for both ends.
    pub fn cut(&self) {
        let mut link = self.link();
        (link.reset, link.cut) = (true, true);
    }

    /// Delays all data in the given direction until `until`.
    pub fn stall(&self, to_target: bool, until: Nanos) {
        let mut link = self.link();
        let direction = if to_target {
            &mut link.to_target
        } else {
            &mut link.to_host
        };
        direction.stalled_until = direction.stalled_until.max(until);
    }

    /// Lets the host vanish silently: no more data arrives in either direction.
    pub fn vanish(&self) {
        let mut link = self.link();
        link.to_target.swallows = true;
        link.to_host.swallows = true;
    }

    /// Whether the target has closed its end.
    #[must_use]
    pub fn is_closed_by_target(&self) -> bool {
        self.link().target_gone
    }

    /// Whether the host has closed its end.
    fn is_closed_by_host(&self) -> bool {
        self.link().to_target.finished
    }

    /// Its state, for messages.
    #[must_use]
    pub fn state(&self) -> String {
        let link = self.link();
        let state = |direction: &Direction| {
            format!(
                "{} flying, {} arrived, stalled until {}",
                direction.flying_bytes,
                direction.arrived.len(),
                direction.stalled_until
            )
        };
        format!(
            "to the target {}; to the host {}; window {}; target blocked {}, gone {}",
            state(&link.to_target),
            state(&link.to_host),
            link.behaviour.window,
            link.target_blocked,
            link.target_gone
        )
    }

    /// Whether the target can receive or send something that it has not processed yet.
    #[must_use]
    pub fn waits_for_target(&self) -> bool {
        let now = self.time.now();
        let mut link = self.link();
        link.to_target.deliver(now);
        let readable = !link.to_target.arrived.is_empty() || link.to_target.at_end();
        let writable = link.target_blocked && link.to_host.held() < link.window_to_host(now);
        !link.target_gone && (readable || writable || link.reset)
    }

    /// The next time at which data arrives at either end.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let link = self.link();
        if link.reset {
            return None;
        }
        let now = self.time.now();
        let dues = [link.to_target.next_due(now), link.to_host.next_due(now)];
        dues.into_iter().flatten().min()
    }
}

/// A listener: contains the connections that wait to be accepted while it is bound.
#[derive(Clone)]
pub struct Listener {
    backlog: Arc<Mutex<VecDeque<Wire>>>,
    made: Arc<Mutex<Vec<Wire>>>,
    bound: Arc<Mutex<Bound>>,
    time: SharedTime,
}

/// The state of the listening socket.
#[derive(Default)]
struct Bound {
    /// Alive while a handle of the socket is open.
    socket: Weak<()>,
    /// The next bind fails because the address is in use.
    next_bind_fails: bool,
    /// Connections wait and are not accepted.
    is_paused: bool,
}

/// A handle of the listening socket of the target. Connections are refused while there is none.
pub struct Socket {
    listener: Listener,
    open: Arc<()>,
}

impl Drop for Socket {
    /// Resets connections that were not accepted, like a kernel, unless another process has the
    /// socket too.
    fn drop(&mut self) {
        if Arc::strong_count(&self.open) > 1 {
            return;
        }
        self.listener.bound().socket = Weak::new();
        for wire in self.listener.waiting().drain(..) {
            let mut link = wire.link();
            (link.reset, link.target_gone) = (true, true);
        }
    }
}

impl Listener {
    /// A listener without connections.
    #[must_use]
    pub fn new(time: SharedTime) -> Self {
        Self {
            backlog: Arc::default(),
            made: Arc::default(),
            bound: Arc::default(),
            time,
        }
    }

    /// Binds the listener.
    ///
    /// # Errors
    /// The address is in use.
    pub fn bind(&self) -> io::Result<Socket> {
        let mut bound = self.bound();
        let is_bound = bound.socket.strong_count() > 0;
        if is_bound || std::mem::take(&mut bound.next_bind_fails) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let open = Arc::new(());
        bound.socket = Arc::downgrade(&open);
        Ok(Socket {
            listener: self.clone(),
            open,
        })
    }

    /// Another handle of the listening socket, for the process that continues.
    ///
    /// # Errors
    /// There is no socket.
    pub fn duplicate_socket(&self) -> io::Result<Socket> {
        let open = self.bound().socket.upgrade();
        Ok(Socket {
            listener: self.clone(),
            open: open.ok_or(io::ErrorKind::NotConnected)?,
        })
    }

    /// Whether the listener is bound.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.bound().socket.strong_count() > 0
    }

    /// Lets connections wait, or be accepted again.
    pub fn set_paused(&self, paused: bool) {
        self.bound().is_paused = paused;
    }

    fn next_connection(&self) -> Option<Wire> {
        match self.bound().is_paused {
            true => None,
            false => self.waiting().pop_front(),
        }
    }

    fn has_connection(&self) -> bool {
        !self.bound().is_paused && !self.waiting().is_empty()
    }

    /// Makes the next bind fail, as if another process used the address.
    pub fn fail_next_bind(&self) {
        self.bound().next_bind_fails = true;
    }

    /// Lets the next bind succeed.
    pub fn allow_bind(&self) {
        self.bound().next_bind_fails = false;
    }

    fn bound(&self) -> MutexGuard<'_, Bound> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a connection of the host at `from`, which waits to be accepted or is refused. Returns
    /// the host's end.
    #[must_use]
    pub fn connect(&self, from: IpAddr, behaviour: NetworkBehaviour, random: Random) -> Wire {
        let is_bound = self.is_bound();
        let link = Link {
            from,
            behaviour,
            random,
            to_target: Direction::new(),
            to_host: Direction::new(),
            reset: !is_bound,
            cut: false,
            target_blocked: false,
            target_gone: !is_bound,
            promised: 0,
        };
        let wire = Wire {
            link: Arc::new(Mutex::new(link)),
            time: self.time.clone(),
        };
        if is_bound {
            self.waiting().push_back(wire.clone());
            self.held().push(wire.clone());
        }
        wire
    }

    /// Connections that the target has or is about to have, including those of vanished hosts that
    /// it has not detected.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.open().len()
    }

    /// Whether a connection waits to be accepted, or the target has to read one that its host has
    /// closed.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        let waits = |it: &Wire| it.is_closed_by_host() && it.waits_for_target();
        !self.waiting().is_empty() || self.open().iter().any(waits)
    }

    /// The next time at which data arrives that hosts sent before they closed their ends.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let open = self.open();
        let closed = open.iter().filter(|it| it.is_closed_by_host());
        closed.filter_map(Wire::next_due).min()
    }

    /// Connections that the target has not closed.
    fn open(&self) -> MutexGuard<'_, Vec<Wire>> {
        let mut made = self.held();
        made.retain(|wire| !wire.is_closed_by_target());
        made
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Wire>> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, Vec<Wire>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle of the target's end of a connection, which is closed with the last one.
pub struct TargetStream(Wire, Arc<()>);

impl TargetStream {
    /// The identifier of the connection.
    #[must_use]
    pub fn id(&self) -> WireId {
        self.0.id()
    }
}

impl ByteStream for TargetStream {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred {
        let now = self.0.time.now();
        let mut link = self.0.link();
        if link.reset {
            return Transferred::Failed(Errno::CONNRESET);
        }
        link.to_target.deliver(now);
        let grain = link.behaviour.grain;
        let mut room = if grain > 1 && link.random.permille(200) {
            link.random.between(1, grain as u64) as usize
        } else {
            grain
        };
        room = room.max(std::mem::take(&mut link.promised));
        let mut moved = 0;
        for buffer in buffers {
            let bytes = room.min(buffer.len()).min(link.to_target.arrived.len());
            for (to, from) in buffer.iter_mut().zip(link.to_target.arrived.drain(..bytes)) {
                *to = from;
            }
            (room, moved) = (room - bytes, moved + bytes);
        }
        match moved {
            0 if link.to_target.at_end() => Transferred::Closed,
            0 => Transferred::WouldBlock,
            bytes => Transferred::Bytes(bytes),
        }
    }

    fn available(&mut self) -> usize {
        let now = self.0.time.now();
        let mut link = self.0.link();
        if link.reset {
            return 0;
        }
        link.to_target.deliver(now);
        let most = link.to_target.arrived.len().min(link.behaviour.grain);
        // More data may arrive after the count was taken.
        link.promised = match link.random.permille(200) {
            true if most > 0 => link.random.between(1, most as u64) as usize,
            _ => most,
        };
        link.promised
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred {
        let now = self.0.time.now();
        let mut link = self.0.link();
        if link.reset {
            return Transferred::Failed(Errno::CONNRESET);
        }
        let free = link.window_to_host(now).saturating_sub(link.to_host.held());
        let mut room = free;
        let mut bytes = Vec::new();
        for buffer in buffers {
            let taken = room.min(buffer.len());
            bytes.extend_from_slice(&buffer[..taken]);
            room -= taken;
        }
        link.target_blocked = bytes.is_empty();
        if bytes.is_empty() {
            return Transferred::WouldBlock;
        }
        link.send(false, &bytes, now);
        Transferred::Bytes(bytes.len())
    }

    fn finish_sending(&mut self) {
        self.0.link().to_host.finished = true;
    }

    fn local_address(&self) -> Option<IpAddr> {
        Some(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    fn host_address(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.0.link().from, HOST_PORT))
    }
}

impl Drop for TargetStream {
    fn drop(&mut self) {
        if Arc::strong_count(&self.1) > 1 {
            return;
        }
        let mut link = self.0.link();
        link.target_gone = true;
        link.to_host.finished = true;
        // Unread data turns the close into a reset, as in a kernel.
        if link.to_target.held() > 0 {
            link.reset = true;
        }
    }
}

/// The streams of one reactor.
pub struct SimNetwork {
    /// Listeners with the transport's numbers.
    listeners: Vec<(u16, Socket)>,
    /// Numbers of closed listeners that were not reported.
    closed: Vec<u16>,
    streams: RefCell<BTreeMap<u16, (Wire, Interest)>>,
    ready: Vec<Ready>,
}

impl SimNetwork {
    /// A network without listeners.
    #[must_use]
    pub fn new() -> Self {
        Self {
            listeners: Vec::new(),
            closed: Vec::new(),
            streams: RefCell::new(BTreeMap::new()),
            ready: Vec::new(),
        }
    }
}

impl Default for SimNetwork {
    fn default() -> Self {
        Self::new()
    }
}

impl Network for SimNetwork {
    type Listener = Socket;
    type Stream = TargetStream;

    fn add_listener(&mut self, index: u16, socket: Socket) -> io::Result<()> {
        self.listeners.push((index, socket));
        Ok(())
    }

    fn close_listener(&mut self, index: u16) {
        self.listeners.retain(|(it, _)| *it != index);
        self.closed.push(index);
    }

    fn accept(&mut self) -> Option<Accepted<TargetStream>> {
        if let Some(index) = self.closed.pop() {
            return Some(Accepted::ListenerClosed(index));
        }
        self.listeners.iter().find_map(|(index, socket)| {
            let wire = socket.listener.next_connection()?;
            Some(Accepted::Stream {
                listener: *index,
                stream: TargetStream(wire, Arc::default()),
                framing: None,
            })
        })
    }

    fn has_accepted(&self) -> bool {
        let waits = |(_, socket): &(u16, Socket)| socket.listener.has_connection();
        !self.closed.is_empty() || self.listeners.iter().any(waits)
    }

    fn add_stream(&self, index: u16, stream: &TargetStream) -> io::Result<()> {
        let entry = (stream.0.clone(), Interest::Readable);
        self.streams.borrow_mut().insert(index, entry);
        Ok(())
    }

    fn watch_stream(&self, index: u16, _: &TargetStream, interest: Interest) -> io::Result<()> {
        if let Some((_, watched)) = self.streams.borrow_mut().get_mut(&index) {
            *watched = interest;
        }
        Ok(())
    }

    fn close_stream(&mut self, stream: TargetStream) {
        drop(stream);
    }

    fn duplicate(&self, stream: &TargetStream) -> io::Result<TargetStream> {
        Ok(TargetStream(stream.0.clone(), Arc::clone(&stream.1)))
    }

    fn poll_events(&mut self) -> usize {
        self.ready.clear();
        let streams = self.streams.get_mut();
        streams.retain(|_, (wire, _)| !wire.is_closed_by_target());
        for (index, (wire, interest)) in streams {
            let now = wire.time.now();
            let mut link = wire.link();
            link.to_target.deliver(now);
            let readable =
                link.reset || !link.to_target.arrived.is_empty() || link.to_target.at_end();
            let room = link.to_host.held() < link.behaviour.window;
            let writable = *interest == Interest::ReadableOrWritable && (room || link.reset);
            if writable || readable {
                self.ready.push(Ready {
                    index: *index,
                    writable,
                });
            }
        }
        self.ready.len()
    }

    fn ready(&self, position: usize) -> Ready {
        self.ready[position]
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests;
