//! Byte sizes: `4GiB`, `512B`, `100MB`.

use std::fmt;
use std::str::FromStr;

use super::{Hint, split_number};

/// A number of bytes, written as a whole number and a unit.
///
/// Units: `B`; `KiB MiB GiB TiB` (powers of 1024); `kB MB GB TB` (powers of 1000). Units are
/// case-sensitive. One configuration key takes at most 2⁶⁴−1 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

const BINARY: [(&str, u64); 4] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
];
const DECIMAL: [(&str, u64); 4] = [
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
];

impl ByteSize {
    /// `count` bytes.
    pub const fn from_bytes(count: u64) -> ByteSize {
        ByteSize(count)
    }

    /// `count` times 1024 bytes; the largest size on overflow.
    pub const fn from_kib(count: u64) -> ByteSize {
        ByteSize(count.saturating_mul(1 << 10))
    }

    /// `count` times 1024² bytes; the largest size on overflow.
    pub const fn from_mib(count: u64) -> ByteSize {
        ByteSize(count.saturating_mul(1 << 20))
    }

    /// `count` times 1024³ bytes; the largest size on overflow.
    pub const fn from_gib(count: u64) -> ByteSize {
        ByteSize(count.saturating_mul(1 << 30))
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    /// Prints the size in the largest binary unit that divides it, else the largest decimal one,
    /// else bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, bytes) in BINARY.into_iter().chain(DECIMAL) {
            if self.0 != 0 && self.0.is_multiple_of(bytes) {
                return write!(f, "{}{unit}", self.0 / bytes);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// Why a text is not a byte size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ByteSizeError {
    /// It does not begin with a digit.
    #[error("a size begins with a whole number")]
    NoNumber,
    /// It has a decimal point or comma.
    #[error("a size is a whole number of its unit")]
    Fraction,
    /// It is a number only.
    #[error("the size has no unit")]
    NoUnit,
    /// Its unit is unknown; the value is the known unit that it resembles, if any.
    #[error("the size has an unknown unit")]
    UnknownUnit(Option<&'static str>),
    /// It is 2⁶⁴ bytes or more.
    #[error("the size is 16 EiB or more, beyond any device")]
    TooLarge,
}

impl Hint for ByteSizeError {
    fn hint(&self) -> Option<String> {
        let units = "the units are B, KiB, MiB, GiB, TiB (1024) and kB, MB, GB, TB (1000)";
        Some(match self {
            ByteSizeError::NoNumber => format!("write a number and a unit, like 4GiB; {units}"),
            ByteSizeError::Fraction => "use a smaller unit: 1536MiB is 1.5 GiB".to_owned(),
            ByteSizeError::NoUnit => format!("write a unit after the number; {units}"),
            ByteSizeError::UnknownUnit(Some(unit)) => format!("did you mean {unit}? {units}"),
            ByteSizeError::UnknownUnit(None) => units.to_owned(),
            ByteSizeError::TooLarge => return None,
        })
    }

    fn beyond_limit(&self) -> bool {
        matches!(self, ByteSizeError::TooLarge)
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<ByteSize, ByteSizeError> {
        let (number, rest) = split_number(text);
        if number.is_empty() {
            return Err(ByteSizeError::NoNumber);
        }
        if rest.starts_with(['.', ',']) {
            return Err(ByteSizeError::Fraction);
        }
        let unit_bytes = match rest.trim_start_matches(' ') {
            "" => return Err(ByteSizeError::NoUnit),
            "B" => 1,
            unit => unit_bytes(unit)?,
        };
        let count: u64 = number.parse().map_err(|_| ByteSizeError::TooLarge)?;
        count
            .checked_mul(unit_bytes)
            .map(ByteSize)
            .ok_or(ByteSizeError::TooLarge)
    }
}

fn unit_bytes(unit: &str) -> Result<u64, ByteSizeError> {
    let mut units = BINARY.into_iter().chain(DECIMAL);
    if let Some((_, bytes)) = units.clone().find(|(name, _)| *name == unit) {
        return Ok(bytes);
    }
    // `G`, `Gi` and `gib` most likely mean the power of 1024.
    let near = units.find(|(name, _)| {
        name.eq_ignore_ascii_case(unit)
            || (unit.len() < name.len() && name[..unit.len()].eq_ignore_ascii_case(unit))
    });
    let bytes = if unit.eq_ignore_ascii_case("b") {
        Some("B")
    } else {
        None
    };
    Err(ByteSizeError::UnknownUnit(
        bytes.or(near.map(|(name, _)| name)),
    ))
}
