//! The time that everything outside of the reactors goes by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reactors::Nanos;

/// A copy of the reactors' virtual time that disks and wires can hold: devices must be `Sync`,
/// which the reactors' own clock is not. The world keeps the two alike.
#[derive(Clone, Debug, Default)]
pub struct SharedTime(Arc<AtomicU64>);

impl SharedTime {
    /// The present time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }

    /// Moves time on.
    pub fn set(&self, now: Nanos) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }
}
