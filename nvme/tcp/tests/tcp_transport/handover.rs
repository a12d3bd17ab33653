//! Hand-over of connections (`ARCHITECTURE.md` §9.1): a host continues on the same stream with a new
//! target, wherever the hand-over cuts the stream.

mod processes;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::harness::wire::{Host, Stage, TargetPdu, WireEnd};
use crate::harness::{BLOCK_BYTES, HOST, LIMIT, NAMESPACE_BYTES, names, ram};
use block::{Device, NullDevice, NullOptions};
use block_testing::{DelayDevice, Latency};
use nvme_handover::{SkippedData, State, TcpConnectionRecord, TcpPhase};
use nvme_host_testing::tcp::RawClient;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{CapsuleCmd, H2cData};
use nvme_spec::{Sqe, Status};
use nvme_target::PortId;
use nvme_tcp::{BusyConnections, ByteStream, TcpSocket};
use reactors::{Nanos, TscClock};
use zerocopy::IntoBytes;

const ARENA: usize = 4 << 20;

/// The state and the places of the streams, if all is quiet.
pub(crate) fn export<S: ByteStream>(stage: &mut Stage<S>) -> Option<(State, Vec<u16>)> {
    let core = stage.core.borrow();
    let target = core.target().export(stage.now).ok()?;
    drop(core);
    let mut state = State {
        target,
        ..State::default()
    };
    let places = stage.set.export(stage.now, &mut state).ok()?;
    stage.core.borrow().export(stage.now, &mut state).ok()?;
    Some((state, places))
}

/// A new target that serves the connections of a state; returns the new place of each stream.
fn restore<S: ByteStream>(
    device: &Arc<dyn Device>,
    state: &State,
    streams: Vec<S>,
    now: Nanos,
) -> (Stage<S>, Vec<u16>) {
    let (mut next, places) = restore_held(device, state, streams, now);
    next.set.resume(now);
    (next, places)
}

/// The same, with the connections held.
fn restore_held<S: ByteStream>(
    device: &Arc<dyn Device>,
    state: &State,
    streams: Vec<S>,
    now: Nanos,
) -> (Stage<S>, Vec<u16>) {
    let mut next = Stage::over(device, ARENA);
    next.now = now;
    let target = Arc::clone(next.core.borrow().target());
    target.restore(state).expect("the same configuration");
    let mut all: Vec<_> = state
        .tcp_connections
        .iter()
        .zip(streams)
        .enumerate()
        .collect();
    all.sort_by_key(
        |(_, (record, _))| matches!(record.phase, TcpPhase::Serving { qid, .. } if qid > 0),
    );
    let mut places = vec![0; all.len()];
    for (number, (record, stream)) in all {
        match next.set.restore(stream, state, record, now) {
            Ok(place) => places[number] = place,
            Err((_, error)) => panic!("{error}"),
        }
    }
    (next, places)
}

/// Hands a stage over when it is quiet, and gives the hosts their new places.
fn hand_over(mut stage: Stage, device: &Arc<dyn Device>, hosts: &mut [&mut Host]) -> Stage {
    stage.set.hold(stage.now);
    for _ in 0..1000 {
        if let Some((state, places)) = export(&mut stage) {
            let duplicate = |place: &u16| stage.set.stream(*place).map(WireEnd::duplicate);
            let streams = places.iter().filter_map(duplicate).collect();
            let (next, continued) = restore(device, &state, streams, stage.now);
            for host in hosts {
                let position = places.iter().position(|place| *place == host.index);
                host.index = continued[position.expect("the host's connection")];
            }
            return next;
        }
        let places: Vec<_> = hosts.iter().map(|host| host.index).collect();
        stage.turn_of(places.into_iter());
        // A write may wait for a borrow whose host receives nothing.
        stage.now = stage.now.saturating_add(Nanos::from_millis(1));
        stage.set.expire(stage.now);
    }
    panic!("the stage does not become quiet");
}

