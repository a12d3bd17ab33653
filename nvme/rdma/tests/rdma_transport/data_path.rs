//! Data transfers, with their numbers of work requests and completions, and without copies.

use crate::harness::FakeHost as Host;
use crate::harness::{IN_CAPSULE_BYTES, Setup, Stage, TARGET_MACHINE};
use nvme_spec::command::Cns;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Cqe, Sqe, Status};
use nvme_target::{KEYED_BLOCKS_MAX, PortId, Stage as Part};
use rdma::DeviceLimits;
use rdma_testing::fake::{DeviceConfig, Fault, Operation, Pattern};
use reactors::Nanos;
use zerocopy::IntoBytes;

/// A pattern that differs from byte to byte and from seed to seed.
fn pattern(seed: u32, bytes: usize) -> Vec<u8> {
    let value = |at: usize| (at as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13;
    (0..bytes).map(|at| value(at) as u8).collect()
}

fn write(stage: &mut Stage, host: &mut Host, lba: u64, data: &[u8]) -> Cqe {
    host.write(0, data);
    let blocks_z = (data.len() / 512 - 1) as u16;
    let sqe = Sqe::write(1, lba, blocks_z, false).with_cid(9);
    let sqe = sqe.with_sgl(host.keyed(0, data.len() as u32));
    host.command(stage, sqe)
}

fn read(stage: &mut Stage, host: &mut Host, lba: u64, bytes: usize) -> Vec<u8> {
    host.write(1 << 20, &vec![0; bytes]);
    let sqe = Sqe::read(1, lba, (bytes / 512 - 1) as u16).with_cid(10);
    let sqe = sqe.with_sgl(host.keyed(1 << 20, bytes as u32));
    assert_eq!(host.command(stage, sqe).status(), Status::SUCCESS);
    host.read(1 << 20, bytes)
}

#[test]
fn a_block_is_written_and_read_back() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    assert_eq!(io.accept.crqsize.get(), 32);
    io.check_io(&mut stage, 5, 0x5a);
}

#[test]
fn every_size_up_to_a_mebibyte_moves_without_a_copy() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    for (seed, bytes) in (0..).zip([512, 4096, 4608, 65_536, 131_072, 1 << 20]) {
        let data = pattern(seed, bytes);
        let cqe = write(&mut stage, &mut io, 100, &data);
        assert_eq!(cqe.status(), Status::SUCCESS);
        assert!(read(&mut stage, &mut io, 100, bytes) == data, "{bytes}");
    }
    assert_eq!(stage.counters.bytes_copied.get(), 0);
}

/// Data of a RAM device is sent without a copy, and the response behind it.
#[test]
fn a_read_takes_one_write_and_one_inline_send() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let before = stage.target_machine.counters();
    let leases = stage.leases_out();
    for _ in 0..10 {
        assert_eq!(read(&mut stage, &mut io, 8, 4096), vec![0; 4096]);
    }
    let after = stage.target_machine.counters();
    let posted = |operation| after.of(operation).posted - before.of(operation).posted;
    assert_eq!(after.sends_posted() - before.sends_posted(), 20);
    assert_eq!(
        (posted(Operation::Write), posted(Operation::Send)),
        (10, 10)
    );
    assert_eq!(after.inline - before.inline, 10);
    assert_eq!(stage.leases_out(), leases, "RAM lends its reads");
    assert_eq!(stage.counters.bytes_copied.get(), 0);
}

/// All responses of a turn have one completion, besides one for each capsule.
#[test]
fn only_the_last_response_of_a_turn_is_signalled() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, 64);
    let before = stage.target_machine.counters();
    for cid in 0..32 {
        let sqe = Sqe::read(1, u64::from(cid), 0).with_cid(cid);
        let sqe = sqe.with_sgl(io.keyed(usize::from(cid) * 512, 512));
        io.send(sqe, &[]);
    }
    stage.turn_until("32 responses", |_| {
        io.poll();
        io.responses.len() == 32
    });
    stage.turn();
    let after = stage.target_machine.counters();
    assert_eq!(after.sends_posted() - before.sends_posted(), 64);
    let completions = after.completions - before.completions;
    assert!(completions <= 34, "{completions} completions for 32 reads");
    // All borrows have ended: the same blocks can be written.
    let data = pattern(3, 32 * 512);
    let cqe = write(&mut stage, &mut io, 0, &data);
    assert_eq!(cqe.status(), Status::SUCCESS);
}

