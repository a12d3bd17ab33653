//! The limits of costs: goals from the issues, and baselines of previous results.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cost::drive_memory_loop::PathCase;
use crate::cost::measure::{self, Subject};
use crate::cost::report::{CaseReports, CostReport};
use crate::cost::tcp_cases::Case;

/// Maximum increase of a request's cost over the baseline in percent: the possible effect of
/// another compiler version or another processor's implementation of memcpy.
pub const GROWTH_MAX_PERCENT: f64 = 3.0;

/// Maximum number of instructions of a request through memory of a drive, in percent of those of the
/// same request through the arena: the goal of issue 20.
pub const DRIVE_MEMORY_MAX_PERCENT: f64 = 110.0;

/// A previous result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// Instructions per request.
    pub instructions: f64,
}

impl From<&CostReport> for Baseline {
    fn from(report: &CostReport) -> Self {
        Self {
            // One decimal place is precise enough.
            instructions: (report.instructions * 10.0).round() / 10.0,
        }
    }
}

/// Previous results of several cases, by name.
pub type CaseBaselines = BTreeMap<String, Baseline>;

/// The exceeded limits of NVMe/TCP cases, one line each. With `growth_only`, instructions are
/// judged only by the baselines.
#[must_use]
pub fn case_excesses(
    reports: &CaseReports,
    baselines: Option<&CaseBaselines>,
    growth_only: bool,
) -> Vec<String> {
    let excesses_of = |report: &CostReport| {
        let subject = measure::case(&report.subject, &report.what, growth_only);
        // Other cases are judged only by their allocations.
        let baselines = baselines.filter(|_| is_judged(&report.what));
        let baseline = baselines.and_then(|all| all.get(&report.what));
        let missing = (baselines.is_some() && baseline.is_none())
            .then(|| "there is no baseline: --save-baseline makes one".to_owned());
        let mut lines = excesses(report, &subject, baseline.copied());
        lines.extend(missing);
        lines
            .into_iter()
            .map(|line| format!("{}: {line}", report.what))
            .collect::<Vec<_>>()
    };
    let cases = reports.cases.iter();
    cases
        .clone()
        .flat_map(excesses_of)
        .chain(cases.filter_map(|case| path_excess(reports, case)))
        .collect()
}

/// The excess of a request through memory of a drive over the same one through the arena, if there is
/// one and both were measured.
fn path_excess(reports: &CaseReports, case: &CostReport) -> Option<String> {
    if case.subject != measure::DRIVE_MEMORY.name {
        return None;
    }
    let host_path = reports.case(PathCase::named(&case.what)?.host_path?)?;
    let percent = case.instructions / host_path.instructions * 100.0;
    let most = host_path.instructions * DRIVE_MEMORY_MAX_PERCENT / 100.0;
    (case.instructions > most + NOTHING).then(|| {
        format!(
            "{}: {percent:.1} % of the instructions of {}, {DRIVE_MEMORY_MAX_PERCENT:.0} % at most",
            case.what, host_path.what
        )
    })
}

/// Whether the case of that name has a baseline.
#[must_use]
pub fn is_judged(name: &str) -> bool {
    Case::named(name).is_none_or(|case| case.is_steady())
}

/// Tolerance for rounding errors of the division among callers.
const NOTHING: f64 = 0.001;

