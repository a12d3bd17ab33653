//! Errors in PDU headers, and the status and field offset of the termination request (TCP 1.1
//! §3.6.2.5).

use hugemem::Account;
use nvme_spec::Sqe;
use nvme_spec::tcp::{DigestFlags, PduFlags};
use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::config::{HELD_BUFFERS_PER_HOST_MAX, RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS};
use crate::receive_buffers::ReceiveBuffers;

fn rules(order: Order, header_digest: bool, data_digest: bool) -> Rules {
    let mut rules = Rules::before_initialisation(65_536);
    if order == Order::Operate {
        rules.operate(Framing {
            header_digest,
            data_digest,
            alignment_z: 0,
        });
    }
    rules
}

/// A receiver with a buffer.
fn receiver() -> Receiver {
    let mut receiver = Receiver::new();
    receiver.attach(&mut vec![0; RECEIVE_BUFFER_BYTES].into_boxed_slice());
    receiver
}

fn operating() -> Rules {
    rules(Order::Operate, false, false)
}

fn receive(bytes: &[u8], rules: &Rules) -> Result<Option<Pdu>, (FatalError, u32)> {
    let mut receiver = receiver();
    receiver.room()[..bytes.len()].copy_from_slice(bytes);
    receiver.filled(bytes.len());
    receiver
        .next_pdu(rules)
        .map_err(|violation| (violation.status, violation.information))
}

fn command(data_bytes: u32, framing: Framing) -> Vec<u8> {
    let capsule = CapsuleCmd::new(Sqe::default(), data_bytes, framing);
    let mut bytes = capsule.as_bytes().to_vec();
    if framing.header_digest {
        bytes.extend(digest(&bytes.clone()));
    }
    bytes
}

fn host_data(edit: impl FnOnce(&mut H2cData)) -> Vec<u8> {
    let mut header = H2cData::new(1, 2, 0, 4096, true, Framing::default());
    edit(&mut header);
    header.as_bytes().to_vec()
}

#[track_caller]
fn expect_field(bytes: &[u8], rules: &Rules, offset: u32) {
    let found = receive(bytes, rules);
    assert!(
        matches!(found, Err((FatalError::INVALID_HEADER_FIELD, at)) if at == offset),
        "expected the field at {offset}, found {found:?}"
    );
}

#[track_caller]
fn expect_status(bytes: &[u8], rules: &Rules, status: FatalError) {
    let found = receive(bytes, rules);
    assert!(
        matches!(found, Err((found, 0)) if found == status),
        "found {found:?}"
    );
}

#[test]
fn an_unknown_type_and_those_of_a_controller_are_refused_at_the_type() {
    for pdu_type in [0x01, 0x03, 0x05, 0x07, 0x08, 0x09, 0x0a, 0x42, 0xff] {
        let mut bytes = command(0, Framing::default());
        bytes[0] = pdu_type;
        expect_field(&bytes, &operating(), offset::PDU_TYPE);
    }
}

#[test]
fn pdus_out_of_order_are_a_sequence_error() {
    let request = IcReq::new(0, DigestFlags::new(), 0);
    expect_status(request.as_bytes(), &operating(), FatalError::SEQUENCE_ERROR);
    let before = Rules::before_initialisation(65_536);
    let early = command(0, Framing::default());
    expect_status(&early, &before, FatalError::SEQUENCE_ERROR);
    expect_status(&host_data(|_| {}), &before, FatalError::SEQUENCE_ERROR);
}

#[test]
fn a_wrong_header_length_is_refused_at_hlen() {
    for hlen in [0, 8, 71, 73, 255] {
        let mut bytes = command(0, Framing::default());
        bytes[2] = hlen;
        expect_field(&bytes, &operating(), offset::HLEN);
    }
}

#[test]
fn a_pdu_shorter_or_longer_than_its_parts_is_refused_at_plen() {
    for plen in [0_u32, 8, 71] {
        let mut bytes = command(0, Framing::default());
        bytes[4..8].copy_from_slice(&plen.to_le_bytes());
        bytes[3] = 72;
        expect_field(&bytes, &operating(), offset::PLEN);
    }
    let mut initialise = IcReq::new(0, DigestFlags::new(), 0);
    initialise.ch.plen.set(129);
    let before = Rules::before_initialisation(65_536);
    expect_field(initialise.as_bytes(), &before, offset::PLEN);
    expect_field(
        &host_data(|header| header.ch.plen.set(24)),
        &operating(),
        offset::PLEN,
    );
}

#[test]
fn data_that_begins_inside_the_header_or_unaligned_is_refused_at_pdo() {
    for pdo in [0, 8, 71, 73, 74] {
        let mut bytes = command(512, Framing::default());
        bytes[3] = pdo;
        expect_field(&bytes, &operating(), offset::PDO);
    }
}