#[test]
fn data_in_the_capsule_needs_no_read_and_no_copy() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let before = stage.target_machine.counters();
    for round in 0..100_u32 {
        let data = pattern(round, 4096);
        let sqe = Sqe::write(1, u64::from(round) * 8, 7, false).with_cid(round as u16);
        let sqe = sqe.with_sgl(SglDescriptor::in_capsule(0, 4096));
        io.send(sqe, &data);
        assert_eq!(io.await_response(&mut stage).0.status(), Status::SUCCESS);
    }
    let after = stage.target_machine.counters();
    assert_eq!(after.sends_posted() - before.sends_posted(), 100);
    assert_eq!(stage.counters.bytes_in_capsule.get(), 100 * 4096);
    assert_eq!(stage.counters.bytes_copied.get(), 0);
    for round in 0..100 {
        let found = read(&mut stage, &mut io, u64::from(round) * 8, 4096);
        assert!(found == pattern(round, 4096));
    }
}

#[test]
fn capsule_data_behind_an_offset_is_moved_to_its_place_and_counted() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let mut capsule = vec![0xee; 64];
    capsule.extend(pattern(1, 512));
    let sqe = Sqe::write(1, 3, 0, false).with_sgl(SglDescriptor::in_capsule(64, 512));
    io.send(sqe, &capsule);
    assert_eq!(io.await_response(&mut stage).0.status(), Status::SUCCESS);
    assert!(read(&mut stage, &mut io, 3, 512) == pattern(1, 512));
    assert_eq!(stage.counters.bytes_copied.get(), 512);
}

/// RDMA 1.1 §3.3, Base 2.1 §4.3.2: sub type Fh requests that the key is invalidated.
#[test]
fn the_key_is_invalidated_where_the_host_asks() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let sgl = SglDescriptor::keyed(io.address(0), 512, io.key(), true).expect("short");
    io.send(Sqe::read(1, 0, 0).with_sgl(sgl), &[]);
    stage.turn_until("an invalidation", |stage| {
        io.poll();
        stage.counters.invalidations.get() == 1
    });
    let sent = stage.target_machine.counters();
    assert_eq!(sent.of(Operation::SendWithInvalidate).posted, 1);
}

fn segment(blocks: &[SglDescriptor]) -> SglDescriptor {
    SglDescriptor::last_segment_in_capsule(0, size_of_val(blocks) as u32)
}

/// Base 2.1 §5.1.13.2.1, MSDBD: as many keyed blocks as the target announces, of any length.
#[test]
fn a_command_may_have_several_descriptors() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let lengths = [512, 1, 1023, 4096, 100, 2000, 460, 8192];
    assert_eq!(lengths.len(), KEYED_BLOCKS_MAX);
    let total: usize = lengths.iter().sum();
    let data = pattern(5, total);
    let (mut blocks, mut done) = (Vec::new(), 0);
    for (place, length) in lengths.into_iter().enumerate() {
        io.write(place * 16_384, &data[done..done + length]);
        blocks.push(io.keyed(place * 16_384, length as u32));
        done += length;
    }
    let blocks_z = (total / 512 - 1) as u16;
    let sqe = Sqe::write(1, 40, blocks_z, false).with_sgl(segment(&blocks));
    io.send(sqe, blocks.as_bytes());
    assert_eq!(io.await_response(&mut stage).0.status(), Status::SUCCESS);
    for (place, length) in lengths.into_iter().enumerate() {
        io.write(place * 16_384, &vec![0; length]);
    }
    let sqe = Sqe::read(1, 40, blocks_z).with_sgl(segment(&blocks));
    io.send(sqe, blocks.as_bytes());
    assert_eq!(io.await_response(&mut stage).0.status(), Status::SUCCESS);
    let mut found = Vec::new();
    for (place, length) in lengths.into_iter().enumerate() {
        found.extend(io.read(place * 16_384, length));
    }
    assert!(found == data);
}

