//! Kinds of values: which values a key accepts, how they are read and written, and a generator for
//! tests. `model.rs` gives each key its kind.

use std::fmt::{Debug, Display};
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

#[cfg(any(test, feature = "generators"))]
use proptest::{option, prelude::*, sample::select};

#[cfg(any(test, feature = "generators"))]
use crate::generate;
use crate::limits::{ALLOWED_PATHS_MAX, CLIENT_NETWORKS_MAX, CONTROLLER_ID_MAX, PATH_BYTES_MAX};
use crate::parse::{Element, Fault, Setting, file_path};
use crate::print::quoted;
use crate::problem::{Findings, ProblemKind};
use crate::suggest::excerpt_of;
use crate::value::{ByteSize, ControllerIds, Network, Period};

/// A kind of value.
pub(crate) trait Kind {
    /// The type of a value in the model.
    type Value: Clone;

    /// The accepted values with unit and limits, for the reference.
    fn values(&self) -> String;

    /// Reads the value from a file; `None` if it is wrong, with the reason in `findings`.
    fn read(&self, entry: &Element<'_, '_>, findings: &mut Findings) -> Option<Self::Value>;

    /// The value as in a file; `None` if the key is omitted.
    fn toml(&self, value: &Self::Value) -> Option<String>;

    /// A generator of any valid value.
    #[cfg(any(test, feature = "generators"))]
    fn any(&self) -> BoxedStrategy<Self::Value>;
}

/// `true` or `false`.
pub(crate) struct Boolean;

impl Kind for Boolean {
    type Value = bool;

    fn values(&self) -> String {
        "boolean".to_owned()
    }

    fn read(&self, entry: &Element<'_, '_>, findings: &mut Findings) -> Option<bool> {
        Some(entry.read(findings)?.value)
    }

    fn toml(&self, value: &bool) -> Option<String> {
        Some(value.to_string())
    }

    #[cfg(any(test, feature = "generators"))]
    fn any(&self) -> BoxedStrategy<bool> {
        any::<bool>().boxed()
    }
}

/// A whole number.
pub(crate) struct Count<T>(pub(crate) RangeInclusive<T>);

impl<T: Copy + Debug + Display + TryFrom<u64> + Into<u64>> Kind for Count<T> {
    type Value = T;

    fn values(&self) -> String {
        format!("integer, {} to {}", self.0.start(), self.0.end())
    }

    fn read(&self, entry: &Element<'_, '_>, findings: &mut Findings) -> Option<T> {
        Some(entry.count(self.0.clone(), findings)?.value)
    }

    fn toml(&self, value: &T) -> Option<String> {
        Some(value.to_string())
    }

    #[cfg(any(test, feature = "generators"))]
    fn any(&self) -> BoxedStrategy<T> {
        let (least, most): (u64, u64) = ((*self.0.start()).into(), (*self.0.end()).into());
        let number = |number| T::try_from(number).unwrap_or_else(|_| unreachable!("in range"));
        (least..=most).prop_map(number).boxed()
    }
}

/// A number of bytes.
pub(crate) struct Size(pub(crate) RangeInclusive<ByteSize>, pub(crate) Unit);

/// The sizes permitted between the limits.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Byte,
    PowerOfTwo,
    /// Multiples of this number of bytes.
    Multiple(u64),
}

impl Size {
    /// The fault of a size between the limits: message and hint.
    fn fault(&self, size: ByteSize) -> Option<(String, String)> {
        let bytes = size.bytes();
        match self.1 {
            Unit::PowerOfTwo if !bytes.is_power_of_two() => {
                let above = bytes.next_power_of_two();
                let (below, above) = (ByteSize::from_bytes(above / 2), ByteSize::from_bytes(above));
                Some((
                    format!(
                        "{size} is not a power of two, which the reported exponent (MDTS) requires"
                    ),
                    format!("write \"{below}\" or \"{above}\""),
                ))
            }
            Unit::Multiple(unit) if !bytes.is_multiple_of(unit) => {
                let below = ByteSize::from_bytes(bytes - bytes % unit);
                Some((
                    format!("{size} is not a multiple of {unit} bytes"),
                    format!("write \"{below}\", or another multiple of {unit} bytes"),
                ))
            }
            Unit::Byte | Unit::PowerOfTwo | Unit::Multiple(_) => None,
        }
    }
}

