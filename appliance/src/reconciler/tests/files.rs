//! Changes of shares while clients use files.

use files_client_testing::{Connection, Slot, at_file};
use files_spec::Status;
use files_spec::operations::Operation;

use super::lab::{apply, base, started, steps_to, try_apply};
use crate::appliance::Appliance;
use crate::reconciler::ApplyOptions;

const FILES: &str = r#"
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

fn share(name: &str, more: &str) -> String {
    format!(
        "[[share]]\nname = \"{name}\"\nvolume = \"scratch\"\nallow_any_client = true\n\
         squash = \"none\"\n{more}\n"
    )
}

fn texts(appliance: &Appliance, text: &str) -> Vec<String> {
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
