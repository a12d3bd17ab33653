//! A verifying load generator for NVMe over Fabrics targets, and for servers of files.
//!
//! The load uses `nvme_host` and `files_client`, the project's own host and client; this crate contains
//! no other.

#![forbid(unsafe_code)]

use std::process::ExitCode;

pub mod arguments;
mod command_line;
pub mod difference;
pub mod files;
pub mod load;
pub mod pinning;
pub mod plot;
pub mod progress;
pub mod random;
pub mod report;
pub mod sweep;
pub mod table;
pub mod units;
pub mod upgrade;
pub mod verify;
pub mod workload_file;

/// Runs the command that the process's arguments describe.
#[must_use]
pub fn run() -> ExitCode {
    arguments::run("bench", |arguments: command_line::Arguments| {
        command_line::execute(arguments.command)
    })
}
