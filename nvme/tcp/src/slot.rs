//! The life of a request on a connection (`ARCHITECTURE.md` §4): a slot in a fixed table, its state
//! one enum.
//!
//! ```text
//! Free → AwaitingBuffer → FetchingData → Executing (or Held) → Answering → Free
//! ```
//!
//! Data and response are queued for the wire together, so sending them is one state. The move from
//! one state to the next is `Connection::step`; this file holds the table.

use hugemem::Lease;
use nvme_target::{Timing, Work};

/// Where a request stands, and who moves it on.
#[derive(Debug)]
pub(crate) enum SlotState {
    /// Unused; a command capsule moves it on.
    Free,
    /// Waits in the pool's queue; a buffer that comes home moves it on.
    AwaitingBuffer(Work),
    /// The host's data is arriving in `lease`; the receiver moves it on.
    FetchingData(Fetch),
    /// With the target core; its completion moves it on.
    Executing,
    /// An event request that the target core keeps until there is an event; its completion moves it
    /// on.
    Held,
    /// Its last PDU is queued; the transmitter moves it on.
    Answering(Timing),
}

/// Host data on its way into a lease.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) work: Work,
    pub(crate) lease: Lease,
    /// Bytes that have arrived.
    pub(crate) filled: usize,
    /// Of these, the first ones that are in the device already, and not in the lease: whole blocks.
    pub(crate) placed: usize,
    /// Bytes of a block of the device that data may be received straight into, if it may.
    pub(crate) block_bytes: Option<usize>,
    /// Asked for with an R2T, so H2CData PDUs bring it; otherwise it comes in the capsule.
    pub(crate) solicited: bool,
    /// A data digest did not match: the command fails once all of its data has been taken off the
    /// wire.
    pub(crate) corrupt: bool,
}

impl Fetch {
    /// Bytes still missing.
    pub(crate) fn missing(&self) -> usize {
        self.lease.len() - self.filled
    }
}

/// A connection's requests: as many as its submission queue has entries.
#[derive(Debug, Default)]
pub(crate) struct SlotTable {
    /// Of the slots that were ever used; there is room for all.
    states: Vec<SlotState>,
    /// Of these, the free ones; the one used last is taken first.
    free: Vec<u16>,
    slots: u16,
}

impl SlotTable {
    /// A table of `slots` free slots, its storage taken once. What is never used is never touched,
    /// so that a host which asks for a deep queue and uses little of it costs little memory.
    pub(crate) fn new(slots: u16) -> Self {
        Self {
            states: Vec::with_capacity(usize::from(slots)),
            free: Vec::with_capacity(usize::from(slots)),
            slots,
        }
    }

    /// Bytes that it holds: of its own, and of leases.
    pub(crate) fn held_bytes(&self) -> (usize, usize) {
        let states = self.states.capacity() * size_of::<SlotState>();
        let free = self.free.capacity() * size_of::<u16>();
        let leased = self.states.iter().map(|state| match state {
            SlotState::FetchingData(fetch) => fetch.lease.len(),
            _ => 0,
        });
        (states + free, leased.sum())
    }

    /// Slots in use.
    pub(crate) fn in_use(&self) -> usize {
        self.states.len() - self.free.len()
    }

    /// Slots that are free.
    pub(crate) fn vacant(&self) -> usize {
        usize::from(self.slots) - self.in_use()
    }

    /// Takes a free slot; `None` when the host has more commands in flight than its queue has
    /// entries.
    pub(crate) fn take(&mut self) -> Option<u16> {
        self.free.pop().or_else(|| {
            // No more than the slots, whose number is of the same type.
            let unused = self.states.len() as u16;
            (unused < self.slots).then(|| {
                self.states.push(SlotState::Free);
                unused
            })
        })
    }

    /// Gives a slot back, whose answer went; its timing. A slot of a table that was abandoned
    /// meanwhile is gone already.
    pub(crate) fn release(&mut self, slot: u16) -> Timing {
        let mut timing = Timing::NONE;
        if let Some(state) = self.states.get_mut(usize::from(slot)) {
            if let SlotState::Answering(of_answer) = *state {
                timing = of_answer;
            }
            *state = SlotState::Free;
            debug_assert!(!self.free.contains(&slot), "slot {slot} released twice");
            self.free.push(slot);
        }
        timing
    }

    /// The timings of answers that have not gone.
    pub(crate) fn answers(&mut self) -> impl Iterator<Item = &mut Timing> {
        self.states.iter_mut().filter_map(|state| match state {
            SlotState::Answering(timing) => Some(timing),
            SlotState::Free
            | SlotState::AwaitingBuffer(_)
            | SlotState::FetchingData(_)
            | SlotState::Executing
            | SlotState::Held => None,
        })
    }

    /// Forgets every request; their buffers come home.
    pub(crate) fn abandon(&mut self) {
        *self = Self::default();
    }

    /// Whether a request's data is still on its way from the host.
    pub(crate) fn any_fetching(&self) -> bool {
        self.any(|state| matches!(state, SlotState::FetchingData(_)))
    }

    /// Whether any state is such a one.
    pub(crate) fn any(&self, is_such: impl Fn(&SlotState) -> bool) -> bool {
        self.states.iter().any(is_such)
    }

    /// The state of `slot`, which came from this table.
    pub(crate) fn state(&mut self, slot: u16) -> &mut SlotState {
        &mut self.states[usize::from(slot)]
    }

    /// Takes the state of `slot` out; it is free until it gets the next one.
    pub(crate) fn take_state(&mut self, slot: u16) -> SlotState {
        std::mem::replace(&mut self.states[usize::from(slot)], SlotState::Free)
    }

    /// What a planted defect does: a request takes the place of the one that has waited longest for
    /// as much, which gets its own.
    #[cold]
    pub(crate) fn take_first_place(&mut self, mut work: Work) -> Work {
        let is_like =
            |other: &Work| (other.direction(), other.bytes()) == (work.direction(), work.bytes());
        let waiting = self.states.iter_mut().filter_map(|state| match state {
            SlotState::AwaitingBuffer(other) if is_like(other) => Some(other),
            _ => None,
        });
        let first = waiting.min_by_key(|other| other.command_id());
        if let Some(first) = first {
            std::mem::swap(first, &mut work);
        }
        work
    }

    /// The state of `slot` as a foreign number names it.
    pub(crate) fn find(&mut self, slot: u16) -> Option<&mut SlotState> {
        self.states.get_mut(usize::from(slot))
    }
}
