//! The limits: what the issues promise, and what was reached before.

use serde::{Deserialize, Serialize};

use crate::cost::measure::Subject;
use crate::cost::report::CostReport;

/// How much more than the baseline a request may cost, percent: what another compiler version or
/// another processor's choice of memcpy may come to.
pub const GROWTH_MAX_PERCENT: f64 = 3.0;

/// What was reached before.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// Instructions of one request.
    pub instructions: f64,
}

/// Rounding of the division by callers may give and take this much.
const NOTHING: f64 = 0.001;

/// What of a report is beyond its limits, one line each.
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
    // The connection manager's descriptor is looked at once in many turns.
    limit("system calls", report.system_calls, 0.001, "none");
    for (name, most) in subject.limits {
        let found = report.counted.iter().find(|(found, _)| found == name);
        // What was not counted is beyond any limit.
        let value = found.map_or(f64::INFINITY, |(_, value)| *value);
        limit(name, value, *most, "the aim");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::measure::DRIVER;
    use crate::report::Machine;

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
    fn limits_and_growth_are_found() {
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
}
