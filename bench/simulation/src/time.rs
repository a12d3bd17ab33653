//! Virtual time for everything outside the reactors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reactors::Nanos;

/// A copy of the reactors' virtual time for disks and connections: devices must be `Sync`, and the
/// reactors' clock is not. The world keeps both equal.
#[derive(Clone, Debug, Default)]
pub struct SharedTime(Arc<AtomicU64>);

impl SharedTime {
    /// The current time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }

    /// Sets the time.
    pub fn set(&self, now: Nanos) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }
}
