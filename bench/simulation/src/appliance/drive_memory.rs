//! The memory of drives in which data of hosts may be, and what went through it.

use std::sync::Arc;

use hugemem::DeviceMemory;
use nvme_target::CoreCounters;

use super::Appliance;
use crate::drive;

impl Appliance {
    /// Does the control thread's work for memory of drives: registers what is new.
    pub(super) fn register_drive_memory(&self) {
        let Some(domains) = &self.domains else { return };
        let memory = self.drive_memory().filter(|it| !it.has_ended());
        let memory: Vec<_> = memory.collect();
        if domains.lacks_device_memory(&memory) {
            domains.set_device_memory(memory);
        }
    }

    /// The memory of drives for data of hosts, each once.
    fn drive_memory(&self) -> impl Iterator<Item = Arc<DeviceMemory>> {
        let devices = self.devices.iter();
        let allowed = devices.filter(|(disk, _)| drive::allows_memory(self.data_paths[*disk]));
        let mut all: Vec<Arc<DeviceMemory>> = Vec::new();
        for memory in allowed.filter_map(|(_, device)| device.device_memory()) {
            if !all.iter().any(|it| Arc::ptr_eq(it, &memory)) {
                all.push(memory);
            }
        }
        all.into_iter()
    }

    /// Slices of the memory of drives that are in use, without lost ones.
    #[must_use]
    pub fn slices_in_use(&self) -> u64 {
        let counters = self.drive_memory().map(|it| it.counters());
        counters.map(|it| u64::from(it.taken) - it.lost).sum()
    }

    /// Copies whose data was in memory of drives.
    #[must_use]
    pub fn copies_in_drives(&self) -> u64 {
        let cores = (0..self.target.reactors()).filter_map(|it| self.target.core_counters(it));
        let of_core = |core: Arc<CoreCounters>| -> u64 {
            let devices = core.copies.iter();
            devices.map(|copies| copies.device_memory.get()).sum()
        };
        cores.map(of_core).sum()
    }

    /// Copies that drives executed by themselves.
    #[must_use]
    pub fn copies_by_drives(&self) -> u64 {
        let totals = self.target.devices().into_iter();
        let totals = totals.map(|(place, _)| self.target.copy_totals(place));
        totals.map(|it| it.drive).sum()
    }

    /// Reads and writes of hosts whose data was in memory of drives.
    #[must_use]
    pub fn transfers_in_drives(&self) -> u64 {
        let totals = self.target.devices().into_iter();
        let totals = totals.map(|(place, _)| self.target.transfer_totals(place));
        totals.map(|it| it.reads + it.writes).sum()
    }
}