#[test]
fn more_data_than_announced_is_beyond_the_limit() {
    for data_bytes in [8193, 1 << 20, u32::MAX - 2048] {
        let bytes = command(data_bytes, Framing::default());
        expect_status(&bytes, &operating(), FatalError::DATA_LIMIT_EXCEEDED);
    }
    let long = H2cData::new(1, 2, 0, 65_540, true, Framing::default());
    expect_status(
        long.as_bytes(),
        &operating(),
        FatalError::DATA_LIMIT_EXCEEDED,
    );
}

#[test]
fn a_data_length_that_contradicts_the_pdu_is_refused_at_datal() {
    expect_field(
        &host_data(|header| header.datal.set(4095)),
        &operating(),
        offset::DATAL,
    );
}

#[test]
fn digest_flags_other_than_negotiated_are_refused_at_flags() {
    let plain = command(512, Framing::default());
    let mut flagged = plain.clone();
    flagged[1] = PduFlags::HDGSTF.into_bits();
    expect_field(&flagged, &operating(), offset::FLAGS);
    flagged[1] = PduFlags::DDGSTF.into_bits();
    expect_field(&flagged, &operating(), offset::FLAGS);
    expect_field(&plain, &rules(Order::Operate, true, false), offset::FLAGS);
    expect_field(&plain, &rules(Order::Operate, false, true), offset::FLAGS);
}

#[test]
fn a_header_digest_error_reports_the_received_digest() {
    let strict = rules(Order::Operate, true, false);
    let mut bytes = command(0, strict.framing);
    assert!(matches!(
        receive(&bytes, &strict),
        Ok(Some(Pdu::Command(None)))
    ));
    bytes[72] ^= 1;
    let received_digest = u32::from_le_bytes(bytes[72..76].try_into().expect("four bytes"));
    let found = receive(&bytes, &strict);
    assert!(matches!(found, Err((FatalError::HEADER_DIGEST_ERROR, at)) if at == received_digest));
}

#[test]
fn a_pdu_in_single_bytes_is_the_same_pdu() {
    let bytes = command(16, Framing::default());
    let mut receiver = receiver();
    for (position, byte) in bytes.iter().enumerate() {
        assert!(
            receiver.next_pdu(&operating()).expect("in order").is_none(),
            "at {position}"
        );
        receiver.room()[0] = *byte;
        receiver.filled(1);
    }
    let pdu = receiver.next_pdu(&operating()).expect("in order");
    assert!(matches!(
        pdu,
        Some(Pdu::Command(Some(Payload {
            bytes: 16,
            digest: false
        })))
    ));
    assert!(receiver.buffered().is_empty());
}

#[test]
fn a_partial_header_continues_in_the_next_buffer() {
    let bytes = command(16, Framing::default());
    let (first, second) = bytes.split_at(71);
    let mut receiver = receiver();
    receiver.room()[..first.len()].copy_from_slice(first);
    receiver.filled(first.len());
    assert!(receiver.next_pdu(&operating()).expect("in order").is_none());
    assert!(
        receiver.save_partial_header(),
        "a part of a header can be kept"
    );
    let mut buffer = Box::default();
    receiver.release(&mut buffer);
    assert!(receiver.buffered().is_empty() && !receiver.has_buffer());
    buffer.fill(0xff);
    receiver.attach(&mut buffer);
    assert_eq!(receiver.buffered(), first);
    receiver.room()[..second.len()].copy_from_slice(second);
    receiver.filled(second.len());
    let pdu = receiver.next_pdu(&operating()).expect("in order");
    assert!(matches!(pdu, Some(Pdu::Command(Some(_)))));
}

#[test]
fn a_buffer_is_held_until_its_data_is_consumed_or_discarded() {
    let (one, of) = (Account::io(1), |place: usize| Account::io(place as u16 + 2));
    let mut buffers = ReceiveBuffers::new();
    let mut receiver = Receiver::new();
    buffers.attach_buffer(&mut receiver);
    receiver.filled(PARTIAL_HEADER_BYTES_MAX + 1);
    buffers.detach_buffer(&mut receiver, one);
    assert_eq!(receiver.buffered().len(), PARTIAL_HEADER_BYTES_MAX + 1);
    // Others use the spare buffers, and receive little at a time if there is none.
    let mut others: Vec<_> = (2..RECEIVE_BUFFERS).map(|_| Receiver::new()).collect();
    for (place, other) in others.iter_mut().enumerate() {
        buffers.attach_buffer(other);
        assert_eq!(buffers.room_max(0, of(place)), usize::MAX);
        other.filled(PARTIAL_HEADER_BYTES_MAX + 1);
        buffers.detach_buffer(other, of(place));
    }
    let mut last = Receiver::new();
    buffers.attach_buffer(&mut last);
    assert_eq!(buffers.room_max(100, one), PARTIAL_HEADER_BYTES_MAX - 100);
    last.filled(PARTIAL_HEADER_BYTES_MAX);
    buffers.detach_buffer(&mut last, one);
    assert!(!last.has_buffer());
    // A returned buffer is available to all, whether its contents were consumed or discarded.
    receiver.consume(1);
    buffers.detach_buffer(&mut receiver, one);
    assert!(!receiver.has_buffer());
    buffers.release(&mut others[0], of(0));
    buffers.release(&mut others[1], of(1));
    buffers.attach_buffer(&mut receiver);
    assert_eq!(receiver.buffered().len(), PARTIAL_HEADER_BYTES_MAX);
    assert_eq!(buffers.room_max(0, one), usize::MAX);
    buffers.release(&mut receiver, one);
    assert!(receiver.buffered().is_empty() && !receiver.has_buffer());
}

