//! A hierarchical timer wheel with fixed storage.
//!
//! Time is divided into ticks. Level `n` has 64 slots of `64^n` ticks each. A timer is in the level
//! of the highest base-64 digit in which its tick differs from the current one. Eleven levels
//! therefore cover all ticks, and no slot contains timers of two rounds. When the wheel enters a
//! slot of a higher level, it distributes its timers over the lower ones.

use std::fmt;

use crate::time::Nanos;

const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = u64::BITS.div_ceil(DIGIT_BITS) as usize;
/// The list of timers that are due.
const DUE: usize = LEVELS * SLOTS;
/// No list: the entry is free.
const FREE: usize = DUE + 1;
const NONE: u32 = u32::MAX;

/// Identifies an armed timer. Stale after the timer fired or was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

struct Entry<T> {
    tick: u64,
    value: Option<T>,
    next: u32,
    previous: u32,
    list: u16,
    generation: u32,
}

#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
};

/// Timers that each carry a `T`. Inserting and cancelling take constant time, and firing takes
/// constant time per timer and level; nothing allocates after [`TimerWheel::new`].
pub struct TimerWheel<T> {
    /// The current tick: all timers up to it have fired.
    current_tick: u64,
    tick_ns: u64,
    armed: usize,
    free: u32,
    /// One bit per non-empty slot.
    occupied: [u64; LEVELS],
    lists: Box<[List]>,
    entries: Box<[Entry<T>]>,
}

impl<T> TimerWheel<T> {
    /// Creates a wheel for `capacity` timers with a granularity of `tick`, starting at `now`.
    ///
    /// # Panics
    /// If `tick` is zero or `capacity` does not fit in 32 bits.
    #[must_use]
    pub fn new(capacity: usize, tick: Nanos, now: Nanos) -> TimerWheel<T> {
        assert!(tick > Nanos::ZERO, "the tick must not be zero");
        assert!(
            capacity < NONE as usize,
            "a wheel has fewer than 2^32 - 1 timers, not {capacity}"
        );
        let entry = |index: usize| Entry {
            tick: 0,
            value: None,
            next: if index + 1 == capacity {
                NONE
            } else {
                index as u32 + 1
            },
            previous: NONE,
            list: FREE as u16,
            generation: 0,
        };
        TimerWheel {
            current_tick: now.0 / tick.0,
            tick_ns: tick.0,
            armed: 0,
            free: if capacity == 0 { NONE } else { 0 },
            occupied: [0; LEVELS],
            lists: vec![EMPTY; DUE + 1].into_boxed_slice(),
            entries: (0..capacity).map(entry).collect(),
        }
    }

