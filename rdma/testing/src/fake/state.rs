//! The state of the fabric, protected by one lock.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::fake::counters::{FakeCounters, Operation};
use crate::fake::faults::{ConnectFault, Fault, Rules};
use crate::fake::memory::{Keys, Views};
use crate::fake::notifier::Notifier;
use crate::fake::random::Random;
use crate::fake::table::{Key, Table};
use crate::fake::{DeviceConfig, FabricConfig};
use rdma::{
    ConnectionEvent, DeviceEvent, DeviceIndex, DeviceLimits, Error, PrivateData, QueuePairFault,
    QueuePairState, ReceiveRequest, RemoteAddress, SendOperation, SgeList, Token, WorkCompletion,
};

/// The largest number of inline bytes of a send request.
pub(super) const INLINE_BYTES_MAX: usize = 128;

#[derive(Debug)]
pub(super) struct State {
    pub(super) config: FabricConfig,
    pub(super) tick: u64,
    pub(super) random: Random,
    pub(super) machines: Vec<Machine>,
    pub(super) devices: Table<DeviceState>,
    pub(super) domains: Table<DomainState>,
    pub(super) keys: Keys,
    pub(super) views: Views,
    pub(super) completion_queues: Table<CompletionQueueState>,
    pub(super) shared_receives: Table<SharedReceiveState>,
    pub(super) queue_pairs: Table<QueuePairObject>,
    /// Number of queue pairs that the device will refuse to destroy.
    pub(super) destructions_refused: u32,
    /// Queue pairs with requests to execute or complete, each once.
    pub(super) active: Vec<Key>,
    /// Reusable storage for the next list of active queue pairs.
    pub(super) active_spare: Vec<Key>,
    pub(super) channels: Table<ChannelState>,
    pub(super) listeners: Table<ListenerState>,
    pub(super) ids: Table<IdState>,
    pub(super) in_transit: Vec<InTransit>,
    pub(super) faults: Rules<Fault>,
    pub(super) connect_faults: Rules<ConnectFault>,
    pub(super) next_port: u16,
    pub(super) next_number: u32,
}

#[derive(Debug, Default)]
pub(super) struct Machine {
    pub(super) devices: Vec<Key>,
    pub(super) counters: FakeCounters,
}

#[derive(Debug)]
pub(super) struct DeviceState {
    pub(super) machine: usize,
    pub(super) index: DeviceIndex,
    pub(super) name: Arc<str>,
    pub(super) limits: Arc<DeviceLimits>,
    pub(super) inline_bytes: u32,
    pub(super) registers_device_memory: bool,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) up: bool,
    pub(super) removed: bool,
    pub(super) events: VecDeque<DeviceEvent>,
    pub(super) notifier: Arc<Notifier>,
}

impl DeviceState {
    pub(super) fn works(&self) -> bool {
        self.up && !self.removed
    }

    pub(super) fn push_event(&mut self, event: DeviceEvent) {
        self.events.push_back(event);
        self.notifier.notify();
    }
}

#[derive(Debug)]
pub(super) struct DomainState {
    pub(super) device: Key,
}

/// A completion, and the queue entries that polling it frees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) completion: WorkCompletion,
    pub(super) queue_pair: Key,
    pub(super) sends: u32,
    /// The queue that a receive was taken from.
    pub(super) receive: Option<ReceiveSource>,
}

/// Source of a queue pair's receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveSource {
    Own,
    Shared(Key),
}

/// Which completions notify a completion queue's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Armed {
    No,
    Any,
    Solicited,
}

#[derive(Debug)]
pub(super) struct CompletionQueueState {
    pub(super) device: Key,
    pub(super) token: Token,
    pub(super) entries: usize,
    pub(super) ring: VecDeque<Entry>,
    pub(super) armed: Armed,
    pub(super) failed: bool,
    pub(super) notifier: Arc<Notifier>,
}

#[derive(Debug)]
pub(super) struct SharedReceiveState {
    pub(super) domain: Key,
    pub(super) token: Token,
    pub(super) receives: ReceiveRing,
    pub(super) low_limit: u32,
}

/// Posted receives, and the count of entries in use.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    pub(super) posted: VecDeque<ReceiveRequest>,
    /// Entries that are posted, or completed and not polled.
    pub(super) taken: u32,
    pub(super) requests: u32,
}

