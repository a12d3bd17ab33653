//! One value for every core, replaced as a whole, with an epoch; and a counter of notifications for
//! each core, which tells it that something changed.
//!
//! `tests/loom.rs` explores every interleaving of it.

use std::sync::Arc;

use crate::sync::Swap;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A value that one thread at a time replaces and many threads read.
pub(crate) struct SnapshotCell<T> {
    epoch: AtomicU32,
    value: Swap<T>,
}

impl<T> SnapshotCell<T> {
    pub(crate) fn new(value: T, epoch: u32) -> Self {
        Self {
            epoch: AtomicU32::new(epoch),
            value: Swap::from_pointee(value),
        }
    }

    /// Replaces the value. A thread that sees the epoch reads this value or a later one.
    pub(crate) fn publish(&self, value: T, epoch: u32) {
        self.value.store(Arc::new(value));
        self.epoch.store(epoch, Ordering::Release);
    }

    /// The epoch of the current value.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The current value.
    pub(crate) fn value(&self) -> Arc<T> {
        self.value.load_full()
    }
}

/// The number of notifications of one core, alone on its cache line.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Notifications(AtomicU64);

impl Notifications {
    /// Notifies the core. When it sees the number, it sees all that changed before.
    pub(crate) fn notify(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Notifications so far. A core reads this number before it reads what changed, so that it looks
    /// again at later changes.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
