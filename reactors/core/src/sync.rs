//! The atomics and cells of the lock-free modules, with loom's interface.
//!
//! `tests/loom.rs` compiles those modules again with a module of the same name that contains loom's
//! types.

pub(crate) use crossbeam_queue::ArrayQueue as Queue;
pub(crate) use std::sync::Arc;

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

/// `std::cell::UnsafeCell` with loom's access methods.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
        access(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}
