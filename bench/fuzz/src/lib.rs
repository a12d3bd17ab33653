//! Targets for fuzzing by coverage: what reaches a decoder or a connection from outside, made of
//! an input's bytes.
//!
//! Owns the targets and their inputs that are worth keeping (`corpora/`). Each target takes any
//! bytes, drives production code with them, and panics where something that must hold does not:
//! no panic of the code itself, no answer to a command that was not sent, none to none or twice,
//! every lease back when all is over, and others served meanwhile. Time is virtual throughout, so
//! that an input means the same whenever it runs.
//!
//! Built with `--cfg fuzzing`, as `cargo xtask fuzz` does, the binary is libFuzzer's; built
//! normally it runs each file once, which the tests do with every file of the corpora.

#![forbid(unsafe_code)]

mod config;
mod drive;
#[path = "../../../nvme/driver/tests/emulated_support/mod.rs"]
mod drive_harness;
mod emulator;
#[expect(dead_code, reason = "the emulator's own tests use all of it")]
#[path = "../../../nvme/driver/tests/emulated_controller/harness.rs"]
mod emulator_harness;
mod http;
mod input;
mod memory;
mod pages;
#[path = "../../../nvme/rdma/tests/harness/mod.rs"]
mod rdma_harness;
mod rdma_target;
mod tcp_host;
mod tcp_stage;
mod tcp_target;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

/// What is fuzzed.
pub struct Target {
    /// What it is called; its corpus is in the folder of that name.
    pub name: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
}

/// Every target of this crate.
pub const TARGETS: [Target; 8] = [
    Target {
        name: "tcp-target",
        run: tcp_target::run,
    },
    Target {
        name: "tcp-host",
        run: tcp_host::run,
    },
    Target {
        name: "rdma-target",
        run: rdma_target::run,
    },
    Target {
        name: "drive",
        run: drive::run,
    },
    Target {
        name: "emulator",
        run: emulator::run,
    },
    Target {
        name: "pages",
        run: pages::run,
    },
    Target {
        name: "config",
        run: config::run,
    },
    Target {
        name: "http",
        run: http::run,
    },
];

/// Names the target that [`run_chosen`] runs.
pub const CHOICE: &str = "WINDLASS_FUZZ_TARGET";

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs one input of the target that the environment chooses.
///
/// # Panics
/// The environment names none, or the input shows a defect.
pub fn run_chosen(input: &[u8]) {
    static CHOSEN: OnceLock<fn(&[u8])> = OnceLock::new();
    let run = CHOSEN.get_or_init(|| {
        let name = std::env::var(CHOICE).unwrap_or_default();
        let target = target(&name);
        target
            .unwrap_or_else(|| panic!("{CHOICE}={name}: no such target"))
            .run
    });
    run(input);
}

/// Runs a target, named first, once for each file named behind it.
pub fn replay(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let named = arguments.next();
    let target = named.as_ref().and_then(|name| target(name.to_str()?));
    let Some(target) = target else {
        let names = TARGETS.map(|target| target.name).join(" | ");
        eprintln!("usage: fuzz {names} FILE…");
        return ExitCode::FAILURE;
    };
    for file in arguments {
        let path = Path::new(&file);
        match std::fs::read(path) {
            Ok(input) => {
                println!("{}", path.display());
                (target.run)(&input);
            }
            Err(error) => {
                eprintln!("{}: {error}", path.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
