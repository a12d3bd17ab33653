//! The life of a request on a connection (`ARCHITECTURE.md` §4): a slot in a fixed table, its state
//! one enum.
//!
//! ```text
//! Free → AwaitingBuffer → AwaitingRead ⇄ FetchingData → Executing (or Held) → AwaitingSend → Free
//! ```
//!
//! A request enters when its capsule was received. Data and response are posted together, and with
//! that the slot is free: the host may use the command's place again as soon as it has the
//! response. What the posted work needs stays in [`posted`](crate::posted). The move from
//! one state to the next is `Connection::step`; this file holds the table.

use hugemem::{Data, Lease};
use nvme_spec::Cqe;
use nvme_target::{KeyedBlocks, Timing, Work};

use crate::posted::{QueueDestroyed, ReadBuffer};

/// Where a request stands, and who moves it on.
#[derive(Debug)]
pub(crate) enum SlotState {
    /// Unused; a command capsule moves it on.
    Free,
    /// Waits in the pool's line; a buffer that comes home moves it on.
    AwaitingBuffer(Work),
    /// Waits in the connection's line for reads; a read that ends moves it on.
    AwaitingRead(Fetch),
    /// The host's data is being read into its lease; the last read's completion moves it on.
    FetchingData(Fetch),
    /// With the target core; its completion moves it on.
    Executing,
    /// An event request that the target core keeps until there is an event; its completion moves it
    /// on.
    Held,
    /// Waits in the connection's line for room in the send queue; send completions move it on.
    AwaitingSend(Answer),
}

/// Host data on its way into a lease.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) work: Work,
    pub(crate) buffer: ReadBuffer,
    /// Blocks whose read was posted.
    pub(crate) blocks: u8,
    /// Bytes that those hold.
    pub(crate) posted_bytes: u32,
}

impl Fetch {
    /// A fetch of which nothing is posted.
    pub(crate) fn new(work: Work, lease: Lease) -> Self {
        Self {
            work,
            buffer: ReadBuffer::new(lease),
            blocks: 0,
            posted_bytes: 0,
        }
    }

    /// Whether every read is posted.
    #[inline]
    pub(crate) fn is_posted(&self) -> bool {
        self.posted_bytes == self.work.bytes()
    }
}

/// What the host is told.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Cqe,
    /// `data[..bytes]` goes to the host's memory before the response.
    pub(crate) data: Option<Data>,
    pub(crate) bytes: u32,
    pub(crate) timing: Timing,
}

/// A request's place.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) state: SlotState,
    /// Where the host's data lies, and the key to invalidate.
    pub(crate) remote: KeyedBlocks,
}

/// A connection's requests: as many as its submission queue has entries.
#[derive(Debug, Default)]
pub(crate) struct SlotTable {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

impl SlotTable {
    /// A table of `slots` free slots, its storage taken once.
    pub(crate) fn new(slots: u16) -> Self {
        Self {
            slots: (0..slots)
                .map(|_| Slot {
                    state: SlotState::Free,
                    remote: KeyedBlocks::default(),
                })
                .collect(),
            free: (0..slots).rev().collect(),
        }
    }

    /// Slots in use.
    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether another command may come in.
    #[inline]
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free slot; `None` when the host has more commands outstanding than its queue has
    /// entries.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Gives a slot back, whose state nobody needs any more.
    #[inline]
    pub(crate) fn release(&mut self, slot: u16) {
        debug_assert!(matches!(self.state(slot), SlotState::Free));
        debug_assert!(!self.free.contains(&slot), "slot {slot} released twice");
        self.free.push(slot);
    }

    /// The slot of that number, which came from this table.
    #[inline]
    pub(crate) fn at(&mut self, slot: u16) -> &mut Slot {
        &mut self.slots[usize::from(slot)]
    }

    /// The state of `slot`, which came from this table.
    #[inline]
    pub(crate) fn state(&mut self, slot: u16) -> &mut SlotState {
        &mut self.slots[usize::from(slot)].state
    }

    /// Takes the state of `slot` out; it is free until it gets the next one.
    #[inline]
    pub(crate) fn take_state(&mut self, slot: u16) -> SlotState {
        std::mem::replace(self.state(slot), SlotState::Free)
    }

    /// Whether there is a slot of that number, which somebody else kept meanwhile.
    pub(crate) fn contains(&self, slot: u16) -> bool {
        usize::from(slot) < self.slots.len()
    }

    /// The queue pair was destroyed: no read is outstanding any more.
    pub(crate) fn queue_destroyed(&mut self, proof: &QueueDestroyed) {
        for slot in &mut self.slots {
            if let SlotState::FetchingData(fetch) = &mut slot.state {
                fetch.buffer.queue_destroyed(proof);
            }
        }
    }

    /// Forgets every request: a mistake to be found while reads are outstanding.
    pub(crate) fn abandon_all(&mut self) {
        for slot in &mut self.slots {
            slot.state = SlotState::Free;
        }
    }

    /// Forgets every request save those whose leases the device may write, and, where `answered`
    /// says so, the answers.
    pub(crate) fn abandon(&mut self, answered: bool) {
        for slot in &mut self.slots {
            match slot.state {
                SlotState::FetchingData(_) => {}
                SlotState::AwaitingSend(_) if !answered => {}
                SlotState::Free
                | SlotState::AwaitingBuffer(_)
                | SlotState::AwaitingRead(_)
                | SlotState::Executing
                | SlotState::Held
                | SlotState::AwaitingSend(_) => slot.state = SlotState::Free,
            }
        }
    }
}
