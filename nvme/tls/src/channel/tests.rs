//! Two channels, and peers that violate the protocol.

use std::io::IoSlice;

use proptest::prelude::*;

use super::*;
use crate::sealer::tests::secret;
use crate::{ContentType, Suite};

const SUITE: Suite = Suite::Aes128GcmSha256;

/// A target and its host, with the same secret for both directions.
fn pair() -> (Channel, Channel) {
    let channel = |role| Channel::new(role, secret(SUITE), secret(SUITE));
    (channel(Role::Server), channel(Role::Client))
}

/// Moves everything unsent to the peer; returns the number of bytes.
fn deliver(from: &mut Channel, to: &mut Channel) -> usize {
    let unsent = from.unsent().to_vec();
    from.sent(unsent.len());
    give(to, &unsent);
    unsent.len()
}

fn give(to: &mut Channel, bytes: &[u8]) {
    to.room()[..bytes.len()].copy_from_slice(bytes);
    to.filled(bytes.len());
}

fn seal(channel: &mut Channel, data: &[u8]) {
    channel.seal(&mut Unsealed::new(&[IoSlice::new(data)]));
}

fn take(channel: &mut Channel) -> (Vec<u8>, Taken) {
    let mut data = Vec::new();
    loop {
        let mut buffer = [0; 1000];
        match channel.take(&mut [IoSliceMut::new(&mut buffer)]) {
            Taken::Bytes(bytes) => data.extend_from_slice(&buffer[..bytes]),
            other => return (data, other),
        }
    }
}

#[test]
fn data_is_not_printed() {
    let (mut target, mut host) = pair();
    seal(&mut target, &[0xab; 100]);
    deliver(&mut target, &mut host);
    host.open_ahead();
    let printed = format!("{host:?}");
    assert!(printed.len() < 300 && !printed.contains("171"), "{printed}");
}

#[test]
fn many_pieces_share_a_record() {
    let (mut target, mut host) = pair();
    let pieces = [[1; 24]; 100];
    let pieces: Vec<_> = pieces.iter().map(|it| IoSlice::new(it)).collect();
    target.seal(&mut Unsealed::new(&pieces));
    assert_eq!(
        deliver(&mut target, &mut host),
        2400 + SEALED_OVERHEAD_BYTES
    );
    assert_eq!(take(&mut host), (vec![1; 2400], Taken::Nothing));
}

#[test]
fn nothing_is_sealed_before_the_buffer_is_sent() {
    let (mut target, mut host) = pair();
    let data = vec![3; 5 * PLAINTEXT_BYTES_MAX];
    let pieces = [IoSlice::new(&data)];
    let mut unsealed = Unsealed::new(&pieces);
    target.seal(&mut unsealed);
    let sealed = target.unsent().len();
    assert_eq!(
        sealed,
        SEND_RECORDS * (PLAINTEXT_BYTES_MAX + SEALED_OVERHEAD_BYTES)
    );
    target.sent(0);
    target.seal(&mut unsealed);
    assert_eq!(target.unsent().len(), sealed);
    assert!(!unsealed.is_empty());
    assert_eq!(deliver(&mut target, &mut host), sealed);
    let (received, _) = take(&mut host);
    target.seal(&mut unsealed);
    assert!(unsealed.is_empty());
    deliver(&mut target, &mut host);
    assert_eq!(received.len() + take(&mut host).0.len(), data.len());
}

#[test]
fn the_end_is_told_from_a_truncation() {
    let (mut target, mut host) = pair();
    seal(&mut target, b"last");
    target.close();
    target.close();
    deliver(&mut target, &mut host);
    assert_eq!(take(&mut host), (b"last".to_vec(), Taken::Closed));
    // Nothing is sealed behind it.
    seal(&mut target, b"more");
    assert!(target.unsent().is_empty());
    // The other direction is still open.
    seal(&mut host, b"answer");
    deliver(&mut host, &mut target);
    assert_eq!(take(&mut target), (b"answer".to_vec(), Taken::Nothing));
}

