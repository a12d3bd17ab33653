//! The poller that drives a reactor's NVMe/RDMA connections.
//!
//! Every poll polls the completion queues. Events of the connection manager and of devices are
//! collected through epoll at intervals, and a sleeping reactor waits on it. A listener belongs to
//! one reactor, which hands connection requests to the least loaded reactor. That reactor creates
//! the queue pair and receives the connection's events.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nvme_fabrics::{ListenerMessage, NoHandover, PortControl, Ports};
use nvme_target::PortId;
use rdma::{
    ConnectRequest as _, Device, DeviceEvent, DeviceIndex, DeviceUser, Event, Provider, Token,
};
use reactors::mesh::Port;
use reactors::ring::Receiver;
use reactors::{Nanos, Placement, Poller, Progress, ReactorHandle, StopState};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::config::PortSettings;
use crate::connection::ConnectionAudit;
use crate::connections::{ConnectionSet, Handoff};
use crate::listeners::{ListenAddress, MANAGER};
use crate::token::EventToken;

/// Turns between two calls of epoll: few enough that connections are opened and closed without
/// noticeable delay, many enough that the system call does not delay capsules.
const TURNS_PER_EPOLL: u32 = 32;
/// Events taken from epoll with one call.
const EVENTS_MAX: usize = 64;
/// Events of the connection manager handled in one poll at most.
const REQUESTS_PER_POLL_MAX: usize = 32;

/// A message from one reactor's transport to another's.
#[derive(Debug)]
pub enum Message<P: Provider> {
    /// A connection to serve.
    Connect(Handoff<P>),
    /// An event of a device that concerns the receiver.
    Device(DeviceIndex, DeviceEvent),
    /// A device may have been removed without an event. For the reactor that receives the events of
    /// devices.
    CheckDevices,
}

/// A control message to the transport. The result of listening on an address is the address with
/// the assigned port number. The settings also make the transport take in the devices that were
/// added to the [`Domains`](rdma::Domains), and release those that were removed from them. The data
/// size of a device's receives does not change while the device is used.
pub type PortMessage = ListenerMessage<ListenAddress, PortSettings, Listened>;

/// The result of listening on an address.
type Listened = Result<SocketAddr, rdma::Error>;

/// The source of an epoll event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The connection manager.
    Manager,
    /// An RDMA device.
    Device,
    /// A completion queue, or a block device's ring or interrupt, which every turn polls.
    Polled,
}

impl Source {
    fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Manager => MANAGER,
            Self::Device => 1,
            Self::Polled => 2,
        })
    }

    fn from_data(data: epoll::EventData) -> Self {
        match data.u64() {
            MANAGER => Self::Manager,
            1 => Self::Device,
            _ => Self::Polled,
        }
    }
}

/// One reactor's NVMe/RDMA: a [`Poller`].
pub struct RdmaTransport<P: Provider> {
    connections: ConnectionSet<P>,
    /// The devices whose events this reactor handles for all reactors.
    watched: Vec<P::Device>,
    turns_since_epoll: u32,
    /// The reactor may have slept, so epoll must be called.
    may_have_slept: bool,
    events: Vec<epoll::Event>,
    messages: Port<Message<P>>,
    ports: PortControl<ListenAddress, PortSettings, Listened>,
    placement: Placement,
    reactors: Vec<ReactorHandle>,
    polled_at: Nanos,
    stopping: bool,
    /// The totals are logged.
    totals_logged: bool,
}

#[cfg(feature = "verbs")]
impl RdmaTransport<rdma::Verbs> {
    /// The transport as a poller of a reactor.
    ///
    /// This function is not generic, so that the data path over verbs is compiled with this crate
    /// and not again with each crate that uses it. Optimised programs compile it themselves, as for
    /// TCP.
    #[cfg_attr(not(debug_assertions), inline)]
    #[must_use]
    pub fn into_poller(self) -> Box<dyn Poller> {
        Box::new(self)
    }
}

impl<P: Provider> RdmaTransport<P> {
    /// Drives `connections` on the reactor that `messages` belongs to. The first reactor receives
    /// the events of all devices and passes them on to the others. Creates the shared queues of
    /// every device; logs a device for which that fails, and tries it again when a host connects
    /// through it.
    #[must_use]
    pub fn new(
        connections: ConnectionSet<P>,
        messages: Port<Message<P>>,
        placement: Placement,
        reactors: Vec<ReactorHandle>,
    ) -> Self {
        let mut transport = Self {
            connections,
            watched: Vec::new(),
            turns_since_epoll: 0,
            may_have_slept: false,
            events: Vec::with_capacity(EVENTS_MAX),
            messages,
            ports: PortControl::default(),
            placement,
            reactors,
            polled_at: Nanos::ZERO,
            stopping: false,
            totals_logged: false,
        };
        transport.update_devices();
        transport
    }

