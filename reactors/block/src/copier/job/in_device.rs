//! Pieces whose data is in memory of one of the devices. If the memory has lost it, or the device takes no such
//! request, a piece is read again, into the arena.

use hugemem::DeviceLease;

use super::{Access, InFlight, Job, Way};
use crate::copier::DEVICE_MEMORY_FAILURES_MAX;
use crate::error::DeviceError;

impl Job {
    /// Memory of one of the devices for a piece, if the copy uses it and a slice is free.
    /// Returns the most blocks that it may have, too.
    pub(super) fn take_device_memory(&self, access: &Access<'_>) -> Option<(DeviceLease, u32)> {
        let is_for_arena = self.again.iter().any(|it| it.way == Way::Arena);
        let has_failed = self.device_memory_failures >= DEVICE_MEMORY_FAILURES_MAX;
        if !self.plan.in_device || is_for_arena || has_failed {
            return None;
        }
        let devices = 1 << self.plan.source | 1 << self.plan.destination;
        access.set.take_device_memory(devices, 1).ok()
    }

    /// Leaves a piece whose request in memory of a device has failed, or whose data was lost there, to the
    /// arena. The error is that of the copy if the arena would not help.
    pub(super) fn failed_in_device(
        &mut self,
        piece: &InFlight,
        (error, is_valid): (DeviceError, bool),
        access: &Access<'_>,
    ) {
        let has_other_way = error.is_of_memory(is_valid);
        if self.leave_to(Way::Arena, piece, (error, has_other_way), access) {
            self.device_memory_failures += 1;
            self.progress.count_device_memory_failure();
        }
    }
}
