//! `windlass key revoke` with a running appliance: the operator's words and the hosts' experience.

mod process;

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nvme_host::{ChapOptions, ConnectOptions, Controller, HostError, HostIdentity};
use nvme_keys::{ChapSecret, Hash};
use process::{LIMIT, Windlass, run};
use rustix::process::Signal;
use tempfile::TempDir;

const NQN: &str = "nqn.2026-11.org.windlass:test";
const HOST: &str = "nqn.2026-11.org.example:host";

fn secret(byte: u8) -> ChapSecret {
    ChapSecret::new(Hash::Sha256, &[byte; 32]).expect("the length fits")
}

fn write_key(directory: &Path, name: &str, byte: u8) {
    let path = directory.join(name);
    fs::write(&path, secret(byte).expose_interchange().as_str()).expect("writable");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("own file");
}

/// An export to a host with the keys `old` and `new`.
fn configuration(directory: &Path) -> PathBuf {
    write_key(directory, "old", 1);
    write_key(directory, "new", 2);
    let text = format!(
        r#"
[appliance]
name = "keys"
memory = "16MiB"
pages = "ordinary"
[control]
socket = "{directory}/control.sock"
http = "off"
[[key]]
name = "old"
file = "{directory}/old"
[[key]]
name = "new"
file = "{directory}/new"
[[device]]
name = "ram"
type = "memory"
size = "1MiB"
[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"
in_capsule_data = 0
[[export]]
nqn = "{NQN}"
devices = ["ram"]
listeners = ["loopback"]
hosts = [{{ nqn = "{HOST}", chap = ["old", "new"], require = ["chap"] }}]
"#,
        directory = directory.display(),
    );
    let path = directory.join("windlass.toml");
    fs::write(&path, text).expect("writable");
    path
}

fn connect(windlass: &Windlass, key: u8) -> Result<Controller, HostError> {
    let identity = HostIdentity {
        nqn: HOST.to_owned(),
        id: [7; 16],
    };
    let mut options = ConnectOptions::new(windlass.address(), NQN, identity);
    options.timeout = LIMIT;
    options.chap = Some(ChapOptions::new(secret(key), None));
    Controller::connect(options)
}

#[test]
fn operators_revoke_keys() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(directory.path());
    let state = directory.path().join("state").display().to_string();
    let socket = directory.path().join("control.sock").display().to_string();
    let start = || Windlass::start_in(&file, &[("STATE_DIRECTORY", &state)]);
    let windlass = start();
    let revoke = |arguments: &[&str]| {
        let all = [&["key", "revoke"], arguments, &["--socket", &socket]].concat();
        run(&all)
    };
    let mut with_old = connect(&windlass, 1).expect("the old key");
    let unknown = revoke(&["none"]);
    assert!(!unknown.status.success());
    assert!(unknown.stderr.contains("no key none"), "{}", unknown.stderr);
    let revoked = revoke(&["old"]);
    assert!(revoked.status.success(), "{}", revoked.stderr);
    assert!(
        revoked.stdout.contains("connections go on"),
        "{}",
        revoked.stdout
    );
    connect(&windlass, 1).expect_err("revoked");
    with_old.keep_alive().expect("it goes on");
    let ended = revoke(&["old", "--disconnect", "--json"]);
    assert!(ended.status.success(), "{}", ended.stderr);
    let answer: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(
        (&answer["key"], &answer["associations"]),
        (&"old".into(), &1.into())
    );
    with_old.wait_end(LIMIT).expect("it is disconnected");
    connect(&windlass, 2).expect("the new key");
    let status = run(&["status", "--json", "--socket", &socket]);
    let status: serde_json::Value = serde_json::from_str(&status.stdout).expect("JSON");
    assert_eq!(status["keys"][0]["revoked"], true);
    assert_eq!(status["keys"][1]["revoked"], false);
    let mut stream = UnixStream::connect(&socket).expect("it listens");
    let request = "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("connected");
    let mut events = String::new();
    stream.read_to_string(&mut events).expect("a response");
    assert!(events.contains("was revoked by an operator"), "{events}");

    // A killed appliance remembers it.
    windlass.signal(Signal::KILL);
    windlass.wait();
    let windlass = start();
    connect(&windlass, 1).expect_err("still revoked");
    connect(&windlass, 2).expect("the new key");
}
