//! Reservations of devices that are added while the appliance runs.

use std::fs;

use appliance_config::identity::reservations_uuid;
use tempfile::TempDir;

use super::lab::{apply, base, file, parsed, with_export};
use crate::appliance::Appliance;
use crate::identities::{Content, FileIdentity};
use crate::state_directory::StateDirectory;

/// The state of an added device is read before hosts reach it; a device that is removed and added
/// again has the state that is stored then.
#[test]
fn added_device_begins_with_its_stored_reservations() {
    let directory = TempDir::new().expect("a directory");
    let state = StateDirectory::at(directory.path().join("state"));
    let path = directory.path().join("volume.img");
    fs::write(&path, vec![0; 1 << 20]).expect("writable");
    let found = FileIdentity::at(&path).expect("it is there").content;
    let Content::Lasting(content) = found else {
        panic!("the content of a file lasts")
    };
    let now = base("10s");
    let mut appliance = Appliance::start(parsed(&now), &state).expect("it starts");
    let stored = state.reservations().expect("a directory");
    let stored = stored.join(reservations_uuid(&content).to_string());
    let with_volume = now.clone() + &with_export("volume", &file(&path, "1MiB"));
    for is_damaged in [false, true, false] {
        match is_damaged {
            true => fs::write(&stored, "damaged").expect("writable"),
            false => drop(fs::remove_file(&stored)),
        }
        apply(&mut appliance, &with_volume);
        let status = appliance.status();
        let mut devices = status.devices.iter();
        let volume = devices.find(|it| it.name == "volume").expect("it is open");
        assert_eq!(volume.reservations_damaged, is_damaged);
        apply(&mut appliance, &now);
        assert_eq!(
            stored.exists(),
            is_damaged,
            "only the test changes the file"
        );
    }
    assert!(appliance.stop_quietly());
}
