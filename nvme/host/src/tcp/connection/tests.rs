//! Tests of a connection with a scripted target: correct behaviour, then every violation of the
//! protocol.

use std::io::{IoSlice, IoSliceMut};

use nvme_spec::tcp::{
    C2hData, C2hEnd, CapsuleResp, CommonHeader, FatalError, IcResp, PduType, R2t,
};
use nvme_spec::{Cqe, Status, U16, U32};
use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;
use crate::link::Completion;
use crate::tcp::pdu::assemble;

/// A stream whose receives return scripted chunks, one each, and whose sends are recorded.
#[derive(Debug, Default)]
struct Script {
    chunks: VecDeque<Vec<u8>>,
    ended: bool,
    sent: Vec<u8>,
    sends: usize,
}

impl ByteStream for Script {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> StreamResult {
        let Some(mut chunk) = self.chunks.pop_front() else {
            return if self.ended {
                StreamResult::Ended
            } else {
                StreamResult::Nothing
            };
        };
        let mut taken = 0;
        for buffer in buffers {
            let len = buffer.len().min(chunk.len() - taken);
            buffer[..len].copy_from_slice(&chunk[taken..taken + len]);
            taken += len;
        }
        if taken < chunk.len() {
            self.chunks.push_front(chunk.split_off(taken));
        }
        if taken == 0 {
            StreamResult::Nothing
        } else {
            StreamResult::Bytes(taken)
        }
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> StreamResult {
        self.sends += 1;
        let before = self.sent.len();
        for buffer in buffers {
            self.sent.extend_from_slice(buffer);
        }
        StreamResult::Bytes(self.sent.len() - before)
    }

    fn wait(&self, _: bool, _: Duration) {}
}

type Tested = Connection<Script, Vec<u8>>;

const PLAIN: Framing = Framing {
    header_digest: false,
    data_digest: false,
    alignment_z: 0,
};
const DIGESTS: Framing = Framing {
    header_digest: true,
    data_digest: true,
    alignment_z: 0,
};

fn connection(framing: Framing) -> Tested {
    let mut connection = connection_of(framing, 8, 16 * 1024);
    connection.parameters.in_capsule_max_bytes = 8192;
    connection
}

/// An initialised connection whose target accepts H2CData of 4096 bytes.
fn connection_of(framing: Framing, depth: usize, receive_bytes: usize) -> Tested {
    let digests = DigestFlags::new()
        .with_header(framing.header_digest)
        .with_data(framing.data_digest);
    let mut connection = Connection::new(Script::default(), digests, depth, receive_bytes);
    let response = IcResp::new(framing.alignment_z, digests, 4096);
    arrive(&mut connection, response.as_bytes());
    let initialized = connection.initialize(Duration::from_secs(30));
    initialized.expect("the answer is there");
    connection.stream = Script::default();
    connection.counters = ConnectionCounters::default();
    connection
}

fn bytes_of(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 % 251) as u8).collect()
}

fn read(connection: &mut Tested, len: usize, token: u64) -> u16 {
    let cid = connection
        .submit(Sqe::read(1, 0, 0), Transfer::Read(vec![0; len]), token)
        .expect("room for a command");
    connection.flush().expect("taken");
    cid
}

fn write(connection: &mut Tested, data: Vec<u8>, token: u64) -> u16 {
    let cid = connection
        .submit(Sqe::write(1, 0, 0, false), Transfer::Write(data), token)
        .expect("room for a command");
    connection.flush().expect("taken");
    cid
}

fn arrive(connection: &mut Tested, bytes: &[u8]) {
    connection.stream.chunks.push_back(bytes.to_vec());
}

fn poll(connection: &mut Tested) -> Result<Vec<Completion<Vec<u8>>>, HostError> {
    let mut completions = Completions::new();
    while !connection.stream.chunks.is_empty() {
        connection.poll(&mut completions)?;
    }
    // Once more: an error that occurs together with completions is reported by the next poll.
    connection.poll(&mut completions)?;
    Ok(completions.into_iter().collect())
}

fn data_pdu(cid: u16, offset: u32, data: &[u8], end: C2hEnd, framing: Framing) -> Vec<u8> {
    let pdu = C2hData::new(cid, offset, data.len() as u32, end, framing);
    assemble(pdu.as_bytes(), pdu.ch, data)
}

