//! The connection manager: listeners, requests, responses and events.

use std::io;
use std::net::SocketAddr;

use crate::fake::faults::{ConnectFault, FaultPoint};
use crate::fake::state::{
    IdState, InTransit, ListenerState, PendingEvent, Stage, State, TransitMessage,
};
use crate::fake::table::Key;
use rdma::{
    ACCEPT_PRIVATE_DATA_MAX, CONNECT_PRIVATE_DATA_MAX, ConnectParameters, ConnectionEvent,
    DeviceEvent, Error, PrivateData, QueuePairState, REJECT_PRIVATE_DATA_MAX, RejectReason, Token,
    Unavailable,
};

/// Ticks until a queue pair's number may be used again.
const TIMEWAIT_TICKS: u64 = 4;

/// Side of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Active,
    Passive,
}

/// An event for the owner of a channel.
#[expect(
    clippy::large_enum_variant,
    reason = "connection events are few, and not kept"
)]
pub(super) enum DeliveredEvent {
    Request {
        listener: Token,
        id: Key,
    },
    ListenerFailed {
        listener: Token,
    },
    Connection {
        token: Token,
        event: ConnectionEvent,
    },
}

fn system(step: &'static str, kind: io::ErrorKind) -> Error {
    Error::System {
        step,
        source: kind.into(),
    }
}

/// Private data of a message of `max` bytes, padded as with RoCE.
fn padded(bytes: &[u8], max: usize) -> Result<PrivateData, Error> {
    if bytes.len() > max {
        return Err(Error::PrivateDataTooLong {
            len: bytes.len(),
            limit: max,
        });
    }
    let mut message = [0; ACCEPT_PRIVATE_DATA_MAX];
    message[..bytes.len()].copy_from_slice(bytes);
    Ok(PrivateData::new(&message[..max]))
}

impl State {
    /// Executes one tick: delivers messages in transit, and executes requests.
    pub(super) fn pass_time(&mut self) {
        self.tick += 1;
        self.deliver_due();
        self.run(self.config.execution_mode.is_immediate());
    }

    /// Sends a message, which takes no time with the immediate pace and one tick with the manual
    /// one.
    fn send_transit(&mut self, transit: TransitMessage, more_ticks: u64) {
        let least = u64::from(!self.config.execution_mode.is_immediate());
        let due = self.tick + least + more_ticks;
        self.in_transit.push(InTransit { due, transit });
        if due <= self.tick {
            self.deliver_due();
        }
    }

    fn send_event(&mut self, id: Key, event: ConnectionEvent) {
        self.send_transit(TransitMessage::Event { id, event }, 0);
    }

    fn deliver_due(&mut self) {
        while let Some(at) = (self.in_transit.iter()).position(|one| one.due <= self.tick) {
            match self.in_transit.remove(at).transit {
                TransitMessage::Request { id } => self.deliver_request(id),
                TransitMessage::Event { id, event } => self.deliver_event(id, event),
            }
        }
    }

    fn deliver_event(&mut self, id: Key, event: ConnectionEvent) {
        let channel = self.ids.get(id).and_then(|id| id.channel);
        if let Some(channel) = channel.and_then(|channel| self.channels.get_mut(channel)) {
            channel
                .events
                .push_back(PendingEvent::Connection { id, event });
            channel.notifier.notify();
        }
    }

