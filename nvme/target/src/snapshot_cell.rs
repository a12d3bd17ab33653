//! An immutable value with an epoch that is shared by all cores and replaced as a whole, and a
//! counter of change notifications for each core.
//!
//! `tests/loom.rs` explores every interleaving.

use std::sync::Arc;

use crate::sync::Swap;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A value with one writer at a time and many readers.
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

    /// Replaces the value. A thread that reads the new epoch then reads this value or a later one.
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
    /// Notifies the core. A core that reads the new number also sees all changes made before.
    pub(crate) fn notify(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Notifications so far. A core reads this number before it reads the changes, so that later
    /// changes cause another look.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
