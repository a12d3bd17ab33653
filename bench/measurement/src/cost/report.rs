//! The cost of one request, as JSON and as a table.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cost::drive_memory_loop::ARENA_BYTES;
use bench::report::Machine;
use bench::table::Table;

/// Maximum length of a function's name in the table, in characters.
const NAME_MAX_CHARACTERS: usize = 90;

/// The cost of one stage per request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageCost {
    /// Crate and module.
    pub name: String,
    /// Instructions.
    pub instructions: f64,
    /// System calls.
    pub system_calls: f64,
}

/// The cost of one request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostReport {
    /// The machine of the measurement.
    pub machine: Machine,
    /// `driver` or `rdma`.
    pub subject: String,
    /// Description of the request.
    pub what: String,
    /// Number of requests over which the results are averaged.
    pub requests: u64,
    /// Total instructions of all stages.
    pub instructions: f64,
    /// Total system calls of all stages.
    pub system_calls: f64,
    /// Allocations at both ends of the loop.
    pub allocations: f64,
    /// The loop's counters by name.
    pub counted: Vec<(String, f64)>,
    /// The stages of the measured path, in descending order of cost.
    pub stages: Vec<StageCost>,
    /// The most expensive functions of the measured path, including inlined code.
    pub functions: Vec<StageCost>,
    /// The other end of the loop and the loop itself, which the results above do not include.
    pub subtracted: Vec<StageCost>,
}

impl fmt::Display for CostReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "One request of {}", self.what)?;
        writeln!(f, "  mean of {}, counted by callgrind\n", self.requests)?;
        let mut table = Table::new(&["stage", "instructions", "system calls"]);
        let row = |stage: &StageCost| {
            [
                stage.name.clone(),
                format!("{:.1}", stage.instructions),
                format!("{:.4}", stage.system_calls),
            ]
        };
        for stage in &self.stages {
            table.row(row(stage));
        }
        table.row(row(&StageCost {
            name: "all stages".to_owned(),
            instructions: self.instructions,
            system_calls: self.system_calls,
        }));
        for stage in &self.subtracted {
            let [name, instructions, calls] = row(stage);
            table.row([format!("(subtracted: {name})"), instructions, calls]);
        }
        write!(f, "{table}")?;
        let mut functions =
            Table::new(&["dearest functions, with what is inlined", "instructions"]);
        for function in &self.functions {
            let name: String = function.name.chars().take(NAME_MAX_CHARACTERS).collect();
            functions.row([name, format!("{:.1}", function.instructions)]);
        }
        write!(f, "\n{functions}")?;
        writeln!(f, "\n  allocations: {:.4}", self.allocations)?;
        for (name, count) in &self.counted {
            writeln!(f, "  {name}: {count:.4}")?;
        }
        Ok(())
    }
}

/// The cost of one request in each of several cases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseReports {
    /// The machine of the measurement.
    pub machine: Machine,
    /// The cases.
    pub cases: Vec<CostReport>,
}

impl CaseReports {
    /// The case of this name.
    #[must_use]
    pub fn case(&self, name: &str) -> Option<&CostReport> {
        self.cases.iter().find(|case| case.what == name)
    }
}

/// The columns of the table for the loops' counters: heading, name of the counter.
const CASE_COUNTS: [(&str, &str); 7] = [
    ("receives", "receives"),
    ("sends", "sends"),
    ("placed", "bytes placed"),
    ("copied", "bytes copied"),
    ("copied by device", "bytes copied by the device"),
    ("in drive memory", "bytes of drive memory"),
    ("in host memory", ARENA_BYTES),
];

impl fmt::Display for CaseReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Each request, counted by callgrind\n")?;
        let mut headings = vec!["case", "instructions", "system calls", "allocations"];
        headings.extend(CASE_COUNTS.map(|(heading, _)| heading));
        let mut table = Table::new(&headings);
        for case in &self.cases {
            let mut row = vec![
                case.what.clone(),
                format!("{:.1}", case.instructions),
                format!("{:.3}", case.system_calls),
                format!("{:.3}", case.allocations),
            ];
            for (_, name) in CASE_COUNTS {
                let found = case.counted.iter().find(|(found, _)| found == name);
                row.push(found.map_or_else(String::new, |(_, count)| {
                    if name.starts_with("bytes") {
                        format!("{count:.0}")
                    } else {
                        format!("{count:.3}")
                    }
                }));
            }
            table.row(row);
        }
        write!(f, "{table}")
    }
}
