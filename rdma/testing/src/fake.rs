//! An in-process fabric: machines with RDMA devices, and a network between them that injects
//! faults.
//!
//! Bytes are copied between the registered regions of different protection domains through
//! [`hugemem::DmaView`], never through a reference. The fabric checks what hardware checks: keys,
//! bounds, rights, queue pair states, missing or short receives, depths of queues, memory windows
//! and their invalidation, inline limits, and order on one connection.
//!
//! Time is counted in ticks. With [`ExecutionMode::Immediate`] the fabric executes requests when
//! they are flushed; while something waits (for a receive, a delay or a response) each poll of a
//! completion queue or an event channel is a tick. With [`ExecutionMode::Manual`] only
//! [`Fabric::progress`] is a tick, and the seed chooses the order of the queue pairs and how much
//! each executes. With either mode and one thread, a seed gives one reproducible sequence; several
//! threads may also use one fabric.
//!
//! Differences from hardware: requests of one queue pair execute sequentially, so a fence changes
//! nothing; and a dropped window is invalid immediately.

mod connecting;
mod counters;
mod engine;
mod faults;
mod manager;
mod memory;
mod notifier;
mod objects;
mod queue_pair;
mod random;
mod state;
mod steering;
mod table;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugemem::Region;

pub use connecting::{FakeConnectRequest, FakeConnection, FakeEventChannel, FakeListener};
pub use counters::{FakeCounters, Operation, OperationCounters};
pub use faults::{ConnectFault, Fault, LATE_BYTE, Pattern};
use memory::Slot;
pub use objects::{
    Fake, FakeCompletionQueue, FakeDevice, FakeDomain, FakeRegistration, FakeSharedReceiveQueue,
    FakeWindow,
};
pub use queue_pair::FakeQueuePair;
use rdma::{ConnectionEvent, DeviceEvent, DeviceLimits, Error, SGES_MAX, Transport};
use state::{INLINE_BYTES_MAX, Machine, State};
pub use steering::SharedReceives;

/// When the fabric executes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionMode {
    /// Immediately, in the order of posting.
    Immediate,
    /// On request, in a pseudo-random order.
    Manual,
}

impl ExecutionMode {
    fn is_immediate(self) -> bool {
        self == Self::Immediate
    }
}

/// Configuration of a [`Fabric`].
#[derive(Clone, Copy, Debug)]
pub struct FabricConfig {
    /// Seed of all pseudo-random choices.
    pub seed: u64,
    /// When requests are executed.
    pub execution_mode: ExecutionMode,
    /// The largest number of requests of one queue pair per tick, with the manual pace.
    pub burst: u64,
    /// Ticks between two tries of a request that the peer did not answer or had no receive for.
    pub retry_ticks: u64,
}

impl FabricConfig {
    /// A fabric that executes immediately.
    pub const IMMEDIATE: Self = Self {
        seed: 0,
        execution_mode: ExecutionMode::Immediate,
        burst: u64::MAX,
        retry_ticks: 1,
    };

    /// A fabric that executes in [`Fabric::progress`], in an order derived from `seed`.
    #[must_use]
    pub const fn manual(seed: u64) -> Self {
        Self {
            seed,
            execution_mode: ExecutionMode::Manual,
            burst: 8,
            retry_ticks: 1,
        }
    }
}

/// One device of a machine, with one port.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Its name.
    pub name: String,
    /// Its addresses; each belongs to one device of the whole fabric.
    pub addresses: Vec<IpAddr>,
    /// Its limits.
    pub limits: DeviceLimits,
    /// The largest number of inline bytes that it grants; at most 128.
    pub inline_bytes: u32,
    /// Whether it registers memory of other devices, unlike soft RoCE.
    pub registers_device_memory: bool,
}

impl DeviceConfig {
    /// A device with one address and [`LIMITS`](Self::LIMITS).
    #[must_use]
    pub fn new(name: &str, address: IpAddr) -> Self {
        Self {
            name: name.to_owned(),
            addresses: vec![address],
            limits: Self::LIMITS,
            inline_bytes: INLINE_BYTES_MAX as u32,
            registers_device_memory: true,
        }
    }

    /// Generous limits.
    pub const LIMITS: DeviceLimits = DeviceLimits {
        transport: Transport::Roce,
        ports: 1,
        queue_pairs: 65_536,
        queue_pair_requests: 16_384,
        sges: SGES_MAX as u32,
        read_sges: SGES_MAX as u32,
        completion_queues: 65_536,
        completion_queue_entries: 1 << 22,
        shared_receive_queues: 1024,
        shared_receive_requests: 32_768,
        shared_receive_sges: SGES_MAX as u32,
        reads_incoming: 16,
        reads_outgoing: 16,
        registrations: 1 << 20,
        registration_bytes: 1 << 40,
        windows: 1 << 20,
    };
}

