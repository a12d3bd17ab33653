//! A verifying load generator for NVMe over Fabrics targets.
//!
//! The load uses `nvme_host`, the project's own host; this crate contains no other.

#![forbid(unsafe_code)]

pub mod arguments;
pub mod difference;
pub mod load;
pub mod pinning;
pub mod plot;
pub mod progress;
pub mod random;
pub mod report;
pub mod sweep;
pub mod table;
pub mod units;
pub mod verify;
pub mod workload_file;
