//! The table of requests in flight on a pair.

use block::{DeviceError, Operation};
use hugemem::{DmaDriver, DmaLease, Lease};

use super::CompletionTail;

/// The use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Unused: the slot is on the free list.
    Free,
    /// A request with one command. Ends with the drive's completion.
    Whole,
    /// One command of a split request. Ends with the drive's completion.
    Part,
    /// A split request, which has no command itself. Ends with its last command.
    Parent,
    /// A completed request. Ends with the poll of its queue.
    Done,
}

/// The driver's DMA type, for memory posted to drives.
#[derive(Debug)]
pub(super) enum NvmeDma {}

impl DmaDriver for NvmeDma {
    type Done = CommandDone;
}

/// Proof that the drive no longer accesses the memory of a slot. Only this file creates it.
pub(super) struct CommandDone(());

/// The queue of slots whose queue was dropped; their results are discarded.
pub(super) const ORPHAN: u8 = u8::MAX;

/// One slot. Its size is two thirds of a cache line; its index is part of its commands'
/// identifiers.
pub(super) struct Slot {
    /// The request's lease. For one command of a split request: its own lease, if any.
    pub(super) data: Option<DmaLease<NvmeDma>>,
    /// The request's tag. For one command of a split request: offset in the request's data in
    /// bytes.
    pub(super) tag: u64,
    /// Bytes of the range. For one command of a split request: bytes of its data.
    pub(super) bytes: u32,
    /// Tick of the owner's clock at submission.
    pub(super) submitted: u32,
    /// Identifier of the current or last command.
    pub(super) cid: u16,
    /// For one command of a split request: the request's slot.
    pub(super) parent: u16,
    pub(super) operation: Operation,
    pub(super) state: SlotState,
    /// The queue of the request, or [`ORPHAN`].
    pub(super) queue: u8,
    /// Whether the owner was requested to abort it.
    pub(super) overdue: bool,
    /// The result of a completed request.
    pub(super) result: Result<(), DeviceError>,
}

const _: () = assert!(size_of::<Slot>() <= 64);

impl Slot {
    fn new(cid: u16) -> Self {
        Self {
            data: None,
            tag: 0,
            bytes: 0,
            submitted: 0,
            cid,
            parent: 0,
            operation: Operation::Flush,
            state: SlotState::Free,
            queue: ORPHAN,
            overdue: false,
            result: Ok(()),
        }
    }

    /// Takes the lease of a request whose only command the drive has completed.
    #[inline(always)]
    pub(super) fn take_completed(&mut self, _entry: &CompletionTail) -> Option<Lease> {
        debug_assert!(self.state == SlotState::Whole, "it is one command");
        let data = self.data.take()?;
        Some(data.returned(&CommandDone(())))
    }

    /// Takes the lease of a completed request: the drive has none of its commands, or has stopped.
    pub(super) fn take_data(&mut self) -> Option<Lease> {
        debug_assert!(self.state == SlotState::Done, "the drive may access it");
        if self.state != SlotState::Done {
            return None;
        }
        let data = self.data.take()?;
        Some(data.returned(&CommandDone(())))
    }

    /// Reads the data of a split request whose commands use other memory: a compare by the driver.
    pub(super) fn read_unposted<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let data = self.data.take()?.returned(&CommandDone(()));
        let value = read(&data);
        self.data = Some(data.into_dma());
        Some(value)
    }

    /// Whether the drive may have a command for it.
    pub(super) fn has_command(&self) -> bool {
        matches!(self.state, SlotState::Whole | SlotState::Part)
    }
}

/// Generator of command identifiers: the slot's index in the low bits, a generation above.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identifiers {
    mask: u16,
}

impl Identifiers {
    /// For `slots` slots, at most 4096, so that at least four bits remain for the generation.
    pub(super) fn new(slots: u16) -> Self {
        let mask = slots.next_power_of_two() - 1;
        Self { mask }
    }

    #[inline]
    pub(super) fn index(self, cid: u16) -> usize {
        usize::from(cid & self.mask)
    }

    /// The identifier of the slot's next command. Skips FFFFh, which the error log uses for "no
    /// command" (Base 2.1 §4.1.1).
    #[inline]
    pub(super) fn next(self, cid: u16) -> u16 {
        let next = cid.wrapping_add(self.mask + 1);
        if next == u16::MAX { self.mask } else { next }
    }
}

/// The remaining work of a split request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitRequest {
    pub(super) kind: SplitKind,
    pub(super) nsid: u32,
    /// Next block.
    pub(super) lba: u64,
    /// Blocks for which no command has been sent.
    pub(super) left: u32,
    /// Maximum blocks of one command.
    pub(super) step: u32,
    /// Bytes of the request's data for which commands have been sent.
    pub(super) offset: u32,
    /// log2 of the block size.
    pub(super) shift: u8,
    /// Number of commands in flight.
    pub(super) outstanding: u8,
    /// The result so far.
    pub(super) result: Result<(), DeviceError>,
}

/// The way to execute a split request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitKind {
    /// Read, Write or Compare of parts of its data.
    Transfer,
    /// Write Zeroes commands.
    Zeroes { fua: bool, deallocate: bool },
    /// Writes of zeroes, for a drive without Write Zeroes.
    WriteOfZeroes { fua: bool },
    /// Dataset Management commands.
    Deallocate,
    /// Reads into the scratch lease and comparison by the driver, for a drive without Compare.
    ReadAndCompare,
}

impl SplitRequest {
    const fn none() -> Self {
        Self {
            kind: SplitKind::Transfer,
            nsid: 0,
            lba: 0,
            left: 0,
            step: 1,
            offset: 0,
            shift: 9,
            outstanding: 0,
            result: Ok(()),
        }
    }
}

/// All slots of a pair.
pub(super) struct SlotTable {
    pub(super) slots: Box<[Slot]>,
    /// Free slots. The last one freed is reused first, because it is in the cache.
    pub(super) free: Vec<u16>,
    /// Work of split requests, by slot.
    pub(super) split_requests: Box<[SplitRequest]>,
    pub(super) identifiers: Identifiers,
}

impl SlotTable {
    pub(super) fn new(count: u16) -> Self {
        Self {
            slots: (0..count).map(Slot::new).collect(),
            free: (0..count).rev().collect(),
            split_requests: (0..count).map(|_| SplitRequest::none()).collect(),
            identifiers: Identifiers::new(count),
        }
    }

    /// Number of slots in use.
    pub(super) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns a slot, whose lease was taken, to the free list.
    #[inline]
    pub(super) fn release(&mut self, index: usize) {
        self.slots[index].state = SlotState::Free;
        self.free.push(index as u16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_encode_the_slot_and_change_with_each_use() {
        for slots in [2, 3, 128, 129, 4095, 4096] {
            let identifiers = Identifiers::new(slots);
            for slot in [0, 1, slots - 1] {
                let mut cid = slot;
                let uses = usize::from(u16::MAX / (identifiers.mask + 1));
                let mut seen = std::collections::HashSet::new();
                for _ in 0..uses {
                    assert!(seen.insert(cid), "{cid:#x} came again");
                    assert_eq!(identifiers.index(cid), usize::from(slot));
                    cid = identifiers.next(cid);
                    assert_ne!(cid, u16::MAX);
                }
            }
        }
    }
}
