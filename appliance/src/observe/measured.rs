//! One declaration for each number that the control plane tells: `measured!` makes of it a field of
//! the status (JSON, and by its type and comment OpenAPI), the reading of it, and its metric.
//!
//! ```text
//! measured! {
//!     /// One reactor.
//!     struct ReactorStatus from look: &ReactorLook<'_> {
//!         /// Turns taken.
//!         turns: u64 = look.seen.stats.turns, Counter "reactor_turns";
//!         /// Whether it is blocked in the kernel, waiting for work.
//!         asleep: bool = look.seen.stats.asleep;
//!     }
//! }
//! ```
//!
//! A field's comment is its description in OpenAPI and its metric's help text, so it is a sentence.
//! Behind a metric's name, `: value` gives another value than the field's, and `, "help"` another
//! text; `#[words("a", "b")]` lists a text's values. A metric's name stands without the prefix `windlass_` and without unit and `_total`.

use super::model::NamedTime;

/// A metric of each `T`.
pub(crate) struct Family<T: 'static> {
    /// Without prefix, unit and suffix.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    /// `None`: this `T` has no such sample.
    pub(crate) value: fn(&T) -> Option<u64>,
}

/// Type and unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A number of things so far.
    Counter,
    /// A number of things now.
    Gauge,
    /// Nanoseconds so far, exposed in seconds.
    CounterSeconds,
    /// Nanoseconds now, exposed in seconds.
    GaugeSeconds,
    /// Bytes so far.
    CounterBytes,
    /// Bytes now.
    GaugeBytes,
}

/// A status that has metrics.
pub(crate) trait Measured: Sized + 'static {
    /// Those of each field, in the order of declaration.
    const FAMILIES: &'static [&'static [Family<Self>]];
}

/// A field's value as a sample.
pub(crate) trait Sample {
    /// `None`: not known.
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
    // Of counters alone, which add up over reactors.
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
