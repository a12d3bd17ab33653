//! How the owner of a drive learns that nobody touches the queues any more: it publishes a word, and
//! each pair that a reactor polls acknowledges that it acts upon it. A pair that nobody polls need
//! not answer, and one that begins to be polled sees the word first.
//!
//! `tests/loom.rs` explores every interleaving of it.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The owner's word. Only the owner publishes.
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) fn new(bits: u64) -> Self {
        Self(AtomicU64::new(bits))
    }

    /// The word now. Whoever sees it sees all that the owner did before it.
    #[inline]
    pub(crate) fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Says it. Whoever is not seen to be attached after this sees it when it attaches.
    pub(crate) fn publish(&self, bits: u64) {
        self.0.store(bits, Ordering::Release);
        // Pairs with the fence in `attach`.
        fence(Ordering::SeqCst);
    }
}

/// Whether a pair is polled, and which word it acts upon.
#[derive(Default)]
pub(crate) struct Presence {
    attached: AtomicBool,
    acknowledged: AtomicU64,
}

impl Presence {
    /// The pair is polled from now on. Gives the word that it has to act upon: either the owner
    /// sees that it is attached, or this is the owner's latest word.
    pub(crate) fn attach(&self, word: &Word) -> u64 {
        self.attached.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        word.load()
    }

    /// Nobody polls the pair any more; all that it did to the queues was before this.
    pub(crate) fn detach(&self) {
        self.attached.store(false, Ordering::Release);
    }

    /// The pair acts upon this word; what it did by an earlier one was before this.
    pub(crate) fn acknowledge(&self, word: u64) {
        self.acknowledged.store(word, Ordering::Release);
    }

    /// Whether the pair does nothing but what this word allows, or nothing at all.
    pub(crate) fn follows(&self, word: u64) -> bool {
        !self.attached.load(Ordering::Acquire) || self.acknowledged.load(Ordering::Acquire) == word
    }
}
