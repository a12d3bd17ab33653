//! Compares two reports of the same kind: which numbers changed, and by how much.
//!
//! Works on the JSON of any report of this crate. Numbers are compared by their path, and rows of
//! lists are matched by their identifying fields.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use crate::table::Table;

/// Fields that identify a row of a list.
const NAMES: [&str; 14] = [
    "job",
    "nsid",
    "name",
    "subject",
    "stage",
    "pattern",
    "answers",
    "window",
    "load_percent",
    "bytes",
    "depth",
    "device",
    "connections",
    "reactors",
];

/// Fields that describe the conditions of a measurement, in addition to all booleans. If they
/// differ, results are not comparable.
const CONDITIONS: [&str; 13] = [
    "machine",
    "sizes_bytes",
    "data_bytes",
    "block_bytes",
    "region_bytes",
    "read_percent",
    "queues",
    "threads",
    "transport",
    "rate",
    "congestion_control",
    "over",
    "trouble",
];

/// Suffixes of fields for which more is better; for all other judged fields, less is better.
const MORE_IS_BETTER: [&str; 7] = [
    "iops",
    "per_second",
    "per_core_second",
    "ratio",
    "share",
    "alone",
    "beside",
];

/// Suffixes of fields for which less is better.
const LESS_IS_BETTER: [&str; 12] = [
    "_ns",
    "ns_per_request",
    "instructions",
    "calls",
    "calls_per_command",
    "allocations",
    "copied_bytes",
    "doorbells",
    "work_requests",
    "unsent",
    "latency_ratio",
    AT_MOST,
];

/// Suffix of ratios whose goal is a maximum.
const AT_MOST: &str = "ratio, at most";

/// The object with the host's totals, which depend on the duration of a run.
const TOTALS: &str = "host";

/// Separator of the parts of a path.
const SEPARATOR: &str = " › ";

/// The judgement of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// Better.
    Better,
    /// Worse.
    Worse,
    /// Neither.
    Other,
}

/// A changed number.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Its path in both reports.
    pub json_path: String,
    /// Its value in the first report.
    pub before: f64,
    /// Its value in the second report.
    pub after: f64,
}

impl Change {
    /// The change in percent of the first value; infinite from 0.
    #[must_use]
    pub fn percent(&self) -> f64 {
        if self.before == 0.0 {
            return f64::INFINITY.copysign(self.after);
        }
        (self.after - self.before) * 100.0 / self.before.abs()
    }

