//! Two reports of one kind beside each other: what moved, and by how much.
//!
//! Works on the JSON of any report of this crate: numbers are compared where they stand at the same
//! place, and rows of lists are matched by what names them.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::table::Table;

/// Fields that name a row of a list.
const NAMES: [&str; 12] = [
    "job",
    "nsid",
    "name",
    "subject",
    "stage",
    "pattern",
    "answers",
    "window",
    "depth",
    "device",
    "connections",
    "reactors",
];

/// Fields that say how a figure was taken; where they differ, figures do not compare.
const CIRCUMSTANCES: [&str; 9] = [
    "machine",
    "seed",
    "sizes_bytes",
    "read_percent",
    "queues",
    "threads",
    "transport",
    "rate",
    "verified",
];

/// Of these, more is better; of all others that are judged, less.
const MORE_IS_BETTER: [&str; 6] = [
    "iops",
    "per_second",
    "per_core_second",
    "ratio",
    "against",
    "share",
];

/// Of these, less is better.
const LESS_IS_BETTER: [&str; 6] = [
    "_ns",
    "_seconds",
    "instructions",
    "calls",
    "copied",
    "allocations",
];

/// How a change is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// It became better.
    Better,
    /// It became worse.
    Worse,
    /// Neither is better.
    Other,
}

/// A number that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Where it stands in both reports.
    pub place: String,
    /// In the first.
    pub before: f64,
    /// In the second.
    pub after: f64,
}

impl Change {
    /// By how much it moved, percent of the first; infinite from 0.
    #[must_use]
    pub fn percent(&self) -> f64 {
        if self.before == 0.0 {
            return f64::INFINITY.copysign(self.after);
        }
        (self.after - self.before) * 100.0 / self.before.abs()
    }

    /// Whether that is for the better.
    #[must_use]
    pub fn judgement(&self) -> Judgement {
        let field = self.place.rsplit(" › ").next().unwrap_or_default();
        let is_any = |parts: &[&str]| parts.iter().any(|part| field.contains(part));
        let rises = self.after > self.before;
        if is_any(&LESS_IS_BETTER) {
            if rises {
                Judgement::Worse
            } else {
                Judgement::Better
            }
        } else if is_any(&MORE_IS_BETTER) {
            if rises {
                Judgement::Better
            } else {
                Judgement::Worse
            }
        } else {
            Judgement::Other
        }
    }
}

/// What differs between two reports.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Difference {
    /// Circumstances that differ: figures taken under them do not compare.
    pub circumstances: Vec<String>,
    /// Places that only one of the two has.
    pub unmatched: Vec<String>,
    /// Judged numbers that moved by more than was asked for, in the order of their places.
    pub changes: Vec<Change>,
    /// Judged numbers that did not.
    pub unchanged: usize,
}

impl Difference {
    /// Compares two reports; changes of at most `percent` are not listed.
    #[must_use]
    pub fn between(before: &Value, after: &Value, percent: f64) -> Self {
        let (before, after) = (flatten(before), flatten(after));
        let mut found = Self::default();
        for (place, value) in &before.circumstances {
            if after
                .circumstances
                .get(place)
                .is_some_and(|other| other != value)
            {
                found.circumstances.push(place.clone());
            }
        }
        for (place, &number) in &before.numbers {
            let Some(&other) = after.numbers.get(place) else {
                found.unmatched.push(place.clone());
                continue;
            };
            let change = Change {
                place: place.clone(),
                before: number,
                after: other,
            };
            if change.judgement() == Judgement::Other {
                continue;
            }
            if number == other || change.percent().abs() <= percent {
                found.unchanged += 1;
            } else {
                found.changes.push(change);
            }
        }
        let only_after = after.numbers.keys();
        let only_after = only_after.filter(|place| !before.numbers.contains_key(*place));
        found.unmatched.extend(only_after.cloned());
        found
    }

    /// Whether anything became worse.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        let worse = |change: &Change| change.judgement() == Judgement::Worse;
        self.changes.iter().any(worse)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.circumstances.is_empty() {
            let list = self.circumstances.join(", ");
            writeln!(
                f,
                "  taken under different circumstances ({list}): take care\n"
            )?;
        }
        if !self.changes.is_empty() {
            let mut table = Table::new(&["figure", "before", "after", "change", ""]);
            for change in &self.changes {
                table.row([
                    change.place.clone(),
                    format_number(change.before),
                    format_number(change.after),
                    format!("{:+.1} %", change.percent()),
                    match change.judgement() {
                        Judgement::Better => "better".to_owned(),
                        Judgement::Worse => "worse".to_owned(),
                        Judgement::Other => String::new(),
                    },
                ]);
            }
            writeln!(f, "{table}")?;
        }
        for place in &self.unmatched {
            writeln!(f, "  only in one of the two: {place}")?;
        }
        writeln!(f, "  {} figures as before", self.unchanged)
    }
}