#[test]
fn descriptors_that_do_not_fit_are_refused_and_the_connection_lives() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let two = [io.keyed(0, 256), io.keyed(512, 255)];
    let length = Status::DATA_SGL_LENGTH_INVALID.with_dnr().with_more(true);
    io.send(Sqe::read(1, 0, 0).with_sgl(segment(&two)), two.as_bytes());
    assert_eq!(io.await_response(&mut stage).0.status(), length);
    // The capsule ends before the segment does.
    io.send(
        Sqe::read(1, 0, 0).with_sgl(segment(&two)),
        &two.as_bytes()[..31],
    );
    let missing = Status::INVALID_SGL_SEGMENT_DESCRIPTOR
        .with_dnr()
        .with_more(true);
    assert_eq!(io.await_response(&mut stage).0.status(), missing);
    let many = vec![io.keyed(0, 64); KEYED_BLOCKS_MAX + 1];
    io.send(Sqe::read(1, 0, 0).with_sgl(segment(&many)), many.as_bytes());
    let number = Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS
        .with_dnr()
        .with_more(true);
    assert_eq!(io.await_response(&mut stage).0.status(), number);
    io.check_io(&mut stage, 1, 7);
}

/// More concurrent reads than the host serves would break its queue pair, so the others wait.
#[test]
fn outstanding_reads_respect_the_hosts_limit() {
    let mut stage = Stage::new();
    let (_admin, cntlid) = Host::admin(&mut stage);
    let mut call = crate::harness::host::Call::queue(1, 64, cntlid);
    call.reads = 2;
    let mut io = Host::connect(&mut stage, &call).expect("accepted");
    let cqe = io.open_queue(&mut stage, 1, 64, cntlid);
    assert_eq!(cqe.status(), Status::SUCCESS);
    let data = pattern(8, 32 * 4096);
    io.write(0, &data);
    let slow = Fault::DelayCompletion(3);
    stage
        .fabric
        .add_fault(Pattern::ALWAYS.of(Operation::Read), slow);
    for cid in 0..32_u16 {
        let sqe = Sqe::write(1, u64::from(cid) * 8, 7, false).with_cid(cid);
        let at = usize::from(cid) * 4096;
        io.send(sqe.with_sgl(io.keyed(at, 4096)), &[]);
    }
    stage.turn_until("32 responses", |stage| {
        let reads = stage.target_machine.counters().of(Operation::Read);
        let outstanding = reads.posted - reads.succeeded;
        assert!(outstanding <= 2, "{outstanding} reads outstanding");
        io.poll();
        io.responses.len() == 32
    });
    assert!(stage.counters.read_waits.get() > 0);
    let cids: Vec<u16> = io
        .responses
        .drain(..)
        .map(|(cqe, _)| cqe.cid.get())
        .collect();
    assert_eq!(
        cids,
        (0..32).collect::<Vec<_>>(),
        "first come, first served"
    );
    assert!(read(&mut stage, &mut io, 0, 32 * 4096) == data);
}

/// If the send queue is too small for the host's depth, responses wait, and none is lost.
#[test]
fn responses_wait_for_send_queue_entries() {
    let mut device = DeviceConfig::new("target0", crate::harness::TARGET_IP);
    device.limits = DeviceLimits {
        queue_pair_requests: 64 + 9,
        ..DeviceConfig::LIMITS
    };
    let mut stage = Stage::with(Setup {
        device,
        ..Setup::default()
    });
    let (_admin, mut io) = Host::attach(&mut stage, 64);
    for cid in 0..60_u16 {
        let sqe = Sqe::read(1, u64::from(cid), 0).with_cid(cid);
        io.send(sqe.with_sgl(io.keyed(usize::from(cid) * 512, 512)), &[]);
    }
    stage.turn_until("60 responses", |_| {
        io.poll();
        io.responses.len() == 60
    });
    assert!(stage.counters.send_waits.get() > 0);
    for part in [Part::Send, Part::Total] {
        assert_eq!(stage.measured(part), (60, 0), "{part:?}");
    }
    assert_eq!(stage.measured(Part::Device), (0, 0));
    io.responses.clear();
    io.check_io(&mut stage, 1, 7);
}

