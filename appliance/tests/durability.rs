//! Acknowledged data is present after a restart, and hosts find the same namespaces again.

mod process;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::channel;

use nvme_host_testing::Names;
use nvme_host_testing::tcp::RawClient;
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

fn names() -> Names {
    Names {
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
            .expect("a response");
        assert!(cqe.status().is_success(), "{}", cqe.status());
        assert_eq!(data, pattern(lba), "block {lba}");
    }
}

#[test]
fn acknowledged_writes_survive_sigkill() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    for round in 0..3_u64 {
        let windlass = Windlass::start(&file);
        let (_admin, mut io) = attach(&windlass);
        // The data acknowledged in earlier rounds is present.
        expect_blocks(&mut io, 0..round * 64);
        for lba in round * 64..(round + 1) * 64 {
            let fua = lba % 2 == 0;
            let write = Sqe::write(1, lba, 0, fua);
            let (cqe, _) = io.command(write, &pattern(lba), 0).expect("a response");
            assert!(cqe.status().is_success(), "{}", cqe.status());
        }
        let (cqe, _) = io.command(Sqe::flush(1), &[], 0).expect("a response");
        assert!(cqe.status().is_success(), "{}", cqe.status());
        windlass.signal(Signal::KILL);
        assert!(!windlass.wait().0.success());
    }
}

#[test]
fn orderly_shutdown_under_load_keeps_acknowledged_writes() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    let windlass = Windlass::start(&file);
    let (admin, mut io) = attach(&windlass);
    let (sender, receiver) = channel();
    let writer = std::thread::spawn(move || {
        let mut written = 0;
        for lba in 0..10_000_u64 {
            match io.command(Sqe::write(1, lba, 0, false), &pattern(lba), 0) {
                Ok((cqe, _)) if cqe.status().is_success() => written = lba + 1,
                // The stop ends the writer by an error status, or by the end of the connection.
                Ok(_) | Err(_) => break,
            }
            if lba == 100 {
                sender.send(()).expect("somebody waits");
            }
        }
        written
    });
    receiver.recv().expect("a hundred writes succeed");
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
fn namespace_identities_survive_a_restart() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let windlass = Windlass::start(&file);
        let (mut admin, _io) = attach(&windlass);
        let mut pages = Vec::new();
        for cns in [Cns::NAMESPACE, Cns::NAMESPACE_DESCRIPTORS] {
            let identify = Sqe::identify_structure(cns, 1);
            let (cqe, page) = admin.command(identify, &[], 4096).expect("a response");
            assert!(cqe.status().is_success(), "{}", cqe.status());
            pages.push(page);
        }
        // NGUID and EUI-64 (NVM Command Set 1.1, Identify Namespace, bytes 104 to 127) are set.
        assert!(pages[0][104..120].iter().any(|byte| *byte != 0));
        assert!(pages[0][120..128].iter().any(|byte| *byte != 0));
        seen.push((pages[0][104..128].to_vec(), pages[1].clone()));
        windlass.signal(Signal::TERM);
        assert_eq!(windlass.wait().0.code(), Some(0));
    }
    assert_eq!(seen[0], seen[1]);
}

/// NGUID and EUI-64 (NVM 1.1 §4.1.5.1), and the descriptors, after one start of `file`.
fn identifiers_of_a_start(file: &std::path::Path) -> (Vec<u8>, Vec<u8>) {
    let windlass = Windlass::start(file);
    let (mut admin, _io) = attach(&windlass);
    let mut identify = |cns: Cns| {
        let identify = Sqe::identify_structure(cns, 1);
        let (cqe, page) = admin.command(identify, &[], 4096).expect("a response");
        assert!(cqe.status().is_success(), "{}", cqe.status());
        page
    };
    let namespace = identify(Cns::NAMESPACE);
    let seen = (
        namespace[104..128].to_vec(),
        identify(Cns::NAMESPACE_DESCRIPTORS),
    );
    windlass.signal(Signal::KILL);
    assert!(!windlass.wait().0.success());
    seen
}

/// Memory is empty after a restart, so hosts must not take it for the disk that they know; with a
/// configured `uuid` they do, and the operator gets a notice.
#[test]
fn memory_device_has_a_new_identity_after_restart() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    let text = fs::read_to_string(&file).expect("readable");
    let text = text.replace("type = \"file\"", "type = \"memory\"");
    let path = text.lines().find(|line| line.starts_with("path = "));
    let text = text.replace(path.expect("a path"), "");
    fs::write(&file, &text).expect("writable");
    let (first, second) = (identifiers_of_a_start(&file), identifiers_of_a_start(&file));
    assert!(first.0 != second.0 && first.1 != second.1);
    let uuid = "uuid = \"9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11\"\n";
    let text = text.replace("size = \"8MiB\"\n", &format!("size = \"8MiB\"\n{uuid}"));
    fs::write(&file, text).expect("writable");
    assert_eq!(identifiers_of_a_start(&file), identifiers_of_a_start(&file));
    let checked = run(&["check", &file.display().to_string()]);
    assert!(checked.status.success(), "{checked:?}");
    let notice = "notice: device vol0: its content does not survive a restart";
    assert!(checked.stdout.contains(notice), "{}", checked.stdout);
}

