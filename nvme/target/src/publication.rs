//! What is published to every core, and how a core learns of it: the value is swapped whole, its
//! epoch says which one it is, and a core's count of calls says that there is something to look at.
//!
//! `tests/loom.rs` explores every interleaving of it.

use std::sync::Arc;

use crate::sync::Swap;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A value that one thread at a time replaces and many read.
pub(crate) struct Publication<T> {
    epoch: AtomicU32,
    value: Swap<T>,
}

impl<T> Publication<T> {
    pub(crate) fn new(value: T, epoch: u32) -> Self {
        Self {
            epoch: AtomicU32::new(epoch),
            value: Swap::from_pointee(value),
        }
    }

    /// Replaces the value. Whoever sees the epoch gets this value or a later one.
    pub(crate) fn publish(&self, value: T, epoch: u32) {
        self.value.store(Arc::new(value));
        self.epoch.store(epoch, Ordering::Release);
    }

    /// The epoch of the value that is published now.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The value that is published now.
    pub(crate) fn value(&self) -> Arc<T> {
        self.value.load_full()
    }
}

/// How often one core was called to look at what changed, alone on its cache line.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Calls(AtomicU64);

impl Calls {
    /// Calls the core. When it sees that, it sees all that changed before.
    pub(crate) fn call(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Calls so far. A core keeps this number before it looks, so that it looks again at what
    /// changes meanwhile.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
