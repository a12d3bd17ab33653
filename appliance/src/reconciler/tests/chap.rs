//! Keys of the configuration, and hosts that authenticate themselves with them, while both change.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use nvme_host::{ChapOptions, ConnectOptions, Controller, HostError, HostIdentity};
use nvme_keys::{ChapSecret, Hash};
use tempfile::TempDir;

use super::ApplyOptions;
use super::lab::{HOST, LIMIT, address, apply, base, nqn, started, steps_to, try_apply};
use super::lab::{io_queue, is_alive, parsed, revoke, revoked_keys, with_export};
use crate::appliance::Appliance;
use crate::reconciler::Origin;
use crate::state_directory::StateDirectory;

fn secret(byte: u8) -> ChapSecret {
    ChapSecret::new(Hash::Sha256, &[byte; 32]).expect("the length fits")
}

fn write_key(path: &Path, byte: u8) {
    let text = secret(byte).expose_interchange();
    fs::write(path, text.as_str()).expect("writable");
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("own file");
}

/// The keys `old`, `new` and `own` with the secrets 1, 2 and 9.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(TempDir::new().expect("a directory"));
        for (name, byte) in [("old", 1), ("new", 2), ("own", 9)] {
            write_key(&folder.path(name), byte);
        }
        folder
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// A configuration with these keys, and an export to a host with this table.
    fn text(&self, keys: &[&str], host: &str) -> String {
        let memory = "type = \"memory\"\nsize = \"1MiB\"";
        let host = format!("hosts = [{{ nqn = \"{HOST}\"{host} }}]");
        let export = with_export("one", memory).replace("allow_any_host = true", &host);
        // Messages are longer than the in-capsule data of I/O commands.
        let base = base("10s").replace(
            "transport = \"tcp\"",
            "transport = \"tcp\"\nin_capsule_data = 0",
        );
        let keys: String = keys
            .iter()
            .map(|key| {
                let path = self.path(key);
                format!("[[key]]\nname = \"{key}\"\nfile = \"{}\"\n", path.display())
            })
            .collect();
        format!("{base}{export}{keys}")
    }
}

const REQUIRED: &str = ", chap = \"old\", chap_controller = \"own\", require = [\"chap\"]";

fn options(at: SocketAddr, chap: Option<(u8, Option<u8>)>) -> ConnectOptions {
    let identity = HostIdentity {
        nqn: HOST.to_owned(),
        id: [7; 16],
    };
    let mut options = ConnectOptions::new(at, &nqn("one"), identity);
    options.timeout = LIMIT;
    options.chap = chap.map(|(key, own)| ChapOptions::new(secret(key), own.map(secret)));
    options
}

fn connect(appliance: &Appliance, chap: Option<(u8, Option<u8>)>) -> Result<Controller, HostError> {
    Controller::connect(options(address(appliance, "steady"), chap))
}

#[test]
fn hosts_authenticate_with_the_configured_keys_on_every_queue() {
    let folder = Folder::new();
    let mut appliance = started(&folder.text(&["old", "own"], REQUIRED));
    let refused = connect(&appliance, None).expect_err("authentication is required");
    assert!(
        matches!(refused, HostError::AuthenticationRequired),
        "{refused}"
    );
    for (key, own) in [(2, None), (1, Some(8))] {
        let refused = connect(&appliance, Some((key, own))).expect_err("a wrong key");
        assert!(matches!(refused, HostError::Authentication(_)), "{refused}");
    }
    let mut controller = connect(&appliance, Some((1, Some(9)))).expect("the right keys");
    assert!(is_alive(&mut controller));
    let (pool, mut queue) = io_queue(&mut controller);
    let data = pool.take(512).expect("a lease");
    queue.submit_read(1, 0, 1, data, 5).expect("room");
    let read = queue.wait_completion(LIMIT, "Read").expect("complete");
    assert!(read.status().is_success(), "{}", read.status());
    // Again, with the wrong and the right key.
    let chap = ChapOptions::new(secret(1), None);
    controller.authenticate(chap).expect("the right key");
    let chap = ChapOptions::new(secret(5), None);
    controller.authenticate(chap).expect_err("a wrong key");
    drop((queue, controller));
    // Without a requirement, both kinds of hosts connect.
    apply(
        &mut appliance,
        &folder.text(&["old", "own"], ", chap = \"old\""),
    );
    connect(&appliance, None).expect("allowed");
    connect(&appliance, Some((1, None))).expect("allowed");
    connect(&appliance, Some((3, None))).expect_err("a wrong key");
}

