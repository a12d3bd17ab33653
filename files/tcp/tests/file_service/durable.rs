//! Durable volumes: devices without a volume or with a damaged one, devices that fail, and starts
//! after an end.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use block::{Device, DeviceError};
use block_testing::{Effect, FaultDevice, FaultPlan, FaultRule, OperationKinds, When};
use files_server::{PartOptions, VolumeIndex};
use files_spec::Status;
use files_spec::attributes::Attributes;
use files_spec::operations::{
    CommitArgs, CreateArgs, Operation, OperationResult, Outcome, WriteOk,
};
use files_spec::types::{CreateType, Stable};
use files_store::{FormatOptions, OpenError, Uuid};
use files_tcp::FileMessage;
use files_tcp::stored::{self, StoredError};
use hugemem::Pool;

use crate::reactor::{DEVICE_BYTES, LOOPBACK, Reactor, memory_device};
use files_client_testing::{Answer, Connection, LIMIT, Slot, at_file, data, name};

const LOG_BYTES: u64 = 512 << 10;
const BLOCK: usize = 4096;

fn pool() -> Pool {
    block_testing::conformance::arena().pool(0)
}

fn options() -> FormatOptions {
    FormatOptions {
        uuid: Uuid([8; 16]),
        salt: 5,
        device_bytes: DEVICE_BYTES,
        memory_bytes: 1 << 20,
        log_bytes: LOG_BYTES,
    }
}

fn formatted() -> Arc<dyn Device> {
    let device = memory_device();
    stored::format(&mut own(&*device, &pool()), &options()).expect("formatted");
    device
}

/// The device, with rules that are not armed.
fn faulty(inner: Arc<dyn Device>, rules: Vec<FaultRule>) -> Arc<FaultDevice> {
    let count = rules.len();
    let device = FaultDevice::new(inner, FaultPlan { rules, seed: 1 });
    for rule in 0..count {
        device.control().arm(rule, false);
    }
    Arc::new(device)
}

fn failing(operations: OperationKinds) -> FaultRule {
    FaultRule::new(
        operations,
        When::Always,
        Effect::Fail(DeviceError::MediaWrite),
    )
}

fn started(device: &Arc<dyn Device>, instance: u64) -> Reactor {
    let volume = stored::open(&mut own(&**device, &pool())).expect("a volume");
    Reactor::start_on(LOOPBACK, Arc::clone(device), volume, instance)
}

fn make(text: &'static str) -> [Operation<'static>; 3] {
    [
        Operation::PutRootFh(()),
        Operation::Lookup(name("data")),
        Operation::Create(CreateArgs {
            objtype: CreateType::Directory,
            objname: name(text),
            createattrs: Attributes::default(),
        }),
    ]
}

fn commit() -> [Operation<'static>; 4] {
    at_file(Operation::Commit(CommitArgs {
        offset: 0,
        count: 0,
    }))
}

fn written(answer: &Answer) -> WriteOk {
    match answer.last() {
        OperationResult::Write(Outcome::Ok(ok)) => ok,
        result => panic!("{result:?}"),
    }
}

#[test]
fn a_device_without_an_intact_volume_is_not_opened() {
    let blank = memory_device();
    let error = stored::open(&mut own(&*blank, &pool())).expect_err("blank");
    assert!(
        matches!(error, StoredError::Volume(OpenError::NoVolume)),
        "{error}"
    );
    let small = FormatOptions {
        device_bytes: 1 << 20,
        ..options()
    };
    let error = stored::format(&mut own(&*blank, &pool()), &small).expect_err("too small");
    assert!(
        matches!(error, StoredError::Volume(OpenError::NoRoom { .. })),
        "{error}"
    );
    let larger = FormatOptions {
        device_bytes: DEVICE_BYTES + BLOCK as u64,
        ..options()
    };
    stored::format(&mut own(&*blank, &pool()), &larger).expect("the end is not written");
    let error = stored::read(&mut own(&*blank, &pool())).expect_err("a part is missing");
    let is_short = matches!(error, StoredError::Volume(OpenError::DeviceTooSmall { .. }));
    assert!(is_short, "{error}");
}

