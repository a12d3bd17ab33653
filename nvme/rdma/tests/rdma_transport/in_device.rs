//! Reads and writes whose data goes through memory of their block device, and not through the arena:
//! sizes and pieces, the ways that take the arena, memory that is lost, hosts that vanish.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::harness::FakeHost as Host;
use crate::harness::{FAIL, FAIL_MEDIUM, HOLD, Setup, Stage, TARGET_IP, TARGET_MACHINE};
use block::Drain;
use block_testing::TestMemory;
use hugemem::{DeviceMemory, DmaView};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Cqe, Sqe, Status};
use nvme_target::{
    DEVICE_TRANSFER_BYTES_MIN, DeviceIndex, KEYED_BLOCKS_MAX, TransferReason, TransferTotals,
};
use rdma::{CompletionStatus, Connection as _};
use rdma_testing::fake::{DeviceConfig, FabricConfig, Fault, Operation, Pattern};
use reactors::Nanos;
use zerocopy::IntoBytes;

const SLICE: usize = 64 << 10;
const LEAST: usize = DEVICE_TRANSFER_BYTES_MIN as usize;
/// Where hosts read to.
const INTO: usize = 4 << 20;
/// The first bytes of each sector of data: none of them is in the arena otherwise.
const MARK: &[u8; 16] = b"data of a sector";

fn data(seed: u8, bytes: usize) -> Vec<u8> {
    let mut data = vec![seed; bytes];
    for (sector, bytes) in data.chunks_mut(512).enumerate() {
        bytes[..16].copy_from_slice(MARK);
        bytes[16..20].copy_from_slice(&(sector as u32).to_le_bytes());
    }
    data
}

fn stage(slices: u64) -> Stage {
    stage_with(TestMemory::new(slices, SLICE), Setup::default())
}

fn stage_with(memory: Arc<TestMemory>, setup: Setup) -> Stage {
    Stage::with(Setup {
        device_memory: Some(memory),
        ..setup
    })
}

fn memory(stage: &Stage) -> Arc<DeviceMemory> {
    stage
        .parts
        .as_ref()
        .expect("a device with memory")
        .memory
        .current()
}

/// For functions with a memory of that name.
fn memory_now(stage: &Stage) -> Arc<DeviceMemory> {
    memory(stage)
}

fn arm(stage: &Stage, rule: usize, is_armed: bool) {
    stage
        .parts
        .as_ref()
        .expect("a device")
        .faults
        .arm(rule, is_armed);
}

fn release(stage: &Stage) {
    arm(stage, HOLD, false);
    stage.parts.as_ref().expect("a device").faults.release();
}

/// Resets the device, and gives its new memory to the network card.
fn reset(stage: &Stage) {
    let memory = &stage.parts.as_ref().expect("a device").memory;
    memory.reset(8);
    stage.domains.set_device_memory(vec![memory.current()]);
}

fn totals(stage: &Stage) -> TransferTotals {
    stage.target.transfer_totals(DeviceIndex(0))
}

