//! Counters that one thread writes and any thread reads.
//!
//! A single writer needs no read-modify-write: a relaxed load and store cost as much as a plain
//! addition, and other threads read whole values.

use std::sync::atomic::{AtomicU64, Ordering};

/// One counter with a single writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The current value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds `amount`; only the owning reactor may call it.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.set(self.get().wrapping_add(amount));
    }

    /// Sets a level; only the owning reactor may call it.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}
