//! Data of all sizes, which go through chunks, messages and long calls and replies.

use files_client_testing::{
    Peer as _, Slot, World as _, at, at_file, create_file, data, name, write_and_read_in_turn,
};
use files_spec::attributes::Attributes;
use files_spec::operations::{CreateArgs, Operation, OperationResult, Outcome};
use files_spec::readdir::ReaddirArgs;
use files_spec::types::CreateType;
use files_spec::{Bitmap, Status};

use crate::stage::{client, free, moved, pass, stage, stage_of, stage_with, stop, turn_until};
use rdma_testing::fake::FabricConfig;
use reactors::Nanos;

/// Two connections of one session, which take turns; with chunks of one segment and of several.
#[test]
fn what_was_written_is_read_over_any_connection() {
    let stage = stage();
    let mut clients = [client(&stage), client(&stage)];
    clients[1].segment_bytes = 100_001;
    write_and_read_in_turn(&mut clients, 300, |client, random| {
        client.offers_reply = random.below(2) == 0;
    });
    assert_eq!(stage.borrow().arena.take_dma_violation(), None);
}

/// Data of 4 KiB and more move by RDMA between memory of the client and leases or the device.
#[test]
fn whole_blocks_are_not_copied() {
    let stage = stage();
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    assert_eq!(moved(&stage), [0; 5]);
    let mut whole = 0;
    for bytes in [4096, 12_288, 1 << 20] {
        let long: Vec<u8> = (0..bytes).map(|at| (at / 4096 % 250) as u8 + 1).collect();
        let write = slot.write(0, &long);
        slot.call(&mut client, &write).assert_ok();
        let read = slot.read(0, bytes as u32);
        let answer = slot.call(&mut client, &read);
        assert!(data(&answer) == long);
        whole += bytes as u64;
        assert_eq!(moved(&stage), [whole, 0, whole, 0, 0]);
    }
    let of_rdma = std::sync::Arc::clone(&stage.borrow().of_rdma);
    assert_eq!(of_rdma.bytes_read.get(), whole);
    assert_eq!(of_rdma.bytes_written.get(), whole);
    // Parts of blocks are merged with what the blocks have, by RDMA as well.
    let part = vec![7; 5000];
    let write = slot.write(100, &part);
    slot.call(&mut client, &write).assert_ok();
    let answer = slot.call(&mut client, &slot.read(99, 5002));
    let bytes = data(&answer);
    assert_eq!((bytes[0], &bytes[1..5001], bytes[5001]), (1, &part[..], 2));
    let [_, read_copied, fetched, inline, write_copied] = moved(&stage);
    assert_eq!((fetched, inline), (whole + 5000, 0));
    // What the blocks had before is copied from the RAM device.
    assert_eq!((read_copied, write_copied), (0, 8192));
}

/// The smallest leases that can be configured: data and holes move in many pieces.
#[test]
fn small_leases_serve_long_data_and_holes() {
    let stage = stage_of(8 << 20, 4096, FabricConfig::IMMEDIATE);
    let mut client = client(&stage);
    client.segment_bytes = 70_001;
    let mut slot = Slot::new(&mut client, b"a");
    let long: Vec<u8> = (0..300_000).map(|at| (at / 4096 % 250) as u8 + 1).collect();
    let write = slot.write(300_000, &long);
    slot.call(&mut client, &write).assert_ok();
    let answer = slot.call(&mut client, &slot.read(0, 600_000));
    let read = data(&answer);
    assert_eq!(read.len(), 600_000);
    assert!(read[..300_000].iter().all(|it| *it == 0));
    assert!(read[300_000..] == long);
    drop(client);
    turn_until(&stage, |it| it.service.borrow().connections() == 0);
}

/// Holes are written from one small slice of zeroes, so that a reply takes hundreds of entries of the
/// send queue: replies wait for each other.
#[test]
fn replies_of_many_pieces_fit_into_the_send_queue() {
    const BYTES: usize = 1 << 20;
    let stage = stage_of(8 << 20, 4096, FabricConfig::manual(3));
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    let write = slot.write(2 * BYTES as u64, &[1]);
    slot.call(&mut client, &write).assert_ok();
    for slotid in 1..9 {
        let mut other = slot.other(slotid);
        let record = other.record(&mut client, &slot.read(0, BYTES as u32), false);
        client.try_send(&record).expect("open");
    }
    for _ in 1..9 {
        let answer = client.try_receive().expect("a reply");
        assert!(data(&answer) == [0; BYTES]);
    }
    let answer = slot.call(&mut client, &slot.read(BYTES as u64, BYTES as u32));
    assert!(data(&answer) == [0; BYTES]);
    drop(client);
    turn_until(&stage, |it| it.service.borrow().connections() == 0);
    assert_eq!(stage.borrow().of_rdma.connections_failed.get(), 0);
}

