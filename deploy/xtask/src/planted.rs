//! The copy of the sources in which defects are planted (bench/simulation/defects), and the planted
//! defects that a crate's test must find.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use strsim::levenshtein as distance;

use crate::metadata;
use crate::process::{self, cargo};

/// The variable that enables a defect in programs built with planted defects.
const VARIABLE: &str = "PLANTED_DEFECT";

/// The patches that plant the defects.
const PATCHES: &str = "bench/simulation/defects";

/// A name is similar to another one if at most one character of this number is changed.
const SIMILAR_CHARACTERS_MIN: usize = 3;

/// Most similar names in a message.
const SIMILAR_MAX: usize = 5;

/// The sources with planted defects.
const COPY: &str = "target/planted/sources";

/// The same while it is made. Files that have not changed since the last time keep their age in
/// [`COPY`], so that cargo does not compile them again.
const FRESH: &str = "target/planted/fresh";

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
        command.env(VARIABLE, defect);
        let output = command.output();
        let output = output.map_err(|error| format!("{}: {error}", self.executable.display()))?;
        let result = String::from_utf8_lossy(&output.stdout);
        if result.contains("running 0 tests") {
            return Err(format!("there is no test {test}"));
        }
        Ok(output.status.success())
    }

    /// Whether it has a test.
    fn has(&self, test: &str) -> Result<bool, String> {
        let mut command = process::program(&self.executable);
        command.args(["--list", "--exact", test]);
        let listed = process::output(&mut command)?;
        Ok(String::from_utf8_lossy(&listed).contains(": test"))
    }
}

/// The only program with a test among those of one name, which several crates may have.
fn program_with<'a>(programs: &'a [Program], test: &str) -> Result<&'a Program, String> {
    let mut found = None;
    for program in programs {
        if program.has(test)? && found.replace(program).is_some() {
            return Err(format!("several programs have a test {test}"));
        }
    }
    found.ok_or_else(|| format!("there is no test {test}"))
}

/// Fails unless patches plant all of these defects. The error names similar ones.
pub(crate) fn check_names(only: &[String]) -> Result<(), String> {
    let mut planted = Vec::new();
    for patch in patches()? {
        let text = fs::read_to_string(process::root().join(&patch));
        let text = text.map_err(|error| format!("{}: {error}", patch.display()))?;
        planted.extend(names_in(&text).map(str::to_owned));
    }
    only.iter().try_for_each(|name| check_name(name, &planted))
}

/// The defects that a patch plants.
fn names_in(patch: &str) -> impl Iterator<Item = &str> {
    let described = patch.lines().take_while(|it| !it.starts_with("diff "));
    described.filter_map(|it| it.strip_prefix("Defect: "))
}

fn check_name(name: &str, planted: &[String]) -> Result<(), String> {
    if planted.iter().any(|it| it == name) {
        return Ok(());
    }
    let mut similar: Vec<(usize, &str)> = planted
        .iter()
        .map(|it| (distance(name, it), it.as_str()))
        .filter(|(edits, it)| {
            let is_part = !name.is_empty() && it.contains(name);
            is_part || edits * SIMILAR_CHARACTERS_MIN <= name.len()
        })
        .collect();
    similar.sort_unstable();
    let names: Vec<&str> = similar
        .iter()
        .map(|(_, it)| *it)
        .take(SIMILAR_MAX)
        .collect();
    Err(match names.as_slice() {
        [] => format!("no patch in {PATCHES} plants {name:?}: its README.md tells how to add one"),
        names => format!(
            "no patch in {PATCHES} plants {name:?}; similar names: {}",
            names.join(", ")
        ),
    })
}

/// Whether the simulation has to look for any of these defects; no names stand for all. `list` has those
/// that tests find.
pub(crate) fn needs_simulation(list: &str, only: &[String]) -> bool {
    let is_tested = |name: &String| {
        list.lines()
            .any(|it| it.split(' ').next() == Some(name.as_str()))
    };
    only.is_empty() || !only.iter().all(is_tested)
}

