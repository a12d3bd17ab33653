//! Lists of processor cores: `2-5`, `0,2,4-6`.

use std::fmt;
use std::str::FromStr;

use super::{Hint, split_number};
use crate::limits::{CORE_NUMBER_MAX, CORES_MAX};

/// A set of core numbers, ascending, at least one and at most [`CORES_MAX`].
///
/// Written as numbers and ranges between commas, as in `/sys/devices/system/cpu/online`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CoreList(Vec<u16>);

impl CoreList {
    /// The core numbers, ascending.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.0.iter().map(|core| usize::from(*core))
    }

    /// The number of cores: never zero.
    #[expect(clippy::len_without_is_empty, reason = "a core list is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for CoreList {
    /// Ascending; consecutive cores are joined to ranges.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for run in self.0.chunk_by(|left, right| left + 1 == *right) {
            match run {
                [one] => write!(f, "{separator}{one}")?,
                [first, .., last] => write!(f, "{separator}{first}-{last}")?,
                [] => {}
            }
            separator = ",";
        }
        Ok(())
    }
}

/// Why a text is not a list of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoreListError {
    /// It is empty.
    #[error("the core list is empty")]
    Empty,
    /// An item between two commas is empty.
    #[error("the core list has an empty item")]
    EmptyItem,
    /// An item is neither a number nor a range.
    #[error("the core list has an item that is neither a number nor a range")]
    NotANumber,
    /// A range ends before it begins.
    #[error("the core range {0}-{1} ends before it begins")]
    Backwards(u16, u16),
    /// A core occurs twice.
    #[error("core {0} is in the list twice")]
    Duplicate(u16),
    /// A core's number is above [`CORE_NUMBER_MAX`].
    #[error("a core number is above {CORE_NUMBER_MAX}")]
    NumberTooLarge,
    /// There are more than [`CORES_MAX`] cores.
    #[error("the core list has more than {CORES_MAX} cores")]
    TooMany,
}

impl Hint for CoreListError {
    fn hint(&self) -> Option<String> {
        match self {
            CoreListError::Backwards(first, last) => Some(format!("write {last}-{first}")),
            CoreListError::Duplicate(_) => Some("one reactor runs on each core".to_owned()),
            CoreListError::Empty | CoreListError::EmptyItem | CoreListError::NotANumber => {
                Some("write numbers and ranges between commas, like 2-5 or 0,2,4-6".to_owned())
            }
            CoreListError::NumberTooLarge => Some("`lscpu -e` lists this machine's".to_owned()),
            CoreListError::TooMany => None,
        }
    }

    fn beyond_limit(&self) -> bool {
        matches!(self, CoreListError::NumberTooLarge | CoreListError::TooMany)
    }
}

impl FromStr for CoreList {
    type Err = CoreListError;

    fn from_str(text: &str) -> Result<CoreList, CoreListError> {
        if text.trim().is_empty() {
            return Err(CoreListError::Empty);
        }
        let mut cores = Vec::new();
        for item in text.split(',') {
            let (first, last) = item_range(item.trim())?;
            for core in first..=last {
                // Each accepted core is new, so this loop ends at the limit.
                if cores.contains(&core) {
                    return Err(CoreListError::Duplicate(core));
                }
                if cores.len() == CORES_MAX {
                    return Err(CoreListError::TooMany);
                }
                cores.push(core);
            }
        }
        cores.sort_unstable();
        Ok(CoreList(cores))
    }
}

fn item_range(item: &str) -> Result<(u16, u16), CoreListError> {
    if item.is_empty() {
        return Err(CoreListError::EmptyItem);
    }
    let (first, rest) = split_number(item);
    let first = core_number(first)?;
    if rest.is_empty() {
        return Ok((first, first));
    }
    let last = rest
        .trim_start()
        .strip_prefix('-')
        .ok_or(CoreListError::NotANumber)?;
    let last = core_number(last.trim_start())?;
    if last < first {
        return Err(CoreListError::Backwards(first, last));
    }
    Ok((first, last))
}

fn core_number(text: &str) -> Result<u16, CoreListError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(CoreListError::NotANumber);
    }
    match text.parse::<u16>() {
        Ok(core) if core <= CORE_NUMBER_MAX => Ok(core),
        Ok(_) | Err(_) => Err(CoreListError::NumberTooLarge),
    }
}