#[test]
fn a_device_that_fails_is_neither_formatted_nor_opened() {
    for (operations, when) in [
        (OperationKinds::WRITE, When::Always),
        (OperationKinds::FLUSH, When::Always),
        (OperationKinds::WRITE, When::Nth(3)),
        (OperationKinds::FLUSH, When::Nth(2)),
        (OperationKinds::READ, When::Nth(1)),
    ] {
        let device = faulty(
            formatted(),
            vec![FaultRule {
                when,
                ..failing(operations)
            }],
        );
        device.control().arm(0, true);
        if operations == OperationKinds::READ {
            stored::is_blank(&mut own(&*device, &pool())).expect_err("reading fails");
            continue;
        }
        let error = stored::format(&mut own(&*device, &pool()), &options()).expect_err("fails");
        assert!(
            matches!(error, StoredError::Volume(OpenError::Io { .. })),
            "{error}"
        );
        device.control().arm(0, false);
        // Half a format is no volume.
        let opened = stored::open(&mut own(&*device, &pool()));
        if when != When::Always || operations != OperationKinds::WRITE {
            let error = opened.expect_err("interrupted");
            assert!(matches!(error, StoredError::Volume(_)), "{error}");
        }
    }
    for operations in [OperationKinds::WRITE, OperationKinds::FLUSH] {
        let device = faulty(formatted(), vec![failing(operations)]);
        device.control().arm(0, true);
        stored::read(&mut own(&*device, &pool())).expect("reading writes nothing");
        let error = stored::open(&mut own(&*device, &pool())).expect_err("it cannot be used");
        assert!(matches!(error, StoredError::NotDurable), "{error}");
    }
}

#[test]
fn a_blank_device_and_a_volume_are_recognized() {
    let device = memory_device();
    assert!(stored::is_blank(&mut own(&*device, &pool())).expect("readable"));
    stored::identify(&mut own(&*device, &pool())).expect_err("no volume");
    stored::format(&mut own(&*device, &pool()), &options()).expect("formatted");
    assert!(!stored::is_blank(&mut own(&*device, &pool())).expect("readable"));
    let found = stored::identify(&mut own(&*device, &pool())).expect("a volume");
    assert_eq!((found.uuid, found.memory_bytes), (Uuid([8; 16]), 1 << 20));
    let usage = stored::read(&mut own(&*device, &pool()))
        .expect("a volume")
        .usage();
    assert_eq!((usage.inodes, usage.memory_bytes_max), (1, 1 << 20));
    assert_eq!(usage.free_bytes, usage.data_bytes);
}

/// RFC 8881 §18.32: the verifier changes with each start, so that clients send unstable data again.
#[test]
fn what_was_acknowledged_as_stable_is_there_after_a_start() {
    let device = formatted();
    let reactor = started(&device, 1);
    let mut connection = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut connection, b"a");
    let long = vec![7; 300_000];
    let first = slot.write_as(Stable::FILE_SYNC, 0, &long);
    let answer = slot.call(&mut connection, &first);
    assert_eq!(written(&answer).committed, Stable::FILE_SYNC);
    let second = slot.write(300_000, b"unstable");
    let answer = slot.call(&mut connection, &second);
    let verifier = written(&answer).writeverf;
    assert_eq!(written(&answer).committed, Stable::UNSTABLE);
    slot.call(&mut connection, &commit()).assert_ok();
    slot.call(&mut connection, &make("d")).assert_ok();
    drop((connection, reactor));
    let opening = stored::read(&mut own(&*device, &pool())).expect("a volume");
    assert_eq!(opening.problems(), [""; 0]);
    let reactor = started(&device, 2);
    let mut connection = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut connection, b"a");
    let read = slot.read(0, 400_000);
    let answer = slot.call(&mut connection, &read);
    assert_eq!(data(&answer), [&long[..], b"unstable"].concat());
    let again = slot.call(&mut connection, &make("d"));
    assert_eq!(again.parts().0, Status::EXIST);
    let third = slot.write(0, b"x");
    let answer = slot.call(&mut connection, &third);
    assert_ne!(written(&answer).writeverf, verifier);
}

