//! Reservations that persist survive SIGKILL, and a damaged state refuses hosts until an operator
//! resets it.

mod process;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvme_host_testing::Names;
use nvme_host_testing::tcp::RawClient;
use nvme_spec::command::IoOpcode;
use nvme_spec::command::reservation::{
    AcquireAction, AcquireControl, AcquireData, PersistChange, RegisterControl, RegisterData,
    ReservationAcquire, ReservationRegister, ReservationType,
};
use nvme_spec::{Sqe, Status, U64};
use process::{Finished, LIMIT, Windlass, run};
use rustix::process::Signal;
use tempfile::TempDir;
use zerocopy::{FromZeros as _, IntoBytes as _};

const NQN: &str = "nqn.2026-11.org.windlass:test";
const KEY: u64 = 0xa11c_e000_0000_0001;

/// A file device, which two hosts share.
fn configuration(directory: &Path) -> PathBuf {
    let text = format!(
        r#"
[appliance]
name = "shared"
memory = "16MiB"
pages = "ordinary"
[control]
socket = "{socket}"
http = "off"
[[device]]
name = "vol0"
type = "file"
path = "{image}"
size = "1MiB"
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
        socket = socket(directory),
        image = directory.join("vol0.img").display(),
    );
    let path = directory.join("windlass.toml");
    fs::write(&path, text).expect("writable");
    path
}

fn socket(directory: &Path) -> String {
    directory.join("control.sock").display().to_string()
}

/// The admin and I/O queue of the host with that number.
fn attach(windlass: &Windlass, host: u8) -> (RawClient, RawClient) {
    let names = Names {
        host: format!("nqn.2026-11.org.example:host-{host}"),
        host_id: [host; 16],
        subsystem: NQN.to_owned(),
    };
    let connect = || RawClient::connect(windlass.address(), LIMIT).expect("it listens");
    let (mut admin, mut io) = (connect(), connect());
    let cntlid = admin.open_admin(&names).expect("any host may connect");
    io.open_io(&names, cntlid, 1).expect("queue 1 is free");
    (admin, io)
}

fn status_of(io: &mut RawClient, sqe: Sqe, data: &[u8]) -> Status {
    let (cqe, _) = io.command(sqe, data, 0).expect("a response");
    // The error log has an entry.
    cqe.status().with_more(false)
}

fn register(io: &mut RawClient) -> Status {
    let mut command = ReservationRegister::new_zeroed();
    command.control = RegisterControl::new().with_cptpl(PersistChange::SET);
    let data = RegisterData {
        crkey: U64::new(0),
        nrkey: U64::new(KEY),
    };
    let sqe = Sqe::new(IoOpcode::RESERVATION_REGISTER.0, 1).with_reservation_register(command);
    status_of(io, sqe, data.as_bytes())
}

fn acquire(io: &mut RawClient) -> Status {
    let mut command = ReservationAcquire::new_zeroed();
    command.control = AcquireControl::new()
        .with_action(AcquireAction::ACQUIRE)
        .with_rtype(ReservationType::WRITE_EXCLUSIVE);
    let data = AcquireData {
        crkey: U64::new(KEY),
        prkey: U64::new(0),
    };
    let sqe = Sqe::new(IoOpcode::RESERVATION_ACQUIRE.0, 1).with_reservation_acquire(command);
    status_of(io, sqe, data.as_bytes())
}

fn write(io: &mut RawClient) -> Status {
    status_of(io, Sqe::write(1, 0, 0, false), &[7; 512])
}

