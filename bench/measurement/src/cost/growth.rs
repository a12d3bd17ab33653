//! Measures whether the cost of a request grows with the number of other objects: idle connections,
//! exports, namespaces, reactors.
//!
//! Contains the measured points of each dimension, the table, and the judgement; [`growth_loop`]
//! runs it.
//!
//! [`growth_loop`]: super::growth_loop

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cost::report::{CostReport, StageCost};
use bench::report::Machine;
use bench::table::Table;
use bench::units::format_count;

/// Maximum difference between the highest and the lowest cost of a request in percent.
pub const SPREAD_MAX_PERCENT: f64 = 3.0;

/// Number of stages listed if the difference is too large.
const STAGES_NAMED: usize = 3;

/// The dimension whose number grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrowthDimension {
    /// Idle connections of other hosts, each with an admin and an I/O queue.
    IdleConnections,
    /// Exports, each with its own device until the maximum number of devices.
    Exports,
    /// Namespaces of the export, each with its own device until the maximum number of devices.
    Namespaces,
    /// Reactors, each with a busy connection.
    Reactors,
}

impl GrowthDimension {
    /// All dimensions.
    pub const ALL: [Self; 4] = [
        Self::IdleConnections,
        Self::Exports,
        Self::Namespaces,
        Self::Reactors,
    ];

    /// Its name in point names and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::IdleConnections => "idle connections",
            Self::Exports => "exports",
            Self::Namespaces => "namespaces",
            Self::Reactors => "reactors",
        }
    }

    /// The measured numbers.
    #[must_use]
    pub fn numbers(self) -> &'static [usize] {
        match self {
            Self::IdleConnections => &[0, 64, 1024],
            Self::Exports => &[1, 64, 256],
            Self::Namespaces => &[1, 256, 1024],
            Self::Reactors => &[1, 2, 4, 8],
        }
    }
}

/// The kind of the counted requests, 4 KiB each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kind {
    /// Whether they are writes.
    pub write: bool,
    /// Requests of a batch: with only one, it bears the whole cost of a turn.
    pub depth: u16,
    /// Number of counted batches.
    pub batches: u64,
}

/// All kinds, in the order of the table's columns.
pub const KINDS: [Kind; 4] = [
    kind(false, 1),
    kind(false, 128),
    kind(true, 1),
    kind(true, 128),
];

const fn kind(write: bool, depth: u16) -> Kind {
    Kind {
        write,
        depth,
        batches: if depth == 1 { 320 } else { 16 },
    }
}

impl Kind {
    fn name(self) -> String {
        let operation = if self.write { "write" } else { "read" };
        format!("{operation}, {} in flight", self.depth)
    }
}

/// The cost of a request of one kind with one number of objects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrowthRow {
    /// Its unique name.
    pub name: String,
    /// The dimension.
    pub beside: GrowthDimension,
    /// The number of objects.
    pub number: usize,
    /// The kind of request.
    pub kind: Kind,
    /// Instructions per request.
    pub instructions: f64,
    /// System calls per request.
    pub system_calls: f64,
    /// Allocations per request.
    pub allocations: f64,
    /// Instructions by stage, in descending order.
    pub stages: Vec<StageCost>,
}

impl GrowthRow {
    /// The row of a point from its report.
    #[must_use]
    pub fn new(beside: GrowthDimension, number: usize, kind: Kind, report: CostReport) -> Self {
        Self {
            name: report.what,
            beside,
            number,
            kind,
            instructions: report.instructions,
            system_calls: report.system_calls,
            allocations: report.allocations,
            stages: report.stages,
        }
    }
}

/// All measured points in order.
pub fn points() -> impl Iterator<Item = (GrowthDimension, usize, Kind)> {
    GrowthDimension::ALL.into_iter().flat_map(|beside| {
        let numbers = beside.numbers().iter();
        numbers.flat_map(move |&number| KINDS.into_iter().map(move |kind| (beside, number, kind)))
    })
}

/// The name of a point.
#[must_use]
pub fn name(beside: GrowthDimension, number: usize, kind: Kind) -> String {
    format!("{number} {}, {}", beside.name(), kind.name())
}

/// The costs of requests over all dimensions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrowthReport {
    /// The machine of the measurement.
    pub machine: Machine,
    /// Each point.
    pub rows: Vec<GrowthRow>,
}

/// The numbers with the lowest and the highest cost of one kind of request.
struct Spread<'a> {
    least_expensive: &'a GrowthRow,
    most_expensive: &'a GrowthRow,
}

impl Spread<'_> {
    fn percent(&self) -> f64 {
        (self.most_expensive.instructions / self.least_expensive.instructions - 1.0) * 100.0
    }

    /// The stages with the largest growth.
    fn stages(&self) -> String {
        let before = |name: &str| {
            let found = self
                .least_expensive
                .stages
                .iter()
                .find(|stage| stage.name == name);
            found.map_or(0.0, |stage| stage.instructions)
        };
        let most_expensive = self.most_expensive.stages.iter();
        let mut grown: Vec<_> = most_expensive
            .map(|stage| (stage.instructions - before(&stage.name), &stage.name))
            .collect();
        grown.sort_by(|one, other| other.0.total_cmp(&one.0));
        let named = grown.iter().take(STAGES_NAMED);
        let named: Vec<String> = named
            .map(|(more, name)| format!("{name} {more:+.1}"))
            .collect();
        named.join(", ")
    }
}

