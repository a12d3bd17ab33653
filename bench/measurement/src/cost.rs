//! Exact costs of one request: instructions by stage, system calls, allocations, doorbells.
//!
//! A simple loop ([`driver_loop`], [`rdma_loop`]) runs twice under callgrind, the second time with
//! twice the requests: the difference is the cost of the additional requests, without start and
//! end. A loop with many cases ([`tcp_loop`], [`files_loop`], [`drive_memory_loop`],
//! [`growth_loop`]) runs once, and callgrind counts between two marks in it. The other end of the loop (the emulated controller, the in-process
//! fabric and the host on it) is identified by the source file of each instruction, including
//! inlined code, and is subtracted. No result depends on the load of the machine.

pub mod baseline;
pub mod callgrind;
pub mod drive_memory_loop;
pub mod driver_loop;
pub mod files_loop;
pub mod files_rates;
pub mod growth;
pub mod growth_loop;
pub mod host_loop;
pub mod measure;
pub mod rdma_loop;
mod rdma_rig;
pub mod report;
mod rig;
pub mod stages;
pub mod tcp_cases;
mod tcp_host;
pub mod tcp_loop;
mod tcp_rig;

use serde::{Deserialize, Serialize};

/// The loop's own counters, from its first counted request to its last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopCounts {
    /// Requests submitted and completed.
    pub requests: u64,
    /// Allocations of the loop's thread at both ends.
    pub allocations: u64,
    /// All other counters by name.
    pub counted: Vec<(String, u64)>,
}

/// Requests in flight in a loop with one case, as specified in the issues.
pub const DEPTH: usize = 128;

/// Size of every request in a loop with one case, in bytes.
pub const REQUEST_BYTES: usize = 4096;

/// Warm-up requests that are not counted: afterwards all memory has been touched, and every table
/// has its final size.
pub const WARM_UP_REQUESTS: u64 = 4 * DEPTH as u64;
