//! A range of controller identifiers.

use std::fmt;
use std::ops::RangeInclusive;

use crate::limits::CONTROLLER_ID_MAX;

/// A range of controller identifiers: not empty, from 1 to 65519.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerIds {
    first: u16,
    last: u16,
}

impl ControllerIds {
    /// The identifiers from `first` to `last`, if they are a range within the limits.
    pub fn new(first: u16, last: u16) -> Option<ControllerIds> {
        let is_valid = first >= 1 && first <= last && last <= CONTROLLER_ID_MAX;
        is_valid.then_some(ControllerIds { first, last })
    }

    /// The identifiers.
    pub fn range(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl fmt::Display for ControllerIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.first, self.last)
    }
}