fn settle(stage: &mut Stage, host: &Host) -> Vec<TargetPdu> {
    let mut pdus = Vec::new();
    for _ in 0..30 {
        stage.turn(&[host]);
        pdus.extend(std::iter::from_fn(|| host.take_pdu()));
    }
    pdus
}

/// A write of one block in its capsule, then a read of the block before, for each of some blocks.
fn script(host: &Host) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in 0..4_u16 {
        let data = [block as u8 + 1; BLOCK_BYTES];
        let sqe = Sqe::write(1, u64::from(block), 0, false).with_cid(block);
        let sqe = sqe.with_sgl(SglDescriptor::in_capsule(0, 512));
        bytes.extend(CapsuleCmd::new(sqe, 512, host.framing).as_bytes());
        bytes.extend(data);
        if host.framing.data_digest {
            bytes.extend(crc_fast::crc32_iscsi(&data).to_le_bytes());
        }
        let sqe = Sqe::read(1, u64::from(block), 0).with_cid(0x100 + block);
        let sqe = sqe.with_sgl(SglDescriptor::transport(512));
        bytes.extend(CapsuleCmd::new(sqe, 0, host.framing).as_bytes());
    }
    bytes
}

/// The stream is cut at each byte of a capsule's header, and at many others. What the target has received of a PDU is handed
/// over, and each command is answered once, in order.
#[test]
fn a_stream_is_continued_wherever_it_is_cut() {
    let device = ram();
    let mut stage = Stage::new(&device, ARENA);
    let (mut admin, mut io) = stage.attach(32);
    let bytes = script(&io);
    io.send_bytes(&bytes);
    let expected = settle(&mut stage, &io);
    assert_eq!(expected.len(), 8);
    let cuts = (0..=bytes.len()).filter(|cut| *cut < 160 || *cut % 41 == 0 || *cut == bytes.len());
    for cut in cuts {
        io.send_bytes(&bytes[..cut]);
        for _ in 0..cut % 3 {
            stage.turn(&[&io]);
        }
        // A capsule whose data is missing is an unfinished request: the host sends the rest.
        let whole = whole_capsules(&bytes, cut);
        io.send_bytes(&bytes[cut..whole]);
        stage = hand_over(stage, &device, &mut [&mut admin, &mut io]);
        io.send_bytes(&bytes[whole..]);
        let found = settle(&mut stage, &io);
        assert_eq!(
            format!("{found:?}"),
            format!("{expected:?}"),
            "cut at {cut}"
        );
    }
    assert_eq!(stage.leases_out(), 0);
}

/// The end of the capsule that is cut, if its header is before `cut`; otherwise `cut`.
fn whole_capsules(bytes: &[u8], cut: usize) -> usize {
    const WRITE: usize = 72 + BLOCK_BYTES;
    const PAIR: usize = WRITE + 72;
    match cut % PAIR {
        within @ 72..WRITE => (cut - within + WRITE).min(bytes.len()),
        _ => cut,
    }
}

/// A held connection that has no request keeps capsules with their data, as far as they were
/// received, so that a host that stops in the middle of one delays nothing.
#[test]
fn a_partly_received_capsule_is_handed_over() {
    let device = ram();
    for cut in [1, 8, 71, 72, 73, 300, 583, 584, 585, 660] {
        let mut stage = Stage::new(&device, ARENA);
        let (mut admin, mut io) = stage.attach(32);
        let bytes = script(&io);
        stage.set.hold(stage.now);
        io.send_bytes(&bytes[..cut]);
        stage = hand_over(stage, &device, &mut [&mut admin, &mut io]);
        assert_eq!(
            stage.counters.commands.get() as usize,
            0,
            "nothing was received yet"
        );
        io.send_bytes(&bytes[cut..]);
        assert_eq!(settle(&mut stage, &io).len(), 8);
    }
}

/// Writes whose data was requested are completed by the old target. Commands before that data in
/// the stream are answered by the new one, in order.
#[test]
fn commands_before_awaited_data_are_kept() {
    for data_digest in [false, true] {
        commands_before_awaited_data(data_digest);
    }
}

