//! Changes of shares while clients use files.

use files_client_testing::{Connection, Slot, at_file};
use files_spec::Status;
use files_spec::operations::Operation;

use super::lab::{apply, base, started, steps_to};
use crate::appliance::Appliance;

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