/// Devices without inline data send responses from registered memory.
#[test]
fn responses_go_without_inline_data_too() {
    let mut device = DeviceConfig::new("target0", crate::harness::TARGET_IP);
    device.inline_bytes = 0;
    let mut stage = Stage::with(Setup {
        device,
        ..Setup::default()
    });
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    for fill in 0..200 {
        io.check_io(&mut stage, u64::from(fill), fill);
    }
    assert_eq!(stage.target_machine.counters().inline, 0);
}

/// If the pool is empty, requests and receives wait.
#[test]
fn an_empty_arena_makes_requests_and_receives_wait() {
    let mut stage = Stage::with(Setup {
        arena_bytes: 6 << 20,
        ..Setup::default()
    });
    let (_admin, mut io) = Host::attach(&mut stage, 64);
    let pool = stage.arena.pool(0);
    let mut hoard = Vec::new();
    while let Some(lease) = pool.take(4096) {
        hoard.push(lease);
    }
    let data = pattern(2, 4096);
    io.write(0, &data);
    for cid in 0..16_u16 {
        let sqe = Sqe::write(1, u64::from(cid) * 8, 7, false).with_cid(cid);
        if cid % 2 == 0 {
            let sqe = sqe.with_sgl(SglDescriptor::in_capsule(0, 4096));
            io.send(sqe, &data);
        } else {
            io.send(sqe.with_sgl(io.keyed(0, 4096)), &[]);
        }
    }
    for _ in 0..50 {
        stage.turn();
        io.poll();
    }
    assert!(stage.counters.buffer_waits.get() > 0);
    assert!(stage.counters.receive_waits.get() > 0);
    assert!(io.responses.len() < 16);
    drop(hoard);
    stage.turn_until("16 responses", |_| {
        io.poll();
        io.responses.len() == 16
    });
    assert!(
        io.responses
            .iter()
            .all(|(cqe, _)| cqe.status().is_success())
    );
    for part in [Part::Device, Part::Send, Part::Total] {
        assert_eq!(stage.measured(part), (0, 16), "{part:?}");
    }
    let waits = stage.counters.buffer_waits.get();
    assert_eq!(stage.measured(Part::Buffer), (0, waits));
    // The others were received in their capsules.
    assert_eq!(stage.measured(Part::Fetch), (0, 8));
    io.responses.clear();
    for cid in 0..16_u64 {
        assert!(read(&mut stage, &mut io, cid * 8, 4096) == data);
    }
}

#[test]
fn in_capsule_data_is_what_the_controller_announces() {
    let mut stage = Stage::new();
    let (mut admin, _io) = Host::attach(&mut stage, 32);
    let sqe = Sqe::identify_structure(Cns::CONTROLLER, 0).with_sgl(admin.keyed(0, 4096));
    assert_eq!(admin.command(&mut stage, sqe).status(), Status::SUCCESS);
    let page = admin.read(0, 4096);
    let page = <nvme_spec::identify::IdentifyController as zerocopy::FromBytes>::read_from_bytes(
        page.as_slice(),
    )
    .expect("a page");
    assert_eq!(page.in_capsule_data_bytes(), u64::from(IN_CAPSULE_BYTES));
    assert_eq!(usize::from(page.msdbd), KEYED_BLOCKS_MAX);
    assert!(page.sgls.keyed() && page.sgls.offset() && !page.sgls.transport());
}

/// Base 2.1 §3.3.2.6: SQHD advances with the received commands.
#[test]
fn flow_control_goes_by_the_submission_queue_head() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, 4);
    let mut heads = Vec::new();
    for cid in 0..8 {
        let cqe = io.command(
            &mut stage,
            Sqe::flush(1).with_cid(cid).with_sgl(io.keyed(0, 0)),
        );
        assert_eq!(cqe.status(), Status::SUCCESS);
        heads.push(cqe.sqhd.get());
    }
    let first = heads[0];
    let expected: Vec<u16> = (0..8).map(|step| (first + step) % 4).collect();
    assert_eq!(heads, expected);
}

