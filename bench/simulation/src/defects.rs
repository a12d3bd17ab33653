//! Planted defects: deliberate errors that prove that the judge, or a crate's test, detects them.
//!
//! Each is a patch in `bench/simulation/defects/`, which inserts the wrong behaviour into the
//! product behind `if reactors::sim::planted("name")`. `cargo xtask sim --defects` applies all
//! patches to a copy of the sources and builds it once; `switch` switches one defect on at a time.
//! The lines in front of a patch's first `diff` describe its defects, each in a paragraph:
//!
//! ```text
//! Defect: share-ignored
//! Wrong: a host takes more than its share of the arena's slices of a size
//! Found by: tcp_transport fairness::a_host_that_never_sends_holds_only_its_share_of_each_size
//! ```
//!
//! `Found by` names a test program and its test. A defect without that line must be found by the
//! simulation: by that of NVMe over Fabrics, or by the one that a line such as `Scenario: files`
//! names.

mod switch;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::judge::Violation;
use crate::run::Failure;
use crate::swarm::{Limits, Scenario};
pub use switch::IS_PLANTED;

/// A planted defect must be found within so many seeds, beginning with seed 0.
pub const SEEDS_MAX: u64 = 200;

/// The patch without a defect of its own: it makes the others switchable.
pub const SWITCH_PATCH: &str = "switch.patch";

/// A defect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defect {
    /// The name that switches it on.
    pub name: String,
    /// What the appliance does wrong.
    pub what: String,
    /// The test that must find it; none where the simulation must.
    pub test: Option<Test>,
    /// What the simulation runs to find it.
    pub scenario: Scenario,
}

/// A test that fails with a defect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// The program that has the test, by its target's name: a crate, for its unit tests, or one of
    /// the files in a crate's `tests`.
    pub program: String,
    /// The test's name in the program.
    pub name: String,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.program, self.name)
    }
}

/// The directory of the patches.
#[must_use]
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("defects")
}

/// The patches, in the order of their names.
///
/// # Errors
/// The directory cannot be read.
pub fn patches() -> Result<Vec<PathBuf>, String> {
    let directory = directory();
    let told = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut patches = Vec::new();
    for entry in fs::read_dir(&directory).map_err(told)? {
        let path = entry.map_err(told)?.path();
        if path.extension().is_some_and(|it| it == "patch") {
            patches.push(path);
        }
    }
    patches.sort();
    Ok(patches)
}

/// The defects of all patches, in the order of the patches' names.
///
/// # Errors
/// A patch cannot be read, or does not describe its defects.
pub fn read() -> Result<Vec<Defect>, String> {
    let mut defects = Vec::new();
    for path in patches()? {
        let told = |error: String| format!("{}: {error}", path.display());
        let text = fs::read_to_string(&path).map_err(|error| told(error.to_string()))?;
        let described = describe(&text).map_err(told)?;
        let is_switch = path.file_name().is_some_and(|it| it == SWITCH_PATCH);
        if described.is_empty() != is_switch {
            return Err(told("must begin with \"Defect: \"".to_owned()));
        }
        defects.extend(described);
    }
    Ok(defects)
}

/// The defects that a patch describes.
///
/// # Errors
/// What is wrong with the description.
pub fn describe(patch: &str) -> Result<Vec<Defect>, String> {
    let mut defects: Vec<Defect> = Vec::new();
    for line in patch.lines().take_while(|it| !it.starts_with("diff ")) {
        let Some((key, value)) = line.split_once(": ") else {
            continue;
        };
        if key == "Defect" {
            defects.push(Defect {
                name: value.to_owned(),
                what: String::new(),
                test: None,
                scenario: Scenario::default(),
            });
            continue;
        }
        let defect = defects.last_mut();
        let defect = defect.ok_or_else(|| format!("{line:?} belongs to no defect"))?;
        match key {
            "Wrong" => value.clone_into(&mut defect.what),
            "Scenario" => defect.scenario = value.parse()?,
            "Found by" => {
                let (program, name) = value
                    .split_once(' ')
                    .ok_or_else(|| format!("{line:?} names no program and test"))?;
                defect.test = Some(Test {
                    program: program.to_owned(),
                    name: name.to_owned(),
                });
            }
            _ => return Err(format!("{line:?} is not understood")),
        }
    }
    match defects.iter().find(|it| it.what.is_empty()) {
        Some(defect) => Err(format!("{} does not say what is wrong", defect.name)),
        None => Ok(defects),
    }
}

/// How a defect was found, or not.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The defect.
    pub defect: Defect,
    /// The first seed in which anything was wrong.
    pub failure: Option<Failure>,
}

