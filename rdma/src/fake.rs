//! An in-process fabric: machines with RDMA devices, and a wire between them that breaks on demand.
//!
//! Bytes move between the registered regions of different protection domains by
//! [`hugemem::DmaView`], never through a reference. Checked as hardware does: keys, bounds, rights,
//! queue pair states, receives that are not there or too short, depths of queues, memory windows
//! and their invalidation, inline limits, order on one connection.
//!
//! Time is counted in ticks. In the [`Pace::Immediate`] pace what was posted is executed when it is
//! flushed, and while something waits (for a receive, a delay, an answer) each poll of a completion
//! queue or of an event channel is a tick. In the [`Pace::Manual`] pace only
//! [`Fabric::progress`] is, and chance, by the seed, chooses the order of queue pairs and how much
//! each gets done. Either way one seed gives one sequence, on one thread; several threads may use
//! one fabric too.
//!
//! Differs from hardware in this: requests of one queue pair execute one after the other, so a
//! fence changes nothing; and a window is invalid at once when it is dropped.

mod bell;
mod connecting;
mod counters;
mod engine;
mod faults;
mod manager;
mod memory;
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

use crate::connection::ConnectionEvent;
use crate::device::{DeviceEvent, DeviceLimits, Transport};
use crate::error::Error;
use crate::request::SGES_MAX;
pub use connecting::{FakeConnectRequest, FakeConnection, FakeEventChannel, FakeListener};
pub use counters::{FakeCounters, Operation, OperationCounters};
pub use faults::{ConnectFault, Fault, LATE_BYTE, Pattern};
pub use objects::{
    Fake, FakeCompletionQueue, FakeDevice, FakeDomain, FakeRegistration, FakeSharedReceiveQueue,
    FakeWindow,
};
pub use queue_pair::FakeQueuePair;
use state::{INLINE_BYTES_MAX, Machine, State};
#[cfg(test)]
pub(crate) use tests::foreign::foreign as foreign_for_tests;

/// When the fabric moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At once, in order of posting.
    Immediate,
    /// When told to, in an order of chance.
    Manual,
}

impl Pace {
    fn is_immediate(self) -> bool {
        self == Self::Immediate
    }
}

/// What a [`Fabric`] is to be.
#[derive(Clone, Copy, Debug)]
pub struct FabricConfig {
    /// Where all chance comes from.
    pub seed: u64,
    /// When it moves.
    pub pace: Pace,
    /// Requests of one queue pair that one tick executes at most, in the manual pace.
    pub burst: u64,
    /// Ticks between two tries of a request that the peer did not answer or had no receive for.
    pub retry_ticks: u64,
}

impl FabricConfig {
    /// A fabric that moves at once.
    pub const IMMEDIATE: Self = Self {
        seed: 0,
        pace: Pace::Immediate,
        burst: u64::MAX,
        retry_ticks: 1,
    };