/// A sync or a write of the log that fails is never reported as stable, and nothing is afterwards.
#[test]
fn a_log_that_fails_is_reported_from_then_on() {
    let cases = [
        (OperationKinds::FLUSH, false),
        (OperationKinds::WRITE, false),
        (OperationKinds::FLUSH, true),
    ];
    for (operations, is_commit) in cases {
        let device = faulty(formatted(), vec![failing(operations)]);
        let control = device.control();
        let device: Arc<dyn Device> = device;
        let reactor = started(&device, 1);
        let mut connection = Connection::new(reactor.address);
        let mut slot = Slot::new(&mut connection, b"a");
        let stable = slot.write_as(Stable::FILE_SYNC, 0, b"before");
        slot.call(&mut connection, &stable).assert_ok();
        assert_eq!(reactor.levels.has_failed.get(), 0);
        control.arm(0, true);
        let failed = match is_commit {
            true => {
                let unstable = slot.write(6, b"unstable");
                slot.call(&mut connection, &unstable).assert_ok();
                slot.call(&mut connection, &commit())
            }
            false => slot.call(&mut connection, &make("d")),
        };
        assert_eq!(failed.parts().0, Status::IO, "{operations:?} {is_commit}");
        // The device works again, but what it has is not known.
        control.arm(0, false);
        for operations in [&make("e")[..], &make("g")] {
            let answer = slot.call(&mut connection, operations);
            assert_eq!(answer.parts().0, Status::IO);
        }
        let read = slot.read(0, 6);
        let answer = slot.call(&mut connection, &read);
        assert_eq!(data(&answer), b"before");
        let began = Instant::now();
        // Levels are published once in a second.
        while reactor.levels.has_failed.get() == 0 {
            assert!(began.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(10));
        }
        drop((connection, reactor));
        let opening = stored::read(&mut own(&*device, &pool())).expect("a volume");
        assert_eq!(opening.problems(), [""; 0]);
    }
}

/// Data that cannot be written are not part of the file, and the volume works on.
#[test]
fn a_write_of_data_that_fails_is_reported_once() {
    let device = faulty(formatted(), vec![failing(OperationKinds::WRITE)]);
    let control = device.control();
    let device: Arc<dyn Device> = device;
    let reactor = started(&device, 1);
    let mut connection = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut connection, b"a");
    control.arm(0, true);
    let unstable = slot.write(0, b"lost");
    let answer = slot.call(&mut connection, &unstable);
    assert_eq!(answer.parts().0, Status::IO);
    control.arm(0, false);
    slot.call(&mut connection, &commit()).assert_ok();
    let read = slot.read(0, 100);
    let answer = slot.call(&mut connection, &read);
    assert_eq!(data(&answer), b"");
    slot.call(&mut connection, &make("d")).assert_ok();
}

/// The log is smaller than what passes through it, so that checkpoints are written under load.
#[test]
fn many_changes_pass_through_a_small_log() {
    let device = formatted();
    let reactor = started(&device, 1);
    let mut connection = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut connection, b"a");
    let (rounds, width) = (40_u64, 32_u32);
    let sequence = slot.sequence;
    for round in 0..rounds {
        let bytes = vec![round as u8 + 1; 700];
        for slotid in 0..width {
            let mut other = slot.other(slotid);
            other.sequence = round as u32 + if slotid == 0 { sequence } else { 0 };
            let stable = [Stable::UNSTABLE, Stable::FILE_SYNC][(slotid % 2) as usize];
            let operations = slot.write_as(stable, u64::from(slotid) * 5000, &bytes);
            let record = other.record(&mut connection, &operations, false);
            connection.send(&record);
        }
        for _ in 0..width {
            connection.receive().assert_ok();
        }
    }
    slot.sequence = sequence + rounds as u32;
    slot.call(&mut connection, &commit()).assert_ok();
    drop((connection, reactor));
    let reactor = started(&device, 2);
    let mut connection = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut connection, b"a");
    for slotid in 0..width {
        let read = slot.read(u64::from(slotid) * 5000, 700);
        let answer = slot.call(&mut connection, &read);
        assert_eq!(data(&answer), vec![rounds as u8; 700]);
    }
}