    /// Whether the change is an improvement.
    #[must_use]
    pub fn judgement(&self) -> Judgement {
        let mut parts = self.json_path.rsplit(SEPARATOR);
        let field = parts.next().unwrap_or_default();
        if parts.next() == Some(TOTALS) {
            return Judgement::Other;
        }
        let is_any = |endings: &[&str]| endings.iter().any(|ending| field.ends_with(ending));
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

/// The difference between two reports.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Difference {
    /// Conditions that differ, so that results are not comparable.
    pub conditions: Vec<String>,
    /// Paths that only one of the reports has; if a whole row is missing, the path of the row.
    pub unmatched: BTreeSet<String>,
    /// Judged numbers that changed by more than the threshold, in the order of their paths.
    pub changes: Vec<Change>,
    /// Number of judged numbers without such a change.
    pub unchanged: usize,
}

impl Difference {
    /// Compares two reports; changes of at most `percent` are not listed.
    #[must_use]
    pub fn between(before: &Value, after: &Value, percent: f64) -> Self {
        let (before, after) = (flatten(before), flatten(after));
        let mut found = Self::default();
        for (json_path, value) in &before.conditions {
            if after
                .conditions
                .get(json_path)
                .is_some_and(|other| other != value)
            {
                found.conditions.push(json_path.clone());
            }
        }
        for (json_path, &number) in &before.numbers {
            let Some(&other) = after.numbers.get(json_path) else {
                found.unmatched.insert(missing_in(&after, json_path));
                continue;
            };
            let change = Change {
                json_path: json_path.clone(),
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
        let only_after = only_after.filter(|json_path| !before.numbers.contains_key(*json_path));
        found
            .unmatched
            .extend(only_after.map(|json_path| missing_in(&before, json_path)));
        found
    }

    /// Whether there is nothing to compare: the reports are of different commands or loads.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.changes.is_empty() && self.unchanged == 0
    }

    /// Whether any number became worse.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        let worse = |change: &Change| change.judgement() == Judgement::Worse;
        self.changes.iter().any(worse)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.conditions.is_empty() {
            let list = self.conditions.join(", ");
            writeln!(
                f,
                "  taken under different circumstances ({list}): take care\n"
            )?;
        }
        if !self.changes.is_empty() {
            let mut table = Table::new(&["figure", "before", "after", "change", ""]);
            for change in &self.changes {
                table.row([
                    change.json_path.clone(),
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
        for json_path in &self.unmatched {
            writeln!(f, "  only in one of the two: {json_path}")?;
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

/// A report as a list of paths.
#[derive(Default)]
struct Flat {
    numbers: BTreeMap<String, f64>,
    conditions: BTreeMap<String, Value>,
}

impl Flat {
    /// Whether there are numbers at `json_path` or below.
    fn has(&self, json_path: &str) -> bool {
        let from = self.numbers.range(json_path.to_owned()..);
        let mut from = from.take_while(|(known, _)| known.starts_with(json_path));
        from.any(|(known, _)| {
            let rest = &known[json_path.len()..];
            rest.is_empty() || rest.starts_with(SEPARATOR)
        })
    }
}

/// The shortest prefix of `json_path` that does not exist.
fn missing_in(flat: &Flat, json_path: &str) -> String {
    let ends = json_path.match_indices(SEPARATOR).map(|(end, _)| end);
    let mut above = ends.map(|end| &json_path[..end]);
    let missing = above.find(|above| !flat.has(above));
    missing.unwrap_or(json_path).to_owned()
}

fn flatten(report: &Value) -> Flat {
    let mut flat = Flat::default();
    visit(report, String::new(), &mut flat);
    flat
}

fn visit(value: &Value, json_path: String, flat: &mut Flat) {
    let below = |name: &str| {
        if json_path.is_empty() {
            name.to_owned()
        } else {
            format!("{json_path}{SEPARATOR}{name}")
        }
    };
    match value {
        Value::Object(fields) => {
            // The points of a sweep over load are identified by their share of the unlimited rate.
            let is_part = fields.get("load_percent").is_some_and(Value::is_number);
            let at_most = fields.get("goal").and_then(|goal| goal.get("at_most"));
            for (name, value) in fields {
                let is_circumstance = CONDITIONS.contains(&name.as_str()) || value.is_boolean();
                if name == "ratio" && at_most.is_some() {
                    visit(value, below(AT_MOST), flat);
                } else if is_circumstance && !(is_part && name == "rate") {
                    flat.conditions.insert(below(name), value.clone());
                } else {
                    visit(value, below(name), flat);
                }
            }
        }
        Value::Array(rows) => {
            for (index, row) in rows.iter().enumerate() {
                let name = row_name(row).unwrap_or_else(|| index.to_string());
                let mut json_path = below(&name);
                if flat.has(&json_path) {
                    json_path = below(&format!("{name} ({index})"));
                }
                visit(row, json_path, flat);
            }
        }
        Value::Number(number) => {
            if let Some(number) = number.as_f64() {
                flat.numbers.insert(json_path, number);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// The name of a row of a list: its identifying fields in one line.
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
    fn changed_figures_are_judged_and_unchanged_ones_counted() {
        let found = Difference::between(&report(1000.0, 500), &report(1100.0, 501), 1.0);
        assert_eq!(found.changes.len(), 1);
        let change = &found.changes[0];
        assert!(change.json_path.contains("oltp") && change.json_path.ends_with("reads › iops"));
        assert!((change.percent() - 10.0).abs() < 1e-9);
        assert_eq!(change.judgement(), Judgement::Better);
        assert_eq!(found.unchanged, 1);
        assert!(!found.is_worse());
        assert!(Difference::between(&report(1100.0, 500), &report(1000.0, 500), 1.0).is_worse());
        assert!(Difference::between(&report(1.0, 500), &report(1.0, 600), 1.0).is_worse());
    }

    #[test]
    fn different_machines_and_missing_rows_are_reported() {
        let mut after = report(1000.0, 500);
        after["runs"][1]["machine"]["cores"] = json!(16);
        after["runs"][1]["phases"] = json!([]);
        let found = Difference::between(&report(1000.0, 500), &after, 1.0);
        assert_eq!(found.conditions.len(), 1);
        let missing = "runs › oltp, depth 32 › phases".to_owned();
        assert_eq!(
            found.unmatched,
            BTreeSet::from([missing]),
            "the row, not all that is in it"
        );
        let text = found.to_string();
        assert!(
            text.contains("different circumstances") && text.contains("only in one"),
            "{text}"
        );
    }

    #[test]
    fn duplicate_row_names_and_zero_values_are_handled() {
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

    #[test]
    fn only_figures_with_a_direction_are_judged() {
        let judged = |json_path: &str| {
            let (json_path, before, after) = (json_path.to_owned(), 1.0, 2.0);
            let change = Change {
                json_path,
                before,
                after,
            };
            change.judgement()
        };
        for json_path in [
            "runs › 0 › phases › main › reads › iops",
            "rounds › 0 › idle › beside",
            "rows › depth 128 › same_memory › requests_ratio",
            "figures › read-128 › against › 0 › ratio",
        ] {
            assert_eq!(judged(json_path), Judgement::Better, "{json_path}");
        }
        for json_path in [
            "runs › 0 › phases › main › reads › latency › p9999_ns",
            "points › connections 4 › target_ns_per_request",
            "rows › depth 1 › same_memory › latency_ratio",
            "figures › latency › against › 0 › ratio, at most",
            "rows › depth 8 › doorbells",
            "movements › bytes 4096, depth 1 › write › copied_bytes",
            "points › depth 1 › unsent",
        ] {
            assert_eq!(judged(json_path), Judgement::Worse, "{json_path}");
        }
        for json_path in [
            "runs › 0 › phases › main › reads › operations",
            "runs › 0 › phases › main › elapsed_seconds",
            "runs › 0 › limit_operations",
            "runs › 0 › limit_seconds",
            "runs › 0 › host › copied_bytes",
            "runs › 0 › seed",
        ] {
            assert_eq!(judged(json_path), Judgement::Other, "{json_path}");
        }
    }

    #[test]
    fn at_most_goal_inverts_the_judgement() {
        let figure = |ratio: f64| json!({ "ratio": ratio, "goal": { "at_most": 1.15 } });
        assert!(Difference::between(&figure(1.0), &figure(1.5), 1.0).is_worse());
        let figure = |ratio: f64| json!({ "ratio": ratio, "goal": { "at_least": 0.9 } });
        assert!(!Difference::between(&figure(1.0), &figure(1.5), 1.0).is_worse());
    }

    #[test]
    fn rows_are_matched_by_full_name() {
        let row = |depth: u16, iops: f64| json!({ "depth": depth, "iops": iops });
        let (before, after) = (json!([row(128, 7.0), row(1, 5.0)]), json!([row(1, 5.0)]));
        let found = Difference::between(&before, &after, 1.0);
        assert_eq!(found.unchanged, 1);
        assert_eq!(found.unmatched, BTreeSet::from(["depth 128".to_owned()]));
    }

    #[test]
    fn load_sweeps_are_matched_by_load_percent() {
        let sweep = |most: f64| {
            let point = |percent: u32| {
                let rate = most * f64::from(percent) / 100.0;
                json!({ "depth": 32, "load_percent": percent, "rate": rate, "iops": rate })
            };
            json!({ "load": { "rate": null, "seed": most }, "points": [point(10), point(95)] })
        };
        let found = Difference::between(&sweep(1000.0), &sweep(2000.0), 1.0);
        assert!(
            found.conditions.is_empty() && found.unmatched.is_empty(),
            "{found:?}"
        );
        assert_eq!(found.changes.len(), 2);
        assert!(
            found.changes[0].json_path.contains("load_percent 10"),
            "{found:?}"
        );
    }

    #[test]
    fn changed_digests_or_trouble_are_reported_as_conditions() {
        let run = |digest: bool| json!({ "runs": [{ "data_digest": digest, "iops": 5 }] });
        let found = Difference::between(&run(false), &run(true), 1.0);
        assert_eq!(found.conditions, ["runs › 0 › data_digest"]);
        let run = |trouble: Value| json!({ "runs": [{ "trouble": trouble, "iops": 5 }] });
        let found = Difference::between(&run(Value::Null), &run(json!("it hangs")), 1.0);
        assert_eq!(found.conditions, ["runs › 0 › trouble"]);
    }

    #[test]
    fn reports_of_different_commands_are_not_comparable() {
        let found = Difference::between(&report(1.0, 2), &json!({ "stages": [] }), 1.0);
        assert!(found.is_nothing());
        assert!(!Difference::between(&report(1.0, 2), &report(1.0, 2), 1.0).is_nothing());
    }
}
