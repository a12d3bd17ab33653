//! NVMe Qualified Names: validation without allocation (Base 2.1 §4.7).

use core::fmt;

use crate::ascii::NulPadded;

/// Longest NQN in bytes, without the terminating NUL (Base 2.1 §4.7).
pub const NQN_LENGTH_MAX_BYTES: usize = 223;

/// Size of an NQN field in the data structures, bytes.
pub const NQN_FIELD_BYTES: usize = 256;

const _: () = assert!(NQN_LENGTH_MAX_BYTES < NQN_FIELD_BYTES);

/// The well-known discovery subsystem (Base 2.1 §3.1.3.3).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Prefix of an NQN based on a UUID (Base 2.1 §4.7, second form).
pub const UUID_NQN_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// The longest label of a domain name (RFC 1034 §3.1).
const LABEL_LENGTH_MAX_BYTES: usize = 63;

/// An NQN field: 256 bytes, NUL padded.
pub type NqnField = NulPadded<NQN_FIELD_BYTES>;

/// Why a name is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NqnError {
    /// The name is empty.
    Empty,
    /// More than 223 bytes.
    TooLong,
    /// A field without a terminating NUL.
    Unterminated,
    /// Not UTF-8.
    NotUtf8,
    /// A control character.
    ControlCharacter,
    /// Does not begin with `nqn.`.
    Prefix,
    /// `nqn.` is not followed by `yyyy-mm.`.
    Date,
    /// The reverse domain name is empty or malformed.
    Domain,
    /// The colon is missing, or nothing follows it.
    Name,
    /// The `nqn.2014-08.org.nvmexpress:uuid:` form without a well-formed UUID.
    Uuid,
}

impl fmt::Display for NqnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the name is empty",
            Self::TooLong => "the name is longer than 223 bytes",
            Self::Unterminated => "the name does not end in a NUL",
            Self::NotUtf8 => "the name is not UTF-8",
            Self::ControlCharacter => "the name contains a control character",
            Self::Prefix => "the name does not begin with \"nqn.\"",
            Self::Date => "\"nqn.\" is not followed by a date \"yyyy-mm.\"",
            Self::Domain => "the date is not followed by a reverse domain name",
            Self::Name => "the domain is not followed by \":\" and a name",
            Self::Uuid => "\"uuid:\" is not followed by a UUID of the form 8-4-4-4-12",
        })
    }
}

impl core::error::Error for NqnError {}

/// Checks a name against all rules, for configurations (Base 2.1 §4.7, both forms, and the
/// discovery NQN).
pub fn validate(nqn: &str) -> Result<(), NqnError> {
    validate_size(nqn)?;
    if nqn == DISCOVERY_NQN {
        return Ok(());
    }
    let rest = nqn.strip_prefix("nqn.").ok_or(NqnError::Prefix)?;
    let rest = strip_date(rest).ok_or(NqnError::Date)?;
    let (domain, name) = rest.split_once(':').ok_or(NqnError::Name)?;
    if !domain.split('.').all(is_label) {
        return Err(NqnError::Domain);
    }
    if name.is_empty() {
        return Err(NqnError::Name);
    }
    match nqn.strip_prefix(UUID_NQN_PREFIX) {
        Some(uuid) if !is_uuid(uuid) => Err(NqnError::Uuid),
        _ => Ok(()),
    }
}

/// Checks a name of a peer: size and characters only, because some hosts use names in other forms.
pub fn validate_size(nqn: &str) -> Result<(), NqnError> {
    if nqn.is_empty() {
        return Err(NqnError::Empty);
    }
    if nqn.len() > NQN_LENGTH_MAX_BYTES {
        return Err(NqnError::TooLong);
    }
    if nqn.chars().any(char::is_control) {
        return Err(NqnError::ControlCharacter);
    }
    Ok(())
}

/// The name in a peer's field, checked for size and characters. Never panics or allocates.
pub fn from_field(field: &NqnField) -> Result<&str, NqnError> {
    if !field.is_terminated() {
        return Err(NqnError::Unterminated);
    }
    let nqn = field.as_str().ok_or(NqnError::NotUtf8)?;
    validate_size(nqn)?;
    Ok(nqn)
}

/// The field for a name, which is checked for size and characters.
pub fn to_field(nqn: &str) -> Result<NqnField, NqnError> {
    validate_size(nqn)?;
    NqnField::new(nqn).ok_or(NqnError::TooLong)
}

fn strip_date(text: &str) -> Option<&str> {
    let (date, rest) = text.split_at_checked(8)?;
    let [y0, y1, y2, y3, b'-', m0, m1, b'.'] = date.as_bytes() else {
        return None;
    };
    let digits = [y0, y1, y2, y3, m0, m1]
        .iter()
        .all(|byte| byte.is_ascii_digit());
    let month = matches!((m0, m1), (b'0', b'1'..=b'9') | (b'1', b'0'..=b'2'));
    (digits && month).then_some(rest)
}

fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label.len() <= LABEL_LENGTH_MAX_BYTES
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}
