//! Names that the administrator chooses, and the two text fields of Identify Controller.

use std::fmt;
use std::str::FromStr;

use super::Hint;
use crate::limits::NAME_CHARS_MAX;

/// The name of an appliance, device or listener: 1 to 64 letters, digits, `.`, `_` and `-`, the
/// first a letter or digit. Such a name needs no quoting in a metric label, a path or a shell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Name {
    /// The default name of an appliance.
    fn default() -> Name {
        Name("windlass".to_owned())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// It is empty.
    #[error("the name is empty")]
    Empty,
    /// It is longer than [`NAME_CHARS_MAX`].
    #[error("the name has more than {NAME_CHARS_MAX} characters")]
    TooLong,
    /// It begins with neither a letter nor a digit.
    #[error("the name does not begin with a letter or digit")]
    First,
    /// It has a character that is not allowed.
    #[error("the name contains {0:?}")]
    Character(char),
}

impl Hint for NameError {
    fn hint(&self) -> Option<String> {
        Some("a name is made of the letters a-z and A-Z, digits, `.`, `_` and `-`".to_owned())
    }

    fn beyond_limit(&self) -> bool {
        matches!(self, NameError::TooLong)
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let first = text.chars().next().ok_or(NameError::Empty)?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if let Some(other) = text.chars().find(|c| !allowed(*c)) {
            return Err(NameError::Character(other));
        }
        if !first.is_ascii_alphanumeric() {
            return Err(NameError::First);
        }
        if text.len() > NAME_CHARS_MAX {
            return Err(NameError::TooLong);
        }
        Ok(Name(text.to_owned()))
    }
}

/// Why a text is not valid in a fixed ASCII field of Identify Controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextFieldError {
    /// It is empty.
    #[error("the text is empty")]
    Empty,
    /// It is longer than the field, in characters.
    #[error("the text has more than {0} characters")]
    TooLong(usize),
    /// It has a character that is not printable ASCII.
    #[error("the text has {0:?} in it, which is not printable ASCII")]
    Character(char),
    /// It begins or ends with a space, which cannot be distinguished from the field's padding.
    #[error("the text begins or ends with a space")]
    OuterSpace,
}

impl Hint for TextFieldError {
    fn hint(&self) -> Option<String> {
        match self {
            TextFieldError::TooLong(_) => Some("the field that hosts see is no longer".to_owned()),
            TextFieldError::Empty => Some("leave the key out for the default".to_owned()),
            TextFieldError::Character(_) | TextFieldError::OuterSpace => None,
        }
    }

    fn beyond_limit(&self) -> bool {
        matches!(self, TextFieldError::TooLong(_))
    }
}

macro_rules! text_field {
    ($(#[$meta:meta])* $name:ident, $bytes:literal) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Length of the field in bytes.
            pub const FIELD_BYTES: usize = $bytes;

            /// The text without padding.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The field as hosts see it: ASCII, left-aligned, padded with spaces.
            pub fn field(&self) -> [u8; $bytes] {
                let mut field = [b' '; $bytes];
                for (to, from) in field.iter_mut().zip(self.0.bytes()) {
                    *to = from;
                }
                field
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = TextFieldError;

            fn from_str(text: &str) -> Result<$name, TextFieldError> {
                check_text_field(text, $bytes)?;
                Ok($name(text.to_owned()))
            }
        }
    };
}

text_field! {
    /// The serial number (SN) of an export: 1 to 20 printable ASCII characters (Base 2.1
    /// §5.1.13.2.1, bytes 23:04).
    SerialNumber, 20
}

text_field! {
    /// The model number (MN) of an export: 1 to 40 printable ASCII characters (Base 2.1
    /// §5.1.13.2.1, bytes 63:24).
    ModelNumber, 40
}

impl SerialNumber {
    /// The number as 16 hexadecimal digits.
    pub(crate) fn from_digits(number: u64) -> SerialNumber {
        SerialNumber(format!("{number:016X}"))
    }
}

impl Default for ModelNumber {
    /// The default model number.
    fn default() -> ModelNumber {
        ModelNumber("Windlass".to_owned())
    }
}

fn check_text_field(text: &str, bytes: usize) -> Result<(), TextFieldError> {
    if text.is_empty() {
        return Err(TextFieldError::Empty);
    }
    if let Some(other) = text.chars().find(|c| !matches!(c, ' '..='~')) {
        return Err(TextFieldError::Character(other));
    }
    if text.len() > bytes {
        return Err(TextFieldError::TooLong(bytes));
    }
    if text.starts_with(' ') || text.ends_with(' ') {
        return Err(TextFieldError::OuterSpace);
    }
    Ok(())
}
