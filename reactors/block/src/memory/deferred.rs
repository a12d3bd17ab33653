//! Requests deferred by range locks, in an order that is cheap to maintain.
//!
//! A request waits behind the newest older request that touches the same memory, and is tried only
//! if there is none. One poll tries a limited number of requests and promotes a limited number, so
//! its cost does not depend on the number of deferred requests. A filter over the device shows
//! requests for other memory that no deferred request concerns them.

use std::collections::VecDeque;

use hugemem::UNIT_BYTES;

use super::Attempt;

/// Maximum number of deferred requests of one queue: every command that a reactor can have in
/// execution.
pub(super) const DEFERRED_MAX: usize = 65_536;
/// Slots are allocated in steps of this many, the first when the queue opens.
const SLOTS_STEP: usize = 1024;
/// Maximum number of requests tried in one poll.
pub(super) const TRIES_PER_POLL_MAX: usize = 16;
/// Maximum number of requests promoted in one poll after the request that they wait for has ended.
/// Each promotion searches the older requests.
pub(super) const PROMOTIONS_PER_POLL_MAX: usize = 4;
/// Bytes of the device per counter of the filter.
const GRANULE_BYTES: usize = 64 * UNIT_BYTES;
/// Number of counters of the filter.
const COUNTERS: usize = 1024;
/// A request over more granules than this counts for the whole device.
const GRANULES_MAX: usize = 16;

/// A slot's index.
pub(super) type SlotIndex = u32;
const NONE: SlotIndex = SlotIndex::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Tried by polls: no older request touches its memory.
    Front,
    /// Waits in the list of an older request and is promoted when that request has ended.
    Behind,
    /// Promoted by one of the next polls.
    Promoting,
}

struct Slot {
    attempt: Option<Attempt>,
    state: State,
    older: SlotIndex,
    newer: SlotIndex,
    /// The list of requests that wait behind this one, oldest first.
    first_behind: SlotIndex,
    last_behind: SlotIndex,
    next_behind: SlotIndex,
    /// Granules that it is counted in; `None` if it is counted for the whole device.
    granules: Option<(usize, usize)>,
}

/// The deferred requests of a queue.
pub(super) struct DeferredRequests {
    slots: Vec<Slot>,
    free: Vec<SlotIndex>,
    oldest: SlotIndex,
    newest: SlotIndex,
    len: usize,
    front: VecDeque<SlotIndex>,
    to_promote: VecDeque<SlotIndex>,
    filter: Box<[u32; COUNTERS]>,
    /// Requests over too many granules to be counted in each.
    wide: u32,
}

/// First and last granule of a byte range.
fn granules(offset: usize, len: usize) -> Option<(usize, usize)> {
    let first = offset / GRANULE_BYTES;
    let last = (offset + len.max(1) - 1) / GRANULE_BYTES;
    (last - first < GRANULES_MAX).then_some((first, last))
}

impl DeferredRequests {
    pub(super) fn new() -> Self {
        let mut deferred = Self {
            slots: Vec::new(),
            free: Vec::new(),
            oldest: NONE,
            newest: NONE,
            len: 0,
            front: VecDeque::new(),
            to_promote: VecDeque::new(),
            filter: Box::new([0; COUNTERS]),
            wide: 0,
        };
        deferred.add_slots();
        deferred
    }

    /// Allocates a step of slots and the lists for them. More than one step is needed only if more
    /// than a thousand requests wait for memory that a host has borrowed.
    #[cold]
    fn add_slots(&mut self) {
        let before = self.slots.len();
        self.slots.reserve_exact(SLOTS_STEP);
        self.free.reserve_exact(before + SLOTS_STEP);
        for list in [&mut self.front, &mut self.to_promote] {
            list.reserve_exact(before + SLOTS_STEP - list.len());
        }
        for index in before..before + SLOTS_STEP {
            self.slots.push(Slot {
                attempt: None,
                state: State::Free,
                older: NONE,
                newer: NONE,
                first_behind: NONE,
                last_behind: NONE,
                next_behind: NONE,
                granules: None,
            });
            self.free.push(index as SlotIndex);
        }
        self.free[..].reverse();
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == DEFERRED_MAX
    }

    /// Whether a deferred request may touch the range; false is certain.
    #[cold]
    pub(super) fn may_touch(&self, offset: usize, len: usize) -> bool {
        let Some((first, last)) = granules(offset, len) else {
            return !self.is_empty();
        };
        self.wide > 0 || (first..=last).any(|granule| self.filter[granule % COUNTERS] > 0)
    }

    /// Whether a deferred request touches the same memory.
    pub(super) fn touches(&self, attempt: &Attempt) -> bool {
        self.may_touch(attempt.offset, attempt.len)
            && self.newest_touching(self.newest, attempt) != NONE
    }

    /// The newest request that touches the same memory, from `index` on towards older ones.
    fn newest_touching(&self, mut index: SlotIndex, attempt: &Attempt) -> SlotIndex {
        while index != NONE {
            let slot = &self.slots[index as usize];
            if slot.attempt.as_ref().is_some_and(|it| it.overlaps(attempt)) {
                return index;
            }
            index = slot.older;
        }
        NONE
    }

