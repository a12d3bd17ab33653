//! Checks that references in the documents and the code are valid: files that the documents name
//! or link to, tests that they name, sections of `ARCHITECTURE.md` that the code cites as
//! `ARCHITECTURE.md §N`, and sections of specifications.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::citations::Citations;
use crate::{metadata, process};

/// Documents in the repository's root.
const DOCUMENTS: [&str; 4] = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
];
/// The document whose tables name tests.
const FAULTS: &str = "bench/FAULTS.md";
/// Words, joined by underscores, that the name of a test in a document has at least; shorter names
/// can be those of keys and metrics.
const TEST_NAME_WORDS_MIN: usize = 4;
/// The document whose sections the code cites.
const ARCHITECTURE: &str = "ARCHITECTURE.md";
/// The beginning of a citation after the document's name.
const SECTION: &str = "§";
/// Maximum length of the README; longer texts belong on separate pages.
const README_LINES_MAX: usize = 200;
/// Directories of the repository whose files a document may name.
const SOURCES: [&str; 8] = [
    "appliance",
    "bench",
    "config",
    "deploy",
    "files",
    "nvme",
    "rdma",
    "reactors",
];
/// Suffixes of files other than Rust's whose citations are checked.
const CITING: [&str; 5] = ["md", "py", "service", "sh", "toml"];
/// Directories whose files others wrote or a program generated.
const FOREIGN: [&str; 3] = ["vendor", "target", "node_modules"];
/// Suffixes of files that a document may name.
const ENDINGS: [&str; 9] = [
    ".rs", ".md", ".sh", ".js", ".toml", ".json", ".py", ".service", "/",
];

/// Checks the repository. The error lists every problem.
pub(crate) fn check() -> Result<(), String> {
    let root = process::root();
    let read =
        |name: &Path| fs::read_to_string(name).map_err(|e| format!("{}: {e}", name.display()));
    let mut problems = Vec::new();
    let files = other_files(&root)?;
    let is_document = |path: &&PathBuf| path.extension().is_some_and(|it| it == "md");
    for path in files.iter().filter(is_document) {
        let text = read(path)?;
        let shown = path.strip_prefix(&root).unwrap_or(path).display();
        let folder = path.parent().unwrap_or(&root);
        for named in paths_in(&text).filter(|named| !root.join(named).exists()) {
            problems.push(format!("{shown} names {named}, which does not exist"));
        }
        for link in links_in(&text).filter(|link| !folder.join(link).exists()) {
            problems.push(format!("{shown} links to {link}, which does not exist"));
        }
    }
    let readme = read(&root.join("README.md"))?.lines().count();
    if readme > README_LINES_MAX {
        problems.push(format!(
            "README.md has {readme} lines, {README_LINES_MAX} at most"
        ));
    }
    let sections = sections_of(&read(&root.join(ARCHITECTURE))?);
    let mut citations = Citations::default();
    let mut functions = BTreeSet::new();
    for package in metadata::of_workspace()?.packages {
        for path in package.rust_files()? {
            let text = read(&path)?;
            let shown = path.strip_prefix(&root).unwrap_or(&path).display();
            citations.add(&shown.to_string(), &text);
            functions.extend(functions_in(&text).map(str::to_owned));
            for cited in citations_in(&text) {
                if !sections.contains(&cited) {
                    problems.push(format!(
                        "{shown} cites {ARCHITECTURE} {SECTION}{cited}, which does not exist"
                    ));
                }
            }
        }
    }
    for path in &files {
        let shown = path.strip_prefix(&root).unwrap_or(path).display();
        citations.add(&shown.to_string(), &read(path)?);
    }
    let faults = read(&root.join(FAULTS))?;
    for test in tests_in(&faults).filter(|test| !functions.contains(*test)) {
        problems.push(format!(
            "{FAULTS} names the test {test}, which does not exist"
        ));
    }
    problems.extend(citations.problems());
    if problems.is_empty() {
        println!("documents: every file, test and section that is named exists");
        return Ok(());
    }
    for problem in &problems {
        eprintln!("documents: {problem}");
    }
    Err(format!("{} problem(s) with the documents", problems.len()))
}

