//! The `bench` command: a verifying load generator for NVMe over Fabrics targets.

#![forbid(unsafe_code)]

mod command_line;

use std::process::ExitCode;

use hugemem::allocation_counter::CountingAllocator;

/// The load's own allocations are counted in its reports.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    bench::arguments::run("bench", |arguments: command_line::Arguments| {
        command_line::execute(arguments.command)
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn usage_errors_are_one_line() {
        for arguments in [
            &["bench", "sweep"][..],
            &["bench", "run", "--mix", "7"],
            &["bench", "run", "--vrify"],
        ] {
            let error = command_line::Arguments::try_parse_from(arguments).expect_err("refused");
            let text = bench::arguments::one_line(&error.to_string());
            assert!(!text.contains('\n') && !text.contains("Usage"), "{text}");
            assert!(text.len() > 20 && !text.starts_with("error"), "{text}");
        }
    }
}
