//! Names of directory entries and extended attributes (`component4`, RFC 8881 §14.5).

use crate::limits::NAME_BYTES_MAX;
use crate::status::Status;
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, Xdr};

/// Limit of the bytes that are looked at as a name; longer ones are malformed rather than too long.
const NAME_FIELD_BYTES_MAX: usize = 4096;

/// Why text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// No bytes.
    Empty,
    /// More than [`NAME_BYTES_MAX`] bytes.
    TooLong,
    /// Not UTF-8.
    NotUtf8,
    /// Contains NUL or `/`.
    Character,
    /// `.` or `..`.
    Dots,
}

impl NameError {
    /// The status of an operation with such a name (RFC 8881 §15.1.7).
    #[must_use]
    pub const fn status(self) -> Status {
        match self {
            Self::Empty | Self::NotUtf8 => Status::INVAL,
            Self::TooLong => Status::NAMETOOLONG,
            Self::Character => Status::BADCHAR,
            Self::Dots => Status::BADNAME,
        }
    }
}

/// A valid name: 1 to [`NAME_BYTES_MAX`] bytes of UTF-8, without NUL and `/`, not `.` or `..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a>(&'a str);

impl<'a> Name<'a> {
    /// Checks a name.
    ///
    /// # Errors
    /// Returns the rule that the bytes violate.
    pub fn new(bytes: &'a [u8]) -> Result<Self, NameError> {
        let text = checked_text(bytes)?;
        if bytes.iter().any(|&byte| matches!(byte, 0 | b'/')) {
            return Err(NameError::Character);
        }
        match text {
            "." | ".." => Err(NameError::Dots),
            _ => Ok(Self(text)),
        }
    }

    /// The text.
    #[must_use]
    pub const fn as_str(self) -> &'a str {
        self.0
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0.as_bytes()
    }
}

impl<'a> Xdr<'a> for Name<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let bytes = from.opaque(NAME_FIELD_BYTES_MAX)?;
        Self::new(bytes).map_err(DecodeError::Name)
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        to.opaque(self.as_bytes())
    }
}

/// The text of a name of either kind: 1 to [`NAME_BYTES_MAX`] bytes of UTF-8.
fn checked_text(bytes: &[u8]) -> Result<&str, NameError> {
    if bytes.is_empty() {
        return Err(NameError::Empty);
    }
    if bytes.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong);
    }
    core::str::from_utf8(bytes).map_err(|_| NameError::NotUtf8)
}

/// The name of an extended attribute (`xattrkey4` of RFC 8276): 1 to [`NAME_BYTES_MAX`] bytes of
/// UTF-8 without NUL. Unlike a [`Name`], it may contain `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrName<'a>(&'a str);

impl<'a> XattrName<'a> {
    /// Checks a name.
    ///
    /// # Errors
    /// Returns the rule that the bytes violate.
    pub fn new(bytes: &'a [u8]) -> Result<Self, NameError> {
        let text = checked_text(bytes)?;
        match bytes.contains(&0) {
            true => Err(NameError::Character),
            false => Ok(Self(text)),
        }
    }

    /// The text.
    #[must_use]
    pub const fn as_str(self) -> &'a str {
        self.0
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0.as_bytes()
    }
}

impl<'a> Xdr<'a> for XattrName<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let bytes = from.opaque(NAME_FIELD_BYTES_MAX)?;
        Self::new(bytes).map_err(DecodeError::Name)
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        to.opaque(self.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8881 §14.5 and §15.1.7.
    #[test]
    fn names_are_refused_with_the_status_of_their_rule() {
        let long = [b'x'; NAME_BYTES_MAX + 1];
        let cases: [(&[u8], Status); 7] = [
            (b"", Status::INVAL),
            (b"\xff\xfe", Status::INVAL),
            (&long, Status::NAMETOOLONG),
            (b"a/b", Status::BADCHAR),
            (b"a\0b", Status::BADCHAR),
            (b".", Status::BADNAME),
            (b"..", Status::BADNAME),
        ];
        for (bytes, status) in cases {
            let error = Name::new(bytes).expect_err("not a name");
            assert_eq!(error.status(), status, "{bytes:?}");
        }
        for bytes in [&long[1..], b"...", b".a", "\u{fc}".as_bytes()] {
            assert_eq!(Name::new(bytes).map(Name::as_bytes), Ok(bytes));
        }
    }

    #[test]
    fn names_of_extended_attributes_may_contain_slashes_but_no_nul() {
        assert!(XattrName::new(b"a/b").is_ok());
        assert!(XattrName::new(b".").is_ok());
        assert_eq!(XattrName::new(b"a\0"), Err(NameError::Character));
        assert_eq!(XattrName::new(b""), Err(NameError::Empty));
        assert_eq!(XattrName::new(&[b'x'; 256]), Err(NameError::TooLong));
        assert_eq!(XattrName::new(b"\xff"), Err(NameError::NotUtf8));
    }
}
