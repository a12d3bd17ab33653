//! What security costs: our target over TLS, beside itself without, in one run.
//!
//! Both ends protect their connections with our own records. The host has a core of its own, so a
//! ratio is that of the slower end.

use super::{Suite, in_turn};
use crate::compare::target::{Target, TargetOptions};
use crate::compare::{CompareError, Load, READ_BYTES, measure_target};
use crate::report::suite::{Goal, Unit};

/// A row of requests per second.
struct Row {
    name: &'static str,
    what: &'static str,
    write: bool,
    bytes: u32,
    depth: u16,
    goal: Option<f64>,
}

const ROWS: [Row; 4] = [
    Row {
        name: "tls-read-128",
        what: "4 KiB random read over TLS, 128 in flight",
        write: false,
        bytes: READ_BYTES,
        depth: 128,
        goal: Some(0.65),
    },
    Row {
        name: "tls-read-128k",
        what: "128 KiB random read over TLS, 8 in flight",
        write: false,
        bytes: 128 << 10,
        depth: 8,
        goal: Some(0.55),
    },
    Row {
        name: "tls-write-128",
        what: "4 KiB random write over TLS, 128 in flight",
        write: true,
        bytes: READ_BYTES,
        depth: 128,
        goal: None,
    },
    Row {
        name: "tls-write-128k",
        what: "128 KiB random write over TLS, 8 in flight",
        write: true,
        bytes: 128 << 10,
        depth: 8,
        goal: None,
    },
];

/// The row of latencies.
const LATENCY: &str = "tls-latency";

/// The same target without TLS.
const WITHOUT: &str = "without TLS";

/// The names of the rows in order.
pub(crate) fn row_names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.name).chain([LATENCY])
}

impl Suite<'_> {
    /// Measures a row of that name; `None` if there is none.
    pub(super) fn take_trust(
        &mut self,
        name: &str,
        swapped: bool,
    ) -> Option<Result<(), CompareError>> {
        let row = ROWS.iter().find(|row| row.name == name);
        match row {
            Some(row) => Some(self.requests_over_tls(row, swapped)),
            None => (name == LATENCY).then(|| self.latency_over_tls(swapped)),
        }
    }

    /// A target that hosts use with and without TLS.
    fn target_with_tls(&self) -> Result<Target, CompareError> {
        Ok(Target::start(&TargetOptions {
            tls: true,
            ..self.options.common.target()
        })?)
    }

    fn requests_over_tls(&mut self, row: &Row, swapped: bool) -> Result<(), CompareError> {
        let load = |tls| Load {
            write: row.write,
            bytes: row.bytes,
            tls,
            ..Load::reads(usize::from(row.depth))
        };
        let target = self.target_with_tls()?;
        let (with, without) = in_turn(
            swapped,
            || self.requests(&target, &load(true)),
            || self.requests(&target, &load(false)),
        )?;
        let goal = row.goal.map(Goal::AtLeast);
        self.figures.add(
            row.name,
            row.what,
            Unit::RequestsPerSecond,
            with,
            &[(WITHOUT, without, goal)],
        );
        Ok(())
    }

    fn latency_over_tls(&mut self, swapped: bool) -> Result<(), CompareError> {
        let target = self.target_with_tls()?;
        let latency = |tls| {
            let load = Load {
                tls,
                ..Load::reads(1)
            };
            let measured = measure_target(&self.options.common, target.address, &load)?;
            Ok(measured.latency.p50_ns as f64)
        };
        let (with, without) = in_turn(swapped, || latency(true), || latency(false))?;
        self.figures.add(
            LATENCY,
            "4 KiB random read over TLS, 1 in flight, median",
            Unit::Nanoseconds,
            with.into(),
            &[(WITHOUT, without.into(), Some(Goal::AtMost(1.35)))],
        );
        Ok(())
    }
}
