//! Every planted defect is listed, with what must find it.

use std::collections::BTreeSet;
use std::path::Path;

use simulation::defects::{DEFECTS, TESTED};

/// Where the crates are in which defects are planted.
const PARTS: [&str; 5] = ["appliance", "config", "nvme", "rdma", "reactors"];

/// Nothing looks for a planted defect that is not listed, and nothing finds a listed one that is
/// not planted.
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

/// The names of defects in the sources under `directory`: literals that `planted(` is called with.
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