/// The only stored state.
fn stored(directory: &Path) -> PathBuf {
    let files = fs::read_dir(directory.join("reservations")).expect("a directory");
    let files: Vec<PathBuf> = files.map(|it| it.expect("readable").path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

fn command(directory: &Path, arguments: &[&str]) -> Finished {
    let socket = socket(directory);
    run(&[arguments, &["--socket", &socket]].concat())
}

#[track_caller]
fn expect_output(finished: &Finished, code: i32, parts: &[&str]) {
    assert_eq!(finished.status.code(), Some(code), "{finished:?}");
    let text = format!("{}{}", finished.stdout, finished.stderr);
    for part in parts {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

/// The appliance's response to `GET path` over its control socket, head and body.
fn get(directory: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket(directory)).expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("connected");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response
}

fn kill(windlass: Windlass) {
    windlass.signal(Signal::KILL);
    assert!(!windlass.wait().0.success());
}

/// Base 2.1 §8.1.22.1: after SIGKILL and a restart, another host finds the reservation in force.
#[test]
fn persistent_reservation_survives_sigkill() {
    let directory = TempDir::new().expect("a directory");
    let directory = directory.path();
    let file = configuration(directory);
    let windlass = Windlass::start(&file);
    let (_admin, mut io) = attach(&windlass, 1);
    assert!(register(&mut io).is_success());
    assert!(acquire(&mut io).is_success());
    kill(windlass);

    let windlass = Windlass::start(&file);
    let (_other_admin, mut other) = attach(&windlass, 2);
    let conflict = Status::RESERVATION_CONFLICT.with_dnr();
    assert_eq!(write(&mut other), conflict);
    let listed = command(directory, &["reservations", "vol0"]);
    let identifier = "01010101-0101-0101-0101-010101010101";
    let parts = ["Write Exclusive", "yes", identifier, "0xa11ce00000000001"];
    expect_output(&listed, 0, &parts);
    let (_admin, mut io) = attach(&windlass, 1);
    assert!(write(&mut io).is_success());
    let listed = command(directory, &["reservations"]);
    expect_output(&listed, 0, &["nqn.2026-11.org.example:host-1"]);
    let refused = command(directory, &["reservations", "none"]);
    expect_output(&refused, 1, &["device none is not open"]);
    let refused = command(directory, &["reservations", "none", "--clear"]);
    expect_output(&refused, 1, &["device none is not open"]);
    let refused = command(directory, &["evict", "nobody"]);
    expect_output(&refused, 1, &["neither a host NQN nor a host identifier"]);

    // The eviction persists too.
    let evicted = command(directory, &["evict", identifier, "--export", NQN]);
    expect_output(&evicted, 0, &["1 association(s) ended", "from 1 device(s)"]);
    assert!(io.command(Sqe::read(1, 0, 0), &[], 512).is_err());
    assert!(write(&mut other).is_success());
    kill(windlass);
    let windlass = Windlass::start(&file);
    let (_other_admin, mut other) = attach(&windlass, 2);
    assert!(write(&mut other).is_success());
    let listed = command(directory, &["reservations", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert_eq!(listed[0]["registrants"], serde_json::json!([]));
}

#[test]
fn damaged_state_refuses_hosts_until_it_is_cleared() {
    let directory = TempDir::new().expect("a directory");
    let directory = directory.path();
    let file = configuration(directory);
    let windlass = Windlass::start(&file);
    let (_admin, mut io) = attach(&windlass, 1);
    assert!(register(&mut io).is_success());
    assert!(acquire(&mut io).is_success());
    kill(windlass);
    let state = stored(directory);
    let mut bytes = fs::read(&state).expect("readable");
    bytes[70] ^= 1;
    fs::write(&state, &bytes).expect("writable");

    let windlass = Windlass::start(&file);
    let not_ready = Status::NAMESPACE_NOT_READY.with_dnr();
    let (_admin, mut io) = attach(&windlass, 1);
    let (_other_admin, mut other) = attach(&windlass, 2);
    for io in [&mut io, &mut other] {
        assert_eq!(write(io), not_ready);
        let (cqe, _) = io
            .command(Sqe::read(1, 0, 0), &[], 512)
            .expect("a response");
        assert_eq!(cqe.status().with_more(false), not_ready);
        assert_eq!(register(io), not_ready);
    }
    let reset = "windlass reservations vol0 --clear";
    let listed = command(directory, &["reservations"]);
    expect_output(&listed, 0, &["damaged", reset]);
    let status = command(directory, &["status"]);
    expect_output(&status, 1, &["problem: device vol0", reset]);
    let doctor = run(&["doctor", "--config", file.to_str().expect("UTF-8")]);
    expect_output(&doctor, 4, &["cannot be restored", reset]);
    let health = get(directory, "/healthz");
    assert!(health.starts_with("HTTP/1.1 503"), "{health}");
    assert!(health.contains(reset), "{health}");
    let gauge = "windlass_device_reservations_damaged{device=\"vol0\"}";
    let metrics = get(directory, "/metrics");
    assert!(metrics.contains(&format!("{gauge} 1")), "{metrics}");
    assert_eq!(fs::read(&state).expect("readable"), bytes, "it is kept");

    let cleared = command(directory, &["reservations", "vol0", "--clear"]);
    expect_output(&cleared, 0, &["cleared", "damaged state"]);
    let began = Instant::now();
    while !get(directory, "/healthz").ends_with("ok") {
        assert!(began.elapsed() < LIMIT, "/healthz reports the damage");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(write(&mut other).is_success());
    assert!(register(&mut other).is_success());
    kill(windlass);
    let windlass = Windlass::start(&file);
    let listed = command(directory, &["reservations", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert_eq!(listed[0]["damaged"], false);
    let registrants = listed[0]["registrants"].as_array().expect("a list");
    assert_eq!(registrants.len(), 1, "{listed}");
    drop(windlass);
}

/// The message at the start names the device, the file, the reason and the command.
#[test]
fn damaged_state_is_logged_at_start() {
    let directory = TempDir::new().expect("a directory");
    let directory = directory.path();
    let file = configuration(directory);
    let windlass = Windlass::start(&file);
    let (_admin, mut io) = attach(&windlass, 1);
    assert!(register(&mut io).is_success());
    kill(windlass);
    let state = stored(directory);
    fs::write(&state, "").expect("writable");
    let log = directory.join("log");
    let windlass = Windlass::start_logging(&file, &log);
    let text = fs::read_to_string(&log).expect("readable");
    for part in [
        "device vol0",
        &state.display().to_string(),
        "truncated",
        "windlass reservations vol0 --clear",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    drop(windlass);
}