fn response(cid: u16, status: Status, framing: Framing) -> Vec<u8> {
    let pdu = CapsuleResp::new(Cqe::new(cid, status), framing);
    assemble(pdu.as_bytes(), pdu.ch, &[])
}

fn r2t(cid: u16, ttag: u16, offset: u32, length: u32, framing: Framing) -> Vec<u8> {
    let pdu = R2t::new(cid, ttag, offset, length, framing);
    assemble(pdu.as_bytes(), pdu.ch, &[])
}

#[test]
fn data_with_success_completes_a_read_without_a_capsule() {
    for framing in [PLAIN, DIGESTS] {
        let mut connection = connection(framing);
        let cid = read(&mut connection, 4096, 42);
        let data = bytes_of(4096);
        arrive(
            &mut connection,
            &data_pdu(cid, 0, &data, C2hEnd::Success, framing),
        );
        let [done] = &poll(&mut connection).expect("fine")[..] else {
            panic!("one completion")
        };
        assert_eq!(
            (done.token, done.received, done.status()),
            (42, 4096, Status::SUCCESS)
        );
        assert_eq!(done.data.as_ref(), Some(&data));
        assert_eq!(connection.slots.in_flight(), 0);
    }
}

#[test]
fn read_data_in_several_pdus_is_followed_by_a_capsule() {
    for framing in [PLAIN, DIGESTS] {
        let mut connection = connection(framing);
        let cid = read(&mut connection, 10_000, 1);
        let data = bytes_of(10_000);
        for (start, end, kind) in [
            (0, 4000, C2hEnd::More),
            (4000, 4004, C2hEnd::More),
            (4004, 10_000, C2hEnd::Last),
        ] {
            let pdu = data_pdu(cid, start as u32, &data[start..end], kind, framing);
            arrive(&mut connection, &pdu);
            assert!(poll(&mut connection).expect("fine").is_empty());
        }
        arrive(&mut connection, &response(cid, Status::SUCCESS, framing));
        let [done] = &poll(&mut connection).expect("fine")[..] else {
            panic!("one completion")
        };
        assert_eq!(done.data.as_ref(), Some(&data));
    }
}

#[test]
fn many_small_responses_in_one_receive_complete() {
    let mut connection = connection(PLAIN);
    let cids: Vec<u16> = (0..8)
        .map(|token| read(&mut connection, 512, token))
        .collect();
    let data_pdus: Vec<u8> = cids
        .iter()
        .rev()
        .flat_map(|&cid| data_pdu(cid, 0, &bytes_of(512), C2hEnd::Success, PLAIN))
        .collect();
    arrive(&mut connection, &data_pdus);
    let done = poll(&mut connection).expect("fine");
    let tokens: Vec<u64> = done.iter().map(|completion| completion.token).collect();
    assert_eq!(tokens, (0..8).rev().collect::<Vec<_>>());
    assert!(
        done.iter()
            .all(|completion| completion.data == Some(bytes_of(512)))
    );
    assert_eq!(connection.counters.copied_bytes, 8 * 512);
    assert_eq!(connection.counters.completed, 8);
}

#[test]
fn excess_completions_are_returned_by_the_next_poll() {
    let mut connection = connection_of(PLAIN, COMPLETIONS_MAX + 5, 1 << 20);
    for token in 0..COMPLETIONS_MAX as u64 + 5 {
        let cid = read(&mut connection, 512, token);
        let data_pdu_bytes = data_pdu(cid, 0, &bytes_of(512), C2hEnd::Success, PLAIN);
        match connection.stream.chunks.back_mut() {
            Some(chunk) => chunk.extend(data_pdu_bytes),
            None => arrive(&mut connection, &data_pdu_bytes),
        }
    }
    let mut first = Completions::new();
    assert_eq!(connection.poll(&mut first).expect("fine"), COMPLETIONS_MAX);
    let receives = connection.counters.receives;
    let mut second = Completions::new();
    assert_eq!(connection.poll(&mut second).expect("fine"), 5);
    assert_eq!(second[4].token, COMPLETIONS_MAX as u64 + 4);
    assert_eq!(receives, 1, "everything was there after one receive");
}

