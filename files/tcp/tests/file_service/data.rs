//! Data of all sizes and positions.

use std::time::{Duration, Instant};

use files_spec::operations::{OperationResult, Outcome};

use crate::reactor::{LOOPBACK, Reactor};
use files_client_testing::{Connection, LIMIT, Slot, data, write_and_read_in_turn};

/// Two connections of one session, which take turns.
#[test]
fn what_was_written_is_read_over_any_connection() {
    let reactor = Reactor::start(LOOPBACK);
    let mut connections = [(); 2].map(|()| Connection::new(reactor.address));
    write_and_read_in_turn(&mut connections, 150, |_, _| {});
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
