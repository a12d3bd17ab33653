//! `windlass`: a network storage appliance with polled, pinned cores.
//!
//! The crate exists for the program; it is a library so that its control plane can be fuzzed and
//! its configuration changes simulated.

#![forbid(unsafe_code)]

mod affinity;
mod ana;
mod appliance;
mod apply;
mod audit;
mod authentication;
mod change_gate;
mod client;
mod clients;
mod command_line;
mod control;
mod copies;
mod copy;
mod device;
mod devices;
mod doctor;
mod drives;
mod embedded;
mod error;
mod event_loop;
mod evict;
mod exports;
mod fabrics;
mod file_clients;
mod files;
mod handover;
pub mod headless;
mod health_reporter;
mod identities;
mod key;
mod key_files;
mod keys;
#[cfg(feature = "verbs")]
mod late_poller;
mod limits;
mod load;
mod manual;
mod memory;
mod messages;
mod nvme;
mod observe;
mod operator_states;
mod pacing;
#[cfg(feature = "probe")]
pub mod probe;
mod quantity;
#[cfg(feature = "verbs")]
mod rdma_devices;
mod reactor_setup;
mod reconciler;
mod requests;
mod reservation_files;
mod reservations;
mod revoked_keys;
mod running;
mod secret_file;
mod service;
mod signals;
mod state_directory;
mod status;
mod summary;
mod table;
mod terminal;
mod top;
mod trace;
mod transports;
mod upgrade;
mod volume;
mod volumes;
mod watchdog_loop;

use std::process::ExitCode;

use clap::Parser;

/// Runs the command line; returns the exit status of the process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = command_line::Arguments::parse();
    command_line::log_to_stderr(arguments.log.as_deref());
    match command_line::run(arguments.command) {
        Ok(code) => code,
        Err(error) => {
            // Configuration problems have places and carets of their own; any other error is one
            // line.
            service::report_failure(&error::one_line(error.as_ref()));
            if error.is::<service::BadConfiguration>() {
                return ExitCode::from(service::EXIT_CONFIGURATION);
            }
            ExitCode::FAILURE
        }
    }
}
