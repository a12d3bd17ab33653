//! The gate's guests in a second process of this program, beside steps that do not depend on time.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::process;
use crate::steps::{Outcome, Row};

/// The name of the row of a process that returned no results.
const NAME: &str = "guests";

/// The process that runs the guests.
#[derive(Debug)]
pub(crate) struct Guests {
    began: Instant,
    process: Result<Child, String>,
    /// What it prints.
    log: PathBuf,
    /// Its results.
    rows: PathBuf,
}

impl Guests {
    /// Starts the process. [`finish`](Self::finish) reports why it cannot be started.
    pub(crate) fn start() -> Guests {
        let results = process::root().join("target/guests");
        let log = results.join("log");
        let rows = results.join("rows.json");
        let start = || {
            fs::create_dir_all(&results)?;
            let _ = fs::remove_file(&rows);
            let output = File::create(&log)?;
            // A later step may replace the program's file; this link leads to the running one.
            let running = format!("/proc/{}/exe", std::process::id());
            let mut command = process::program(running);
            command.args(["test", "--guests"]).arg(&rows);
            process::killed_with_parent(&command)
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output)
                .spawn()
        };
        println!("\nguests run beside the next steps; their output follows these");
        Guests {
            began: Instant::now(),
            process: start().map_err(|error: std::io::Error| error.to_string()),
            log,
            rows,
        }
    }

    /// Waits for the process, prints what it printed, and returns its rows.
    pub(crate) fn finish(self) -> Vec<Row> {
        let waited = Instant::now();
        let rows = self.process.and_then(|mut process| {
            let status = process.wait().map_err(|error| error.to_string())?;
            if let Ok(text) = fs::read(&self.log) {
                print!("{}", String::from_utf8_lossy(&text));
            }
            let text = fs::read(&self.rows).map_err(|error| format!("{status}: {error}"))?;
            serde_json::from_slice(&text).map_err(|error| error.to_string())
        });
        let mut rows = rows.unwrap_or_else(|error| vec![failed(error, self.began.elapsed())]);
        let time = waited.elapsed();
        rows.push(Row {
            name: "wait for guests".to_string(),
            outcome: Outcome::Passed,
            time,
        });
        rows
    }
}

fn failed(error: String, time: Duration) -> Row {
    Row {
        name: NAME.to_string(),
        outcome: Outcome::Failed(error),
        time,
    }
}
