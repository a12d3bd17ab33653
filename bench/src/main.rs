//! The `bench` command: a verifying load generator for NVMe over Fabrics targets.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use hugemem::allocation_counter::CountingAllocator;

/// The load's own allocations are counted in its reports.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    bench::run()
}