#[test]
fn a_silent_host_is_closed_by_its_keep_alive_time() {
    let mut stage = Stage::new();
    let (mut admin, _) = Host::admin_with(&mut stage, 1000);
    for _ in 0..40 {
        stage.pass(Nanos::from_millis(500));
    }
    admin.await_end(&mut stage);
    stage.turn_until("no connection", |stage| {
        stage.pass(Nanos::from_millis(50));
        stage.set.is_empty()
    });
}

/// Base 2.1 §6.4: the response to Disconnect is sent before the connection ends.
#[test]
fn disconnect_completes_before_the_connection_ends() {
    let mut stage = Stage::new();
    let (mut admin, mut io) = Host::attach(&mut stage, 32);
    let sgl = io.keyed(0, 0);
    let cqe = io.command(
        &mut stage,
        Sqe::disconnect_queue().with_cid(3).with_sgl(sgl),
    );
    assert_eq!((cqe.status(), cqe.cid.get()), (Status::SUCCESS, 3));
    io.await_end(&mut stage);
    let sqe = Sqe::identify_structure(Cns::CONTROLLER, 0).with_sgl(admin.keyed(0, 4096));
    assert_eq!(admin.command(&mut stage, sqe).status(), Status::SUCCESS);
    assert_eq!(TARGET_MACHINE, stage.target_machine.machine());
}

/// A target that stops closes idle connections and accepts no new ones.
#[test]
fn a_shutdown_drains_every_connection() {
    let mut stage = Stage::new();
    let (mut admin, mut io) = Host::attach(&mut stage, 32);
    io.check_io(&mut stage, 0, 1);
    stage.target.shut_down();
    stage.set.listeners();
    stage.turn_until("no connection", |stage| {
        admin.poll();
        io.poll();
        let now = stage.now;
        stage.set.drain(now) == 0
    });
    assert!(admin.disconnected && io.disconnected);
    let call = crate::harness::host::Call::queue(0, 32, 0);
    let refused = Host::connect(&mut stage, &call).err();
    assert!(refused.is_some() || stage.set.len() <= 1);
}

/// Requests of a closed port are answered before the connection ends, and later commands are not
/// executed, so that the host may send them again. A request that never ends delays it for 3 s at
/// most.
#[test]
fn a_closed_port_answers_its_requests() {
    for fault in [Fault::DelayRequest(50), Fault::Wedge] {
        let mut stage = Stage::new();
        let (mut admin, mut io) = Host::attach(&mut stage, 32);
        io.check_io(&mut stage, 0, 1);
        let baseline = stage.leases_out();
        let late = Pattern::ONCE.of(Operation::Read).on(TARGET_MACHINE);
        stage.fabric.add_fault(late, fault);
        io.write(0, &[7; 512]);
        let write = Sqe::write(1, 0, 0, false).with_cid(1);
        io.send(write.with_sgl(io.keyed(0, 512)), &[]);
        stage.turn_until("the read", |stage| stage.leases_out() == baseline + 1);
        let began = stage.now;
        assert_eq!(stage.set.close_port(PortId(0), began), 2);
        let later = Sqe::write(1, 8, 0, false).with_cid(2);
        io.send(later.with_sgl(io.keyed(0, 512)), &[]);
        stage.turn_until("no connection", |stage| {
            admin.poll();
            io.poll();
            stage.now = stage.now.saturating_add(Nanos::from_millis(1));
            let now = stage.now;
            stage.set.close_port(PortId(0), now) == 0
        });
        io.poll();
        assert!(admin.disconnected && io.disconnected);
        let answered: Vec<_> = io.responses.iter().map(|(cqe, _)| cqe.cid.get()).collect();
        let is_stuck = matches!(fault, Fault::Wedge);
        assert_eq!(answered, if is_stuck { vec![] } else { vec![1] });
        let took = stage.now.saturating_sub(began);
        assert!(took < Nanos::from_millis(3100), "{took:?}");
        let (_admin, mut again) = Host::attach(&mut stage, 32);
        for (lba, written) in [(0, u8::from(!is_stuck) * 6 + 1), (8, 0)] {
            let read = Sqe::read(1, lba, 0).with_sgl(again.keyed(0, 512));
            assert!(again.command(&mut stage, read).status().is_success());
            assert_eq!(again.read(0, 512), vec![written; 512], "block {lba}");
        }
    }
}
