//! `cargo xtask crash`: the appliance's crash test and the lab's, for as many deaths as one likes.

use clap::Args;

use crate::interop;
use crate::process::{self, cargo};

/// Tells the test how often the appliance dies.
const ROUNDS: &str = "WINDLASS_CRASH_ROUNDS";

/// How often, and where.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// So many deaths.
    #[arg(long, value_name = "N", default_value_t = 100)]
    count: u32,
    /// Under a kernel host with ext4 in the lab's guest, in place of the project's own host.
    #[arg(long)]
    lab: bool,
}

/// Kills the appliance that often; an error when something was lost.
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