#[test]
fn alerts_of_the_peer_end_the_connection() {
    let (mut target, mut host) = pair();
    target.push(ContentType::Alert, &Alert::USER_CANCELED.message());
    seal(&mut target, b"");
    target.push(ContentType::Alert, &Alert::INTERNAL_ERROR.message());
    deliver(&mut target, &mut host);
    let reported = Taken::Failed(Failure::Reported(Alert::INTERNAL_ERROR));
    assert_eq!(take(&mut host), (vec![], reported));
    assert!(host.unsent().is_empty(), "an alert has no answer");
    assert!(host.has_more(), "the failure is reported again");

    let (mut target, mut host) = pair();
    target.push(ContentType::Alert, &[2]);
    deliver(&mut target, &mut host);
    let invalid = Taken::Failed(Failure::Violation(Alert::DECODE_ERROR));
    assert_eq!(take(&mut host), (vec![], invalid));
}

#[test]
fn violations_are_answered_with_one_alert_behind_earlier_data() {
    let (mut target, mut host) = pair();
    seal(&mut host, b"good");
    deliver(&mut host, &mut target);
    give(&mut target, &[22, 3, 3, 0, 5, 24, 0, 0, 1, 0]);
    seal(&mut target, b"reply");
    assert!(target.has_more());
    let violation = Taken::Failed(Failure::Violation(Alert::UNEXPECTED_MESSAGE));
    assert_eq!(take(&mut target), (b"good".to_vec(), violation));
    assert_eq!(take(&mut target), (vec![], violation));
    deliver(&mut target, &mut host);
    let reported = Taken::Failed(Failure::Reported(Alert::UNEXPECTED_MESSAGE));
    assert_eq!(take(&mut host), (b"reply".to_vec(), reported));
}

#[test]
fn messages_are_not_interleaved_with_data() {
    let (mut target, mut host) = pair();
    host.push(ContentType::Handshake, &key_update(false)[..3]);
    seal(&mut host, b"");
    deliver(&mut host, &mut target);
    assert_eq!(take(&mut target), (vec![], Taken::Nothing));
    seal(&mut host, b"data");
    deliver(&mut host, &mut target);
    let violation = Taken::Failed(Failure::Violation(Alert::UNEXPECTED_MESSAGE));
    assert_eq!(take(&mut target), (vec![], violation));
}

/// The host's request is answered once before the next data, however often it asks.
#[test]
fn keys_are_updated_in_both_directions() {
    let (mut target, mut host) = pair();
    for round in 0..3 {
        for _ in 0..5 {
            host.push(ContentType::Handshake, &key_update(true));
            host.sealer.update();
        }
        deliver(&mut host, &mut target);
        seal(&mut host, b"new key");
        deliver(&mut host, &mut target);
        assert_eq!(take(&mut target), (b"new key".to_vec(), Taken::Nothing));
        assert!(target.owes_update());
        seal(&mut target, b"reply");
        assert!(!target.owes_update());
        deliver(&mut target, &mut host);
        assert_eq!(take(&mut host), (b"reply".to_vec(), Taken::Nothing));
        let expected = Updates {
            sent: round + 1,
            received: 5 * (round + 1),
        };
        assert_eq!(target.updates, expected);
        assert_eq!(host.updates.received, round + 1);
    }
}

#[test]
fn a_requested_update_needs_no_data() {
    let (mut target, mut host) = pair();
    host.push(ContentType::Handshake, &key_update(true));
    host.sealer.update();
    deliver(&mut host, &mut target);
    assert_eq!(take(&mut target), (vec![], Taken::Nothing));
    target.seal(&mut Unsealed::new(&[]));
    assert_eq!(deliver(&mut target, &mut host), SEALED_OVERHEAD_BYTES + 5);
    assert_eq!(take(&mut host), (vec![], Taken::Nothing));
    assert_eq!(host.updates.received, 1);
}

