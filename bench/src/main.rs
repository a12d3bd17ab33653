//! The `bench` command: ceilings, comparisons, verified load.

#![forbid(unsafe_code)]

mod command_line;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use hugemem::allocation_counter::CountingAllocator;

/// Counts the allocations that `bench cost` reports.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Exit code for invalid arguments, as is usual.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments = match command_line::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    command_line::execute(arguments.command).unwrap_or_else(|error| {
        eprintln!("bench: {error}");
        ExitCode::FAILURE
    })
}

/// Prints help unchanged, and an error in the arguments as one line.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Standard output may be a closed pipe.
        let _ = error.print();
        return if error.use_stderr() {
            ExitCode::from(EXIT_USAGE)
        } else {
            ExitCode::SUCCESS
        };
    }
    eprintln!("bench: {}", one_line(&error.to_string()));
    ExitCode::from(EXIT_USAGE)
}

/// The message of a usage error without the usage text.
fn one_line(text: &str) -> String {
    let message = text.split("\n\nUsage:").next().unwrap_or(text);
    let message = message
        .split("\n\nFor more information")
        .next()
        .unwrap_or(message);
    let paragraphs: Vec<String> = message
        .split("\n\n")
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    paragraphs
        .join("; ")
        .trim_start_matches("error: ")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_errors_are_one_line() {
        for arguments in [
            &["bench", "ceiling"][..],
            &["bench", "run", "--mix", "7"],
            &["bench", "run", "--vrify"],
            &["bench", "compare", "udp"],
        ] {
            let error = command_line::Arguments::try_parse_from(arguments).expect_err("refused");
            let text = one_line(&error.to_string());
            assert!(!text.contains('\n') && !text.contains("Usage"), "{text}");
            assert!(text.len() > 20 && !text.starts_with("error"), "{text}");
        }
    }
}
