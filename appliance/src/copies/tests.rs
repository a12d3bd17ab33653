//! Copies of a whole appliance: those that must not begin, those that end early, and those that
//! complete beside changes of the configuration.

use std::path::Path;
use std::time::{Duration, Instant};

use appliance_config::Config;
use block::{CompletionBatch, Operation, QueueOptions, Request};
use nvme_host_testing::Names;
use nvme_host_testing::tcp::RawClient;
use nvme_spec::Sqe;
use tempfile::TempDir;

use super::*;
use crate::appliance::Appliance;
use crate::event_loop::RealTime;
use crate::observe::changes::Changes;
use crate::observe::events::Events;
use crate::observe::model::{CopyState, CopyStatus, Severity};
use crate::reconciler::ApplyOptions;

const NQN: &str = "nqn.2026-11.org.windlass:copied";
/// Generous limit for every wait of a test, for busy machines.
const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// Two RAM devices and a file of the same size, two others, an exported one, and one of a volume.
fn config(directory: &Path, exported: &str) -> Config {
    let path = |name: &str| directory.join(name).display().to_string();
    let text = format!(
        r#"
[appliance]
memory = "16MiB"
pages = "ordinary"
[control]
http = "off"
socket = "off"
[[device]]
name = "ram"
type = "memory"
size = "8MiB"
[[device]]
name = "other"
type = "memory"
size = "8MiB"
[[device]]
name = "file"
type = "file"
path = "{}"
size = "8MiB"
[[device]]
name = "small"
type = "memory"
size = "1MiB"
[[device]]
name = "large-blocks"
type = "memory"
size = "8MiB"
block_size = 4096
[[device]]
name = "read-only"
type = "file"
path = "{}"
size = "8MiB"
read_only = true
[[device]]
name = "protected"
type = "null"
size = "8MiB"
block_size = 512
read_only = true
[[device]]
name = "volume"
type = "memory"
size = "8MiB"
[[device]]
name = "exported"
type = "memory"
size = "8MiB"
[[device]]
name = "slow"
type = "null"
size = "1024TiB"
block_size = 512
[[device]]
name = "sink"
type = "null"
size = "1024TiB"
block_size = 512
[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "{NQN}"
devices = [{exported}]
listeners = ["loopback"]
allow_any_host = true
[[volume]]
name = "scratch"
device = "volume"
metadata_memory = "4MiB"
[[share]]
name = "data"
volume = "scratch"
allow_any_client = true
[[file_listener]]
name = "nfs"
address = "127.0.0.1:0"
"#,
        path("file.img"),
        path("read-only.img"),
    );
    Config::parse("test", &text).expect("a valid configuration")
}

struct Lab {
    appliance: Appliance,
    directory: TempDir,
}

impl Lab {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let only_read = std::fs::File::create(directory.path().join("read-only.img"));
        only_read
            .and_then(|it| it.set_len(8 * MIB))
            .expect("writable");
        let config = config(directory.path(), "\"exported\"");
        let appliance = Appliance::start(config, &Default::default()).expect("it starts");
        Self {
            appliance,
            directory,
        }
    }

    fn apply(&mut self, wanted: &Config) -> Option<String> {
        let reconciler = self.appliance.reconciler();
        let options = ApplyOptions::default();
        let answer = reconciler.apply(wanted, options, &mut RealTime(|_| {}));
        answer.failure_reason()
    }

    fn start(&self, source: &str, destination: &str) -> Result<u32, CopyRefusal> {
        self.appliance.start_copy(&wanted(source, destination))
    }

    fn copy(&self, number: u32) -> CopyStatus {
        let copies = self.appliance.status().copies.into_iter();
        let mut copies = copies.filter(|it| it.number == number);
        copies.next().expect("it is known")
    }

    /// Waits for the end of a copy.
    fn ended(&mut self, number: u32) -> CopyStatus {
        let began = Instant::now();
        loop {
            self.appliance.poll(Instant::now());
            let copy = self.copy(number);
            if copy.state != CopyState::Running {
                return copy;
            }
            assert!(began.elapsed() < LIMIT, "{copy:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Executes a request beside the reactors.
    fn execute(&mut self, device: &str, operation: Operation, lba: u64, value: u8) -> u8 {
        let arena = Arc::clone(self.appliance.arena());
        let pool = Arena::pool(&arena, 0);
        let name = device.parse().expect("a name");
        let devices = self.appliance.reconciler().devices();
        let (_, device) = devices.get(&name).expect("it is open");
        let options = QueueOptions::new(0, 4, pool.clone());
        let mut queue = device.open_queue(options).expect("a queue");
        let mut data = pool.take(512).expect("memory");
        data.fill(value);
        let request = Request {
            tag: 0,
            operation,
            lba,
            blocks: 1,
            data: Some(data),
        };
        queue.submit(request).expect("it is valid");
        queue.flush();
        let mut batch = CompletionBatch::new();
        while queue.poll(&mut batch) == 0 {}
        let completion = batch.pop().expect("one");
        completion.result.expect("it succeeds");
        completion.data.map_or(0, |data| data[511])
    }

    fn write(&mut self, device: &str, lba: u64, value: u8) {
        self.execute(device, Operation::Write { fua: false }, lba, value);
    }

    fn read(&mut self, device: &str, lba: u64) -> u8 {
        self.execute(device, Operation::Read, lba, 0)
    }
}

fn wanted(source: &str, destination: &str) -> CopyWanted {
    CopyWanted {
        source: source.to_owned(),
        destination: destination.to_owned(),
        ..CopyWanted::default()
    }
}

#[test]
fn copies_that_would_destroy_or_mix_data_are_refused_with_the_remedy() {
    let mut lab = Lab::new();
    lab.write("other", 0, 7);
    for (source, destination, text) in [
        ("none", "other", "device none is not open"),
        ("ram", "", "device  is not open"),
        ("ram", "ram", "the source and the destination"),
        ("ram", "large-blocks", "blocks of 512 and 4096 bytes"),
        (
            "ram",
            "small",
            "device small has 1 MiB (1048576 bytes), and the range ends at 8388608",
        ),
        ("ram", "read-only", "read-only: remove `read_only`"),
        // The device itself could be written.
        ("ram", "protected", "read-only: remove `read_only`"),
        ("ram", "volume", "belongs to a volume"),
        ("ram", "exported", "--overwrite-exported"),
        (
            "exported",
            "ram",
            "accept blocks of different moments with --live",
        ),
        ("volume", "ram", "(a volume)"),
    ] {
        let refused = lab.start(source, destination).expect_err(destination);
        assert!(refused.to_string().contains(text), "{refused}");
    }
    let in_range = |offset, length| CopyWanted {
        offset,
        length: Some(length),
        ..wanted("ram", "other")
    };
    for (offset, length, text) in [
        (0, 0, "the length is not 0"),
        (1, 512, "multiples of 512"),
        (512, 100, "multiples of 512"),
        (8 * MIB, 512, "the range ends at 8389120"),
        (0, 8 * MIB + 512, "the range ends at 8389120"),
        (u64::MAX, 512, "device ram has 8 MiB"),
        (512, u64::MAX, "device ram has 8 MiB"),
    ] {
        let refused = lab.appliance.start_copy(&in_range(offset, length));
        let refused = refused.expect_err("a bad range").to_string();
        assert!(refused.contains(text), "{offset} {length}: {refused}");
    }
    for (source, destination) in [("ram", "other"), ("file", "ram"), ("slow", "sink")] {
        let through = CopyWanted {
            drive_memory: true,
            ..wanted(source, destination)
        };
        let refused = lab.appliance.start_copy(&through).expect_err("no drive");
        let text = format!("neither device {source} nor {destination} is on a drive with a");
        assert!(refused.to_string().starts_with(&text), "{refused}");
        let by_drive = CopyWanted {
            by_drive: true,
            ..wanted(source, destination)
        };
        let refused = lab.appliance.start_copy(&by_drive).expect_err("no drive");
        let text = format!("devices {source} and {destination} are not namespaces of one drive");
        assert!(refused.to_string().starts_with(&text), "{refused}");
    }
    let force = CopyWanted {
        overwrite_exported: true,
        live: true,
        ..wanted("ram", "volume")
    };
    let refused = lab.appliance.start_copy(&force).expect_err("a volume");
    assert!(matches!(refused, CopyRefusal::Volume(_)), "{refused}");
    assert!(lab.appliance.status().copies.is_empty());
    assert_eq!(lab.read("other", 0), 7, "nothing was written");
}

#[test]
fn devices_are_copied_whole_and_in_part() {
    let mut lab = Lab::new();
    let last = 8 * MIB / 512 - 1;
    for lba in [0, 1, 511, 512, 1000, last] {
        lab.write("ram", lba, (lba % 250) as u8 + 1);
    }
    for destination in ["other", "file"] {
        lab.write(destination, 700, 0xee);
        let number = lab.start("ram", destination).expect("it may begin");
        let ended = lab.ended(number);
        assert_eq!((ended.state, ended.error), (CopyState::Complete, None));
        assert_eq!(
            (ended.written_bytes, ended.intact_bytes),
            (8 * MIB, Some(8 * MIB))
        );
        assert_eq!(ended.source_changes, 0);
        for lba in [0, 1, 511, 512, 1000, last] {
            assert_eq!(
                lab.read(destination, lba),
                (lba % 250) as u8 + 1,
                "block {lba}"
            );
        }
        assert_eq!(lab.read(destination, 700), 0);
    }
    // A part, back to the source.
    lab.write("ram", 511, 0xee);
    lab.write("ram", 512, 0xee);
    let part = CopyWanted {
        offset: 512 * 512,
        length: Some(512),
        ..wanted("file", "ram")
    };
    let number = lab.appliance.start_copy(&part).expect("it may begin");
    assert_eq!(lab.ended(number).state, CopyState::Complete);
    assert_eq!(
        (lab.read("ram", 511), lab.read("ram", 512)),
        (0xee, (512 % 250) as u8 + 1)
    );
    assert!(lab.appliance.stop_quietly());
}

#[test]
fn exported_devices_are_copied_on_request_and_changes_are_reported() {
    let mut lab = Lab::new();
    let names = Names {
        host: "nqn.2026-11.org.example:host".to_owned(),
        host_id: [9; 16],
        subsystem: NQN.to_owned(),
    };
    let address = lab.appliance.addresses()[0];
    let connect = || RawClient::connect(address, LIMIT).expect("it listens");
    let (mut admin, mut io) = (connect(), connect());
    let cntlid = admin.open_admin(&names).expect("it may attach");
    io.open_io(&names, cntlid, 1).expect("queue 1 is free");
    let onto = CopyWanted {
        overwrite_exported: true,
        ..wanted("ram", "exported")
    };
    lab.write("ram", 3, 33);
    let number = lab.appliance.start_copy(&onto).expect("it may begin");
    assert_eq!(lab.ended(number).state, CopyState::Complete);
    assert_eq!(lab.read("exported", 3), 33);
    // The reactors have not begun when the host writes, or they have: both is counted.
    let live = CopyWanted {
        live: true,
        ..wanted("exported", "ram")
    };
    let number = lab.appliance.start_copy(&live).expect("it may begin");
    let (cqe, _) = io
        .command(Sqe::write(1, 3, 0, false), &[44; 512], 0)
        .expect("a response");
    assert!(cqe.status().is_success());
    let ended = lab.ended(number);
    assert_eq!(ended.state, CopyState::Complete);
    assert!(ended.source_changes <= 1, "{ended:?}");
    assert!([33, 44].contains(&lab.read("ram", 3)));
}

#[test]
fn running_copy_is_aborted_and_protects_its_devices() {
    let mut lab = Lab::new();
    let mut seen = lab.appliance.observe();
    let events = Events::default();
    let mut changes = Changes::new(&seen);
    let number = lab.start("slow", "sink").expect("it may begin");
    for (source, destination) in [("slow", "sink"), ("sink", "slow"), ("ram", "slow")] {
        let refused = lab.start(source, destination).expect_err("one runs");
        let text = "copy 1 of device slow to sink is running: wait for its end, or abort it with \
                    `windlass copy --abort 1`";
        assert_eq!(refused.to_string(), text, "{source} to {destination}");
    }
    let part = |destination: &str| CopyWanted {
        length: Some(512),
        ..wanted("slow", destination)
    };
    let second = lab.appliance.start_copy(&part("ram"));
    let second = second.expect("both only read the device");
    assert_eq!(lab.ended(second).state, CopyState::Complete);

    let directory = lab.directory.path().to_owned();
    let before = config(&directory, "\"exported\"");
    for device in ["slow", "sink"] {
        let mut without = before.clone();
        without.devices.retain(|it| it.name.as_str() != device);
        let refused = lab.apply(&without).expect("it is not applied");
        assert!(
            refused.contains("copy 1 of device slow to sink is running"),
            "{refused}"
        );
        assert!(lab.appliance.has_device(&device.parse().expect("a name")));
    }
    let refused = lab.apply(&config(&directory, "\"exported\", \"sink\""));
    let refused = refused.expect("it is not applied");
    assert!(refused.contains("windlass copy --abort 1"), "{refused}");
    assert_eq!(
        lab.apply(&config(&directory, "\"exported\", \"slow\"")),
        None
    );
    assert_eq!(lab.apply(&before), None);
    let refused = lab
        .appliance
        .check_upgrade()
        .expect_err("it would end the copy");
    assert!(
        refused
            .to_string()
            .contains("copy 1 of device slow to sink"),
        "{refused}"
    );

    let copies = Arc::clone(lab.appliance.copies());
    assert_eq!(copies.abort(99), Err(AbortRefusal::Unknown(99)));
    assert_eq!(copies.abort(second), Err(AbortRefusal::Ended(second)));
    copies.abort(number).expect("it runs");
    let ended = lab.ended(number);
    assert_eq!(ended.state, CopyState::Aborted);
    let intact = ended.intact_bytes.expect("it has ended");
    assert!(
        intact < ended.bytes && intact <= ended.written_bytes,
        "{ended:?}"
    );
    let error = format!("it was aborted: continue with --offset {intact}");
    assert_eq!(ended.error, Some(error));

    seen = lab.appliance.observe();
    changes.compare(&seen, &events);
    changes.compare(&seen, &events);
    let reported = events.after(0, None);
    let severities: Vec<_> = reported
        .iter()
        .map(|it| (it.severity, &*it.subject))
        .collect();
    assert_eq!(
        severities,
        [(Severity::Warning, "1"), (Severity::Info, "2")]
    );
    // It can be continued.
    let rest = CopyWanted {
        offset: ended.bytes - MIB,
        ..wanted("slow", "sink")
    };
    let number = lab.appliance.start_copy(&rest).expect("it may begin");
    assert_eq!(lab.ended(number).state, CopyState::Complete);
}

#[test]
fn stop_of_the_appliance_aborts_copies() {
    let lab = Lab::new();
    lab.start("slow", "sink").expect("it may begin");
    let copies = Arc::clone(lab.appliance.copies());
    assert!(lab.appliance.stop_quietly(), "everything came to rest");
    let samples = copies.samples();
    assert!(
        matches!(
            samples[0].end,
            Some(CopyEnd::Stopped {
                cause: CopyStop::ReactorStops,
                ..
            })
        ),
        "{samples:?}"
    );
    let error = samples[0].error().expect("it is not complete");
    assert!(
        error.starts_with("the appliance stopped: continue with --offset "),
        "{error}"
    );
}

#[test]
fn number_of_copies_is_limited_and_old_ones_are_forgotten() {
    let mut lab = Lab::new();
    for _ in 0..REMEMBERED_MAX + 3 {
        let part = CopyWanted {
            length: Some(512),
            ..wanted("ram", "other")
        };
        let number = lab.appliance.start_copy(&part).expect("it may begin");
        lab.ended(number);
        lab.appliance.poll(Instant::now());
    }
    let numbers: Vec<_> = lab
        .appliance
        .status()
        .copies
        .iter()
        .map(|it| it.number)
        .collect();
    assert_eq!(numbers.len(), REMEMBERED_MAX);
    assert_eq!(numbers.last(), Some(&(REMEMBERED_MAX as u32 + 3)));
}

#[test]
fn failures_name_the_range_and_how_to_continue() {
    let sample = |step, error| CopySample {
        number: 1,
        source: "old".parse().expect("a name"),
        destination: "new".parse().expect("a name"),
        offset: 4096,
        bytes: 1 << 20,
        block_bytes: 512,
        written_bytes: 0,
        drive_memory_bytes: 0,
        drive_bytes: 0,
        drive_failures: 0,
        drive_memory_failures: 0,
        memory_waits: 0,
        began_unix_ms: 0,
        took: Duration::ZERO,
        changes_before: 0,
        changes_during: None,
        end: Some(CopyEnd::Stopped {
            written_blocks: 16,
            cause: CopyStop::Failed(CopyFailure {
                step,
                first_block: 24,
                blocks: 8,
                error,
            }),
        }),
    };
    let error = block::CopyError::Device(block::DeviceError::MediaRead);
    assert_eq!(
        sample(CopyStep::Read, error).error().expect("it failed"),
        "reading 4096 bytes at 12288 of device old failed: the medium could not be read: repair it, \
         and continue with --offset 12288"
    );
    assert_eq!(
        sample(CopyStep::Write, block::CopyError::Overdue)
            .error()
            .expect("it failed"),
        "writing 4096 bytes at 12288 of device new failed: the device did not complete a request \
         within 30 s: repair it, and continue with --offset 12288"
    );
    assert_eq!(
        sample(CopyStep::Copy, error).error().expect("it failed"),
        "the drive's own copy of 4096 bytes at 12288 of device new failed: the medium could not be read: \
         repair it, and continue with --offset 12288"
    );
    let damaged = block::CopyError::Device(block::DeviceError::Damaged);
    let text = sample(CopyStep::Flush, damaged).error().expect("it failed");
    assert!(text.starts_with("device new was not flushed: "), "{text}");
}