#[test]
fn connections_of_one_host_keep_few_buffers() {
    let (greedy, modest) = (Account::io(1), Account::io(2));
    let mut buffers = ReceiveBuffers::new();
    let mut held: Vec<_> = (0..HELD_BUFFERS_PER_HOST_MAX)
        .map(|_| Receiver::new())
        .collect();
    for receiver in &mut held {
        assert_eq!(buffers.room_max(0, greedy), usize::MAX);
        buffers.attach_buffer(receiver);
        receiver.filled(PARTIAL_HEADER_BYTES_MAX + 1);
        buffers.detach_buffer(receiver, greedy);
    }
    assert_eq!(
        buffers.room_max(100, greedy),
        PARTIAL_HEADER_BYTES_MAX - 100
    );
    assert_eq!(buffers.room_max(100, modest), usize::MAX);
    buffers.release(&mut held[0], greedy);
    assert_eq!(buffers.room_max(100, greedy), usize::MAX);
}

/// A capsule is recognised by the one before it only if both headers are equal.
#[test]
fn an_expected_header_is_used_until_the_rules_change() {
    for header_digest in [false, true] {
        let mut receiver = receiver();
        let mut rules = rules(Order::Operate, header_digest, false);
        let mut next = |rules: &Rules, data_bytes: u32, damage: u8| {
            let mut bytes = command(data_bytes, rules.framing);
            bytes[20] ^= damage;
            receiver.room()[..bytes.len()].copy_from_slice(&bytes);
            receiver.filled(bytes.len());
            if rules.in_capsule_bytes_max == 0 {
                receiver.clear_expected_header();
            }
            match receiver.next_pdu(rules) {
                Ok(Some(Pdu::Command(payload))) => Ok(payload.map_or(0, |payload| payload.bytes)),
                Ok(other) => panic!("{other:?}"),
                Err(violation) => {
                    receiver.consume(bytes.len());
                    Err(violation.status)
                }
            }
        };
        for bytes in [4096, 4096, 0, 4096, 512, 4096, 8192, 512, 512] {
            assert_eq!(next(&rules, bytes, 0), Ok(bytes));
        }
        if header_digest {
            let refused = Err(FatalError::HEADER_DIGEST_ERROR);
            assert_eq!([next(&rules, 512, 1), next(&rules, 0, 1)], [refused; 2]);
        }
        rules.in_capsule_bytes_max = 0;
        assert_eq!(next(&rules, 512, 0), Err(FatalError::DATA_LIMIT_EXCEEDED));
    }
}

#[test]
fn a_violation_quotes_the_received_header() {
    let mut bytes = command(0, Framing::default());
    bytes[2] = 71;
    let mut receiver = receiver();
    receiver.room()[..bytes.len()].copy_from_slice(&bytes);
    receiver.filled(bytes.len());
    let violation = receiver.next_pdu(&operating()).expect_err("a wrong length");
    assert_eq!(violation.header[..], bytes[..71]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Any bytes are a PDU, an incomplete PDU or a violation, and a PDU's data respects the limits.
    #[test]
    fn random_bytes_are_parsed_without_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        kind in prop_oneof![Just(0_u8), Just(2), Just(4), Just(6), any::<u8>()],
        order in prop_oneof![Just(Order::Initialise), Just(Order::Operate)],
        digests in any::<(bool, bool)>(),
    ) {
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        let rules = rules(order, digests.0, digests.1);
        let mut receiver = receiver();
        receiver.room()[..bytes.len()].copy_from_slice(&bytes);
        receiver.filled(bytes.len());
        let before = receiver.buffered().len();
        match receiver.next_pdu(&rules) {
            Ok(Some(Pdu::Command(Some(payload)))) => prop_assert!(payload.bytes <= 8192),
            Ok(Some(Pdu::HostData(_, payload))) => prop_assert!(payload.bytes <= 65_536),
            Ok(Some(_)) => prop_assert!(receiver.buffered().len() < before),
            Ok(None) => prop_assert_eq!(receiver.buffered().len(), before),
            Err(violation) => prop_assert!(violation.header.len() <= TERM_DATA_MAX_BYTES),
        }
    }
}
