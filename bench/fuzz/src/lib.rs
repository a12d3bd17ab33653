//! Targets for coverage-guided fuzzing: each turns an input's bytes into external data for a
//! decoder or a connection.
//!
//! Owns the targets and their corpora (`corpora/`). Each target accepts any bytes, drives
//! production code with them, and panics if an invariant is violated: the code does not panic, each
//! command gets exactly one completion, no completion is without a command, all leases are returned
//! at the end, and other hosts are served meanwhile. Time is virtual, so that an input always has
//! the same effect.
//!
//! Built with `--cfg fuzzing`, as `cargo xtask fuzz` does, the binary uses libFuzzer. Otherwise it
//! runs each file once; the tests do that with every file of the corpora.

#![forbid(unsafe_code)]

mod chap;
mod config;
mod drive;
#[path = "../../../nvme/driver/tests/emulated/support/mod.rs"]
mod drive_harness;
mod emulator;
#[expect(dead_code, reason = "the emulator's own tests use all of it")]
#[path = "../../../nvme/driver_testing/tests/controller/harness.rs"]
mod emulator_harness;
mod handover;
mod http;
mod input;
mod key;
mod memory;
mod nfs_client;
#[expect(dead_code, reason = "the tests of the server use all of it")]
mod nfs_harness;
mod nfs_rdma;
mod nfs_rpc;
mod nfs_server;
mod pages;
#[expect(dead_code, reason = "the tests of the transport use all of it")]
#[path = "../../../nvme/rdma/tests/rdma_transport/harness/mod.rs"]
mod rdma_harness;
mod rdma_target;
mod reservations;
mod tcp_harness;
mod tcp_host;
mod tcp_target;
mod tls_hello;
mod tls_records;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

/// A fuzz target.
pub struct Target {
    /// The name, which is also that of the folder with its corpus.
    pub name: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
}

/// Every target of this crate.
pub const TARGETS: [Target; 18] = [
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
        name: "reservations",
        run: reservations::run,
    },
    Target {
        name: "handover",
        run: handover::run,
    },
    Target {
        name: "key",
        run: key::run,
    },
    Target {
        name: "chap",
        run: chap::run,
    },
    Target {
        name: "tls-hello",
        run: tls_hello::run,
    },
    Target {
        name: "tls-records",
        run: tls_records::run,
    },
    Target {
        name: "nfs-rpc",
        run: nfs_rpc::run,
    },
    Target {
        name: "nfs-rdma",
        run: nfs_rdma::run,
    },
    Target {
        name: "nfs-client",
        run: nfs_client::run,
    },
    Target {
        name: "nfs-server",
        run: nfs_server::run,
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

/// The environment variable with the name of the target that [`run_chosen`] runs.
pub const CHOICE: &str = "WINDLASS_FUZZ_TARGET";

/// The target with this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs one input of the target that the environment selects.
///
/// # Panics
/// Panics if the environment names no target, or if the input triggers a defect.
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

/// Runs the target named by the first argument, once for each file named by the others.
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