/// Without a request of the peer, the key is updated before it may no longer be used.
#[test]
fn keys_are_updated_before_they_are_used_up() {
    let (mut target, mut host) = pair();
    let before = RECORDS_BEFORE_UPDATE - 1;
    target.sealer = Sealer::new(secret(SUITE)).at(before);
    host.opener = Opener::new(secret(SUITE)).at(before);
    for message in [&b"old key"[..], b"new key"] {
        seal(&mut target, message);
        deliver(&mut target, &mut host);
        assert_eq!(take(&mut host), (message.to_vec(), Taken::Nothing));
    }
    assert_eq!((target.updates.sent, host.updates.received), (1, 1));
    assert_eq!(target.sealer.sequence(), 1);
}

/// An update, data that fills the buffer, and an alert: all fit.
#[test]
fn control_records_have_room_beside_data() {
    let (mut target, mut host) = pair();
    target.owes_update = true;
    seal(&mut target, &vec![1; 10 * PLAINTEXT_BYTES_MAX]);
    target.close();
    assert!(target.unsent().len() > SEND_RECORDS * PLAINTEXT_BYTES_MAX);
    let sealed = target.unsent().to_vec();
    let mut received = 0;
    for part in sealed.chunks(10_000) {
        give(&mut host, part);
        let (data, outcome) = take(&mut host);
        received += data.len();
        assert!(matches!(outcome, Taken::Nothing | Taken::Closed));
    }
    assert_eq!(host.receiving, Receiving::Closed);
    assert!(received >= SEND_RECORDS * PLAINTEXT_BYTES_MAX - 100);
}

/// What is sealed while more arrives is not overwritten, and there is always room for a record.
#[test]
fn there_is_room_after_everything_was_taken() {
    let (mut target, mut host) = pair();
    let mut stream = Vec::new();
    for _ in 0..20 {
        seal(&mut target, &[9; PLAINTEXT_BYTES_MAX]);
        stream.extend_from_slice(target.unsent());
        target.sent(target.unsent().len());
    }
    let (mut at, mut received) = (0, 0);
    while at < stream.len() {
        let room = host.room();
        assert!(!room.is_empty());
        let bytes = room.len().min(stream.len() - at);
        room[..bytes].copy_from_slice(&stream[at..at + bytes]);
        host.filled(bytes);
        at += bytes;
        received += take(&mut host).0.len();
    }
    assert_eq!(received, 20 * PLAINTEXT_BYTES_MAX);
}

/// Records may be opened before their data is taken: they stay where they are, or move together.
#[test]
fn data_that_was_opened_ahead_is_kept() {
    let (mut target, mut host) = pair();
    let mut expected = Vec::new();
    let mut received = Vec::new();
    for round in 0..200_usize {
        let data = vec![round as u8; 1 + round * 37 % 5000];
        seal(&mut target, &data);
        expected.extend_from_slice(&data);
        deliver(&mut target, &mut host);
        let ahead = host.open_ahead();
        assert_eq!(ahead, expected.len() - received.len());
        let mut buffer = vec![0; ahead.saturating_sub(round % 3 * 2000)];
        let taken = host.take(&mut [IoSliceMut::new(&mut buffer)]);
        if !buffer.is_empty() {
            assert_eq!(
                taken,
                Taken::Bytes(buffer.len()),
                "as many as were promised"
            );
        }
        received.extend_from_slice(&buffer);
    }
    received.extend_from_slice(&take(&mut host).0);
    assert_eq!(received, expected);
}