fn format_number(number: f64) -> String {
    if number.abs() >= 1000.0 || number.fract() == 0.0 {
        format!("{number:.0}")
    } else {
        format!("{number:.3}")
    }
}

/// A report as a list of places.
#[derive(Default)]
struct Flat {
    numbers: BTreeMap<String, f64>,
    circumstances: BTreeMap<String, Value>,
}

fn flatten(report: &Value) -> Flat {
    let mut flat = Flat::default();
    visit(report, String::new(), &mut flat);
    flat
}

fn visit(value: &Value, place: String, flat: &mut Flat) {
    let below = |name: &str| {
        if place.is_empty() {
            name.to_owned()
        } else {
            format!("{place} › {name}")
        }
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if CIRCUMSTANCES.contains(&name.as_str()) {
                    flat.circumstances.insert(below(name), value.clone());
                } else {
                    visit(value, below(name), flat);
                }
            }
        }
        Value::Array(rows) => {
            for (index, row) in rows.iter().enumerate() {
                let name = row_name(row).unwrap_or_else(|| index.to_string());
                let mut place = below(&name);
                if flat.numbers.keys().any(|known| known.starts_with(&place)) {
                    place = below(&format!("{name} ({index})"));
                }
                visit(row, place, flat);
            }
        }
        Value::Number(number) => {
            if let Some(number) = number.as_f64() {
                flat.numbers.insert(place, number);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// What a row of a list is called: the fields that name it, in one line.
fn row_name(row: &Value) -> Option<String> {
    let named = |name: &&str| match row.get(*name)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(format!("{name} {number}")),
        _ => None,
    };
    let parts: Vec<String> = NAMES.iter().filter_map(named).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(iops: f64, p99_ns: u64) -> Value {
        json!({ "runs": [
            { "job": "other", "phases": [] },
            { "job": "oltp", "machine": {"cores": 2}, "depth": 32, "region_bytes": 7,
              "phases": [{ "name": "main", "reads": { "iops": iops, "latency": { "p99_ns": p99_ns } } }] },
        ] })
    }

    #[test]
    fn what_moved_is_judged_and_what_did_not_is_counted() {
        let found = Difference::between(&report(1000.0, 500), &report(1100.0, 501), 1.0);
        assert_eq!(found.changes.len(), 1);
        let change = &found.changes[0];
        assert!(change.place.contains("oltp") && change.place.ends_with("reads › iops"));
        assert!((change.percent() - 10.0).abs() < 1e-9);
        assert_eq!(change.judgement(), Judgement::Better);
        assert_eq!(found.unchanged, 1);
        assert!(!found.is_worse());
        assert!(Difference::between(&report(1100.0, 500), &report(1000.0, 500), 1.0).is_worse());
        assert!(Difference::between(&report(1.0, 500), &report(1.0, 600), 1.0).is_worse());
    }

    #[test]
    fn other_machines_and_missing_rows_are_said() {
        let mut after = report(1000.0, 500);
        after["runs"][1]["machine"]["cores"] = json!(16);
        after["runs"][1]["phases"] = json!([]);
        let found = Difference::between(&report(1000.0, 500), &after, 1.0);
        assert_eq!(found.circumstances.len(), 1);
        assert_eq!(found.unmatched.len(), 2);
        let text = found.to_string();
        assert!(
            text.contains("different circumstances") && text.contains("only in one"),
            "{text}"
        );
    }

    #[test]
    fn rows_of_one_name_stay_apart_and_nothing_divides_by_zero() {
        let twice = |first: u64, second: u64| {
            json!([
                { "name": "a", "calls": first }, { "name": "a", "calls": second },
            ])
        };
        let found = Difference::between(&twice(0, 3), &twice(2, 3), 5.0);
        assert_eq!((found.changes.len(), found.unchanged), (1, 1));
        assert_eq!(found.changes[0].percent(), f64::INFINITY);
        assert!(found.is_worse());
    }
}