#[test]
fn what_waits_for_the_log_of_a_removed_device_is_to_be_repeated() {
    let device = formatted();
    let reactor = started(&device, 1);
    let mut connection = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut connection, b"a");
    reactor.remove_device();
    let mut status = Status::OK;
    for text in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        status = slot.call(&mut connection, &make(text)).parts().0;
        if status != Status::OK {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(status, Status::DELAY, "the device may return");
}

/// A queue of a device for the functions of `stored`.
fn own(device: &dyn block::Device, pool: &hugemem::Pool) -> stored::OwnQueue {
    stored::OwnQueue::new(device, pool).expect("a queue")
}

fn part(directory: &str) -> PartOptions {
    PartOptions {
        volume: VolumeIndex(0),
        directory: Some(directory.to_owned()),
        files_max: None,
        bytes_max: None,
    }
}

fn directories(device: &dyn Device) -> Vec<String> {
    let opening = stored::read(&mut own(device, &pool())).expect("a volume");
    let volume = opening.start();
    let entries = volume.entries(volume.root(), 0).expect("the root");
    entries
        .map(|it| String::from_utf8_lossy(it.name).into_owned())
        .collect()
}

#[test]
fn directories_of_shares_are_durable_before_the_start() {
    let device = formatted();
    let mut volumes = [stored::open(&mut own(&*device, &pool())).expect("a volume")];
    let now = files_store::Time::default();
    let mut prepare = |device: &dyn Device, directory| {
        let disk_of = |_| Ok(own(device, &pool()));
        stored::prepare_parts(&[part(directory)], &mut volumes, now, disk_of)
    };
    let made = prepare(&*device, "a").expect("a directory");
    assert_eq!(directories(&*device), ["a"]);
    assert_eq!(prepare(&*device, "a").expect("it is there"), made);
    let (index, error) = prepare(&*device, &"n".repeat(256)).expect_err("too long");
    assert!(matches!((index, error), (0, StoredError::Part(_))));
    for operations in [OperationKinds::WRITE, OperationKinds::FLUSH] {
        let device = faulty(formatted(), vec![failing(operations)]);
        let mut volumes = [stored::open(&mut own(&*device, &pool())).expect("a volume")];
        device.control().arm(0, true);
        let disk_of = |_| Ok(own(&*device, &pool()));
        let failed = stored::prepare_parts(&[part("a")], &mut volumes, now, disk_of);
        let (index, error) = failed.expect_err("not durable");
        assert!(
            matches!((index, &error), (0, StoredError::NotDurable)),
            "{error}"
        );
    }
}

#[test]
fn directories_of_shares_are_durable_before_an_operator_shares_them() {
    let held = FaultRule::new(OperationKinds::FLUSH, When::Always, Effect::Hold);
    let device = faulty(formatted(), vec![held, failing(OperationKinds::FLUSH)]);
    let control = device.control();
    let device: Arc<dyn Device> = device;
    let mut reactor = started(&device, 1);
    let mut prepare = |directory| {
        let (reply, answer) = mpsc::channel();
        let parts = vec![part(directory)];
        let sent = reactor
            .messages
            .send(FileMessage::PrepareParts { parts, reply });
        sent.expect("there is room");
        answer
    };
    control.arm(0, true);
    let answer = prepare("a");
    let waited = answer.recv_timeout(Duration::from_millis(200));
    assert_eq!(waited, Err(mpsc::RecvTimeoutError::Timeout));
    control.arm(0, false);
    control.release();
    let made = answer.recv_timeout(LIMIT).expect("an answer");
    assert_eq!(made.expect("a directory").len(), 1);
    assert_eq!(directories(&*device), ["a"]);
    control.arm(1, true);
    let answer = prepare("b").recv_timeout(LIMIT).expect("an answer");
    assert_eq!(answer, Err((0, files_store::Error::Io)));
}