impl GrowthReport {
    fn spread(&self, beside: GrowthDimension, kind: Kind) -> Option<Spread<'_>> {
        let rows = || {
            let rows = self.rows.iter();
            rows.filter(move |row| row.beside == beside && row.kind == kind)
        };
        let by_cost = |a: &&GrowthRow, b: &&GrowthRow| a.instructions.total_cmp(&b.instructions);
        Some(Spread {
            least_expensive: rows().min_by(by_cost)?,
            most_expensive: rows().max_by(by_cost)?,
        })
    }

    /// The violations (growth or allocations), one line each.
    #[must_use]
    pub fn excesses(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for beside in GrowthDimension::ALL {
            for kind in KINDS {
                let Some(spread) = self.spread(beside, kind) else {
                    lines.push(format!("{}, {}: not counted", beside.name(), kind.name()));
                    continue;
                };
                let percent = spread.percent();
                if percent.is_nan() || percent > SPREAD_MAX_PERCENT {
                    lines.push(format!(
                        "{}: {:.1} instructions, {percent:.1} % more than beside {}, \
                         {SPREAD_MAX_PERCENT} % at most ({})",
                        spread.most_expensive.name,
                        spread.most_expensive.instructions,
                        spread.least_expensive.number,
                        spread.stages(),
                    ));
                }
            }
        }
        let allocating = self.rows.iter().filter(|row| row.allocations > 0.0);
        lines.extend(allocating.map(|row| {
            format!(
                "{}: {:.3} allocations for each request",
                row.name, row.allocations
            )
        }));
        lines
    }
}

impl fmt::Display for GrowthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Instructions of a 4 KiB request over TCP, beside more and more of everything\n  \
             RAM, counted by callgrind; the spread is the dearest over the cheapest"
        )?;
        for beside in GrowthDimension::ALL {
            let kinds = KINDS.map(Kind::name);
            let mut headings = vec![beside.name()];
            headings.extend(kinds.iter().map(String::as_str));
            let mut table = Table::new(&headings);
            for &number in beside.numbers() {
                let mut cells = vec![format_count(number as u64)];
                cells.extend(KINDS.map(|kind| {
                    let mut rows = self.rows.iter();
                    let row = rows.find(|row| {
                        row.beside == beside && row.number == number && row.kind == kind
                    });
                    row.map_or_else(String::new, |row| format!("{:.1}", row.instructions))
                }));
                table.row(cells);
            }
            let mut cells = vec!["spread".to_owned()];
            cells.extend(KINDS.map(|kind| {
                let spread = self.spread(beside, kind);
                spread.map_or_else(String::new, |spread| format!("{:.1} %", spread.percent()))
            }));
            table.row(cells);
            write!(f, "\n{table}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn report(cost: impl Fn(GrowthDimension, usize, Kind) -> f64) -> GrowthReport {
        let row = |(beside, number, kind)| GrowthRow {
            name: name(beside, number, kind),
            beside,
            number,
            kind,
            instructions: cost(beside, number, kind),
            system_calls: 1.0,
            allocations: 0.0,
            stages: vec![StageCost {
                name: "nvme_target::target_core".to_owned(),
                instructions: cost(beside, number, kind),
                system_calls: 0.0,
            }],
        };
        GrowthReport {
            machine: Machine::here(),
            rows: points().map(row).collect(),
        }
    }

    #[test]
    fn growth_point_names_are_unique() {
        let names: HashSet<String> = points()
            .map(|(beside, number, kind)| name(beside, number, kind))
            .collect();
        assert_eq!(names.len(), (3 + 3 + 3 + 4) * KINDS.len());
    }

    #[test]
    fn growing_costs_are_reported_with_their_stage() {
        assert!(report(|_, _, _| 600.0).excesses().is_empty());
        let little = report(|_, number, _| if number > 64 { 617.0 } else { 600.0 });
        assert!(little.excesses().is_empty());
        let grows = report(|beside, number, kind| match (beside, kind.depth) {
            (GrowthDimension::Exports, 1) => 2000.0 + number as f64,
            _ => 600.0,
        });
        let found = grows.excesses();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("256 exports, read, 1 in flight"),
            "{found:?}"
        );
        assert!(
            found[0].contains("nvme_target::target_core +255.0"),
            "{found:?}"
        );
        let text = grows.to_string();
        assert!(
            text.contains("12.7 %") && text.contains("reactors"),
            "{text}"
        );
    }

    #[test]
    fn missing_points_and_allocations_are_excesses() {
        let mut missing = report(|_, _, _| 600.0);
        missing
            .rows
            .retain(|row| row.beside != GrowthDimension::Reactors);
        missing.rows[0].allocations = 0.5;
        assert_eq!(missing.excesses().len(), KINDS.len() + 1);
        assert!(!report(|_, _, _| f64::NAN).excesses().is_empty());
    }
}
