//! `table!` declares a table of plain keys once. It generates the type in the model, the rows of
//! the reference, the reader, the printer and the generator, and records which keys take a restart.
//!
//! ```text
//! table! {
//!     /// Bounds on what all hosts together may take.
//!     pub struct Limits {
//!         /// Most controllers at once.
//!         max_controllers: u16 = Count(1..=CONTROLLERS_MAX),
//!             absent 256,
//!             like "32", effect Live;
//!     }
//! }
//! ```
//!
//! - A key's comment is its meaning in the reference. Its type and its [`Kind`](crate::kind::Kind)
//!   follow its name.
//! - `absent` gives the value of an omitted key, and may use the keys before it; `=>` gives the
//!   same in words. A key without `absent` is required.
//! - `unless` gives the condition under which the key is not allowed; `like` is an example, as in a
//!   file.
//! - `effect Live` marks a key that a step of its own changes in a running appliance
//!   (`difference.rs`). A listener's keys are all live.
//! - `by hand { field: Type, }` before the keys adds fields whose keys depend on each other:
//!   `parse/`, `print.rs`, `generate.rs` and `keys.rs` handle them.

use crate::keys::Key;
use crate::parse::Reader;
use crate::problem::Findings;

/// A table of plain keys.
pub(crate) trait Table: Sized {
    /// The fields whose keys depend on each other and are read and written by hand.
    type DependentFields: Clone;

    /// Its plain keys, in the order of the file.
    const KEYS: &'static [Key];

    /// Reads the table from a file; `None` if a key is wrong or missing, which `findings` has.
    fn read(
        table: &Reader<'_, '_>,
        findings: &mut Findings,
        dependent_fields: Option<Self::DependentFields>,
    ) -> Option<Self>;

    /// The table with the defaults of all plain keys; `None` if one is required.
    fn absent(dependent_fields: Self::DependentFields) -> Option<Self>;

    /// Its plain keys with their values.
    fn lines(&self) -> Vec<Line>;

    /// Copies the values of keys that change without a restart.
    fn take_live(&mut self, wanted: &Self);

    /// A generator of any valid table.
    #[cfg(any(test, feature = "generators"))]
    fn any(dependent_fields: Self::DependentFields) -> proptest::strategy::BoxedStrategy<Self>;
}

/// A key and its value.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) key: &'static str,
    /// As in a file; `None` if the key is omitted.
    pub(crate) value: Option<String>,
    pub(crate) unless: Option<Unless>,
    /// Whether it can change without a restart.
    pub(crate) is_live: bool,
}

/// A condition under which a key does not apply: another key has this value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unless {
    pub(crate) key: &'static str,
    pub(crate) word: &'static str,
    /// The object to which the key does not apply.
    pub(crate) what: &'static str,
    /// How to fix it.
    pub(crate) hint: &'static str,
}

impl Unless {
    /// Whether the condition holds in a table with these lines.
    pub(crate) fn holds(&self, lines: &[Line]) -> bool {
        let value = Some(crate::print::quoted(self.word));
        lines
            .iter()
            .any(|line| line.key == self.key && line.value == value)
    }
}

/// Evaluates the default of a key. `?` in it returns if an earlier key is invalid.
pub(crate) fn without<T>(value: impl FnOnce() -> Option<T>) -> Option<T> {
    value()
}