    /// Takes in the devices that were added to the domains, and releases those that were removed.
    fn update_devices(&mut self) {
        self.connections.update_devices();
        if self.messages.index() != 0 {
            return;
        }
        let devices = self.connections.domains().devices();
        let is_used = |it: &P::Device| devices.iter().any(|device| device.index() == it.index());
        while let Some(place) = self.watched.iter().position(|it| !is_used(it)) {
            self.unwatch(place);
        }
        for device in devices {
            if self.watched.iter().any(|it| it.index() == device.index()) {
                continue;
            }
            let (flags, data) = (epoll::EventFlags::IN, Source::Device.data());
            let epoll = self.connections.epoll();
            if let Err(error) = epoll::add(epoll, device.descriptor(), data, flags) {
                // The connection manager reports its removal too.
                tracing::error!(device = device.name(), %error, "a device cannot be watched");
            }
            let events = self.connections.domains().events();
            events.begin(device.index(), DeviceUser::Nvme);
            self.watched.push(device);
        }
    }

    /// Releases a device whose events this reactor received.
    fn unwatch(&mut self, place: usize) {
        let removed = self.watched.swap_remove(place);
        let events = self.connections.domains().events();
        events.end(removed.index(), DeviceUser::Nvme);
        if let Err(error) = epoll::delete(self.connections.epoll(), removed.descriptor()) {
            tracing::debug!(%error, "the descriptor of a device was not watched any more");
        }
    }

    /// The memory that each connection holds. For tests and simulations.
    pub fn audit(&self) -> impl Iterator<Item = ConnectionAudit> {
        self.connections.audit()
    }

    /// Receives control messages from `port_messages` from now on. Their sender wakes this reactor.
    pub fn receive_port_messages(&mut self, port_messages: Receiver<PortMessage>) {
        self.ports.receive_from(port_messages);
    }

    /// Handles the events of the connection manager.
    fn poll_manager(&mut self, now: Nanos) -> u32 {
        let mut moved = 0;
        for _ in 0..REQUESTS_PER_POLL_MAX {
            match self.connections.next_event(now, &mut moved) {
                Some(Event::ConnectRequest { listener, request }) => {
                    moved += 1;
                    self.request(listener, request, now);
                }
                Some(Event::ListenerFailed { listener }) => {
                    self.connections.listeners().failed(listener, now);
                    self.count_listeners();
                    moved += self.check_devices(now);
                }
                // Handled by the set.
                Some(Event::Connection { .. }) => {}
                None => break,
            }
        }
        while let Some(device) = self.connections.take_removed() {
            let events = self.connections.domains().events();
            events.report_removal(device, DeviceUser::Nvme);
            for reactor in 0..self.messages.reactors() {
                self.notify_reactor(reactor, device, DeviceEvent::Fatal, now);
            }
        }
        moved
    }

    /// Checks whether a device was removed, which not every device reports, after the loss of a
    /// listener.
    fn check_devices(&mut self, now: Nanos) -> u32 {
        if self.messages.index() == 0 {
            return self.poll_devices(now);
        }
        if self.messages.send(0, Message::CheckDevices).is_err() {
            // Failed completions and the ends of connections show the removal too.
            tracing::error!("the loss of a listener cannot be passed on");
        }
        0
    }

    fn count_listeners(&mut self) {
        let down = self.connections.listeners().down();
        self.connections.counters().listeners_down.set(down as u64);
    }

    fn request(&mut self, listener: Token, request: P::ConnectRequest, now: Nanos) {
        let Some(port) = self.connections.listeners().port(listener) else {
            // Dropping the request rejects it.
            tracing::debug!(host = %request.peer_address(), "a request comes too late");
            return;
        };
        let Some(handoff) = self.connections.negotiate_request(request, port, now) else {
            return;
        };
        let Some(chosen) = self.placement.choose(&self.reactors, now) else {
            return self.connections.reject_unopened(handoff);
        };
        if chosen == self.messages.index() {
            return self.adopt(handoff, now);
        }
        if let Err(message) = self.messages.send(chosen, Message::Connect(handoff)) {
            // The ring is full, so that reactor already has hundreds of requests.
            self.placement.release(chosen);
            if let Message::Connect(handoff) = message {
                self.connections.reject_unopened(handoff);
            }
        }
    }