    /// A fabric that moves by [`Fabric::progress`], in an order that `seed` chooses.
    #[must_use]
    pub const fn manual(seed: u64) -> Self {
        Self {
            seed,
            pace: Pace::Manual,
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
    /// The addresses that it is reached by; each belongs to one device of the whole fabric.
    pub addresses: Vec<IpAddr>,
    /// What it allows.
    pub limits: DeviceLimits,
    /// Inline bytes that it grants at most; at most 128.
    pub inline_bytes: u32,
}

impl DeviceConfig {
    /// A device with one address and generous limits.
    #[must_use]
    pub fn new(name: &str, address: IpAddr) -> Self {
        Self {
            name: name.to_owned(),
            addresses: vec![address],
            limits: Self::LIMITS,
            inline_bytes: INLINE_BYTES_MAX as u32,
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
        // A test that panicked elsewhere has its own message; this one is to say no more.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fabric {
    /// A fabric without machines.
    #[must_use]
    pub fn new(config: FabricConfig) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State::new(config)),
            }),
        }
    }

    /// Adds a machine with these devices; what its programs see of RDMA is the provider.
    ///
    /// # Errors
    /// The system's, when it is out of descriptors.
    pub fn machine(&self, devices: &[DeviceConfig]) -> Result<Fake, Error> {
        let mut state = self.shared.lock();
        let number = state.machines.len();
        state.machines.push(Machine::default());
        for config in devices {
            state.add_device(number, config)?;
        }
        Ok(Fake::new(Arc::clone(&self.shared), number))
    }

    /// Plugs a device into a machine that runs: another than any before it, though it may have the
    /// addresses of one that was [removed](Self::remove_device).
    ///
    /// # Errors
    /// The system's, when it is out of descriptors.
    pub fn add_device(&self, machine: &Fake, config: &DeviceConfig) -> Result<(), Error> {
        self.shared.lock().add_device(machine.machine(), config)
    }

    /// One tick; returns whether more would change something.
    pub fn progress(&self) -> bool {
        let mut state = self.shared.lock();
        state.pass_time();
        state.is_waiting()
    }

    /// Ticks until nothing waits, or `ticks_max` of them; returns whether nothing waits.
    pub fn settle(&self, ticks_max: u64) -> bool {
        (0..ticks_max).any(|_| !self.progress())
    }

    /// Ticks since the beginning.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.shared.lock().tick
    }

    /// Lets requests fail from now on where `pattern` says. Of several rules that match, the one
    /// that was added first wins.
    pub fn add_fault(&self, pattern: Pattern, fault: Fault) {
        self.shared.lock().faults.add(pattern, fault);
    }

    /// Lets connections fail from now on where `pattern` says.
    pub fn add_connect_fault(&self, pattern: Pattern, fault: ConnectFault) {
        self.shared.lock().connect_faults.add(pattern, fault);
    }

    /// The next so many queue pairs that are to be destroyed are not: the device keeps them, and goes on
    /// with what they are stuck on ([`Fault::Wedge`]).
    pub fn refuse_destructions(&self, queue_pairs: u32) {
        self.shared.lock().destructions_refused = queue_pairs;
    }

    /// Ends all faults that were added.
    pub fn clear_faults(&self) {
        let mut state = self.shared.lock();
        state.faults.clear();
        state.connect_faults.clear();
    }

    /// Makes a region's memory such that it may be registered by address, as an application's:
    /// what real machines allow of all their memory.
    ///
    /// # Errors
    /// Those of [`hugemem::DmaView::of`].
    pub fn add_foreign_memory(&self, region: &Region) -> std::io::Result<()> {
        self.shared.lock().views.add_foreign(region)
    }

    /// Takes the port of a device down or up. Requests over a port that is down are tried again as
    /// often as their connection says.
    pub fn set_port(&self, device: &FakeDevice, up: bool) {
        let mut state = self.shared.lock();
        let Some(device) = state.devices.get_mut(device.key()) else {
            return;
        };
        if std::mem::replace(&mut device.up, up) != up {
            device.tell(match up {
                true => DeviceEvent::PortUp(1),
                false => DeviceEvent::PortDown(1),
            });
        }
    }

    /// Pulls a device out: everything on it ends.
    pub fn remove_device(&self, device: &FakeDevice) {
        self.shared.lock().remove_device(device.key(), true);
    }

    /// The same for a device whose driver leaves the telling to the connection manager.
    pub fn remove_silent_device(&self, device: &FakeDevice) {
        self.shared.lock().remove_device(device.key(), false);
    }

    /// Handles of a device that programs have, this one and those of what is made on it included.
    /// Some real drivers wait for the last of them before a device is gone.
    #[must_use]
    pub fn handles(&self, device: &FakeDevice) -> usize {
        device.handles() - 1
    }

    /// Tells the owner of a device what happens to it, without more consequences.
    pub fn tell_device(&self, device: &FakeDevice, event: DeviceEvent) {
        self.shared.lock().tell_device(device.key(), event);
    }

    /// Tells every connection on a device that its address moved elsewhere.
    pub fn change_address(&self, device: &FakeDevice) {
        let event = ConnectionEvent::AddressChanged;
        self.shared.lock().tell_connections(device.key(), event);
    }

    /// Breaks the connection of a queue pair, by the number that its completions have: both sides
    /// are told.
    pub fn drop_connection(&self, qp_number: u32) {
        let mut state = self.shared.lock();
        if let Some(key) = state.queue_pair_of(qp_number) {
            state.set_silent(key, false);
            state.drop_connection(key);
        }
    }

    /// Objects that exist: what a test expects to be back where it began.
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

/// How many objects of each kind a fabric has.
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
    /// Connections, and requests that were not answered.
    pub connections: usize,
}
