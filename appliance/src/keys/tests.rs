//! Keys from files and credentials, valid and not.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nvme_keys::{Hash, TlsKey};
use tempfile::TempDir;

use super::*;
use crate::error::one_line;

const SECRET: [u8; 32] = [0xa5; 32];

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("writable");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("own file");
}

fn chap() -> String {
    let secret = ChapSecret::new(Hash::Sha256, &SECRET).expect("the length fits");
    secret.expose_interchange().to_string()
}

fn key(source: KeySource) -> Key {
    let name = "db1".parse().expect("a name");
    Key { name, source }
}

fn exposed(secret: &KeySecret) -> &[u8] {
    match secret {
        KeySecret::Chap(secret) => secret.expose(),
        KeySecret::Tls(key) => key.expose(),
    }
}

#[track_caller]
fn problem(keys: &Keys, key: &Key) -> String {
    let line = one_line(&keys.read(key).expect_err("not usable"));
    assert!(line.contains("key db1"), "{line}");
    assert!(!line.contains("paWl"), "{line}");
    line
}

#[test]
fn keys_are_read_from_files_of_their_owner() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("key");
    let (keys, key) = (Keys::default(), key(KeySource::File(path.clone())));
    write(&path, &chap(), 0o600);
    assert_eq!(exposed(&keys.read(&key).expect("valid")), SECRET);
    write(&path, &chap(), 0o640);
    let line = problem(&keys, &key);
    let fix = format!("run chmod 600 {}", path.display());
    assert!(
        line.contains("(mode 0640)") && line.contains(&fix),
        "{line}"
    );
    let tls = TlsKey::new(Hash::Sha256, &SECRET).expect("the length fits");
    write(&path, &tls.expose_interchange(), 0o600);
    assert_eq!(
        keys.read(&key).expect("valid"),
        KeySecret::Tls(Arc::new(tls))
    );
    write(&path, "DHHC-1:", 0o600);
    problem(&keys, &key);
    fs::remove_file(&path).expect("there");
    problem(&keys, &key);
}

#[test]
fn credentials_may_be_readable_by_their_group() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("cred");
    let key = key(KeySource::Credential("cred".parse().expect("a name")));
    let line = problem(&Keys::default(), &key);
    assert!(line.contains("LoadCredential=cred:"), "{line}");
    let keys = Keys {
        credentials: Some(directory.path().to_owned()),
        ..Keys::default()
    };
    for mode in [0o400, 0o440, 0o600] {
        write(&path, &chap(), mode);
        assert_eq!(exposed(&keys.read(&key).expect("valid")), SECRET);
        fs::remove_file(&path).expect("there");
    }
    for mode in [0o444, 0o460, 0o404] {
        write(&path, &chap(), mode);
        assert!(problem(&keys, &key).contains("let systemd provide it"));
        fs::remove_file(&path).expect("there");
    }
}

#[test]
fn the_target_gets_the_keys_of_a_host_in_order() {
    let [a, b]: [Name; 2] = ["a", "b"].map(|name| name.parse().expect("a name"));
    let mut keys = Keys::default();
    let secret = |byte| {
        let secret = ChapSecret::new(Hash::None, &[byte; 32]).expect("it fits");
        KeySecret::Chap(Arc::new(secret))
    };
    keys.insert(a.clone(), secret(1));
    keys.insert(b.clone(), secret(2));
    let host = HostAuthentication {
        host: "nqn.2026-11.org.example:h".parse().expect("an NQN"),
        chap: vec![b.clone(), a.clone()],
        chap_controller: Some(a),
        chap_null_group: false,
        concatenation: false,
        requires_chap: true,
        tls: Vec::new(),
        requires_tls: false,
    };
    let of_target = keys.authentication(&host);
    let names: Vec<&str> = of_target.keys.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["b", "a"]);
    assert_eq!(of_target.keys[0].secret.expose(), [2; 32]);
    assert!(of_target.required && of_target.controller_key.is_some());
    let concatenation = |concatenation, requires_tls| {
        let host = HostAuthentication {
            concatenation,
            requires_tls,
            ..host.clone()
        };
        keys.authentication(&host).concatenation
    };
    assert_eq!(concatenation(false, true), Concatenation::Off);
    assert_eq!(concatenation(true, false), Concatenation::Allowed);
    assert_eq!(concatenation(true, true), Concatenation::Required);
    let without = Keys::default().authentication(&host);
    assert!(without.keys.is_empty(), "the target refuses it");
}