#[test]
fn large_data_is_received_in_place() {
    let mut connection = connection(PLAIN);
    let large = bytes_of(256 * 1024);
    for _ in 0..16 {
        let cid = read(&mut connection, large.len(), 0);
        arrive(
            &mut connection,
            &data_pdu(cid, 0, &large, C2hEnd::Success, PLAIN),
        );
        assert_eq!(
            poll(&mut connection).expect("fine")[0].data.as_ref(),
            Some(&large)
        );
    }
    let counters = connection.counters;
    assert_eq!(
        counters.placed_bytes + counters.copied_bytes,
        16 * 256 * 1024
    );
    assert!(
        counters.copied_bytes * 20 < counters.placed_bytes,
        "{counters:?}"
    );
}

#[test]
fn queued_capsules_are_sent_in_one_call() {
    let mut connection = connection(PLAIN);
    for token in 0..4 {
        let transfer = Transfer::Read(vec![0; 512]);
        connection
            .submit(Sqe::read(1, token, 0), transfer, token)
            .expect("room");
    }
    let data = bytes_of(512);
    connection
        .submit(Sqe::write(1, 9, 0, true), Transfer::Write(data), 9)
        .expect("room");
    connection.flush().expect("taken");
    assert_eq!(connection.stream.sends, 1);
    assert_eq!(connection.stream.sent.len(), 5 * 72 + 512);
}

/// The PDUs that the host sent, split by PLEN: common header and whole PDU.
fn sent_pdus(connection: &Tested) -> Vec<(CommonHeader, Vec<u8>)> {
    let mut rest = &connection.stream.sent[..];
    let mut pdus = Vec::new();
    while !rest.is_empty() {
        let (common, _) = CommonHeader::read_from_prefix(rest).expect("a common header");
        let (pdu, after) = rest.split_at(common.plen.get() as usize);
        pdus.push((common, pdu.to_vec()));
        rest = after;
    }
    pdus
}

#[test]
fn short_writes_use_in_capsule_data() {
    for framing in [
        PLAIN,
        DIGESTS,
        Framing {
            alignment_z: 31,
            ..DIGESTS
        },
    ] {
        let mut connection = connection(framing);
        let data = bytes_of(4096);
        let cid = write(&mut connection, data.clone(), 3);
        let (common, pdu) = sent_pdus(&connection).remove(0);
        let capsule = CapsuleCmd::read_from_prefix(&pdu).expect("a capsule").0;
        assert_eq!(capsule.sqe.dptr.sgl(), SglDescriptor::in_capsule(0, 4096));
        assert_eq!(capsule.sqe.cid.get(), cid);
        let pdo = usize::from(common.pdo);
        assert!(pdo.is_multiple_of(framing.alignment_bytes() as usize));
        assert_eq!(pdu[pdo..pdo + 4096], data[..]);
        if framing.header_digest {
            assert_eq!(pdu[72..76], digest(&pdu[..72]));
            assert_eq!(pdu[pdo + 4096..], digest(&data));
        }
        arrive(&mut connection, &response(cid, Status::SUCCESS, framing));
        let done = poll(&mut connection).expect("fine").remove(0);
        assert_eq!((done.token, done.data), (3, Some(data)));
    }
}

#[test]
fn long_writes_send_data_as_requested_by_r2ts() {
    for framing in [
        PLAIN,
        DIGESTS,
        Framing {
            alignment_z: 7,
            ..DIGESTS
        },
    ] {
        let mut connection = connection(framing);
        let data = bytes_of(20_000);
        let cid = write(&mut connection, data.clone(), 5);
        for (ttag, start, end) in [(7, 0, 10_000), (8, 10_000, 10_001), (9, 10_001, 20_000_u32)] {
            arrive(
                &mut connection,
                &r2t(cid, ttag, start, end - start, framing),
            );
            assert!(poll(&mut connection).expect("fine").is_empty());
            connection.stream.sent.clear();
            connection.flush().expect("taken");
            let mut next = start;
            for (common, pdu) in sent_pdus(&connection) {
                let header = H2cData::read_from_prefix(&pdu).expect("a data PDU").0;
                let len = header.datal.get();
                assert!(len <= 4096);
                assert_eq!((header.cccid.get(), header.ttag.get()), (cid, ttag));
                assert_eq!(header.datao.get(), next);
                let pdo = usize::from(common.pdo);
                let part = &data[next as usize..(next + len) as usize];
                assert_eq!(&pdu[pdo..pdo + len as usize], part);
                if framing.data_digest {
                    assert_eq!(pdu[pdo + len as usize..], digest(part));
                }
                next += len;
                assert_eq!(common.flags.last_pdu(), next == end);
            }
            assert_eq!(next, end);
        }
        arrive(&mut connection, &response(cid, Status::SUCCESS, framing));
        assert_eq!(
            poll(&mut connection).expect("fine")[0].data.as_ref(),
            Some(&data)
        );
    }
}

