//! The `windlass` program.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    appliance::main()
}