/// RFC 8881 §2.10.6.1.3: a repetition gets the reply of the first request, wherever its data are.
#[test]
fn data_of_a_repeated_write_may_be_elsewhere() {
    let stage = stage();
    let mut client = client(&stage);
    let slot = Slot::new(&mut client, b"a");
    let (data, longer) = ([5; 900], [5; 904]);
    for (id, inline) in [(1, [1024, 100]), (2, [100, 1024])] {
        let record = slot
            .other(id)
            .record(&mut client, &slot.write(0, &data), true);
        let mut send = |record: &[u8], inline| {
            client.inline_data_bytes = inline;
            client.try_send(record).expect("a connection");
            client.try_receive().expect("a reply")
        };
        let first = send(&record, inline[0]);
        first.assert_ok();
        let again = send(&record, inline[1]);
        assert_eq!(again.parts(), first.parts());
        // RFC 8881 §2.10.6.1.3.1: another request with the same number.
        let other = slot
            .other(id)
            .record(&mut client, &slot.write(0, &longer), true);
        for inline in inline {
            client.inline_data_bytes = inline;
            client.try_send(&other).expect("a connection");
            let answer = client.try_receive().expect("a reply");
            assert_eq!(answer.parts().0, Status::SEQ_FALSE_RETRY);
        }
    }
}

/// A READ beyond the end uses nothing of its chunk, and a short one a part.
#[test]
fn a_read_at_the_end_is_short() {
    let stage = stage();
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    let write = slot.write(0, &[5; 9001]);
    slot.call(&mut client, &write).assert_ok();
    for (offset, count, expected) in [(0, 20_000, 9001), (9000, 5000, 1), (9001, 5000, 0)] {
        let answer = slot.call(&mut client, &slot.read(offset, count));
        assert_eq!(data(&answer), vec![5; expected]);
        let placed = client.placed.last_key_value().expect("a reply");
        assert_eq!(*placed.1, expected as u64);
    }
    // A READ that fails returns its chunk unused.
    let read = at("missing", slot.read(0, 9000)[3]);
    let answer = slot.call(&mut client, &read);
    assert_eq!(answer.parts().0, Status::NOENT);
    assert_eq!(client.placed.last_key_value().expect("a reply").1, &0);
}

/// Unwritten ranges are read as zeroes, from memory that is kept for that.
#[test]
fn holes_are_zeroes() {
    let stage = stage();
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    for offset in [0, 700_000] {
        let write = slot.write(offset, &[9; 4096]);
        slot.call(&mut client, &write).assert_ok();
    }
    let answer = slot.call(&mut client, &slot.read(0, 704_096));
    let bytes = data(&answer);
    assert!(
        bytes[..4096]
            .iter()
            .chain(&bytes[700_000..])
            .all(|it| *it == 9)
    );
    assert!(bytes[4096..700_000].iter().all(|it| *it == 0));
}

fn readdir() -> [Operation<'static>; 3] {
    [
        Operation::PutRootFh(()),
        Operation::Lookup(name("data")),
        Operation::ReadDir(ReaddirArgs {
            cookie: 0,
            cookieverf: [0; 8],
            dircount: 32 << 10,
            maxcount: 32 << 10,
            attr_request: Bitmap::default(),
        }),
    ]
}

/// Replies that exceed a message are written to memory of the client, if it has offered any.
#[test]
fn long_replies_need_a_chunk() {
    let stage = stage();
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    for file in 0..200 {
        let text = format!("a file with a name that takes some room, number {file}");
        let create = [
            Operation::PutRootFh(()),
            Operation::Lookup(name("data")),
            create_file(&text),
        ];
        slot.call(&mut client, &create).assert_ok();
    }
    let error = slot.try_call(&mut client, &readdir()).err();
    let kind = error.map(|it| it.kind());
    assert_eq!(kind, Some(std::io::ErrorKind::InvalidData));
    client.offers_reply = true;
    let answer = slot.call(&mut client, &readdir());
    answer.assert_ok();
    assert!(answer.0.len() > 8192);
    assert_eq!(stage.borrow().of_rdma.long_replies.get(), 1);
    // Short ones are messages.
    slot.call(&mut client, &at_file(Operation::GetFh(())))
        .assert_ok();
    assert_eq!(stage.borrow().of_rdma.long_replies.get(), 1);
}