fn commands_before_awaited_data(data_digest: bool) {
    let device = ram();
    let mut stage = Stage::new(&device, ARENA);
    let (mut admin, mut io) = stage.attach(32);
    if data_digest {
        // Only the first connection of a stage negotiates digests here.
        let (second_admin, second_io) = attach_with_digest(&mut stage);
        (admin, io) = (second_admin, second_io);
    }
    let bytes = 4 * BLOCK_BYTES;
    let write = Sqe::write(1, 8, 3, false).with_cid(1);
    io.send_as(write.with_sgl(SglDescriptor::transport(bytes as u32)), &[]);
    let pdus = settle(&mut stage, &io);
    let [TargetPdu::Request(1, tag)] = pdus[..] else {
        panic!("no R2T: {pdus:?}")
    };
    stage.set.hold(stage.now);
    // In the stream: a read, half of the data, a write in its capsule, the other half, and a part of
    // a read.
    let read = Sqe::read(1, 8, 0).with_sgl(SglDescriptor::transport(512));
    io.send_as(read.with_cid(2), &[]);
    let half = |offset: usize, last: bool| {
        let header = H2cData::new(1, tag, offset as u32, bytes as u32 / 2, last, io.framing);
        io.send_bytes(header.as_bytes());
        let data = vec![7; bytes / 2];
        io.send_bytes(&data);
        if data_digest {
            io.send_bytes(&crc_fast::crc32_iscsi(&data).to_le_bytes());
        }
    };
    half(0, false);
    let small = Sqe::write(1, 8, 0, false).with_cid(3);
    let small = small.with_sgl(SglDescriptor::in_capsule(0, 512));
    io.send_as(small, &[9; BLOCK_BYTES]);
    if data_digest {
        io.send_bytes(&crc_fast::crc32_iscsi(&[9; BLOCK_BYTES]).to_le_bytes());
    }
    assert_eq!(settle(&mut stage, &io).len(), 0);
    let busy = stage.set.export(stage.now, &mut State::default());
    assert_eq!(busy, Err(BusyConnections(1)), "a half is missing");
    half(bytes / 2, true);
    let partly = CapsuleCmd::new(read.with_cid(4), 0, io.framing);
    io.send_bytes(&partly.as_bytes()[..50]);
    let old = settle(&mut stage, &io);
    let [TargetPdu::Response(cqe)] = &old[..] else {
        panic!("{old:?}")
    };
    assert_eq!((cqe.cid.get(), cqe.status()), (1, Status::SUCCESS));
    assert_eq!(stage.leases_out(), 0);

    stage = hand_over(stage, &device, &mut [&mut admin, &mut io]);
    io.send_bytes(&partly.as_bytes()[50..]);
    let new = settle(&mut stage, &io);
    assert!(
        matches!(&new[..], [
            TargetPdu::Data(2, true, 7),
            TargetPdu::Response(cqe),
            TargetPdu::Data(4, true, 9),
        ] if cqe.cid.get() == 3 && cqe.status().is_success()),
        "{new:?}"
    );
    assert_eq!(stage.leases_out(), 0);
}

/// An admin queue, and an I/O queue with data digests.
fn attach_with_digest(stage: &mut Stage) -> (Host, Host) {
    use nvme_spec::fabrics::ConnectAttributes;
    let (admin, first) = stage.attach(32);
    let cntlid = stage
        .core
        .borrow()
        .target()
        .snapshot()
        .controllers
        .last()
        .map(|it| it.controller_id);
    drop(first);
    let mut io = stage.connect();
    io.initialise_with_data_digest();
    let attributes = ConnectAttributes::new().with_disable_sq_flow_control(true);
    let connect = Sqe::connect_queue(2, 31, attributes, 0).with_cid(7);
    let data = crate::harness::names_of(HOST).connect_data(cntlid.expect("attached"));
    let connect = connect.with_sgl(SglDescriptor::in_capsule(0, 1024));
    io.send_as(connect, data.as_bytes());
    io.send_bytes(&crc_fast::crc32_iscsi(data.as_bytes()).to_le_bytes());
    let pdus = settle(stage, &io);
    assert!(
        matches!(&pdus[..], [TargetPdu::Initialised, TargetPdu::Response(cqe)]
        if cqe.status().is_success()),
        "{pdus:?}"
    );
    (admin, io)
}

