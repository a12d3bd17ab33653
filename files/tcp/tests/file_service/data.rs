//! Data of all sizes and positions.

use std::time::{Duration, Instant};

use files_spec::attributes::Attributes;
use files_spec::operations::{Operation, OperationResult, Outcome, SetattrArgs};

use crate::reactor::{LOOPBACK, Reactor};
use files_client_testing::{Connection, LIMIT, Slot, at_file, data};

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// Two connections of one session, which take turns.
#[test]
fn what_was_written_is_read_over_any_connection() {
    let reactor = Reactor::start(LOOPBACK);
    let mut connections = [
        Connection::new(reactor.address),
        Connection::new(reactor.address),
    ];
    let mut slot = Slot::new(&mut connections[0], b"a");
    let mut random = Random(9);
    let mut model: Vec<u8> = Vec::new();
    for round in 0..150 {
        let turn = round % 2;
        let length = match random.below(4) {
            0 => 1 + random.below(600_000),
            1 => 4096 * (1 + random.below(20)),
            _ => 1 + random.below(9000),
        } as usize;
        let offset = random.below(2 << 20) as usize;
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + round) as u8).collect();
        let write = slot.write(offset as u64, &bytes);
        slot.call(&mut connections[turn], &write).assert_ok();
        if model.len() < offset + length {
            model.resize(offset + length, 0);
        }
        model[offset..offset + length].copy_from_slice(&bytes);
        if random.below(10) == 0 {
            let size = random.below(model.len() as u64 + 5000);
            let truncate = at_file(Operation::SetAttr(SetattrArgs {
                stateid: slot.stateid,
                obj_attributes: Attributes {
                    size: Some(size),
                    ..Attributes::default()
                },
            }));
            slot.call(&mut connections[turn], &truncate).assert_ok();
            model.resize(size as usize, 0);
        }
        let mut offset = random.below(model.len() as u64 + 1) as usize;
        let end = model.len().min(offset + 1 + random.below(1 << 20) as usize);
        // A read of many ranges may be short.
        while offset < end {
            let read = slot.read(offset as u64, (end - offset) as u32);
            let answer = slot.call(&mut connections[1 - turn], &read);
            let bytes = data(&answer);
            assert!(!bytes.is_empty());
            assert_eq!(bytes, &model[offset..offset + bytes.len()], "round {round}");
            offset += bytes.len();
        }
    }
}

/// Requests that overlap wait for each other, and each is executed.
#[test]
fn overlapping_writes_are_executed_one_after_the_other() {
    let reactor = Reactor::start(LOOPBACK);
    let mut connection = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut connection, b"a");
    let sequence = slot.sequence;
    let payloads: Vec<Vec<u8>> = (0..32).map(|it| vec![it as u8 + 1; 5000]).collect();
    for (slotid, bytes) in payloads.iter().enumerate() {
        let mut other = slot.other(slotid as u32);
        if slotid == 0 {
            other.sequence = sequence;
        }
        let record = other.record(&mut connection, &slot.write(100, bytes), false);
        connection.send(&record);
    }
    for _ in &payloads {
        let answer = connection.receive();
        answer.assert_ok();
        let OperationResult::Write(Outcome::Ok(ok)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        assert_eq!(ok.count, 5000);
    }
    slot.sequence = sequence + 1;
    let answer = slot.call(&mut connection, &slot.read(0, 10_000));
    let bytes = data(&answer);
    assert_eq!((bytes.len(), &bytes[..100]), (5100, &[0; 100][..]));
    // The write as a whole is that of one request.
    assert!((1..=32).contains(&bytes[100]));
    assert!(bytes[100..].iter().all(|it| *it == bytes[100]));
}

/// Bytes that READs borrowed and copied, and that WRITEs passed on and copied.
fn moved(reactor: &Reactor) -> [u64; 4] {
    let it = &reactor.counters;
    let counters = [
        &it.read_bytes_borrowed,
        &it.read_bytes_copied,
        &it.write_bytes_inline,
        &it.write_bytes_copied,
    ];
    counters.map(reactors::Counter::get)
}

#[test]
fn whole_blocks_are_not_copied() {
    let reactor = Reactor::start(LOOPBACK);
    let mut connection = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut connection, b"a");
    let long: Vec<u8> = (0..1 << 20).map(|at| (at / 4096) as u8).collect();
    let write = slot.write(0, &long);
    slot.call(&mut connection, &write).assert_ok();
    let read = slot.read(0, 1 << 20);
    assert_eq!(data(&slot.call(&mut connection, &read)), long);
    let whole = 1 << 20;
    assert_eq!(moved(&reactor), [whole, 0, whole, 0]);
    // Parts of blocks are merged with what the blocks have.
    let write = slot.write(100, b"part");
    slot.call(&mut connection, &write).assert_ok();
    let read = slot.read(99, 6);
    assert_eq!(data(&slot.call(&mut connection, &read)), b"\0part\0");
    let [borrowed, copied, inline, merged] = moved(&reactor);
    // What the block had, and the part.
    assert_eq!((inline, merged), (whole, 4096 + 4));
    assert!(copied == 0 && (whole + 6..=whole + 8192).contains(&borrowed));
}

/// A request may end with the last read of a turn, which no further event follows.
#[test]
fn long_requests_end_with_any_read_of_a_turn() {
    let reactor = Reactor::start(LOOPBACK);
    let mut connection = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut connection, b"a");
    let long = vec![1; 1 << 20];
    for round in 0..100 {
        let write = slot.write(0, &long[..long.len() - round * 4096]);
        slot.call(&mut connection, &write).assert_ok();
    }
}

/// A client that does not take its replies lends what they have of the device for a moment only.
#[test]
fn writers_do_not_wait_for_a_client_that_does_not_read() {
    let reactor = Reactor::start(LOOPBACK);
    let mut connection = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut connection, b"a");
    let old = vec![1; 1 << 20];
    let write = slot.write(0, &old);
    slot.call(&mut connection, &write).assert_ok();
    let mut silent = Connection::new(reactor.address);
    let mut silent_slots: Vec<Slot> = (1..33).map(|slotid| slot.other(slotid)).collect();
    for slot in &mut silent_slots {
        let read = slot.read(0, 1 << 20);
        let record = slot.record(&mut silent, &read, false);
        silent.send(&record);
    }
    // The socket and the limit of what is unsent are full.
    let began = Instant::now();
    let mut before = u64::MAX;
    while before != moved(&reactor)[0] {
        before = moved(&reactor)[0];
        assert!(began.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(20));
    }
    let new = vec![2; 1 << 20];
    let write = slot.write(0, &new);
    let began = Instant::now();
    slot.call(&mut connection, &write).assert_ok();
    assert!(began.elapsed() < LIMIT / 2);
    assert!(moved(&reactor)[1] > 0, "{:?}", moved(&reactor));
    // Each block of a reply is old or new as a whole.
    for _ in silent_slots {
        let answer = silent.receive();
        let blocks = data(&answer).chunks(4096);
        for block in blocks {
            assert!(block == &old[..4096] || block == &new[..4096]);
        }
    }
}
