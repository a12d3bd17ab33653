//! Reads each type from a TOML value.

use std::fmt;
use std::str::FromStr;

use toml::de::DeValue;
use uuid::Uuid;

use crate::files::Squash;
use crate::model::{
    AnaState, DataPath, Digest, Idle, Operations, Pages, Tls, TlsRecords, Transport,
};
use crate::problem::ProblemKind;
use crate::suggest::{excerpt_of, listed, nearest};
use crate::value::{
    BlockSize, ByteSize, CongestionControl, ControlSocket, CoreList, GroupName, Hint, HttpAddress,
    ListenAddress, ModelNumber, Name, Network, Nqn, PciAddress, Period, SerialNumber,
    hyphenated_uuid,
};

/// The fault of one value.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(super) kind: ProblemKind,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl Fault {
    pub(crate) fn wrong_type(expected: &str, value: &DeValue<'_>) -> Fault {
        Fault {
            kind: ProblemKind::WrongType,
            message: format!("expected {expected}, found {}", described(value)),
            hint: None,
        }
    }

    pub(crate) fn with_hint(kind: ProblemKind, message: String, hint: String) -> Fault {
        Fault {
            kind,
            message,
            hint: Some(hint),
        }
    }

    fn hinted(self, hint: impl Into<String>) -> Fault {
        Fault {
            hint: Some(hint.into()),
            ..self
        }
    }
}

fn described(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number with a decimal point",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// A type that can be read from a value in the file.
pub(crate) trait Setting: Sized {
    fn read(value: &DeValue<'_>) -> Result<Self, Fault>;
}

fn text<'v>(value: &'v DeValue<'_>) -> Result<&'v str, Fault> {
    value
        .as_str()
        .ok_or_else(|| Fault::wrong_type("a string", value))
}

fn parsed<T>(text: &str) -> Result<T, Fault>
where
    T: FromStr,
    T::Err: Hint + fmt::Display,
{
    text.parse().map_err(|error: T::Err| Fault {
        kind: match error.beyond_limit() {
            true => ProblemKind::OutOfRange,
            false => ProblemKind::BadValue,
        },
        message: error.to_string(),
        hint: error.hint(),
    })
}

macro_rules! text_settings {
    ($($name:ty),+) => {
        $(impl Setting for $name {
            fn read(value: &DeValue<'_>) -> Result<$name, Fault> {
                parsed(text(value)?)
            }
        })+
    };
}

text_settings!(
    CongestionControl,
    ControlSocket,
    GroupName,
    HttpAddress,
    ListenAddress,
    ModelNumber,
    Name,
    Network,
    Nqn,
    PciAddress,
    SerialNumber
);

/// Reads one of several words.
pub(super) fn word<T: Copy>(value: &DeValue<'_>, words: &[(&'static str, T)]) -> Result<T, Fault> {
    let names = || words.iter().map(|(word, _)| *word);
    let all = format!("the values are {}", quoted(names()));
    let Some(text) = value.as_str() else {
        return Err(Fault::wrong_type("a string", value).hinted(all));
    };
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| Fault {
        kind: ProblemKind::BadValue,
        message: format!("unknown value `{}`", excerpt_of(text)),
        hint: Some(match nearest(text, names()) {
            Some(near) => format!("did you mean \"{near}\"? {all}"),
            None => all,
        }),
    })
}

fn quoted(words: impl Iterator<Item = &'static str>) -> String {
    listed(words, usize::MAX).replace('`', "\"")
}

macro_rules! word_settings {
    ($($name:ty),+) => {
        $(impl Setting for $name {
            fn read(value: &DeValue<'_>) -> Result<$name, Fault> {
                let words: Vec<_> = <$name>::ALL.iter().map(|item| (item.word(), *item)).collect();
                word(value, &words)
            }
        })+
    };
}

word_settings!(
    AnaState, DataPath, Digest, Idle, Operations, Pages, Squash, Tls, TlsRecords, Transport
);

impl Setting for bool {
    fn read(value: &DeValue<'_>) -> Result<bool, Fault> {
        value.as_bool().ok_or_else(|| match value.as_str() {
            Some("true" | "false") => {
                Fault::wrong_type("a boolean", value).hinted("write true or false without quotes")
            }
            _ => Fault::wrong_type("a boolean", value).hinted("write true or false"),
        })
    }
}

impl Setting for u64 {
    fn read(value: &DeValue<'_>) -> Result<u64, Fault> {
        let DeValue::Integer(integer) = value else {
            return Err(Fault::wrong_type("an integer", value));
        };
        u64::from_str_radix(integer.as_str(), integer.radix()).map_err(|_| Fault {
            kind: ProblemKind::OutOfRange,
            message: match integer.as_str().starts_with('-') {
                true => "the number is negative".to_owned(),
                false => "the number is too large".to_owned(),
            },
            hint: None,
        })
    }
}

impl Setting for ByteSize {
    fn read(value: &DeValue<'_>) -> Result<ByteSize, Fault> {
        match value {
            DeValue::String(text) => parsed(text),
            DeValue::Integer(_) => u64::read(value).map(ByteSize::from_bytes),
            DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => Err(Fault::wrong_type("a size", value)),
        }
    }
}

impl Setting for Period {
    fn read(value: &DeValue<'_>) -> Result<Period, Fault> {
        match value {
            DeValue::Integer(number) => Err(Fault::wrong_type("a time with its unit", value)
                .hinted(format!(
                    "seconds are written \"{}s\"",
                    excerpt_of(number.as_str())
                ))),
            _ => parsed(text(value)?),
        }
    }
}

impl Setting for BlockSize {
    fn read(value: &DeValue<'_>) -> Result<BlockSize, Fault> {
        let size = ByteSize::read(value)?;
        BlockSize::from_bytes(size.bytes()).ok_or_else(|| Fault {
            kind: ProblemKind::OutOfRange,
            message: format!("{size} is not a block size"),
            hint: Some("the block sizes are 512 and 4096".to_owned()),
        })
    }
}

impl Setting for CoreList {
    fn read(value: &DeValue<'_>) -> Result<CoreList, Fault> {
        match value {
            DeValue::Integer(number) => {
                let number = excerpt_of(number.as_str());
                Err(Fault::wrong_type("a core list", value).hinted(format!(
                    "write \"{number}\" for core number {number}, or a range like \"2-5\""
                )))
            }
            _ => parsed(text(value)?),
        }
    }
}

impl Setting for Uuid {
    fn read(value: &DeValue<'_>) -> Result<Uuid, Fault> {
        let uuid = hyphenated_uuid(text(value)?).filter(|uuid| !uuid.is_nil() && !uuid.is_max());
        uuid.ok_or_else(|| Fault {
            kind: ProblemKind::BadValue,
            message: "not a UUID".to_owned(),
            hint: Some("write 8-4-4-4-12 hexadecimal digits; `uuidgen` makes one".to_owned()),
        })
    }
}