/// Runs each test of `list` with its defect, and without any; an error unless every one fails with
/// it and succeeds without. Where `only` names defects, it runs the tests of these alone.
pub(crate) fn run(list: &str, only: &[String]) -> Result<(), String> {
    let listed: Option<Vec<Tested<'_>>> = list.lines().map(Tested::of).collect();
    let mut listed = listed.ok_or("the simulation tells of tests in another form")?;
    listed.retain(|it| only.is_empty() || only.iter().any(|name| name == it.defect));
    if listed.is_empty() {
        return Ok(());
    }
    let programs = build(&listed)?;
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
        let built = program_with(built, test)?;
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
fn build(listed: &[Tested<'_>]) -> Result<BTreeMap<String, Vec<Program>>, String> {
    let crates = metadata::of_workspace()?.packages;
    let is_library = |name: &str| crates.iter().any(|it| it.name == name);
    let mut cargo = cargo_in_copy();
    cargo.args(["test", "--workspace", "--all-features", "--no-run"]);
    cargo.args(["--message-format", "json-render-diagnostics", "--lib"]);
    let programs: BTreeSet<&str> = listed.iter().map(|it| it.program).collect();
    for program in programs.iter().filter(|it| !is_library(it)) {
        cargo.args(["--test", program]);
    }
    let result = process::output(&mut cargo)?;
    let result = String::from_utf8_lossy(&result);
    let mut programs = BTreeMap::<String, Vec<Program>>::new();
    for (name, program) in result.lines().filter_map(program_of) {
        programs.entry(name).or_default().push(program);
    }
    Ok(programs)
}

/// Cargo in the copy that [`plant`] made. The copy shares the outputs of the dependencies with the
/// sources themselves; a wrapper around the compiler keeps the outputs of our crates apart, whose
/// names depend on it and not on the directory of the workspace.
pub(crate) fn cargo_in_copy() -> Command {
    let mut cargo = cargo();
    cargo.current_dir(process::root().join(COPY));
    cargo.env("CARGO_TARGET_DIR", process::root().join("target"));
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "/usr/bin/env");
    cargo
}

/// Copies the sources, changed and new files among them, and plants every defect in the copy.
pub(crate) fn plant() -> Result<(), String> {
    let root = process::root();
    let (fresh, copy) = (root.join(FRESH), root.join(COPY));
    if fresh.exists() {
        fs::remove_dir_all(&fresh).map_err(|error| format!("{FRESH}: {error}"))?;
    }
    for file in sources()? {
        copy_file(&root.join(&file), &fresh.join(&file))?;
    }
    let mut git = process::program("git");
    git.args(["apply", "--whitespace=nowarn", "--directory", FRESH]);
    git.args(patches()?);
    process::run(&mut git)?;
    let fresh_files = files_below(&fresh)?;
    for file in files_below(&copy)?.difference(&fresh_files) {
        let file = copy.join(file);
        fs::remove_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    for file in &fresh_files {
        let (from, to) = (fresh.join(file), copy.join(file));
        let is_same = fs::read(&to).is_ok_and(|old| fs::read(&from).is_ok_and(|new| old == new));
        if !is_same {
            copy_file(&from, &to)?;
        }
    }
    Ok(())
}

/// The files of the tree that git tracks or does not ignore, and that are there.
fn sources() -> Result<Vec<PathBuf>, String> {
    let mut git = process::program("git");
    git.args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let listed = process::output(&mut git)?;
    let listed = String::from_utf8(listed).map_err(|error| format!("git ls-files: {error}"))?;
    let listed: BTreeSet<PathBuf> = listed.split_terminator('\0').map(PathBuf::from).collect();
    let root = process::root();
    Ok(listed
        .into_iter()
        .filter(|it| root.join(it).is_file())
        .collect())
}

/// The patches, in the order of their names.
fn patches() -> Result<Vec<PathBuf>, String> {
    let files = files_below(&process::root().join(PATCHES))?;
    let patches = files
        .into_iter()
        .filter(|it| it.extension().is_some_and(|it| it == "patch"));
    Ok(patches.map(|it| Path::new(PATCHES).join(it)).collect())
}

/// The files below a directory, by their paths in it; none where it does not exist.
fn files_below(directory: &Path) -> Result<BTreeSet<PathBuf>, String> {
    let told = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut files = BTreeSet::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(inner) = pending.pop() {
        let entries = match fs::read_dir(directory.join(&inner)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries.map_err(told)?,
        };
        for entry in entries {
            let entry = entry.map_err(told)?;
            let path = inner.join(entry.file_name());
            if entry.file_type().map_err(told)?.is_dir() {
                pending.push(path);
            } else {
                files.insert(path);
            }
        }
    }
    Ok(files)
}

/// Copies a file and its permissions; makes the directories on its way.
fn copy_file(from: &Path, to: &Path) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", to.display());
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory).map_err(told)?;
    }
    fs::copy(from, to).map(drop).map_err(told)
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
    fn defect_list_lines_are_parsed() {
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
    fn unknown_defects_are_refused_with_similar_names() {
        let planted = [
            "copy-own-failure-ignored",
            "copy-own-tried-forever",
            "share",
        ];
        let planted = planted.map(str::to_owned);
        let check = |name: &str| check_name(name, &planted);
        assert_eq!(check("share"), Ok(()));
        let refused = |name: &str| check(name).expect_err("it does not exist");
        assert!(refused("copy-own-failures-ignored").ends_with("names: copy-own-failure-ignored"));
        let both = "names: copy-own-tried-forever, copy-own-failure-ignored";
        assert!(
            refused("copy-own").ends_with(both),
            "{}",
            refused("copy-own")
        );
        assert!(refused("nothing-like-any-of-these").ends_with("how to add one"));
        assert!(refused("").contains("plants \"\""));
    }

    #[test]
    fn distances_count_edits() {
        for (one, other, edits) in [
            ("", "", 0),
            ("", "ab", 2),
            ("ab", "ba", 2),
            ("a-b", "a-bc", 1),
        ] {
            assert_eq!(distance(one, other), edits, "{one} {other}");
            assert_eq!(distance(other, one), edits, "{other} {one}");
        }
    }

    #[test]
    fn names_of_defects_are_in_front_of_the_patch() {
        let patch =
            "Defect: one\nWrong: Defect: no\n\nDefect: two\n\ndiff --git a b\nDefect: three\n";
        assert_eq!(names_in(patch).collect::<Vec<_>>(), ["one", "two"]);
    }

    #[test]
    fn simulation_is_needed_unless_tests_find_all_defects() {
        let list = "a program test\nb program test\n";
        let needs = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|it| (*it).to_owned()).collect();
            needs_simulation(list, &only)
        };
        assert!(!needs(&["a"]) && !needs(&["b", "a"]));
        assert!(needs(&[]) && needs(&["c"]) && needs(&["a", "c"]));
    }

    #[test]
    fn test_programs_are_parsed_from_cargo_messages() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/a/b/Cargo.toml",
            "target":{"name":"fairness","kind":["test"]},"executable":"/t/fairness-1"}"#;
        let (name, program) = program_of(line).expect("a program");
        assert_eq!(name, "fairness");
        assert_eq!(program.directory, PathBuf::from("/a/b"));
        assert_eq!(program.executable, PathBuf::from("/t/fairness-1"));
        assert!(program_of(r#"{"reason":"build-finished","success":true}"#).is_none());
    }

    #[test]
    fn missing_test_detects_no_defect() {
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
