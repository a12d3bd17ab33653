//! Runs a target: with libFuzzer if the crate is built for fuzzing, otherwise once for each file on
//! the command line.

#![forbid(unsafe_code)]
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::run_chosen(input));

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    fuzz::replay(std::env::args_os().skip(1))
}
