//! The table of what is in flight on a pair.

use block::{DeviceError, Operation};
use hugemem::{DmaDriver, DmaLease, Lease};

use super::CompletionTail;

/// What a slot is in use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Nothing: the slot is on the free list.
    Free,
    /// A request that is one command. The drive moves it on.
    Whole,
    /// One command of a request in parts. The drive moves it on.
    Part,
    /// A request in parts; it has no command itself. Its parts move it on.
    Parent,
    /// A request that is over. The poll of its queue moves it on.
    Done,
}

/// What the driver posts to drives, as the posted memory knows it.
#[derive(Debug)]
pub(super) enum NvmeDma {}

impl DmaDriver for NvmeDma {
    type Done = CommandDone;
}

/// Proof that the drive does not access the memory of a slot any more. Made in this file alone.
pub(super) struct CommandDone(());

/// Slots whose queue was dropped: nobody wants to know how they end.
pub(super) const ORPHAN: u8 = u8::MAX;

/// One slot, two thirds of a cache line; its index is part of its commands' identifiers.
pub(super) struct Slot {
    /// The request's lease; of a part, the lease that it was given for itself.
    pub(super) data: Option<DmaLease<NvmeDma>>,
    /// The request's tag; of a part, where in the request's data it begins, bytes.
    pub(super) tag: u64,
    /// Bytes of the range; of a part, of its data.
    pub(super) bytes: u32,
    /// Tick of the owner's clock at submission.
    pub(super) submitted: u32,
    /// Identifier of the current or last command.
    pub(super) cid: u16,
    /// Of a part: its request's slot.
    pub(super) parent: u16,
    pub(super) operation: Operation,
    pub(super) state: SlotState,
    /// The queue that the request came by, or [`ORPHAN`].
    pub(super) queue: u8,
    /// Whether the owner was asked to abort it.
    pub(super) overdue: bool,
    /// Of a request that is over: how it ended.
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

    /// Takes the lease of a request whose one command the drive has completed.
    #[inline(always)]
    pub(super) fn take_completed(&mut self, _entry: &CompletionTail) -> Option<Lease> {
        debug_assert!(self.state == SlotState::Whole, "it is one command");
        let data = self.data.take()?;
        Some(data.returned(&CommandDone(())))
    }

    /// Takes the lease of a request that is over: none of its commands is with the drive, or the
    /// drive has stopped.
    pub(super) fn take_data(&mut self) -> Option<Lease> {
        debug_assert!(self.state == SlotState::Done, "the drive may access it");
        if self.state != SlotState::Done {
            return None;
        }
        let data = self.data.take()?;
        Some(data.returned(&CommandDone(())))
    }

    /// Reads the data of a request in parts whose commands name other memory: of a compare that is
    /// done here.
    pub(super) fn read_unposted<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let data = self.data.take()?.returned(&CommandDone(()));
        let value = read(&data);
        self.data = Some(data.into_dma());
        Some(value)
    }

    /// Whether the drive may be working for it.
    pub(super) fn has_command(&self) -> bool {
        matches!(self.state, SlotState::Whole | SlotState::Part)
    }
}

/// How identifiers are made: the slot's index in the low bits, a generation above.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identifiers {
    mask: u16,
}

impl Identifiers {
    /// For so many slots, at most 4096: at least four bits are left for the generation.
    pub(super) fn new(slots: u16) -> Self {
        let mask = slots.next_power_of_two() - 1;
        Self { mask }
    }

    #[inline]
    pub(super) fn index(self, cid: u16) -> usize {
        usize::from(cid & self.mask)
    }

    /// The identifier of the slot's next command. FFFFh is left out: the error log uses it for
    /// "no command" (Base 2.1 §4.1.1).
    #[inline]
    pub(super) fn next(self, cid: u16) -> u16 {
        let next = cid.wrapping_add(self.mask + 1);
        if next == u16::MAX { self.mask } else { next }
    }
}

/// What a request in parts still has to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) kind: WorkKind,
    pub(super) nsid: u32,
    /// Next block.
    pub(super) lba: u64,
    /// Blocks for which no command was sent.
    pub(super) left: u32,
    /// Blocks of one command at most.
    pub(super) step: u32,
    /// Bytes of the request's data that commands were sent for.
    pub(super) offset: u32,
    /// log2 of the block size.
    pub(super) shift: u8,
    /// Commands in flight.
    pub(super) outstanding: u8,
    /// How it ended so far.
    pub(super) result: Result<(), DeviceError>,
}

/// How a request in parts is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkKind {
    /// Reads, writes or compares of parts of its data.
    Transfer,
    /// Write Zeroes commands.
    Zeroes { fua: bool, deallocate: bool },
    /// Writes of zeroes, for a drive without Write Zeroes.
    WrittenZeroes { fua: bool },
    /// Dataset Management commands.
    Deallocate,
    /// Reads into a lease of the pair's, which are then compared here, for a drive without Compare.
    ComparedHere,
}

impl Work {
    const fn none() -> Self {
        Self {
            kind: WorkKind::Transfer,
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
    /// Free slots; the last one freed is warm, so it is used next.
    pub(super) free: Vec<u16>,
    /// Of requests in parts, by slot.
    pub(super) works: Box<[Work]>,
    pub(super) identifiers: Identifiers,
}

impl SlotTable {
    pub(super) fn new(count: u16) -> Self {
        Self {
            slots: (0..count).map(Slot::new).collect(),
            free: (0..count).rev().collect(),
            works: (0..count).map(|_| Work::none()).collect(),
            identifiers: Identifiers::new(count),
        }
    }

    /// Slots in use.
    pub(super) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts a slot, whose lease is gone, on the free list.
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
    fn identifiers_keep_their_slot_and_differ_from_use_to_use() {
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