impl Kind for Size {
    type Value = ByteSize;

    fn values(&self) -> String {
        let limits = format!("{} to {}", self.0.start(), self.0.end());
        match self.1 {
            Unit::Byte => format!("size, {limits}"),
            Unit::PowerOfTwo => format!("size, a power of two, {limits}"),
            Unit::Multiple(unit) => format!("size, a multiple of {unit} bytes, {limits}"),
        }
    }

    fn read(&self, entry: &Element<'_, '_>, findings: &mut Findings) -> Option<ByteSize> {
        let size = entry.ranged(self.0.clone(), findings)?.value;
        let Some((message, hint)) = self.fault(size) else {
            return Some(size);
        };
        findings.add(|| entry.finding(Fault::with_hint(ProblemKind::BadValue, message, hint)));
        None
    }

    fn toml(&self, value: &ByteSize) -> Option<String> {
        Some(quoted(&value.to_string()))
    }

    #[cfg(any(test, feature = "generators"))]
    fn any(&self) -> BoxedStrategy<ByteSize> {
        let (least, most) = (*self.0.start(), *self.0.end());
        match self.1 {
            Unit::Byte => generate::size(least, most, 1).boxed(),
            Unit::Multiple(unit) => generate::size(least, most, unit).boxed(),
            Unit::PowerOfTwo => (least.bytes().ilog2()..=most.bytes().ilog2())
                .prop_map(|exponent| ByteSize::from_bytes(1 << exponent))
                .boxed(),
        }
    }
}

/// A length of time.
pub(crate) struct Time(pub(crate) RangeInclusive<Period>);

impl Kind for Time {
    type Value = Period;

    fn values(&self) -> String {
        format!("time, {} to {}", self.0.start(), self.0.end())
    }

    fn read(&self, entry: &Element<'_, '_>, findings: &mut Findings) -> Option<Period> {
        Some(entry.ranged(self.0.clone(), findings)?.value)
    }

    fn toml(&self, value: &Period) -> Option<String> {
        Some(quoted(&value.to_string()))
    }

    #[cfg(any(test, feature = "generators"))]
    fn any(&self) -> BoxedStrategy<Period> {
        let (least, most) = (self.0.start().as_micros(), self.0.end().as_micros());
        let millis = (least.div_ceil(1000)..=most / 1000).prop_map(|millis| millis * 1000);
        prop_oneof![least..=most, millis]
            .prop_map(Period::from_micros)
            .boxed()
    }
}

/// One of the words of an enum.
pub(crate) struct Word<T>(PhantomData<T>);

/// An enum whose values are words in the file.
pub(crate) trait Words: Copy + Debug + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// The word in the file.
    fn word(self) -> &'static str;
}

impl<T> Word<T> {
    pub(crate) const fn new() -> Word<T> {
        Word(PhantomData)
    }
}

impl<T: Words + Setting> Kind for Word<T> {
    type Value = T;

    fn values(&self) -> String {
        let words: Vec<String> = T::ALL
            .iter()
            .map(|it| format!("`\"{}\"`", it.word()))
            .collect();
        match words.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, before)) => format!("{} or {last}", before.join(", ")),
            None => String::new(),
        }
    }

    fn read(&self, entry: &Element<'_, '_>, findings: &mut Findings) -> Option<T> {
        Some(entry.read(findings)?.value)
    }

    fn toml(&self, value: &T) -> Option<String> {
        Some(quoted(value.word()))
    }

    #[cfg(any(test, feature = "generators"))]
    fn any(&self) -> BoxedStrategy<T> {
        select(T::ALL).boxed()
    }
}

/// A string that is parsed into a type of its own.
pub(crate) struct Text<T> {
    values: &'static str,
    /// A regular expression that matches some of the values.
    #[cfg_attr(
        not(any(test, feature = "generators")),
        expect(dead_code, reason = "generators alone read it")
    )]
    some: &'static str,
    value: PhantomData<T>,
}

