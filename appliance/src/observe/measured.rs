//! `measured!` declares a number of the control plane once. It generates a field of the status
//! (JSON, and OpenAPI from its type and comment), the code that reads it, and its metric.
//!
//! ```text
//! measured! {
//!     /// One reactor.
//!     struct ReactorStatus from input: &ReactorInput<'_> {
//!         /// Turns taken.
//!         turns: u64 = input.seen.stats.turns, Counter "reactor_turns";
//!         /// Whether it is blocked in the kernel, waiting for work.
//!         asleep: bool = input.seen.stats.asleep;
//!     }
//! }
//! ```
//!
//! A field's comment is its description in OpenAPI and its metric's help text, so it is a sentence.
//! After a metric's name, `: value` gives a value other than the field's, and `, "help"` another
//! text; `#[words("a", "b")]` lists a text's values. A metric's name is written without the prefix
//! `windlass_` and without unit and `_total`.

use super::model::NamedTime;

/// A metric family over objects of type `T`.
pub(crate) struct Family<T: 'static> {
    /// Without prefix, unit and suffix.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    /// `None`: this object has no sample.
    pub(crate) value: fn(&T) -> Option<u64>,
}

/// Type and unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A count since the start.
    Counter,
    /// A current count.
    Gauge,
    /// Nanoseconds since the start, exposed in seconds.
    CounterSeconds,
    /// Current nanoseconds, exposed in seconds.
    GaugeSeconds,
    /// Bytes since the start.
    CounterBytes,
    /// Current bytes.
    GaugeBytes,
}

/// A status with metrics.
pub(crate) trait Measured: Sized + 'static {
    /// The families of each field, in the order of declaration.
    const FAMILIES: &'static [&'static [Family<Self>]];
}

/// A field's value as a sample.
pub(crate) trait Sample {
    /// `None`: unknown.
    fn sample(&self) -> Option<u64>;
}

impl Sample for u64 {
    fn sample(&self) -> Option<u64> {
        Some(*self)
    }
}

impl Sample for u8 {
    fn sample(&self) -> Option<u64> {
        Some(u64::from(*self))
    }
}

impl Sample for bool {
    fn sample(&self) -> Option<u64> {
        Some(u64::from(*self))
    }
}

impl Sample for NamedTime {
    fn sample(&self) -> Option<u64> {
        Some(self.ns)
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(&self) -> Option<u64> {
        self.as_ref()?.sample()
    }
}

macro_rules! measured {
    // A struct with only counters, which are summed over reactors.
    (
        $(#[doc = $about:literal])+
        sum struct $status:ident from $from:ident: $source:ty {
            $(
                $(#[doc = $doc:literal])+
                $field:ident = $value:expr $(, $kind:ident $name:literal)?;
            )+
        }
    ) => {
        $crate::observe::measured::measured! {
            $(#[doc = $about])+
            #[derive(Copy, Default)]
            struct $status from $from: $source {
                $(
                    $(#[doc = $doc])+
                    $field: u64 = $value $(, $kind $name)?;
                )+
            }
        }

        impl $status {
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
    (
        $(#[doc = $about:literal])+
        $(#[derive($($derive:ident),+)])?
        struct $status:ident from $from:ident: $source:ty {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($serde:meta)])?
                $(#[words($($word:literal),+)])?
                $field:ident: $type:ty = $value:expr
                $(, $kind:ident $name:literal $(: $sample:expr)? $(=> $help:literal)?)*;
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        $(#[derive($($derive),+)])?
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        pub(crate) struct $status {
            $(
                $(#[doc = $doc])+
                $(#[serde($serde)])?
                $(#[cfg_attr(test, schemars(extend("enum" = [$($word),+])))])?
                pub(crate) $field: $type,
            )+
        }

        impl $status {
            pub(crate) fn read($from: $source) -> Self {
                Self { $($field: $value,)+ }
            }
        }

        impl $crate::observe::measured::Measured for $status {
            const FAMILIES: &'static [&'static [$crate::observe::measured::Family<Self>]] = &[$(
                $crate::observe::measured::measured!(
                    @families $field concat!($($doc),+)
                    $(, $kind $name $(: $sample)? $(=> $help)?)*
                ),
            )+];
        }
    };
    (
        @families $field:ident $doc:expr
        $(, $kind:ident $name:literal $(: $sample:expr)? $(=> $help:literal)?)*
    ) => {
        &[$($crate::observe::measured::Family {
            name: $name,
            help: $crate::observe::measured::measured!(@help $doc, $($help)?),
            kind: $crate::observe::measured::Kind::$kind,
            value: $crate::observe::measured::measured!(@value $field, $($sample)?),
        }),*]
    };
    (@help $doc:expr,) => { $doc };
    (@help $doc:expr, $help:literal) => { $help };
    (@value $field:ident,) => { |it| $crate::observe::measured::Sample::sample(&it.$field) };
    (@value $field:ident, $sample:expr) => { $sample };
}

pub(crate) use measured;
