//! Lengths of time: `10s`, `500ms`, `200us`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Hint, split_number};

/// A length of time in whole microseconds, written as a whole number and a unit.
///
/// Units: `us`, `ms`, `s`, `min`, `h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period {
    micros: u64,
}

const UNITS: [(&str, u64); 5] = [
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1000),
    ("us", 1),
];

impl Period {
    /// `millis` milliseconds. The product has to fit: this is for constants.
    pub const fn from_millis(millis: u64) -> Period {
        Period::from_micros(millis * 1000)
    }

    /// `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Period {
        Period { micros }
    }

    /// The length in microseconds.
    pub const fn as_micros(self) -> u64 {
        self.micros
    }

    /// The length as the standard library's type.
    pub const fn as_duration(self) -> Duration {
        Duration::from_micros(self.micros)
    }
}

impl fmt::Display for Period {
    /// Prints the length in the largest unit that divides it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |unit_us: u64| self.micros != 0 && self.micros.is_multiple_of(unit_us);
        let (unit, unit_us) = UNITS
            .into_iter()
            .find(|(_, us)| whole(*us))
            .unwrap_or(("ms", 1000));
        write!(f, "{}{unit}", self.micros / unit_us)
    }
}

/// Why a text is not a length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeriodError {
    /// It does not begin with a digit.
    #[error("a length of time begins with a whole number")]
    NoNumber,
    /// It has a decimal point or comma.
    #[error("a length of time is a whole number of its unit")]
    Fraction,
    /// It is a number only.
    #[error("the length of time has no unit")]
    NoUnit,
    /// Its unit is unknown.
    #[error("the length of time has an unknown unit")]
    UnknownUnit,
    /// It is 2⁶⁴ microseconds or more.
    #[error("the length of time is too large")]
    TooLong,
}

impl Hint for PeriodError {
    fn hint(&self) -> Option<String> {
        match self {
            PeriodError::TooLong => None,
            PeriodError::Fraction => Some("use a smaller unit: 1500ms is 1.5 s".to_owned()),
            PeriodError::NoNumber | PeriodError::NoUnit | PeriodError::UnknownUnit => {
                Some("write a number and one of the units us, ms, s, min, h, like 10s".to_owned())
            }
        }
    }

    fn beyond_limit(&self) -> bool {
        matches!(self, PeriodError::TooLong)
    }
}

impl FromStr for Period {
    type Err = PeriodError;

    fn from_str(text: &str) -> Result<Period, PeriodError> {
        let (number, rest) = split_number(text);
        if number.is_empty() {
            return Err(PeriodError::NoNumber);
        }
        if rest.starts_with(['.', ',']) {
            return Err(PeriodError::Fraction);
        }
        let unit = rest.trim_start_matches(' ');
        if unit.is_empty() {
            return Err(PeriodError::NoUnit);
        }
        let (_, unit_us) = UNITS
            .into_iter()
            .find(|(name, _)| *name == unit)
            .ok_or(PeriodError::UnknownUnit)?;
        let count: u64 = number.parse().map_err(|_| PeriodError::TooLong)?;
        count
            .checked_mul(unit_us)
            .map(Period::from_micros)
            .ok_or(PeriodError::TooLong)
    }
}
