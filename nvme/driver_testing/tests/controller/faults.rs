//! Each fault has its documented effect, fires the configured number of times, and the drive
//! continues correctly.

use std::os::fd::AsFd;

use block_testing::Latency;
use nvme_driver::backing::DeviceBacking;
use nvme_driver_testing::{
    ControllerMemoryOptions, EmulatedOptions, Fault, FaultId, FaultMatch, FaultRule, Queues, When,
};
use nvme_spec::Status;
use nvme_spec::command::{IoOpcode, Sqe};
use reactors::Nanos;

use crate::harness::{Host, PAGE, Pair};

const MS: Nanos = Nanos::from_millis(1);

fn host() -> (Host, Pair) {
    let mut host = Host::new(EmulatedOptions::default());
    let pair = host.pair(1, 32, 32);
    (host, pair)
}

fn inject(host: &Host, when: When, fault: Fault) -> FaultId {
    host.control
        .inject(FaultRule::new(FaultMatch::io(), when, fault))
}

/// Sends Flush commands with these identifiers. Returns the identifiers of their completions.
fn flushes(host: &mut Host, pair: &mut Pair, cids: &[u16]) -> Vec<u16> {
    for cid in cids {
        pair.push(&Sqe::flush(1).with_cid(*cid));
    }
    host.ring_tail(pair);
    completed(host, pair)
}

fn completed(host: &Host, pair: &mut Pair) -> Vec<u16> {
    let mut found = Vec::new();
    while let Some(cqe) = pair.pop() {
        found.push(cqe.cid.get());
    }
    host.ring_head(pair);
    found
}

#[test]
fn dropped_duplicate_and_wrong_completions() {
    let (mut host, mut pair) = host();
    let cases = [
        (Fault::DropCompletion, vec![1, 3]),
        (Fault::Duplicate, vec![1, 2, 2, 3]),
        (Fault::WrongIdentifier(0x8000), vec![1, 0x8002, 3]),
        (Fault::StaleIdentifier, vec![1, 1, 3]),
    ];
    for (fault, expected) in cases {
        let id = inject(&host, When::Nth(2), fault);
        assert_eq!(
            flushes(&mut host, &mut pair, &[1, 2, 3]),
            expected,
            "{fault:?}"
        );
        assert_eq!(host.control.fired(id), 1);
        host.control.arm(id, false);
    }
    inject(&host, When::First(1), Fault::WrongQueue(7));
    inject(&host, When::First(1), Fault::WrongHead(999));
    pair.push(&Sqe::flush(1));
    pair.push(&Sqe::flush(1));
    host.ring_tail(&pair);
    let found = [pair.pop().unwrap(), pair.pop().unwrap()];
    assert_eq!((found[0].sqid.get(), found[1].sqhd.get()), (7, 999));
}

#[test]
fn fault_rules_select_commands_by_pattern() {
    let (mut host, mut pair) = host();
    let every = inject(&host, When::Every(3), Fault::DropCompletion);
    let cids: Vec<u16> = (1..=9).collect();
    assert_eq!(flushes(&mut host, &mut pair, &cids), [1, 2, 4, 5, 7, 8]);
    assert_eq!(host.control.fired(every), 3);
    host.control.disarm_all();
    assert_eq!(flushes(&mut host, &mut pair, &cids), cids);
    let never = inject(&host, When::Every(0), Fault::Fatal);
    let elsewhere = host.control.inject(FaultRule::new(
        FaultMatch::of(Queues::One(2)),
        When::Always,
        Fault::Fatal,
    ));
    let reads = FaultMatch::io().with_opcode(IoOpcode::READ.0);
    let reads = host
        .control
        .inject(FaultRule::new(reads, When::Always, Fault::Fatal));
    let other = FaultMatch::io().with_namespace(2);
    let other = host
        .control
        .inject(FaultRule::new(other, When::Always, Fault::Fatal));
    assert_eq!(flushes(&mut host, &mut pair, &cids), cids);
    for id in [never, elsewhere, reads, other] {
        assert_eq!(host.control.fired(id), 0);
    }
    host.control.disarm_all();
    let admin = FaultRule::new(
        FaultMatch::admin(),
        When::First(1),
        Fault::Status(Status::INTERNAL_ERROR),
    );
    host.control.inject(admin);
    assert_eq!(
        host.admin_status(Sqe::abort_command(1, 1)),
        Status::INTERNAL_ERROR
    );
}

