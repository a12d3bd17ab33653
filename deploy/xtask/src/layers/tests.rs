//! Tests the checks on invented workspaces.

use std::fs;

use super::*;
use crate::metadata::Target;

/// A workspace with these dependencies: user, used crate, and kind of dependency.
fn workspace(edges: &[(&str, &str, Option<&str>)]) -> Metadata {
    let mut names: Vec<&str> = edges
        .iter()
        .flat_map(|&(user, used, _)| [user, used])
        .collect();
    names.sort_unstable();
    names.dedup();
    let packages = names.iter().map(|&name| Package {
        name: name.into(),
        manifest_path: format!("/w/{name}/Cargo.toml"),
        dependencies: edges
            .iter()
            .filter(|&&(user, ..)| user == name)
            .map(|&(_, used, kind)| Dependency {
                name: used.into(),
                kind: kind.map(Into::into),
                target: None,
                path: Some(format!("/w/{used}")),
            })
            .collect(),
        targets: Vec::new(),
    });
    Metadata {
        packages: packages.collect(),
    }
}

fn problems(edges: &[(&str, &str, Option<&str>)]) -> Vec<String> {
    dependency_problems(&workspace(edges))
}

#[test]
fn upward_dependency_fails() {
    assert_eq!(
        problems(&[("hugemem", "block", None)]),
        ["hugemem (L0) points upward at block (L2)"]
    );
    assert_eq!(
        problems(&[("nvme_target", "nvme_tcp", Some("build"))]),
        ["nvme_target (L3) points upward at nvme_tcp (L5)"]
    );
}

#[test]
fn upward_dev_dependency_fails() {
    assert_eq!(
        problems(&[("nvme_target", "nvme_tcp", Some("dev"))]),
        ["nvme_target (L3)'s tests points upward at nvme_tcp (L5)"]
    );
}

#[test]
fn sideways_dependencies_are_allowed_only_in_tests() {
    assert_eq!(
        problems(&[("nvme_tcp", "nvme_rdma", None)]),
        ["nvme_tcp (L5) points sideways at nvme_rdma (L5)"]
    );
    assert_eq!(
        problems(&[("hugemem", "nvme_spec", None)]),
        ["hugemem (L0) points sideways at nvme_spec (L0)"]
    );
    assert!(problems(&[("nvme_tcp", "nvme_host_testing", Some("dev"))]).is_empty());
    assert!(problems(&[("hugemem", "nvme_spec", Some("dev"))]).is_empty());
}

#[test]
fn downward_dependencies_of_every_kind_pass() {
    let below = [None, Some("dev"), Some("build")].map(|kind| ("appliance", "hugemem", kind));
    assert!(problems(&below).is_empty());
    assert!(problems(&[("reactors", "hugemem", None), ("block", "reactors", None)]).is_empty());
}

#[test]
fn a_crate_without_a_level_fails() {
    let found = problems(&[
        ("newcomer", "hugemem", None),
        ("appliance", "newcomer", None),
    ]);
    assert_eq!(
        found,
        [
            "appliance uses newcomer, which has no level",
            "newcomer has no level: give it one in layers.rs"
        ]
    );
}

#[test]
fn path_dependency_outside_the_workspace_fails() {
    let mut metadata = workspace(&[("block", "stray", None)]);
    metadata.packages.retain(|package| package.name == "block");
    assert_eq!(
        dependency_problems(&metadata),
        ["block uses stray, which has no level"]
    );
}

#[test]
fn registry_dependencies_are_ignored() {
    let mut metadata = workspace(&[("block", "libc", None)]);
    metadata.packages.retain(|package| package.name == "block");
    metadata.packages[0].dependencies[0].path = None;
    assert!(dependency_problems(&metadata).is_empty());
}

#[test]
fn crates_outside_the_layers_are_isolated() {
    assert_eq!(
        problems(&[("xtask", "hugemem", None)]),
        ["xtask stands outside and may not use hugemem"]
    );
    assert_eq!(
        problems(&[("appliance", "xtask", Some("dev"))]),
        ["appliance uses xtask, which stands outside"]
    );
}

#[test]
fn crates_have_one_level_and_unsafe_crates_have_a_level() {
    let mut all: Vec<&str> = LEVELS.concat();
    all.sort_unstable();
    let count = all.len();
    all.dedup();
    assert_eq!(all.len(), count);
    assert!(UNSAFE_CRATES.iter().all(|name| all.contains(name)));
}

#[test]
fn unsafe_code_requires_a_listed_crate_and_an_attribute() {
    let forbids = "//! Docs.\n#![forbid(unsafe_code)]\nfn f() {}\n";
    let opts_in = "//! Docs.\n#![expect(unsafe_code, reason = \"maps\")]\nunsafe fn f() {}\n";
    let naked = "unsafe fn f() {}\n";
    let plain = "fn f() {}\n";
    // Text, whether it is a crate's root, whether unsafe code is permitted; whether it passes.
    for (text, is_root, may_be_unsafe, passes) in [
        (forbids, true, false, true),
        (plain, true, false, false),
        (plain, false, false, true),
        (naked, false, false, false),
        (opts_in, false, false, false),
        (plain, true, true, true),
        (opts_in, false, true, true),
        (opts_in, true, true, false),
        (naked, false, true, false),
        ("// unsafe\n#![forbid(unsafe_code)]\n", true, false, true),
        ("fn f() {}\n#![forbid(unsafe_code)]\n", true, false, false),
        (
            "#![expect(unsafe_code)]\nunsafe fn f() {}\n",
            false,
            true,
            false,
        ),
    ] {
        let problem = unsafe_problem(text, is_root, may_be_unsafe);
        assert_eq!(
            problem.is_none(),
            passes,
            "{text:?} {is_root} {may_be_unsafe}: {problem:?}"
        );
    }
}

#[test]
fn all_source_files_of_a_package_are_checked() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    for (path, text) in [
        ("src/lib.rs", "fn f() {}"),
        ("src/deep/er.rs", "unsafe fn f() {}"),
        ("tests/t.rs", "fn f() {}"),
        ("notes.txt", "unsafe"),
        ("target/debug/generated.rs", "unsafe fn f() {}"),
        ("inner/Cargo.toml", ""),
        ("inner/src/lib.rs", "unsafe fn f() {}"),
    ] {
        let path = directory.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let lib = directory.join("src/lib.rs").display().to_string();
    let package = Package {
        name: "block".into(),
        manifest_path: directory.join("Cargo.toml").display().to_string(),
        dependencies: Vec::new(),
        targets: vec![Target {
            kind: vec!["lib".into()],
            src_path: lib,
        }],
    };
    assert_eq!(
        unsafe_problems(&package).unwrap(),
        [
            "block: src/deep/er.rs: unsafe code in a crate that has none",
            "block: src/lib.rs: does not begin with #![forbid(unsafe_code)]"
        ]
    );
}
