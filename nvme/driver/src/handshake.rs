//! The handshake by which the owner of a drive makes sure that no reactor accesses the queues any
//! more. The owner publishes a word, and each pair that a reactor polls acknowledges that it acts
//! upon it. A pair that is not polled does not have to acknowledge; it reads the word before it is
//! polled again.
//!
//! `tests/loom.rs` explores every interleaving.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The owner's state word. Only the owner publishes it.
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) fn new(bits: u64) -> Self {
        Self(AtomicU64::new(bits))
    }

    /// Reads the word. Everything that the owner did before publishing it is visible to the reader.
    #[inline]
    pub(crate) fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Publishes the word. A pair that the owner does not see attached after this call reads this
    /// word when it attaches.
    pub(crate) fn publish(&self, bits: u64) {
        self.0.store(bits, Ordering::Release);
        // Pairs with the fence in `attach`.
        fence(Ordering::SeqCst);
    }
}

/// Whether a pair is polled, and the word that it acts upon.
#[derive(Default)]
pub(crate) struct Presence {
    attached: AtomicBool,
    acknowledged: AtomicU64,
}

impl Presence {
    /// Marks the pair as polled. Returns the word that it has to act upon. Either the owner sees
    /// that the pair is attached, or this is the owner's latest word.
    pub(crate) fn attach(&self, word: &Word) -> u64 {
        self.attached.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        word.load()
    }

    /// Marks the pair as not polled. All its accesses to the queues happen before.
    pub(crate) fn detach(&self) {
        self.attached.store(false, Ordering::Release);
    }

    /// Declares that the pair acts upon this word. Everything it did under an earlier word happens
    /// before.
    pub(crate) fn acknowledge(&self, word: u64) {
        self.acknowledged.store(word, Ordering::Release);
    }

    /// Whether the pair does only what this word allows, or is not polled.
    pub(crate) fn follows(&self, word: u64) -> bool {
        !self.attached.load(Ordering::Acquire) || self.acknowledged.load(Ordering::Acquire) == word
    }
}
