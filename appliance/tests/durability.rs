//! What was acknowledged is there after a restart, and hosts find the same namespaces again.

mod process;

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::channel;

use nvme_host::raw::{RawClient, RawNames};
use nvme_spec::Sqe;
use nvme_spec::command::Cns;
use process::{LIMIT, Windlass, run};
use rustix::process::Signal;
use tempfile::TempDir;

const NQN: &str = "nqn.2026-11.org.windlass:test";
const BLOCK_BYTES: usize = 512;

/// One file namespace of 8 MiB, on a port that the system chooses.
fn configuration(directory: &TempDir) -> PathBuf {
    let image = directory.path().join("vol0.img");
    let text = format!(
        r#"
[appliance]
name = "durable"
memory = "16MiB"
pages = "ordinary"
shutdown_deadline = "20s"

[control]
socket = "off"
http = "off"

[[device]]
name = "vol0"
type = "file"
path = "{}"
size = "8MiB"

[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"

[[export]]
nqn = "{NQN}"
devices = ["vol0"]
listeners = ["loopback"]
allow_any_host = true
"#,
        image.display()
    );
    let path = directory.path().join("windlass.toml");
    fs::write(&path, text).expect("writable");
    path
}

fn names() -> RawNames {
    RawNames {
        host: "nqn.2026-11.org.windlass:host".to_owned(),
        host_id: [9; 16],
        subsystem: NQN.to_owned(),
    }
}

/// An admin connection and an I/O queue.
fn attach(windlass: &Windlass) -> (RawClient, RawClient) {
    let mut admin = RawClient::connect(windlass.address(), LIMIT).expect("it listens");
    let cntlid = admin.open_admin(&names()).expect("any host may connect");
    let mut io = RawClient::connect(windlass.address(), LIMIT).expect("it listens");
    io.open_io(&names(), cntlid, 1).expect("queue 1 is free");
    (admin, io)
}

fn pattern(lba: u64) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    for (position, byte) in block.iter_mut().enumerate() {
        *byte = (lba as usize * 31 + position * 7 + 1) as u8;
    }
    block
}

#[track_caller]
fn expect_blocks(io: &mut RawClient, lbas: impl Iterator<Item = u64>) {
    for lba in lbas {
        let (cqe, data) = io
            .command(Sqe::read(1, lba, 0), &[], 512)
            .expect("an answer");
        assert!(cqe.status().is_success(), "{}", cqe.status());
        assert_eq!(data, pattern(lba), "block {lba}");
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    for round in 0..3_u64 {
        let windlass = Windlass::start(&file);
        let (_admin, mut io) = attach(&windlass);
        // What the rounds before were told is there.
        expect_blocks(&mut io, 0..round * 64);
        for lba in round * 64..(round + 1) * 64 {
            let fua = lba % 2 == 0;
            let write = Sqe::write(1, lba, 0, fua);
            let (cqe, _) = io.command(write, &pattern(lba), 0).expect("an answer");
            assert!(cqe.status().is_success(), "{}", cqe.status());
        }
        let (cqe, _) = io.command(Sqe::flush(1), &[], 0).expect("an answer");
        assert!(cqe.status().is_success(), "{}", cqe.status());
        windlass.signal(Signal::KILL);
        assert!(!windlass.wait().0.success());
    }
}

#[test]
fn a_stop_under_load_ends_in_order_and_keeps_every_acknowledged_write() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    let windlass = Windlass::start(&file);
    let (admin, mut io) = attach(&windlass);
    let (tell, told) = channel();
    let writer = std::thread::spawn(move || {
        let mut written = 0;
        for lba in 0..10_000_u64 {
            match io.command(Sqe::write(1, lba, 0, false), &pattern(lba), 0) {
                Ok((cqe, _)) if cqe.status().is_success() => written = lba + 1,
                // The stop: a status that says so, or the end of the connection.
                Ok(_) | Err(_) => break,
            }
            if lba == 100 {
                tell.send(()).expect("somebody waits");
            }
        }
        written
    });
    told.recv().expect("a hundred writes succeed");
    windlass.signal(Signal::TERM);
    let (status, _) = windlass.wait();
    assert_eq!(status.code(), Some(0));
    let written = writer.join().expect("no panic");
    drop(admin);
    assert!(written > 100);
    let windlass = Windlass::start(&file);
    let (_admin, mut io) = attach(&windlass);
    expect_blocks(&mut io, 0..written);
}

#[test]
fn namespaces_keep_their_identities_over_a_restart() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let windlass = Windlass::start(&file);
        let (mut admin, _io) = attach(&windlass);
        let mut pages = Vec::new();
        for cns in [Cns::NAMESPACE, Cns::NAMESPACE_DESCRIPTORS] {
            let identify = Sqe::identify_structure(cns, 1);
            let (cqe, page) = admin.command(identify, &[], 4096).expect("an answer");
            assert!(cqe.status().is_success(), "{}", cqe.status());
            pages.push(page);
        }
        // NGUID and EUI-64 (NVM Command Set 1.1, Identify Namespace, bytes 104 to 127) are there.
        assert!(pages[0][104..120].iter().any(|byte| *byte != 0));
        assert!(pages[0][120..128].iter().any(|byte| *byte != 0));
        seen.push((pages[0][104..128].to_vec(), pages[1].clone()));
        windlass.signal(Signal::TERM);
        assert_eq!(windlass.wait().0.code(), Some(0));
    }
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn a_file_that_another_appliance_serves_is_refused_in_one_line() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    let windlass = Windlass::start(&file);
    let finished = run(&["--log", "off", "run", &file.display().to_string()]);
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert!(finished.stderr.contains("vol0.img"), "{}", finished.stderr);
    windlass.signal(Signal::TERM);
    assert_eq!(windlass.wait().0.code(), Some(0));
}
