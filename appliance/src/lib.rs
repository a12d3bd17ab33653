//! `windlass`: storage on the network from polled, pinned cores. This file is the command line;
//! `appliance` starts and stops what it asks for.
//!
//! The program is all that this crate is for; as a library it lets its control plane be fuzzed
//! and its changes be simulated.

#![forbid(unsafe_code)]

mod appliance;
mod apply;
mod client;
mod command_line;
mod control;
mod device;
mod devices;
mod doctor;
mod drives;
mod embedded;
mod error;
mod event_loop;
mod exports;
mod fabrics;
pub mod headless;
mod identities;
mod load;
mod manual;
mod memory;
mod nvme;
mod observe;
mod orders;
#[cfg(feature = "probe")]
pub mod probe;
mod quantity;
mod reactor_setup;
mod reconciler;
mod requests;
mod running;
mod service;
mod signals;
mod status;
mod summary;
mod table;
mod terminal;
mod top;
mod trace;
mod transports;
mod watch;
mod watchdog_loop;

use std::process::ExitCode;

use clap::Parser;

/// Does what the command line asks for; the process's exit status.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = command_line::Arguments::parse();
    command_line::log_to_stderr(arguments.log.as_deref());
    match command_line::run(arguments.command) {
        Ok(code) => code,
        Err(error) => {
            // Configuration problems bring their own places and carets; everything else is one
            // line.
            service::report_failure(&error::one_line(error.as_ref()));
            if error.is::<service::BadConfiguration>() {
                return ExitCode::from(service::EXIT_CONFIGURATION);
            }
            ExitCode::FAILURE
        }
    }
}