    fn adopt(&mut self, handoff: Handoff<P>, now: Nanos) {
        if self.stopping {
            self.placement.release(self.messages.index());
            return self.connections.reject_unopened(handoff);
        }
        if !self.connections.adopt(handoff, now) {
            return self.placement.release(self.messages.index());
        }
        self.connections.show_descriptors(|epoll, descriptor| {
            let flags = epoll::EventFlags::IN;
            if let Err(error) = epoll::add(epoll, descriptor, Source::Polled.data(), flags) {
                tracing::error!(%error, "a completion queue can not be watched");
            }
        });
    }

    /// Handles the events of devices and passes them on.
    fn poll_devices(&mut self, now: Nanos) -> u32 {
        let events = Arc::clone(self.connections.domains().events());
        let mut moved = 0;
        let mut index = 0;
        while let Some(device) = self.watched.get(index) {
            match events.next(device, DeviceUser::Nvme) {
                Some(event) => {
                    moved += 1;
                    self.device_event(index, event, now);
                }
                None => index += 1,
            }
        }
        moved
    }

    fn device_event(&mut self, index: usize, event: DeviceEvent, now: Nanos) {
        let device = self.watched[index].clone();
        let (name, number) = (device.name(), device.index());
        match event {
            DeviceEvent::PortUp(port) => tracing::info!(device = name, port, "a port is up"),
            DeviceEvent::PortDown(port) => tracing::warn!(device = name, port, "a port is down"),
            DeviceEvent::Fatal => tracing::error!(device = name, "a device failed"),
            DeviceEvent::QueuePair { .. }
            | DeviceEvent::ReceivesLow { .. }
            | DeviceEvent::SharedReceiveQueueFailed { .. }
            | DeviceEvent::CompletionQueueFailed { .. }
            | DeviceEvent::PortChanged(_)
            | DeviceEvent::Other(_) => tracing::debug!(device = name, ?event, "a device event"),
        }
        match event {
            DeviceEvent::QueuePair { token, .. }
            | DeviceEvent::ReceivesLow { token }
            | DeviceEvent::SharedReceiveQueueFailed { token }
            | DeviceEvent::CompletionQueueFailed { token } => {
                let reactor = usize::from(EventToken::from(token).reactor());
                self.notify_reactor(reactor, number, event, now);
            }
            DeviceEvent::PortUp(_)
            | DeviceEvent::PortDown(_)
            | DeviceEvent::Fatal
            | DeviceEvent::PortChanged(_)
            | DeviceEvent::Other(_) => {
                for reactor in 0..self.messages.reactors() {
                    self.notify_reactor(reactor, number, event, now);
                }
            }
        }
    }

    fn notify_reactor(
        &mut self,
        reactor: usize,
        device: DeviceIndex,
        event: DeviceEvent,
        now: Nanos,
    ) {
        if reactor == self.messages.index() {
            return self.take_device_event(device, event, now);
        }
        if reactor >= self.messages.reactors() {
            return;
        }
        if self
            .messages
            .send(reactor, Message::Device(device, event))
            .is_err()
        {
            // A lost event also shows as failed completions or as a timeout.
            tracing::error!(
                reactor,
                ?event,
                "an event of a device could not be passed on"
            );
        }
    }

    /// Handles an event of a device. Releases a device that was removed, since some drivers cannot
    /// be unloaded while a handle exists.
    fn take_device_event(&mut self, device: DeviceIndex, event: DeviceEvent, now: Nanos) {
        self.connections.device_event(device, event, now);
        if event != DeviceEvent::Fatal {
            return;
        }
        let found = self.watched.iter().position(|it| it.index() == device);
        if let Some(place) = found {
            self.unwatch(place);
        }
    }