/// Calls that exceed a message are read from memory of the client, also with data in a chunk beside.
#[test]
fn long_calls_are_read_first() {
    let stage = stage();
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    client.message_bytes = 0;
    client.segment_bytes = 60_000;
    let long = vec![3; 200_001];
    let write = slot.write(1, &long);
    slot.call(&mut client, &write).assert_ok();
    let answer = slot.call(&mut client, &slot.read(0, 300_000));
    assert!(data(&answer)[1..] == long);
    assert_eq!(stage.borrow().of_rdma.long_calls.get(), 2);
    assert_eq!(moved(&stage)[2], 200_001);
}

/// Requests that overlap are executed one after the other, over connections with delays.
#[test]
fn overlapping_writes_are_executed_one_after_the_other() {
    for seed in 0..20 {
        let stage = stage_with(32 << 20, FabricConfig::manual(seed));
        let mut client = client(&stage);
        let mut slot = Slot::new(&mut client, b"a");
        let sequence = slot.sequence;
        let payloads: Vec<Vec<u8>> = (0..12).map(|it| vec![it as u8 + 1; 50_000]).collect();
        for (slotid, bytes) in payloads.iter().enumerate() {
            let mut other = slot.other(slotid as u32);
            if slotid == 0 {
                other.sequence = sequence;
            }
            let write = slot.write(100, bytes);
            let record = other.record(&mut client, &write, false);
            client.try_send(&record).expect("open");
        }
        for _ in &payloads {
            let answer = client.try_receive().expect("a reply");
            answer.assert_ok();
            let OperationResult::Write(Outcome::Ok(ok)) = answer.last() else {
                panic!("{:?}", answer.parts());
            };
            assert_eq!(ok.count, 50_000);
        }
        slot.sequence = sequence + 1;
        let answer = slot.call(&mut client, &slot.read(0, 60_000));
        let bytes = data(&answer);
        assert_eq!((bytes.len(), &bytes[..100]), (50_100, &[0; 100][..]));
        assert!((1..=12).contains(&bytes[100]));
        assert!(bytes[100..].iter().all(|it| *it == bytes[100]));
    }
}

/// Connections end and leave nothing behind.
#[test]
fn memory_is_returned_with_the_connections() {
    let stage = stage();
    drop(client(&stage));
    turn_until(&stage, |it| it.service.borrow().connections() == 0);
    let before = free(&stage);
    for round in 0..30 {
        let mut client = client(&stage);
        let mut slot = Slot::new(&mut client, &[round]);
        let bytes = vec![round; 300_000];
        let write = slot.write(0, &bytes);
        let record = slot.record(&mut client, &write, false);
        client.try_send(&record).expect("open");
        for _ in 0..round {
            stage.borrow_mut().turn();
        }
        drop(client);
        turn_until(&stage, |it| it.service.borrow().connections() == 0);
        turn_until(&stage, |it| it.core.borrow().counts() == (0, 0));
    }
    assert_eq!(free(&stage), before);
    let mut client = client(&stage);
    let _ = Slot::new(&mut client, b"last");
    stop(&stage);
    client.wait_for_end();
    assert_eq!(stage.borrow().core.borrow().counts(), (0, 0));
}

/// A session goes on over another connection, and a request that is sent again is not executed
/// again.
#[test]
fn a_session_goes_on_over_another_connection() {
    let stage = stage();
    let mut first = client(&stage);
    let mut slot = Slot::new(&mut first, b"a");
    let create = [
        Operation::PutRootFh(()),
        Operation::Lookup(name("data")),
        Operation::Create(CreateArgs {
            objtype: CreateType::Directory,
            objname: name("once"),
            createattrs: Attributes::default(),
        }),
    ];
    let record = slot.record(&mut first, &create, true);
    first.try_send(&record).expect("open");
    let answer = first.try_receive().expect("a reply");
    answer.assert_ok();
    let number = first.queue_pair_number();
    stage.borrow().fabric.drop_connection(number);
    first.wait_for_end();
    pass(&stage, Nanos::from_secs(1));
    let mut second = client(&stage);
    second.try_send(&record).expect("open");
    let again = second.try_receive().expect("a reply");
    assert_eq!(again.0, answer.0);
}
