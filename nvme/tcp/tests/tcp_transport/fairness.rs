//! Hosts that occupy memory without progress, beside well-behaved hosts: shares, order of service
//! and progress deadlines. On one thread, in time that the test controls.

use std::sync::Arc;

use crate::harness::wire::{Host, Stage, TargetPdu};
use crate::harness::{BLOCK_BYTES, GREEDY, MODEST, NAMESPACE_BYTES, ram};
use block::{
    CompletionBatch, Device, DeviceQueue, NullDevice, NullOptions, Operation, QueueOptions, Request,
};
use block_testing::{DelayDevice, Latency};
use hugemem::Pool;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::H2cData;
use nvme_spec::{Sqe, Status};
use reactors::{Nanos, TscClock};
use zerocopy::IntoBytes;

const MIB: usize = 1 << 20;

/// A host that sends a write of `bytes` and none of its data.
fn ask(host: &Host, cid: u16, bytes: usize) {
    let blocks = (bytes / BLOCK_BYTES - 1) as u16;
    let sqe = Sqe::write(1, 0, blocks, false).with_cid(cid);
    host.send_as(sqe.with_sgl(SglDescriptor::transport(bytes as u32)), &[]);
}

fn read(host: &Host, cid: u16, lba: u64, bytes: usize) {
    let blocks = (bytes / BLOCK_BYTES - 1) as u16;
    let sqe = Sqe::read(1, lba, blocks).with_cid(cid);
    host.send_as(sqe.with_sgl(SglDescriptor::transport(bytes as u32)), &[]);
}

/// Number of R2Ts that the target has sent.
fn requests(host: &Host) -> usize {
    std::iter::from_fn(|| host.take_pdu())
        .filter(|pdu| matches!(pdu, TargetPdu::Request(..)))
        .count()
}

fn turns(stage: &mut Stage, hosts: &[&Host], turns: usize) {
    for _ in 0..turns {
        stage.turn(hosts);
    }
}

/// Advances time in steps that are shorter than any deadline.
fn pass(stage: &mut Stage, hosts: &[&Host], time: Nanos) {
    let until = stage.now + time;
    while stage.now < until {
        stage.now += Nanos::from_millis(20);
        stage.set.expire(stage.now);
        stage.turn(hosts);
    }
}

/// Many connections of one host send as many writes as they may, without data. The target requests
/// data only for their host's share, and requests another host's data immediately.
#[test]
fn a_host_that_never_sends_holds_only_its_share_of_each_size() {
    for bytes in [16 << 10, 64 << 10, 256 << 10, MIB] {
        let mut stage = Stage::new(&ram(), 64 << 20);
        let (_admin, modest) = stage.attach_as(MODEST, 32);
        let greedy: Vec<_> = (0..20).map(|_| stage.attach_as(GREEDY, 32)).collect();
        let total = (stage.arena.counters().classes.iter())
            .find(|class| class.slice_bytes == bytes)
            .expect("a class")
            .total as usize;
        for (_, io) in &greedy {
            (0..30).for_each(|cid| ask(io, cid, bytes));
        }
        let hosts: Vec<_> = greedy.iter().map(|(_, io)| io).collect();
        turns(&mut stage, &hosts, 5);
        let asked: usize = hosts.iter().map(|io| requests(io)).sum();
        assert!(
            asked >= (total / 2).min(600) && asked <= total,
            "{asked} of {total}, {bytes} bytes"
        );
        let taken = stage.arena.counters().classes;
        assert!(
            taken.iter().all(|class| class.taken * 5 <= class.total * 4),
            "{taken:?}"
        );
        assert!(!stage.set.has_pending(), "waits cost nothing");
        ask(&modest, 1, bytes);
        stage.turn(&[&modest]);
        assert_eq!(requests(&modest), 1, "{bytes} bytes");
        let identify = Sqe::identify_structure(nvme_spec::command::Cns::CONTROLLER, 0);
        let identify = identify.with_sgl(SglDescriptor::transport(4096));
        let admin = &greedy[0].0;
        admin.send_as(identify, &[]);
        turns(&mut stage, &[admin], 2);
        assert!(matches!(admin.take_pdu(), Some(TargetPdu::Data(..))));
    }
}