/// Responses and data that the host has not received follow from the new target, each byte once.
#[test]
fn unsent_bytes_are_handed_over() {
    let device = ram();
    for room in [0, 1, 23, 24, 100, 535, 536, 537, 2000] {
        let mut stage = Stage::new(&device, ARENA);
        let (mut admin, mut io) = stage.attach(32);
        let bytes = script(&io);
        io.wire.borrow_mut().room = room;
        io.send_bytes(&bytes);
        for _ in 0..20 {
            stage.turn(&[&io]);
        }
        stage = hand_over(stage, &device, &mut [&mut admin, &mut io]);
        io.wire.borrow_mut().room = usize::MAX;
        let found = settle(&mut stage, &io);
        assert_eq!(found.len(), 8, "room {room}: {found:?}");
        for block in 0..4_u16 {
            let expected = TargetPdu::Data(0x100 + block, true, block as u8 + 1);
            assert!(found.contains(&expected), "room {room}: {found:?}");
        }
        io.send_bytes(&bytes);
        assert_eq!(settle(&mut stage, &io).len(), 8);
        assert_eq!(stage.leases_out(), 0);
    }
}

/// A hold that ends without a hand-over is a pause: the old target continues.
#[test]
fn a_held_connection_can_be_resumed() {
    let device = ram();
    let mut stage = Stage::new(&device, ARENA);
    let (_admin, io) = stage.attach(32);
    let bytes = script(&io);
    for cut in [0, 30, 72, 600, bytes.len()] {
        stage.set.hold(stage.now);
        io.send_bytes(&bytes[..cut]);
        assert_eq!(settle(&mut stage, &io).len(), 0, "nothing is admitted");
        assert_eq!(io.wire.borrow().to_target.len(), cut, "nothing is received");
        assert!(export(&mut stage).is_some());
        stage.set.resume(stage.now);
        io.send_bytes(&bytes[cut..]);
        assert_eq!(settle(&mut stage, &io).len(), 8);
    }
    assert_eq!(stage.leases_out(), 0);
}

/// A hold may end before it is quiet, because a host does not send the data that a request waits for.
/// The kept bytes are interpreted in their place, wherever the stream is cut then.
#[test]
fn a_hold_can_end_at_any_byte() {
    let bytes = 4 * BLOCK_BYTES;
    for data_digest in [false, true] {
        let (mut cut, mut length) = (0, 1);
        while cut <= length {
            let device = ram();
            let mut stage = Stage::new(&device, ARENA);
            let (mut admin, mut io) = stage.attach(32);
            if data_digest {
                (admin, io) = attach_with_digest(&mut stage);
            }
            let write = Sqe::write(1, 8, 3, false).with_cid(1);
            io.send_as(write.with_sgl(SglDescriptor::transport(bytes as u32)), &[]);
            let pdus = settle(&mut stage, &io);
            let [TargetPdu::Request(1, tag)] = pdus[..] else {
                panic!("no R2T: {pdus:?}")
            };
            let stream = stream_before_awaited_data(&io, tag, bytes);
            length = stream.len();
            stage.set.hold(stage.now);
            io.send_bytes(&stream[..cut]);
            let mut found = settle(&mut stage, &io);
            stage.set.resume(stage.now);
            found.extend(settle(&mut stage, &io));
            io.send_bytes(&stream[cut..]);
            found.extend(settle(&mut stage, &io));
            assert_eq!(found.len(), 4, "cut {cut}: {found:?}");
            for cid in [1, 3] {
                let is_it = |pdu: &TargetPdu| matches!(pdu, TargetPdu::Response(cqe) if cqe.cid.get() == cid && cqe.status().is_success());
                assert!(found.iter().any(is_it), "cut {cut}: {found:?}");
            }
            for (block, content) in [(8, 7), (11, 7), (20, 9), (21, 0)] {
                let read = Sqe::read(1, block, 0).with_sgl(SglDescriptor::transport(512));
                io.send_as(read.with_cid(9), &[]);
                let pdus = settle(&mut stage, &io);
                assert_eq!(pdus, [TargetPdu::Data(9, true, content)], "cut {cut}");
            }
            assert_eq!(stage.leases_out(), 0);
            drop(admin);
            // Within headers at each byte.
            cut += if cut % 536 < 80 || length - cut < 80 {
                1
            } else {
                37
            };
        }
    }
}