/// A command's data of 64 KiB has room as a whole, wherever the buffer's content begins.
#[test]
fn a_whole_capsule_is_opened_ahead() {
    for before in [0, 1, 10_000, 60_000] {
        let (mut target, mut host) = pair();
        seal(&mut target, &vec![1; before]);
        deliver(&mut target, &mut host);
        let capsule = vec![2; (64 << 10) + 4];
        let pieces = [IoSlice::new(&capsule)];
        let mut unsealed = Unsealed::new(&pieces);
        let mut wire = Vec::new();
        while !unsealed.is_empty() {
            target.seal(&mut unsealed);
            wire.extend_from_slice(target.unsent());
            target.sent(target.unsent().len());
        }
        // A part of the capsule arrives with the data before it.
        let (part, mut rest) = wire.split_at(host.room().len().min(5000));
        give(&mut host, part);
        let mut buffer = vec![0; before];
        host.take(&mut [IoSliceMut::new(&mut buffer)]);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(host.room().len().min(rest.len()));
            assert!(!now.is_empty(), "{before} bytes before it");
            give(&mut host, now);
            rest = later;
            host.open_ahead();
        }
        assert_eq!(host.open_ahead(), capsule.len());
    }
}

/// A record is opened directly if its type has room behind its content, which the next data
/// overwrites.
#[test]
fn records_are_opened_into_private_buffers_that_have_room() {
    let (mut target, mut host) = pair();
    for room in [1000, 1001, 1002] {
        seal(&mut target, &[7; 1000]);
        target.push(ContentType::ApplicationData, &[8; 10]);
        deliver(&mut target, &mut host);
        let mut buffer = vec![0xee; room];
        let taken = host.take_into_private(&mut [IoSliceMut::new(&mut buffer)]);
        let rest = room - 1000;
        assert_eq!(taken, Taken::Bytes(room));
        assert_eq!(buffer, [vec![7; 1000], vec![8; rest]].concat());
        assert_eq!(take(&mut host), (vec![8; 10 - rest], Taken::Nothing));
    }
}

#[test]
fn forged_data_in_a_private_buffer_is_not_taken() {
    let (mut target, mut host) = pair();
    seal(&mut target, &[1; 100]);
    target.push(ContentType::ApplicationData, &[2; 100]);
    let mut stream = target.unsent().to_vec();
    *stream.last_mut().expect("records") ^= 1;
    give(&mut host, &stream);
    let mut buffer = [0; 1000];
    let violation = Taken::Failed(Failure::Violation(Alert::BAD_RECORD_MAC));
    let mut take = || host.take_into_private(&mut [IoSliceMut::new(&mut buffer)]);
    assert_eq!(
        (take(), take(), take()),
        (Taken::Bytes(100), violation, violation)
    );
    assert_eq!(buffer[..100], [1; 100]);
    assert!(!buffer.contains(&2), "what is forged does not remain");
    assert!(!host.unsent().is_empty(), "the alert");
}

/// What a target sends.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Data(usize),
    Update,
    HalfMessage,
    Alert(Alert),
    Damaged,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..3000_usize).prop_map(Step::Data),
        3 => Just(Step::Update),
        1 => Just(Step::HalfMessage),
        1 => prop::sample::select(vec![
            Alert::CLOSE_NOTIFY,
            Alert::USER_CANCELED,
            Alert::INTERNAL_ERROR,
        ]).prop_map(Step::Alert),
        1 => Just(Step::Damaged),
    ]
}

fn stream_of(steps: &[Step]) -> Vec<u8> {
    let (mut target, _) = pair();
    let mut stream = Vec::new();
    for step in steps {
        let before = stream.len();
        match step {
            Step::Data(bytes) => seal(&mut target, &vec![*bytes as u8 | 1; *bytes]),
            Step::Update => {
                target.push(ContentType::Handshake, &key_update(true));
                target.sealer.update();
            }
            Step::HalfMessage => target.push(ContentType::Handshake, &key_update(false)[..2]),
            Step::Alert(alert) => target.push(ContentType::Alert, &alert.message()),
            Step::Damaged => seal(&mut target, b"damaged"),
        }
        stream.extend_from_slice(target.unsent());
        target.unsent = 0..0;
        if *step == Step::Damaged {
            stream[before + HEADER_BYTES] ^= 1;
        }
    }
    stream
}

