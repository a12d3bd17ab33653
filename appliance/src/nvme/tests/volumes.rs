//! Volumes on drives that fail, lose what is in their caches, are removed and return.

use std::sync::Arc;
use std::time::{Duration, Instant};

use appliance_config::{Backing, Config};
use files_client_testing::{Connection, Slot, at_file, data};
use files_spec::Status;
use files_spec::operations::{CommitArgs, Operation, OperationResult, Outcome};
use files_spec::types::{Stable, Verifier};
use nvme_driver_testing::{
    EmulatedController, EmulatedNamespace, EmulatedOptions, Fault, FaultMatch, FaultRule, When,
};
use nvme_spec::command::IoOpcode;

use super::{A, B, BLOCK_BYTES, LIMIT, NQN, SHORT, Slot as DriveSlot, Slots};
use crate::appliance::{Appliance, Environment};
use crate::event_loop::RealTime;
use crate::files::own_queue;
use crate::nvme::{Bus, LoneDrive};
use crate::volumes;

/// Blocks of a drive: 16 MiB.
const BLOCKS: u64 = 32_768;

/// A volume on drive A, and a share of a volume in memory beside it.
fn configuration() -> Config {
    let text = format!(
        r#"
[appliance]
cores = "{cores}"
memory = "32MiB"
pages = "ordinary"
[control]
socket = "off"
[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "{NQN}"
devices = ["nothing"]
listeners = ["loopback"]
allow_any_host = true
[[device]]
name = "nothing"
type = "null"
size = "1MiB"
[[device]]
name = "drive"
type = "nvme"
pci = "01:00.0"
{SHORT}
[[device]]
name = "ram"
type = "memory"
size = "4MiB"
[[volume]]
name = "durable"
device = "drive"
metadata_memory = "1MiB"
[[volume]]
name = "scratch"
device = "ram"
metadata_memory = "1MiB"
[[share]]
name = "data"
volume = "durable"
allow_any_client = true
squash = "none"
[[share]]
name = "other"
volume = "scratch"
allow_any_client = true
squash = "none"
[[file_listener]]
name = "nfs"
address = "127.0.0.1:0"
"#,
        cores = super::cores(1)
    );
    Config::parse("test", &text).expect("a right configuration")
}

/// Formats a volume on a drive that no appliance has open.
fn format(bus: &Slots, arena: &Arc<hugemem::Arena>, config: &Config) {
    let volume = &config.files.volumes[0];
    let device = config.device(&volume.device).expect("it is there");
    let Backing::Nvme(settings) = device.backing else {
        panic!("a drive");
    };
    let opened = LoneDrive::open(bus, arena, device, settings);
    let (_drive, device) = opened.expect("it opens");
    let mut queue = own_queue(volume, &*device, &arena.pool(1)).expect("a queue");
    volumes::format(volume, &mut queue, false).expect("it is formatted");
    let again = volumes::format(volume, &mut queue, false).expect_err("it has a volume");
    let text = crate::error::with_causes(&again);
    assert!(text.contains("the device has a volume"), "{text}");
    volumes::check(volume, &mut queue).expect("it is consistent");
}

fn started(formats: bool) -> (Result<Appliance, crate::error::Failure>, Slots) {
    let slots = Slots::default();
    let (bus, config) = (slots.clone(), configuration());
    let of_format = config.clone();
    let make = move |arena: &Arc<hugemem::Arena>, _| -> Box<dyn Bus> {
        for (address, serial) in [(A, "DRIVE-A"), (B, "DRIVE-B")] {
            let options = EmulatedOptions {
                serial: serial.to_owned(),
                namespaces: vec![EmulatedNamespace::new(1, BLOCK_BYTES as u32, BLOCKS)],
                ..EmulatedOptions::default()
            };
            let drive = EmulatedController::new(arena.region(), options).expect("a small drive");
            let slot = DriveSlot {
                drive: Arc::new(drive),
                is_there: true,
                opened: 0,
            };
            let address = address.parse().expect("an address");
            let mut slots = bus.0.lock().expect("no panic holds it");
            slots.insert(address, slot);
        }
        if formats {
            format(&bus, arena, &of_format);
        }
        Box::new(bus)
    };
    let environment = Environment {
        bus: Box::new(make),
        ..Environment::default()
    };
    let appliance = Appliance::start_with(config, &Default::default(), environment);
    (appliance, slots)
}

/// An appliance with a client that has a file open.
struct Stage {
    appliance: Appliance,
    slots: Slots,
    connection: Connection,
    slot: Slot,
}

impl Stage {
    fn new() -> Self {
        let (appliance, slots) = started(true);
        let appliance = appliance.expect("it starts");
        let mut connection = Connection::new(appliance.files_addresses()[0]);
        let slot = Slot::new(&mut connection, b"client");
        Self {
            appliance,
            slots,
            connection,
            slot,
        }
    }

    fn write(&mut self, stable: Stable, offset: u64, bytes: &[u8]) -> (Status, Verifier) {
        let write = self.slot.write_as(stable, offset, bytes);
        let answer = self.slot.call(&mut self.connection, &write);
        match answer.last() {
            OperationResult::Write(Outcome::Ok(ok)) => (Status::OK, ok.writeverf),
            _ => (answer.parts().0, [0; 8]),
        }
    }

    fn commit(&mut self) -> (Status, Verifier) {
        let commit = Operation::Commit(CommitArgs {
            offset: 0,
            count: 0,
        });
        let answer = self.slot.call(&mut self.connection, &at_file(commit));
        match answer.last() {
            OperationResult::Commit(Outcome::Ok(verifier)) => (Status::OK, verifier),
            _ => (answer.parts().0, [0; 8]),
        }
    }

    fn read(&mut self, offset: u64, count: u32) -> Result<Vec<u8>, Status> {
        let read = self.slot.read(offset, count);
        let answer = self.slot.call(&mut self.connection, &read);
        match answer.parts().0 {
            Status::OK => Ok(data(&answer).to_vec()),
            status => Err(status),
        }
    }

    /// Has the control thread do its work until this holds.
    #[track_caller]
    fn poll_until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < LIMIT, "{what} did not come true");
            self.appliance.poll(Instant::now());
            let reconciler = self.appliance.reconciler();
            reconciler.restore(&mut RealTime(|_| {}));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn remove(&mut self) {
        self.slots.with(A, |slot| slot.is_there = false);
        self.slots.control(A).remove();
    }

    fn reinsert(&mut self) {
        self.slots.control(A).reinsert();
        self.slots.with(A, |slot| slot.is_there = true);
    }

    fn inject(&self, opcode: IoOpcode, when: When, fault: Fault) {
        let matching = FaultMatch::io().with_opcode(opcode.0);
        let rule = FaultRule::new(matching, when, fault);
        self.slots.control(A).inject(rule);
    }
}

