//! Clients that violate the protocol, and what others notice of them.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use files_client_testing::{Peer as _, Slot, World as _, data, name};
use files_spec::attributes::Attributes;
use files_spec::operations::{CreateArgs, Operation};
use files_spec::rdma::{Chunks, Header, HeaderError, Procedure, ReadSegment};
use files_spec::types::CreateType;
use files_spec::xdr::{Encoder, Opaque};
use hugemem::{ClassCounters, PagePolicy, Region};
use rdma::{Domains, Provider as _};
use rdma_testing::fake::{DeviceConfig, Fabric, Fake, Fault, Operation as RdmaOperation, Pattern};
use reactors::Nanos;

use crate::stage::{
    Client, Stage, client, free, moved, pass, stage, stage_with, try_client, turn_until,
};
use rdma_testing::fake::FabricConfig;

fn encoded(header: &Header) -> Vec<u8> {
    let mut memory = vec![0; 4096];
    let mut to = Encoder::new(&mut memory);
    header.encode(&mut to).expect("fits");
    to.written().to_vec()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A client of the same server works as before.
fn assert_serves(stage: &Rc<RefCell<Stage>>) {
    let mut other = client(stage);
    let mut slot = Slot::with_file(&mut other, b"other", "other");
    let write = slot.write(0, &[8; 10_000]);
    slot.call(&mut other, &write).assert_ok();
    let answer = slot.call(&mut other, &slot.read(0, 10_000));
    assert_eq!(data(&answer), [8; 10_000]);
}

/// RFC 8166 §4.5.2: each message that is not valid has the exact answer, and the connection goes on.
#[test]
fn invalid_messages_are_answered() {
    let stage = stage();
    let mut client = client(&stage);
    let credits = {
        let mut slot = Slot::new(&mut client, b"a");
        slot.call(&mut client, &[]).assert_ok();
        client.credits
    };
    assert_eq!(credits, 64);
    let version = words(&[7, 2, 1, 0, 0, 0, 0]);
    let lists = words(&[8, 1, 1, 0, 3, 0, 0]);
    let long = words(&[9, 1, 1, 1, 1, 0, 7, 1 << 30, 0, 0, 0, 0, 0]);
    let two_items = [
        words(&[10, 1, 1, 0, 1, 4, 7, 4, 0, 0, 1, 8, 7, 4, 0, 0, 0, 0, 0]),
        vec![0; 40],
    ]
    .concat();
    let done = words(&[11, 1, 1, 3]);
    let chunk = |xid| HeaderError::Chunk { xid };
    let cases = [
        (version, HeaderError::Version { xid: 7 }),
        (lists, chunk(8)),
        (long, chunk(9)),
        (two_items, chunk(10)),
        (done, chunk(11)),
    ];
    for (message, error) in cases {
        client.send_message(&message);
        let answer = client.receive_message().expect("an answer");
        let expected = error.answer(credits).expect("it has one");
        assert_eq!(answer, encoded(&expected));
    }
    // These have no answer.
    client.send_message(&[]);
    client.send_message(&words(&[12, 1, 1]));
    client.send_message(&words(&[13, 1, 1, 4, 2]));
    let refused = stage.borrow().of_rdma.calls_refused.get();
    assert_eq!(refused, 5);
    turn_until(&stage, |it| it.of_rdma.calls_refused.get() == 8);
    let mut slot = Slot::with_file(&mut client, b"b", "g");
    let write = slot.write(0, &[1; 5000]);
    slot.call(&mut client, &write).assert_ok();
}

/// A key or range that the client does not have ends its connection only.
#[test]
fn wrong_keys_end_the_connection_and_nothing_else() {
    for is_write in [true, false] {
        let stage = stage();
        let mut client = client(&stage);
        let mut slot = Slot::new(&mut client, b"a");
        let write = slot.write(0, &[1; 50_000]);
        slot.call(&mut client, &write).assert_ok();
        let before = free(&stage);
        client.key_offset = 0x1000;
        let request = match is_write {
            true => slot.write(0, &[2; 50_000]),
            false => slot.read(0, 50_000),
        };
        let record = slot.record(&mut client, &request, false);
        client.try_send(&record).expect("open");
        client.wait_for_end();
        turn_until(&stage, |it| it.of_rdma.connections_failed.get() == 1);
        turn_until(&stage, |it| it.core.borrow().counts() == (0, 0));
        assert_serves(&stage);
        turn_until(&stage, |it| it.core.borrow().counts() == (0, 0));
        // The messages of the connection, too, are returned.
        let after = free(&stage);
        assert!(
            after
                .iter()
                .zip(&before)
                .all(|(after, before)| after >= before)
        );
        // The file is writable again, over another connection of the same session.
        let mut second = try_client(&stage).expect("a connection");
        let mut next = slot.other(5);
        let write = next.write(0, &[3; 50_000]);
        next.call(&mut second, &write).assert_ok();
        let answer = next.call(&mut second, &next.read(0, 50_000));
        assert_eq!(data(&answer), [3; 50_000]);
    }
}

/// Chunks that are shorter than the data: the call is refused, and the connection goes on.
#[test]
fn chunks_that_are_too_short_are_refused() {
    let stage = stage();
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    let write = slot.write(0, &[1; 50_000]);
    slot.call(&mut client, &write).assert_ok();
    let read = slot.read(0, 50_000);
    let record = slot.record(&mut client, &read, false);
    let xid = u32::from_be_bytes(*record.first_chunk().expect("a call"));
    let mut chunks = Chunks::default();
    let at = client.fill(xid, &[]);
    chunks.push_write(client.chunk(at, 49_999)).expect("one");
    let header = Header {
        xid,
        credits: 1,
        procedure: Procedure::Message,
        chunks,
    };
    client.send_message(&[encoded(&header), record].concat());
    let answer = client.receive_message().expect("an answer");
    let expected = HeaderError::Chunk { xid }.answer(client.credits);
    assert_eq!(answer, encoded(&expected.expect("it has one")));
    // The data of a WRITE that are shorter than it says are those of a call that is malformed.
    let write = slot.write(0, &[2; 8000]);
    let record = slot.record(&mut client, &write, false);
    send_item(&mut client, &record, 8000, 4000);
    let answer = client.try_receive().expect("a reply");
    assert_eq!(answer.parts().0, files_spec::Status::BADXDR);
    let answer = slot.call(&mut client, &slot.read(0, 50_000));
    assert_eq!(data(&answer), [1; 50_000]);
}

/// Sends a call whose last `length` bytes are in a chunk of `bytes` bytes.
fn send_item(client: &mut Client, record: &[u8], length: usize, bytes: usize) {
    let xid = u32::from_be_bytes(*record.first_chunk().expect("a call"));
    let at = record.len() - length.next_multiple_of(4);
    let begin = client.fill(xid, &record[at..]);
    let mut chunks = Chunks::default();
    for segment in client.chunk(begin, bytes).segments() {
        let read = ReadSegment {
            position: at as u32,
            segment: *segment,
        };
        chunks.push_read(read).expect("few");
    }
    let header = Header {
        xid,
        credits: 1,
        procedure: Procedure::Message,
        chunks,
    };
    client.send_message(&[encoded(&header), record[..at].to_vec()].concat());
}

/// Data of a WRITE may come with their padding, and other items may be in chunks, too (RFC 8267).
#[test]
fn any_item_may_be_in_a_chunk() {
    let stage = stage();
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    for bytes in [8001, 8004] {
        let write = slot.write(0, &[7; 8001]);
        let record = slot.record(&mut client, &write, false);
        send_item(&mut client, &record, 8001, bytes);
        client.try_receive().expect("a reply").assert_ok();
    }
    assert_eq!(moved(&stage)[2], 2 * 8001);
    let answer = slot.call(&mut client, &slot.read(0, 9000));
    assert_eq!(data(&answer), [7; 8001]);
    let text = [b'x'; 3001];
    let link = [
        Operation::PutRootFh(()),
        Operation::Lookup(name("data")),
        Operation::Create(CreateArgs {
            objtype: CreateType::Link(Opaque(&text)),
            objname: name("link"),
            createattrs: Attributes::default(),
        }),
    ];
    let record = slot.record(&mut client, &link, false);
    let xid = u32::from_be_bytes(*record.first_chunk().expect("a call"));
    let at = record
        .windows(4)
        .position(|it| it == b"xxxx")
        .expect("the text");
    let begin = client.fill(xid, &record[at..]);
    let mut chunks = Chunks::default();
    for segment in client.chunk(begin, text.len()).segments() {
        let read = ReadSegment {
            position: at as u32,
            segment: *segment,
        };
        chunks.push_read(read).expect("few");
    }
    let header = Header {
        xid,
        credits: 1,
        procedure: Procedure::Message,
        chunks,
    };
    let rest = &record[at + text.len().next_multiple_of(4)..];
    client.send_message(&[encoded(&header), record[..at].to_vec(), rest.to_vec()].concat());
    client.try_receive().expect("a reply").assert_ok();
    let read = [
        Operation::PutRootFh(()),
        Operation::Lookup(name("data")),
        Operation::Lookup(name("link")),
        Operation::ReadLink(()),
    ];
    let answer = slot.call(&mut client, &read);
    let found = format!("{:?}", answer.last());
    assert!(found.matches("120").count() >= 3001, "{found}");
}

/// A client that sends more calls than it has credits waits for its own receives.
#[test]
fn calls_beyond_the_credits_are_not_lost() {
    let stage = stage();
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    let write = slot.write(0, &[1; 5000]);
    slot.call(&mut client, &write).assert_ok();
    for slotid in 1..61 {
        let mut other = slot.other(slotid);
        let record = other.record(&mut client, &slot.read(0, 4), false);
        client.try_send(&record).expect("open");
    }
    for _ in 1..61 {
        let answer = client.try_receive().expect("a reply");
        assert_eq!(data(&answer), [1; 4]);
    }
}

/// An arena that is nearly used up gives fewer credits, and then no connection.
#[test]
fn credits_follow_the_arena() {
    let stage = stage_with(3 << 20, FabricConfig::IMMEDIATE);
    let mut clients = Vec::new();
    let mut granted = Vec::new();
    let refused = loop {
        match try_client(&stage) {
            Ok(mut client) => {
                let owner = [clients.len() as u8];
                let _ = Slot::session(&mut client, &owner, "f");
                granted.push(client.credits);
                clients.push(client);
            }
            Err(refused) => break refused,
        }
        assert!(clients.len() < 100);
    };
    assert!(granted.len() > 1, "{refused:?}");
    // Memory for data is left, whoever connects.
    let counters = stage.borrow().arena.counters();
    let bytes = |count: fn(&ClassCounters) -> u64| -> u64 {
        let classes = counters.classes.iter();
        classes.map(|it| count(it) * it.slice_bytes as u64).sum()
    };
    let (all, free) = (bytes(|it| it.total), bytes(|it| it.free));
    assert!(free > all * 3 / 4, "{free} of {all} bytes");
    assert!(granted.windows(2).all(|it| it[0] >= it[1]), "{granted:?}");
    assert!(granted.last() < granted.first(), "{granted:?}");
    assert_eq!(stage.borrow().of_rdma.connections_rejected.get(), 1);
    // Those that are connected are served, and the memory of one that ends is used again.
    drop(clients.pop());
    turn_until(&stage, |it| {
        it.service.borrow().connections() < granted.len()
    });
    let mut slot = Slot::new(&mut clients[0], b"x");
    let write = slot.write(0, &[1; 5000]);
    slot.call(&mut clients[0], &write).assert_ok();
    clients.push(try_client(&stage).expect("a connection"));
}

/// A client whose device answers no RDMA READ is disconnected, and the file is free again.
#[test]
fn a_client_that_is_silent_is_disconnected() {
    let stage = stage();
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    let write = slot.write(0, &[1; 50_000]);
    slot.call(&mut client, &write).assert_ok();
    let pattern = Pattern {
        operation: Some(RdmaOperation::Read),
        ..Pattern::ALWAYS
    };
    stage.borrow().fabric.add_fault(pattern, Fault::Wedge);
    let write = slot.write(0, &[2; 50_000]);
    let record = slot.record(&mut client, &write, false);
    client.try_send(&record).expect("open");
    for _ in 0..1000 {
        stage.borrow_mut().turn();
    }
    assert_eq!(stage.borrow().of_rdma.connections_failed.get(), 0);
    pass(&stage, Nanos::from_secs(11));
    stage.borrow().fabric.clear_faults();
    turn_until(&stage, |it| it.of_rdma.connections_failed.get() == 1);
    turn_until(&stage, |it| it.core.borrow().counts() == (0, 0));
    assert_serves(&stage);
}

/// A client that has disappeared without a call outstanding leaves nothing, and one that calls stays.
#[test]
fn a_client_that_is_gone_leaves_its_credits() {
    let stage = stage();
    drop(client(&stage));
    turn_until(&stage, |it| it.service.borrow().connections() == 0);
    let before = free(&stage);
    let mut gone = client(&stage);
    let mut slot = Slot::new(&mut gone, b"a");
    let number = gone.queue_pair_number();
    stage.borrow().fabric.partition(number);
    let mut other = client(&stage);
    for _ in 0..5 {
        pass(&stage, Nanos::from_secs(70));
        slot.call(&mut other, &[Operation::PutRootFh(())])
            .assert_ok();
        (0..10).for_each(|_| stage.borrow_mut().turn());
        assert_eq!(stage.borrow().service.borrow().connections(), 2);
    }
    pass(&stage, Nanos::from_secs(11));
    turn_until(&stage, |it| it.service.borrow().connections() == 1);
    slot.call(&mut other, &[Operation::PutRootFh(())])
        .assert_ok();
    assert_eq!(stage.borrow().of_rdma.connections_failed.get(), 0);
    drop((gone, other));
    turn_until(&stage, |it| it.service.borrow().connections() == 0);
    assert_eq!(free(&stage), before);
}

/// A client that reconnects at once, again and again, does not delay another one.
#[test]
fn reconnecting_clients_leave_nothing() {
    let stage = stage();
    let mut steady = client(&stage);
    let mut slot = Slot::new(&mut steady, b"a");
    let before = free(&stage);
    for round in 0..300 {
        let mut client = client(&stage);
        client.send_message(&words(&[round, 1, 1, 0, 0, 0, 0]));
        drop(client);
        let bytes = [round as u8; 5000];
        let write = slot.write(0, &bytes);
        slot.call(&mut steady, &write).assert_ok();
    }
    turn_until(&stage, |it| it.service.borrow().connections() == 1);
    assert_eq!(free(&stage), before);
}

/// A device that cannot register the memory is left out.
#[test]
fn a_device_without_room_for_the_memory_is_left_out() {
    let limited = |name: &str, last| {
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
        let mut device = DeviceConfig::new(name, address);
        device.limits.registration_bytes = 4096;
        device
    };
    let region = Region::map(4 << 20, PagePolicy::Ordinary).expect("memory");
    let fabric = Fabric::new(FabricConfig::IMMEDIATE);
    let machine = fabric.machine(&[limited("small", 7)]).expect("descriptors");
    let add = |machine: &Fake| {
        let domains = Domains::<Fake>::new();
        let devices = machine.devices().expect("devices");
        let added = devices.iter().map(|it| domains.add(it, &[&region]).is_ok());
        let added: Vec<bool> = added.collect();
        (added, domains.devices().len())
    };
    assert_eq!(add(&machine), (vec![false], 0));
    let fit = DeviceConfig::new("large", IpAddr::V4(Ipv4Addr::new(192, 0, 2, 8)));
    let both = fabric
        .machine(&[limited("other", 9), fit])
        .expect("descriptors");
    assert_eq!(add(&both), (vec![false, true], 1));
}

/// A device that is removed ends its connections; what they had is free.
#[test]
fn a_device_that_is_removed_is_released() {
    let stage = stage();
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    let write = slot.write(0, &[1; 50_000]);
    slot.call(&mut client, &write).assert_ok();
    let device = stage.borrow().server.devices().expect("devices").remove(0);
    stage.borrow().fabric.remove_device(&device);
    turn_until(&stage, |it| it.service.borrow().connections() == 0);
    turn_until(&stage, |it| it.core.borrow().counts() == (0, 0));
    let handles = stage.borrow().fabric.handles(&device);
    assert_eq!(handles, 1, "only that of this test");
    for _ in 0..100 {
        stage.borrow_mut().turn();
    }
}
