//! NVMe Qualified Names (Base 2.1 §4.7).

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use super::Hint;

/// Longest NVMe Qualified Name, in bytes of UTF-8 (Base 2.1 §4.7).
pub(crate) const NQN_BYTES_MAX: usize = 223;

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// The qualified name of a host or of a subsystem.
///
/// Two names are equal if their bytes are (Base 2.1 §4.7), so the text is kept as written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(String);

impl Nqn {
    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the well-known name of the discovery subsystem, which no export and no host
    /// may have (Base 2.1 §3.1.3.3).
    pub fn is_discovery(&self) -> bool {
        self.0 == DISCOVERY
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is not an NVMe Qualified Name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NqnError {
    /// It is longer than 223 bytes; the value is its length.
    #[error("the NQN has {0} bytes, the maximum is {NQN_BYTES_MAX}")]
    TooLong(usize),
    /// It does not begin with `nqn.`.
    #[error("the NQN does not begin with `nqn.`")]
    Prefix,
    /// There is no `yyyy-mm.` after the prefix, or the month does not exist.
    #[error("the NQN has no date (year-month and a point) after `nqn.`")]
    Date,
    /// The part after the date is not a domain name.
    #[error("the NQN has no valid reversed domain name after its date")]
    Domain,
    /// The part after the colon is empty.
    #[error("the NQN has nothing after its colon")]
    NothingAfterColon,
    /// It has a space or a control character.
    #[error("the NQN has {0:?} in it")]
    Character(char),
    /// It begins like the UUID form, but a valid UUID does not follow.
    #[error("the NQN has no valid UUID after `:uuid:`")]
    Uuid,
}

impl Hint for NqnError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            NqnError::Uuid => {
                "a UUID is 8-4-4-4-12 hexadecimal digits, as in /etc/nvme/hostnqn".to_owned()
            }
            NqnError::TooLong(_)
            | NqnError::Prefix
            | NqnError::Date
            | NqnError::Domain
            | NqnError::NothingAfterColon
            | NqnError::Character(_) => {
                "write it like `nqn.2026-11.org.example:rack7.fast`: nqn, the year and month from \
                 which the domain is yours, the domain reversed, a colon, your own text"
                    .to_owned()
            }
        })
    }

    fn beyond_limit(&self) -> bool {
        matches!(self, NqnError::TooLong(_))
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Nqn, NqnError> {
        if text.len() > NQN_BYTES_MAX {
            return Err(NqnError::TooLong(text.len()));
        }
        let dated = text.strip_prefix("nqn.").ok_or(NqnError::Prefix)?;
        if let Some(other) = text.chars().find(|c| c.is_control() || c.is_whitespace()) {
            return Err(NqnError::Character(other));
        }
        let named = after_date(dated).ok_or(NqnError::Date)?;
        let (domain, own) = match named.split_once(':') {
            Some((domain, own)) => (domain, Some(own)),
            None => (named, None),
        };
        if !domain.split('.').all(is_domain_label) {
            return Err(NqnError::Domain);
        }
        if own == Some("") {
            return Err(NqnError::NothingAfterColon);
        }
        if text
            .strip_prefix(UUID_PREFIX)
            .is_some_and(|uuid| hyphenated_uuid(uuid).is_none())
        {
            return Err(NqnError::Uuid);
        }
        Ok(Nqn(text.to_owned()))
    }
}

/// Reads a UUID in its hyphenated form only.
pub(crate) fn hyphenated_uuid(text: &str) -> Option<Uuid> {
    let hyphenated = text.len() == 36;
    Uuid::try_parse(text).ok().filter(|_| hyphenated)
}

/// The part after `yyyy-mm.`, if `dated` begins with such a date.
fn after_date(dated: &str) -> Option<&str> {
    let (date, named) = dated.split_once('.')?;
    let (year, month) = date.split_once('-')?;
    let digits =
        |text: &str, count| text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    let month_exists = matches!(month.parse::<u8>(), Ok(1..=12));
    (digits(year, 4) && digits(month, 2) && month_exists).then_some(named)
}

fn is_domain_label(label: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !label.is_empty()
        && label.bytes().all(inside)
        && !label.starts_with('-')
        && !label.ends_with('-')
}