    /// Delivers a connection request to a listener, or rejects it.
    fn deliver_request(&mut self, active: Key) {
        let Some(from) = self.ids.get(active) else {
            return;
        };
        let (Some(peer), Some(local), Some(device)) = (from.peer_address, from.local, from.device)
        else {
            return;
        };
        let reached = (0..self.machines.len())
            .find_map(|machine| Some((machine, self.device_at(machine, peer.ip())?)));
        let reached = reached.filter(|(_, there)| self.device_works(*there));
        let Some((machine, there)) = reached.filter(|_| self.device_works(device)) else {
            return self.deliver_event(active, ConnectionEvent::Unreachable);
        };
        let rejected = |reason| ConnectionEvent::Rejected {
            reason,
            private_data: padded(&[], REJECT_PRIVATE_DATA_MAX).unwrap_or(PrivateData::EMPTY),
        };
        let listener = self.listeners.iter().find(|(_, listener)| {
            let to = listener.address;
            let address = to.ip().is_unspecified() || to.ip() == peer.ip();
            listener.machine == machine && to.port() == peer.port() && address
        });
        let Some((listener, state)) = listener else {
            return self.deliver_event(active, rejected(RejectReason::NO_LISTENER));
        };
        if state.waiting >= state.backlog {
            return self.deliver_event(active, rejected(RejectReason::BY_CONSUMER));
        }
        let channel = state.channel;
        let Some(from) = self.ids.get(active) else {
            return;
        };
        let limits = self.devices.get(there).map(|device| &device.limits);
        let (incoming, outgoing) = limits.map_or((0, 0), |limits| {
            (limits.reads_incoming, limits.reads_outgoing)
        });
        let passive = IdState {
            machine,
            channel: None,
            token: Token::default(),
            device: Some(there),
            local: Some(peer),
            peer_address: Some(local),
            stage: Stage::Requested,
            queue_pair: None,
            partner: Some(active),
            private_data: from.private_data,
            // Each side's depths are the other's, exchanged.
            initiator_depth: from.responder_resources.min(outgoing),
            responder_resources: from.initiator_depth.min(incoming),
            retries: from.retries,
            rnr_retries: 0,
        };
        let id = self.ids.insert(passive);
        if let Some(active) = self.ids.get_mut(active) {
            active.partner = Some(id);
        }
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.waiting += 1;
        }
        if let Some(channel) = self.channels.get_mut(channel) {
            channel
                .events
                .push_back(PendingEvent::Request { listener, id });
            channel.notifier.notify();
        }
    }

    /// The next event of a channel. Events of dropped objects are skipped.
    pub(super) fn take_event(&mut self, channel: Key) -> Option<DeliveredEvent> {
        loop {
            let events = &mut self.channels.get_mut(channel)?.events;
            let Some(notice) = events.pop_front() else {
                let channel = self.channels.get(channel)?;
                channel.notifier.clear();
                return None;
            };
            match notice {
                PendingEvent::Request { listener, id } => {
                    let Some(listener) = self.listeners.get_mut(listener) else {
                        self.drop_id(id);
                        continue;
                    };
                    listener.waiting -= 1;
                    let listener = listener.token;
                    return Some(DeliveredEvent::Request { listener, id });
                }
                PendingEvent::ListenerFailed { listener } => {
                    return Some(DeliveredEvent::ListenerFailed { listener });
                }
                PendingEvent::Connection { id, event } => {
                    let Some(state) = self.ids.get(id) else {
                        continue;
                    };
                    let token = state.token;
                    self.event_taken(id, &event);
                    return Some(DeliveredEvent::Connection { token, event });
                }
            }
        }
    }

    /// Updates the connection when its owner takes an event.
    fn event_taken(&mut self, id: Key, event: &ConnectionEvent) {
        let Some(state) = self.ids.get_mut(id) else {
            return;
        };
        match event {
            ConnectionEvent::AddressResolved => state.stage = Stage::AddressResolved,
            ConnectionEvent::RouteResolved => state.stage = Stage::RouteResolved,
            ConnectionEvent::AddressFailed(_)
            | ConnectionEvent::RouteFailed(_)
            | ConnectionEvent::Rejected { .. }
            | ConnectionEvent::Unreachable
            | ConnectionEvent::ConnectFailed(_) => state.stage = Stage::Closed,
            ConnectionEvent::Established { .. } if state.stage == Stage::Answered => {
                state.stage = Stage::Established;
                let (queue_pair, partner) = (state.queue_pair, state.partner);
                if let Some(at) = queue_pair
                    && let Some(queue_pair) = self.queue_pairs.get_mut(at)
                    && queue_pair.state == QueuePairState::ReadyToReceive
                {
                    queue_pair.state = QueuePairState::ReadyToSend;
                    self.list(at);
                }
                if let Some(partner) = partner {
                    self.confirm(partner);
                }
            }
            ConnectionEvent::Established { .. } => state.stage = Stage::Established,
            ConnectionEvent::Disconnected | ConnectionEvent::DeviceRemoved => {
                state.stage = Stage::Closed;
                if let Some(queue_pair) = state.queue_pair {
                    self.fail_queue_pair(queue_pair);
                }
            }
            ConnectionEvent::AddressChanged
            | ConnectionEvent::TimewaitExit
            | ConnectionEvent::Other { .. } => {}
        }
    }

    /// The active side has taken the accept: notifies the passive side.
    fn confirm(&mut self, passive: Key) {
        let Some(state) = self.ids.get(passive) else {
            return;
        };
        if state.stage != Stage::Accepted {
            return;
        }
        let event = ConnectionEvent::Established {
            private_data: PrivateData::EMPTY,
            initiator_depth: state.initiator_depth,
            responder_resources: state.responder_resources,
        };
        self.send_event(passive, event);
    }

    pub(super) fn listen(
        &mut self,
        channel: Key,
        mut address: SocketAddr,
        backlog: u32,
        token: Token,
    ) -> Result<(Key, SocketAddr), Error> {
        let machine = (self.channels.get(channel))
            .map(|channel| channel.machine)
            .ok_or(Error::Misuse("the channel is gone"))?;
        let anywhere = address.ip().is_unspecified();
        if !anywhere && self.device_at(machine, address.ip()).is_none() {
            return Err(Unavailable::NotOnDevice { address }.into());
        }
        if address.port() == 0 {
            address.set_port(self.free_port());
        }
        let taken = self.listeners.iter().any(|(_, other)| {
            let there = other.address;
            let overlap = anywhere || there.ip().is_unspecified() || there.ip() == address.ip();
            other.machine == machine && there.port() == address.port() && overlap
        });
        if taken {
            return Err(system("rdma_bind_addr", io::ErrorKind::AddrInUse));
        }
        let listener = self.listeners.insert(ListenerState {
            machine,
            channel,
            token,
            address,
            backlog: backlog.max(1),
            waiting: 0,
        });
        Ok((listener, address))
    }

    fn free_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = if port == u16::MAX { 20_000 } else { port + 1 };
        port
    }

    pub(super) fn drop_listener(&mut self, key: Key) {
        let Some(listener) = self.listeners.remove(key) else {
            return;
        };
        let Some(channel) = self.channels.get_mut(listener.channel) else {
            return;
        };
        let mut waiting = Vec::new();
        channel.events.retain(|notice| match notice {
            PendingEvent::Request { listener, id } if *listener == key => {
                waiting.push(*id);
                false
            }
            PendingEvent::Request { .. }
            | PendingEvent::ListenerFailed { .. }
            | PendingEvent::Connection { .. } => true,
        });
        for id in waiting {
            self.drop_id(id);
        }
    }

    /// Drops a channel: its pending requests are rejected.
    pub(super) fn drop_channel(&mut self, key: Key) {
        let Some(channel) = self.channels.remove(key) else {
            return;
        };
        for notice in channel.events {
            if let PendingEvent::Request { id, .. } = notice {
                self.drop_id(id);
            }
        }
    }

    pub(super) fn create_id(&mut self, channel: Key, token: Token) -> Result<Key, Error> {
        let machine = (self.channels.get(channel))
            .map(|channel| channel.machine)
            .ok_or(Error::Misuse("the channel is gone"))?;
        Ok(self.ids.insert(IdState {
            machine,
            channel: Some(channel),
            token,
            device: None,
            local: None,
            peer_address: None,
            stage: Stage::Idle,
            queue_pair: None,
            partner: None,
            private_data: PrivateData::EMPTY,
            initiator_depth: 0,
            responder_resources: 0,
            retries: 0,
            rnr_retries: 0,
        }))
    }

    /// A connection that must be in one of these stages.
    fn id_at(&mut self, id: Key, stages: &[Stage]) -> Result<&mut IdState, Error> {
        let state = self.ids.get_mut(id);
        let state = state.ok_or(Error::Misuse("the connection is gone"))?;
        if !stages.contains(&state.stage) {
            return Err(Error::Misuse("the connection is not at that stage"));
        }
        Ok(state)
    }

    pub(super) fn resolve_address(
        &mut self,
        id: Key,
        source: Option<SocketAddr>,
        peer: SocketAddr,
    ) -> Result<(), Error> {
        let machine = self.id_at(id, &[Stage::Idle])?.machine;
        let device = match source {
            Some(address) => match self.device_at(machine, address.ip()) {
                Some(device) => Some(device),
                None => return Err(Unavailable::NotOnDevice { address }.into()),
            },
            // An address of this machine is reached through the device that has it.
            None => (self.device_at(machine, peer.ip())).or_else(|| {
                let devices = &self.machines.get(machine)?.devices;
                let family = peer.is_ipv4();
                devices.iter().copied().find(|key| {
                    self.devices.get(*key).is_some_and(|one| {
                        !one.removed && one.addresses.iter().any(|own| own.is_ipv4() == family)
                    })
                })
            }),
        };
        let eligible = |fault: &ConnectFault| matches!(fault, ConnectFault::AddressFailed(_));
        let fault =
            self.connect_faults
                .choose(&mut self.random, FaultPoint::connecting(machine), eligible);
        let known = (0..self.machines.len()).any(|one| self.device_at(one, peer.ip()).is_some());
        let local_ip = device.and_then(|device| {
            let addresses = &self.devices.get(device)?.addresses;
            let of_family = |own: &&std::net::IpAddr| own.is_ipv4() == peer.is_ipv4();
            match source {
                Some(source) => Some(source.ip()),
                None if addresses.contains(&peer.ip()) => Some(peer.ip()),
                None => addresses.iter().find(of_family).copied(),
            }
        });
        let port = match source {
            Some(source) if source.port() != 0 => source.port(),
            _ => self.free_port(),
        };
        let state = self.id_at(id, &[Stage::Idle])?;
        state.stage = Stage::ResolvingAddress;
        state.peer_address = Some(peer);
        let event = match (fault, local_ip) {
            (Some(ConnectFault::AddressFailed(kind)), _) => ConnectionEvent::AddressFailed(kind),
            (_, Some(ip)) if known => {
                state.device = device;
                state.local = Some(SocketAddr::new(ip, port));
                ConnectionEvent::AddressResolved
            }
            _ => ConnectionEvent::AddressFailed(io::ErrorKind::HostUnreachable),
        };
        self.send_event(id, event);
        Ok(())
    }

    pub(super) fn resolve_route(&mut self, id: Key) -> Result<(), Error> {
        let state = self.id_at(id, &[Stage::AddressResolved])?;
        state.stage = Stage::ResolvingRoute;
        let (machine, device) = (state.machine, state.device);
        let eligible = |fault: &ConnectFault| matches!(fault, ConnectFault::RouteFailed(_));
        let fault =
            self.connect_faults
                .choose(&mut self.random, FaultPoint::connecting(machine), eligible);
        let works = device.is_some_and(|device| self.device_works(device));
        let event = match fault {
            Some(ConnectFault::RouteFailed(kind)) => ConnectionEvent::RouteFailed(kind),
            _ if !works => ConnectionEvent::RouteFailed(io::ErrorKind::HostUnreachable),
            _ => ConnectionEvent::RouteResolved,
        };
        self.send_event(id, event);
        Ok(())
    }

    /// Sets a side's depths and applies them to its queue pair, which may then receive.
    fn prepare(
        &mut self,
        id: Key,
        role: Role,
        parameters: &ConnectParameters<'_>,
    ) -> Result<(), Error> {
        let stage = match role {
            Role::Active => Stage::RouteResolved,
            Role::Passive => Stage::Requested,
        };
        let state = self.id_at(id, &[stage])?;
        if state.queue_pair.is_none() {
            return Err(Error::Misuse("the connection has no queue pair yet"));
        }
        if parameters.retries > 7 || parameters.rnr_retries > 7 {
            return Err(Error::Misuse("retries are 0 to 7"));
        }
        state.initiator_depth = parameters.initiator_depth;
        state.responder_resources = parameters.responder_resources;
        state.rnr_retries = parameters.rnr_retries;
        if role == Role::Active {
            state.retries = parameters.retries;
        }
        Ok(())
    }

    fn set_queue_pair(&mut self, id: Key, to: QueuePairState) {
        let Some(state) = self.ids.get(id) else {
            return;
        };
        let peer = state.partner.and_then(|partner| self.ids.get(partner));
        let (peer, rnr_retries) =
            peer.map_or((None, 0), |peer| (peer.queue_pair, peer.rnr_retries));
        if let Some(at) = state.queue_pair
            && let Some(queue_pair) = self.queue_pairs.get_mut(at)
            && queue_pair.state != QueuePairState::Error
        {
            queue_pair.state = to;
            queue_pair.peer = peer;
            queue_pair.initiator_depth = state.initiator_depth;
            queue_pair.responder_resources = state.responder_resources;
            queue_pair.retries = state.retries;
            // Each side sets the retry count of the other.
            queue_pair.rnr_retries = rnr_retries;
        }
    }

    pub(super) fn connect(
        &mut self,
        id: Key,
        parameters: &ConnectParameters<'_>,
    ) -> Result<(), Error> {
        let private_data = padded(parameters.private_data, CONNECT_PRIVATE_DATA_MAX)?;
        self.prepare(id, Role::Active, parameters)?;
        let state = self.id_at(id, &[Stage::RouteResolved])?;
        state.stage = Stage::Connecting;
        state.private_data = private_data;
        let machine = state.machine;
        let eligible = |fault: &ConnectFault| {
            !matches!(
                fault,
                ConnectFault::AddressFailed(_) | ConnectFault::RouteFailed(_)
            )
        };
        let fault =
            self.connect_faults
                .choose(&mut self.random, FaultPoint::connecting(machine), eligible);
        match fault {
            Some(ConnectFault::Unreachable) => self.send_event(id, ConnectionEvent::Unreachable),
            Some(ConnectFault::Rejected(reason)) => {
                let private_data = padded(&[], REJECT_PRIVATE_DATA_MAX)?;
                let event = ConnectionEvent::Rejected {
                    reason,
                    private_data,
                };
                self.send_event(id, event);
            }
            Some(ConnectFault::Delay(ticks)) => {
                self.send_transit(TransitMessage::Request { id }, ticks.into());
            }
            Some(ConnectFault::AddressFailed(_) | ConnectFault::RouteFailed(_)) | None => {
                self.send_transit(TransitMessage::Request { id }, 0);
            }
        }
        Ok(())
    }

    pub(super) fn accept(
        &mut self,
        id: Key,
        parameters: &ConnectParameters<'_>,
    ) -> Result<(), Error> {
        let private_data = padded(parameters.private_data, ACCEPT_PRIVATE_DATA_MAX)?;
        self.prepare(id, Role::Passive, parameters)?;
        let state = self.id_at(id, &[Stage::Requested])?;
        state.stage = Stage::Accepted;
        let partner = state.partner;
        let active = partner.filter(|active| {
            let state = self.ids.get(*active);
            state.is_some_and(|active| active.stage == Stage::Connecting)
        });
        let Some(active) = active else {
            let event = ConnectionEvent::ConnectFailed(io::ErrorKind::ConnectionReset);
            self.send_event(id, event);
            return Ok(());
        };
        if let Some(state) = self.ids.get_mut(active) {
            state.stage = Stage::Answered;
        }
        self.set_queue_pair(id, QueuePairState::ReadyToSend);
        self.set_queue_pair(active, QueuePairState::ReadyToReceive);
        let event = ConnectionEvent::Established {
            private_data,
            initiator_depth: parameters.responder_resources,
            responder_resources: parameters.initiator_depth,
        };
        self.send_event(active, event);
        Ok(())
    }

    pub(super) fn reject(&mut self, id: Key, private_data: &[u8]) -> Result<(), Error> {
        let reply = padded(private_data, REJECT_PRIVATE_DATA_MAX);
        let state = self.id_at(id, &[Stage::Requested])?;
        state.stage = Stage::Closed;
        let partner = state.partner.take();
        let event = ConnectionEvent::Rejected {
            reason: RejectReason::BY_CONSUMER,
            private_data: match &reply {
                Ok(data) => *data,
                Err(_) => padded(&[], REJECT_PRIVATE_DATA_MAX)?,
            },
        };
        if let Some(active) = partner
            && self.id_at(active, &[Stage::Connecting]).is_ok()
        {
            self.send_event(active, event);
        }
        reply.map(|_| ())
    }

    pub(super) fn disconnect(&mut self, id: Key) {
        let connected = [Stage::Accepted, Stage::Answered, Stage::Established];
        let Ok(state) = self.id_at(id, &connected) else {
            return;
        };
        state.stage = Stage::Closed;
        let (queue_pair, partner) = (state.queue_pair, state.partner);
        if let Some(queue_pair) = queue_pair {
            self.fail_queue_pair(queue_pair);
        }
        self.notify_disconnected(id);
        let is_heard = !queue_pair.is_some_and(|key| self.has_partition(key));
        if let Some(partner) = partner
            && is_heard
            && self.id_at(partner, &connected).is_ok()
        {
            self.notify_disconnected(partner);
        }
    }

    fn notify_disconnected(&mut self, id: Key) {
        self.send_event(id, ConnectionEvent::Disconnected);
        let event = ConnectionEvent::TimewaitExit;
        self.send_transit(TransitMessage::Event { id, event }, TIMEWAIT_TICKS);
    }

    /// Breaks the connection of a queue pair and notifies both sides.
    pub(super) fn drop_connection(&mut self, queue_pair: Key) {
        let uses = |id: &IdState| id.queue_pair == Some(queue_pair);
        let found = self.ids.iter().find(|(_, id)| uses(id)).map(|(id, _)| id);
        if let Some(id) = found {
            self.disconnect(id);
        }
        self.fail_queue_pair(queue_pair);
    }

    /// Drops a connection: its peer is notified, and its pending events are discarded.
    pub(super) fn drop_id(&mut self, id: Key) {
        if self.id_at(id, &[Stage::Requested]).is_ok() {
            // Cannot fail: there is no private data.
            let _ = self.reject(id, &[]);
        }
        self.disconnect(id);
        self.ids.remove(id);
    }

    pub(super) fn notify_connections(&mut self, device: Key, event: ConnectionEvent) {
        let ids: Vec<Key> = (self.ids.iter())
            .filter_map(|(key, id)| (id.device == Some(device)).then_some(key))
            .collect();
        for id in ids {
            self.send_event(id, event);
        }
    }

    /// Ends everything on a device. `tells`: whether its driver also reports a device event.
    pub(super) fn remove_device(&mut self, device: Key, tells: bool) {
        let Some(state) = self.devices.get_mut(device) else {
            return;
        };
        if std::mem::replace(&mut state.removed, true) {
            return;
        }
        if tells {
            state.push_event(DeviceEvent::Fatal);
        } else {
            // Only whoever looks finds it.
            state.events.push_back(DeviceEvent::Fatal);
        }
        let (machine, addresses) = (state.machine, state.addresses.clone());
        let on_device: Vec<Key> = (self.queue_pairs.iter())
            .filter_map(|(key, one)| (one.device == device).then_some(key))
            .collect();
        for queue_pair in on_device {
            self.fail_queue_pair(queue_pair);
        }
        self.notify_connections(device, ConnectionEvent::DeviceRemoved);
        let listeners: Vec<Key> = (self.listeners.iter())
            .filter_map(|(key, one)| {
                let here = one.machine == machine && addresses.contains(&one.address.ip());
                here.then_some(key)
            })
            .collect();
        for key in listeners {
            let Some(listener) = self.listeners.get(key) else {
                continue;
            };
            let (channel, token) = (listener.channel, listener.token);
            self.drop_listener(key);
            if let Some(channel) = self.channels.get_mut(channel) {
                channel
                    .events
                    .push_back(PendingEvent::ListenerFailed { listener: token });
                channel.notifier.notify();
            }
        }
    }
}
