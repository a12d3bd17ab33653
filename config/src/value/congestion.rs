//! Names of TCP congestion control algorithms.

use std::fmt;
use std::str::FromStr;

use super::Hint;
use crate::limits::CONGESTION_CONTROL_CHARS_MAX;

/// The name of a TCP congestion control algorithm, as in `/proc/sys/net/ipv4`: 1 to 15 of `a` to
/// `z`, digits, `_` and `-`. The appliance checks at start whether the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CongestionControl(String);

impl CongestionControl {
    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is not the name of a congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CongestionControlError {
    /// It is empty.
    #[error("the name is empty")]
    Empty,
    /// It is longer than [`CONGESTION_CONTROL_CHARS_MAX`].
    #[error("the name has more than {CONGESTION_CONTROL_CHARS_MAX} characters")]
    TooLong,
    /// It has a character that is not allowed.
    #[error("the name contains {0:?}")]
    Character(char),
}

impl Hint for CongestionControlError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            CongestionControlError::Empty => "leave the key out for the system's own".to_owned(),
            CongestionControlError::TooLong | CongestionControlError::Character(_) => {
                "/proc/sys/net/ipv4/tcp_available_congestion_control lists the names there are"
                    .to_owned()
            }
        })
    }

    fn beyond_limit(&self) -> bool {
        matches!(self, CongestionControlError::TooLong)
    }
}

impl FromStr for CongestionControl {
    type Err = CongestionControlError;

    fn from_str(text: &str) -> Result<CongestionControl, CongestionControlError> {
        if text.is_empty() {
            return Err(CongestionControlError::Empty);
        }
        let allowed = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-');
        if let Some(other) = text.chars().find(|c| !allowed(*c)) {
            return Err(CongestionControlError::Character(other));
        }
        if text.len() > CONGESTION_CONTROL_CHARS_MAX {
            return Err(CongestionControlError::TooLong);
        }
        Ok(CongestionControl(text.to_owned()))
    }
}