/// Maximum length of a violation's text in the table, in characters.
const VIOLATION_LENGTH_MAX: usize = 140;

impl Finding {
    /// Whether an assertion found it, before the judge did.
    fn is_by_assertion(&self) -> bool {
        let violation = self.failure.as_ref().map(|it| &it.violation);
        matches!(violation, Some(Violation::Panic(_)))
    }

    /// Its row in a table: the defect, what is wrong, the seeds that were needed, what was said.
    fn row(&self) -> String {
        let Self { defect, failure } = self;
        let (seeds, said) = match failure {
            Some(failure) => {
                let said = failure.violation.to_string().replace('|', "/");
                let short: String = said.chars().take(VIOLATION_LENGTH_MAX).collect();
                let more = if short.len() < said.len() { " …" } else { "" };
                ((failure.seed + 1).to_string(), short + more)
            }
            None => ("**not found**".to_owned(), String::new()),
        };
        format!("| {} | {} | {seeds} | {said} |\n", defect.name, defect.what)
    }
}

/// The findings of the simulation, and what `tested` says of the others, as a page.
#[must_use]
pub fn page(findings: &[Finding], tested: &[Defect]) -> String {
    let head = |said: &str| {
        format!("| defect | what is wrong | seeds needed | {said} |\n|---|---|---:|---|\n")
    };
    let (asserted, judged): (Vec<_>, Vec<_>) = findings.iter().partition(|it| it.is_by_assertion());
    let mut page = format!(
        "# Planted defects\n\
         \n\
         Each is a patch in [`defects`](defects) that is applied to a copy of the sources and \
         switched on alone. The simulation\n\
         looks for it from seed 0 on and must find it within {SEEDS_MAX} seeds. `cargo xtask sim \
         --defects` looks for all of them\n\
         and writes this page.\n\
         \n\
         ## By the judge\n\
         \n"
    );
    page += &head("what the judge said");
    page.extend(judged.iter().map(|it| it.row()));
    page += "\n\
        ## By an assertion\n\
        \n\
        In the first seed that showed these, an assertion of the appliance failed before the judge \
        saw anything wrong.\n\
        \n";
    page += &head("what the assertion said");
    page.extend(asserted.iter().map(|it| it.row()));
    page += "\n\
        ## By tests\n\
        \n\
        Where simulation is the wrong tool, a crate's test must fail with the defect and succeed \
        without; the same\n\
        command runs each.\n\
        \n\
        | defect | what is wrong | test |\n\
        |---|---|---|\n";
    for Defect {
        name, what, test, ..
    } in tested
    {
        if let Some(test) = test {
            page += &format!("| {name} | {what} | `{test}` |\n");
        }
    }
    page
}

/// Looks for a defect with the simulation.
#[must_use]
pub fn look_for(defect: Defect) -> Finding {
    switch::plant(&defect.name);
    let limits = Limits {
        scenario: defect.scenario,
        ..Limits::default()
    };
    let failure = (0..SEEDS_MAX).find_map(|seed| crate::run::run(seed, &limits).failure);
    switch::plant("");
    Finding { defect, failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "\
Defect: one
Wrong: a: b

Defect: another
Wrong: c
Scenario: files
Found by: fairness a_test

diff --git a/x b/x
-Defect: none
";

    #[test]
    fn patch_description_is_parsed() {
        let defects = describe(PATCH).expect("a description");
        let [one, another] = &defects[..] else {
            panic!("{defects:?}");
        };
        assert_eq!((&*one.name, &*one.what), ("one", "a: b"));
        assert_eq!(one.test, None);
        assert_eq!(one.scenario, Scenario::Fabrics);
        assert_eq!(another.scenario, Scenario::Files);
        let test = another.test.as_ref().map(Test::to_string);
        assert_eq!(test.as_deref(), Some("fairness a_test"));
    }

    #[test]
    fn an_incomplete_description_is_refused() {
        assert!(describe("Defect: one\n").is_err());
        assert!(describe("Wrong: one\n").is_err());
        assert!(describe("Defect: one\nWrong: a\nFound by: nothing\n").is_err());
        assert!(describe("Defect: one\nWrong: a\nSeen by: b c\n").is_err());
        assert!(describe("Defect: one\nWrong: a\nScenario: unknown\n").is_err());
    }

    #[test]
    fn undetected_defect_is_highlighted() {
        let defect = describe(PATCH).expect("a description").remove(0);
        let finding = Finding {
            defect,
            failure: None,
        };
        assert!(page(&[finding], &[]).contains("| one | a: b | **not found** |  |"));
    }
}
