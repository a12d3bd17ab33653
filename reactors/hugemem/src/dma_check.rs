//! Tracks which memory of an arena devices may access, and checks each access through a
//! [`DmaView`], in debug builds only. Detects a software device that accesses memory after it was
//! returned.
//!
//! Release builds track and check nothing.
//!
//! [`DmaView`]: crate::DmaView

#[cfg(not(debug_assertions))]
use std::ops::Range;

/// An access of a device to arena memory that was not posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaViolation {
    /// Offset of the first byte in the arena's region.
    pub offset: usize,
    /// Length of the access in bytes.
    pub len: usize,
    /// Whether the device wrote.
    pub wrote: bool,
}

/// The units of an arena that devices may access.
#[derive(Debug)]
pub(crate) struct DmaCheck {
    #[cfg(debug_assertions)]
    state: checked::State,
}

#[cfg(not(debug_assertions))]
impl DmaCheck {
    pub(crate) fn new(_len: usize) -> Self {
        Self {}
    }

    #[inline(always)]
    pub(crate) fn allow(&self, _range: Range<usize>, _allowed: bool) {}

    #[inline(always)]
    pub(crate) fn access(&self, _offset: usize, _len: usize, _wrote: bool) {}

    pub(crate) fn take_violation(&self) -> Option<DmaViolation> {
        None
    }
}

#[cfg(debug_assertions)]
mod checked {
    use std::ops::Range;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, PoisonError};

    use super::{DmaCheck, DmaViolation};
    use crate::UNIT_BYTES;

    #[derive(Debug)]
    pub(super) struct State {
        /// For each unit, whether a device may access it. A slice consists of whole units and has
        /// one owner.
        allowed: Box<[AtomicBool]>,
        first: Mutex<Option<DmaViolation>>,
    }

    impl DmaCheck {
        pub(crate) fn new(len: usize) -> Self {
            let units = len.div_ceil(UNIT_BYTES);
            Self {
                state: State {
                    allowed: (0..units).map(|_| AtomicBool::new(false)).collect(),
                    first: Mutex::new(None),
                },
            }
        }

        /// Allows or forbids device access to a slice.
        pub(crate) fn allow(&self, range: Range<usize>, allowed: bool) {
            let units = range.start / UNIT_BYTES..range.end.div_ceil(UNIT_BYTES);
            for unit in &self.state.allowed[units] {
                unit.store(allowed, Ordering::Release);
            }
        }

        /// Records an access if it is not allowed.
        pub(crate) fn access(&self, offset: usize, len: usize, wrote: bool) {
            let units = offset / UNIT_BYTES..(offset + len).div_ceil(UNIT_BYTES);
            let is_allowed = |unit: &AtomicBool| unit.load(Ordering::Acquire);
            if self.state.allowed[units].iter().all(is_allowed) {
                return;
            }
            let mut first = self.state.first.lock();
            let first = first.as_mut().unwrap_or_else(PoisonError::get_mut);
            first.get_or_insert(DmaViolation { offset, len, wrote });
        }

        pub(crate) fn take_violation(&self) -> Option<DmaViolation> {
            let mut first = self.state.first.lock();
            first.as_mut().unwrap_or_else(PoisonError::get_mut).take()
        }
    }
}
