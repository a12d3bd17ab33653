//! Who holds which 4 KiB units of a store: any number of readers, or one writer, try-only.
//!
//! A range takes the words of its units in ascending order, and gives back those it has when one is
//! refused. Taking acquires and giving back releases, and every change of a word that a reader or
//! a waiting writer makes is a read-modify-write, so a writer sees all readers before it gone and
//! every holder sees what the writer before it wrote.
//!
//! A writer that finds readers asks the next ones to yield, so that overlapping readers cannot keep
//! it out for ever: a number of refusals, which a writer that does not come back withdraws, or leaves
//! to run out. Then a reader gets through before the writer can ask again, so that a hold that never ends does
//! not keep readers out as well.

#[cfg(all(test, loom))]
mod models;

use crate::sync::{AtomicU32, Ordering};

/// The low bits of a word: how many readers hold the unit.
const READERS: u32 = 0xFFFF;
/// One refusal owed to a waiting writer; the last one lets its reader through.
const YIELD: u32 = 1 << 16;
/// The part of the word that counts refusals, and how many there are when a writer asks.
const YIELDS: u32 = 0xFFF * YIELD;
/// A writer holds the unit.
const WRITER: u32 = 1 << 31;

const _: () = assert!(READERS & YIELDS == 0 && (READERS | YIELDS) & WRITER == 0);

/// One word per unit.
#[derive(Debug)]
pub(crate) struct Holds {
    words: Box<[AtomicU32]>,
}

