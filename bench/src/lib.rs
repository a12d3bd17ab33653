//! Ceilings, comparisons, exact costs, and a verifying load generator for NVMe over Fabrics
//! targets.
//!
//! The load uses `nvme_host`, the project's own host; this crate contains no other. Every claim of
//! speed is a ratio to a ceiling measured in the same run.

#![forbid(unsafe_code)]

pub mod appliance_process;
pub mod ceiling;
pub mod compare;
pub mod cost;
pub mod cpu_limit;
pub mod difference;
pub mod drive;
pub mod leftovers;
pub mod load;
pub mod pinning;
pub mod plot;
pub mod progress;
pub mod random;
pub mod report;
pub mod scale;
pub mod start;
pub mod storm;
pub mod sweep;
pub mod table;
pub mod transfers;
pub mod units;
pub mod verify;
pub mod workload_file;