/// The fabric. Cheap to clone; clones are the same fabric.
#[derive(Clone, Debug)]
pub struct Fabric {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Another test thread that panicked prints its own message; do not panic again here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fabric {
    /// Creates a fabric without machines.
    #[must_use]
    pub fn new(config: FabricConfig) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State::new(config)),
            }),
        }
    }

    /// Adds a machine with these devices; returns the provider for its programs.
    ///
    /// # Errors
    /// An error of the system, if it is out of descriptors.
    pub fn machine(&self, devices: &[DeviceConfig]) -> Result<Fake, Error> {
        let mut state = self.shared.lock();
        let number = state.machines.len();
        state.machines.push(Machine::default());
        for config in devices {
            state.add_device(number, config)?;
        }
        Ok(Fake::new(Arc::clone(&self.shared), number))
    }

    /// Adds a device to a running machine. It is a new device, even with the addresses of a
    /// [removed](Self::remove_device) one.
    ///
    /// # Errors
    /// An error of the system, if it is out of descriptors.
    pub fn add_device(&self, machine: &Fake, config: &DeviceConfig) -> Result<(), Error> {
        self.shared.lock().add_device(machine.machine(), config)
    }

    /// Executes one tick; returns whether another would change something.
    pub fn progress(&self) -> bool {
        let mut state = self.shared.lock();
        state.pass_time();
        state.is_waiting()
    }

    /// Executes ticks until nothing waits, at most `ticks_max`; returns whether nothing waits.
    pub fn run_until_idle(&self, ticks_max: u64) -> bool {
        (0..ticks_max).any(|_| !self.progress())
    }

    /// Ticks since creation.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.shared.lock().tick
    }

    /// Adds a rule: requests that match `pattern` fail from now on. Of several matching rules, the
    /// one added first applies.
    pub fn add_fault(&self, pattern: Pattern, fault: Fault) {
        self.shared.lock().faults.add(pattern, fault);
    }

    /// Adds a rule: connections that match `pattern` fail from now on.
    pub fn add_connect_fault(&self, pattern: Pattern, fault: ConnectFault) {
        self.shared.lock().connect_faults.add(pattern, fault);
    }

    /// The device refuses to destroy the next `queue_pairs` queue pairs. It keeps them, and
    /// continues to execute the requests that they are stuck on ([`Fault::Wedge`]).
    pub fn refuse_destructions(&self, queue_pairs: u32) {
        self.shared.lock().destructions_refused = queue_pairs;
    }

    /// Removes all fault rules.
    pub fn clear_faults(&self) {
        let mut state = self.shared.lock();
        state.faults.clear();
        state.connect_faults.clear();
    }

    /// Allows registration of a region's memory by address, like an application's buffer. Real
    /// machines allow this for all their memory.
    ///
    /// # Errors
    /// The errors of [`hugemem::DmaView::of`].
    pub fn add_foreign_memory(&self, region: &Region) -> std::io::Result<()> {
        self.shared.lock().views.add_foreign(region)
    }

    /// The file with this device and inode is memory of a device that may leave its slot. `insertion`
    /// returns the number of its insertion, `None` while it is not there. Requests that access its
    /// memory then fail, and so do those by a registration from before a removal.
    pub fn add_slot(
        &self,
        file: (u64, u64),
        insertion: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) {
        self.shared
            .lock()
            .keys
            .slots
            .push(Slot::new(file, insertion));
    }

    /// Sets the port of a device up or down. Requests over a port that is down are retried as often
    /// as their connection allows.
    pub fn set_port(&self, device: &FakeDevice, up: bool) {
        let mut state = self.shared.lock();
        let Some(device) = state.devices.get_mut(device.key()) else {
            return;
        };
        if std::mem::replace(&mut device.up, up) != up {
            device.push_event(match up {
                true => DeviceEvent::PortUp(1),
                false => DeviceEvent::PortDown(1),
            });
        }
    }

    /// Removes a device: all its objects fail.
    pub fn remove_device(&self, device: &FakeDevice) {
        self.shared.lock().remove_device(device.key(), true);
    }

    /// Removes a device whose driver reports no event of its own; only the connection manager does.
    /// As with verbs, the device tells whoever asks it, but its descriptor does not become readable.
    pub fn remove_silent_device(&self, device: &FakeDevice) {
        self.shared.lock().remove_device(device.key(), false);
    }

    /// Handles of a device in programs, including this one and those of the objects created on it.
    /// Some real drivers wait for the last of them before a device is removed.
    #[must_use]
    pub fn handles(&self, device: &FakeDevice) -> usize {
        device.handles() - 1
    }

    /// Sends a device event to the owner of a device, without further effects.
    pub fn notify_device(&self, device: &FakeDevice, event: DeviceEvent) {
        self.shared.lock().notify_device(device.key(), event);
    }

    /// Sends an address change to every connection on a device.
    pub fn change_address(&self, device: &FakeDevice) {
        let event = ConnectionEvent::AddressChanged;
        self.shared.lock().notify_connections(device.key(), event);
    }

    /// Breaks the connection of the queue pair with this number: both sides are notified.
    pub fn drop_connection(&self, qp_number: u32) {
        let mut state = self.shared.lock();
        if let Some(key) = state.queue_pair_of(qp_number) {
            state.set_partitioned(key, false);
            state.drop_connection(key);
        }
    }

    /// Number of existing objects, with which a test checks for leaks.
    #[must_use]
    pub fn objects(&self) -> FabricObjects {
        let state = self.shared.lock();
        FabricObjects {
            domains: state.domains.len(),
            registrations: state.keys.len(),
            completion_queues: state.completion_queues.len(),
            shared_receive_queues: state.shared_receives.len(),
            queue_pairs: state.queue_pairs.len(),
            channels: state.channels.len(),
            listeners: state.listeners.len(),
            connections: state.ids.len(),
        }
    }
}

/// Number of existing objects of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricObjects {
    /// Protection domains.
    pub domains: usize,
    /// Registrations and memory windows.
    pub registrations: usize,
    /// Completion queues.
    pub completion_queues: usize,
    /// Shared receive queues.
    pub shared_receive_queues: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Event channels.
    pub channels: usize,
    /// Listeners.
    pub listeners: usize,
    /// Connections, and pending requests.
    pub connections: usize,
}
