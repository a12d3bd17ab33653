//! Every patch with planted defects applies to the sources, and describes what it plants.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use simulation::defects::{SWITCH_PATCH, describe, patches};

/// What switches a defect on in a patch.
const CALL: &str = "sim::planted(";

/// The directories of the product's crates.
const PRODUCT: [&str; 6] = ["appliance", "config", "files", "nvme", "rdma", "reactors"];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// What git says when these patches do not apply, together and in this order, to the sources. They
/// are one input: git checks several files one by one, each against the unchanged sources.
fn refusal(patches: &[impl AsRef<Path>]) -> Option<String> {
    let mut git = Command::new("git");
    git.args(["apply", "--check", "--whitespace=nowarn", "-"]);
    git.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut git = git.current_dir(root()).spawn().expect("git runs");
    let mut input = git.stdin.take().expect("it is piped");
    for patch in patches {
        let text = fs::read(patch).expect("a patch");
        input.write_all(&text).expect("git reads");
    }
    drop(input);
    let output = git.wait_with_output().expect("git ends");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(told)
}

#[test]
fn every_patch_applies_alone() {
    let patches = patches().expect("the patches");
    let refused: Vec<_> = patches
        .iter()
        .filter_map(|patch| refusal(&[patch]))
        .collect();
    assert!(refused.is_empty(), "{}", refused.concat());
}

#[test]
fn all_patches_apply_together() {
    let told = refusal(&patches().expect("the patches"));
    assert_eq!(told, None);
}

/// Every name in a patch's description is switched on in the patch, and every name that is switched
/// on is described, in one patch only.
#[test]
fn planted_and_described_defects_match() {
    let mut known = BTreeSet::new();
    for path in patches().expect("the patches") {
        if path.ends_with(SWITCH_PATCH) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a patch");
        let defects = describe(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let described: BTreeSet<_> = defects.into_iter().map(|it| it.name).collect();
        assert_eq!(planted(&text), described, "{path:?}");
        for name in described {
            assert!(known.insert(name.clone()), "{name} is in two patches");
        }
    }
    assert!(!known.is_empty());
}

/// The names that the lines which a patch inserts ask for.
fn planted(patch: &str) -> BTreeSet<String> {
    let inserted: String = patch
        .lines()
        .filter_map(|line| line.strip_prefix('+'))
        .flat_map(|line| [line, "\n"])
        .collect();
    let calls = inserted.split(CALL).skip(1);
    let named = calls.filter_map(|it| it.trim_start().strip_prefix('"'));
    named
        .filter_map(|it| Some(it.split_once('"')?.0.to_owned()))
        .collect()
}

#[test]
fn product_sources_plant_no_defects() {
    let mut planting = Vec::new();
    for part in PRODUCT {
        collect(&root().join(part), &mut planting);
    }
    assert!(planting.is_empty(), "{planting:?}");
}

/// The source files under `directory` that ask for a planted defect.
fn collect(directory: &Path, planting: &mut Vec<String>) {
    for entry in fs::read_dir(directory).expect("a directory of the tree") {
        let path = entry.expect("its entry").path();
        if path.is_dir() {
            collect(&path, planting);
        } else if path.extension().is_some_and(|it| it == "rs")
            && fs::read_to_string(&path).is_ok_and(|text| text.contains(CALL))
        {
            planting.push(path.display().to_string());
        }
    }
}
