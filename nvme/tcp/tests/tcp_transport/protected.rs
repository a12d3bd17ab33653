//! Connections over TLS records: the same responses as without, wherever records and receives split
//! the stream, and the end of a connection whose peer violates TLS.

mod polled;

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::Arc;

use crate::chopped::{expect_script_results, script};
use crate::handover::export;
use crate::harness::wire::{Host, Stage, TargetPdu, Wire, WireEnd};
use crate::harness::{HOST, names_of, ram};
use block::Device;
use block_testing::{DelayDevice, Latency};
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, PropertySize};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{Framing, H2cData};
use nvme_spec::{Cqe, Sqe};
use nvme_target::PortId;
use nvme_tcp::Protected;
use nvme_tls::{
    Alert, Channel, ContentType, Opener, Role, Sealer, Suite, Taken, TrafficSecret, Unsealed,
};
use reactors::{Nanos, TscClock};
use zerocopy::IntoBytes;

fn secret(first: u8) -> TrafficSecret {
    TrafficSecret::new(Suite::Aes128GcmSha256, &[first; 32]).expect("the length fits")
}

/// The host's end of a protected connection: moves bytes between its own wire, without protection,
/// and that of the target.
struct Tunnel {
    host: Host,
    wire: Rc<RefCell<Wire>>,
    channel: Channel,
    /// Bytes that the host puts into a record at most.
    record_bytes: usize,
}

impl Tunnel {
    fn pump(&mut self) {
        let mut plain = self.host.wire.borrow_mut();
        let mut wire = self.wire.borrow_mut();
        while !plain.to_target.is_empty() {
            let bytes = plain.to_target.len().min(self.record_bytes);
            let data: Vec<u8> = plain.to_target.drain(..bytes).collect();
            let pieces = [IoSlice::new(&data)];
            let mut unsealed = Unsealed::new(&pieces);
            while !unsealed.is_empty() {
                self.channel.seal(&mut unsealed);
                wire.to_target.extend(self.channel.unsent());
                self.channel.sent(self.channel.unsent().len());
            }
        }
        loop {
            let room = self.channel.room();
            let bytes = room.len().min(wire.to_host.len());
            for (to, from) in room.iter_mut().zip(wire.to_host.drain(..bytes)) {
                *to = from;
            }
            self.channel.filled(bytes);
            let mut buffer = vec![0; 1 << 17];
            match self.channel.take(&mut [IoSliceMut::new(&mut buffer)]) {
                Taken::Bytes(bytes) => plain.to_host.extend(&buffer[..bytes]),
                Taken::Nothing if bytes > 0 => {}
                Taken::Nothing | Taken::Closed => return,
                Taken::Failed(failure) => panic!("{failure}"),
            }
        }
    }
}

type ProtectedStage = Stage<Protected<WireEnd>>;

fn connect(stage: &mut ProtectedStage, record_bytes: usize) -> Tunnel {
    let wire = Wire::new();
    let channel = Channel::new(Role::Server, secret(1), secret(2));
    let stream = Protected::new(WireEnd::of(&wire), channel);
    let index = stage.set.insert(stream, PortId(0), stage.now);
    let host = Host {
        wire: Wire::new(),
        index: index.ok().expect("room in the table"),
        framing: Framing::default(),
    };
    host.initialise();
    Tunnel {
        host,
        wire,
        channel: Channel::new(Role::Client, secret(2), secret(1)),
        record_bytes,
    }
}

fn turn(stage: &mut ProtectedStage, tunnel: &mut Tunnel) {
    tunnel.pump();
    stage.turn_of(std::iter::once(tunnel.host.index));
    tunnel.pump();
}

/// Runs turns until nothing more is received; returns the target's PDUs.
fn settle(stage: &mut ProtectedStage, tunnel: &mut Tunnel) -> Vec<TargetPdu> {
    let (mut pdus, mut quiet) = (Vec::new(), 0);
    while quiet < 50 {
        let before = tunnel.host.wire.borrow().to_host.len();
        turn(stage, tunnel);
        let is_busy = !tunnel.wire.borrow().to_target.is_empty()
            || tunnel.host.wire.borrow().to_host.len() != before;
        quiet = if is_busy { 0 } else { quiet + 1 };
        while let Some(pdu) = tunnel.host.take_pdu() {
            pdus.push(pdu);
            quiet = 0;
        }
    }
    pdus
}