/// The exceeded limits of a report, one line each.
#[must_use]
pub fn excesses(report: &CostReport, subject: &Subject, baseline: Option<Baseline>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut limit = |what: &str, value: f64, most: f64, why: &str| {
        if value > most + NOTHING {
            let line = format!("{what}: {value:.3} for each request, {most:.3} at most ({why})");
            lines.push(line);
        }
    };
    let most = subject.instructions_max;
    limit("instructions", report.instructions, most, "the aim");
    if let Some(baseline) = baseline {
        let most = baseline.instructions * (1.0 + GROWTH_MAX_PERCENT / 100.0);
        let why = "3 % more than the committed baseline";
        limit("instructions", report.instructions, most, why);
    }
    limit("allocations", report.allocations, 0.0, "none");
    let most = subject.system_calls_max;
    limit("system calls", report.system_calls, most, "the aim");
    for (name, most) in subject.limits {
        let found = report.counted.iter().find(|(found, _)| found == name);
        // A missing counter exceeds every limit.
        let value = found.map_or(f64::INFINITY, |(_, value)| *value);
        limit(name, value, *most, "the aim");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::drive_memory_loop::{ARENA_BYTES, PATH_MAIN_CASE};
    use crate::cost::measure::DRIVER;
    use crate::cost::tcp_cases::MAIN_CASE;
    use bench::report::Machine;

    fn report(instructions: f64, doorbells: f64) -> CostReport {
        CostReport {
            machine: Machine::here(),
            subject: "driver".to_owned(),
            what: String::new(),
            requests: 1,
            instructions,
            system_calls: 0.0,
            allocations: 0.0,
            counted: vec![("doorbells".to_owned(), doorbells)],
            stages: Vec::new(),
            functions: Vec::new(),
            subtracted: Vec::new(),
        }
    }

    #[test]
    fn exceeded_limits_and_growth_are_reported() {
        let baseline = Some(Baseline {
            instructions: 300.0,
        });
        assert!(excesses(&report(309.0, 0.1), &DRIVER, baseline).is_empty());
        assert_eq!(excesses(&report(310.0, 0.1), &DRIVER, baseline).len(), 1);
        assert_eq!(excesses(&report(451.0, 0.1), &DRIVER, None).len(), 1);
        assert_eq!(excesses(&report(451.0, 0.2), &DRIVER, baseline).len(), 3);
        let mut without = report(1.0, 0.0);
        without.counted.clear();
        without.allocations = 1.0;
        assert_eq!(excesses(&without, &DRIVER, None).len(), 2);
    }

    #[test]
    fn paths_are_compared_with_each_other() {
        let case = |name: &str, instructions, in_arena| CostReport {
            subject: "drive-memory".to_owned(),
            what: name.to_owned(),
            counted: vec![
                ("bytes copied".to_owned(), 0.0),
                (ARENA_BYTES.to_owned(), in_arena),
            ],
            ..report(instructions, 0.0)
        };
        let excesses = |read, in_arena| {
            let cases = vec![
                case("host-read-128k-8", 1000.0, 512.0),
                case(PATH_MAIN_CASE, read, in_arena),
            ];
            let machine = Machine::here();
            case_excesses(&CaseReports { machine, cases }, None, true)
        };
        assert_eq!(excesses(1100.0, 0.0), Vec::<String>::new());
        let above = excesses(1101.0, 0.0);
        assert!(
            above.len() == 1 && above[0].contains("110.1 %"),
            "{above:?}"
        );
        let touching = excesses(900.0, 512.0);
        let part = "bytes of data in host memory: 512.000";
        assert!(
            touching.len() == 1 && touching[0].contains(part),
            "{touching:?}"
        );
    }

    #[test]
    fn main_case_has_a_goal_and_steady_cases_have_baselines() {
        let case = |name: &str, instructions| CostReport {
            subject: "tcp".to_owned(),
            what: name.to_owned(),
            counted: vec![("bytes copied".to_owned(), 0.0)],
            ..report(instructions, 0.0)
        };
        let reports = CaseReports {
            machine: Machine::here(),
            cases: vec![case(MAIN_CASE, 901.0), case("null-read-4k-1", 5000.0)],
        };
        assert_eq!(case_excesses(&reports, None, false).len(), 1);
        assert!(case_excesses(&reports, None, true).is_empty());
        let mut baselines: CaseBaselines = reports
            .cases
            .iter()
            .map(|case| (case.what.clone(), Baseline::from(case)))
            .collect();
        assert!(case_excesses(&reports, Some(&baselines), true).is_empty());
        baselines.insert(
            MAIN_CASE.to_owned(),
            Baseline {
                instructions: 800.0,
            },
        );
        let found = case_excesses(&reports, Some(&baselines), true);
        assert!(
            found.len() == 1 && found[0].starts_with(MAIN_CASE),
            "{found:?}"
        );
        baselines.remove("null-read-4k-1");
        assert_eq!(case_excesses(&reports, Some(&baselines), true).len(), 2);
        let file = CaseReports {
            machine: Machine::here(),
            cases: vec![case("file-read-4k-1", 5000.0)],
        };
        assert!(case_excesses(&file, Some(&baselines), true).is_empty());
    }
}
