//! Checks that dependencies between crates point down, that modules have no cyclic imports, and
//! that unsafe code is only in its named places.
//!
//! A crate may use only crates on lower levels. Its tests may also use crates on its own level,
//! because a transport is best tested against the other end, and the crates of test doubles.

use std::fs;
use std::path::Path;

use crate::metadata::{self, Dependency, Metadata, Package};
use crate::module_cycles;
use crate::rust_source::{has_word, leading_attributes, without_comments_and_literals};

/// The crates of each level, from the lowest.
const LEVELS: [&[&str]; 8] = [
    &[
        "nvme_spec",
        "nvme_keys",
        "nvme_handover",
        "files_spec",
        "hugemem",
        "appliance_config",
    ],
    &[
        "reactors",
        "uring",
        "vfio",
        "rdma",
        "nvme_authentication",
        "nvme_tls",
        "nvme_reservations",
        "nvme_handover_channel",
        "nvme_handover_format",
        "files_store",
        "files_client",
    ],
    &[
        "block",
        "files_server",
        "files_client_testing",
        "rdma_testing",
        "nvme_tls_handshake",
        "nvme_tls_kernel",
    ],
    &[
        "nvme_driver",
        "nvme_target",
        "nvme_host",
        "block_testing",
        "files_service",
    ],
    &["nvme_fabrics", "files_tcp", "files_rdma"],
    &[
        "nvme_tcp",
        "nvme_rdma",
        "nvme_driver_testing",
        "nvme_host_testing",
    ],
    &["bench", "appliance"],
    &["fuzz", "measurement", "simulation"],
];

/// Crates outside the layers, which use no crate of the workspace and are used by none.
const OUTSIDE_LAYERS: [&str; 1] = ["xtask"];

/// Crates with unsafe code in modules that opt in; every other crate forbids it.
const UNSAFE_CRATES: [&str; 8] = [
    "hugemem",
    "reactors",
    "uring",
    "vfio",
    "rdma",
    "rdma_testing",
    "nvme_tls_handshake",
    "nvme_tls_kernel",
];

/// Ends the names of crates that hold test doubles and conformance suites. Tests of every crate may
/// use them, also those of the crate that they double.
const TESTING: &str = "_testing";

const FORBIDDEN: &str = "#![forbid(unsafe_code)]";
const OPTED_IN: &str = "#![expect(unsafe_code,reason=";

/// Checks this workspace. The error lists every problem.
pub(crate) fn check_workspace() -> Result<(), String> {
    let metadata = metadata::of_workspace()?;
    let mut problems = dependency_problems(&metadata);
    for package in &metadata.packages {
        problems.extend(unsafe_problems(package)?);
        problems.extend(module_cycles::problems(package)?);
    }
    if problems.is_empty() {
        println!(
            "layers: {} crates, every arrow points down",
            metadata.packages.len()
        );
        return Ok(());
    }
    for problem in &problems {
        eprintln!("layers: {problem}");
    }
    Err(format!("{} problem(s) with the layers", problems.len()))
}

fn level(name: &str) -> Option<usize> {
    LEVELS.iter().position(|crates| crates.contains(&name))
}

/// The problems of dependencies between the workspace's crates.
fn dependency_problems(metadata: &Metadata) -> Vec<String> {
    let is_ours = |dependency: &Dependency| {
        dependency.path.is_some()
            || metadata
                .packages
                .iter()
                .any(|package| package.name == dependency.name)
    };
    let mut problems = Vec::new();
    for package in &metadata.packages {
        let outside = OUTSIDE_LAYERS.contains(&package.name.as_str());
        let own_level = level(&package.name);
        if own_level.is_none() && !outside {
            problems.push(format!(
                "{} has no level: give it one in layers.rs",
                package.name
            ));
            continue;
        }
        for dependency in package
            .dependencies
            .iter()
            .filter(|&dependency| is_ours(dependency))
        {
            problems.extend(dependency_problem(&package.name, own_level, dependency));
        }
    }
    problems
}

/// The problem of one dependency, if any; `own_level` is `None` for a crate outside the layers.
fn dependency_problem(user: &str, own_level: Option<usize>, used: &Dependency) -> Option<String> {
    let name = used.name.as_str();
    let Some(own_level) = own_level else {
        return Some(format!("{user} stands outside and may not use {name}"));
    };
    if OUTSIDE_LAYERS.contains(&name) {
        return Some(format!("{user} uses {name}, which stands outside"));
    }
    let Some(level) = level(name) else {
        return Some(format!("{user} uses {name}, which has no level"));
    };
    let is_test = used.kind.as_deref() == Some("dev");
    if is_test && name.ends_with(TESTING) {
        return None;
    }
    let highest_allowed = if is_test {
        Some(own_level)
    } else {
        own_level.checked_sub(1)
    };
    if highest_allowed.is_some_and(|highest| level <= highest) {
        return None;
    }
    let tests = if is_test { "'s tests" } else { "" };
    let direction = if level > own_level {
        "upward"
    } else {
        "sideways"
    };
    Some(format!(
        "{user} (L{own_level}){tests} points {direction} at {name} (L{level})"
    ))
}

/// The problems of unsafe code in the files of one crate.
fn unsafe_problems(package: &Package) -> Result<Vec<String>, String> {
    let mut problems = Vec::new();
    let may_be_unsafe = UNSAFE_CRATES.contains(&package.name.as_str());
    let roots: Vec<&str> = package
        .targets
        .iter()
        .filter(|target| {
            !target
                .kind
                .iter()
                .any(|kind| ["test", "bench"].contains(&kind.as_str()))
        })
        .map(|target| target.src_path.as_str())
        .collect();
    let directory = package.directory();
    for path in package.rust_files()? {
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let is_root = roots.iter().any(|root| Path::new(root) == path);
        if let Some(problem) = unsafe_problem(&text, is_root, may_be_unsafe) {
            let shown = path.strip_prefix(directory).unwrap_or(&path).display();
            problems.push(format!("{}: {shown}: {problem}", package.name));
        }
    }
    Ok(problems)
}

/// The problem of unsafe code in one file, if any; `is_root` marks the root file of a crate.
fn unsafe_problem(text: &str, is_root: bool, may_be_unsafe: bool) -> Option<&'static str> {
    let code = without_comments_and_literals(text);
    let attributes = leading_attributes(&code);
    let has_unsafe = has_word(&code, "unsafe");
    if !may_be_unsafe {
        if has_unsafe {
            return Some("unsafe code in a crate that has none");
        }
        let forbids = attributes.iter().any(|attribute| attribute == FORBIDDEN);
        return (is_root && !forbids).then_some("does not begin with #![forbid(unsafe_code)]");
    }
    let opted_in = attributes
        .iter()
        .any(|attribute| attribute.starts_with(OPTED_IN));
    if is_root && opted_in {
        return Some("opts a whole crate in to unsafe code: name the modules instead");
    }
    (has_unsafe && !opted_in)
        .then_some("unsafe code, but no #![expect(unsafe_code, reason = \"…\")] at its beginning")
}

#[cfg(test)]
mod tests;
