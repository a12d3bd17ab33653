//! The ways that the data of copies takes.

use super::Counter;
use crate::config::DeviceIndex;
use crate::target::Target;

/// Why the data of a Copy takes its way through the arena, although its destination allows memory of
/// devices ([`DataPath`](block::DataPath)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPathReason {
    /// The device of a source does not allow it.
    SourceOnHostPath,
    /// The devices reach no memory of one of them.
    Unreachable,
    /// The Copy exceeds a slice of the memory, or what a device accepts in one request.
    TooSmall,
    /// No slice is free.
    Exhausted,
    /// A device has too many requests.
    Busy,
    /// A request failed, or the memory lost its content.
    Failed,
}

impl HostPathReason {
    /// All reasons, with a word for each.
    pub const WORDS: [(Self, &'static str); 6] = [
        (Self::SourceOnHostPath, "source_on_host_path"),
        (Self::Unreachable, "unreachable"),
        (Self::TooSmall, "too_small"),
        (Self::Exhausted, "exhausted"),
        (Self::Busy, "busy"),
        (Self::Failed, "failed"),
    ];
}

/// The way that the data of a Copy takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyWay {
    /// The drive copies it by itself.
    Drive,
    /// Through memory of a device.
    DeviceMemory,
    /// Through the arena.
    Host,
}

/// The ways that the data of copies took that hosts requested. Counted at the destination.
#[derive(Debug, Default)]
pub struct CopyCounters {
    /// Copies through the arena that succeeded.
    pub host: Counter,
    /// Copies through memory of a device that succeeded.
    pub device_memory: Counter,
    /// Copies that a drive executed by itself.
    pub drive: Counter,
    /// Copies that began or began again through the arena, by [`HostPathReason`].
    reasons: [Counter; HostPathReason::WORDS.len()],
}

impl CopyCounters {
    pub(crate) fn count_reason(&self, reason: HostPathReason) {
        self.reasons[reason as usize].add(1);
    }

    pub(crate) fn count_completed(&self, way: CopyWay) {
        match way {
            CopyWay::Drive => self.drive.add(1),
            CopyWay::DeviceMemory => self.device_memory.add(1),
            CopyWay::Host => self.host.add(1),
        }
    }

    /// Resets to zero for the next device; only the owning reactor may call it.
    pub(crate) fn reset(&self) {
        let Self {
            host,
            device_memory,
            drive,
            reasons,
        } = self;
        reasons
            .iter()
            .chain([host, device_memory, drive])
            .for_each(|it| it.set(0));
    }
}

/// The values of [`CopyCounters`] at one point in time, over all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyTotals {
    /// Copies through the arena that succeeded.
    pub host: u64,
    /// Copies through memory of a device that succeeded.
    pub device_memory: u64,
    /// Copies that a drive executed by itself.
    pub drive: u64,
    /// Copies that began or began again through the arena, by [`HostPathReason`].
    reasons: [u64; HostPathReason::WORDS.len()],
}

impl CopyTotals {
    /// Copies that began or began again through the arena for this reason.
    #[must_use]
    pub fn reason(&self, reason: HostPathReason) -> u64 {
        self.reasons[reason as usize]
    }

    fn add(&mut self, counters: &CopyCounters) {
        self.host += counters.host.get();
        self.device_memory += counters.device_memory.get();
        self.drive += counters.drive.get();
        for (total, counter) in self.reasons.iter_mut().zip(&counters.reasons) {
            *total += counter.get();
        }
    }
}

impl Target {
    /// The ways of the copies to a device.
    #[must_use]
    pub fn copy_totals(&self, device: DeviceIndex) -> CopyTotals {
        let mut totals = CopyTotals::default();
        for core in self.cores().iter().flatten() {
            if let Some(counters) = core.copies.get(usize::from(device.0)) {
                totals.add(counters);
            }
        }
        totals
    }
}
