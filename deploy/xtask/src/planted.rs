//! Runs the tests of crates that must detect planted defects (bench/simulation, `TESTED`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use crate::metadata;
use crate::process::{self, cargo};

/// The variable that enables a defect in programs compiled with `--cfg planted`.
const DEFECT_VARIABLE: &str = "PLANTED_DEFECT";

/// A defect, and the test that must fail with it.
#[derive(Debug, PartialEq, Eq)]
struct Tested<'a> {
    defect: &'a str,
    program: &'a str,
    test: &'a str,
}

impl<'a> Tested<'a> {
    /// Parses a line of the simulation's list.
    fn of(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ');
        let (defect, program, test) = (words.next()?, words.next()?, words.next()?);
        words.next().is_none().then_some(Self {
            defect,
            program,
            test,
        })
    }
}

/// A message of cargo about a built file.
#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    executable: Option<PathBuf>,
    #[serde(default)]
    manifest_path: Option<PathBuf>,
    #[serde(default)]
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// A test program.
struct Program {
    executable: PathBuf,
    /// The directory of its crate, in which cargo would start it.
    directory: PathBuf,
}

impl Program {
    fn run(&self, test: &str, defect: &str) -> Result<bool, String> {
        let mut command = process::program(&self.executable);
        command.args(["--exact", test]).current_dir(&self.directory);
        command.env(DEFECT_VARIABLE, defect);
        let output = command.output();
        let output = output.map_err(|error| format!("{}: {error}", self.executable.display()))?;
        let result = String::from_utf8_lossy(&output.stdout);
        if result.contains("running 0 tests") {
            return Err(format!("there is no test {test}"));
        }
        Ok(output.status.success())
    }
}

/// Runs each test of `list` with its defect and without any. Returns an error unless every test
/// fails with it and succeeds without. `compiler` compiles the defects in.
pub(crate) fn run(list: &str, compiler: &str) -> Result<(), String> {
    let listed: Option<Vec<Tested<'_>>> = list.lines().map(Tested::of).collect();
    let listed = listed.ok_or("the simulation's list of tests has another format")?;
    let programs = build(&listed, compiler)?;
    let mut sound = BTreeSet::new();
    let mut missed = Vec::new();
    for Tested {
        defect,
        program,
        test,
    } in &listed
    {
        let built = programs.get(*program);
        let built = built.ok_or_else(|| format!("there is no test program {program}"))?;
        if sound.insert((program, test)) && !built.run(test, "")? {
            return Err(format!("{program} {test} fails without any defect"));
        }
        let is_found = !built.run(test, defect)?;
        let result = if is_found { "found by" } else { "NOT FOUND by" };
        println!("{defect}: {result} {program} {test}");
        if !is_found {
            missed.push(*defect);
        }
    }
    println!(
        "{} defects by tests, {} not found",
        listed.len(),
        missed.len()
    );
    if missed.is_empty() {
        Ok(())
    } else {
        Err(format!("no test finds {}", missed.join(", ")))
    }
}

/// Builds the programs with planted defects. Returns them by name.
fn build(listed: &[Tested<'_>], compiler: &str) -> Result<BTreeMap<String, Program>, String> {
    let crates = metadata::of_workspace()?.packages;
    let is_library = |name: &str| crates.iter().any(|it| it.name == name);
    let mut cargo = with_planted(compiler);
    cargo.args(["test", "--workspace", "--all-features", "--no-run"]);
    cargo.args(["--message-format", "json-render-diagnostics", "--lib"]);
    let programs: BTreeSet<&str> = listed.iter().map(|it| it.program).collect();
    for program in programs.iter().filter(|it| !is_library(it)) {
        cargo.args(["--test", program]);
    }
    let result = process::output(&mut cargo)?;
    let result = String::from_utf8_lossy(&result);
    Ok(result.lines().filter_map(program_of).collect())
}

/// Cargo with `compiler` for the crates of this repository.
pub(crate) fn with_planted(compiler: &str) -> Command {
    let mut cargo = cargo();
    cargo.env("RUSTC_WORKSPACE_WRAPPER", process::root().join(compiler));
    cargo
}

/// The test program in a line of cargo's output.
fn program_of(line: &str) -> Option<(String, Program)> {
    let message: Message = serde_json::from_str(line).ok()?;
    let program = Program {
        executable: message.executable?,
        directory: message.manifest_path?.parent()?.to_owned(),
    };
    Some((message.target?.name, program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_list_are_read() {
        let tested = Tested {
            defect: "share-ignored",
            program: "fairness",
            test: "a_test",
        };
        assert_eq!(Tested::of("share-ignored fairness a_test"), Some(tested));
        assert_eq!(Tested::of("share-ignored fairness"), None);
        assert_eq!(Tested::of("share-ignored fairness a test"), None);
    }

    #[test]
    fn programs_are_read_from_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/a/b/Cargo.toml",
            "target":{"name":"fairness","kind":["test"]},"executable":"/t/fairness-1"}"#;
        let (name, program) = program_of(line).expect("a program");
        assert_eq!(name, "fairness");
        assert_eq!(program.directory, PathBuf::from("/a/b"));
        assert_eq!(program.executable, PathBuf::from("/t/fairness-1"));
        assert!(program_of(r#"{"reason":"build-finished","success":true}"#).is_none());
    }

    #[test]
    fn a_test_that_is_not_there_finds_nothing() {
        let program = Program {
            executable: "/bin/echo".into(),
            directory: "/".into(),
        };
        assert_eq!(program.run("a_test", "a-defect"), Ok(true));
        let program = Program {
            executable: "/bin/false".into(),
            directory: "/".into(),
        };
        assert_eq!(program.run("a_test", "a-defect"), Ok(false));
    }
}