    /// Number of armed timers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.armed
    }

    /// Whether no timer is armed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Maximum number of armed timers.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Arms a timer that fires at the first tick at or after `deadline`: never early, less than a
    /// tick late. If the deadline has passed, the timer is due immediately, after all others that
    /// are due.
    ///
    /// # Errors
    /// The value itself, if `capacity` timers are armed.
    pub fn insert(&mut self, deadline: Nanos, value: T) -> Result<TimerId, T> {
        let index = self.free;
        let Some(entry) = self.entries.get_mut(index as usize) else {
            return Err(value);
        };
        self.free = entry.next;
        entry.tick = deadline.0.div_ceil(self.tick_ns);
        entry.value = Some(value);
        let id = TimerId {
            index,
            generation: entry.generation,
        };
        self.armed += 1;
        self.link(index);
        Ok(id)
    }

    /// Disarms a timer and returns its value; `None` if it has fired or was cancelled.
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let entry = self.entries.get(id.index as usize)?;
        if entry.generation != id.generation || entry.list == FREE as u16 {
            return None;
        }
        self.unlink(id.index);
        self.release(id.index)
    }

    /// The next timer that is due at `now`, in the order of ticks and, within one tick, of
    /// insertion. `None` if no other is due. Unlike [`TimerWheel::advance`] it allows the caller to
    /// arm and cancel timers in between.
    pub fn pop_due(&mut self, now: Nanos) -> Option<(TimerId, T)> {
        let target = now.0 / self.tick_ns;
        loop {
            let index = self.lists[DUE].first;
            if index != NONE {
                let id = TimerId {
                    index,
                    generation: self.entries[index as usize].generation,
                };
                self.unlink(index);
                return self.release(index).map(|value| (id, value));
            }
            match self.next_slot() {
                Some((list, start)) if start <= target => self.enter_slot(list, start),
                _ => {
                    self.current_tick = self.current_tick.max(target);
                    return None;
                }
            }
        }
    }

    /// Fires every timer that is due at `now`; returns their number.
    pub fn advance(&mut self, now: Nanos, mut fire: impl FnMut(T)) -> usize {
        let mut fired = 0;
        while let Some((_, value)) = self.pop_due(now) {
            fire(value);
            fired += 1;
        }
        fired
    }

    /// Time of the next call of [`TimerWheel::advance`], or `None` if no timer is armed. Exact to
    /// the tick for the last 64 ticks of a wait. Before that it may be earlier than the timer: the
    /// call then moves the timer to a lower level, which happens ten times at most.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        if self.lists[DUE].first != NONE {
            return Some(Nanos(self.current_tick.saturating_mul(self.tick_ns)));
        }
        let (_, start) = self.next_slot()?;
        Some(Nanos(start.saturating_mul(self.tick_ns)))
    }

    /// The first occupied slot in time, and its first tick. It is in the lowest occupied level, in
    /// which ticks share all higher digits with the current one.
    fn next_slot(&self) -> Option<(usize, u64)> {
        let level = self.occupied.iter().position(|&slots| slots != 0)?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        let shift = level as u32 * DIGIT_BITS;
        // The top level's digit has only four bits, so no digit is above it.
        let above = self
            .current_tick
            .checked_shr(shift + DIGIT_BITS)
            .unwrap_or(0);
        let base = above.checked_shl(shift + DIGIT_BITS).unwrap_or(0);
        Some((level * SLOTS + slot, base | (slot as u64) << shift))
    }

    /// Advances the current tick to a slot's first tick and distributes the slot's timers.
    fn enter_slot(&mut self, list: usize, start: u64) {
        self.current_tick = start;
        let mut index = self.lists[list].first;
        self.lists[list] = EMPTY;
        self.occupied[list / SLOTS] &= !(1 << (list % SLOTS));
        while index != NONE {
            let next = self.entries[index as usize].next;
            self.link(index);
            index = next;
        }
    }

    /// The list for a tick, relative to the current tick.
    fn list_for(&self, tick: u64) -> usize {
        if tick <= self.current_tick {
            return DUE;
        }
        let level = (tick ^ self.current_tick).ilog2() / DIGIT_BITS;
        let slot = (tick >> (level * DIGIT_BITS)) as usize % SLOTS;
        level as usize * SLOTS + slot
    }

    fn link(&mut self, index: u32) {
        let list = self.list_for(self.entries[index as usize].tick);
        let last = self.lists[list].last;
        let entry = &mut self.entries[index as usize];
        entry.list = list as u16;
        entry.next = NONE;
        entry.previous = last;
        match self.entries.get_mut(last as usize) {
            Some(previous) => previous.next = index,
            None => self.lists[list].first = index,
        }
        self.lists[list].last = index;
        if list != DUE {
            self.occupied[list / SLOTS] |= 1 << (list % SLOTS);
        }
    }

    fn unlink(&mut self, index: u32) {
        let Entry {
            next,
            previous,
            list,
            ..
        } = self.entries[index as usize];
        let list = usize::from(list);
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next = next,
            None => self.lists[list].first = next,
        }
        match self.entries.get_mut(next as usize) {
            Some(entry) => entry.previous = previous,
            None => self.lists[list].last = previous,
        }
        if list != DUE && self.lists[list].first == NONE {
            self.occupied[list / SLOTS] &= !(1 << (list % SLOTS));
        }
    }

    fn release(&mut self, index: u32) -> Option<T> {
        let entry = &mut self.entries[index as usize];
        entry.list = FREE as u16;
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = self.free;
        self.free = index;
        self.armed -= 1;
        entry.value.take()
    }
}

impl<T> fmt::Debug for TimerWheel<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TimerWheel")
            .field("armed", &self.armed)
            .field("capacity", &self.entries.len())
            .field(
                "current_tick",
                &Nanos(self.current_tick.saturating_mul(self.tick_ns)),
            )
            .finish()
    }
}

#[cfg(test)]
mod tests;
