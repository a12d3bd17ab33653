//! Changes of shares while clients use files.

use files_client_testing::{Connection, Slot, at_file};
use files_spec::Status;
use files_spec::operations::Operation;

use super::lab::{apply, base, started, steps_to, try_apply};
use crate::appliance::Appliance;
use crate::reconciler::ApplyOptions;

pub(super) const FILES: &str = r#"
[[device]]
name = "files"
type = "memory"
size = "4MiB"
[[volume]]
name = "scratch"
device = "files"
metadata_memory = "4MiB"
[[file_listener]]
name = "nfs"
address = "127.0.0.1:0"
"#;

pub(super) fn share(name: &str, more: &str) -> String {
    format!(
        "[[share]]\nname = \"{name}\"\nvolume = \"scratch\"\nallow_any_client = true\n\
         squash = \"none\"\n{more}\n"
    )
}

pub(super) fn texts(appliance: &Appliance, text: &str) -> Vec<String> {
    let steps = steps_to(appliance, text);
    steps.iter().map(ToString::to_string).collect()
}

#[test]
fn shares_are_added_changed_and_ended_under_load() {
    let now = base("10s") + FILES;
    let data = now.clone() + &share("data", "");
    let mut appliance = started(&data);
    let mut connection = Connection::new(appliance.files_addresses()[0]);
    let mut slot = Slot::new(&mut connection, b"a");
    let status = |slot: &mut Slot, connection: &mut Connection| {
        let write = slot.write(0, b"x");
        slot.call(connection, &write).parts().0
    };
    assert_eq!(status(&mut slot, &mut connection), Status::OK);
    let wanted = now.clone() + &share("data", "read_only = true") + &share("more", "");
    assert_eq!(
        texts(&appliance, &wanted),
        ["change what is shared: add more; change data"]
    );
    apply(&mut appliance, &wanted);
    assert_eq!(status(&mut slot, &mut connection), Status::ROFS);
    let shares = appliance.status().files.expect("files are served").shares;
    let names: Vec<&str> = shares.iter().map(|it| &*it.name).collect();
    assert_eq!((names, shares[0].writes), (vec!["data", "more"], 1));
    apply(&mut appliance, &(now.clone() + &share("more", "")));
    let answer = slot.call(&mut connection, &at_file(Operation::GetFh(())));
    assert_eq!(answer.parts().0, Status::NOENT);
    apply(&mut appliance, &data);
    assert_eq!(status(&mut slot, &mut connection), Status::OK);
    assert_eq!(texts(&appliance, &data), [""; 0]);
    assert!(appliance.stop_quietly());
}

#[test]
fn files_begin_and_end_without_a_restart() {
    let nothing = base("10s");
    let served = nothing.clone() + FILES + &share("data", "");
    let mut appliance = started(&nothing);
    for owner in [b"a", b"b"] {
        assert!(appliance.status().files.is_none());
        assert!(appliance.files_addresses().is_empty());
        assert_eq!(
            texts(&appliance, &served),
            [
                "open device files (memory)",
                "open volume scratch on device files",
                "change what is shared: add data",
                "serve files at 127.0.0.1:0 (tcp) as nfs",
            ]
        );
        apply(&mut appliance, &served);
        let mut connection = Connection::new(appliance.files_addresses()[0]);
        let mut slot = Slot::new(&mut connection, owner);
        let write = slot.write(0, b"x");
        assert_eq!(slot.call(&mut connection, &write).parts().0, Status::OK);
        let files = appliance.status().files.expect("files are served");
        assert_eq!((files.shares[0].writes, files.volumes.len()), (1, 1));
        apply(&mut appliance, &nothing);
        assert!(connection.is_closed());
    }
    assert!(appliance.status().files.is_none());
    assert!(appliance.stop_quietly());
}

#[test]
fn quotas_and_directories_of_shares_change_under_load() {
    let now = base("10s") + FILES;
    let limited = |files: u64| {
        let quotas = format!("directory = \"team\"\nmax_size = \"8KiB\"\nmax_files = {files}");
        now.clone() + &share("data", &quotas)
    };
    let mut appliance = started(&limited(1));
    let mut connection = Connection::new(appliance.files_addresses()[0]);
    let mut slot = Slot::new(&mut connection, b"a");
    let write = |slot: &mut Slot, connection: &mut Connection, offset, bytes: usize| {
        let data = vec![7; bytes];
        let sender = *slot;
        slot.call(connection, &sender.write(offset, &data))
            .parts()
            .0
    };
    assert_eq!(write(&mut slot, &mut connection, 0, 8192), Status::OK);
    assert_eq!(write(&mut slot, &mut connection, 8192, 1), Status::DQUOT);
    let status = |appliance: &Appliance| {
        let files = appliance.status().files.expect("files are served");
        let share = files.shares[0].clone();
        (share.directory, share.bytes_used_max, share.files_max)
    };
    let team = Some("team".to_owned());
    assert_eq!(status(&appliance), (team.clone(), 8192, 1));
    apply(&mut appliance, &limited(5));
    assert_eq!(status(&appliance), (team, 8192, 5));
    assert_eq!(write(&mut slot, &mut connection, 8192, 1), Status::DQUOT);
    let unlimited = now.clone() + &share("data", "directory = \"team\"");
    apply(&mut appliance, &unlimited);
    assert_eq!(write(&mut slot, &mut connection, 8192, 1), Status::OK);
    // The whole volume has other files, and what clients know of the directory is stale.
    apply(&mut appliance, &(now.clone() + &share("data", "")));
    assert_eq!(write(&mut slot, &mut connection, 0, 1), Status::NOENT);
    apply(&mut appliance, &unlimited);
    let open = appliance.status().files.expect("files are served").shares;
    assert_eq!(open[0].files, 1, "it is still there");
    assert!(appliance.stop_quietly());
}