fn command(stage: &mut ProtectedStage, tunnel: &mut Tunnel, sqe: Sqe, data: &[u8]) -> Cqe {
    tunnel.host.send(sqe.with_cid(0x4242), data);
    let pdus = settle(stage, tunnel);
    let response = pdus.into_iter().find_map(|pdu| match pdu {
        TargetPdu::Response(cqe) => Some(cqe),
        _ => None,
    });
    response.expect("a response")
}

/// An admin connection whose controller is ready, and the controller's identifier.
fn attach_admin(stage: &mut ProtectedStage, record_bytes: usize) -> (Tunnel, u16) {
    let names = names_of(HOST);
    let mut admin = connect(stage, record_bytes);
    let sqe = Sqe::connect_queue(0, 31, ConnectAttributes::new(), 0);
    let cqe = command(
        stage,
        &mut admin,
        sqe,
        names.connect_data(CNTLID_DYNAMIC).as_bytes(),
    );
    assert!(cqe.status().is_success(), "{}", cqe.status());
    let cntlid = cqe.connect_success().cntlid();
    let enable = Sqe::set_property(0x14, PropertySize::BYTES_4, 0x0046_0001);
    assert!(
        command(stage, &mut admin, enable, &[])
            .status()
            .is_success()
    );
    let ready = Sqe::get_property(0x1c, PropertySize::BYTES_4);
    while command(stage, &mut admin, ready, &[]).result() & 1 == 0 {}
    (admin, cntlid)
}

/// An admin connection and an I/O queue of `depth` entries.
fn attach(stage: &mut ProtectedStage, depth: u16, record_bytes: usize) -> (Tunnel, Tunnel) {
    let (admin, cntlid) = attach_admin(stage, record_bytes);
    let names = names_of(HOST);
    let mut io = connect(stage, record_bytes);
    let attributes = ConnectAttributes::new().with_disable_sq_flow_control(true);
    let sqe = Sqe::connect_queue(1, depth - 1, attributes, 0);
    let cqe = command(stage, &mut io, sqe, names.connect_data(cntlid).as_bytes());
    assert!(cqe.status().is_success(), "{}", cqe.status());
    (admin, io)
}

fn stage() -> ProtectedStage {
    Stage::over(&ram(), 16 << 20)
}

#[test]
fn records_and_fragmentation_do_not_change_responses() {
    for record_bytes in [usize::MAX, 1000, 72, 3] {
        for grain in [usize::MAX, 4096, 513, 23, 5, 1] {
            let mut stage = stage();
            let (_admin, mut io) = attach(&mut stage, 32, record_bytes);
            io.wire.borrow_mut().grain = grain;
            io.host.send_bytes(&script());
            let pdus = settle(&mut stage, &mut io);
            expect_script_results(&pdus, &format!("records {record_bytes}, grain {grain}"));
            assert_eq!(stage.leases_out(), 0);
        }
    }
}

/// The responses of a turn share a record.
#[test]
fn many_pdus_share_a_record() {
    let mut stage = stage();
    let (_admin, mut io) = attach(&mut stage, 32, usize::MAX);
    for cid in 0..16 {
        io.host.send(Sqe::flush(1).with_cid(cid), &[]);
    }
    io.pump();
    stage.turn_of(std::iter::once(io.host.index));
    stage.turn_of(std::iter::once(io.host.index));
    let records = {
        let mut wire = io.wire.borrow_mut();
        let bytes = wire.to_host.make_contiguous();
        let (mut rest, mut records) = (&*bytes, 0);
        while let [_, _, _, high, low, ..] = *rest {
            rest = &rest[5 + usize::from(u16::from_be_bytes([high, low]))..];
            records += 1;
        }
        records
    };
    assert!((1..=2).contains(&records), "{records} records");
    assert_eq!(settle(&mut stage, &mut io).len(), 16);
}