/// TCP 1.1 §3.3.2.2: a host sends the data that an R2T requests. If it sends none for 30 s, its
/// connection is closed and its memory is freed.
#[test]
fn a_host_that_sends_no_solicited_data_is_closed() {
    let mut stage = Stage::new(&ram(), 64 << 20);
    let (admin, io) = stage.attach_as(GREEDY, 32);
    let before = stage.leases_out();
    (0..8).for_each(|cid| ask(&io, cid, MIB));
    turns(&mut stage, &[&io], 3);
    assert_eq!(stage.leases_out() - before, 8);
    pass(&mut stage, &[&admin, &io], Nanos::from_secs(29));
    assert_eq!(stage.leases_out() - before, 8, "not yet");
    pass(&mut stage, &[&admin, &io], Nanos::from_secs(2));
    assert_eq!(stage.leases_out(), before);
    let counters = stage.counters.each().collect::<Vec<_>>();
    assert!(counters.contains(&("data_timeouts", 1)), "{counters:?}");
}

/// If a host without leases waits for memory of that size, the limit is two seconds. A host that
/// sends some of its data from time to time is not closed.
#[test]
fn a_stalled_host_is_closed_when_another_needs_its_memory() {
    for sends in [false, true] {
        // Of several slices of 1 MiB, one would be left for the other host.
        let mut stage = Stage::new(&ram(), 8 << 20);
        assert_eq!(stage.arena.counters().classes[4].total, 1);
        let (_admin, greedy) = stage.attach_as(GREEDY, 32);
        let (_admin, modest) = stage.attach_as(MODEST, 32);
        (0..30).for_each(|cid| ask(&greedy, cid, MIB));
        turns(&mut stage, &[&greedy], 3);
        let tag = match std::iter::from_fn(|| greedy.take_pdu()).last() {
            Some(TargetPdu::Request(cid, tag)) => (cid, tag),
            other => panic!("no request: {other:?}"),
        };
        ask(&modest, 1, MIB);
        turns(&mut stage, &[&greedy, &modest], 3);
        assert_eq!(requests(&modest), 0, "nothing is left");
        for begin in 0..4_u32 {
            pass(&mut stage, &[&greedy, &modest], Nanos::from_secs(1));
            if sends {
                let header = nvme_spec::tcp::H2cData::new(
                    tag.0,
                    tag.1,
                    begin * 512,
                    512,
                    false,
                    greedy.framing,
                );
                greedy.send_bytes(zerocopy::IntoBytes::as_bytes(&header));
                greedy.send_bytes(&[1; 512]);
            }
        }
        assert_eq!(requests(&modest), usize::from(!sends));
    }
}

/// A host that receives none of the data of its reads is closed after 30 s.
#[test]
fn a_host_that_receives_no_data_is_closed() {
    let mut stage = Stage::new(&ram(), 16 << 20);
    let (admin, io) = stage.attach_as(GREEDY, 32);
    (0..8).for_each(|cid| read(&io, cid, 0, MIB));
    io.wire.borrow_mut().room = 3000;
    turns(&mut stage, &[&io], 3);
    pass(&mut stage, &[&admin, &io], Nanos::from_secs(29));
    assert_eq!(stage.set.len(), 2);
    pass(&mut stage, &[&admin, &io], Nanos::from_secs(2));
    assert_eq!(stage.set.len(), 1);
    let counters = stage.counters.each().collect::<Vec<_>>();
    assert!(counters.contains(&("send_timeouts", 1)), "{counters:?}");
}

/// A device queue, as of another core.
fn queue_beside(stage: &Stage, device: &dyn Device) -> Box<dyn DeviceQueue> {
    let options = QueueOptions::new(1, 8, stage.arena.pool(0));
    device.open_queue(options).expect("a queue")
}

/// Submits a write of one block.
fn write(queue: &mut dyn DeviceQueue, pool: &Pool, lba: u64, content: u8) {
    let mut data = pool.take(512).expect("room");
    data.fill(content);
    let request = Request {
        tag: lba,
        operation: Operation::Write { fua: false },
        lba,
        blocks: 1,
        data: Some(data),
    };
    assert!(queue.submit(request).is_ok());
}