#[test]
fn a_directory_whose_name_is_taken_changes_nothing() {
    let now = base("10s") + FILES;
    let whole = now.clone() + &share("data", "");
    let mut appliance = started(&whole);
    let mut connection = Connection::new(appliance.files_addresses()[0]);
    let mut slot = Slot::new(&mut connection, b"a");
    let wanted = whole.clone() + &share("team", "directory = \"f\"");
    let refused = try_apply(&mut appliance, &wanted, ApplyOptions::default());
    let reason = refused.failure_reason().expect("a reason");
    let expected = "share team: volume scratch has something else with the name f";
    assert!(!refused.applied && reason.contains(expected), "{reason}");
    let shares = appliance.status().files.expect("files are served").shares;
    assert_eq!(shares.len(), 1);
    let write = slot.write(0, b"x");
    assert_eq!(slot.call(&mut connection, &write).parts().0, Status::OK);
    assert_eq!(
        texts(&appliance, &wanted),
        ["change what is shared: add team"],
        "it is still to be done"
    );
    assert!(appliance.stop_quietly());
}

pub(super) const MORE: &str = r#"
[[device]]
name = "more"
type = "memory"
size = "4MiB"
[[volume]]
name = "more"
device = "more"
metadata_memory = "1MiB"
[[share]]
name = "more"
volume = "more"
allow_any_client = true
squash = "none"
[[file_listener]]
name = "other"
address = "127.0.0.1:0"
"#;

/// Another share is used over another connection while they come and go.
#[test]
fn volumes_and_listeners_come_and_go_under_load() {
    let now = base("10s") + FILES + &share("data", "");
    let with_more = now.clone() + MORE;
    let mut appliance = started(&now);
    let mut connection = Connection::new(appliance.files_addresses()[0]);
    let mut slot = Slot::new(&mut connection, b"a");
    let mut write = move |offset| {
        let write = slot.write(offset, b"steady");
        slot.call(&mut connection, &write).parts().0
    };
    assert_eq!(write(0), Status::OK);
    for round in 0..3 {
        assert_eq!(
            texts(&appliance, &with_more),
            [
                "open device more (memory)",
                "open volume more on device more",
                "change what is shared: add more",
                "serve files at 127.0.0.1:0 (tcp) as other",
            ]
        );
        let planned = ApplyOptions {
            dry_run: true,
            ..ApplyOptions::default()
        };
        let planned = try_apply(&mut appliance, &with_more, planned);
        assert!(!planned.applied && planned.steps.len() == 4);
        assert_eq!(appliance.files_addresses().len(), 1, "it was a dry run");
        apply(&mut appliance, &with_more);
        let addresses = appliance.files_addresses();
        assert_eq!(addresses.len(), 2);
        let mut other = Connection::new(addresses[1]);
        let mut session = Slot::session(&mut other, b"b", "f");
        if round == 0 {
            session.complete_reclaim(&mut other);
        }
        let create = [
            Operation::PutRootFh(()),
            Operation::Lookup(files_client_testing::name("more")),
            files_client_testing::create_file("f"),
        ];
        let answer = session.call(&mut other, &create);
        assert_eq!(answer.parts().0, Status::OK, "round {round}");
        let files = appliance.status().files.expect("files are served");
        assert_eq!(files.volumes.len(), 2);
        assert!(files.volumes.iter().all(|it| it.served));
        assert_eq!(write(round * 100), Status::OK);
        apply(&mut appliance, &now);
        assert!(other.is_closed(), "with its listener");
        assert!(std::net::TcpStream::connect(addresses[1]).is_err());
        assert_eq!(write(round * 100 + 6), Status::OK, "the other one goes on");
        let files = appliance.status().files.expect("files are served");
        assert_eq!((files.volumes.len(), files.shares.len()), (1, 1));
        assert_eq!(texts(&appliance, &now), [""; 0]);
    }
    assert!(appliance.stop_quietly());
}

