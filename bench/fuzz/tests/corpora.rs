//! Replays every input of the corpora, including those that once revealed defects.

use std::fs;
use std::path::{Path, PathBuf};

/// Limit of the size of the corpora in the repository, bytes.
const CORPORA_BYTES_MAX: u64 = 400 << 10;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora")
}

fn inputs_of(target: &str) -> Vec<PathBuf> {
    let folder = corpora().join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    paths
}

#[track_caller]
fn replay(target: &str) {
    let target = fuzz::target(target).expect("a target");
    let inputs = inputs_of(target.name);
    assert!(!inputs.is_empty(), "nothing is kept for {}", target.name);
    for path in inputs {
        println!("{}", path.display());
        (target.run)(&fs::read(&path).expect("readable"));
    }
}

/// One test per target, so that they run in parallel.
macro_rules! replays {
    ($($test:ident: $target:literal,)*) => {
        $(
            #[test]
            fn $test() {
                replay($target);
            }
        )*

        #[test]
        fn all_fuzz_targets_are_replayed() {
            let replayed = [$($target),*];
            for target in &fuzz::TARGETS {
                assert!(replayed.contains(&target.name), "{}", target.name);
            }
        }
    };
}

replays! {
    connections_to_the_tcp_target: "tcp-target",
    connections_of_the_tcp_host: "tcp-host",
    connections_to_the_rdma_target: "rdma-target",
    drives_that_lie: "drive",
    hosts_of_the_emulated_controller: "emulator",
    pages_of_peers: "pages",
    stored_reservations_and_commands: "reservations",
    states_of_an_earlier_process: "handover",
    keys_of_hosts: "key",
    authentications: "chap",
    first_messages_of_tls: "tls-hello",
    records_of_tls: "tls-records",
    records_of_nfs: "nfs-rpc",
    headers_of_nfs_over_rdma: "nfs-rdma",
    clients_of_files: "nfs-server",
    servers_of_our_client_of_files: "nfs-client",
    configurations: "config",
    connections_to_the_control_plane: "http",
}

#[test]
fn corpora_stay_below_the_size_limit() {
    let targets = fuzz::TARGETS.iter().map(|target| target.name);
    let files = targets.flat_map(inputs_of);
    let bytes: u64 = files
        .map(|path| fs::metadata(path).expect("readable").len())
        .sum();
    assert!(bytes <= CORPORA_BYTES_MAX, "{bytes} bytes of inputs");
}