/// Number of writes that have completed.
fn written(queue: &mut dyn DeviceQueue) -> usize {
    let mut done = CompletionBatch::new();
    (0..64).for_each(|_| {
        queue.poll(&mut done);
    });
    assert!(done.iter().all(|it| it.result.is_ok()));
    done.len()
}

/// A block that is borrowed for a host that receives nothing can be written within 150 ms, even if
/// no memory is left. A host that receives its data later gets all of it.
#[test]
fn a_borrowed_block_can_be_written_within_150_ms() {
    for exhausted in [false, true] {
        let device: Arc<dyn Device> = ram();
        let mut stage = Stage::new(&device, 16 << 20);
        let pool = stage.arena.pool(0);
        let (_admin, io) = stage.attach_as(GREEDY, 32);
        let mut beside = queue_beside(&stage, &*device);
        io.wire.borrow_mut().room = 3000;
        (0..8).for_each(|cid| read(&io, cid, u64::from(cid) * 2048, MIB));
        turns(&mut stage, &[&io], 3);
        (0..8).for_each(|cid| write(&mut *beside, &pool, cid * 2048, 7));
        let all: Vec<_> = std::iter::from_fn(|| pool.take(1).filter(|_| exhausted)).collect();
        assert_eq!(written(&mut *beside), 0, "they are lent");
        pass(&mut stage, &[&io], Nanos::from_millis(140));
        assert_eq!(written(&mut *beside), 8);
        let mut is_writable = |lba: u64| (0..64).any(|_| beside.write_inline(lba, &[7; 512]));
        // Reads that arrive now do not keep borrows while the host receives nothing.
        if !exhausted {
            (8..16).for_each(|cid| read(&io, cid, 0, MIB));
            turns(&mut stage, &[&io], 3);
            assert!(is_writable(0));
            io.wire.borrow_mut().room = usize::MAX;
            let mut completions = 0;
            for _ in 0..200 {
                stage.turn(&[&io]);
                let pdus = std::iter::from_fn(|| io.take_pdu());
                completions += pdus
                    .filter(|pdu| match pdu {
                        // The first PDU was partly sent before the write.
                        TargetPdu::Data(cid, _, first) => {
                            assert_eq!(*first, if *cid == 0 { 0 } else { 7 });
                            true
                        }
                        _ => false,
                    })
                    .count();
            }
            assert_eq!(completions, 16);
            assert!(is_writable(0));
        }
        drop(all);
    }
}

/// The copy of what a host reads has all of it.
#[test]
fn all_of_a_borrowed_block_is_copied() {
    const BLOCKS: u64 = 64;
    let device: Arc<dyn Device> = ram();
    let mut stage = Stage::new(&device, 16 << 20);
    let pool = stage.arena.pool(0);
    let (_admin, io) = stage.attach_as(GREEDY, 32);
    let mut beside = queue_beside(&stage, &*device);
    for lba in 0..BLOCKS {
        write(&mut *beside, &pool, lba, lba as u8 + 1);
        assert_eq!(written(&mut *beside), 1);
    }
    io.wire.borrow_mut().room = 3000;
    read(&io, 0, 0, BLOCKS as usize * BLOCK_BYTES);
    turns(&mut stage, &[&io], 3);
    write(&mut *beside, &pool, 0, 0);
    write(&mut *beside, &pool, BLOCKS - 1, 0);
    assert_eq!(written(&mut *beside), 0, "they are lent");
    pass(&mut stage, &[&io], Nanos::from_millis(140));
    assert_eq!(written(&mut *beside), 2);
    io.wire.borrow_mut().room = usize::MAX;
    turns(&mut stage, &[&io], 10);
    let sent: Vec<u8> = io.wire.borrow().to_host.iter().copied().collect();
    let data = &sent[sent.len() - BLOCKS as usize * BLOCK_BYTES..];
    let expected = (0..BLOCKS).flat_map(|lba| [lba as u8 + 1; BLOCK_BYTES]);
    assert!(data.iter().copied().eq(expected));
}