impl<T> Text<T> {
    pub(crate) const fn of(values: &'static str, some: &'static str) -> Text<T> {
        Text {
            values,
            some,
            value: PhantomData,
        }
    }
}

impl<T: Setting + Clone + Display + FromStr + Debug + 'static> Kind for Text<T> {
    type Value = T;

    fn values(&self) -> String {
        self.values.to_owned()
    }

    fn read(&self, entry: &Element<'_, '_>, findings: &mut Findings) -> Option<T> {
        Some(entry.read(findings)?.value)
    }

    fn toml(&self, value: &T) -> Option<String> {
        Some(quoted(&value.to_string()))
    }

    #[cfg(any(test, feature = "generators"))]
    fn any(&self) -> BoxedStrategy<T> {
        self.some.prop_map(|text| generate::valid(&text)).boxed()
    }
}

/// A value that may be absent.
pub(crate) struct Maybe<K>(pub(crate) K);

impl<K: Kind> Kind for Maybe<K>
where
    K::Value: Debug + 'static,
{
    type Value = Option<K::Value>;

    fn values(&self) -> String {
        self.0.values()
    }

    fn read(&self, entry: &Element<'_, '_>, findings: &mut Findings) -> Option<Self::Value> {
        self.0.read(entry, findings).map(Some)
    }

    fn toml(&self, value: &Self::Value) -> Option<String> {
        self.0.toml(value.as_ref()?)
    }

    #[cfg(any(test, feature = "generators"))]
    fn any(&self) -> BoxedStrategy<Self::Value> {
        option::of(self.0.any()).boxed()
    }
}

/// A range of controller identifiers.
pub(crate) struct ControllerRange;

impl Kind for ControllerRange {
    type Value = ControllerIds;

    fn values(&self) -> String {
        format!("array of two integers, first and last, 1 to {CONTROLLER_ID_MAX}")
    }

    fn read(&self, entry: &Element<'_, '_>, findings: &mut Findings) -> Option<ControllerIds> {
        let elements = entry.elements(usize::MAX, findings)?;
        let numbers = elements
            .iter()
            .map(|it| it.count(1..=CONTROLLER_ID_MAX, findings));
        // Reads every number, so that every fault is reported.
        let numbers: Option<Vec<u16>> = numbers
            .map(|number| number.map(|it| it.value))
            .collect::<Vec<_>>()
            .into_iter()
            .collect();
        let message = match numbers?[..] {
            [first, last] => match ControllerIds::new(first, last) {
                Some(range) => return Some(range),
                None => format!("the first identifier, {first}, is greater than the last, {last}"),
            },
            ref other => format!("{} number(s) instead of two", other.len()),
        };
        let hint = "write the first and the last identifier, like [1, 32000]".to_owned();
        findings.add(|| entry.finding(Fault::with_hint(ProblemKind::BadValue, message, hint)));
        None
    }

    fn toml(&self, range: &ControllerIds) -> Option<String> {
        Some(range.to_string())
    }

    #[cfg(any(test, feature = "generators"))]
    fn any(&self) -> BoxedStrategy<ControllerIds> {
        let ends = (1..=CONTROLLER_ID_MAX, 1..=CONTROLLER_ID_MAX);
        let range = ends.prop_filter_map("the order of the ends", |(one, other)| {
            ControllerIds::new(one.min(other), one.max(other))
        });
        range.boxed()
    }
}

/// The path of a file, which need not exist.
pub(crate) struct FilePath;

impl Kind for FilePath {
    type Value = PathBuf;

    fn values(&self) -> String {
        "absolute path".to_owned()
    }

    fn read(&self, entry: &Element<'_, '_>, findings: &mut Findings) -> Option<PathBuf> {
        Some(file_path(entry.read(findings)?, findings)?.value)
    }

    fn toml(&self, path: &PathBuf) -> Option<String> {
        Some(quoted(&path.to_string_lossy()))
    }

    #[cfg(any(test, feature = "generators"))]
    fn any(&self) -> BoxedStrategy<PathBuf> {
        "/[a-z \"\\\\]{1,9}x".prop_map(PathBuf::from).boxed()
    }
}