/// Between two starts: another path, or another file at the same path, is a different disk; the
/// same file with another name is not.
#[test]
fn replaced_file_has_a_new_identity_after_restart() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    let image = directory.path().join("vol0.img");
    let first = identifiers_of_a_start(&file);
    assert_eq!(identifiers_of_a_start(&file), first);
    // Restored from a copy.
    let copy = directory.path().join("copy.img");
    fs::copy(&image, &copy).expect("copied");
    fs::rename(&copy, &image).expect("renamed");
    let restored = identifiers_of_a_start(&file);
    assert!(restored.0 != first.0 && restored.1 != first.1);
    assert_eq!(identifiers_of_a_start(&file), restored);
    // The same file with another name, then a different file.
    let moved = directory.path().join("moved.img");
    fs::rename(&image, &moved).expect("renamed");
    let text = fs::read_to_string(&file).expect("readable");
    fs::write(&file, text.replace("vol0.img", "moved.img")).expect("writable");
    assert_eq!(identifiers_of_a_start(&file), restored);
    fs::write(&file, text.replace("vol0.img", "other.img")).expect("writable");
    let other = identifiers_of_a_start(&file);
    assert!(other.0 != restored.0 && other.0 != first.0);
}

/// The appliance's response to `GET path` over its control socket, head and body.
fn get(socket: &std::path::Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("connected");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response
}

/// A device that lost data refuses writes until an operator reopens it, and all interfaces report
/// it. Here its file is truncated by another process.
#[test]
fn damaged_device_is_reported_and_reopened_by_an_operator() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    let socket = directory.path().join("control.sock");
    let text = fs::read_to_string(&file).expect("readable");
    let text = text.replace(
        "socket = \"off\"",
        &format!("socket = \"{}\"", socket.display()),
    );
    fs::write(&file, text).expect("writable");
    let windlass = Windlass::start(&file);
    let (_admin, mut io) = attach(&windlass);
    let write = |io: &mut RawClient| {
        let (cqe, _) = io
            .command(Sqe::write(1, 0, 0, false), &pattern(0), 0)
            .expect("a response");
        cqe.status()
    };
    let reopen = |name: &str| {
        let socket = socket.display().to_string();
        run(&["device", "reopen", name, "--socket", &socket])
    };
    assert!(write(&mut io).is_success());
    assert!(get(&socket, "/healthz").starts_with("HTTP/1.1 200"));
    for (name, why) in [("vol0", "not damaged"), ("none", "device none is not open")] {
        let refused = reopen(name);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
    let image = fs::OpenOptions::new()
        .write(true)
        .open(directory.path().join("vol0.img"))
        .expect("it is there");
    image.set_len(0).expect("writable");
    let (cqe, _) = io
        .command(Sqe::read(1, 8000, 0), &[], BLOCK_BYTES as u32)
        .expect("a response");
    assert!(!cqe.status().is_success());
    assert!(!write(&mut io).is_success());
    // The status is at most a tenth of a second old, and events appear within the next second.
    let began = std::time::Instant::now();
    let wait_for = |path: &str, text: &str| {
        while !get(&socket, path).contains(text) {
            assert!(began.elapsed() < LIMIT, "{path} does not tell {text}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    wait_for("/healthz", "device vol0 is damaged");
    assert!(get(&socket, "/healthz").starts_with("HTTP/1.1 503"));
    wait_for("/api/v1/status", "\"cause\":\"truncated\"");
    wait_for("/metrics", "windlass_device_damaged{device=\"vol0\"} 1");
    wait_for("/api/v1/events", "is damaged");
    let refused = reopen("vol0");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("restore its length"),
        "{}",
        refused.stderr
    );
    assert!(!write(&mut io).is_success());
    image.set_len(8 << 20).expect("writable");
    let reopened = reopen("vol0");
    assert_eq!(reopened.status.code(), Some(0), "{reopened:?}");
    assert!(
        reopened.stdout.contains("may be lost"),
        "{}",
        reopened.stdout
    );
    assert!(write(&mut io).is_success());
    wait_for("/healthz", "ok");
    wait_for("/metrics", "windlass_device_damaged{device=\"vol0\"} 0");
    wait_for("/api/v1/events", "reopened by an operator");
    windlass.signal(Signal::TERM);
    assert_eq!(windlass.wait().0.code(), Some(0));
}

#[test]
fn file_served_by_another_appliance_is_refused() {
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