/// The documents, scripts and settings whose references are checked.
fn other_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files: Vec<PathBuf> = DOCUMENTS.iter().map(|name| root.join(name)).collect();
    let mut pending: Vec<PathBuf> = SOURCES.iter().map(|name| root.join(name)).collect();
    while let Some(folder) = pending.pop() {
        let error = |e| format!("{}: {e}", folder.display());
        for entry in fs::read_dir(&folder).map_err(error)? {
            let path = entry.map_err(error)?.path();
            let is = |suffix: &&str| path.extension().is_some_and(|it| it == *suffix);
            if path.is_dir() && !path.is_symlink() {
                if !FOREIGN.iter().any(|name| path.ends_with(name)) {
                    pending.push(path);
                }
            } else if CITING.iter().any(is) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The repository's files and directories that a document names: in backquotes, with a directory.
fn paths_in(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|it| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let first = it.split('/').next().unwrap_or_default();
        it.chars().all(is_plain)
            && SOURCES.contains(&first)
            && it.contains('/')
            && (ENDINGS.iter().any(|ending| it.ends_with(ending)) || !it.contains('.'))
    })
}

/// The files that a document links to: `[text](file)` or `[text](file#heading)`.
fn links_in(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| Some(rest.split_once(')')?.0));
    let files = targets.map(|target| target.split('#').next().unwrap_or_default());
    files.filter(|file| !file.is_empty() && !file.contains(':') && !file.contains(' '))
}

/// The tests that a document names: in backquotes, at least [`TEST_NAME_WORDS_MIN`] words.
fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|it| {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        it.chars().all(is_plain) && it.split('_').count() >= TEST_NAME_WORDS_MIN
    })
}

/// The names of a source file's functions.
fn functions_in(text: &str) -> impl Iterator<Item = &str> {
    let behind = text.split("fn ").skip(1);
    behind.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// The numbers of a document's headings: `## 4. Title`, `### 4.1 Title`.
fn sections_of(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with("##"));
    let number = |line: &str| {
        let number = line.trim_start_matches('#').split_whitespace().next()?;
        let number = number.trim_end_matches('.');
        number
            .starts_with(|c: char| c.is_ascii_digit())
            .then(|| number.to_owned())
    };
    headings.filter_map(number).collect()
}

/// The sections of `ARCHITECTURE.md` that a source file cites.
fn citations_in(text: &str) -> Vec<String> {
    let behind = text.split(ARCHITECTURE).skip(1);
    let number = |rest: &str| {
        let rest = rest.trim_start_matches(['`', ' ']).strip_prefix(SECTION)?;
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let number = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
        (!number.is_empty()).then(|| number.to_owned())
    };
    behind.filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_only_in_backquotes() {
        let text = "`nvme/tcp/src/slot.rs`, nvme/tcp/no.rs, `Reactor::turn`, `cargo xtask test`, \
                    `bench/simulation`, `tests.rs`, `/etc/windlass/x.toml`";
        let found: Vec<&str> = paths_in(text).collect();
        assert_eq!(found, ["nvme/tcp/src/slot.rs", "bench/simulation"]);
    }

    #[test]
    fn links_are_files_without_their_headings() {
        let text = "[a](b.md), [c](../d/e.md#f), [g](#h), [i](https://example.org/), `x[0](y z)`";
        assert_eq!(links_in(text).collect::<Vec<_>>(), ["b.md", "../d/e.md"]);
    }

    #[test]
    fn named_tests_and_functions_are_parsed_alike() {
        let text = "`a_host_that_reads`, `max_connections`, a_host_that_writes, `tests.rs`";
        assert_eq!(tests_in(text).collect::<Vec<_>>(), ["a_host_that_reads"]);
        let source = "fn a_host_that_reads() {}\npub fn other<T>() {}";
        let found: Vec<&str> = functions_in(source).collect();
        assert_eq!(found, ["a_host_that_reads", "other"]);
    }

    #[test]
    fn section_and_citation_numbers_are_parsed_alike() {
        let sections = sections_of("# Title\n## 4. A\ntext\n### 4.1 B\n## Without\n");
        assert_eq!(sections, ["4", "4.1"]);
        let cited =
            citations_in("//! `ARCHITECTURE.md` §4.1. And (ARCHITECTURE.md §12): ARCHITECTURE.md");
        assert_eq!(cited, ["4.1", "12"]);
    }
}
