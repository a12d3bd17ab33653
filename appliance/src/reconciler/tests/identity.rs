//! Identifiers follow content while the appliance runs: replacing a device disconnects its hosts
//! and is a different disk; other changes keep identifiers and associations.

use nvme_spec::Status;
use tempfile::TempDir;

use super::MEMORY;
use super::lab::{Busy, Host, address, apply, base, file, identifiers, nqn, started, with_export};

#[test]
fn replaced_device_gets_a_new_identity_and_disconnects_hosts() {
    let directory = TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let with = |device: &str| base("10s") + &with_export("vol", device);
    let mut appliance = started(&with(&file(&path("one"), "1MiB")));
    let busy = Busy::begin(&appliance);
    let at = address(&appliance, "steady");
    let mut seen = Vec::new();
    let devices = [
        file(&path("one"), "1MiB"),
        file(&path("other"), "1MiB"),
        MEMORY.to_owned(),
        "type = \"null\"\nsize = \"1MiB\"".to_owned(),
        // Reopened memory is a new disk.
        MEMORY.to_owned(),
    ];
    for device in &devices {
        let mut host = Host::attach(at, &nqn("vol"));
        if !seen.is_empty() {
            apply(&mut appliance, &with(device));
            assert!(host.io.expect_close().is_ok() && host.admin.expect_close().is_ok());
            host = Host::attach(at, &nqn("vol"));
        }
        assert_eq!(host.write(1, 0, 7), Status::SUCCESS);
        seen.push(identifiers(&mut host.admin, 1));
    }
    for (index, one) in seen.iter().enumerate() {
        for other in &seen[..index] {
            assert!(one.0 != other.0 && one.1 != other.1, "{index}");
        }
    }
    // The first file is the same disk as before.
    apply(&mut appliance, &with(&devices[0]));
    let mut host = Host::attach(at, &nqn("vol"));
    assert_eq!(identifiers(&mut host.admin, 1), seen[0]);
    drop(host);
    busy.go_on();
    busy.end();
    assert!(appliance.stop_quietly());
}

/// The same file with another name is the same disk, even while the appliance has it open.
#[test]
fn renamed_file_keeps_its_identity() {
    let directory = TempDir::new().expect("a directory");
    let (old, new) = (directory.path().join("old"), directory.path().join("new"));
    let with = |path: &std::path::Path| base("10s") + &with_export("vol", &file(path, "1MiB"));
    let mut appliance = started(&with(&old));
    let at = address(&appliance, "steady");
    let mut host = Host::attach(at, &nqn("vol"));
    assert_eq!(host.write(1, 0, 7), Status::SUCCESS);
    let before = identifiers(&mut host.admin, 1);
    drop(host);
    std::fs::rename(&old, &new).expect("renamed");
    apply(&mut appliance, &with(&new));
    let mut host = Host::attach(at, &nqn("vol"));
    assert_eq!(host.read(1, 0), Ok(vec![7; 512]));
    assert_eq!(identifiers(&mut host.admin, 1), before);
    drop(host);
    assert!(appliance.stop_quietly());
}

#[test]
fn other_changes_keep_identifiers_and_associations() {
    let directory = TempDir::new().expect("a directory");
    let volume = file(&directory.path().join("volume"), "1MiB");
    let ram = MEMORY.to_owned();
    let with = |volume: &str, ram: &str, more: &str| {
        base("10s") + &with_export("vol", volume) + &with_export("ram", ram) + more
    };
    let mut appliance = started(&with(&volume, &ram, ""));
    let at = address(&appliance, "steady");
    let mut hosts = ["vol", "ram"].map(|name| Host::attach(at, &nqn(name)));
    let before = hosts.each_mut().map(|host| identifiers(&mut host.admin, 1));
    let grown = [&volume, &ram].map(|device| device.replace("1MiB", "2MiB"));
    let changes = [
        with(&volume, &ram, &with_export("more", MEMORY)),
        with(&grown[0], &grown[1], ""),
        with(&format!("{}\nread_only = true", grown[0]), &grown[1], ""),
    ];
    for (index, text) in changes.iter().enumerate() {
        apply(&mut appliance, text);
        for (host, before) in hosts.iter_mut().zip(&before) {
            assert_eq!(&identifiers(&mut host.admin, 1), before, "change {index}");
            assert!(host.read(1, 0).is_ok(), "change {index}");
        }
    }
    drop(hosts);
    assert!(appliance.stop_quietly());
}