#[test]
fn volume_without_a_format_prevents_the_start() {
    let (appliance, _slots) = started(false);
    let error = appliance.err().expect("it does not start");
    let text = crate::error::with_causes(error.as_ref());
    assert!(
        text.contains("make one with `windlass volume format durable`"),
        "{text}"
    );
}

#[test]
fn volume_waits_for_a_removed_drive_and_keeps_what_is_durable() {
    let mut stage = Stage::new();
    let synced = [1; 20_000];
    let (status, before) = stage.write(Stable::FILE_SYNC, 0, &synced);
    assert_eq!(status, Status::OK);
    for round in 0..3 {
        let unsynced = [2; 4096];
        assert_eq!(
            stage.write(Stable::UNSTABLE, 40_960, &unsynced).0,
            Status::OK
        );
        stage.remove();
        stage.poll_until("the loss", |it| it.read(0, 10) == Err(Status::DELAY));
        let volume = stage.appliance.status().files.expect("files").volumes[0].clone();
        assert!(volume.device_gone && volume.served && !volume.read_only);
        assert_eq!(stage.write(Stable::UNSTABLE, 0, b"x").0, Status::DELAY);
        assert_eq!(stage.commit().0, Status::DELAY);
        // Another volume is served meanwhile.
        let other = [
            Operation::PutRootFh(()),
            Operation::Lookup(files_client_testing::name("other")),
            files_client_testing::create_file("g"),
        ];
        let answer = stage.slot.call(&mut stage.connection, &other);
        assert_eq!(answer.parts().0, Status::OK);
        stage.reinsert();
        stage.poll_until("the return", |it| it.read(0, 10).is_ok());
        assert_eq!(stage.read(0, 20_000), Ok(synced.to_vec()), "round {round}");
        let (status, after) = stage.commit();
        assert_eq!(status, Status::OK);
        assert_ne!(
            after, before,
            "the client writes again what it has not synced"
        );
        let found = stage.read(40_960, 4096);
        assert!(
            found == Ok(Vec::new()) || found == Ok(unsynced.to_vec()),
            "nothing or all of it"
        );
        let (status, verifier) = stage.write(Stable::UNSTABLE, 40_960, &unsynced);
        assert_eq!((status, verifier), (Status::OK, after));
        assert_eq!(stage.commit(), (Status::OK, after));
        let volume = stage.appliance.status().files.expect("files").volumes[0].clone();
        assert!(!volume.device_gone && !volume.read_only);
    }
    assert!(stage.appliance.stop_quietly());
}

