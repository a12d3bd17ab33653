//! What security costs: our target over TLS, beside itself without, in one run.
//!
//! Both ends protect their connections with our own records. The host has a core of its own, so a
//! ratio is that of the slower end. Reads are also compared with bare pairs: with one that seals and
//! opens the same bytes, and, to show what that costs, with one that does not.

use super::{SAME_MEMORY, Suite, in_turn, of_pair};
use crate::ceiling::{CeilingOptions, DataLocation, Exchange, measure_tcp};
use crate::compare::target::{Target, TargetOptions};
use crate::compare::{CompareError, Load, READ_BYTES, measure_target};
use crate::report::suite::{Goal, Sample, Unit};

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

/// A bare pair that seals and opens the same bytes, and the goal of the ratio to it.
const SEALED_PAIR: &str = "sealing pair, same memory";
const SEALED_PAIR_GOAL: f64 = 0.9;

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
        let mut against = vec![(WITHOUT, without, goal)];
        if !row.write {
            let (sealed, bare) = in_turn(
                swapped,
                || self.pair_with_tls(row, true),
                || self.pair_with_tls(row, false),
            )?;
            let goal = Some(Goal::AtLeast(SEALED_PAIR_GOAL));
            against.extend([(SEALED_PAIR, sealed, goal), (SAME_MEMORY, bare, None)]);
        }
        let unit = Unit::RequestsPerSecond;
        self.figures.add(row.name, row.what, unit, with, &against);
        Ok(())
    }

    /// The bare pair, with or without records.
    fn pair_with_tls(&self, row: &Row, sealed: bool) -> Result<Sample, CompareError> {
        let exchange = Exchange {
            write: row.write,
            data_bytes: row.bytes as usize,
        };
        let memory = DataLocation::Memory(self.memory.clone());
        let measured = measure_tcp(&CeilingOptions {
            sealed,
            ..self.pair_options(exchange, memory, row.depth)
        })?;
        Ok(of_pair(&measured))
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
