//! The request slots of a connection (`ARCHITECTURE.md` §4): a fixed table whose entries are the
//! states of requests.
//!
//! ```text
//! Free → AwaitingRate → AwaitingBuffer → AwaitingFetch ⇄ FetchingData → Executing (or Held)
//!      → Responding → Free
//! ```
//!
//! [`Requests::step`](crate::Requests::step) performs the transitions of requests that wait; this
//! file holds the table.

use hugemem::Lease;
use nvme_target::Work;

/// The state of a request, with the event that ends it. `F` is the transport's record of data that
/// it fetches from the host, `R` of a response that it sends.
#[derive(Debug)]
pub enum SlotState<F, R> {
    /// Unused, or in the hands of the function that moves the request on. Ends with a command.
    Free,
    /// A rate limit delays it: the target core keeps its place. Ends when the core releases it. Has a
    /// lease if its data came in its capsule and was received before.
    AwaitingRate(Work, Option<Lease>),
    /// Waits in the pool's queue. Ends when the pool grants a lease.
    AwaitingBuffer(Work),
    /// The same for a Copy whose list of source ranges came in its capsule and is in a smaller lease.
    AwaitingCopyBuffer(Work, Lease),
    /// Has a lease, and waits until the transport can fetch more data. Only for transports that
    /// limit fetches.
    AwaitingFetch(F),
    /// Data from the host is being received into the lease. Ends when all of it has arrived.
    FetchingData(F),
    /// The target core has the command. Ends with its completion.
    Executing,
    /// The target core keeps an Asynchronous Event Request until there is an event. Ends with its
    /// completion.
    Held,
    /// Data and response are queued. Ends when the transport has sent them.
    Responding(R),
}

impl<F, R> SlotState<F, R> {
    /// Takes the state; [`SlotState::Free`] remains.
    #[inline]
    pub fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Free)
    }
}

/// The request slots of a connection: as many as its submission queue has entries.
#[derive(Debug)]
pub struct SlotTable<F, R> {
    /// The slots that have been used. There is capacity for all.
    states: Vec<SlotState<F, R>>,
    /// Of these, the free ones. The one freed last is taken first.
    free: Vec<u16>,
    slots: u16,
    vacant: u16,
    held: u16,
}

impl<F, R> Default for SlotTable<F, R> {
    fn default() -> Self {
        Self::new(0)
    }
}

impl<F, R> SlotTable<F, R> {
    /// A table of `slots` free slots. Allocates its storage, but does not touch slots before their
    /// first use: a deep queue that a host uses little occupies little memory.
    #[must_use]
    pub fn new(slots: u16) -> Self {
        Self {
            states: Vec::with_capacity(usize::from(slots)),
            free: Vec::with_capacity(usize::from(slots)),
            slots,
            vacant: slots,
            held: 0,
        }
    }

    /// Bytes of the table's own storage.
    #[must_use]
    pub fn own_bytes(&self) -> usize {
        let states = self.states.capacity() * size_of::<SlotState<F, R>>();
        states + self.free.capacity() * size_of::<u16>()
    }

    /// Number of slots in use, without those of held requests.
    #[must_use]
    pub fn active(&self) -> usize {
        usize::from(self.slots - self.vacant - self.held)
    }

    /// Number of free slots.
    #[must_use]
    #[inline]
    pub fn vacant(&self) -> usize {
        usize::from(self.vacant)
    }

    /// Takes a free slot; `None` if the host has more commands outstanding than its queue has
    /// entries.
    #[inline]
    pub fn take(&mut self) -> Option<u16> {
        let slot = self.free.pop().or_else(|| {
            // Not truncated: there are no more states than slots.
            let unused = self.states.len() as u16;
            (unused < self.slots).then(|| {
                self.states.push(SlotState::Free);
                unused
            })
        })?;
        self.vacant -= 1;
        Some(slot)
    }

    /// Frees a slot whose state is [`SlotState::Free`].
    #[inline]
    pub fn release(&mut self, slot: u16) {
        debug_assert!(matches!(self.state(slot), SlotState::Free));
        debug_assert!(!self.free.contains(&slot), "slot {slot} released twice");
        self.free.push(slot);
        self.vacant += 1;
    }

    /// Frees a slot whose response was sent, and returns the transport's record of the response;
    /// `None` if the slots were abandoned in the meantime.
    #[inline]
    pub fn sent(&mut self, slot: u16) -> Option<R> {
        let state = self.find(slot)?;
        let state = std::mem::replace(state, SlotState::Free);
        self.release(slot);
        match state {
            SlotState::Responding(response) => Some(response),
            _ => None,
        }
    }