/// Writes by R2T and reads of a megabyte, for a host that takes its data slowly.
#[test]
fn large_transfers_are_complete_for_a_slow_host() {
    let mut stage = stage();
    let (_admin, mut io) = attach(&mut stage, 8, usize::MAX);
    let sqe = Sqe::write(1, 0, 2047, false).with_cid(1);
    io.host
        .send_as(sqe.with_sgl(SglDescriptor::transport(1 << 20)), &[]);
    let [TargetPdu::Request(1, tag)] = settle(&mut stage, &mut io)[..] else {
        panic!("an R2T is expected");
    };
    let header = H2cData::new(1, tag, 0, 1 << 20, true, Framing::default());
    let data: Vec<u8> = (0..1 << 20).map(|it| (it / 997) as u8 ^ it as u8).collect();
    io.host.send_bytes(header.as_bytes());
    io.host.send_bytes(&data);
    let pdus = settle(&mut stage, &mut io);
    assert!(matches!(&pdus[..], [TargetPdu::Response(cqe)] if cqe.status().is_success()));

    let sqe = Sqe::read(1, 0, 2047).with_cid(2);
    io.host
        .send_as(sqe.with_sgl(SglDescriptor::transport(1 << 20)), &[]);
    io.pump();
    io.wire.borrow_mut().room = 0;
    let mut received = Vec::new();
    while received.len() < data.len() + 24 {
        stage.turn_of(std::iter::once(io.host.index));
        stage.turn_of(std::iter::once(io.host.index));
        io.wire.borrow_mut().room = 3001;
        stage.turn_of(std::iter::once(io.host.index));
        io.wire.borrow_mut().room = 0;
        io.pump();
        received.extend(io.host.wire.borrow_mut().to_host.drain(..));
    }
    assert_eq!(received[24..], data);
    assert_eq!(stage.leases_out(), 0);
}

/// The stream may keep bytes when all PDUs were accepted. They are sent when it is writable again.
#[test]
fn bytes_that_the_stream_keeps_are_sent() {
    let mut stage = stage();
    let (_admin, mut io) = attach(&mut stage, 8, usize::MAX);
    let index = io.host.index;
    io.wire.borrow_mut().room = 10;
    io.host.send(Sqe::verify(1, 0, 0).with_cid(7), &[]);
    io.pump();
    stage.turn_of(std::iter::once(index));
    stage.turn_of(std::iter::once(index));
    assert_eq!(io.wire.borrow().to_host.len(), 10);
    let mut waits = 0;
    stage.set.writable(index);
    stage.set.flush(stage.now, |_, _| waits += 1);
    assert_eq!(waits, 1, "the stream is watched");
    io.wire.borrow_mut().room = usize::MAX;
    stage.set.writable(index);
    stage.set.flush(stage.now, |_, _| waits += 1);
    assert_eq!(waits, 1);
    let pdus = settle(&mut stage, &mut io);
    assert!(matches!(&pdus[..], [TargetPdu::Response(cqe)] if cqe.cid.get() == 7));
}

/// Opens what the target has sent with the keys of a new connection.
fn opened(wire: &Rc<RefCell<Wire>>, opener: &mut Opener) -> Vec<(ContentType, Vec<u8>)> {
    let mut bytes: Vec<u8> = wire.borrow_mut().to_host.drain(..).collect();
    let mut found = Vec::new();
    while let [_, _, _, high, low, ..] = bytes[..] {
        let rest = bytes.split_off(5 + usize::from(u16::from_be_bytes([high, low])));
        let (kind, content) = opener.open(&mut bytes).expect("the target's record");
        found.push((kind, bytes[content].to_vec()));
        if kind == ContentType::Handshake {
            opener.update();
        }
        bytes = rest;
    }
    found
}

#[test]
fn a_requested_key_update_is_sent_without_data() {
    let mut stage = stage();
    let tunnel = connect(&mut stage, usize::MAX);
    let (mut sealer, mut opener) = (Sealer::new(secret(2)), Opener::new(secret(1)));
    let mut record = [0; 64];
    let bytes = sealer.seal(ContentType::Handshake, &[24, 0, 0, 1, 1], &mut record);
    let bytes = bytes.expect("there is room");
    tunnel.wire.borrow_mut().to_target.extend(&record[..bytes]);
    sealer.update();
    stage.turn_of(std::iter::once(tunnel.host.index));
    let answer = (ContentType::Handshake, vec![24, 0, 0, 1, 0]);
    assert_eq!(opened(&tunnel.wire, &mut opener), [answer]);
    // The next data has the new keys in both directions.
    let request: Vec<u8> = tunnel.host.wire.borrow_mut().to_target.drain(..).collect();
    let pieces = [IoSlice::new(&request)];
    let mut room = [0; 512];
    let bytes = sealer.seal_data(&mut Unsealed::new(&pieces), &mut room);
    tunnel
        .wire
        .borrow_mut()
        .to_target
        .extend(&room[..bytes.expect("there is room")]);
    stage.turn_of(std::iter::once(tunnel.host.index));
    let [(ContentType::ApplicationData, response)] = &opened(&tunnel.wire, &mut opener)[..] else {
        panic!("an ICResp is expected");
    };
    assert_eq!(response[0], 1, "an ICResp");
}