/// Paths of directories: absolute, and without `..`, which would defeat a comparison of prefixes.
pub(crate) struct Directories;

impl Directories {
    fn directory(entry: &Element<'_, '_>, findings: &mut Findings) -> Option<PathBuf> {
        let text = entry.read::<String>(findings)?.value;
        let path = Path::new(&text);
        let is_up = |part: Component<'_>| part == Component::ParentDir;
        let message = if text.chars().any(char::is_control) {
            "the path has a control character in it".to_owned()
        } else if text.len() > PATH_BYTES_MAX {
            format!("the path has more than {PATH_BYTES_MAX} bytes")
        } else if !path.is_absolute() {
            format!("`{}` is not an absolute path", excerpt_of(&text))
        } else if path.components().any(is_up) {
            format!("`{}` has `..` in it", excerpt_of(&text))
        } else {
            return Some(path.components().collect());
        };
        let hint = "write the whole path of a directory, like \"/srv/windlass\"".to_owned();
        findings.add(|| entry.finding(Fault::with_hint(ProblemKind::BadValue, message, hint)));
        None
    }
}

impl Kind for Directories {
    type Value = Vec<PathBuf>;

    fn values(&self) -> String {
        format!("array of up to {ALLOWED_PATHS_MAX} absolute paths of directories")
    }

    fn read(&self, entry: &Element<'_, '_>, findings: &mut Findings) -> Option<Vec<PathBuf>> {
        let elements = entry.elements(ALLOWED_PATHS_MAX, findings)?;
        let paths = elements.iter().map(|it| Self::directory(it, findings));
        // Reads every path, so that every fault is reported.
        paths.collect::<Vec<_>>().into_iter().collect()
    }

    fn toml(&self, paths: &Vec<PathBuf>) -> Option<String> {
        let paths = paths.iter().map(|path| quoted(&path.to_string_lossy()));
        Some(format!("[{}]", paths.collect::<Vec<_>>().join(", ")))
    }

    #[cfg(any(test, feature = "generators"))]
    fn any(&self) -> BoxedStrategy<Vec<PathBuf>> {
        let path = "/[a-z \"\\\\/]{0,9}x"
            .prop_map(|text| Path::new(&text).components().collect::<PathBuf>());
        proptest::collection::vec(path, 0..3).boxed()
    }
}

/// Addresses of clients.
pub(crate) struct Networks;

impl Kind for Networks {
    type Value = Vec<Network>;

    fn values(&self) -> String {
        format!("array of 1 to {CLIENT_NETWORKS_MAX} IP addresses and networks (`address/bits`)")
    }

    fn read(&self, entry: &Element<'_, '_>, findings: &mut Findings) -> Option<Vec<Network>> {
        let elements = entry.elements(CLIENT_NETWORKS_MAX, findings)?;
        if elements.is_empty() {
            let message = "the list is empty: no client may use the share".to_owned();
            let hint = "list the addresses of clients, or write `allow_any_client = true`";
            let fault = Fault::with_hint(ProblemKind::BadValue, message, hint.to_owned());
            findings.add(|| entry.finding(fault));
            return None;
        }
        let networks = elements.iter().map(|it| Some(it.read(findings)?.value));
        // Reads every network, so that every fault is reported.
        networks.collect::<Vec<_>>().into_iter().collect()
    }

    fn toml(&self, networks: &Vec<Network>) -> Option<String> {
        let texts = networks.iter().map(|it| quoted(&it.to_string()));
        let texts: Vec<_> = texts.collect();
        (!texts.is_empty()).then(|| format!("[{}]", texts.join(", ")))
    }

    #[cfg(any(test, feature = "generators"))]
    fn any(&self) -> BoxedStrategy<Vec<Network>> {
        let network = r"192\.0\.2\.[1-9]|10\.[1-9]\.0\.0/16|2001:db8::[1-9]|2001:db8:[1-9]::/48";
        let network = network.prop_map(|text| generate::valid(&text));
        proptest::collection::vec(network, 0..3).boxed()
    }
}