#[test]
fn wrong_data_digest_fails_only_its_command() {
    let mut connection = connection(DIGESTS);
    let cid = read(&mut connection, 512, 1);
    let other = read(&mut connection, 512, 2);
    let mut damaged = data_pdu(cid, 0, &bytes_of(512), C2hEnd::Success, DIGESTS);
    let middle = damaged.len() - 100;
    damaged[middle] ^= 1;
    arrive(&mut connection, &damaged);
    arrive(
        &mut connection,
        &data_pdu(other, 0, &bytes_of(512), C2hEnd::Success, DIGESTS),
    );
    let done = poll(&mut connection).expect("not fatal");
    assert_eq!(done[0].status(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert_eq!((done[1].token, done[1].status()), (2, Status::SUCCESS));
    assert_eq!(connection.counters.data_digest_errors, 1);
}

#[test]
fn read_up_to_accepts_short_data() {
    let mut connection = connection(PLAIN);
    let transfer = Transfer::ReadUpTo(vec![0; 4096]);
    let cid = connection
        .submit(Sqe::new(2, 0), transfer, 1)
        .expect("room");
    connection.flush().expect("taken");
    arrive(
        &mut connection,
        &data_pdu(cid, 0, &bytes_of(100), C2hEnd::Last, PLAIN),
    );
    arrive(&mut connection, &response(cid, Status::SUCCESS, PLAIN));
    let done = poll(&mut connection).expect("fine").remove(0);
    assert_eq!(done.received, 100);
}

#[test]
fn full_queue_returns_the_buffer() {
    let mut connection = connection(PLAIN);
    for token in 0..8 {
        read(&mut connection, 512, token);
    }
    let refused = connection
        .submit(Sqe::read(1, 0, 0), Transfer::Read(vec![7; 512]), 9)
        .expect_err("eight slots");
    assert_eq!(
        (refused.refusal, refused.data),
        (Refusal::Full, Some(vec![7; 512]))
    );
    let empty = connection.submit(Sqe::read(1, 0, 0), Transfer::Read(vec![]), 9);
    assert_eq!(empty.expect_err("no length").refusal, Refusal::Length);
}

/// The error of a host with a read of 4096 and a write of 10,000 bytes in flight, when the target
/// sends `bytes`.
fn fault(framing: Framing, bytes: impl FnOnce(u16, u16) -> Vec<u8>) -> (HostError, Tested) {
    let mut connection = connection(framing);
    let reader = read(&mut connection, 4096, 1);
    let writer = write(&mut connection, bytes_of(10_000), 2);
    connection.stream.sent.clear();
    let bytes = bytes(reader, writer);
    arrive(&mut connection, &bytes);
    let error = poll(&mut connection).expect_err("a fault");
    (error, connection)
}

fn protocol_fault(framing: Framing, bytes: impl FnOnce(u16, u16) -> Vec<u8>) -> ProtocolError {
    let (error, mut connection) = fault(framing, bytes);
    let HostError::Protocol(found) = error else {
        panic!("not a protocol error: {error}")
    };
    let termination = sent_pdus(&connection).pop().expect("a termination request");
    assert_eq!(termination.0.pdu_type, PduType::H2C_TERM_REQ);
    let (status, information) = found.termination();
    let request = TermReq::read_from_prefix(&termination.1).expect("whole").0;
    assert_eq!(
        (request.fatal_error(), request.fei.get()),
        (status, information)
    );
    let mut completions = Completions::new();
    assert!(
        connection.poll(&mut completions).is_err(),
        "a fault is final"
    );
    assert!(connection.submit(Sqe::flush(1), Transfer::None, 0).is_err());
    let abandoned = std::iter::from_fn(|| connection.take_failed_command()).count() as u64;
    assert_eq!(
        abandoned + connection.counters.completed,
        2,
        "every buffer comes home"
    );
    assert_eq!(connection.slots.in_flight(), 0);
    found
}

fn with_byte(mut pdu: Vec<u8>, offset: usize, value: u8) -> Vec<u8> {
    pdu[offset] = value;
    pdu
}

#[test]
fn malformed_headers_are_refused() {
    let kind = PduType::CAPSULE_RESP;
    let ok = |cid| response(cid, Status::SUCCESS, PLAIN);
    for unexpected in [0_u8, 1, 2, 4, 6, 8, 0xff] {
        let found = protocol_fault(PLAIN, |cid, _| with_byte(ok(cid), 0, unexpected));
        assert_eq!(found, ProtocolError::UnexpectedPdu(PduType(unexpected)));
    }
    assert_eq!(
        protocol_fault(PLAIN, |cid, _| with_byte(ok(cid), 2, 23)),
        ProtocolError::HeaderLength {
            kind,
            found: 23,
            expected: 24
        }
    );
    assert_eq!(
        protocol_fault(PLAIN, |cid, _| with_byte(ok(cid), 4, 25)),
        ProtocolError::PduLength { kind, found: 25 }
    );
    assert_eq!(
        protocol_fault(PLAIN, |cid, _| with_byte(ok(cid), 7, 0xff)),
        ProtocolError::PduLength {
            kind,
            found: 0xff00_0018
        }
    );
    assert_eq!(
        protocol_fault(PLAIN, |cid, _| with_byte(ok(cid), 1, 1)),
        ProtocolError::Flags { kind, found: 1 }
    );
    let data = |cid| data_pdu(cid, 0, &bytes_of(512), C2hEnd::Success, PLAIN);
    let kind = PduType::C2H_DATA;
    for pdo in [0, 20, 25, 26, 27] {
        assert_eq!(
            protocol_fault(PLAIN, |cid, _| with_byte(data(cid), 3, pdo)),
            ProtocolError::DataOffset { kind, found: pdo }
        );
    }
    assert_eq!(
        protocol_fault(PLAIN, |cid, _| with_byte(data(cid), 1, 0x0e)),
        ProtocolError::Flags { kind, found: 0x0e }
    );
}

#[test]
fn a_wrong_header_digest_is_fatal() {
    for bytes in [
        response as fn(u16, Status, Framing) -> Vec<u8>,
        |cid, _, framing| data_pdu(cid, 0, &bytes_of(512), C2hEnd::Success, framing),
        |cid, _, framing| r2t(cid, 1, 0, 100, framing),
    ] {
        let found = protocol_fault(DIGESTS, |cid, _| {
            let mut pdu = bytes(cid, Status::SUCCESS, DIGESTS);
            pdu[24] ^= 0x10;
            pdu
        });
        assert!(
            matches!(found, ProtocolError::HeaderDigest { .. }),
            "{found}"
        );
        assert_eq!(found.termination().0, FatalError::HEADER_DIGEST_ERROR);
    }
}

#[test]
fn unknown_and_duplicate_completions_are_refused() {
    let kind = PduType::CAPSULE_RESP;
    let found = protocol_fault(PLAIN, |cid, _| {
        response(cid ^ 0x4000, Status::SUCCESS, PLAIN)
    });
    assert!(matches!(found, ProtocolError::UnknownCommand { .. }));
    for bytes in [
        |cid| response(cid, Status::INTERNAL_ERROR, PLAIN),
        |cid| data_pdu(cid, 0, &bytes_of(4096), C2hEnd::Success, PLAIN),
    ] {
        let mut wanted = 0;
        let found = protocol_fault(PLAIN, |cid, _| {
            wanted = cid;
            let second = response(cid, Status::SUCCESS, PLAIN);
            [bytes(cid), second].concat()
        });
        assert_eq!(found, ProtocolError::UnknownCommand { kind, cid: wanted });
    }
}

#[test]
fn data_inconsistent_with_its_command_is_refused() {
    let data = |cid, offset, len| data_pdu(cid, offset, &bytes_of(len), C2hEnd::More, PLAIN);
    let faults = [
        protocol_fault(PLAIN, |_, writer| data(writer, 0, 100)),
        protocol_fault(PLAIN, |cid, _| data(cid, 4, 100)),
        protocol_fault(PLAIN, |cid, _| {
            [data(cid, 0, 100), data(cid, 0, 100)].concat()
        }),
        protocol_fault(PLAIN, |cid, _| data(cid, 0, 4097)),
        protocol_fault(PLAIN, |cid, _| {
            [data(cid, 0, 4096), data(cid, 4096, 4)].concat()
        }),
        protocol_fault(PLAIN, |cid, _| {
            let last = data_pdu(cid, 0, &bytes_of(100), C2hEnd::Last, PLAIN);
            [last, data(cid, 100, 100)].concat()
        }),
        protocol_fault(PLAIN, |cid, _| {
            data_pdu(cid, 0, &bytes_of(100), C2hEnd::Success, PLAIN)
        }),
        protocol_fault(PLAIN, |cid, _| response(cid, Status::SUCCESS, PLAIN)),
        // DATAL and PLEN disagree.
        protocol_fault(PLAIN, |cid, _| with_byte(data(cid, 0, 512), 16, 1)),
        // SUCCESS alone.
        protocol_fault(PLAIN, |cid, _| with_byte(data(cid, 0, 4096), 1, 8)),
    ];
    let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    let expected = [
        "which is not a read",
        "data at 4, expected at 0",
        "data at 0, expected at 100",
        "4097 bytes of data where at most 4096 fit",
        "4 bytes of data where at most 0 fit",
        "after the last data PDU",
        "succeeded with 100 of 4096",
        "succeeded with 0 of 4096",
        "513 bytes of data where at most 512 fit",
        "SUCCESS without LAST_PDU",
    ];
    for (text, part) in texts.iter().zip(expected) {
        assert!(text.contains(part), "{text} does not say: {part}");
    }
}

#[test]
fn invalid_r2ts_are_refused() {
    let faults = [
        protocol_fault(PLAIN, |reader, _| r2t(reader, 1, 0, 100, PLAIN)),
        protocol_fault(PLAIN, |_, cid| r2t(cid, 1, 100, 100, PLAIN)),
        protocol_fault(PLAIN, |_, cid| r2t(cid, 1, 0, 10_001, PLAIN)),
        protocol_fault(PLAIN, |_, cid| r2t(cid, 1, 0, 0, PLAIN)),
        protocol_fault(PLAIN, |_, cid| r2t(cid, 1, u32::MAX, u32::MAX, PLAIN)),
        protocol_fault(PLAIN, |_, cid| {
            [r2t(cid, 1, 0, 100, PLAIN), r2t(cid, 2, 100, 100, PLAIN)].concat()
        }),
        protocol_fault(PLAIN, |_, cid| {
            [
                r2t(cid, 1, 0, 100, PLAIN),
                response(cid, Status::SUCCESS, PLAIN),
            ]
            .concat()
        }),
    ];
    assert!(matches!(faults[0], ProtocolError::NoDataToSend { .. }));
    for fault in &faults[1..5] {
        assert!(matches!(fault, ProtocolError::R2tRange { .. }), "{fault}");
    }
    assert!(
        matches!(faults[5], ProtocolError::R2tLimit { .. }),
        "{}",
        faults[5]
    );
    assert!(
        matches!(faults[6], ProtocolError::CompletedBeforeSent { .. }),
        "{}",
        faults[6]
    );
}

#[test]
fn the_end_of_the_stream_is_classified() {
    let mut whole = connection(PLAIN);
    read(&mut whole, 512, 1);
    whole.stream.ended = true;
    assert!(matches!(poll(&mut whole), Err(HostError::Closed)));
    assert!(matches!(
        whole.poll(&mut Completions::new()),
        Err(HostError::Closed)
    ));
    for len in [1, 7, 8, 23, 24, 100, 535] {
        let mut cut = connection(PLAIN);
        let cid = read(&mut cut, 512, 1);
        let pdu = data_pdu(cid, 0, &bytes_of(512), C2hEnd::Last, PLAIN);
        arrive(&mut cut, &pdu[..len]);
        cut.stream.ended = true;
        let result = poll(&mut cut);
        assert!(
            matches!(result, Err(HostError::ClosedWithinPdu)),
            "{len}: {result:?}"
        );
        assert_eq!(
            cut.take_failed_command()
                .map(|(token, data)| (token, data.map(|d| d.len()))),
            Some((1, Some(512)))
        );
    }
}

#[test]
fn a_termination_request_is_reported_with_its_reason() {
    let (error, connection) = fault(PLAIN, |_, _| {
        let request = TermReq::from_controller(FatalError::DATA_LIMIT_EXCEEDED, 7, 4);
        [request.as_bytes(), &[1, 2, 3, 4]].concat()
    });
    let expected = FatalError::DATA_LIMIT_EXCEEDED;
    assert!(
        matches!(error, HostError::Terminated { status, information: 7 } if status == expected),
        "{error}"
    );
    assert!(
        connection.stream.sent.is_empty(),
        "no termination in answer to one"
    );
}

/// A stream of correct responses to the commands of [`exchange`].
fn correct_responses(framing: Framing, reader: u16, writer: u16) -> Vec<u8> {
    [
        r2t(writer, 3, 0, 6000, framing),
        data_pdu(reader, 0, &bytes_of(1000), C2hEnd::More, framing),
        data_pdu(reader, 1000, &bytes_of(3096), C2hEnd::Last, framing),
        response(reader, Status::SUCCESS, framing),
    ]
    .concat()
}

/// Feeds `bytes` to a connection in chunks. Every buffer must be returned at the end.
fn exchange(
    framing: Framing,
    alter: impl FnOnce(&mut Vec<u8>),
    chunk: usize,
    ended: bool,
) -> usize {
    let mut connection = connection(framing);
    let reader = read(&mut connection, 4096, 1);
    let writer = write(&mut connection, bytes_of(10_000), 2);
    let mut bytes = correct_responses(framing, reader, writer);
    alter(&mut bytes);
    for part in bytes.chunks(chunk.max(1)) {
        arrive(&mut connection, part);
    }
    connection.stream.ended = ended;
    let mut completions = Completions::new();
    let mut failed = false;
    for _ in 0..bytes.len() + 4 {
        failed = connection.poll(&mut completions).is_err() || connection.flush().is_err();
        if failed {
            break;
        }
    }
    let mut returned = completions.len();
    if failed {
        returned += std::iter::from_fn(|| connection.take_failed_command()).count();
        assert_eq!(connection.slots.in_flight(), 0);
    } else {
        returned += connection.slots.in_flight();
    }
    assert_eq!(
        returned, 2,
        "each command is completed, abandoned or still in flight"
    );
    completions.len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn responses_complete_regardless_of_chunking(chunk in 1..5000_usize, digests in any::<bool>()) {
        let framing = if digests { DIGESTS } else { PLAIN };
        prop_assert_eq!(exchange(framing, |_| {}, chunk, false), 1);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        chunk in 1..200_usize,
        digests in any::<bool>(),
    ) {
        let framing = if digests { DIGESTS } else { PLAIN };
        exchange(framing, |stream| *stream = bytes, chunk, true);
    }

    #[test]
    fn damaged_responses_do_not_panic(
        damage in proptest::collection::vec((0..5000_usize, any::<u8>()), 1..6),
        chunk in 1..5000_usize,
        cut in 0..6000_usize,
        digests in any::<bool>(),
    ) {
        let framing = if digests { DIGESTS } else { PLAIN };
        let alter = |stream: &mut Vec<u8>| {
            for (place, value) in damage {
                // Most of the stream is data, so damage headers more often.
                let place = if place % 2 == 0 { place % 60 } else { place };
                if let Some(byte) = stream.get_mut(place) {
                    *byte = value;
                }
            }
            stream.truncate(cut);
        };
        exchange(framing, alter, chunk, true);
    }

    /// Headers that are mostly correct reach the later checks.
    #[test]
    fn arbitrary_header_fields_do_not_panic(
        pdus in proptest::collection::vec(
            (0..3_u8, 0..4_u8, any::<bool>(), 0..12_000_u32, 0..12_000_u32, 0..600_usize),
            1..12,
        ),
    ) {
        let mut connection = connection(PLAIN);
        let reader = read(&mut connection, 4096, 1);
        let writer = write(&mut connection, bytes_of(10_000), 2);
        for (kind, flags, first, a, b, len) in pdus {
            let cid = if first { reader } else { writer };
            let bytes = match kind {
                0 => response(cid, Status::SUCCESS, PLAIN),
                1 => r2t(cid, 1, a % 200, b, PLAIN),
                _ => {
                    let mut pdu = C2hData::new(cid, a % 600, len as u32, C2hEnd::More, PLAIN);
                    pdu.ch.flags = nvme_spec::tcp::PduFlags::from_bits(flags << 2);
                    pdu.ch.plen = U32::new(24 + len as u32);
                    pdu.ch.pdo = 24;
                    pdu.cccid = U16::new(cid);
                    [pdu.as_bytes(), &bytes_of(len)].concat()
                }
            };
            arrive(&mut connection, &bytes);
        }
        let _ = poll(&mut connection);
        let _ = connection.flush();
    }
}
