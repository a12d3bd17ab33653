//! Reads one table of the file key by key, against its section of `keys.rs`.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::Located;
use super::setting::{Fault, Setting};
use crate::keys::{Key, SECTIONS, Section};
use crate::kind::Kind;
use crate::problem::{Finding, Findings, Path, ProblemKind};
use crate::suggest::{excerpt_of, listed, nearest};
use crate::table::Unless;

/// A table, its location and the keys that it may have.
pub(crate) struct Reader<'a, 'i> {
    table: &'a DeTable<'i>,
    /// The table's header; `None` for the file itself.
    span: Option<Range<usize>>,
    path: Path,
    section: &'static Section,
}

/// A value in the file: of a key, or an element of its array.
pub(crate) struct Element<'a, 'i> {
    pub(super) value: &'a DeValue<'i>,
    pub(super) span: Range<usize>,
    pub(super) path: Path,
    key: &'static Key,
}

/// The result of looking up a key.
pub(crate) enum Found<T> {
    Value(T),
    /// The value is invalid, which has been reported.
    Wrong,
    Absent,
}

impl<'a, 'i> Element<'a, 'i> {
    pub(crate) fn finding(&self, fault: Fault) -> Finding {
        let hint = match fault.kind {
            ProblemKind::WrongType => fault.hint.or_else(|| Some(like(self.key))),
            _ => fault.hint,
        };
        Finding {
            kind: fault.kind,
            span: Some(self.span.clone()),
            path: self.path.as_str().to_owned(),
            message: fault.message,
            hint,
        }
    }

    pub(crate) fn read<T: Setting>(&self, findings: &mut Findings) -> Option<Located<T>> {
        match T::read(self.value) {
            Ok(value) => Some(Located {
                value,
                span: self.span.clone(),
                path: self.path.clone(),
            }),
            Err(fault) => {
                findings.add(|| self.finding(fault));
                None
            }
        }
    }

    /// Reads the value and checks that it is in `range`.
    pub(crate) fn ranged<T: Setting + PartialOrd + fmt::Display>(
        &self,
        range: RangeInclusive<T>,
        findings: &mut Findings,
    ) -> Option<Located<T>> {
        let (least, most) = (range.start(), range.end());
        let fault = match T::read(self.value) {
            Ok(value) if range.contains(&value) => {
                return Some(Located {
                    value,
                    span: self.span.clone(),
                    path: self.path.clone(),
                });
            }
            Ok(value) => Fault {
                kind: ProblemKind::OutOfRange,
                message: match value < *least {
                    true => format!("{value} is less than the minimum, {least}"),
                    false => format!("{value} is more than the maximum, {most}"),
                },
                hint: None,
            },
            Err(fault) => fault,
        };
        let name = self.key.name;
        findings.add(|| {
            let hint = match fault.kind {
                ProblemKind::OutOfRange => Some(format!("`{name}` takes {least} to {most}")),
                _ => None,
            };
            self.finding(Fault {
                hint: fault.hint.or(hint),
                ..fault
            })
        });
        None
    }

    /// Reads the number and checks that it is in `range`.
    pub(crate) fn count<T: TryFrom<u64> + Into<u64>>(
        &self,
        range: RangeInclusive<T>,
        findings: &mut Findings,
    ) -> Option<Located<T>> {
        let (least, most) = range.into_inner();
        let wide = self.ranged(least.into()..=most.into(), findings)?;
        // Every number between two values of `T` is a value of `T`.
        let value = T::try_from(wide.value).ok()?;
        Some(Located {
            value,
            span: wide.span,
            path: wide.path,
        })
    }

    /// The elements of an array, at most `count_max`; `None` if the value is not an array.
    pub(crate) fn elements(
        &self,
        count_max: usize,
        findings: &mut Findings,
    ) -> Option<Vec<Element<'a, 'i>>> {
        let DeValue::Array(array) = self.value else {
            findings.add(|| self.finding(Fault::wrong_type("an array", self.value)));
            return None;
        };
        if array.len() > count_max {
            findings.add(|| {
                self.finding(Fault {
                    kind: ProblemKind::OutOfRange,
                    message: format!("{} entries, the maximum is {count_max}", array.len()),
                    hint: None,
                })
            });
        }
        let element = |(index, value): (usize, &'a Spanned<DeValue<'i>>)| Element {
            value: value.get_ref(),
            span: value.span(),
            path: self.path.index(index),
            key: self.key,
        };
        let elements = array.iter().take(count_max).enumerate();
        Some(elements.map(element).collect())
    }