proptest! {
    /// Records of all kinds, in any pieces, and buffers of any size: the same data and the same end,
    /// wherever records are opened.
    #[test]
    fn private_buffers_receive_what_others_receive(
        steps in prop::collection::vec(any_step(), 1..12),
        piece in 1..5000_usize,
        buffer in 1..4000_usize,
    ) {
        let ways: [fn(&mut Channel, &mut [IoSliceMut<'_>]) -> Taken; 2] =
            [Channel::take, Channel::take_into_private];
        let mut results = ways.map(|way| (way, pair().1, Vec::new(), Taken::Nothing));
        for bytes in stream_of(&steps).chunks(piece) {
            for (way, host, data, end) in &mut results {
                give(host, bytes);
                loop {
                    let mut buffer = vec![0; buffer];
                    match way(host, &mut [IoSliceMut::new(&mut buffer)]) {
                        Taken::Bytes(taken) => data.extend_from_slice(&buffer[..taken]),
                        other => break *end = other,
                    }
                }
            }
            if results[0].3 != Taken::Nothing {
                break;
            }
        }
        let [(_, in_place, data, end), (_, private, private_data, private_end)] = &results;
        prop_assert_eq!(data, private_data);
        prop_assert_eq!(end, private_end);
        prop_assert_eq!(in_place.updates, private.updates);
        prop_assert_eq!(in_place.owes_update, private.owes_update);
        prop_assert_eq!(in_place.unsent(), private.unsent(), "the alert");
    }
}

proptest! {
    /// Any bytes, in any pieces, beside valid records: no panic, and only data that was sealed.
    #[test]
    fn damage_is_detected(
        lengths in prop::collection::vec(0..3000_usize, 1..6),
        damage in prop::option::of((any::<prop::sample::Index>(), 1..=255_u8)),
        pieces in prop::collection::vec(1..5000_usize, 1..5),
        buffer in 1..4000_usize,
        private: bool,
    ) {
        let (mut target, mut host) = pair();
        let (mut plain, mut stream) = (Vec::new(), Vec::new());
        for (at, len) in lengths.iter().enumerate() {
            let data: Vec<u8> = (0..*len).map(|it| (it + at) as u8).collect();
            seal(&mut target, &data);
            stream.extend_from_slice(target.unsent());
            target.sent(target.unsent().len());
            plain.extend_from_slice(&data);
        }
        if let (Some((at, mask)), false) = (damage, stream.is_empty()) {
            *at.get_mut(&mut stream) ^= mask;
        }
        let (mut rest, mut received) = (&stream[..], Vec::new());
        let mut failure = None;
        for at in 0.. {
            let (now, later) = rest.split_at(pieces[at % pieces.len()].min(rest.len()));
            rest = later;
            give(&mut host, now);
            loop {
                let mut bytes = vec![0; buffer];
                let (first, second) = bytes.split_at_mut(buffer / 3);
                let mut buffers = [IoSliceMut::new(first), IoSliceMut::new(second)];
                let taken = match private {
                    true => host.take_into_private(&mut buffers),
                    false => host.take(&mut buffers),
                };
                match taken {
                    Taken::Bytes(taken) => received.extend_from_slice(&bytes[..taken]),
                    Taken::Failed(found) => { failure = Some(found); break }
                    Taken::Nothing | Taken::Closed => break,
                }
            }
            if rest.is_empty() || failure.is_some() {
                break;
            }
        }
        prop_assert!(plain.starts_with(&received));
        if damage.is_none() {
            prop_assert_eq!((received, failure), (plain, None));
        } else if !stream.is_empty() {
            // A longer length may make the record wait for more.
            prop_assert!(failure.is_some() || host.receiving == Receiving::Open);
            prop_assert!(received.len() < plain.len());
            prop_assert_eq!(failure.is_some(), !host.unsent().is_empty());
        }
    }
}