#[test]
fn keys_are_exchanged_without_an_interruption() {
    let folder = Folder::new();
    let chap = |names: &str| format!(", chap = [{names}], require = [\"chap\"]");
    let only_old = folder.text(&["old"], &chap("\"old\""));
    let both = folder.text(&["old", "new"], &chap("\"new\", \"old\""));
    let only_new = folder.text(&["new"], &chap("\"new\""));
    let mut appliance = started(&only_old);
    let mut first = connect(&appliance, Some((1, None))).expect("the old key");
    connect(&appliance, Some((2, None))).expect_err("not yet");
    apply(&mut appliance, &both);
    let mut second = connect(&appliance, Some((2, None))).expect("the new key");
    connect(&appliance, Some((1, None))).expect("still the old key");
    apply(&mut appliance, &only_new);
    connect(&appliance, Some((1, None))).expect_err("no longer");
    assert!(is_alive(&mut first) && is_alive(&mut second));
    // Another secret in the same file.
    write_key(&folder.path("new"), 3);
    let options = ApplyOptions {
        dry_run: true,
        ..ApplyOptions::default()
    };
    let shown = try_apply(&mut appliance, &only_new, options);
    let lines: Vec<&str> = shown.steps.iter().map(|step| step.text.as_str()).collect();
    assert_eq!(lines, ["read key new again: its secret has changed"]);
    connect(&appliance, Some((3, None))).expect_err("a dry run changes nothing");
    apply(&mut appliance, &only_new);
    connect(&appliance, Some((3, None))).expect("the secret was read again");
    connect(&appliance, Some((2, None))).expect_err("replaced");
    assert!(is_alive(&mut first) && is_alive(&mut second));
    assert!(apply(&mut appliance, &only_new).steps.is_empty());
}

#[test]
fn unusable_keys_change_nothing() {
    let folder = Folder::new();
    let now = folder.text(&["old", "own"], REQUIRED);
    let mut appliance = started(&now);
    let open = |name: &str, mode| {
        fs::set_permissions(folder.path(name), Permissions::from_mode(mode)).expect("own file");
    };
    // A new key, and one that is in use: the steps before are undone, and the old secret serves.
    for name in ["new", "old"] {
        open(name, 0o644);
        let wanted = folder.text(&["old", "own", "new"], REQUIRED);
        let refused = try_apply(&mut appliance, &wanted, ApplyOptions::default());
        let reason = refused.failure_reason().expect("a reason");
        let fix = format!("run chmod 600 {}", folder.path(name).display());
        assert!(
            reason.contains("nothing was changed") && reason.contains(&fix),
            "{reason}"
        );
        open(name, 0o600);
        assert_eq!(steps_to(&appliance, &now), []);
        connect(&appliance, Some((1, Some(9)))).expect("as before");
    }
    // A step that fails after the keys were read.
    write_key(&folder.path("old"), 4);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("bound");
    let more =
        format!("[[listener]]\nname = \"more\"\ntransport = \"tcp\"\naddress = \"{taken}\"\n");
    let refused = try_apply(
        &mut appliance,
        &(now.clone() + &more),
        ApplyOptions::default(),
    );
    assert!(!refused.applied);
    connect(&appliance, Some((1, Some(9)))).expect("as before");
    // The start fails too.
    open("own", 0o604);
    let config = parsed(&folder.text(&["own"], ", chap = \"own\""));
    let error = Appliance::start(config, &StateDirectory::default())
        .err()
        .expect("unusable");
    assert!(crate::error::with_causes(error.as_ref()).contains("run chmod 600"));
}