    /// Handles the events that epoll reports.
    fn poll_epoll(&mut self, now: Nanos) -> u32 {
        self.turns_since_epoll = 0;
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let no_wait = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let buffer = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(self.connections.epoll(), buffer, Some(&no_wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll failed"),
        }
        let has = |source| {
            let mut sources = events.iter().map(|event| Source::from_data(event.data));
            sources.any(|found| found == source)
        };
        let (manager, device) = (has(Source::Manager), has(Source::Device));
        self.events = events;
        let mut moved = 0;
        if device || self.has_device_events() {
            moved += self.poll_devices(now);
        }
        if manager {
            moved += self.poll_manager(now);
        }
        moved
    }

    /// Whether another service has taken events of devices for this one.
    fn has_device_events(&self) -> bool {
        let events = self.connections.domains().events();
        !self.watched.is_empty() && events.has(DeviceUser::Nvme)
    }

    /// Logs the totals once, when the transport stops.
    fn log_totals(&mut self) {
        let counters = self.connections.counters();
        if std::mem::replace(&mut self.totals_logged, true) || counters.commands.get() == 0 {
            return;
        }
        tracing::info!(
            reactor = self.messages.index(),
            commands = counters.commands.get(),
            completions = counters.completions.get(),
            writes = counters.writes.get(),
            bytes_written = counters.bytes_written.get(),
            reads = counters.reads.get(),
            bytes_read = counters.bytes_read.get(),
            bytes_in_capsule = counters.bytes_in_capsule.get(),
            bytes_copied = counters.bytes_copied.get(),
            "NVMe/RDMA moved"
        );
    }

    fn take_messages(&mut self, now: Nanos) -> u32 {
        let mut moved = 0;
        while let Some((_, message)) = self.messages.recv_in_turn() {
            moved += 1;
            match message {
                Message::Connect(handoff) => self.adopt(handoff, now),
                Message::Device(device, event) => self.take_device_event(device, event, now),
                Message::CheckDevices => moved += self.poll_devices(now),
            }
        }
        moved
    }
}

impl<P: Provider> Ports for RdmaTransport<P> {
    type Listener = ListenAddress;
    type Settings = PortSettings;
    type Reply = Listened;
    type Handover = NoHandover;

    #[inline]
    fn port_control(&mut self) -> &mut PortControl<ListenAddress, PortSettings, Listened> {
        &mut self.ports
    }

    fn open_port(&mut self, address: ListenAddress, port: PortId) -> Listened {
        match address {
            ListenAddress::New(address) => self.connections.listeners().listen(address, port),
            ListenAddress::Known(address) => {
                let now = self.polled_at;
                self.connections
                    .listeners()
                    .listen_on_known(address, port, now);
                self.count_listeners();
                Ok(address)
            }
        }
    }

    fn set_ports(&mut self, ports: Vec<(PortId, PortSettings)>) {
        self.connections.set_ports(ports);
        self.update_devices();
        // A device may have been removed again before it was watched.
        self.poll_devices(self.polled_at);
    }

    fn stop_listening(&mut self, port: PortId) {
        self.connections.listeners().close_port(port);
        self.count_listeners();
    }

    fn close_connections(&mut self, port: PortId, now: Nanos) -> usize {
        self.connections.close_port(port, now)
    }

    fn hand_over(&mut self, message: NoHandover, _now: Nanos) {
        match message {}
    }
}

impl<P: Provider> Poller for RdmaTransport<P> {
    fn name(&self) -> &str {
        "nvme-rdma"
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        self.polled_at = now;
        let mut moved = self.take_messages(now) + self.poll_ports(now);
        moved += self.connections.begin_turn(now);
        moved += self.connections.poll_completions(now);
        moved += self.connections.dispatch(now);
        self.turns_since_epoll += 1;
        if std::mem::take(&mut self.may_have_slept) || self.turns_since_epoll >= TURNS_PER_EPOLL {
            moved += self.poll_epoll(now);
        }
        self.connections.expire(now);
        if self.connections.listeners().listen_again(now) {
            self.count_listeners();
        }
        Progress::from_count(moved as usize)
    }

    fn flush(&mut self, now: Nanos) {
        self.connections.take_responses(now);
        self.connections.flush(now);
        for _ in 0..self.connections.take_ended() {
            self.placement.release(self.messages.index());
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.connections.next_deadline()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.connections.epoll())
    }

    fn prepare_sleep(&mut self) -> bool {
        let is_idle = !self.connections.has_pending() && self.messages.is_empty();
        if !is_idle || self.ports.has_messages() || self.has_device_events() {
            return false;
        }
        if !self.connections.prepare_sleep(self.polled_at) {
            return false;
        }
        self.may_have_slept = true;
        true
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        self.stopping = true;
        self.connections.listeners().close();
        match self.connections.drain(now) {
            0 => {
                self.log_totals();
                StopState::Stopped
            }
            open => StopState::Outstanding(open as u32),
        }
    }
}