/// Hosts that receive nothing, and whose reads alternate with writes, do not delay the last write
/// one after the other. When they receive their data, it is that of one moment.
#[test]
fn readers_between_writes_do_not_delay_a_writer_in_turn() {
    let mut stage = Stage::new(&ram(), 64 << 20);
    let (_admin, writer) = stage.attach_as(MODEST, 32);
    let readers: Vec<_> = (0..4).map(|_| stage.attach_as(GREEDY, 32)).collect();
    for (cid, (_, io)) in (0..).zip(&readers) {
        io.wire.borrow_mut().room = 3000;
        read(io, 0, 0, MIB);
        turns(&mut stage, &[io], 3);
        let sqe = Sqe::write(1, 0, 7, false).with_cid(cid);
        let sqe = sqe.with_sgl(SglDescriptor::in_capsule(0, 4096));
        writer.send_as(sqe, &[cid as u8 + 1; 4096]);
        turns(&mut stage, &[&writer], 3);
    }
    assert!(writer.take_pdu().is_none(), "the block is lent");
    let hosts: Vec<_> = readers.iter().map(|(_, io)| io).chain([&writer]).collect();
    pass(&mut stage, &hosts, Nanos::from_millis(140));
    turns(&mut stage, &hosts, 10);
    let completions = std::iter::from_fn(|| writer.take_pdu()).count();
    assert_eq!(completions, readers.len());
    for (cid, (_, io)) in (0..).zip(&readers) {
        io.wire.borrow_mut().room = usize::MAX;
        turns(&mut stage, &[io], 200);
        match io.take_pdu() {
            Some(TargetPdu::Data(0, _, first)) => assert_eq!(first, cid),
            other => panic!("{other:?}"),
        }
    }
}

/// The same while the connection of such a host is being closed, which waits for the host.
#[test]
fn a_borrowed_block_can_be_written_while_its_reader_is_terminated() {
    let device: Arc<dyn Device> = ram();
    let mut stage = Stage::new(&device, 16 << 20);
    let (_admin, io) = stage.attach_as(GREEDY, 32);
    let mut beside = queue_beside(&stage, &*device);
    io.wire.borrow_mut().room = 3000;
    read(&io, 0, 0, MIB);
    turns(&mut stage, &[&io], 3);
    io.send_bytes(&[0xFF; 128]);
    turns(&mut stage, &[&io], 3);
    write(&mut *beside, &stage.arena.pool(0), 0, 7);
    assert_eq!(written(&mut *beside), 0, "it is lent");
    pass(&mut stage, &[&io], Nanos::from_millis(140));
    assert_eq!(written(&mut *beside), 1);
}

/// TCP 1.1 §3.3.1.1: a wrong data digest fails the command. A Connect that fails ends the
/// connection, however many follow: the target queues one response.
#[test]
fn a_connect_with_a_wrong_digest_receives_one_response() {
    let mut stage = Stage::new(&ram(), 16 << 20);
    let mut host = stage.connect();
    host.initialise_with_data_digest();
    host.wire.borrow_mut().room = 128;
    let connect = host.corrupt_connect();
    let mut sent = 0;
    for _ in 0..1000 {
        (0..100).for_each(|_| host.send_bytes(&connect));
        sent += 100;
        stage.turn(&[&host]);
        let mut left = host.wire.borrow().to_target.len();
        while left > 2 * connect.len() {
            stage.turn(&[&host]);
            let now = host.wire.borrow().to_target.len();
            if now == left {
                break;
            }
            left = now;
        }
        host.wire.borrow_mut().to_target.clear();
    }
    assert_eq!(sent, 100_000);
    host.wire.borrow_mut().room = usize::MAX;
    pass(&mut stage, &[&host], Nanos::from_millis(500));
    let pdus: Vec<_> = std::iter::from_fn(|| host.take_pdu()).collect();
    assert!(
        matches!(pdus[..], [TargetPdu::Initialised, TargetPdu::Response(cqe)]
            if cqe.status() == Status::TRANSIENT_TRANSPORT_ERROR),
        "{pdus:?}"
    );
    pass(&mut stage, &[&host], Nanos::from_secs(2));
    assert_eq!(stage.set.len(), 0);
}

