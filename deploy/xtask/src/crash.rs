//! `cargo xtask crash`: runs the appliance's crash test, or the lab's, with any number of kills.

use clap::Args;

use crate::interop;
use crate::process::{self, cargo};

/// The variable with the number of kills for the test.
const ROUNDS: &str = "WINDLASS_CRASH_ROUNDS";

/// The number of kills, and the host.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of kills.
    #[arg(long, value_name = "N", default_value_t = 100)]
    count: u32,
    /// Under a kernel host with ext4 in the lab's guest, in place of the project's own host.
    #[arg(long)]
    lab: bool,
}

/// Kills the appliance repeatedly. Returns an error if data was lost.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if options.lab {
        return interop::run_repeatedly("kill-file-system", options.count);
    }
    let mut test = cargo();
    test.args(["test", "-p", "appliance", "--all-features"]);
    test.args(["--test", "crash", "--", "--nocapture"]);
    test.env(ROUNDS, options.count.to_string());
    process::run(&mut test)
}
