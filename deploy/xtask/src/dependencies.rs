//! Checks the dependencies with cargo-deny according to deny.toml: licences, bans and sources, and
//! advisories where their database can be fetched.

use std::path::PathBuf;

use crate::process::{self, cargo};

/// The version that deny.toml was written for.
const VERSION: &str = "0.20.2";
/// Where cargo-deny is installed, in `bin`.
const FOLDER: &str = "target/tools";

fn cargo_deny() -> PathBuf {
    process::root().join(FOLDER).join("bin/cargo-deny")
}

/// Installs cargo-deny unless this version is there. A build without optimization takes less time
/// than all the runs that it slows down.
pub(crate) fn provide() -> Result<(), String> {
    let is_wanted = |text: Vec<u8>| String::from_utf8_lossy(&text).trim_end().ends_with(VERSION);
    let mut version = process::program(cargo_deny());
    if cargo_deny().is_file() && process::output(version.arg("--version")).is_ok_and(is_wanted) {
        return Ok(());
    }
    println!("deny: installing cargo-deny {VERSION}");
    let mut install = cargo();
    install.args(["install", "cargo-deny", "--locked", "--debug", "--force"]);
    process::run(install.args(["--version", VERSION, "--root", FOLDER]))
}

/// Checks licences, bans and sources with the installed cargo-deny.
pub(crate) fn check() -> Result<(), String> {
    let mut check = process::program(cargo_deny());
    check.args(["--all-features", "check", "--hide-inclusion-graph"]);
    process::run(check.args(["licenses", "bans", "sources"]))
}

/// Checks advisories. Returns whether their database could be fetched.
pub(crate) fn check_advisories() -> Result<bool, String> {
    let mut fetch = process::program(cargo_deny());
    if process::run(fetch.args(["fetch", "db"])).is_err() {
        return Ok(false);
    }
    let mut check = process::program(cargo_deny());
    check.args(["--all-features", "check", "--hide-inclusion-graph"]);
    process::run(check.arg("advisories")).map(|()| true)
}