/// A read, half of the data of a request, a write in its capsule, the other half, and a read.
fn stream_before_awaited_data(io: &Host, tag: u16, bytes: usize) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut append = |header: &[u8], data: &[u8]| {
        stream.extend(header);
        stream.extend(data);
        if !data.is_empty() && io.framing.data_digest {
            stream.extend(crc_fast::crc32_iscsi(data).to_le_bytes());
        }
    };
    let read = Sqe::read(1, 8, 0).with_sgl(SglDescriptor::transport(512));
    let read = |cid| CapsuleCmd::new(read.with_cid(cid), 0, io.framing);
    let half = |offset: usize, last: bool| {
        H2cData::new(1, tag, offset as u32, bytes as u32 / 2, last, io.framing)
    };
    let data = vec![7; bytes / 2];
    append(read(2).as_bytes(), &[]);
    append(half(0, false).as_bytes(), &data);
    let small = Sqe::write(1, 20, 0, false).with_cid(3);
    let small = small.with_sgl(SglDescriptor::in_capsule(0, 512));
    let small = CapsuleCmd::new(small, 512, io.framing);
    append(small.as_bytes(), &[9; BLOCK_BYTES]);
    append(half(bytes / 2, true).as_bytes(), &data);
    append(read(4).as_bytes(), &[]);
    stream
}

/// The bytes that a hold has kept wait for memory when the next hold begins, as they may after a new
/// process has failed. The connection is held when they are interpreted.
#[test]
fn a_connection_that_is_being_resumed_is_held_later() {
    const BYTES: usize = 4096;
    // More than a receive buffer.
    const COUNT: u16 = 120;
    let null = NullDevice::new(NullOptions {
        name: "null".to_owned(),
        uuid: [1; 16],
        size_bytes: NAMESPACE_BYTES,
        block_size: BLOCK_BYTES as u32,
    });
    // Unlike the device itself, its wrapper executes nothing inline.
    let none = Latency::Fixed(Nanos::ZERO);
    let device = DelayDevice::new(Arc::new(null.expect("a device")), none, 0, TscClock::new);
    let device = Arc::new(device) as Arc<dyn Device>;
    let mut stage = Stage::new(&device, ARENA);
    let (_admin, io) = stage.attach(128);
    let write = |cid, sgl| Sqe::write(1, 0, 7, false).with_cid(cid).with_sgl(sgl);
    io.send_as(write(0, SglDescriptor::transport(BYTES as u32)), &[]);
    let Some(TargetPdu::Request(_, tag)) = settle(&mut stage, &io).pop() else {
        panic!("no R2T")
    };
    stage.set.hold(stage.now);
    for cid in 1..=COUNT {
        let sgl = SglDescriptor::in_capsule(0, BYTES as u32);
        io.send_as(write(cid, sgl), &[1; BYTES]);
    }
    io.send_bytes(H2cData::new(0, tag, 0, BYTES as u32, true, io.framing).as_bytes());
    io.send_bytes(&[2; BYTES]);
    // The target receives little at a time while it awaits data.
    let pdus: Vec<_> = (0..20).flat_map(|_| settle(&mut stage, &io)).collect();
    assert_eq!(pdus.len(), 1, "only what was begun: {pdus:?}");
    assert!(export(&mut stage).is_some());
    let pool = stage.arena.pool(0);
    let hoard: Vec<_> = std::iter::from_fn(|| pool.take(1)).collect();
    stage.set.resume(stage.now);
    assert_eq!(settle(&mut stage, &io).len(), 0, "there is no memory");
    stage.set.hold(stage.now);
    assert!(export(&mut stage).is_none(), "commands are under way");
    drop(hoard);
    let mut completed = 0;
    for _ in 0..1000 {
        completed += settle(&mut stage, &io).len();
        if export(&mut stage).is_some() {
            assert_eq!(completed, usize::from(COUNT));
            return;
        }
    }
    panic!("{completed} commands are complete, and the connection is not held");
}

