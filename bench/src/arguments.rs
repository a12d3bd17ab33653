//! Arguments, messages and exit codes that the commands of `bench` and `measure` share.

use std::error::Error;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::error::ErrorKind;
use serde::Serialize;

use crate::report::save_json;
use crate::units::parse_size;

/// The reason why a command failed.
pub type Failure = Box<dyn Error>;

/// Exit code for invalid arguments, as is usual.
const EXIT_USAGE: u8 = 2;

/// Parses the arguments and runs the program `name`. Each error is one line on standard error.
pub fn run<A: Parser>(
    name: &str,
    execute: impl FnOnce(A) -> Result<ExitCode, Failure>,
) -> ExitCode {
    let arguments = match A::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(name, &error),
    };
    execute(arguments).unwrap_or_else(|error| {
        eprintln!("{name}: {error}");
        ExitCode::FAILURE
    })
}

/// Prints help unchanged, and an error in the arguments as one line.
fn refuse(name: &str, error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Standard output may be a closed pipe.
        let _ = error.print();
        return if error.use_stderr() {
            ExitCode::from(EXIT_USAGE)
        } else {
            ExitCode::SUCCESS
        };
    }
    eprintln!("{name}: {}", one_line(&error.to_string()));
    ExitCode::from(EXIT_USAGE)
}

/// The message of a usage error in one line, without the usage text.
#[must_use]
pub fn one_line(text: &str) -> String {
    let message = text.split("\n\nUsage:").next().unwrap_or(text);
    let message = message
        .split("\n\nFor more information")
        .next()
        .unwrap_or(message);
    let paragraphs: Vec<String> = message
        .split("\n\n")
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    paragraphs
        .join("; ")
        .trim_start_matches("error: ")
        .to_owned()
}

/// Parses a size in bytes with a unit.
///
/// # Errors
/// The message for the user.
pub fn parse_region(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Parses a number from 1.
///
/// # Errors
/// The message for the user.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("give a number from 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

/// Parses the path of a report file. It is better to reject it before the measurement than
/// afterwards.
///
/// # Errors
/// The message for the user.
pub fn parse_report_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_dir() {
        return Err("that is a folder: name a file".to_owned());
    }
    match path.parent() {
        Some(folder) if folder != Path::new("") && !folder.is_dir() => {
            Err(format!("there is no folder {}", folder.display()))
        }
        _ => Ok(path),
    }
}

/// Parses a positive number of seconds.
///
/// # Errors
/// The message for the user.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    match parse_seconds_or_none(text)? {
        Duration::ZERO => Err("give more than 0 seconds".to_owned()),
        time => Ok(time),
    }
}

/// Parses a number of seconds, which may be 0.
///
/// # Errors
/// The message for the user.
pub fn parse_seconds_or_none(text: &str) -> Result<Duration, String> {
    let malformed = || format!("'{text}' is not a number of seconds");
    let seconds: f64 = text
        .trim_end_matches('s')
        .trim()
        .parse()
        .map_err(|_| malformed())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| malformed())
}

/// Prints a report, and saves it as JSON if requested.
///
/// # Errors
/// The file could not be written.
pub fn show<R: Display + Serialize>(report: &R, json: Option<&Path>) -> Result<ExitCode, Failure> {
    print!("{report}");
    if let Some(path) = json {
        save_json(report, path)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the RDMA devices.
///
/// # Errors
/// The verbs libraries are not available; the message names the remedy.
#[cfg(feature = "verbs")]
pub fn open_verbs() -> Result<rdma::Verbs, Failure> {
    rdma::Verbs::open().map_err(|error| {
        let remedy = error.remedy();
        format!("{error}: {remedy}").into()
    })
}

/// The message of a program without RDMA.
#[cfg(not(feature = "verbs"))]
pub const WITHOUT_VERBS: &str = "RDMA is unavailable: this program was built without it \
    (cargo build -p bench --features verbs)";