/// A drive that loses its power at any moment of a load never loses what was acknowledged.
#[test]
fn acknowledged_writes_survive_removals_under_load() {
    let mut stage = Stage::new();
    let content = |number: u64| vec![(number % 251) as u8; 3000];
    let mut acknowledged = 0;
    for round in 0..4_u64 {
        // The write or the flush with this number finds no drive.
        let opcode = if round % 2 == 0 {
            IoOpcode::WRITE
        } else {
            IoOpcode::FLUSH
        };
        stage.inject(opcode, When::Nth(3 + 5 * round), Fault::Remove);
        let mut is_removed = false;
        for _ in 0..400 {
            let bytes = content(acknowledged);
            match stage
                .write(Stable::FILE_SYNC, acknowledged * 3000, &bytes)
                .0
            {
                Status::OK => acknowledged += 1,
                Status::DELAY => {
                    is_removed = true;
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(is_removed, "round {round}");
        stage.slots.with(A, |slot| slot.is_there = false);
        stage.poll_until("the loss", |it| it.read(0, 10) == Err(Status::DELAY));
        stage.slots.control(A).disarm_all();
        stage.reinsert();
        stage.poll_until("the return", |it| it.read(0, 1).is_ok());
        for number in 0..acknowledged {
            let found = stage.read(number * 3000, 3000);
            assert_eq!(found, Ok(content(number)), "{number} of {acknowledged}");
        }
    }
    assert!(stage.appliance.stop_quietly());
}

/// What a reset interrupts is repeated: clients notice nothing.
#[test]
fn resets_of_the_drive_are_not_noticed_by_clients() {
    for fault in [
        Fault::Fatal,
        Fault::Hang { abortable: true },
        Fault::DropCompletion,
    ] {
        for opcode in [IoOpcode::WRITE, IoOpcode::FLUSH, IoOpcode::READ] {
            let mut stage = Stage::new();
            stage.inject(opcode, When::Nth(2), fault);
            for number in 0..8 {
                let bytes = vec![number; 5000];
                let at = u64::from(number) * 5000;
                let (status, _) = stage.write(Stable::FILE_SYNC, at, &bytes);
                assert_eq!(status, Status::OK, "{fault:?} {opcode:?}");
                assert_eq!(stage.read(at, 5000), Ok(bytes), "{fault:?} {opcode:?}");
            }
            let volume = stage.appliance.status().files.expect("files").volumes[0].clone();
            assert!(!volume.device_gone && !volume.read_only);
            assert!(stage.appliance.stop_quietly());
        }
    }
}

/// A log that cannot be written ends the changes of the volume, and no others.
#[test]
fn failed_flush_makes_the_volume_read_only() {
    let mut stage = Stage::new();
    assert_eq!(stage.write(Stable::FILE_SYNC, 0, &[1; 100]).0, Status::OK);
    let error = Fault::Status(nvme_spec::Status::INTERNAL_ERROR);
    stage.inject(IoOpcode::FLUSH, When::Nth(1), error);
    assert_eq!(stage.write(Stable::FILE_SYNC, 0, &[2; 100]).0, Status::IO);
    assert_eq!(stage.write(Stable::FILE_SYNC, 0, &[2; 100]).0, Status::IO);
    assert_eq!(stage.read(0, 100).map(|it| it.len()), Ok(100));
    stage.poll_until("the failure", |it| {
        it.appliance.status().files.expect("files").volumes[0].read_only
    });
    assert!(stage.appliance.stop_quietly());
}

/// A medium that cannot be read or written is an error of the client's request only.
#[test]
fn errors_of_the_medium_are_errors_of_the_request() {
    let mut stage = Stage::new();
    assert_eq!(stage.write(Stable::FILE_SYNC, 0, &[1; 8192]).0, Status::OK);
    let error = Fault::Status(nvme_spec::Status::UNRECOVERED_READ_ERROR);
    stage.inject(IoOpcode::READ, When::Nth(1), error);
    assert_eq!(stage.read(0, 8192), Err(Status::IO));
    assert_eq!(stage.read(0, 8192), Ok(vec![1; 8192]));
    assert!(stage.appliance.stop_quietly());
}

/// The configuration without the volume on the drive.
fn without_drive() -> Config {
    let mut config = configuration();
    config.files.volumes.remove(0);
    config.files.shares.remove(0);
    let drive = "drive".parse().expect("a name");
    config.devices.retain(|it| it.name != drive);
    config
}

fn try_apply(appliance: &mut Appliance, wanted: &Config) -> crate::observe::model::ApplyAnswer {
    let options = crate::reconciler::ApplyOptions::default();
    let reconciler = appliance.reconciler();
    reconciler.apply(wanted, options, &mut RealTime(|_| {}))
}

/// A volume on a drive is added, used, closed and added again while the reactors run. A drive without a
/// format changes nothing, also where a volume in memory had to be closed before.
#[test]
fn volumes_on_drives_are_added_and_removed_live() {
    let mut stage = Stage::new();
    assert_eq!(stage.write(Stable::FILE_SYNC, 0, b"kept").0, Status::OK);
    for _ in 0..3 {
        let removed = try_apply(&mut stage.appliance, &without_drive());
        assert!(removed.applied, "{removed:#?}");
        assert_eq!(stage.read(0, 4), Err(Status::NOENT));
        let added = try_apply(&mut stage.appliance, &configuration());
        assert!(added.applied, "{added:#?}");
        stage.slot.open(&mut stage.connection).expect("it is there");
        assert_eq!(stage.read(0, 4), Ok(b"kept".to_vec()));
        assert_eq!(stage.write(Stable::FILE_SYNC, 0, b"kept").0, Status::OK);
    }
    // Drive B has no volume. The volume in memory is closed before that is known.
    let create = [
        Operation::PutRootFh(()),
        Operation::Lookup(files_client_testing::name("other")),
        files_client_testing::create_file("g"),
    ];
    let answer = stage.slot.call(&mut stage.connection, &create);
    assert_eq!(answer.parts().0, Status::OK);
    let mut wanted = configuration();
    let mut device = wanted.devices[1].clone();
    device.name = "b".parse().expect("a name");
    if let Backing::Nvme(settings) = &mut device.backing {
        settings.pci = "02:00.0".parse().expect("an address");
    }
    wanted.devices.push(device);
    wanted.files.volumes[1].name = "renamed".parse().expect("a name");
    wanted.files.shares[1].volume = "renamed".parse().expect("a name");
    let mut volume = wanted.files.volumes[0].clone();
    volume.name = "b".parse().expect("a name");
    volume.device = "b".parse().expect("a name");
    wanted.files.volumes.push(volume);
    let refused = try_apply(&mut stage.appliance, &wanted);
    let reason = refused.failure_reason().expect("a reason");
    assert!(
        !refused.applied && reason.contains("windlass volume format b"),
        "{refused:#?}"
    );
    let lookup = [
        Operation::PutRootFh(()),
        Operation::Lookup(files_client_testing::name("other")),
        Operation::Lookup(files_client_testing::name("g")),
    ];
    let answer = stage.slot.call(&mut stage.connection, &lookup);
    assert_eq!(answer.parts().0, Status::OK, "it is as it was");
    assert!(stage.appliance.stop_quietly());
}
