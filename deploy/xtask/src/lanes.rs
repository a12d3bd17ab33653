//! Steps of the gate in further processes of this program, beside the other steps.
//!
//! Guests wait often, so steps whose results do not depend on time run beside them. The simulation
//! depends on no time either: it takes what the others leave of the processors.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Instant;

use clap::ValueEnum;

use crate::process;
use crate::steps::{Outcome, Row};

/// Steps that run one after another in a process of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Lane {
    /// Those that need the lab's guest.
    Guests,
    /// The simulation.
    Simulation,
}

/// A process that runs a lane.
#[derive(Debug)]
pub(crate) struct RunningLane {
    lane: Lane,
    began: Instant,
    process: Result<Child, String>,
    /// What it prints.
    log: PathBuf,
    /// Its results.
    rows: PathBuf,
}

impl Lane {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// Starts the process. [`RunningLane::finish`] reports why it cannot be started.
    pub(crate) fn start(self) -> RunningLane {
        let name = self.name();
        let results = process::root().join("target/lanes");
        let log = results.join(format!("{name}.log"));
        let rows = results.join(format!("{name}.json"));
        let start = || {
            fs::create_dir_all(&results)?;
            let _ = fs::remove_file(&rows);
            let output = File::create(&log)?;
            // A later step may replace the program's file; this link leads to the running one.
            let running = format!("/proc/{}/exe", std::process::id());
            let mut command = process::program(running);
            command.args(["test", "--lane", &name, "--rows"]).arg(&rows);
            process::killed_with_parent(&command)
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output)
                .spawn()
        };
        println!("\n{name}: runs beside the next steps; its output follows these");
        RunningLane {
            lane: self,
            began: Instant::now(),
            process: start().map_err(|error: std::io::Error| error.to_string()),
            log,
            rows,
        }
    }
}

impl RunningLane {
    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }

    /// Waits for the process, prints what it printed, and returns its rows.
    pub(crate) fn finish(self) -> Vec<Row> {
        let name = self.lane.name();
        let waited = Instant::now();
        let rows = self.process.and_then(|mut process| {
            let status = process.wait().map_err(|error| error.to_string())?;
            if let Ok(text) = fs::read(&self.log) {
                print!("{}", String::from_utf8_lossy(&text));
            }
            let text = fs::read(&self.rows).map_err(|error| format!("{status}: {error}"))?;
            serde_json::from_slice(&text).map_err(|error| error.to_string())
        });
        let failed = |error| {
            vec![Row {
                name: name.clone(),
                outcome: Outcome::Failed(error),
                time: self.began.elapsed(),
            }]
        };
        let mut rows = rows.unwrap_or_else(failed);
        rows.push(Row {
            name: format!("wait for {name}"),
            outcome: Outcome::Passed,
            time: waited.elapsed(),
        });
        rows
    }
}