    /// Adds a request after all others.
    pub(super) fn defer(&mut self, attempt: Attempt) {
        if self.free.is_empty() {
            self.add_slots();
        }
        let Some(index) = self.free.pop() else {
            unreachable!("slots were added")
        };
        let granules = granules(attempt.offset, attempt.len);
        self.count(granules, |counter| *counter += 1);
        let older = self.newest;
        let slot = &mut self.slots[index as usize];
        slot.attempt = Some(attempt);
        (slot.older, slot.newer, slot.granules) = (older, NONE, granules);
        (slot.first_behind, slot.last_behind) = (NONE, NONE);
        match older {
            NONE => self.oldest = index,
            older => self.slots[older as usize].newer = index,
        }
        self.newest = index;
        self.len += 1;
        self.place(index);
    }

    fn count(&mut self, granules: Option<(usize, usize)>, change: impl Fn(&mut u32)) {
        match granules {
            Some((first, last)) => {
                for granule in first..=last {
                    change(&mut self.filter[granule % COUNTERS]);
                }
            }
            None => change(&mut self.wide),
        }
    }

    /// Finds the request that this one has to wait for.
    fn place(&mut self, index: SlotIndex) {
        let slot = &self.slots[index as usize];
        let before = match &slot.attempt {
            Some(attempt) => self.newest_touching(slot.older, attempt),
            None => NONE,
        };
        if before == NONE {
            self.slots[index as usize].state = State::Front;
            self.front.push_back(index);
            return;
        }
        let slot = &mut self.slots[index as usize];
        (slot.state, slot.next_behind) = (State::Behind, NONE);
        let last = self.slots[before as usize].last_behind;
        match last {
            NONE => self.slots[before as usize].first_behind = index,
            last => self.slots[last as usize].next_behind = index,
        }
        self.slots[before as usize].last_behind = index;
    }

    /// The next request to try; the caller calls [`put_back`](Self::put_back) or
    /// [`remove`](Self::remove). Removes requests that were given up.
    pub(super) fn next(&mut self) -> Option<SlotIndex> {
        while let Some(index) = self.front.pop_front() {
            if self.slots[index as usize].attempt.is_some() {
                return Some(index);
            }
            self.remove(index);
            self.promote(1);
        }
        None
    }

    /// Number of requests that can be tried.
    pub(super) fn front_len(&self) -> usize {
        self.front.len()
    }

    pub(super) fn attempt(&mut self, index: SlotIndex) -> &mut Attempt {
        let attempt = self.slots[index as usize].attempt.as_mut();
        attempt.expect("a request that is tried is parked")
    }

    /// Puts a request back that cannot end yet. If a part of it is done, those behind it may no
    /// longer have to wait.
    pub(super) fn put_back(&mut self, index: SlotIndex, progress: bool) {
        self.front.push_back(index);
        if !progress {
            return;
        }
        for _ in 0..PROMOTIONS_PER_POLL_MAX {
            let first = self.slots[index as usize].first_behind;
            if first == NONE {
                return;
            }
            let next = self.slots[first as usize].next_behind;
            let slot = &mut self.slots[index as usize];
            slot.first_behind = next;
            if next == NONE {
                slot.last_behind = NONE;
            }
            self.slots[first as usize].state = State::Promoting;
            self.to_promote.push_back(first);
        }
    }

    /// Promotes at most `most` requests.
    pub(super) fn promote(&mut self, most: usize) {
        for _ in 0..most {
            let Some(index) = self.to_promote.pop_front() else {
                return;
            };
            self.place(index);
        }
    }

    /// Removes a request that ended. Later polls promote those behind it.
    pub(super) fn remove(&mut self, index: SlotIndex) -> Option<Attempt> {
        let slot = &mut self.slots[index as usize];
        let attempt = slot.attempt.take();
        let (older, newer, granules) = (slot.older, slot.newer, slot.granules);
        let mut behind = slot.first_behind;
        slot.state = State::Free;
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        self.count(granules, |counter| *counter -= 1);
        while behind != NONE {
            let next = self.slots[behind as usize].next_behind;
            self.slots[behind as usize].state = State::Promoting;
            self.to_promote.push_back(behind);
            behind = next;
        }
        self.free.push(index);
        self.len -= 1;
        attempt
    }

    /// Ends the requests that `is_unwanted` selects by their tags. Their slots stay in place until
    /// their turn.
    pub(super) fn give_up(
        &mut self,
        is_unwanted: &mut dyn FnMut(u64) -> bool,
        mut end: impl FnMut(Attempt),
    ) {
        let mut index = self.oldest;
        while index != NONE {
            let slot = &mut self.slots[index as usize];
            let unwanted = slot.attempt.take_if(|it| is_unwanted(it.request.tag));
            if let Some(attempt) = unwanted {
                end(attempt);
            }
            index = slot.newer;
        }
    }
}
