//! The `measure` command: ceilings, comparisons and exact costs, for the developers of Windlass.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use hugemem::allocation_counter::CountingAllocator;

/// Counts the allocations that `measure cost` reports.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    measurement::run()
}