/// A listener that gets another address lets go of the first one.
#[test]
fn listeners_change_their_addresses() {
    let now = base("10s") + FILES + &share("data", "");
    let mut appliance = started(&now);
    let mut connection = Connection::new(appliance.files_addresses()[0]);
    let mut slot = Slot::new(&mut connection, b"a");
    let before = appliance.files_addresses();
    let on_six = now.replace("127.0.0.1:0\"\n[[share]]", "[::1]:0\"\n[[share]]");
    assert_ne!(on_six, now);
    apply(&mut appliance, &on_six);
    let after = appliance.files_addresses();
    assert!(after[0].is_ipv6() && after.len() == 1 && before != after);
    assert!(connection.is_closed());
    // The session goes on over the other listener.
    let mut connection = Connection::new(after[0]);
    let write = slot.write(0, b"x");
    assert_eq!(slot.call(&mut connection, &write).parts().0, Status::OK);
    assert!(appliance.stop_quietly());
}

/// A configuration with a durable volume in a file.
fn with_file(path: &std::path::Path) -> String {
    format!(
        "[[device]]\nname = \"disk\"\ntype = \"file\"\npath = \"{}\"\nsize = \"8MiB\"\n\
         [[volume]]\nname = \"kept\"\ndevice = \"disk\"\nmetadata_memory = \"1MiB\"\n\
         [[share]]\nname = \"kept\"\nvolume = \"kept\"\nallow_any_client = true\n",
        path.display()
    )
}

/// Formats the volume `kept` of a configuration whose appliance has not its device.
fn format(text: &str) {
    let config = super::lab::parsed(text);
    let volume = config.files.volume(&"kept".parse().expect("a name"));
    let volume = volume.expect("it is there");
    let arena = hugemem::Arena::new(hugemem::ArenaConfig {
        bytes: 8 << 20,
        pages: hugemem::PagePolicy::Ordinary,
        max_transfer: 128 << 10,
    });
    let arena = arena.expect("memory");
    let system = crate::devices::SystemDevices::new(&config, &arena);
    let device = config.device(&volume.device).expect("it is there");
    let opened = crate::devices::Opener::open(&system, device);
    let opened = opened.expect("it opens").expect("a file");
    let queue = crate::files::own_queue(volume, &*opened.device, &arena.pool(1));
    let mut queue = queue.expect("a queue");
    crate::volumes::format(volume, &mut queue, false).expect("it is formatted");
}

#[test]
fn changes_that_are_not_possible_change_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("kept");
    let now = base("10s") + FILES + &share("data", "");
    let mut appliance = started(&now);
    let address = appliance.files_addresses()[0];
    let mut connection = Connection::new(address);
    let mut slot = Slot::new(&mut connection, b"a");
    let kept = now.clone() + &with_file(&path);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address");
    let listener = |address| {
        now.clone() + &format!("[[file_listener]]\nname = \"b\"\naddress = \"{address}\"\n")
    };
    let smaller = now
        .replace("name = \"scratch\"\ndevice", "name = \"renamed\"\ndevice")
        .replace("volume = \"scratch\"", "volume = \"renamed\"")
        + &with_file(&path);
    let cases = [
        (&kept, "make one with `windlass volume format kept`"),
        (&smaller, "make one with `windlass volume format kept`"),
        (&listener(taken), "cannot be listened on"),
        (&listener(address), "cannot be listened on"),
    ];
    for (wanted, message) in cases {
        let refused = try_apply(&mut appliance, wanted, ApplyOptions::default());
        let reason = refused.failure_reason().expect("a reason");
        assert!(!refused.applied && reason.contains(message), "{reason}");
        let files = appliance.status().files.expect("files are served");
        assert_eq!((files.volumes.len(), files.shares.len()), (1, 1));
        let write = slot.write(0, b"x");
        assert_eq!(slot.call(&mut connection, &write).parts().0, Status::OK);
        assert_eq!(texts(&appliance, &now), [""; 0], "{message}");
    }
    format(&kept);
    apply(&mut appliance, &kept);
    let volumes = appliance.status().files.expect("files are served").volumes;
    assert!(volumes.iter().all(|it| it.served && !it.read_only));
    assert!(volumes.iter().any(|it| it.durable));
    // It is closed with everything that it has, and opened again.
    apply(&mut appliance, &now);
    apply(&mut appliance, &kept);
    // A volume of other settings is replaced; an export cannot have its device as long as it is one.
    let exported = kept.clone()
        + "[[export]]\nnqn = \"nqn.2026-11.org.windlass:kept\"\ndevices = [\"disk\"]\n\
           listeners = [\"steady\"]\nallow_any_host = true\n";
    appliance_config::Config::parse("test", &exported).expect_err("hosts would overwrite files");
    let write = slot.write(0, b"x");
    assert_eq!(slot.call(&mut connection, &write).parts().0, Status::OK);
    assert!(appliance.stop_quietly());
}