#[test]
fn a_revoked_secret_is_refused_also_after_a_restart() {
    let folder = Folder::new();
    let state = StateDirectory::at(folder.path("state"));
    let text = folder.text(
        &["old", "new"],
        ", chap = [\"old\", \"new\"], require = [\"chap\"]",
    );
    let start = || Appliance::start(parsed(&text), &state).expect("it starts");
    let mut appliance = start();
    let mut with_old = connect(&appliance, Some((1, None))).expect("the old key");
    let mut with_new = connect(&appliance, Some((2, None))).expect("the new key");
    revoke(&mut appliance, "none", true).expect_err("no such key");
    assert_eq!(revoke(&mut appliance, "old", false), Ok(0));
    connect(&appliance, Some((1, None))).expect_err("revoked");
    assert!(is_alive(&mut with_old), "connections go on");
    assert_eq!(revoke(&mut appliance, "old", true), Ok(1));
    with_old.wait_end(LIMIT).expect("it is disconnected");
    assert!(is_alive(&mut with_new));
    assert_eq!(revoked_keys(&appliance), ["old"]);
    drop(with_new);
    assert!(appliance.stop_quietly());

    let mut appliance = start();
    connect(&appliance, Some((1, None))).expect_err("still revoked");
    connect(&appliance, Some((2, None))).expect("the other key");
    // Without any usable key, the host is refused, and others are served.
    revoke(&mut appliance, "new", false).expect("recorded");
    connect(&appliance, Some((2, None))).expect_err("revoked");
    connect(&appliance, None).expect_err("authentication is still required");
    // Another secret in the same file is a usable key, and the revoked one is not under any name.
    write_key(&folder.path("old"), 5);
    write_key(&folder.path("new"), 1);
    apply(&mut appliance, &text);
    connect(&appliance, Some((5, None))).expect("another secret");
    connect(&appliance, Some((1, None))).expect_err("revoked under another name");
    assert_eq!(revoked_keys(&appliance), ["new"]);
    assert!(appliance.stop_quietly());

    // A damaged file might make a revoked key usable.
    fs::write(state.revoked_keys().expect("a path"), "{").expect("writable");
    let error = Appliance::start(parsed(&text), &state).err();
    let error = crate::error::with_causes(error.expect("unknown keys").as_ref());
    assert!(error.contains("is damaged"), "{error}");
}

#[test]
fn a_revocation_that_cannot_be_recorded_changes_nothing() {
    let folder = Folder::new();
    let text = folder.text(&["old"], ", chap = \"old\", require = [\"chap\"]");
    let mut appliance = started(&text);
    let error = revoke(&mut appliance, "old", true).expect_err("no state directory");
    assert!(error.contains("no state directory"), "{error}");
    connect(&appliance, Some((1, None))).expect("not revoked");
    assert!(revoked_keys(&appliance).is_empty());
}

/// A requirement applies to hosts that are connected without authentication.
#[test]
fn a_new_requirement_disconnects_hosts_without_authentication() {
    let folder = Folder::new();
    let mut appliance = started(&folder.text(&["old", "own"], ""));
    let mut plain = connect(&appliance, None).expect("no requirement");
    apply(&mut appliance, &folder.text(&["old", "own"], REQUIRED));
    let ended = plain.wait_end(Duration::from_secs(30));
    ended.expect("it is disconnected");
    connect(&appliance, None).expect_err("required");
    connect(&appliance, Some((1, None))).expect("the key");
}

/// Requests name only files below `allowed_paths`.
#[test]
fn requests_read_no_keys_elsewhere() {
    let folder = Folder::new();
    let restrict = |text: String| {
        text.replace(
            "http = \"off\"",
            "http = \"off\"\nallowed_paths = [\"/nonexistent\"]",
        )
    };
    let now = restrict(folder.text(&["old"], ", chap = \"old\""));
    let mut appliance = started(&now);
    let options = ApplyOptions {
        origin: Origin::Request,
        ..ApplyOptions::default()
    };
    let wanted = restrict(folder.text(&["old", "new"], ", chap = \"old\""));
    let refused = try_apply(&mut appliance, &wanted, options);
    let reason = refused.failure_reason().expect("a reason");
    assert!(
        reason.contains("key new:") && reason.contains("allowed_paths"),
        "{reason}"
    );
}