    /// Reads the value as a table with the keys of `section`.
    pub(super) fn table(
        &self,
        section: &'static Section,
        findings: &mut Findings,
    ) -> Option<Reader<'a, 'i>> {
        let DeValue::Table(table) = self.value else {
            findings.add(|| self.finding(Fault::wrong_type("a table", self.value)));
            return None;
        };
        let (span, path) = (Some(self.span.clone()), self.path.clone());
        Some(Reader::open(table, span, path, section, findings))
    }
}

impl<'a, 'i> Reader<'a, 'i> {
    /// Opens a table and reports every key that its section does not have.
    pub(super) fn open(
        table: &'a DeTable<'i>,
        span: Option<Range<usize>>,
        path: Path,
        section: &'static Section,
        findings: &mut Findings,
    ) -> Reader<'a, 'i> {
        for (key, _) in table {
            if section.key(key.get_ref()).is_none() {
                findings.add(|| unknown_key(key, &path, section));
            }
        }
        Reader {
            table,
            span,
            path,
            section,
        }
    }

    /// Whether the key is present, valid or not.
    pub(super) fn has(&self, name: &'static str) -> bool {
        self.entry(name).is_some()
    }

    /// Whether the key is present and its value is a string.
    pub(super) fn is_text(&self, name: &'static str) -> bool {
        let value = self.table.get(name);
        value.is_some_and(|value| value.get_ref().as_str().is_some())
    }

    /// The location of the key's value.
    pub(super) fn value_span(&self, name: &'static str) -> Option<Range<usize>> {
        self.entry(name).map(|entry| entry.span)
    }

    /// A finding located at the key, which must be present.
    pub(super) fn at_key(&self, name: &'static str, kind: ProblemKind, message: String) -> Finding {
        let span = self.table.get_key_value(name).map(|(key, _)| key.span());
        Finding {
            kind,
            span: span.or_else(|| self.span.clone()),
            path: self.path.key(name).as_str().to_owned(),
            message,
            hint: None,
        }
    }

    /// A finding about a missing key, located at the table's header.
    pub(super) fn missing(&self, name: &'static str, message: String) -> Finding {
        Finding {
            kind: ProblemKind::Missing,
            span: self.span.clone(),
            path: self.path.key(name).as_str().to_owned(),
            message,
            hint: self.key(name).map(like),
        }
    }

    /// Reads the value of an optional key.
    pub(super) fn optional<T: Setting>(
        &self,
        name: &'static str,
        findings: &mut Findings,
    ) -> Option<Located<T>> {
        let entry = self.entry(name)?;
        entry.read(findings)
    }

    /// Reads the value of a required key.
    pub(super) fn required<T: Setting>(
        &self,
        name: &'static str,
        findings: &mut Findings,
    ) -> Option<Located<T>> {
        if !self.has(name) {
            self.report_missing(name, findings);
        }
        self.optional(name, findings)
    }

    /// Reads the value of an optional key and checks its range.
    pub(super) fn ranged<T: Setting + PartialOrd + fmt::Display>(
        &self,
        name: &'static str,
        range: RangeInclusive<T>,
        findings: &mut Findings,
    ) -> Option<Located<T>> {
        self.entry(name)?.ranged(range, findings)
    }

    /// Reads the number of an optional key and checks its range.
    pub(super) fn count<T: TryFrom<u64> + Into<u64>>(
        &self,
        name: &'static str,
        range: RangeInclusive<T>,
        findings: &mut Findings,
    ) -> Option<Located<T>> {
        self.entry(name)?.count(range, findings)
    }

    /// Reads the value of a key of that kind. The key must be absent if `unless` holds.
    pub(crate) fn find<K: Kind>(
        &self,
        name: &'static str,
        kind: &K,
        unless: Option<Unless>,
        findings: &mut Findings,
    ) -> Found<K::Value> {
        let Some(entry) = self.entry(name) else {
            return Found::Absent;
        };
        let holds = |unless: &Unless| {
            let other = self.entry(unless.key);
            other.is_some_and(|other| other.value.as_str() == Some(unless.word))
        };
        if let Some(unless) = unless.filter(holds) {
            let message = format!("`{name}` is not valid for {}", unless.what);
            findings.add(|| Finding {
                hint: Some(unless.hint.to_owned()),
                ..self.at_key(name, ProblemKind::Conflict, message)
            });
        }
        kind.read(&entry, findings)
            .map_or(Found::Wrong, Found::Value)
    }

