//! The parsers of the machine's counters, with synthetic files.

use std::fs;
use std::path::Path;

use super::{HugePool, chosen, groups_left, meminfo_bytes};

#[test]
fn meminfo_keys_match_exactly() {
    let text = "MemTotal:       24684012 kB\nMemAvailable:   24500100 kB\nHugePages_Free:        7\n\
                Hugepagesize:       2048 kB\nBroken:  x kB\n";
    assert_eq!(meminfo_bytes(text, "MemAvailable"), Some(24_500_100 * 1024));
    assert_eq!(meminfo_bytes(text, "Hugepagesize"), Some(2 << 20));
    for absent in ["Mem", "Huge", "HugePages_Free", "Broken", ""] {
        assert_eq!(meminfo_bytes(text, absent), None, "{absent}");
    }
}

#[test]
fn available_pages_exclude_reserved_and_include_surplus() {
    let pool = HugePool {
        total: 10,
        free: 8,
        reserved: 3,
        overcommit: 4,
        surplus: 1,
    };
    assert_eq!(pool.available(), 5 + 3);
    let promised = HugePool {
        total: 2,
        free: 1,
        reserved: 2,
        ..HugePool::default()
    };
    assert_eq!(promised.available(), 0);
}

#[test]
fn bracketed_word_is_the_active_setting() {
    assert_eq!(
        chosen("always within_size [advise] never deny force\n"),
        "advise"
    );
    for bad in ["", "never", "[never", "]never["] {
        assert_eq!(chosen(bad), "", "{bad}");
    }
}

fn group(folder: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(folder).unwrap();
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
}

#[test]
fn tightest_ancestor_cgroup_limit_applies() {
    let root = tempfile::tempdir().unwrap();
    let unit = root.path().join("system.slice/windlass.service");
    let stat = "anon 5\ninactive_file 1000\nactive_file 500\nfile 9999\n";
    group(
        &unit,
        &[
            ("memory.max", "max\n"),
            ("memory.current", "7000\n"),
            ("memory.stat", stat),
        ],
    );
    let slice = unit.parent().unwrap();
    let limits = [
        ("memory.max", "100000\n"),
        ("memory.current", "41500\n"),
        ("memory.stat", stat),
    ];
    group(slice, &limits);
    let groups = "1:cpu,cpuacct:/\n0::/system.slice/windlass.service\n";
    assert_eq!(
        groups_left(root.path(), groups),
        Some(100_000 - (41_500 - 1500))
    );
    group(&unit, &[("memory.max", "7500\n")]);
    assert_eq!(groups_left(root.path(), groups), Some(7500 - (7000 - 1500)));
    group(&unit, &[("memory.max", "10\n")]);
    assert_eq!(
        groups_left(root.path(), groups),
        Some(0),
        "over the limit is nothing left"
    );
    assert_eq!(
        groups_left(root.path(), "0::/elsewhere\n"),
        None,
        "no limit there"
    );
}

#[test]
fn cgroup_v1_limits_are_read() {
    let root = tempfile::tempdir().unwrap();
    let files = [
        ("memory.limit_in_bytes", "5000\n"),
        ("memory.usage_in_bytes", "3000\n"),
        (
            "memory.stat",
            "inactive_file 1\ntotal_inactive_file 700\ntotal_active_file 300\n",
        ),
    ];
    group(&root.path().join("memory/box"), &files);
    let groups = "5:memory,hugetlb:/box\n0::/\n";
    assert_eq!(groups_left(root.path(), groups), Some(3000));
}

#[test]
fn malformed_cgroup_list_sets_no_limit() {
    let root = tempfile::tempdir().unwrap();
    for groups in [
        "",
        "nonsense",
        "0:",
        "0::",
        "0::relative",
        "::/",
        "\u{fffd}::\n",
    ] {
        assert_eq!(groups_left(root.path(), groups), None, "{groups}");
    }
}
