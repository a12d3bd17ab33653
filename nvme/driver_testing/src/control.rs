//! Control of a drive by a test while a host uses it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use block_testing::Latency;
use nvme_spec::log::CriticalWarning;
use reactors::Nanos;

use super::Shared;
use super::bus::Memory;
use super::counters::EmulatorCounters;
use super::fault::{FaultId, FaultRule};

/// Controls an emulated drive, from any thread. Clones control the same drive.
#[derive(Clone)]
pub struct EmulatorControl(Arc<Shared>);

/// The file of a drive's controller memory buffer.
#[derive(Clone)]
pub struct MemoryFile(Arc<Memory>);

impl MemoryFile {
    /// Device and inode.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn name(&self) -> std::io::Result<(u64, u64)> {
        self.0.file()
    }

    /// The number of the drive's insertion, `None` while it is not in its slot. No device accesses the
    /// memory then, and what was mapped before a removal is never accessible again.
    #[must_use]
    pub fn insertion(&self) -> Option<u64> {
        self.0.insertion()
    }
}

impl EmulatorControl {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Adds a rule, armed.
    ///
    /// # Panics
    /// There are [`FAULT_RULES_MAX`](super::FAULT_RULES_MAX) rules already.
    pub fn inject(&self, rule: FaultRule) -> FaultId {
        self.0.lock().faults.add(rule)
    }

    /// Arms or disarms a rule. A disarmed rule counts no matches.
    ///
    /// # Panics
    /// The rule belongs to another controller.
    pub fn arm(&self, id: FaultId, on: bool) {
        self.0.lock().faults.arm(id, on);
    }

    /// Disarms all rules.
    pub fn disarm_all(&self) {
        self.0.lock().faults.disarm_all();
    }

    /// How often a rule has fired.
    ///
    /// # Panics
    /// The rule belongs to another controller.
    #[must_use]
    pub fn fired(&self, id: FaultId) -> u64 {
        self.0.lock().faults.fired(id)
    }

    /// Sets the time from doorbell to execution, for commands submitted from now on.
    pub fn set_latency(&self, latency: Latency) {
        self.0.lock().latency = latency;
    }

    /// Same as [`EmulatedController::tick`](super::EmulatedController::tick).
    pub fn tick(&self, now: Nanos) {
        self.0.lock().tick(&self.0.bus, now);
    }

    /// Releases all hung commands, which execute at the next tick. Returns their number.
    pub fn release(&self) -> usize {
        self.0.lock().release()
    }

    /// Stops the controller with a fatal status (CSTS.CFS).
    pub fn fail(&self) {
        self.0.lock().registers.fail();
    }

    /// Removes the drive: registers read as all ones, and data that was not flushed may be lost.
    pub fn remove(&self) {
        self.0.lock().remove(&self.0.bus);
    }

    /// Cuts the drive's power. Same as [`remove`](Self::remove), but not counted as a removal.
    pub fn power_cut(&self) {
        self.0.lock().cut_power(&self.0.bus);
    }

    /// Inserts the drive again, or restores its power: the drive is in its power-on state.
    pub fn reinsert(&self) {
        self.0.removal_requested.store(false, Ordering::Release);
        self.0.lock().appear(&self.0.bus);
    }

    /// Requests that the host release the drive, or withdraws the request.
    pub fn request_removal(&self, wanted: bool) {
        self.0.removal_requested.store(wanted, Ordering::Release);
    }

    /// Turns it into another drive of the same model, before it reappears.
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

    /// Changes the size of a namespace, up to its `block_count_max`, and reports the change.
    /// Returns whether the namespace exists.
    ///
    /// # Panics
    /// The size exceeds `block_count_max`.
    pub fn resize_namespace(&self, nsid: u32, block_count: u64) -> bool {
        self.0.lock().change(&self.0.bus, nsid, |namespace| {
            let max = namespace.config.block_count_max;
            assert!(block_count <= max, "{block_count} blocks, {max} at most");
            namespace.block_count = block_count;
        })
    }

    /// Attaches or detaches a namespace, and reports the change. Returns whether the namespace
    /// exists.
    pub fn attach_namespace(&self, nsid: u32, attached: bool) -> bool {
        self.0.lock().change(&self.0.bus, nsid, |namespace| {
            namespace.attached = attached;
        })
    }

    /// Enables or disables the write protection of a namespace, and reports the change. Returns
    /// whether the namespace exists.
    pub fn protect_namespace(&self, nsid: u32, protected: bool) -> bool {
        self.0.lock().change(&self.0.bus, nsid, |namespace| {
            namespace.write_protected = protected;
        })
    }

    /// Sets the temperature in kelvin. Raises an event if it crosses a threshold.
    pub fn set_temperature(&self, kelvin: u16) {
        self.0.lock().set_temperature(&self.0.bus, kelvin);
    }

    /// Sets the critical warning. Raises an event for each new kind of warning.
    pub fn set_critical_warning(&self, warning: CriticalWarning) {
        self.0.lock().warn(&self.0.bus, warning);
    }

    /// Sets available spare and percentage used of the SMART log, in percent.
    pub fn set_wear(&self, spare_percent: u8, used_percent: u8) {
        let mut state = self.0.lock();
        state.health.spare_percent = spare_percent;
        state.health.used_percent = used_percent;
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> EmulatorCounters {
        self.0.lock().counters
    }

    /// Number of commands fetched and not completed, without event requests.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.0.lock().pending.len()
    }

    /// The time at which the next delayed command executes, provided that [`tick`](Self::tick) is
    /// called then.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        self.0.lock().next_due(&self.0.bus)
    }

    /// Whether the drive is in its slot and has power.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.0.lock().present
    }

    /// The file of its controller memory buffer, for devices that map it.
    #[must_use]
    pub fn memory_file(&self) -> Option<MemoryFile> {
        self.0.bus.memory().cloned().map(MemoryFile)
    }

    /// Number of Asynchronous Event Requests that wait for an event.
    #[must_use]
    pub fn event_requests(&self) -> usize {
        self.0.lock().events.requests()
    }

    /// Number of I/O queue pairs that the host has created.
    #[must_use]
    pub fn io_queues(&self) -> usize {
        let state = self.0.lock();
        let live = state.submission.iter().skip(1).filter(|queue| queue.live);
        live.count()
    }

    /// Whether the drive may access host memory.
    #[must_use]
    pub fn is_bus_master(&self) -> bool {
        self.0.bus.is_master()
    }

    /// Copies the data that a read would return. Returns `false` if the namespace or range does not
    /// exist.
    #[must_use]
    pub fn read_medium(&self, nsid: u32, lba: u64, into: &mut [u8]) -> bool {
        self.copy(nsid, lba, into, false)
    }

    /// Copies the data that would remain if power were cut and the whole cache lost. Returns
    /// `false` if the namespace or range does not exist.
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