impl Holds {
    /// `units` units that nobody holds.
    pub(crate) fn new(units: usize) -> Holds {
        Holds {
            words: (0..units).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Holds units `first..first + count` for reading, all or none.
    pub(crate) fn try_share(&self, first: usize, count: usize) -> bool {
        // Most ranges are idle: the loop over such units calls nothing.
        let words = &self.words[first..first + count];
        let busy = words.iter().position(|word| !share_idle(word));
        busy.is_none_or(|had| share_rest(words, had))
    }

    /// Holds one unit for reading that no writer has or waits for, which is how most are found.
    /// `false`: [`try_share`](Self::try_share) has to look closer.
    #[inline]
    pub(crate) fn try_share_idle(&self, unit: usize) -> bool {
        share_idle(&self.words[unit])
    }

    /// Ends a hold that `try_share` gave.
    pub(crate) fn unshare(&self, first: usize, count: usize) {
        self.words[first..first + count].iter().for_each(unshare);
    }

    /// The same of one unit.
    #[inline]
    pub(crate) fn unshare_one(&self, unit: usize) {
        unshare(&self.words[unit]);
    }

    /// Whether a writer was refused one of these units and has not got it since.
    pub(crate) fn is_awaited(&self, first: usize, count: usize) -> bool {
        self.words[first..first + count]
            .iter()
            .any(|word| word.load(Ordering::Relaxed) & YIELDS != 0)
    }

    /// A writer that was refused some of these units does not come back: readers need not yield to
    /// it any more. Another writer that waits asks again with its next try.
    pub(crate) fn withdraw(&self, first: usize, count: usize) {
        for word in &self.words[first..first + count] {
            if word.load(Ordering::Relaxed) & YIELDS != 0 {
                word.fetch_and(!YIELDS, Ordering::Relaxed);
            }
        }
    }

    /// Holds units `first..first + count` for writing, all or none.
    pub(crate) fn try_own(&self, first: usize, count: usize) -> bool {
        // As in `try_share`.
        let words = &self.words[first..first + count];
        let busy = words.iter().position(|word| !own_free(word));
        busy.is_none_or(|had| own_rest(words, had))
    }

    /// Ends a hold that `try_own` gave.
    pub(crate) fn disown(&self, first: usize, count: usize) {
        for word in &self.words[first..first + count] {
            debug_assert!(
                word.load(Ordering::Relaxed) & WRITER != 0,
                "a hold ends once"
            );
            word.store(0, Ordering::Release);
        }
    }
}

/// Holds a unit for reading that no writer has or waits for. `false`: nothing has happened.
#[inline(always)]
fn share_idle(word: &AtomicU32) -> bool {
    let value = word.load(Ordering::Relaxed);
    // What writers do is in the higher bits.
    let is_idle = value < READERS;
    let after = value.wrapping_add(1);
    is_idle
        && word
            .compare_exchange_weak(value, after, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
}

/// Holds these units for reading, all or none, of which the first `had` are held already.
#[inline(never)]
fn share_rest(words: &[AtomicU32], had: usize) -> bool {
    let refused = words[had..].iter().position(|word| !share(word));
    if let Some(more) = refused {
        words[..had + more].iter().for_each(unshare);
    }
    refused.is_none()
}

fn share(word: &AtomicU32) -> bool {
    let mut value = word.load(Ordering::Relaxed);
    loop {
        // One reader too many for the count is refused as if a writer were there.
        if value & WRITER != 0 || value & READERS == READERS {
            return false;
        }
        let (admitted, after) = match value & YIELDS {
            0 => (true, value + 1),
            YIELD => (true, value + 1 - YIELD),
            _ => (false, value - YIELD),
        };
        match word.compare_exchange_weak(value, after, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return admitted,
            Err(now) => value = now,
        }
    }
}

#[inline]
fn unshare(word: &AtomicU32) {
    let before = word.fetch_sub(1, Ordering::Release);
    debug_assert!(before & READERS > 0, "a hold ends once");
}

/// Holds a unit for writing that is free, and for which no refusal is owed. `false`: nothing has
/// happened.
#[inline(always)]
fn own_free(word: &AtomicU32) -> bool {
    word.compare_exchange_weak(0, WRITER, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// Holds these units for writing, all or none, of which the first `had` are held already.
#[inline(never)]
fn own_rest(words: &[AtomicU32], had: usize) -> bool {
    let tries = words[had..].iter().map(own);
    let refused = tries.enumerate().find(|(_, taken)| *taken != Taken::Owned);
    let Some((more, taken)) = refused else {
        return true;
    };
    let (before, rest) = words.split_at(had + more);
    before.iter().for_each(disown_unused);
    if taken == Taken::Asked {
        // Readers of the rest yield meanwhile, not one unit after the other.
        rest[1..].iter().for_each(ask);
    }
    false
}

/// What became of an attempt to hold a unit for writing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    Owned,
    /// Readers hold it, and those that come were asked to yield just now.
    Asked,
    /// A writer holds it, or readers were asked before.
    Refused,
}

fn own(word: &AtomicU32) -> Taken {
    let mut value = word.load(Ordering::Relaxed);
    loop {
        let free = value & (WRITER | READERS) == 0;
        let asked = value & YIELDS != 0;
        if !free && (asked || value & WRITER != 0) {
            return Taken::Refused;
        }
        // The refusals stay in the word, for a writer that is refused another unit of its range.
        let after = value | if free { WRITER } else { YIELDS };
        match word.compare_exchange_weak(value, after, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) if free => return Taken::Owned,
            Ok(_) => return Taken::Asked,
            Err(now) => value = now,
        }
    }
}

/// Asks readers of a unit to yield, unless it is free or they were asked before. A word that changes
/// meanwhile is left to the next attempt.
fn ask(word: &AtomicU32) {
    let value = word.load(Ordering::Relaxed);
    if value & READERS != 0 && value & (YIELDS | WRITER) == 0 {
        let asked = value | YIELDS;
        let _ = word.compare_exchange(value, asked, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Gives back a unit that a writer had while another of its range was refused: readers yield here
/// too, else a range of busy units would never be free at once.
fn disown_unused(word: &AtomicU32) {
    // Nobody else changes a word that a writer holds.
    let yields = word.load(Ordering::Relaxed) & YIELDS;
    word.store(if yields == 0 { YIELDS } else { yields }, Ordering::Release);
}

#[cfg(all(test, not(loom)))]
mod tests;
