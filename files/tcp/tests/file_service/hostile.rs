//! Invalid streams, clients that do not read, and clients that disappear.

use std::io::Write as _;
use std::time::Instant;

use files_service::limits::{CONNECTIONS_MAX, REQUESTS_PER_CONNECTION_MAX};
use files_spec::Status;
use files_spec::operations::Operation;

use crate::reactor::{LOOPBACK, Reactor};
use files_client_testing::{Connection, LIMIT, Slot, at_file, data, name};

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn an_invalid_stream_ends_its_connection_only() {
    let reactor = Reactor::start(LOOPBACK);
    let mut valid = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut valid, b"valid");
    let streams: [&[u8]; 3] = [&[0xff; 64], &[0; 4 * 100], &[0x80, 0x20, 0, 0]];
    for bytes in streams {
        let mut invalid = Connection::new(reactor.address);
        invalid.stream.write_all(bytes).expect("it is open");
        assert!(invalid.is_closed(), "{bytes:?}");
    }
    // A record that is no call has no reply.
    let mut odd = Connection::new(reactor.address);
    odd.send(b"abc");
    odd.send(&[0, 0, 0, 1, 0, 0, 0, 1]);
    odd.call(&[]).assert_ok();
    slot.call(&mut valid, &[Operation::PutRootFh(())])
        .assert_ok();
}

#[test]
fn connections_that_end_within_a_record_leave_nothing() {
    let reactor = Reactor::start(LOOPBACK);
    let mut valid = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut valid, b"valid");
    let record = slot.record(&mut valid, &[Operation::PutRootFh(())], false);
    for length in [0, 2, 4, 20, record.len()] {
        let mut partial = Connection::new(reactor.address);
        let mark = (1_u32 << 31 | (record.len() as u32 + 1)).to_be_bytes();
        let bytes = [&mark[..], &record].concat();
        partial
            .stream
            .write_all(&bytes[..length])
            .expect("it is open");
    }
    wait_until("the connections end", || reactor.counts() == (1, 0));
    valid.send(&record);
    valid.receive().assert_ok();
}

#[test]
fn connections_beyond_the_limit_wait_for_others_to_end() {
    let reactor = Reactor::start(LOOPBACK);
    let mut all: Vec<_> = (0..CONNECTIONS_MAX)
        .map(|_| Connection::new(reactor.address))
        .collect();
    wait_until("they are accepted", || {
        reactor.counts().0 == CONNECTIONS_MAX
    });
    let mut waiting = Connection::new(reactor.address);
    let record = waiting.record(&[]);
    waiting.send(&record);
    all.pop();
    waiting.receive().assert_ok();
}

/// A client that asks for much data and reads none of it.
#[test]
fn a_client_that_does_not_read_holds_a_bounded_part_of_the_memory() {
    let reactor = Reactor::start(LOOPBACK);
    let mut silent = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut silent, b"silent");
    let megabyte = vec![5; 1 << 20];
    slot.call(&mut silent, &slot.write(0, &megabyte))
        .assert_ok();
    // 64 requests of 1 MiB; the arena has 16 MiB.
    for slotid in 0..64 {
        let mut other = slot.other(slotid);
        if slotid == 0 {
            other.sequence = slot.sequence;
        }
        let record = other.record(&mut silent, &slot.read(0, 1 << 20), false);
        silent.send(&record);
    }
    let mut active = Connection::new(reactor.address);
    let mut other = Slot::new(&mut active, b"active");
    for round in 0..50_u8 {
        let bytes = vec![round; 100_000];
        let offset = (2 << 20) + 100_000 * u64::from(round);
        other
            .call(&mut active, &other.write(offset, &bytes))
            .assert_ok();
        let answer = other.call(&mut active, &other.read(offset, 100_000));
        assert_eq!(data(&answer), bytes);
    }
    let (connections, requests) = reactor.counts();
    assert_eq!(connections, 2);
    assert!(requests > 1 && requests <= REQUESTS_PER_CONNECTION_MAX);
    // It also receives everything when it reads at last.
    for _ in 0..64 {
        assert_eq!(data(&silent.receive()), megabyte);
    }
    wait_until("nothing is left", || reactor.counts() == (2, 0));
}

/// The reply to a request whose connection has ended belongs to the session.
#[test]
fn a_request_is_executed_once_over_two_connections() {
    let reactor = Reactor::start(LOOPBACK);
    let mut first = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut first, b"a");
    let remove = [
        Operation::PutRootFh(()),
        Operation::Lookup(name("data")),
        Operation::Remove(name("f")),
    ];
    let record = slot.record(&mut first, &remove, true);
    first.send(&record);
    drop(first);
    let mut second = Connection::new(reactor.address);
    second.send(&record);
    let mut answer = second.receive();
    // The first transmission may still be in the other socket.
    while answer.parts().0 == Status::DELAY {
        second.send(&record);
        answer = second.receive();
    }
    answer.assert_ok();
    let lookup = at_file(Operation::GetFh(()));
    let answer = slot.call(&mut second, &lookup);
    assert_eq!(answer.parts().0, Status::NOENT);
}

#[test]
fn the_loss_of_a_device_fails_requests_for_data() {
    let reactor = Reactor::start(LOOPBACK);
    let mut connection = Connection::new(reactor.address);
    let mut slot = Slot::new(&mut connection, b"a");
    slot.call(&mut connection, &slot.write(0, &[1; 10_000]))
        .assert_ok();
    reactor.remove_device();
    loop {
        let answer = slot.call(&mut connection, &slot.read(0, 10_000));
        match answer.parts().0 {
            Status::IO => break,
            status => assert_eq!(status, Status::OK),
        }
    }
    let answer = slot.call(&mut connection, &slot.write(0, &[1; 5000]));
    assert_eq!(answer.parts().0, Status::IO);
    slot.call(&mut connection, &at_file(Operation::GetFh(())))
        .assert_ok();
}
