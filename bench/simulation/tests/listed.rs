//! Checks that every planted defect is in the lists of the simulation.

use std::collections::BTreeSet;
use std::path::Path;

use simulation::defects::{DEFECTS, TESTED};

/// The directories of crates with planted defects.
const PARTS: [&str; 5] = ["appliance", "config", "nvme", "rdma", "reactors"];

/// The planted defects and the listed ones are the same.
#[test]
fn what_is_planted_is_listed_and_what_is_listed_is_planted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut planted = BTreeSet::new();
    for part in PARTS {
        collect_planted(&root.join(part), &mut planted);
    }
    let simulated = DEFECTS.iter().map(|it| it.name);
    let names = simulated.chain(TESTED.iter().map(|it| it.name));
    let listed: BTreeSet<String> = names.map(str::to_owned).collect();
    let unlisted: Vec<_> = planted.difference(&listed).collect();
    let unplanted: Vec<_> = listed.difference(&planted).collect();
    assert!(unlisted.is_empty(), "not listed: {unlisted:?}");
    assert!(unplanted.is_empty(), "not planted: {unplanted:?}");
}

/// Collects the names of defects in the sources under `directory`: the literals in calls of
/// `planted(`.
fn collect_planted(directory: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).expect("a directory of the tree") {
        let path = entry.expect("its entry").path();
        if path.is_dir() {
            collect_planted(&path, names);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            let calls = text.split("planted(").skip(1);
            let named = calls.filter_map(|it| it.trim_start().strip_prefix('"'));
            names.extend(named.filter_map(|it| Some(it.split_once('"')?.0.to_owned())));
        }
    }
}
