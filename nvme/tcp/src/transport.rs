//! The poller that drives a reactor's NVMe/TCP connections over real sockets.
//!
//! Sockets that were active a moment ago are read without asking; the rest are asked about through
//! epoll, which is also what a sleeping reactor waits on. Listeners live on one reactor, which
//! hands new sockets to the least loaded.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use nvme_target::{PortId, TargetCore};
use reactors::mesh::Port;
use reactors::{Nanos, Placement, Poller, Progress, ReactorHandle, StopState};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::connections::ConnectionSet;
use crate::stream::{ByteStream, TcpSocket};

/// Sockets that are read without asking epoll first.
const RECENT_MAX: usize = 8;
/// How long a socket counts as recently active.
const RECENT_FOR: Nanos = Nanos::from_millis(1);
/// Turns between two looks at epoll while there are recently active sockets.
const TURNS_PER_EPOLL: u32 = 16;
/// Events taken from epoll at once.
const EVENTS_MAX: usize = 64;
/// Connections accepted in one poll.
const ACCEPTS_PER_POLL_MAX: usize = 16;
/// Rest after a failed accept (no descriptors left), so that it does not become a busy loop.
const ACCEPT_PAUSE: Nanos = Nanos::from_millis(100);

/// A socket on its way to the reactor that will serve it.
#[derive(Debug)]
pub struct Handoff {
    /// The connected socket.
    pub stream: TcpStream,
    /// The port it was accepted on.
    pub port: PortId,
}

struct Listening {
    listener: TcpListener,
    port: PortId,
    paused_until: Option<Nanos>,
}

/// What an epoll event is about, as its 64 bits of data.
#[derive(Clone, Copy)]
enum Source {
    Connection(u16),
    Listener(u16),
    /// A device's ring or interrupt: the target core's poll takes care of it.
    Device,
}

impl Source {
    fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Connection(index) => u64::from(index),
            Self::Listener(index) => 1 << 32 | u64::from(index),
            Self::Device => 2 << 32,
        })
    }

    fn from_data(data: epoll::EventData) -> Self {
        let data = data.u64();
        match data >> 32 {
            0 => Self::Connection(data as u16),
            1 => Self::Listener(data as u16),
            _ => Self::Device,
        }
    }
}

/// One reactor's NVMe/TCP: a [`Poller`].
pub struct TcpTransport {
    connections: ConnectionSet<TcpSocket>,
    recent: ArrayVec<u16, RECENT_MAX>,
    turns_since_epoll: u32,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    listeners: Vec<Listening>,
    handoffs: Port<Handoff>,
    placement: Placement,
    reactors: Vec<ReactorHandle>,
    stopping: bool,
}

impl TcpTransport {
    /// Drives `connections` on the reactor that `handoffs` belongs to. Device descriptors of the
    /// target core are watched from here on, so that a device wakes a sleeping reactor.
    ///
    /// # Errors
    /// The system's, when no epoll instance can be had.
    pub fn new(
        connections: ConnectionSet<TcpSocket>,
        handoffs: Port<Handoff>,
        placement: Placement,
        reactors: Vec<ReactorHandle>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch_devices(&epoll, &connections.core().borrow())?;
        Ok(Self {
            connections,
            recent: ArrayVec::new(),
            turns_since_epoll: 0,
            epoll,
            events: Vec::with_capacity(EVENTS_MAX),
            listeners: Vec::new(),
            handoffs,
            placement,
            reactors,
            stopping: false,
        })
    }

