//! Measurements of Windlass itself, for its developers: exact costs of a request, ceilings of the
//! machine, and comparisons with them and with peers.
//!
//! Every claim of speed is a ratio to a ceiling or a peer measured in the same run. The load comes from
//! the crate `bench`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

pub mod appliance_process;
pub mod ceiling;
mod command_line;
pub mod compare;
pub mod cost;
pub mod cpu_limit;
pub mod device_memory;
pub mod drive;
pub mod leftovers;
pub mod report;
pub mod scale;
pub mod start;
pub mod storm;
pub mod transfers;

/// Runs the command that the process's arguments describe.
#[must_use]
pub fn run() -> ExitCode {
    bench::arguments::run("measure", |arguments: command_line::Arguments| {
        command_line::execute(arguments.command)
    })
}