    /// Reports that a required key is missing.
    pub(crate) fn report_missing(&self, name: &'static str, findings: &mut Findings) {
        findings.add(|| self.missing(name, format!("`{name}` is missing")));
    }

    /// The value if it is readable, the default if the key is absent, else `None`.
    pub(super) fn or_default<T>(
        &self,
        name: &'static str,
        read: Option<Located<T>>,
        default: T,
    ) -> Option<T> {
        match read {
            Some(read) => Some(read.value),
            None if self.has(name) => None,
            None => Some(default),
        }
    }

    /// The elements of an array, at most `count_max`; `None` if the value is not an array.
    pub(super) fn elements(
        &self,
        name: &'static str,
        count_max: usize,
        findings: &mut Findings,
    ) -> Option<Vec<Element<'a, 'i>>> {
        self.entry(name)?.elements(count_max, findings)
    }

    /// The table named `name`.
    pub(super) fn table(
        &self,
        name: &'static str,
        section: &'static Section,
        findings: &mut Findings,
    ) -> Option<Reader<'a, 'i>> {
        let entry = self.entry(name)?;
        entry.table(section, findings)
    }

    /// The tables named `name`. A single table is reported and then read as the only element.
    pub(super) fn tables(
        &self,
        name: &'static str,
        count_max: usize,
        section: &'static Section,
        findings: &mut Findings,
    ) -> Vec<Reader<'a, 'i>> {
        let Some(entry) = self.entry(name) else {
            return Vec::new();
        };
        if let DeValue::Table(_) = entry.value {
            findings.add(|| {
                entry.finding(Fault {
                    kind: ProblemKind::WrongType,
                    message: format!("`{name}` is an array of tables"),
                    hint: Some(format!("write [[{name}]], in double brackets")),
                })
            });
            return entry.table(section, findings).into_iter().collect();
        }
        let elements = self.elements(name, count_max, findings).unwrap_or_default();
        elements
            .iter()
            .filter_map(|element| element.table(section, findings))
            .collect()
    }

    /// The number of tables named `name`; `None` if the value is not an array.
    pub(super) fn tables_count(&self, name: &'static str) -> Option<usize> {
        match self.entry(name) {
            None => Some(0),
            Some(entry) => entry.value.as_array().map(|array| array.len()),
        }
    }

    fn key(&self, name: &str) -> Option<&'static Key> {
        let key = self.section.key(name);
        debug_assert!(
            key.is_some(),
            "`{name}` is read but not listed in {}",
            self.section.header
        );
        key
    }

    fn entry(&self, name: &'static str) -> Option<Element<'a, 'i>> {
        let key = self.key(name)?;
        let value = self.table.get(name)?;
        let (value, span) = (value.get_ref(), value.span());
        Some(Element {
            value,
            span,
            path: self.path.key(name),
            key,
        })
    }
}

/// The hint that shows how to write a key.
fn like(key: &'static Key) -> String {
    let Key { name, example, .. } = key;
    match example.trim_matches(['[', ']']) == *name {
        true => format!("write it like `{example}`"),
        false => format!("write it like `{name} = {example}`"),
    }
}

fn unknown_key(key: &Spanned<DeString<'_>>, path: &Path, section: &'static Section) -> Finding {
    let name = key.get_ref();
    let here = section.keys().map(|key| key.name);
    let elsewhere = SECTIONS.iter().find(|other| other.key(name).is_some());
    let all = format!(
        "{} has {}",
        section.header,
        listed(here.clone(), usize::MAX)
    );
    let hint = match (nearest(name, here), elsewhere) {
        (Some(near), _) => format!("did you mean `{near}`? {all}"),
        (None, Some(other)) => format!("it is a key of {}; {all}", other.header),
        (None, None) => all,
    };
    Finding {
        kind: ProblemKind::UnknownKey,
        span: Some(key.span()),
        path: path.key(name).as_str().to_owned(),
        message: format!("unknown key `{}`", excerpt_of(name)),
        hint: Some(hint),
    }
}