    /// Accepts connections from `listener` as those of `port`.
    ///
    /// # Errors
    /// The system's, when the listener cannot be watched.
    pub fn listen(&mut self, listener: TcpListener, port: PortId) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let source = Source::Listener(self.listeners.len() as u16);
        epoll::add(&self.epoll, &listener, source.data(), epoll::EventFlags::IN)?;
        self.listeners.push(Listening {
            listener,
            port,
            paused_until: None,
        });
        Ok(())
    }

    fn accept(&mut self, index: u16, now: Nanos) -> u32 {
        let mut accepted = 0;
        for _ in 0..ACCEPTS_PER_POLL_MAX {
            let Some(listening) = self.listeners.get_mut(usize::from(index)) else {
                return accepted;
            };
            match listening.listener.accept() {
                Ok((stream, _)) => {
                    accepted += 1;
                    let port = listening.port;
                    self.place(Handoff { stream, port }, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return accepted,
                Err(error) if is_about_the_peer(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections for now");
                    listening.paused_until = Some(now.saturating_add(ACCEPT_PAUSE));
                    self.watch_listener(index, epoll::EventFlags::empty());
                    return accepted;
                }
            }
        }
        accepted
    }

    fn watch_listener(&self, index: u16, flags: epoll::EventFlags) {
        let source = Source::Listener(index).data();
        let listener = &self.listeners[usize::from(index)].listener;
        if let Err(error) = epoll::modify(&self.epoll, listener, source, flags) {
            tracing::error!(%error, "a listener can no longer be watched");
        }
    }

    fn resume_listeners(&mut self, now: Nanos) {
        for index in 0..self.listeners.len() {
            let paused = &mut self.listeners[index].paused_until;
            if paused.is_some_and(|until| until <= now) {
                *paused = None;
                self.watch_listener(index as u16, epoll::EventFlags::IN);
            }
        }
    }

    /// Gives a new socket to the least loaded reactor.
    fn place(&mut self, handoff: Handoff, now: Nanos) {
        let chosen = self.placement.choose(&self.reactors, now);
        if chosen == self.handoffs.index() {
            self.adopt(handoff, now);
        } else if self.handoffs.send(chosen, handoff).is_err() {
            // The ring is full, so that reactor has hundreds of new sockets to take in: this one is
            // turned away.
            self.placement.release(chosen);
            self.connections.count_refused();
        }
    }

    fn adopt(&mut self, handoff: Handoff, now: Nanos) {
        let socket = match TcpSocket::new(handoff.stream) {
            Ok(socket) => socket,
            Err(error) => {
                // The host has most likely gone again.
                tracing::debug!(%error, "a new connection cannot be used");
                return self.placement.release(self.handoffs.index());
            }
        };
        let Ok(index) = self.connections.insert(socket, handoff.port, now) else {
            return self.placement.release(self.handoffs.index());
        };
        self.watch_connection(index, epoll::EventFlags::IN, true);
    }

    fn watch_connection(&self, index: u16, flags: epoll::EventFlags, new: bool) {
        let stream = self.connections.stream(index);
        let Some(descriptor) = stream.and_then(ByteStream::descriptor) else {
            return;
        };
        let source = Source::Connection(index).data();
        let watched = if new {
            epoll::add(&self.epoll, descriptor, source, flags)
        } else {
            epoll::modify(&self.epoll, descriptor, source, flags)
        };
        if let Err(error) = watched {
            tracing::error!(%error, "a connection can not be watched");
        }
    }

    fn receive(&mut self, index: u16, now: Nanos) -> u32 {
        if self.stopping && !self.connections.awaits_host_data(index) {
            return 0;
        }
        let arrivals = self.connections.receive(index, now);
        if arrivals > 0 && !self.recent.contains(&index) {
            // With more active sockets than places, epoll is the cheaper way to find them.
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
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let buffer = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, buffer, Some(&at_once)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll failed"),
        }
        let mut moved = 0;
        for event in &events {
            let flags = event.flags;
            match Source::from_data(event.data) {
                Source::Listener(index) => moved += self.accept(index, now),
                Source::Connection(index) => {
                    if flags.contains(epoll::EventFlags::OUT) {
                        self.connections.writable(index);
                        self.watch_connection(index, epoll::EventFlags::IN, false);
                    }
                    if !self.recent.contains(&index) {
                        moved += self.receive(index, now);
                    }
                }
                Source::Device => {}
            }
        }
        self.events = events;
        moved
    }

    fn forget_ended(&mut self) {
        while let Some(index) = self.connections.take_ended() {
            self.recent.retain(|recent| *recent != index);
            self.placement.release(self.handoffs.index());
        }
    }
}

impl Poller for TcpTransport {
    fn name(&self) -> &str {
        "nvme-tcp"
    }

    fn poll(&mut self, now: Nanos, _budget: u32) -> Progress {
        let mut moved = 0;
        while let Some((_, handoff)) = self.handoffs.recv() {
            self.adopt(handoff, now);
            moved += 1;
        }
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
            connections, epoll, ..
        } = self;
        connections.flush(now, |index, stream| {
            let source = Source::Connection(index).data();
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT;
            if let Some(descriptor) = stream.descriptor()
                && let Err(error) = epoll::modify(&*epoll, descriptor, source, flags)
            {
                tracing::error!(%error, "a connection can not be watched");
            }
        });
        connections.core().borrow_mut().flush();
        self.forget_ended();
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let resumes = self
            .listeners
            .iter()
            .filter_map(|listening| listening.paused_until)
            .min();
        match (self.connections.next_deadline(), resumes) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        }
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn prepare_sleep(&mut self) -> bool {
        !self.connections.has_pending()
            && self.handoffs.is_empty()
            && self.connections.core().borrow_mut().prepare_sleep()
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

/// Has every descriptor of the core's devices watched.
fn watch_devices(epoll: &OwnedFd, core: &TargetCore) -> io::Result<()> {
    let mut outcome = Ok(());
    core.wake_sources(&mut |descriptor| {
        let data = Source::Device.data();
        match epoll::add(epoll, descriptor, data, epoll::EventFlags::IN) {
            // Devices may share one, as the namespaces of a drive do.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => outcome = Err(error.into()),
        }
    });
    outcome
}

/// Whether an accept failed because of the connection that was to be accepted.
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