/// A process that is told to end while it holds its connections closes them.
#[test]
fn a_held_connection_can_be_closed() {
    let device = ram();
    let mut stage = Stage::new(&device, ARENA);
    let (admin, io) = stage.attach(32);
    stage.set.hold(stage.now);
    io.send_bytes(&script(&io));
    for host in [&admin, &io] {
        host.wire.borrow_mut().closed = true;
    }
    for _ in 0..2000 {
        if stage.set.drain(stage.now) == 0 {
            break;
        }
        stage.turn(&[&admin, &io]);
        stage.now = stage.now.saturating_add(Nanos::from_millis(1));
        stage.set.expire(stage.now);
    }
    assert!(stage.set.is_empty());
    assert_eq!(stage.core.borrow().queues(), 0);
}

/// Base 2.1 §5.1.2: an outstanding event request keeps its slot and its command identifier.
#[test]
fn event_requests_stay_outstanding() {
    let device = ram();
    let mut stage = Stage::new(&device, ARENA);
    let (mut admin, mut io) = stage.attach(32);
    for cid in [0x51, 0x52] {
        admin.send(Sqe::async_event_request().with_cid(cid), &[]);
    }
    assert_eq!(settle(&mut stage, &admin), []);
    stage = hand_over(stage, &device, &mut [&mut admin, &mut io]);
    assert_eq!(settle(&mut stage, &admin), []);
    let abort = Sqe::abort_command(0, 0x52).with_cid(0x60);
    admin.send(abort, &[]);
    let pdus = settle(&mut stage, &admin);
    let cids: Vec<_> = pdus
        .iter()
        .map(|pdu| match pdu {
            TargetPdu::Response(cqe) => cqe.cid.get(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(cids.contains(&0x52) && cids.contains(&0x60), "{cids:?}");
    // 32 entries, of which one is an event request.
    for cid in 0..31 {
        admin.send(Sqe::keep_alive().with_cid(cid), &[]);
    }
    assert_eq!(settle(&mut stage, &admin).len(), 31);
}

/// Connections that are not set up yet are handed over too: before the ICReq, and before Connect.
#[test]
fn connections_that_are_set_up_are_continued() {
    let device = ram();
    let mut stage = Stage::new(&device, ARENA);
    let mut fresh = stage.connect();
    let mut initialised = stage.connect();
    initialised.initialise();
    assert_eq!(settle(&mut stage, &initialised), [TargetPdu::Initialised]);
    let mut partial = stage.connect();
    partial.send_bytes(&[0, 0, 128]);
    settle(&mut stage, &partial);
    stage = hand_over(
        stage,
        &device,
        &mut [&mut fresh, &mut initialised, &mut partial],
    );
    for host in [&fresh, &partial] {
        let request = nvme_spec::tcp::IcReq::new(0, Default::default(), 0);
        let sent = if std::ptr::eq(host, &partial) { 3 } else { 0 };
        host.send_bytes(&request.as_bytes()[sent..]);
        assert_eq!(settle(&mut stage, host), [TargetPdu::Initialised]);
    }
    for host in [&fresh, &initialised, &partial] {
        let connect = Sqe::connect_queue(0, 31, Default::default(), 0);
        let data = names().connect_data(nvme_spec::fabrics::CNTLID_DYNAMIC);
        let cqe = stage.command(host, connect, data.as_bytes());
        assert!(cqe.status().is_success(), "{}", cqe.status());
    }
}

/// While a request waits for data, a host cannot make the target keep more commands than its queue
/// has entries.
#[test]
fn kept_commands_are_limited() {
    let device = ram();
    let mut stage = Stage::new(&device, ARENA);
    let (_admin, io) = stage.attach(4);
    let write = Sqe::write(1, 8, 3, false).with_cid(1);
    io.send_as(write.with_sgl(SglDescriptor::transport(2048)), &[]);
    assert_eq!(settle(&mut stage, &io).len(), 1, "an R2T");
    stage.set.hold(stage.now);
    for cid in 2..5 {
        io.send_as(Sqe::flush(1).with_cid(cid), &[]);
    }
    assert_eq!(settle(&mut stage, &io).len(), 0);
    io.send_as(Sqe::flush(1).with_cid(5), &[]);
    assert_eq!(settle(&mut stage, &io), [TargetPdu::Terminated]);
    assert_eq!(stage.leases_out(), 0);
}

/// Invalid records are refused with the stream, and leave nothing.
#[test]
fn invalid_records_are_refused() {
    let device = ram();
    let mut stage = Stage::new(&device, ARENA);
    let (_admin, _io) = stage.attach(32);
    stage.set.hold(stage.now);
    let (state, places) = export(&mut stage).expect("quiet");
    let refusal = |change: &dyn Fn(&mut TcpConnectionRecord)| {
        let mut record = state.tcp_connections[0].clone();
        change(&mut record);
        let mut next = Stage::<WireEnd>::over(&device, ARENA);
        next.core.borrow().target().restore(&state).expect("valid");
        let stream = stage.set.stream(places[0]).expect("open").duplicate();
        let refused = next.set.restore(stream, &state, &record, next.now);
        let Err((_stream, error)) = refused else {
            panic!("accepted")
        };
        assert!(next.set.is_empty());
        assert_eq!(next.core.borrow().queues(), 0);
        error.to_string()
    };
    let invalid = |problem: &str| format!("the record of a connection is invalid: {problem}");
    assert_eq!(
        refusal(&|it| it.host_alignment_z = 32),
        invalid("the data alignment is invalid")
    );
    for limit in [0, 4095, u32::MAX] {
        assert_eq!(
            refusal(&|it| it.host_data_max_bytes = limit),
            invalid("the limit of an H2CData PDU is invalid")
        );
    }
    assert_eq!(
        refusal(&|it| it.in_capsule_max_bytes = u32::MAX),
        invalid("the limit of in-capsule data is invalid")
    );
    let skipped = SkippedData {
        remaining: u32::MAX,
        digest: false,
    };
    assert_eq!(
        refusal(&|it| it.skipped = Some(skipped)),
        invalid("the data to discard is longer than a PDU")
    );
    assert_eq!(
        refusal(&|it| {
            it.phase = TcpPhase::Serving {
                controller_id: 1,
                qid: 9,
            }
        }),
        invalid("its queue does not exist")
    );
    assert_eq!(
        refusal(&|it| {
            it.phase = TcpPhase::Serving {
                controller_id: 1,
                qid: 1,
            }
        }),
        "queue 1 of controller 1: its controller does not exist"
    );
}

/// What a host does on a socket, and what it has done.
#[derive(Default)]
struct Progress {
    finished: AtomicBool,
    rounds: AtomicU64,
}

impl Progress {
    /// Writes and reads without a pause until it is told to finish. Each response must be right, and
    /// the connections never end.
    fn attach_and_work(&self, address: SocketAddr) {
        let mut admin = RawClient::connect(address, LIMIT).expect("a connection");
        let cntlid = admin.open_admin(&names()).expect("connected");
        let mut io = RawClient::connect(address, LIMIT).expect("a connection");
        io.open_io(&names(), cntlid, 1).expect("connected");
        let mut previous: Option<Vec<u8>> = None;
        for round in 1_u64.. {
            let data = vec![round as u8; 16 * BLOCK_BYTES];
            let mut read = |expected: &[u8]| {
                let read = Sqe::read(1, 16, 15);
                let bytes = expected.len() as u32;
                let (cqe, found) = io.command(read, &[], bytes).expect("a response");
                assert_eq!(cqe.status(), Status::SUCCESS);
                assert_eq!(found, expected, "round {round}");
            };
            if let Some(previous) = &previous {
                read(previous);
            }
            let write = Sqe::write(1, 16, 15, false);
            let (cqe, _) = io.command(write, &data, 0).expect("a response");
            assert_eq!(cqe.status(), Status::SUCCESS);
            previous = Some(data);
            let (cqe, _) = admin.command(Sqe::keep_alive(), &[], 0).expect("alive");
            assert_eq!(cqe.status(), Status::SUCCESS);
            self.rounds.store(round, Ordering::Relaxed);
            if self.finished.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// Serves the host until its queues are connected.
fn accept_two(stage: &mut Stage<TcpSocket>, listener: &TcpListener) -> Vec<u16> {
    listener.set_nonblocking(true).expect("an option");
    let (mut places, began) = (Vec::new(), Instant::now());
    while stage.core.borrow().queues() < 2 {
        assert!(began.elapsed() < LIMIT, "the host does not connect");
        if let Ok((stream, _)) = listener.accept() {
            let stream = TcpSocket::new(stream).expect("options");
            let inserted = stage.set.insert(stream, PortId(0), stage.now);
            places.push(inserted.expect("room"));
        }
        run(stage, &places, Duration::from_millis(1));
    }
    places
}

/// A real socket: a host that writes and reads without a pause continues on the same connections
/// through many hand-overs.
#[test]
fn a_host_on_a_socket_sees_no_reconnect() {
    let device = ram();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let address = listener.local_addr().expect("bound");
    let progress = Progress::default();
    std::thread::scope(|threads| {
        let host = threads.spawn(|| progress.attach_and_work(address));
        let mut stage = Stage::<TcpSocket>::over(&device, ARENA);
        let mut places = accept_two(&mut stage, &listener);
        for _ in 0..20 {
            run(&mut stage, &places, Duration::from_millis(3));
            stage = hand_over_sockets(stage, &device, &mut places);
        }
        let before = progress.rounds.load(Ordering::Relaxed);
        let began = Instant::now();
        while progress.rounds.load(Ordering::Relaxed) < before + 3 && began.elapsed() < LIMIT {
            run(&mut stage, &places, Duration::from_millis(1));
        }
        progress.finished.store(true, Ordering::Relaxed);
        while !host.is_finished() && began.elapsed() < LIMIT {
            run(&mut stage, &places, Duration::from_millis(1));
        }
        drop(stage);
        host.join().expect("the host sees no error");
    });
}

fn run(stage: &mut Stage<TcpSocket>, places: &[u16], time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        stage.turn_of(places.iter().copied());
    }
}

/// Holds a stage and runs it until it can be exported.
fn export_when_quiet(stage: &mut Stage<TcpSocket>, places: &[u16]) -> (State, Vec<u16>) {
    stage.set.hold(stage.now);
    let began = Instant::now();
    loop {
        if let Some(exported) = export(stage) {
            return exported;
        }
        assert!(began.elapsed() < LIMIT, "it does not become quiet");
        stage.turn_of(places.iter().copied());
    }
}

/// The old target and its descriptors are gone before the new one serves.
fn hand_over_sockets(
    mut stage: Stage<TcpSocket>,
    device: &Arc<dyn Device>,
    places: &mut Vec<u16>,
) -> Stage<TcpSocket> {
    let (state, exported) = export_when_quiet(&mut stage, places);
    let duplicate = |place: &u16| {
        let stream = stage.set.stream(*place).expect("open");
        let descriptor = stream.as_fd().try_clone_to_owned().expect("a descriptor");
        TcpSocket::new(TcpStream::from(descriptor)).expect("a connected socket")
    };
    let streams = exported.iter().map(duplicate).collect();
    let now = stage.now;
    drop(stage);
    let (next, continued) = restore(device, &state, streams, now);
    *places = continued;
    next
}
