//! The load generator: phases of reads and writes through our own host, timed, and verified on
//! request.
//!
//! One thread drives one or more I/O queues ("lanes"), each with its own part of the namespace, so
//! that the expected content of a block never depends on the interleaving of two queues.

pub mod initiator;
pub mod lane;
pub mod local;
pub mod options;
mod pacing;
pub mod phase;
pub mod run;
pub mod zipf;

#[cfg(test)]
mod tests;

pub use options::{Limit, OptionsError, Pattern, Workload};
pub use phase::{Gaps, OperationStats, Phase, PhaseKind, PhaseStats, RunError};
pub use run::{LoadError, Outcome, RunPlan, Watch, run, run_over};
