//! What a test does to a drive while a host uses it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::Latency;
use nvme_spec::log::CriticalWarning;
use reactors::Nanos;

use super::Shared;
use super::counters::EmulatorCounters;
use super::fault::{FaultId, FaultRule};

/// Steers an emulated drive, from any thread. Clones steer the same one.
#[derive(Clone)]
pub struct EmulatorControl(Arc<Shared>);

impl EmulatorControl {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Puts in a rule, armed.
    ///
    /// # Panics
    /// There are [`FAULT_RULES_MAX`](super::FAULT_RULES_MAX) rules already.
    pub fn inject(&self, rule: FaultRule) -> FaultId {
        self.0.lock().faults.add(rule)
    }

    /// Switches a rule on or off. A rule that is off counts no matches.
    ///
    /// # Panics
    /// The rule is another controller's.
    pub fn arm(&self, id: FaultId, on: bool) {
        self.0.lock().faults.arm(id, on);
    }

    /// Switches all rules off.
    pub fn disarm_all(&self) {
        self.0.lock().faults.disarm_all();
    }

    /// How often a rule has fired.
    ///
    /// # Panics
    /// The rule is another controller's.
    #[must_use]
    pub fn fired(&self, id: FaultId) -> u64 {
        self.0.lock().faults.fired(id)
    }

    /// Changes the time from doorbell to execution, for commands that come from now on.
    pub fn set_latency(&self, latency: Latency) {
        self.0.lock().latency = latency;
    }

    /// The same as [`EmulatedController::tick`](super::EmulatedController::tick).
    pub fn tick(&self, now: Nanos) {
        self.0.lock().tick(&self.0.bus, now);
    }

    /// Lets every hung command go on; it is carried out with the next tick. Returns how many.
    pub fn release(&self) -> usize {
        self.0.lock().release()
    }

    /// The controller stops with a fatal status.
    pub fn fail(&self) {
        self.0.lock().registers.fail();
    }

    /// Pulls the drive out: registers read as all ones, and what was not flushed may be lost.
    pub fn remove(&self) {
        self.0.lock().remove(&self.0.bus);
    }

    /// Cuts the drive's power: as [`remove`](Self::remove), but nobody took it out.
    pub fn power_cut(&self) {
        self.0.lock().cut_power(&self.0.bus);
    }

    /// Puts the drive back into its slot, or its power on: everything is as after power on.
    pub fn reappear(&self) {
        self.0.removal_requested.store(false, Ordering::Release);
        self.0.lock().appear(&self.0.bus);
    }

    /// Asks the host to let the drive go, or takes the wish back.
    pub fn request_removal(&self, wanted: bool) {
        self.0.removal_requested.store(wanted, Ordering::Release);
    }

    /// Makes it another drive of the same kind, before it reappears.
    ///
    /// # Panics
    /// The serial number is longer than 20 characters.
    pub fn replace_serial(&self, serial: &str) {
        assert!(
            serial.len() <= 20,
            "a serial number of {} bytes",
            serial.len()
        );
        self.0.lock().options.serial = serial.into();
    }

    /// Gives a namespace another size, at most its `block_count_max`, and reports the change.
    /// Returns whether there is such a namespace.
    ///
    /// # Panics
    /// It cannot be that large.
    pub fn resize_namespace(&self, nsid: u32, block_count: u64) -> bool {
        self.0.lock().change(&self.0.bus, nsid, |namespace| {
            let max = namespace.config.block_count_max;
            assert!(block_count <= max, "{block_count} blocks, {max} at most");
            namespace.block_count = block_count;
        })
    }

    /// Attaches or detaches a namespace, and reports the change. Returns whether there is such a
    /// namespace.
    pub fn attach_namespace(&self, nsid: u32, attached: bool) -> bool {
        self.0.lock().change(&self.0.bus, nsid, |namespace| {
            namespace.attached = attached;
        })
    }

    /// Protects a namespace from writes or ends that, and reports the change. Returns whether there
    /// is such a namespace.
    pub fn protect_namespace(&self, nsid: u32, protected: bool) -> bool {
        self.0.lock().change(&self.0.bus, nsid, |namespace| {
            namespace.write_protected = protected;
        })
    }

    /// Sets the temperature in kelvin, with an event where it has just crossed a threshold.
    pub fn set_temperature(&self, kelvin: u16) {
        self.0.lock().set_temperature(&self.0.bus, kelvin);
    }

    /// Sets the critical warning, with an event for each kind that is new.
    pub fn set_critical_warning(&self, warning: CriticalWarning) {
        self.0.lock().warn(&self.0.bus, warning);
    }

    /// Sets spare and wear of the SMART log, in percent.
    pub fn set_wear(&self, spare_percent: u8, used_percent: u8) {
        let mut state = self.0.lock();
        state.health.spare_percent = spare_percent;
        state.health.used_percent = used_percent;
    }

    /// Counters.
    #[must_use]
    pub fn counters(&self) -> EmulatorCounters {
        self.0.lock().counters
    }

    /// Commands that were fetched and not completed, event requests left out.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.0.lock().pending.len()
    }

    /// When the next command of those that take their time is carried out, if time is
    /// [told](Self::tick) by then.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        self.0.lock().next_due(&self.0.bus)
    }

    /// Whether the drive is in its slot and has power.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.0.lock().present
    }

    /// Asynchronous Event Requests that wait for an event.
    #[must_use]
    pub fn event_requests(&self) -> usize {
        self.0.lock().events.requests()
    }

    /// I/O queue pairs that the host has created.
    #[must_use]
    pub fn io_queues(&self) -> usize {
        let state = self.0.lock();
        let live = state.submission.iter().skip(1).filter(|queue| queue.live);
        live.count()
    }

    /// Whether the drive may reach its host's memory.
    #[must_use]
    pub fn is_bus_master(&self) -> bool {
        self.0.bus.is_master()
    }

    /// Copies what a read would find. `false` where there is no such namespace or range.
    #[must_use]
    pub fn read_medium(&self, nsid: u32, lba: u64, into: &mut [u8]) -> bool {
        self.copy(nsid, lba, into, false)
    }

    /// Copies what would be there if power were cut and the cache lost as a whole. `false` where
    /// there is no such namespace or range.
    #[must_use]
    pub fn read_durable(&self, nsid: u32, lba: u64, into: &mut [u8]) -> bool {
        self.copy(nsid, lba, into, true)
    }

    fn copy(&self, nsid: u32, lba: u64, into: &mut [u8], durable: bool) -> bool {
        let state = self.0.lock();
        let found = state.namespaces.iter();
        let Some(namespace) = found.into_iter().find(|found| found.nsid() == nsid) else {
            return false;
        };
        let blocks = (into.len() / namespace.config.block_size as usize) as u64;
        let max = namespace.config.block_count_max;
        if lba > max || blocks > max - lba {
            return false;
        }
        let medium = &namespace.medium;
        into.copy_from_slice(if durable {
            medium.read_durable(lba, blocks)
        } else {
            medium.read(lba, blocks)
        });
        true
    }
}
