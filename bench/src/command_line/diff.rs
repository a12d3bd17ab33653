//! `bench diff`: compares two reports.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::difference::Difference;
use clap::Args;
use serde_json::Value;

use super::Failure;

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The first report, JSON of any command of this program
    before: PathBuf,
    /// The report to compare with it, of the same command
    after: PathBuf,
    /// List only values that changed by more than this
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    above: f64,
    /// Fail if a listed value became worse
    #[arg(long)]
    fail_if_worse: bool,
}

fn load(path: &Path) -> Result<Value, Failure> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    let report = serde_json::from_str(&text);
    Ok(report.map_err(|error| named(&format!("no report: {error}")))?)
}

pub(super) fn execute(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let difference = Difference::between(&load(&args.before)?, &load(&args.after)?, args.above);
    if difference.is_nothing() {
        let (before, after) = (args.before.display(), args.after.display());
        return Err(format!(
            "{before} and {after} have no figure in common: give two reports of one command"
        )
        .into());
    }
    print!("{difference}");
    Ok(if args.fail_if_worse && difference.is_worse() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrelated_reports_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let diff = |after: PathBuf| {
            execute(&DiffArgs {
                before: file("a.json", r#"{"runs": [{"iops": 7}]}"#),
                after,
                above: 3.0,
                fail_if_worse: true,
            })
        };
        let error = diff(file("b.json", r#"{"points": [{"iops": 7}]}"#)).expect_err("refused");
        assert!(error.to_string().contains("no figure in common"), "{error}");
        let error = diff(file("c.json", "nothing")).expect_err("refused");
        assert!(error.to_string().contains("c.json: no report"), "{error}");
        let same = file("a.json", r#"{"runs": [{"iops": 7}]}"#);
        assert_eq!(diff(same).expect("compared"), ExitCode::SUCCESS);
    }
}
