//! Partial sends at every position send the same bytes and finish every slot once.

use hugemem::{Arena, ArenaConfig, PagePolicy, Pool, Store};
use nvme_spec::tcp::{C2hData, C2hEnd, CapsuleResp};
use nvme_spec::{Cqe, Status};
use std::io::IoSliceMut;
use zerocopy::{FromBytes, transmute};

use super::*;

/// A stream that accepts at most `grain` bytes per send and sometimes none.
struct Wire {
    bytes: Vec<u8>,
    grain: usize,
    calls: usize,
}

impl ByteStream for Wire {
    fn receive(&mut self, _: &mut [IoSliceMut<'_>]) -> Transferred {
        Transferred::WouldBlock
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred {
        self.calls += 1;
        if self.calls.is_multiple_of(3) {
            return Transferred::WouldBlock;
        }
        let mut room = self.grain;
        for buffer in buffers {
            let taken = room.min(buffer.len());
            self.bytes.extend_from_slice(&buffer[..taken]);
            room -= taken;
        }
        Transferred::Bytes(self.grain - room)
    }

    fn finish_sending(&mut self) {}
}

fn pool() -> Pool {
    let config = ArenaConfig {
        bytes: 16 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 64 << 10,
    };
    Arena::new(config).expect("a small arena").pool(16)
}

fn queue_three(transmitter: &mut Transmitter, framing: Framing, pool: &Pool) {
    transmitter.negotiate(framing);
    let mut lease = pool.take(5000).expect("a free arena");
    for (position, byte) in lease.iter_mut().enumerate() {
        *byte = position as u8;
    }
    let data = C2hData::new(7, 0, 5000, C2hEnd::Last, framing);
    transmitter.push_data(
        transmute!(data),
        Data::Lease(lease),
        5000,
        Finishes::Nothing,
    );
    let response = CapsuleResp::new(Cqe::new(7, Status::SUCCESS), framing);
    transmitter.push_header(transmute!(response), Finishes::Slot(3));
    let other = CapsuleResp::new(Cqe::new(8, Status::LBA_OUT_OF_RANGE), framing);
    transmitter.push_header(transmute!(other), Finishes::Slot(4));
}

fn drain(transmitter: &mut Transmitter, wire: &mut Wire) -> Vec<u16> {
    let mut finished = Vec::new();
    for _ in 0..100_000 {
        let flushed = transmitter.flush(wire, |finishes| match finishes {
            Finishes::Slot(slot) => finished.push(slot),
            Finishes::Nothing => {}
            Finishes::Inline(_) => panic!("everything here has a slot"),
        });
        if flushed == Flushed::Empty {
            return finished;
        }
    }
    panic!("the queue did not drain");
}

#[test]
fn fragmentation_does_not_change_sent_bytes_or_slot_order() {
    let pool = pool();
    for (header_digest, data_digest, alignment_z) in [
        (false, false, 0),
        (true, false, 0),
        (true, true, 0),
        (true, true, 31),
        (false, true, 7),
    ] {
        let framing = Framing {
            header_digest,
            data_digest,
            alignment_z,
        };
        let mut whole = None;
        for grain in [1 << 20, 4096, 997, 28, 24, 5, 1] {
            let mut transmitter = Transmitter::new();
            transmitter.reserve(4);
            queue_three(&mut transmitter, framing, &pool);
            let mut wire = Wire {
                bytes: Vec::new(),
                grain,
                calls: 0,
            };
            assert_eq!(drain(&mut transmitter, &mut wire), [3, 4]);
            let expected = whole.get_or_insert_with(|| wire.bytes.clone());
            assert_eq!(&wire.bytes, expected, "grain {grain}");
        }
        check_layout(&whole.expect("seven rounds"), framing);
    }
    assert_eq!(pool.waiting(), 0);
}

/// Wherever a stream has stopped, what it has accepted and what is handed over are the same bytes
/// together.
#[test]
fn unsent_bytes_follow_those_that_were_sent() {
    let pool = pool();
    for (digests, alignment_z) in [(false, 0), (true, 0), (true, 31)] {
        let framing = Framing {
            header_digest: digests,
            data_digest: digests,
            alignment_z,
        };
        let wire = |grain| Wire {
            bytes: Vec::new(),
            grain,
            calls: 0,
        };
        let mut transmitter = Transmitter::new();
        queue_three(&mut transmitter, framing, &pool);
        let mut whole = wire(1 << 20);
        drain(&mut transmitter, &mut whole);
        for grain in [1, 23, 24, 29, 160, 500, 1300] {
            let mut transmitter = Transmitter::new();
            queue_three(&mut transmitter, framing, &pool);
            let mut part = wire(grain);
            transmitter.flush(&mut part, |_| {});
            assert!(!part.bytes.is_empty() && !transmitter.is_empty());
            let unsent = transmitter.unsent_bytes().expect("no borrow");
            assert_eq!(transmitter.unsent_bytes(), Some(unsent.clone()));
            assert!(
                [&part.bytes[..], &unsent].concat() == whole.bytes,
                "{grain}"
            );
            let mut next = Transmitter::new();
            next.push_control(&unsent);
            drain(&mut next, &mut part);
            assert!(part.bytes == whole.bytes, "{grain}");
            drain(&mut transmitter, &mut wire(1 << 20));
        }
    }
}

/// A data PDU's data is at the offset that its header states, with the alignment that the host
/// requested and valid digests.
fn check_layout(wire: &[u8], framing: Framing) {
    let (header, _) = C2hData::read_from_prefix(wire).expect("a header");
    let (begin, plen) = (usize::from(header.ch.pdo), header.ch.plen.get() as usize);
    assert_eq!(begin % ((usize::from(framing.alignment_z) + 1) * 4), 0);
    let data = &wire[begin..begin + 5000];
    assert!(
        data.iter()
            .enumerate()
            .all(|(position, byte)| *byte == position as u8)
    );
    if framing.header_digest {
        assert_eq!(wire[24..28], digest(&wire[..24]));
    }
    let end = begin + 5000;
    if framing.data_digest {
        assert_eq!(wire[end..end + 4], digest(data));
    }
    assert_eq!(plen, end + if framing.data_digest { 4 } else { 0 });
    let (response, _) = CapsuleResp::read_from_prefix(&wire[plen..]).expect("a response");
    assert_eq!(response.cqe.cid.get(), 7);
}

/// Of three PDUs, the first partly sent, only the first is sent before a termination request.
fn terminated(framing: Framing) -> Vec<u8> {
    let pool = pool();
    let mut transmitter = Transmitter::new();
    queue_three(&mut transmitter, framing, &pool);
    let mut wire = Wire {
        bytes: Vec::new(),
        grain: 30,
        calls: 0,
    };
    let _ = transmitter.flush(&mut wire, |_| panic!("nothing is finished yet"));
    transmitter.discard_unsent();
    transmitter.push_control(b"end");
    let finished = drain(&mut transmitter, &mut wire);
    assert!(finished.is_empty());
    wire.bytes
}

#[test]
fn a_partly_sent_pdu_is_completed_before_a_termination() {
    let sent = terminated(Framing::default());
    assert_eq!(sent.len(), 24 + 5000 + 3);
    assert!(sent.ends_with(b"end"));
}

/// Data that is queued behind partly sent data has its own digest, at every position.
#[test]
fn each_data_pdu_has_its_digest() {
    const BYTES: usize = 100;
    const PDU_BYTES: usize = 24 + BYTES + DIGEST_BYTES;
    let framing = Framing {
        data_digest: true,
        ..Framing::default()
    };
    let pool = pool();
    for grain in [1, 24, 31, 64, 124, 126, 127, 128, 129, 200, 300, 1 << 20] {
        let mut transmitter = Transmitter::new();
        transmitter.reserve(16);
        transmitter.negotiate(framing);
        let mut wire = Wire {
            bytes: Vec::new(),
            grain,
            calls: 0,
        };
        for number in 0..16_u16 {
            let mut lease = pool.take(BYTES).expect("a free arena");
            lease.fill(number as u8 + 1);
            let data = C2hData::new(number, 0, BYTES as u32, C2hEnd::Success, framing);
            let finishes = Finishes::Nothing;
            transmitter.push_data(transmute!(data), Data::Lease(lease), BYTES, finishes);
            if number % 3 != 0 {
                let _ = transmitter.flush(&mut wire, |_| {});
            }
        }
        drain(&mut transmitter, &mut wire);
        let (pdus, rest) = wire.bytes.as_chunks::<PDU_BYTES>();
        assert_eq!((pdus.len(), rest), (16, &[][..]), "grain {grain}");
        for (number, pdu) in pdus.iter().enumerate() {
            let (data, found) = pdu[24..].split_at(BYTES);
            assert_eq!(data, [number as u8 + 1; BYTES], "grain {grain}");
            assert_eq!(found, digest(data), "grain {grain}, PDU {number}");
        }
    }
}

#[test]
fn partly_sent_data_is_completed_with_its_digest_before_a_termination() {
    let sent = terminated(Framing {
        data_digest: true,
        ..Framing::default()
    });
    let end = 24 + 5000;
    assert_eq!(sent[end..end + DIGEST_BYTES], digest(&sent[24..end]));
    assert_eq!(&sent[end + DIGEST_BYTES..], b"end");
}

/// After borrows are suspended, a partly sent PDU continues from a copy. A PDU that is not partly
/// sent borrows again when it can be sent, with the data at that time.
#[test]
fn borrows_of_unsent_data_are_suspended() {
    const PDU_BYTES: usize = 24 + 4096;
    let store = Store::new(8192, PagePolicy::Ordinary).expect("memory");
    let handle = store.handle();
    assert!(handle.try_write(0, &[7; 8192]));
    let cases = [0, 10, 24, 100, 4000].map(|taken| [(taken, false), (taken, true)]);
    for (taken, terminates) in cases.into_iter().flatten() {
        let pool = pool();
        let mut transmitter = Transmitter::new();
        for place in 0..2 {
            let borrow = handle
                .try_borrow_read(place * 4096, 4096)
                .expect("nobody writes");
            let data = C2hData::new(3, 0, 4096, C2hEnd::Success, Framing::default());
            let finishes = Finishes::Nothing;
            transmitter.push_data(transmute!(data), Data::Borrow(borrow), 4096, finishes);
        }
        let mut wire = Wire {
            bytes: Vec::new(),
            grain: taken,
            calls: 0,
        };
        let _ = transmitter.flush(&mut wire, |_| {});
        let (sent_pdus, half) = (wire.bytes.len() / PDU_BYTES, wire.bytes.len() % PDU_BYTES);
        let partly_sent = sent_pdus + usize::from(half > 0);
        assert_eq!(
            transmitter.suspend_borrows(),
            2 - partly_sent,
            "taken {taken}"
        );
        assert_eq!(transmitter.suspend_borrows(), 0);
        let (none, copied) = match half {
            0 => (Suspended::Nothing, Suspended::Nothing),
            _ => (Suspended::NoMemory, Suspended::Copied(4096)),
        };
        assert_eq!(transmitter.copy_partly_sent_borrow(|_| None), none);
        assert_eq!(handle.try_write(sent_pdus * 4096, &[7; 10]), half == 0);
        let copy = transmitter.copy_partly_sent_borrow(|bytes| pool.take(bytes));
        assert_eq!(copy, copied, "taken {taken}");
        assert!((0..64).any(|_| handle.try_write(0, &[9; 8192])));
        wire.grain = 1 << 20;
        if terminates {
            transmitter.discard_unsent();
            transmitter.push_control(b"end");
        }
        drain(&mut transmitter, &mut wire);
        let sent = wire.bytes.strip_suffix(b"end").unwrap_or(&wire.bytes);
        let pdus = if terminates { partly_sent } else { 2 };
        assert_eq!(sent.len(), pdus * PDU_BYTES, "taken {taken}");
        for (place, pdu) in sent.chunks(PDU_BYTES).enumerate() {
            let expected = if place < partly_sent { 7 } else { 9 };
            assert_eq!(pdu[24..], [expected; 4096], "taken {taken}");
        }
        assert!((0..64).any(|_| handle.try_write(0, &[7; 8192])));
    }
}

/// A PDU whose range a writer holds is sent later, with its digest, after the PDUs before it.
#[test]
fn suspended_borrows_wait_for_the_writer_and_are_sent_in_order() {
    const PDU_BYTES: usize = 24 + 4096 + DIGEST_BYTES;
    let framing = Framing {
        data_digest: true,
        ..Framing::default()
    };
    let store = Store::new(4 * 4096, PagePolicy::Ordinary).expect("memory");
    let handle = store.handle();
    let mut transmitter = Transmitter::new();
    transmitter.negotiate(framing);
    for place in 0..4_u16 {
        let borrow = handle
            .try_borrow_read(usize::from(place) * 4096, 4096)
            .expect("free");
        let data = C2hData::new(place, 0, 4096, C2hEnd::Success, framing);
        let finishes = Finishes::Slot(place);
        transmitter.push_data(transmute!(data), Data::Borrow(borrow), 4096, finishes);
        if place == 1 {
            transmitter.seal();
        }
    }
    assert_eq!(transmitter.suspend_newest(), 2);
    assert_eq!(transmitter.suspend_borrows(), 2);
    let mut wire = Wire {
        bytes: Vec::new(),
        grain: 1 << 20,
        calls: 0,
    };
    let mut finished = Vec::new();
    let filled = handle.try_fill(2 * 4096, 4096, |range| {
        range.fill(5);
        for _ in 0..3 {
            let outcome = transmitter.flush(&mut wire, |finishes| finished.push(finishes));
            assert_eq!(outcome, Flushed::Yielded);
        }
    });
    assert!(filled);
    assert_eq!(finished, [Finishes::Slot(0), Finishes::Slot(1)]);
    assert_eq!(drain(&mut transmitter, &mut wire), [2, 3]);
    assert_eq!(wire.bytes.len(), 4 * PDU_BYTES);
    for (place, pdu) in wire.bytes.chunks(PDU_BYTES).enumerate() {
        let (data, found) = pdu[24..].split_at(4096);
        assert_eq!(data, [if place == 2 { 5 } else { 0 }; 4096]);
        assert_eq!(found, digest(data), "PDU {place}");
    }
}

#[test]
fn a_full_queue_is_sent_in_batches_within_the_kernels_limit() {
    let framing = Framing {
        header_digest: true,
        data_digest: true,
        alignment_z: 31,
    };
    let pool = pool();
    let mut transmitter = Transmitter::new();
    transmitter.reserve(512);
    transmitter.negotiate(framing);
    for slot in 0..400 {
        let data = C2hData::new(slot, 0, 16, C2hEnd::Success, framing);
        let lease = pool.take(16).expect("4 KiB leases in plenty");
        transmitter.push_data(
            transmute!(data),
            Data::Lease(lease),
            16,
            Finishes::Slot(slot),
        );
    }
    let mut wire = Wire {
        bytes: Vec::new(),
        grain: 1 << 20,
        calls: 0,
    };
    assert_eq!(
        drain(&mut transmitter, &mut wire),
        (0..400).collect::<Vec<_>>()
    );
    assert_eq!(wire.bytes.len(), 400 * (128 + 16 + 4));
}
