//! `cargo xtask fuzz`: runs the targets of bench/fuzz with libFuzzer on the pinned toolchain.
//!
//! Every crate is compiled with coverage instrumentation for libFuzzer. Results are in target/fuzz:
//! inputs with new coverage in `corpora`, inputs that show a defect in `findings`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::process::{self, cargo};

/// Compiler flags that let libFuzzer see the edges and comparisons that an input reaches.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0";

/// All fuzz targets; a test compares them with those of bench/fuzz.
pub(crate) const TARGETS: [&str; 18] = [
    "tcp-target",
    "tcp-host",
    "rdma-target",
    "drive",
    "emulator",
    "pages",
    "reservations",
    "handover",
    "key",
    "chap",
    "tls-hello",
    "tls-records",
    "nfs-rpc",
    "nfs-rdma",
    "nfs-server",
    "nfs-client",
    "config",
    "http",
];

/// The variable with the name of the target, which bench/fuzz reads.
const TARGET_VARIABLE: &str = "WINDLASS_FUZZ_TARGET";
/// Maximum size of an input in bytes; longer inputs find nothing more.
const INPUT_BYTES_MAX: u32 = 2048;
/// Maximum run time of an input in seconds; a longer one is a finding.
const INPUT_SECONDS_MAX: u32 = 25;
/// Memory limit of a target in MiB.
const MEMORY_MIB_MAX: u32 = 1024;
/// Maximum size in bytes of an input in the repository.
const KEPT_BYTES_MAX: u32 = 512;
/// Duration for which the tests fuzz each target, in seconds.
const TEST_SECONDS: u32 = 8;

/// The targets to fuzz, and the duration.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only this target.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(TARGETS))]
    target: Option<String>,
    /// Seconds for each target.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 60,
        conflicts_with = "minutes"
    )]
    seconds: u32,
    /// The same in minutes.
    #[arg(long, value_name = "N")]
    minutes: Option<u32>,
    /// Put what was found before among the inputs of the repository, as few as have the same
    /// coverage, instead of looking for more.
    #[arg(long)]
    keep: bool,
}

/// Fuzzes according to the options. Returns an error if a defect was found.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let fuzzer = Fuzzer::build()?;
    let seconds = match options.minutes {
        Some(minutes) => minutes.saturating_mul(60),
        None => options.seconds,
    };
    for target in TARGETS {
        if options.target.as_deref().is_some_and(|only| only != target) {
            continue;
        }
        if options.keep {
            fuzzer.keep(target)?;
        } else {
            fuzzer.fuzz(target, seconds)?;
        }
    }
    Ok(())
}

/// The built program, and the directory of its results.
pub(crate) struct Fuzzer {
    program: PathBuf,
    found: PathBuf,
}

impl Fuzzer {
    /// Builds the program.
    pub(crate) fn build() -> Result<Self, String> {
        let host = host_triple()?;
        let mut build = cargo();
        // With an explicit target, the flags affect neither build scripts nor macros, which are
        // therefore reused from other builds.
        build.args(["build", "-p", "fuzz", "--target", &host]);
        build.env("RUSTFLAGS", COVERAGE);
        process::run(&mut build)?;
        let target = process::root().join("target");
        Ok(Self {
            program: target.join(host).join("debug/fuzz"),
            found: target.join("fuzz"),
        })
    }

    /// Runs the inputs of the repository, and others for a few seconds.
    pub(crate) fn test(&self, target: &str) -> Result<(), String> {
        self.fuzz(target, TEST_SECONDS)
    }

    fn fuzz(&self, target: &str, seconds: u32) -> Result<(), String> {
        let corpus = self.folder("corpora", target)?;
        let findings = self.folder("findings", target)?;
        let mut command = self.command(target);
        command.arg(&corpus).arg(committed(target));
        command.arg(format!("-artifact_prefix={}/", findings.display()));
        command.arg(format!("-max_total_time={seconds}"));
        command.arg(format!("-max_len={INPUT_BYTES_MAX}"));
        // Inputs are sequences of choices, so short ones reach little.
        command.args(["-len_control=20", "-print_final_stats=1", "-verbosity=1"]);
        process::run(&mut command).map_err(|error| {
            let findings = findings.display();
            format!(
                "{error}\nthe input is in {findings}; with cargo run -p fuzz {target} INPUT it \
                 shows the defect again"
            )
        })
    }

    /// Replaces the inputs of the repository by the smallest set with the coverage of these and the
    /// found ones.
    fn keep(&self, target: &str) -> Result<(), String> {
        let fresh = self.folder("kept", target)?;
        let error = |error| format!("{}: {error}", fresh.display());
        fs::remove_dir_all(&fresh).map_err(error)?;
        fs::create_dir_all(&fresh).map_err(error)?;
        let mut command = self.command(target);
        command.args(["-set_cover_merge=1", &format!("-max_len={KEPT_BYTES_MAX}")]);
        // Uses only edges as coverage: counts would require many times as many inputs.
        command.arg("-use_counters=0");
        command.arg(&fresh).arg(committed(target));
        command.arg(self.folder("corpora", target)?);
        process::run(&mut command)?;
        let kept = committed(target);
        replace_files(&fresh, &kept).map_err(|error| format!("{}: {error}", kept.display()))
    }

    fn command(&self, target: &str) -> Command {
        let mut command = process::killed_with_parent(&process::program(&self.program));
        command.env(TARGET_VARIABLE, target);
        command.arg(format!("-timeout={INPUT_SECONDS_MAX}"));
        command.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
        command
    }

    fn folder(&self, kind: &str, target: &str) -> Result<PathBuf, String> {
        let folder = self.found.join(kind).join(target);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(folder)
    }
}

/// The directory of a target's inputs in the repository.
fn committed(target: &str) -> PathBuf {
    process::root().join("bench/fuzz/corpora").join(target)
}

/// Whether an input shows a defect. Such inputs are kept regardless of their coverage.
fn is_regression(name: &str) -> bool {
    name.starts_with("defect-")
}

fn replace_files(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if !is_regression(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path())?;
        }
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// The target triple of the toolchain's host.
fn host_triple() -> Result<String, String> {
    let output = process::output(process::program("rustc").arg("-vV"))?;
    let text = String::from_utf8_lossy(&output);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| "rustc -vV does not say what it runs on".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fuzz_target_has_committed_inputs() {
        for target in TARGETS {
            let inputs = fs::read_dir(committed(target)).expect(target).count();
            assert!(inputs > 0, "{target}");
        }
        let folders = fs::read_dir(process::root().join("bench/fuzz/corpora")).expect("corpora");
        assert_eq!(folders.count(), TARGETS.len(), "a target is missing here");
    }

    #[test]
    fn inputs_of_defects_are_kept_by_a_merge() {
        let scratch = tempfile::tempdir().expect("a folder");
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        for folder in [&from, &to] {
            fs::create_dir(folder).expect("fresh");
        }
        fs::write(from.join("new"), "n").expect("written");
        fs::write(to.join("old"), "o").expect("written");
        fs::write(to.join("defect-1"), "d").expect("written");
        replace_files(&from, &to).expect("replaced");
        let there = |name: &str| to.join(name).exists();
        assert!(there("new") && there("defect-1") && !there("old"));
    }
}
