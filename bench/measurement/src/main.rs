//! The `measure` command: ceilings, comparisons and exact costs, for the developers of Windlass.

#![forbid(unsafe_code)]

mod command_line;

use std::process::ExitCode;

use hugemem::allocation_counter::CountingAllocator;

/// Counts the allocations that `measure cost` reports.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    bench::arguments::run("measure", |arguments: command_line::Arguments| {
        command_line::execute(arguments.command)
    })
}