/// Damaged records, and bytes of a host without TLS.
#[test]
fn a_violation_ends_the_connection_with_an_alert() {
    let cases: [(&[u8], Alert); 3] = [
        (
            &[
                23, 3, 3, 0, 17, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17,
            ],
            Alert::BAD_RECORD_MAC,
        ),
        (&[0, 0, 128, 0, 128, 0, 0, 0], Alert::UNEXPECTED_MESSAGE),
        (&[23, 3, 3, 0xff, 0xff], Alert::RECORD_OVERFLOW),
    ];
    for (bytes, alert) in cases {
        let mut stage = stage();
        let tunnel = connect(&mut stage, usize::MAX);
        tunnel.wire.borrow_mut().to_target.extend(bytes);
        for _ in 0..3 {
            stage.turn_of(std::iter::once(tunnel.host.index));
        }
        assert!(stage.set.is_empty(), "the connection has ended");
        let sent = opened(&tunnel.wire, &mut Opener::new(secret(1)));
        assert_eq!(sent, [(ContentType::Alert, alert.message().to_vec())]);
        assert_eq!(stage.leases_out(), 0);
    }
}

/// A violation of NVMe/TCP inside of the records: a termination request, and the end of the data.
#[test]
fn a_termination_request_precedes_the_end() {
    let mut stage = stage();
    let mut tunnel = connect(&mut stage, usize::MAX);
    let request: Vec<u8> = tunnel.host.wire.borrow_mut().to_target.drain(..).collect();
    drop(request);
    tunnel.host.send_bytes(&[9; 128]);
    tunnel.pump();
    stage.turn_of(std::iter::once(tunnel.host.index));
    let sent = opened(&tunnel.wire, &mut Opener::new(secret(1)));
    let [
        (ContentType::ApplicationData, request),
        (ContentType::Alert, alert),
    ] = &sent[..]
    else {
        panic!("{sent:?}");
    };
    assert_eq!(request[0], 3, "a C2HTermReq");
    assert_eq!(alert[..], Alert::CLOSE_NOTIFY.message());
}

/// No other process has the keys of a channel: requests in flight are answered, and then the
/// connection ends, also if its host receives nothing.
#[test]
fn a_hand_over_ends_protected_connections() {
    for host_receives in [true, false] {
        // The admin queue is quiet earlier, but its end would end the I/O queue, too.
        let latency = Latency::Fixed(Nanos::from_millis(2));
        let device = DelayDevice::new(ram(), latency, 0, TscClock::new);
        let device = Arc::new(device) as Arc<dyn Device>;
        let mut stage: ProtectedStage = Stage::over(&device, 16 << 20);
        let (mut admin, mut io) = attach(&mut stage, 8, usize::MAX);
        io.host.send(Sqe::verify(1, 0, 0).with_cid(7), &[]);
        io.pump();
        if !host_receives {
            io.wire.borrow_mut().room = 0;
        }
        stage.turn_of(std::iter::once(io.host.index));
        stage.set.hold(stage.now);
        assert!(export(&mut stage).is_none(), "a command is not complete");
        // Kept, and not executed.
        io.host.send(Sqe::flush(1).with_cid(8), &[]);
        let began = stage.now;
        let (state, places) = loop {
            turn(&mut stage, &mut admin);
            turn(&mut stage, &mut io);
            if let Some(exported) = export(&mut stage) {
                break exported;
            }
            stage.now = stage.now.saturating_add(Nanos::from_millis(1));
            stage.set.expire(stage.now);
            let waited = stage.now.saturating_sub(began);
            assert!(waited < Nanos::from_secs(2), "a host delays it");
        };
        assert!(places.is_empty() && state.tcp_connections.is_empty());
        assert!(state.queues.is_empty() && state.controllers.is_empty());
        io.pump();
        let pdus: Vec<_> = std::iter::from_fn(|| io.host.take_pdu()).collect();
        if host_receives {
            let [TargetPdu::Response(cqe)] = &pdus[..] else {
                panic!("one response: {pdus:?}")
            };
            assert_eq!((cqe.cid.get(), cqe.status().is_success()), (7, true));
            let mut buffer = [0; 64];
            let taken = io.channel.take(&mut [IoSliceMut::new(&mut buffer)]);
            assert!(matches!(taken, Taken::Closed), "close_notify is sent");
        }
        assert_eq!(stage.leases_out(), 0);
    }
}
