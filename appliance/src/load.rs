//! `windlass bench`: replaces this process by the load generator that is installed with the
//! appliance.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Failure;

/// Its locations relative to the directory of this program: beside it in a build, and in the
/// package.
const PLACES: [&str; 2] = ["bench", "../lib/windlass/bench"];

/// The load generator is not installed.
#[derive(Debug, thiserror::Error)]
#[error(
    "no load generator at {}: build it with `cargo build --release -p bench`, or install the \
     package",
    places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or ")
)]
struct Missing {
    places: Vec<PathBuf>,
}

fn find(directory: &Path) -> Result<PathBuf, Missing> {
    let places = PLACES.map(|place| directory.join(place)).to_vec();
    let found = places.iter().find(|place| place.is_file()).cloned();
    found.ok_or(Missing { places })
}

/// Executes the load generator in place of this process. Returns only on failure, with the reason.
pub(crate) fn become_bench(arguments: &[OsString]) -> Failure {
    let found = std::env::current_exe()
        .map_err(Failure::from)
        .and_then(|this| Ok(find(this.parent().unwrap_or(Path::new("/")))?));
    match found {
        Ok(bench) => {
            let error = Command::new(&bench).args(arguments).exec();
            format!("cannot run {}: {error}", bench.display()).into()
        }
        Err(missing) => missing,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn bench_program_is_found_beside_windlass_or_in_the_package() {
        let directory = tempfile::tempdir().expect("a directory");
        let programs = directory.path().join("bin");
        let packaged = directory.path().join("lib/windlass");
        fs::create_dir_all(&programs).expect("made");
        fs::create_dir_all(&packaged).expect("made");
        let text = find(&programs).expect_err("missing").to_string();
        assert!(text.contains("cargo build --release -p bench"), "{text}");
        fs::write(packaged.join("bench"), "").expect("written");
        let found = find(&programs).expect("packaged");
        assert_eq!(found, programs.join("../lib/windlass/bench"));
        fs::write(programs.join("bench"), "").expect("written");
        assert_eq!(find(&programs).expect("beside"), programs.join("bench"));
    }
}