/// In-capsule data that waits for memory stays in its receive buffer. The connections of one host
/// keep so few of these that other hosts still receive with whole buffers.
#[test]
fn one_host_keeps_few_receive_buffers() {
    let null = NullDevice::new(NullOptions {
        name: "null".to_owned(),
        uuid: [1; 16],
        size_bytes: NAMESPACE_BYTES,
        block_size: BLOCK_BYTES as u32,
    })
    .expect("a device");
    let mut stage = Stage::new(&(Arc::new(null) as Arc<dyn Device>), 2 << 20);
    let pool = stage.arena.pool(0);
    let greedy: Vec<_> = (0..12).map(|_| stage.attach_as(GREEDY, 32)).collect();
    let (_admin, modest) = stage.attach_as(MODEST, 32);
    let hoard: Vec<_> = std::iter::from_fn(|| pool.take(1)).collect();
    for (_, io) in &greedy {
        for cid in 0..10 {
            let sqe = Sqe::write(1, 0, 7, false).with_cid(cid);
            io.send_as(sqe.with_sgl(SglDescriptor::in_capsule(0, 4096)), &[1; 4096]);
        }
    }
    let hosts: Vec<_> = greedy.iter().map(|(_, io)| io).collect();
    turns(&mut stage, &hosts, 20);
    drop(hoard);
    let before = modest.wire.borrow().receives;
    for cid in 0..16 {
        let sqe = Sqe::write(1, 0, 7, false).with_cid(cid);
        modest.send_as(sqe.with_sgl(SglDescriptor::in_capsule(0, 4096)), &[1; 4096]);
    }
    stage.set.receive(modest.index, stage.now);
    assert!(modest.wire.borrow().to_target.is_empty(), "all in one turn");
    assert!(modest.wire.borrow().receives - before <= 2);
}

/// Data in a capsule waits for memory, and the data that the target requested for earlier writes
/// comes behind it. These have all the memory that their host may use, so neither can continue.
#[test]
fn data_in_a_capsule_does_not_hold_back_requested_data_for_long() {
    const BYTES: usize = 16 << 10;
    let null = NullDevice::new(NullOptions {
        name: "null".to_owned(),
        uuid: [1; 16],
        size_bytes: NAMESPACE_BYTES,
        block_size: BLOCK_BYTES as u32,
    })
    .expect("a device");
    // Unlike the device itself, its wrapper executes nothing inline.
    let none = Latency::Fixed(Nanos::ZERO);
    let device = DelayDevice::new(Arc::new(null), none, 0, TscClock::new);
    let mut stage = Stage::new(&(Arc::new(device) as Arc<dyn Device>), 4 * MIB);
    let (_admin, host) = stage.attach_as(MODEST, 128);
    let count = 120;
    for cid in 0..count {
        if cid % 60 == 59 {
            let blocks = (BYTES / BLOCK_BYTES - 1) as u16;
            let sqe = Sqe::write(1, 0, blocks, false).with_cid(cid);
            let sgl = SglDescriptor::in_capsule(0, BYTES as u32);
            host.send_as(sqe.with_sgl(sgl), &[1; BYTES]);
        } else {
            ask(&host, cid, BYTES);
        }
    }
    let (mut completed, began) = (0, stage.now);
    while completed < count {
        let waited = stage.now - began;
        assert!(waited < Nanos::from_secs(10), "{completed} of {count}");
        pass(&mut stage, &[&host], Nanos::from_millis(100));
        for pdu in std::iter::from_fn(|| host.take_pdu()) {
            match pdu {
                TargetPdu::Response(cqe) => {
                    assert_eq!(cqe.status(), Status::SUCCESS);
                    completed += 1;
                }
                TargetPdu::Request(cid, tag) => {
                    let header = H2cData::new(cid, tag, 0, BYTES as u32, true, host.framing);
                    host.send_bytes(header.as_bytes());
                    host.send_bytes(&[2; BYTES]);
                }
                other => panic!("out of place: {other:?}"),
            }
        }
    }
    assert_eq!(stage.leases_out(), 0);
}