fn reasons(stage: &Stage) -> Vec<(&'static str, u64)> {
    let totals = totals(stage);
    let counts = TransferReason::WORDS.map(|(reason, word)| (word, totals.reason(reason)));
    counts.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// Whether a part of any data is in the arena.
fn is_in_arena(stage: &Stage) -> bool {
    assert_eq!(stage.arena.take_dma_violation(), None);
    let view = DmaView::of_arena(stage.arena.region()).expect("a second mapping");
    let mut page = [0; 4096];
    let found = (0..view.len()).step_by(page.len()).any(|offset| {
        view.read(offset, &mut page);
        page.chunks(512).any(|sector| sector.starts_with(MARK))
    });
    // This look itself.
    let _ = stage.arena.take_dma_violation();
    found
}

fn write_sqe(host: &Host, lba: u64, bytes: usize) -> Sqe {
    let sqe = Sqe::write(1, lba, (bytes / 512 - 1) as u16, false).with_cid(9);
    sqe.with_sgl(host.keyed(0, bytes as u32))
}

fn read_sqe(host: &Host, lba: u64, bytes: usize) -> Sqe {
    let sqe = Sqe::read(1, lba, (bytes / 512 - 1) as u16).with_cid(10);
    sqe.with_sgl(host.keyed(INTO, bytes as u32))
}

fn write(stage: &mut Stage, host: &mut Host, lba: u64, data: &[u8]) -> Cqe {
    host.write(0, data);
    let sqe = write_sqe(host, lba, data.len());
    host.command(stage, sqe)
}

#[track_caller]
fn expect(stage: &mut Stage, host: &mut Host, lba: u64, expected: &[u8]) {
    host.write(INTO, &vec![0; expected.len()]);
    let sqe = read_sqe(host, lba, expected.len());
    assert_eq!(host.command(stage, sqe).status(), Status::SUCCESS);
    assert!(host.read(INTO, expected.len()) == expected);
}

/// The status without its flags.
fn code(status: Status) -> (nvme_spec::status::StatusCodeType, u8) {
    (status.sct(), status.sc())
}

/// Everything has returned, and so many slices are lost.
#[track_caller]
fn assert_over(stage: &mut Stage, memory: &DeviceMemory, lost: u64) {
    for _ in 0..20 {
        stage.turn();
    }
    let counters = memory.counters();
    assert_eq!((u64::from(counters.taken), counters.lost), (lost, lost));
    let core = stage.target.core_counters(0).expect("one core");
    assert_eq!(core.stale_completions.get(), 0);
    assert_eq!(stage.arena.take_dma_violation(), None);
}

/// A segment of `blocks` blocks of the host's memory from `offset` on, apart from each other.
fn segment(host: &Host, offset: usize, lengths: &[usize]) -> Vec<SglDescriptor> {
    let mut at = offset;
    let describe = |length: &usize| {
        let descriptor = host.keyed(at, *length as u32);
        at += length + 512;
        descriptor
    };
    lengths.iter().map(describe).collect()
}

#[test]
fn large_requests_do_not_touch_the_arena() {
    let mut stage = stage(8);
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let leases = stage.leases_out();
    let before = stage.target_machine.counters();
    let sizes = [LEAST, LEAST + 512, 3 * SLICE, 4 * SLICE + 4096, 8 * SLICE];
    for (seed, bytes) in (1..).zip(sizes) {
        let data = data(seed, bytes);
        let cqe = write(&mut stage, &mut io, 7, &data);
        assert_eq!(cqe.status(), Status::SUCCESS, "{bytes}");
        expect(&mut stage, &mut io, 7, &data);
    }
    let after = stage.target_machine.counters();
    let posted = |operation| after.of(operation).posted - before.of(operation).posted;
    // A work request for each slice.
    let pieces = 2 + 3 + 3 + 5 + 8;
    assert_eq!(posted(Operation::Write), pieces);
    assert_eq!(posted(Operation::Read), pieces);
    let bytes: u64 = sizes.iter().map(|bytes| *bytes as u64).sum();
    let totals = totals(&stage);
    assert_eq!((totals.reads, totals.writes, totals.failed), (5, 5, 0));
    assert_eq!(totals.bytes, 2 * bytes);
    assert_eq!(reasons(&stage), []);
    assert_eq!(stage.counters.bytes_from_devices.get(), bytes);
    assert_eq!(stage.counters.bytes_into_devices.get(), bytes);
    assert_eq!(stage.leases_out(), leases);
    assert!(!is_in_arena(&stage));
    let memory = memory(&stage);
    assert_eq!(memory.counters().leases, 10);
    assert_over(&mut stage, &memory, 0);
    // The way through the arena leaves a trace there.
    let small = data(9, LEAST - 512);
    assert_eq!(
        write(&mut stage, &mut io, 7, &small).status(),
        Status::SUCCESS
    );
    assert!(is_in_arena(&stage));
}

/// Blocks of the host end elsewhere than slices.
#[test]
fn blocks_of_the_host_and_slices_overlap() {
    let mut stage = stage(8);
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let lengths = [512, SLICE, 4096, 3 * SLICE - 4608];
    let bytes: usize = lengths.iter().sum();
    assert_eq!(bytes, 4 * SLICE);
    let data = data(3, bytes);
    let gather = |io: &Host, offset| -> Vec<u8> {
        let mut at = offset;
        let parts = lengths.iter().map(|length| {
            let part = io.read(at, *length);
            at += length + 512;
            part
        });
        parts.flatten().collect()
    };
    let mut at = 0;
    let mut done = 0;
    for length in lengths {
        io.write(at, &data[done..done + length]);
        (at, done) = (at + length + 512, done + length);
    }
    let list = segment(&io, 0, &lengths);
    let last = SglDescriptor::last_segment_in_capsule(0, (list.len() * 16) as u32);
    let sqe = Sqe::write(1, 0, (bytes / 512 - 1) as u16, false).with_cid(1);
    io.send(sqe.with_sgl(last), list.as_bytes());
    assert_eq!(io.await_response(&mut stage).0.status(), Status::SUCCESS);
    expect(&mut stage, &mut io, 0, &data);
    let list = segment(&io, INTO, &lengths);
    let sqe = Sqe::read(1, 0, (bytes / 512 - 1) as u16).with_cid(2);
    io.send(sqe.with_sgl(last), list.as_bytes());
    assert_eq!(io.await_response(&mut stage).0.status(), Status::SUCCESS);
    assert!(gather(&io, INTO) == data);
    assert_eq!(totals(&stage).reads + totals(&stage).writes, 3);
    assert_eq!(reasons(&stage), []);
    let memory = memory(&stage);
    assert_over(&mut stage, &memory, 0);
}

/// A host that answers one read at a time, and a send queue with hardly any room.
#[test]
fn pieces_wait_for_reads_and_for_room() {
    let memory = TestMemory::new(16, SLICE);
    let setup = Setup {
        fabric: FabricConfig::manual(3),
        ..Setup::default()
    };
    let mut stage = stage_with(memory, setup);
    let (_admin, cntlid) = Host::admin(&mut stage);
    let call = crate::harness::host::Call {
        reads: 1,
        ..crate::harness::host::Call::queue(1, 4, cntlid)
    };
    let mut io = Host::connect(&mut stage, &call).expect("accepted");
    assert_eq!(
        io.open_queue(&mut stage, 1, 4, cntlid).status(),
        Status::SUCCESS
    );
    let data = data(5, 8 * SLICE);
    io.write(0, &data);
    for at in 0..2_u16 {
        let sqe = write_sqe(&io, u64::from(at) * 2000, data.len()).with_cid(at);
        io.send(sqe, &[]);
    }
    for _ in 0..2 {
        assert_eq!(io.await_response(&mut stage).0.status(), Status::SUCCESS);
    }
    assert!(stage.counters.read_waits.get() > 0);
    for at in 0..2 {
        expect(&mut stage, &mut io, at * 2000, &data);
    }
    for at in 0..2_u16 {
        let sqe = read_sqe(&io, u64::from(at) * 2000, data.len()).with_cid(at);
        io.send(sqe, &[]);
    }
    for _ in 0..2 {
        assert_eq!(io.await_response(&mut stage).0.status(), Status::SUCCESS);
    }
    assert!(io.read(INTO, data.len()) == data);
    assert_eq!((totals(&stage).writes, totals(&stage).reads), (2, 4));
    let memory = memory_now(&stage);
    assert_over(&mut stage, &memory, 0);
}

/// Writes and reads, with the reason that keeps both out of the memory.
fn expect_host_path(stage: &mut Stage, bytes: usize, reason: &'static str) {
    let (_admin, mut io) = Host::attach(stage, 32);
    let data = data(1, bytes);
    let cqe = write(stage, &mut io, 3, &data);
    assert_eq!(cqe.status(), Status::SUCCESS, "{reason}");
    expect(stage, &mut io, 3, &data);
    assert_eq!(reasons(stage), [(reason, 2)]);
    let totals = totals(stage);
    assert_eq!((totals.reads, totals.writes, totals.failed), (0, 0, 0));
    assert!(is_in_arena(stage));
    let memory = memory(stage);
    assert_over(stage, &memory, 0);
}

#[test]
fn arena_is_used_without_memory() {
    expect_host_path(&mut stage(8), LEAST - 512, "small");
    expect_host_path(&mut stage(16), 8 * SLICE + 512, "too_small");
    let short = stage(8);
    let user = &short.parts.as_ref().expect("a device").user;
    user.blocks_max
        .store((SLICE / 512) as u64 - 1, Ordering::Relaxed);
    let mut short = short;
    expect_host_path(&mut short, LEAST, "too_small");
    let mut ended = stage(8);
    memory(&ended).end();
    expect_host_path(&mut ended, LEAST, "no_memory");
    let mut exhausted = stage(8);
    let _held = memory(&exhausted).take_slices(7).expect("free");
    let held_by = memory(&exhausted);
    let (_admin, mut io) = Host::attach(&mut exhausted, 32);
    let cqe = write(&mut exhausted, &mut io, 3, &data(1, LEAST));
    assert_eq!(cqe.status(), Status::SUCCESS);
    assert_eq!(reasons(&exhausted), [("exhausted", 1)]);
    assert_eq!(held_by.counters().exhausted, 1);
}

/// A network card that cannot register memory of a device, or a device that does not export its own.
#[test]
fn refused_registration_is_counted_and_explained() {
    let soft = DeviceConfig {
        registers_device_memory: false,
        ..DeviceConfig::new("rxe0", TARGET_IP)
    };
    let setup = Setup {
        device: soft,
        ..Setup::default()
    };
    let mut refused = stage_with(TestMemory::new(8, SLICE), setup);
    expect_host_path(&mut refused, LEAST, "unregistered");
    let why = memory(&refused).export_refusals();
    assert_eq!(why.len(), 1);
    assert!(
        why[0].starts_with("rxe0: memory of other devices"),
        "{why:?}"
    );
    assert!(why[0].contains("dma-buf"), "{why:?}");
    assert_eq!(memory(&refused).export_users(), 0);

    let mut private = stage_with(TestMemory::not_exported(8, SLICE), Setup::default());
    expect_host_path(&mut private, LEAST, "unregistered");
    let why = memory(&private).export_refusals();
    assert_eq!(why, ["target0: it is of a test"]);
    let registered = stage(8);
    assert_eq!(memory(&registered).export_users(), 1);
    assert_eq!(memory(&registered).export_refusals(), [""; 0]);
    assert!(
        !registered
            .domains
            .lacks_device_memory(&[memory(&registered)])
    );
    assert!(registered.domains.lacks_device_memory(&[]));
}

/// Wrong lengths and descriptors are refused as ever, before any memory is taken; so are more blocks
/// than work requests.
#[test]
fn wrong_descriptors_take_no_memory() {
    let mut stage = stage(8);
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let blocks_z = (LEAST / 512 - 1) as u16;
    for bytes in [LEAST - 512, LEAST + 512, 0] {
        for sqe in [Sqe::read(1, 0, blocks_z), Sqe::write(1, 0, blocks_z, false)] {
            let sqe = sqe.with_cid(1).with_sgl(io.keyed(0, bytes as u32));
            let cqe = io.command(&mut stage, sqe);
            let status = code(cqe.status());
            assert_eq!(status, code(Status::DATA_SGL_LENGTH_INVALID), "{bytes}");
        }
    }
    let short = segment(&io, 0, &[SLICE, SLICE - 512]);
    let last = SglDescriptor::last_segment_in_capsule(0, 32);
    io.send(
        Sqe::read(1, 0, blocks_z).with_cid(1).with_sgl(last),
        short.as_bytes(),
    );
    let status = io.await_response(&mut stage).0.status();
    assert_eq!(code(status), code(Status::DATA_SGL_LENGTH_INVALID));
    assert_eq!(memory(&stage).counters().leases, 0);
    let lengths = [LEAST / KEYED_BLOCKS_MAX; KEYED_BLOCKS_MAX];
    let scattered = segment(&io, INTO, &lengths);
    let last = SglDescriptor::last_segment_in_capsule(0, (KEYED_BLOCKS_MAX * 16) as u32);
    let sqe = Sqe::read(1, 0, blocks_z).with_cid(1).with_sgl(last);
    io.send(sqe, scattered.as_bytes());
    assert_eq!(io.await_response(&mut stage).0.status(), Status::SUCCESS);
    assert_eq!(reasons(&stage), [("scattered", 1)]);
    // A wrong key ends the connection.
    let key = io.key() ^ 0x100;
    let wrong = SglDescriptor::keyed(io.address(0), LEAST as u32, key, false).expect("short");
    io.send(Sqe::read(1, 0, blocks_z).with_cid(1).with_sgl(wrong), &[]);
    io.await_end(&mut stage);
    assert_eq!(stage.counters.remote_access_errors.get(), 1);
    let memory = memory(&stage);
    assert_over(&mut stage, &memory, 0);
}

/// Compares and reads that force the unit's access have their data in the arena.
#[test]
fn other_commands_use_the_arena() {
    let mut stage = stage(8);
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let data = data(1, LEAST);
    assert_eq!(
        write(&mut stage, &mut io, 0, &data).status(),
        Status::SUCCESS
    );
    let compare = Sqe::compare(1, 0, (LEAST / 512 - 1) as u16).with_cid(4);
    let cqe = io.command(&mut stage, compare.with_sgl(io.keyed(0, LEAST as u32)));
    assert_eq!(cqe.status(), Status::SUCCESS);
    assert_eq!(reasons(&stage), [("command", 1)]);
    // Force Unit Access of a write reaches the device.
    let sqe = Sqe::write(1, 0, (LEAST / 512 - 1) as u16, true).with_cid(9);
    let cqe = io.command(&mut stage, sqe.with_sgl(io.keyed(0, LEAST as u32)));
    assert_eq!(cqe.status(), Status::SUCCESS);
    assert_eq!(totals(&stage).writes, 2);
}

/// A device that is full takes pieces later, in the order of their commands.
#[test]
fn full_device_takes_pieces_later() {
    for refusals in [1, 3, 40] {
        let mut stage = stage(16);
        let (_admin, mut io) = Host::attach(&mut stage, 32);
        let user = Arc::clone(&stage.parts.as_ref().expect("a device").user);
        let data = data(1, 4 * SLICE);
        user.refusals.store(refusals, Ordering::Relaxed);
        assert_eq!(
            write(&mut stage, &mut io, 0, &data).status(),
            Status::SUCCESS
        );
        assert_eq!(user.refusals.load(Ordering::Relaxed), 0);
        user.refusals.store(refusals, Ordering::Relaxed);
        expect(&mut stage, &mut io, 0, &data);
        assert_eq!((totals(&stage).reads, totals(&stage).writes), (1, 1));
        // One whose queue ends while no piece is in the device.
        user.refusals.store(u64::MAX, Ordering::Relaxed);
        io.send(read_sqe(&io, 0, LEAST), &[]);
        stage.turn_until("memory", |stage| memory(stage).counters().taken == 2);
        let _ = io.connection.disconnect();
        io.await_end(&mut stage);
        stage.turn_until("the end", |stage| stage.core.borrow().in_flight() == 0);
        let memory = memory(&stage);
        assert_over(&mut stage, &memory, 0);
    }
}

/// A piece that fails ends the command when its other pieces have ended. An error of the medium is the
/// result; after others, the repeated command takes the arena for a while.
#[test]
fn failed_piece_fails_its_command() {
    for (rule, status, is_suspended) in [
        (FAIL, Status::INTERNAL_ERROR, true),
        (FAIL_MEDIUM, Status::UNRECOVERED_READ_ERROR, false),
    ] {
        let mut stage = stage(8);
        let (_admin, mut io) = Host::attach(&mut stage, 32);
        let data = data(1, 4 * SLICE);
        assert_eq!(
            write(&mut stage, &mut io, 0, &data).status(),
            Status::SUCCESS
        );
        arm(&stage, rule, true);
        io.write(INTO, &[0xee; 512]);
        let sqe = read_sqe(&io, 0, data.len());
        let failed = io.command(&mut stage, sqe).status();
        assert_eq!(code(failed), code(status));
        assert!(!failed.dnr());
        assert_eq!(io.read(INTO, 512), [0xee; 512], "nothing is sent");
        assert_eq!(totals(&stage).failed, 1);
        expect(&mut stage, &mut io, 0, &data);
        let suspended = if is_suspended {
            vec![("suspended", 1)]
        } else {
            vec![]
        };
        assert_eq!(reasons(&stage), suspended);
        stage.pass(Nanos::from_secs(2));
        expect(&mut stage, &mut io, 0, &data);
        assert_eq!(totals(&stage).reads, if is_suspended { 1 } else { 2 });
        let memory = memory(&stage);
        assert_over(&mut stage, &memory, 0);
    }
}

/// The device is reset with requests of a command in it, or before they are submitted: the command
/// fails so that the host sends it again, and no byte of the lost memory reaches the host.
#[test]
fn reset_during_a_request_of_the_device() {
    for is_read in [true, false] {
        let mut stage = stage(8);
        let (_admin, mut io) = Host::attach(&mut stage, 32);
        let (old, new) = (data(1, LEAST), data(2, LEAST));
        assert_eq!(
            write(&mut stage, &mut io, 0, &old).status(),
            Status::SUCCESS
        );
        let memory = memory(&stage);
        arm(&stage, HOLD, true);
        io.write(0, &new);
        io.write(INTO, &[0xee; 512]);
        let sqe = if is_read {
            read_sqe(&io, 0, LEAST)
        } else {
            write_sqe(&io, 0, LEAST)
        };
        let taken = totals_taken(&stage);
        io.send(sqe, &[]);
        stage.turn_until("requests", |stage| totals_taken(stage) == taken + 2);
        reset(&stage);
        release(&stage);
        let status = io.await_response(&mut stage).0.status();
        assert!(!status.is_success() && !status.dnr(), "{status}");
        assert_eq!(io.read(INTO, 512), [0xee; 512]);
        assert_eq!(totals(&stage).failed, 1);
        // The host sends it again.
        let cqe = io.command(&mut stage, sqe);
        assert_eq!(cqe.status(), Status::SUCCESS);
        match is_read {
            true => assert!(io.read(INTO, LEAST) == old),
            false => expect(&mut stage, &mut io, 0, &new),
        }
        assert_over(&mut stage, &memory, 0);
    }
}

fn totals_taken(stage: &Stage) -> u64 {
    let user = &stage.parts.as_ref().expect("a device").user;
    user.taken.load(Ordering::Relaxed)
}

/// A request whose RDMA operation on the memory of the device is in flight.
struct InFlight {
    stage: Stage,
    /// It ends with its admin queue.
    admin: Host,
    io: Host,
    /// Another queue of the host.
    other: Host,
    memory: Arc<DeviceMemory>,
    /// What the device has at its first block.
    data: Vec<u8>,
    /// Those of the network cards, before the request.
    registrations: usize,
}

impl InFlight {
    /// A read of the host for RDMA writes, and a write for RDMA reads.
    fn begin(operation: Operation) -> Self {
        let mut stage = stage(8);
        let (admin, cntlid) = Host::admin(&mut stage);
        let mut io = Host::io(&mut stage, cntlid, 1, 32);
        let other = Host::io(&mut stage, cntlid, 2, 32);
        let data = data(1, LEAST);
        assert_eq!(
            write(&mut stage, &mut io, 0, &data).status(),
            Status::SUCCESS
        );
        let memory = memory(&stage);
        let delay = Pattern::ONCE.of(operation).on(TARGET_MACHINE);
        stage.fabric.add_fault(delay, Fault::DelayRequest(200));
        io.write(INTO, &[0xee; 512]);
        let sqe = match operation {
            Operation::Write => read_sqe(&io, 0, LEAST),
            _ => write_sqe(&io, 0, LEAST),
        };
        let registrations = stage.fabric.objects().registrations;
        io.send(sqe, &[]);
        stage.turn_until("work requests", |_| memory.neighbours_in_flight() == 2);
        Self {
            stage,
            admin,
            io,
            other,
            memory,
            data,
            registrations,
        }
    }
}

/// The device is reset while RDMA writes or reads are in flight: its owner sees them, their
/// registration ends, and they fail with their connection. Others continue.
#[test]
fn reset_during_rdma() {
    for operation in [Operation::Write, Operation::Read] {
        let InFlight {
            mut stage,
            admin: _admin,
            mut io,
            mut other,
            memory,
            data,
            registrations,
        } = InFlight::begin(operation);
        reset(&stage);
        assert_eq!(stage.fabric.objects().registrations, registrations);
        assert_eq!(memory.neighbours_in_flight(), 2, "they are posted");
        io.await_end(&mut stage);
        assert!(io.responses.is_empty(), "no response");
        assert_eq!(io.read(INTO, 512), [0xee; 512], "no byte of a lost memory");
        stage.turn_until("the queue pair", |_| memory.neighbours_in_flight() == 0);
        assert_eq!(stage.counters.work_failures.get(), 1);
        expect(&mut stage, &mut other, 0, &data);
        assert_eq!(
            totals(&stage).reads,
            if operation == Operation::Write { 2 } else { 1 }
        );
        assert_over(&mut stage, &memory, 0);
    }
}

/// The memory has ended, and its owner waits for the work requests in flight: the control path, which
/// registers it no more, does not end its registration before they are done.
#[test]
fn registration_lasts_as_long_as_work_requests() {
    for operation in [Operation::Write, Operation::Read] {
        let InFlight {
            mut stage,
            admin: _admin,
            mut io,
            other: _other,
            memory,
            data,
            registrations,
        } = InFlight::begin(operation);
        memory.end();
        stage.domains.set_device_memory(Vec::new());
        assert_eq!(stage.fabric.objects().registrations, registrations);
        let status = io.await_response(&mut stage).0.status();
        match operation {
            Operation::Write => {
                assert_eq!(status, Status::SUCCESS);
                assert_eq!(io.read(INTO, LEAST), data);
            }
            // The host may send it again.
            _ => assert!(!status.is_success() && !status.dnr(), "{status:?}"),
        }
        stage.turn_until("the end", |_| memory.neighbours_in_flight() == 0);
        assert!(stage.domains.lacks_device_memory(&[]));
        stage.domains.set_device_memory(Vec::new());
        assert!(!stage.domains.lacks_device_memory(&[]));
        assert_eq!(stage.fabric.objects().registrations, registrations - 1);
        assert_eq!(stage.counters.work_failures.get(), 0);
    }
}

/// The memory ends after the device has read, while the response waits for room, and before a write is
/// fetched, which waits for an earlier fetch.
#[test]
fn reset_before_rdma_begins() {
    let mut stage = stage(8);
    let (_admin, cntlid) = Host::admin(&mut stage);
    let call = crate::harness::host::Call {
        reads: 1,
        ..crate::harness::host::Call::queue(1, 8, cntlid)
    };
    let mut io = Host::connect(&mut stage, &call).expect("accepted");
    assert_eq!(
        io.open_queue(&mut stage, 1, 8, cntlid).status(),
        Status::SUCCESS
    );
    let memory = memory(&stage);
    // The first fetch takes the only read that the host answers.
    let delay = Pattern::ONCE.of(Operation::Read).on(TARGET_MACHINE);
    stage.fabric.add_fault(delay, Fault::DelayRequest(300));
    io.send(write_sqe(&io, 0, 4096).with_cid(1), &[]);
    io.send(write_sqe(&io, 100, LEAST).with_cid(2), &[]);
    stage.turn_until("memory", |_| memory.counters().taken == 2);
    reset(&stage);
    let mut statuses = [0; 2].map(|_| io.await_response(&mut stage).0);
    statuses.sort_by_key(|cqe| cqe.cid.get());
    assert_eq!(statuses[0].status(), Status::SUCCESS);
    let lost = statuses[1].status();
    assert_eq!(code(lost), code(Status::COMMAND_INTERRUPTED));
    assert!(!lost.dnr());
    assert_eq!(stage.counters.device_memory_lost.get(), 1);
    assert_over(&mut stage, &memory, 0);
}

/// A host vanishes with an RDMA operation in flight that its device is stuck on: the memory is used
/// again when the queue pair is destroyed, and never if that fails.
#[test]
fn memory_of_a_stuck_queue_pair_is_not_used_again() {
    for (operation, destructions_refused) in [
        (Operation::Read, 0),
        (Operation::Read, 1),
        (Operation::Write, 0),
        (Operation::Write, 1),
    ] {
        let mut stage = stage(4);
        let (_admin, cntlid) = Host::admin(&mut stage);
        let mut io = Host::io(&mut stage, cntlid, 1, 32);
        let mut other = Host::io(&mut stage, cntlid, 2, 32);
        let memory = memory(&stage);
        let stuck = Pattern::ONCE.of(operation).on(TARGET_MACHINE);
        stage.fabric.add_fault(stuck, Fault::Wedge);
        stage.fabric.refuse_destructions(destructions_refused);
        let sqe = match operation {
            Operation::Write => read_sqe(&io, 0, LEAST),
            _ => write_sqe(&io, 0, LEAST),
        };
        io.send(sqe, &[]);
        stage.turn_until("work requests", |_| memory.neighbours_in_flight() == 2);
        let _ = io.connection.disconnect();
        for _ in 0..20 {
            stage.turn();
            assert_eq!(memory.counters().taken, 2, "the device may access it");
        }
        stage.turn_until("the end of the connection", |stage| {
            stage.pass(Nanos::from_millis(100));
            stage.set.len() == 2
        });
        stage.fabric.refuse_destructions(0);
        let lost = 2 * u64::from(destructions_refused);
        assert_eq!(memory.neighbours_in_flight(), lost);
        // The device writes late (`LATE_BYTE`), into no data of others.
        let data = data(1, LEAST);
        for _ in 0..3 {
            assert_eq!(
                write(&mut stage, &mut other, 0, &data).status(),
                Status::SUCCESS
            );
            expect(&mut stage, &mut other, 0, &data);
        }
        assert_over(&mut stage, &memory, lost);
    }
}

/// A work request of the device fails: its connection ends, and the memory returns.
#[test]
fn failed_work_requests_return_the_memory() {
    for operation in [Operation::Read, Operation::Write] {
        let mut stage = stage(4);
        let (_admin, mut io) = Host::attach(&mut stage, 32);
        let memory = memory(&stage);
        let fails = Pattern::ONCE.of(operation).on(TARGET_MACHINE);
        let status = CompletionStatus::RETRIES_EXCEEDED;
        stage.fabric.add_fault(fails, Fault::Fail(status));
        let sqe = match operation {
            Operation::Write => read_sqe(&io, 0, LEAST),
            _ => write_sqe(&io, 0, LEAST),
        };
        io.send(sqe, &[]);
        io.await_end(&mut stage);
        stage.turn_until("memory", |_| memory.counters().taken == 0);
        assert_eq!(memory.neighbours_in_flight(), 0);
        assert_over(&mut stage, &memory, 0);
    }
}

/// The connection ends with pieces in the device: the slices return with the last of them.
#[test]
fn slices_of_orphans_return() {
    for is_read in [true, false] {
        let mut stage = stage(8);
        let (_admin, mut io) = Host::attach(&mut stage, 32);
        let memory = memory(&stage);
        arm(&stage, HOLD, true);
        let sqe = if is_read {
            read_sqe(&io, 0, 4 * SLICE)
        } else {
            write_sqe(&io, 0, 4 * SLICE)
        };
        io.send(sqe, &[]);
        stage.turn_until("requests", |stage| totals_taken(stage) == 4);
        let _ = io.connection.disconnect();
        stage.turn_until("the end of the connection", |stage| {
            stage.pass(Nanos::from_millis(50));
            stage.set.len() == 1
        });
        assert_eq!(memory.counters().taken, 4, "the device has requests");
        release(&stage);
        stage.turn_until("memory", |_| memory.counters().taken == 0);
        assert_eq!(stage.core.borrow().in_flight(), 0);
        assert_over(&mut stage, &memory, 0);
    }
}

/// A device that is removed ends exactly its commands, and takes their slices with it.
#[test]
fn removed_device_ends_its_commands() {
    let mut stage = stage(8);
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let memory = memory(&stage);
    arm(&stage, HOLD, true);
    io.send(read_sqe(&io, 0, LEAST), &[]);
    stage.turn_until("requests", |stage| totals_taken(stage) == 2);
    let now = stage.now;
    stage.devices.remove_now(0, now);
    let status = io.await_response(&mut stage).0.status();
    assert_eq!(code(status), code(Status::INTERNAL_PATH_ERROR));
    assert_eq!(stage.devices.detach(0), Drain::Done);
    assert_over(&mut stage, &memory, 2);
    let sqe = read_sqe(&io, 0, LEAST);
    assert!(!io.command(&mut stage, sqe).status().is_success());
}

/// A network card that is lost while it has registered memory, and a queue that is deep.
#[test]
fn requests_of_one_connection_are_limited() {
    let mut stage = stage(64);
    let (_admin, mut io) = Host::attach(&mut stage, 64);
    let memory = memory(&stage);
    arm(&stage, HOLD, true);
    for cid in 0..20 {
        io.send(read_sqe(&io, 0, LEAST).with_cid(cid), &[]);
    }
    for _ in 0..20 {
        stage.turn();
    }
    assert_eq!(memory.counters().taken, 32, "sixteen requests");
    assert_eq!(reasons(&stage), [("exhausted", 4)]);
    release(&stage);
    for _ in 0..20 {
        assert_eq!(io.await_response(&mut stage).0.status(), Status::SUCCESS);
    }
    assert_over(&mut stage, &memory, 0);
    let card = rdma::Provider::devices(&stage.target_machine)
        .expect("one")
        .remove(0);
    stage.fabric.remove_device(&card);
    io.await_end(&mut stage);
    assert_over(&mut stage, &memory, 0);
}