    /// Abandons all requests except those for which `keeps` returns true. Their leases return to
    /// the pool. The slots are not taken again.
    pub fn abandon(&mut self, keeps: impl Fn(&SlotState<F, R>) -> bool) {
        for state in &mut self.states {
            if !keeps(state) {
                *state = SlotState::Free;
            }
        }
        self.held = 0;
    }

    /// The states of all slots that have been used.
    pub fn iter(&self) -> impl Iterator<Item = &SlotState<F, R>> {
        self.states.iter()
    }

    /// The states of all slots that have been used.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut SlotState<F, R>> {
        self.states.iter_mut()
    }

    /// The state of a slot that [`take`](Self::take) returned.
    ///
    /// # Panics
    /// If the slot was never taken.
    #[inline]
    pub fn state(&mut self, slot: u16) -> &mut SlotState<F, R> {
        &mut self.states[usize::from(slot)]
    }

    /// The state of a slot whose number comes from elsewhere; `None` if it was never taken.
    #[inline]
    pub fn find(&mut self, slot: u16) -> Option<&mut SlotState<F, R>> {
        self.states.get_mut(usize::from(slot))
    }

    /// Takes the state of `slot`, which is [`SlotState::Free`] until it gets the next one.
    ///
    /// # Panics
    /// If the slot was never taken.
    #[inline]
    pub fn take_state(&mut self, slot: u16) -> SlotState<F, R> {
        std::mem::replace(self.state(slot), SlotState::Free)
    }

    /// Gives a slot its state, which is [`SlotState::Free`] so far.
    ///
    /// # Panics
    /// If the slot was never taken.
    #[inline]
    pub fn set(&mut self, slot: u16, state: SlotState<F, R>) {
        let before = std::mem::replace(self.state(slot), state);
        debug_assert!(matches!(before, SlotState::Free));
        // `Free` has nothing to drop; to find that out costs instructions.
        std::mem::forget(before);
    }

    /// Marks the request in `slot` as held by the target core.
    ///
    /// # Panics
    /// If the slot was never taken.
    pub fn hold(&mut self, slot: u16) {
        *self.state(slot) = SlotState::Held;
        self.held += 1;
    }

    /// Ends the state of a request that the target core has completed.
    #[inline]
    pub(crate) fn completed(&mut self, slot: u16) {
        let state = &mut self.states[usize::from(slot)];
        if matches!(state, SlotState::Held) {
            self.held -= 1;
        }
        *state = SlotState::Free;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Table = SlotTable<(), u8>;

    #[test]
    fn a_table_has_as_many_slots_as_the_queue_has_entries() {
        let mut table = Table::new(2);
        assert_eq!(
            (table.take(), table.take(), table.take()),
            (Some(0), Some(1), None)
        );
        table.release(0);
        assert_eq!((table.vacant(), table.active()), (1, 1));
        assert_eq!(
            table.take(),
            Some(0),
            "a slot that was used before is taken first"
        );
    }

    #[test]
    fn held_requests_are_not_active() {
        let mut table = Table::new(4);
        let held = table.take().expect("a free slot");
        table.hold(held);
        assert_eq!((table.vacant(), table.active()), (3, 0));
        table.completed(held);
        assert_eq!((table.vacant(), table.active()), (3, 1));
    }

    #[test]
    fn a_sent_response_frees_its_slot_unless_the_table_was_replaced() {
        let mut table = Table::new(1);
        let slot = table.take().expect("a free slot");
        *table.state(slot) = SlotState::Responding(7);
        assert_eq!(table.sent(slot), Some(7));
        assert_eq!(table.vacant(), 1);
        assert_eq!(Table::default().sent(slot), None);
    }

    #[test]
    fn abandoned_slots_are_free_but_not_taken_again() {
        let mut table = Table::new(2);
        let (one, other) = (table.take().expect("free"), table.take().expect("free"));
        *table.state(one) = SlotState::FetchingData(());
        *table.state(other) = SlotState::Executing;
        table.abandon(|state| matches!(state, SlotState::FetchingData(())));
        assert!(matches!(table.state(one), SlotState::FetchingData(())));
        assert!(matches!(table.state(other), SlotState::Free));
        assert_eq!(table.take(), None);
    }
}
