//! Exact costs of one request: instructions by stage, system calls, allocations, doorbells.
//!
//! A plain loop ([`driver_loop`], [`rdma_loop`]) is run twice under callgrind, the second time with
//! twice the requests: the difference is what the additional requests cost, without start and end.
//! A loop of many cases ([`tcp_loop`], [`growth_loop`]) is run once, and callgrind counts between two marks in it.
//! The other end of the loop (the emulated controller, the in-process fabric and the host on it) is
//! told apart by the source file that each instruction came from, which holds for what was inlined
//! too, and is subtracted. Nothing here depends on how busy the machine is.

pub mod baseline;
pub mod callgrind;
pub mod driver_loop;
pub mod growth;
pub mod growth_loop;
pub mod host_loop;
pub mod measure;
pub mod rdma_loop;
pub mod report;
mod rig;
pub mod stages;
pub mod tcp_cases;
mod tcp_host;
pub mod tcp_loop;
mod tcp_rig;

use serde::{Deserialize, Serialize};

/// What a loop counted by itself, from its first counted request to its last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopCounts {
    /// Requests submitted and completed.
    pub requests: u64,
    /// Allocations of the loop's thread, both ends together.
    pub allocations: u64,
    /// Everything else, by name.
    pub counted: Vec<(String, u64)>,
}

/// Requests in flight in a loop of one case, as the issues have it.
pub const DEPTH: usize = 128;

/// Bytes of every request of a loop of one case.
pub const REQUEST_BYTES: usize = 4096;

/// Requests before anything is counted: everything has been touched once, and every table has the
/// size that it keeps.
pub const WARM_UP_REQUESTS: u64 = 4 * DEPTH as u64;
