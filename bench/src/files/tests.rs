//! Servers that are missing, refuse, or end.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;

use files_spec::types::Stable;

use super::metadata::{MetadataPlan, measure};
use super::{FilesPlan, FilesTarget, run_files};
use crate::load::run::NoWatch;
use crate::load::{Limit, Pattern, Workload};

fn target(address: SocketAddr) -> FilesTarget {
    FilesTarget {
        address,
        path: "data".to_owned(),
        minor_version: 2,
        uid: 0,
    }
}

fn failure_of_data(address: SocketAddr) -> String {
    let plan = FilesPlan {
        target: target(address),
        workload: Workload {
            sizes_bytes: vec![4096],
            depth: 4,
            queues: 1,
            threads: 1,
            read_percent: 50,
            pattern: Pattern::Random,
            rate: None,
            limit: Limit::Time(Duration::from_secs(60)),
            warm_up: Duration::ZERO,
            verify: true,
            region_bytes: Some(1 << 20),
            seed: 3,
        },
        cores: Vec::new(),
        stable: Stable::UNSTABLE,
    };
    let failed = run_files(&plan, &mut NoWatch).expect_err("there is no server");
    failed.to_string()
}

fn failure_of_metadata(address: SocketAddr) -> String {
    let plan = MetadataPlan {
        target: target(address),
        connections: 1,
        threads: 1,
        depth: 4,
        items: 10,
    };
    let failed = measure(&plan, &|| false).expect_err("there is no server");
    failed.to_string()
}

/// A peer that answers the first bytes of each of two connections with these and closes them.
fn peer(answer: &'static [u8]) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    let thread = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().expect("a connection");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
        }
    });
    (address, thread)
}

fn both_fail_with(answer: &'static [u8], part: &str) {
    let (address, thread) = peer(answer);
    for text in [failure_of_data(address), failure_of_metadata(address)] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    thread.join().expect("it ends");
}

#[test]
fn missing_servers_are_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    for text in [failure_of_data(address), failure_of_metadata(address)] {
        assert!(text.contains(&address.to_string()), "{text}");
        assert!(text.contains("check that an NFS server listens"), "{text}");
    }
}

#[test]
fn servers_that_close_connections_are_reported() {
    both_fail_with(b"", "the server closed the connection");
    both_fail_with(&[0x80, 0, 0, 200, 1], "in the middle of a reply");
}

#[test]
fn peers_that_do_not_speak_the_protocol_are_reported() {
    both_fail_with(b"HTTP/1.1 400 Bad Request\r\n\r\n", "a reply is too long");
    both_fail_with(&[0x80, 0, 0, 2, 1, 1], "the record is not a reply");
}