impl ReceiveRing {
    pub(super) fn new(requests: u32) -> Self {
        Self {
            posted: VecDeque::with_capacity(requests as usize),
            taken: 0,
            requests,
        }
    }
}

/// The operation of a send request, including window bindings.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Send(SendOperation),
    Bind {
        rkey: u32,
        lkey: u32,
        address: u64,
        length: u64,
        remote_read: bool,
        remote_write: bool,
    },
}

impl Action {
    pub(super) fn operation(&self) -> Operation {
        match self {
            Self::Send(SendOperation::Send) => Operation::Send,
            Self::Send(SendOperation::SendWithInvalidate { .. }) => Operation::SendWithInvalidate,
            Self::Send(SendOperation::Write(_)) => Operation::Write,
            Self::Send(SendOperation::Read(_)) => Operation::Read,
            Self::Send(SendOperation::LocalInvalidate { .. }) => Operation::LocalInvalidate,
            Self::Bind { .. } => Operation::BindWindow,
        }
    }

    pub(super) fn remote(&self) -> Option<RemoteAddress> {
        match *self {
            Self::Send(SendOperation::Write(remote) | SendOperation::Read(remote)) => Some(remote),
            Self::Send(_) | Self::Bind { .. } => None,
        }
    }
}

/// A send request in a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendEntry {
    pub(super) wr_id: u64,
    pub(super) action: Action,
    pub(super) memory: SgeList,
    pub(super) inline: [u8; INLINE_BYTES_MAX],
    /// Number of inline bytes; `None` if the bytes are in memory.
    pub(super) inline_len: Option<u8>,
    pub(super) signalled: bool,
    pub(super) solicited: bool,
}

/// Progress of the first request of a send queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Head {
    /// Faults were looked up.
    pub(super) faults_checked: bool,
    /// Not executed before this tick.
    pub(super) blocked_until: u64,
    /// The peer counts as not ready before this tick, even with receives posted.
    pub(super) not_ready_until: u64,
    /// Tries to which the peer did not respond.
    pub(super) retries: u32,
    /// Tries that found no receive.
    pub(super) rnr_retries: u32,
    /// The tick of the next counted try.
    pub(super) next_try: u64,
    /// Executed with this many bytes; the completion is delayed.
    pub(super) executed: Option<u32>,
    /// The device is stuck on it; see [`Fault::Wedge`](super::faults::Fault::Wedge).
    pub(super) wedged: bool,
}

#[derive(Debug)]
pub(super) struct QueuePairObject {
    pub(super) number: u32,
    pub(super) machine: usize,
    pub(super) device: Key,
    pub(super) domain: Key,
    pub(super) token: Token,
    pub(super) state: QueuePairState,
    pub(super) peer: Option<Key>,
    pub(super) send_completions: Key,
    pub(super) receive_completions: Key,
    pub(super) source: ReceiveSource,
    pub(super) sends: VecDeque<SendEntry>,
    /// Entries of the send queue that are posted, or completed and not polled.
    pub(super) sends_in_use: u32,
    pub(super) sends_max: u32,
    /// Unsignalled requests executed since the last signalled one.
    pub(super) unsignalled: u32,
    pub(super) head: Head,
    pub(super) receives: ReceiveRing,
    pub(super) listed: bool,
    /// Remote addresses of the reads that this queue pair served, if they are recorded.
    pub(super) reads_served: Option<Vec<u64>>,
    /// No request starts before this tick.
    pub(super) stalled_until: u64,
    /// Nothing is exchanged with the peer.
    pub(super) is_partitioned: bool,
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
}

#[derive(Debug)]
pub(super) struct ChannelState {
    pub(super) machine: usize,
    pub(super) events: VecDeque<PendingEvent>,
    pub(super) notifier: Arc<Notifier>,
}

/// A pending event in a channel.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "connection events are few, and not kept"
)]
pub(super) enum PendingEvent {
    Request { listener: Key, id: Key },
    ListenerFailed { listener: Token },
    Connection { id: Key, event: ConnectionEvent },
}

/// A message in transit.
#[derive(Debug)]
pub(super) struct InTransit {
    pub(super) due: u64,
    pub(super) transit: TransitMessage,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "connection events are few, and not kept"
)]
pub(super) enum TransitMessage {
    /// A request to the listener at the address at the time of arrival.
    Request { id: Key },
    /// An event to the channel that the connection has at the time of arrival.
    Event { id: Key, event: ConnectionEvent },
}