#[test]
fn random_faults_depend_on_the_seed() {
    let run = |seed| {
        let mut host = Host::new(EmulatedOptions {
            seed,
            ..EmulatedOptions::default()
        });
        let mut pair = host.pair(1, 32, 32);
        let some = When::PerMillion(300_000);
        inject(&host, some, Fault::DropCompletion);
        let cids: Vec<u16> = (1..=30).collect();
        flushes(&mut host, &mut pair, &cids)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert!((5..28).contains(&run(1).len()));
}

#[test]
fn delayed_commands_transfer_data_late() {
    let (mut host, mut pair) = host();
    host.write(&mut pair, 0, 1, false);
    inject(&host, When::First(1), Fault::Delay(Nanos::from_millis(5)));
    let data = host.buffer(4096);
    data.write(0, &[0x55; 4096]);
    pair.push(
        &Sqe::read(1, 0, 0)
            .with_cid(9)
            .with_prp(host.address(&data), 0),
    );
    host.ring_tail(&pair);
    host.tick(Nanos::from_millis(4));
    let mut byte = [0];
    data.read(100, &mut byte);
    assert_eq!(
        (pair.pop().is_none(), byte, host.control.outstanding()),
        (true, [0x55], 1)
    );
    assert_eq!(
        flushes(&mut host, &mut pair, &[10]),
        [10],
        "others overtake it"
    );
    host.tick(MS);
    data.read(100, &mut byte);
    assert_eq!(completed(&host, &mut pair), [9]);
    assert_eq!(byte, [1]);
}

#[test]
fn latency_reorders_by_seed_without_loss() {
    let (mut host, mut pair) = host();
    let max = Nanos::from_millis(3);
    host.control.set_latency(Latency::Range { min: MS, max });
    let cids: Vec<u16> = (1..=30).collect();
    assert_eq!(flushes(&mut host, &mut pair, &cids), []);
    let mut found = Vec::new();
    for _ in 0..30 {
        host.tick(Nanos::from_micros(100));
        found.extend(completed(&host, &mut pair));
    }
    assert_ne!(found, cids);
    found.sort_unstable();
    assert_eq!(found, cids);
}

#[test]
fn hung_commands_are_abortable_as_configured() {
    let (mut host, mut pair) = host();
    inject(&host, When::Nth(1), Fault::Hang { abortable: true });
    inject(&host, When::Nth(1), Fault::Hang { abortable: false });
    assert_eq!(flushes(&mut host, &mut pair, &[1, 2, 3]), [3]);
    host.tick(Nanos::from_secs(1000));
    assert_eq!(completed(&host, &mut pair), []);
    assert_eq!(host.run_admin(Sqe::abort_command(1, 2)).dw0.get(), 1);
    assert_eq!(host.run_admin(Sqe::abort_command(1, 1)).dw0.get(), 0);
    let aborted = pair.pop().expect("the aborted command");
    assert!(aborted.status().is(Status::ABORT_REQUESTED) && aborted.cid.get() == 1);
    assert_eq!(host.run_admin(Sqe::abort_command(1, 1)).dw0.get(), 1);
    assert_eq!(host.control.release(), 1);
    host.tick(Nanos::ZERO);
    assert_eq!(completed(&host, &mut pair), [2]);
}

#[test]
fn fatal_status_and_removal_faults() {
    let (mut host, mut pair) = host();
    inject(&host, When::Nth(2), Fault::Fatal);
    assert_eq!(flushes(&mut host, &mut pair, &[1, 2, 3]), [1]);
    assert!(host.csts().cfs());
    host.disable();
    host.enable();
    let mut pair = host.pair(1, 32, 32);
    inject(&host, When::Nth(2), Fault::Remove);
    assert_eq!(flushes(&mut host, &mut pair, &[4, 5, 6]), [4]);
    assert_eq!(host.get(nvme_spec::registers::Register::CSTS), u32::MAX);
    assert_eq!(host.control.counters().removals, 1);
}

#[test]
fn lost_late_and_torn_doorbell_writes() {
    let (mut host, mut pair) = host();
    let lost = inject(&host, When::First(1), Fault::DoorbellLost);
    assert_eq!(flushes(&mut host, &mut pair, &[1]), []);
    host.tick(MS);
    assert_eq!(completed(&host, &mut pair), []);
    assert_eq!(
        flushes(&mut host, &mut pair, &[2]),
        [1, 2],
        "the next one brings both"
    );
    let late = inject(&host, When::First(1), Fault::DoorbellDeferred);
    assert_eq!(flushes(&mut host, &mut pair, &[3]), []);
    host.tick(MS);
    assert_eq!(completed(&host, &mut pair), [3]);
    let torn = inject(&host, When::First(1), Fault::DoorbellTorn);
    assert_eq!(flushes(&mut host, &mut pair, &[4]), []);
    assert_eq!(host.control.counters().invalid_doorbells, 1);
    assert_eq!(flushes(&mut host, &mut pair, &[5]), [4, 5]);
    for id in [lost, late, torn] {
        assert_eq!(host.control.fired(id), 1);
    }
}

/// The controller may write to memory until CSTS.RDY is 0, and never afterwards.
#[test]
fn a_controller_stops_before_rdy_is_clear() {
    let mut host = Host::new(EmulatedOptions {
        disabled_after: Nanos::from_millis(10),
        ..EmulatedOptions::default()
    });
    let mut pair = host.pair(1, 32, 32);
    inject(&host, When::First(1), Fault::Delay(Nanos::from_millis(5)));
    inject(&host, When::First(1), Fault::Delay(Nanos::from_millis(50)));
    assert_eq!(flushes(&mut host, &mut pair, &[1, 2]), []);
    host.disable();
    host.tick(Nanos::from_millis(6));
    assert!(host.csts().rdy());
    assert!(pair.pop().is_some_and(|cqe| cqe.cid.get() == 1));
    host.tick(Nanos::from_millis(6));
    assert!(!host.csts().rdy());
    host.tick(Nanos::from_secs(1));
    assert!(pair.pop().is_none());
    assert_eq!(host.control.outstanding(), 0);
}

/// Others find lost content in its memory as soon as it begins to stop. Its own commands do not: no
/// write stores what nobody has written.
#[test]
fn writes_until_rdy_is_clear_do_not_take_lost_content() {
    let mut host = Host::new(EmulatedOptions {
        disabled_after: Nanos::from_millis(10),
        controller_memory: Some(ControllerMemoryOptions {
            bytes: 64 << 10,
            placed_by_host: false,
            holds_data: true,
        }),
        ..EmulatedOptions::default()
    });
    let memory = host.drive.controller_memory(2, 4096, 64 << 10);
    let memory = memory.expect("a buffer");
    let mut pair = host.pair(1, 32, 32);
    for offset in (0..PAGE).step_by(8) {
        memory.write_u64(offset, u64::from_ne_bytes([7; 8]));
    }
    inject(&host, When::First(1), Fault::Delay(Nanos::from_millis(5)));
    let cid = host.cid();
    let write = Sqe::write(1, 3, 0, true).with_cid(cid);
    pair.push(&write.with_prp(memory.bus_address(), 0));
    host.ring_tail(&pair);
    host.disable();
    let export = host.drive.export_memory(2, (4096, 64 << 10));
    let file = export.expect("a descriptor").as_fd().try_clone_to_owned();
    let mut lost = [0; PAGE];
    rustix::io::pread(file.expect("a descriptor"), &mut lost, 0).expect("readable");
    assert_eq!(lost, [0xdb; PAGE]);
    host.tick(Nanos::from_millis(11));
    assert!(!host.csts().rdy());
    let mut block = [0; PAGE];
    assert!(host.control.read_durable(1, 3, &mut block));
    assert_eq!(block, [7; PAGE]);
}
