//! The ways that the data of reads and writes takes.

use super::Counter;
use crate::config::DeviceIndex;
use crate::target::Target;

/// Why the data of a read or a write takes its way through the arena, although its device allows its
/// own memory ([`DataPath`](block::DataPath)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferReason {
    /// It has fewer bytes than [`DEVICE_TRANSFER_BYTES_MIN`](crate::DEVICE_TRANSFER_BYTES_MIN).
    Small,
    /// The transport does not access memory of devices: TCP.
    Transport,
    /// The command needs its data in the arena: a compare, or a read that forces the unit's access.
    Command,
    /// The device has no such memory, or not now.
    NoMemory,
    /// The host's network card has not registered the memory.
    Unregistered,
    /// The host's memory is in too many blocks.
    Scattered,
    /// The memory has too few slices of the request's size, or the request must not be split.
    TooSmall,
    /// Too few slices are free.
    Exhausted,
    /// A request of the device has just failed there.
    Suspended,
}

impl TransferReason {
    /// All reasons, with a word for each.
    pub const WORDS: [(Self, &'static str); 9] = [
        (Self::Small, "small"),
        (Self::Transport, "transport"),
        (Self::Command, "command"),
        (Self::NoMemory, "no_memory"),
        (Self::Unregistered, "unregistered"),
        (Self::Scattered, "scattered"),
        (Self::TooSmall, "too_small"),
        (Self::Exhausted, "exhausted"),
        (Self::Suspended, "suspended"),
    ];
}

/// The ways that the data of reads and writes took, of a device that allows its own memory.
#[derive(Debug, Default)]
pub struct TransferCounters {
    /// Reads through memory of the device that succeeded in it.
    pub reads: Counter,
    /// Writes through memory of the device that succeeded.
    pub writes: Counter,
    /// Bytes of both.
    pub bytes: Counter,
    /// Reads and writes through memory of the device that failed, or whose data was lost there.
    pub failed: Counter,
    /// Requests through the arena, by [`TransferReason`].
    reasons: [Counter; TransferReason::WORDS.len()],
}

impl TransferCounters {
    pub(crate) fn count_reason(&self, reason: TransferReason) {
        self.reasons[reason as usize].add(1);
    }

    pub(crate) fn count_completed(&self, is_read: bool, bytes: u32) {
        match is_read {
            true => self.reads.add(1),
            false => self.writes.add(1),
        }
        self.bytes.add(u64::from(bytes));
    }

    /// Resets to zero for the next device; only the owning reactor may call it.
    pub(crate) fn reset(&self) {
        let Self {
            reads,
            writes,
            bytes,
            failed,
            reasons,
        } = self;
        reasons
            .iter()
            .chain([reads, writes, bytes, failed])
            .for_each(|it| it.set(0));
    }
}

/// The values of [`TransferCounters`] at one point in time, over all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferTotals {
    /// Reads through memory of the device that succeeded in it.
    pub reads: u64,
    /// Writes through memory of the device that succeeded.
    pub writes: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Reads and writes through memory of the device that failed, or whose data was lost there.
    pub failed: u64,
    /// Requests through the arena, by [`TransferReason`].
    reasons: [u64; TransferReason::WORDS.len()],
}

impl TransferTotals {
    /// Requests through the arena for this reason.
    #[must_use]
    pub fn reason(&self, reason: TransferReason) -> u64 {
        self.reasons[reason as usize]
    }

    fn add(&mut self, counters: &TransferCounters) {
        self.reads += counters.reads.get();
        self.writes += counters.writes.get();
        self.bytes += counters.bytes.get();
        self.failed += counters.failed.get();
        for (total, counter) in self.reasons.iter_mut().zip(&counters.reasons) {
            *total += counter.get();
        }
    }
}

impl Target {
    /// The ways of the reads and writes of a device.
    #[must_use]
    pub fn transfer_totals(&self, device: DeviceIndex) -> TransferTotals {
        let mut totals = TransferTotals::default();
        for core in self.cores().iter().flatten() {
            if let Some(counters) = core.transfers.get(usize::from(device.0)) {
                totals.add(counters);
            }
        }
        totals
    }
}