#[derive(Debug)]
pub(super) struct ListenerState {
    pub(super) machine: usize,
    pub(super) channel: Key,
    pub(super) token: Token,
    pub(super) address: SocketAddr,
    pub(super) backlog: u32,
    /// Requests not yet taken.
    pub(super) waiting: u32,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    ResolvingAddress,
    AddressResolved,
    ResolvingRoute,
    RouteResolved,
    /// Active side: the request was sent.
    Connecting,
    /// Passive side: the request was received.
    Requested,
    /// Passive side: the accept was sent.
    Accepted,
    /// Active side: the accept was received, but the event was not taken yet.
    Answered,
    Established,
    Closed,
}

/// A connection of the connection manager.
#[derive(Debug)]
pub(super) struct IdState {
    pub(super) machine: usize,
    /// `None` while the request is not yet turned into a connection.
    pub(super) channel: Option<Key>,
    pub(super) token: Token,
    pub(super) device: Option<Key>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer_address: Option<SocketAddr>,
    pub(super) stage: Stage,
    pub(super) queue_pair: Option<Key>,
    pub(super) partner: Option<Key>,
    /// Passive side: private data of the request.
    pub(super) private_data: PrivateData,
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
}

impl State {
    pub(super) fn new(config: FabricConfig) -> Self {
        Self {
            tick: 0,
            random: Random::new(config.seed),
            config,
            machines: Vec::new(),
            devices: Table::default(),
            domains: Table::default(),
            keys: Keys::default(),
            views: Views::default(),
            completion_queues: Table::default(),
            shared_receives: Table::default(),
            queue_pairs: Table::default(),
            destructions_refused: 0,
            active: Vec::new(),
            active_spare: Vec::new(),
            channels: Table::default(),
            listeners: Table::default(),
            ids: Table::default(),
            in_transit: Vec::new(),
            faults: Rules::default(),
            connect_faults: Rules::default(),
            next_port: 20_000,
            next_number: 16,
        }
    }

    /// Adds a device to a machine.
    pub(super) fn add_device(
        &mut self,
        machine: usize,
        config: &DeviceConfig,
    ) -> Result<(), Error> {
        let place = self.machines[machine].devices.len();
        let key = self.devices.insert(DeviceState {
            machine,
            index: DeviceIndex(place as u16),
            name: config.name.as_str().into(),
            limits: Arc::new(config.limits),
            inline_bytes: config.inline_bytes.min(INLINE_BYTES_MAX as u32),
            registers_device_memory: config.registers_device_memory,
            addresses: config.addresses.clone(),
            up: true,
            removed: false,
            events: VecDeque::new(),
            notifier: Arc::new(Notifier::new()?),
        });
        self.machines[machine].devices.push(key);
        Ok(())
    }

    /// Whether a tick would change something.
    pub(super) fn is_waiting(&self) -> bool {
        !self.active.is_empty() || !self.in_transit.is_empty()
    }

    /// The device of a machine that has this address.
    pub(super) fn device_at(&self, machine: usize, address: IpAddr) -> Option<Key> {
        let devices = &self.machines.get(machine)?.devices;
        devices.iter().copied().find(|key| {
            let device = self.devices.get(*key);
            device.is_some_and(|one| !one.removed && one.addresses.contains(&address))
        })
    }

    pub(super) fn device_works(&self, device: Key) -> bool {
        self.devices.get(device).is_some_and(DeviceState::works)
    }

    pub(super) fn notify_device(&mut self, device: Key, event: DeviceEvent) {
        if let Some(device) = self.devices.get_mut(device) {
            device.push_event(event);
        }
    }

    pub(super) fn notify_queue_pair_fault(&mut self, key: Key, fault: QueuePairFault) {
        let Some(queue_pair) = self.queue_pairs.get(key) else {
            return;
        };
        let event = DeviceEvent::QueuePair {
            token: queue_pair.token,
            qp_number: queue_pair.number,
            fault,
        };
        let device = queue_pair.device;
        self.notify_device(device, event);
    }

    pub(super) fn counters(&mut self, machine: usize) -> &mut FakeCounters {
        &mut self.machines[machine].counters
    }

    /// Adds a queue pair with work to the active list.
    pub(super) fn list(&mut self, key: Key) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(key)
            && !queue_pair.listed
            && !queue_pair.sends.is_empty()
        {
            queue_pair.listed = true;
            self.active.push(key);
        }
    }
}