macro_rules! table {
    (
        $(#[doc = $about:literal])+
        $(#[derive($derive:ident)])?
        pub struct $table:ident
        $(by hand { $($(#[doc = $hand_doc:literal])+ $hand:ident: $hand_type:ty,)+ })?
        {
            $(
                $(#[doc = $doc:literal])+
                $field:ident: $type:ty = $kind:expr
                $(, absent $absent:expr $(=> $words:literal)? $(, unless $unless:expr)?)?
                , like $example:literal
                $(, effect $effect:ident)?;
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq)]
        $(#[derive($derive)])?
        pub struct $table {
            $($($(#[doc = $hand_doc])+ pub $hand: $hand_type,)+)?
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        impl $crate::table::Table for $table {
            type DependentFields = ($($($hand_type,)+)?);

            const KEYS: &'static [$crate::keys::Key] = &[$(
                $crate::keys::Key {
                    name: stringify!($field),
                    values: $crate::keys::Values::Kind(|| $crate::kind::Kind::values(&$kind)),
                    absent: $crate::table::table!(@absent $kind, $($absent $(=> $words)?)?),
                    example: $example,
                    meaning: concat!($($doc),+).trim_ascii_start(),
                },
            )+];

            fn read(
                table: &$crate::parse::Reader<'_, '_>,
                findings: &mut $crate::problem::Findings,
                dependent_fields: Option<Self::DependentFields>,
            ) -> Option<$table> {
                $(
                    let unless = None::<$crate::table::Unless>
                        $($(.or(Some($unless)))?)?;
                    let $field: Option<$type> =
                        match table.find(stringify!($field), &$kind, unless, findings) {
                            $crate::parse::Found::Value(value) => Some(value),
                            $crate::parse::Found::Wrong => None,
                            $crate::parse::Found::Absent => $crate::table::table!(
                                @without table, findings, $field, $($absent)?
                            ),
                        };
                )+
                let ($($($hand,)+)?) = dependent_fields?;
                Some($table { $($($hand,)+)? $($field: $field?,)+ })
            }

            fn absent(dependent_fields: Self::DependentFields) -> Option<$table> {
                $(
                    let $field: Option<$type> =
                        $crate::table::without(|| $crate::table::table!(@absent_value $($absent)?));
                )+
                let ($($($hand,)+)?) = dependent_fields;
                Some($table { $($($hand,)+)? $($field: $field?,)+ })
            }

            fn lines(&self) -> Vec<$crate::table::Line> {
                vec![$(
                    $crate::table::Line {
                        key: stringify!($field),
                        value: $crate::kind::Kind::toml(&$kind, &self.$field),
                        unless: None $($(.or(Some($unless)))?)?,
                        is_live: $crate::table::table!(@is_live $($effect)?),
                    },
                )+]
            }

            fn take_live(&mut self, wanted: &$table) {
                $(
                    if $crate::table::table!(@is_live $($effect)?) {
                        self.$field = wanted.$field.clone();
                    }
                )+
            }

            #[cfg(any(test, feature = "generators"))]
            fn any(dependent_fields: Self::DependentFields) -> proptest::strategy::BoxedStrategy<$table> {
                use proptest::strategy::Strategy as _;
                let keys = ($($crate::kind::Kind::any(&$kind),)+);
                let table = keys.prop_map(move |($($field,)+)| {
                    let ($($($hand,)+)?) = dependent_fields.clone();
                    let table = $table { $($($hand,)+)? $($field,)+ };
                    $($($(
                        let table = match $unless.holds(&$crate::table::Table::lines(&table)) {
                            true => $table { $field: $absent, ..table },
                            false => table,
                        };
                    )?)?)+
                    table
                });
                table.boxed()
            }
        }
    };
    (@absent $kind:expr,) => { $crate::keys::Absent::Required };
    (@absent $kind:expr, $absent:expr => $words:literal) => {
        $crate::keys::Absent::Words($words)
    };
    (@absent $kind:expr, $absent:expr) => {
        $crate::keys::Absent::Kind(|| {
            $crate::kind::Kind::toml(&$kind, &$absent).unwrap_or_default()
        })
    };
    (@without $table:ident, $findings:ident, $field:ident,) => {{
        $table.report_missing(stringify!($field), $findings);
        None
    }};
    (@without $table:ident, $findings:ident, $field:ident, $absent:expr) => {
        $crate::table::without(|| Some($absent))
    };
    (@absent_value) => { None };
    (@absent_value $absent:expr) => { Some($absent) };
    (@is_live) => { false };
    (@is_live Live) => { true };
}

pub(crate) use table;
