//! What an operator sees of the server, and the eviction of clients.

use std::sync::Arc;

use files_server::limits::LEASE_MS;
use files_server::{ClientReport, Share, ShareCounters, ShareNumber, Squash};
use files_spec::operations::{OpenHow, Operation, OperationResult, Outcome, share as share_flags};
use files_spec::types::{LockType, Stable, StateId};
use files_spec::xdr::Opaque;
use files_spec::{Bitmap, Status};

use crate::client::{ADDRESS, Client, World, exchange, in_share, name, share, volatile_volume};
use crate::data::{at_file as at_data, read, write};
use crate::locks::{at_file, lock};
use crate::opens::{BOTH, open, open_file};

fn reported(world: &World) -> Vec<ClientReport> {
    world.server.clients(&world.now)
}

/// Executions and failures of an operation.
fn counted(world: &World, wanted: &str) -> (u64, u64) {
    let mut all = world.server.counters().operations();
    let found = all.find(|(name, _)| *name == wanted);
    let (_, counters) = found.expect("an operation");
    (counters.executed.get(), counters.failed.get())
}

#[test]
fn unknown_clients_are_not_evicted() {
    let mut world = World::new();
    let client = Client::new(&mut world, b"a");
    for number in [0, 1, u64::MAX, client.id ^ 1, client.id ^ 1 << 32] {
        assert!(!world.server.evict_client(number), "{number:x}");
    }
    assert!(world.server.evict_client(client.id));
    assert!(!world.server.evict_client(client.id));
    assert_eq!(world.server.counters().clients_evicted.get(), 1);
}

#[test]
fn clients_are_listed_with_what_they_have() {
    let mut world = World::new();
    // It has created no session.
    world.send(&[exchange(b"unconfirmed", 1, 0)]);
    let mut client = Client::new(&mut world, b"a");
    let other = Client::new(&mut world, b"b");
    let stateid = open_file(&mut world, &mut client, "f");
    for range in [(0, 10), (20, 10)] {
        let locker = if range.0 == 0 { b"l" } else { b"m" };
        let request = at_file(lock(LockType::WRITE, range, stateid, locker));
        client.ok(&mut world, &request);
    }
    world.advance(LEASE_MS + 1);
    client.ok(&mut world, &[Operation::PutRootFh(())]);
    let now = world.now;
    let expected = |number, owner: &[u8], silent_ms| ClientReport {
        number,
        owner: owner.into(),
        address: ADDRESS,
        silent_ms,
        is_expired: silent_ms > LEASE_MS,
        sessions: 1,
        opens: 0,
        locks: 0,
    };
    let own = ClientReport {
        opens: 1,
        locks: 2,
        ..expected(client.id, b"a", 0)
    };
    let all = [own, expected(other.id, b"b", LEASE_MS + 1)];
    assert_eq!(reported(&world), all);
    world.server.tick(&now);
    let counters = world.server.counters();
    let levels = [&counters.clients, &counters.opens, &counters.locks];
    // A tick has removed the clients without state.
    assert_eq!(levels.map(reactors::Counter::get), [1, 1, 2]);
    assert_eq!(counters.clients_expired.get(), 2);
}

#[test]
fn an_evicted_client_loses_its_state_and_begins_anew() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let exclusive = open(
        "f",
        b"o",
        (BOTH, share_flags::DENY_BOTH),
        crate::opens::unchecked(),
    );
    client.ok(&mut world, &in_share(&[exclusive]));
    world.store_records();
    assert_eq!(world.records, [Box::from(&b"a"[..])]);
    let mut other = Client::new(&mut world, b"b");
    let wanted = in_share(&[open("f", b"o", (BOTH, 0), OpenHow::NoCreate)]);
    other.fails(&mut world, &wanted, Status::SHARE_DENIED);
    assert!(world.server.evict_client(client.id));
    let refused = client.send(&mut world, &[Operation::PutRootFh(())]);
    assert_eq!(refused.status(), Status::BADSESSION);
    other.ok(&mut world, &wanted);
    // It does not reclaim after a restart what another one has got.
    assert_eq!(world.records, [Box::from(&b"b"[..])]);
    let mut client = Client::new(&mut world, b"a");
    client.ok(&mut world, &in_share(&[Operation::Lookup(name("f"))]));
    assert_eq!(world.server.counts().2, 1);
}

/// Otherwise, it could reclaim what the operator has taken from it.
#[test]
fn an_evicted_client_does_not_reclaim() {
    let mut world = World::with(
        volatile_volume(),
        share(false, Squash::None),
        vec![Box::from(&b"a"[..]), Box::from(&b"b"[..])],
    );
    let client = Client::unreclaimed(&mut world, b"a", crate::client::CHANNEL);
    assert!(world.server.evict_client(client.id));
    let mut client = Client::unreclaimed(&mut world, b"a", crate::client::CHANNEL);
    let reclaim = crate::grace::reclaim();
    let answer = client.send(&mut world, &reclaim);
    // There is no such file; that is found out later.
    assert_eq!(answer.status(), Status::NOENT);
    let at_root = [
        Operation::PutRootFh(()),
        Operation::Lookup(name("data")),
        *reclaim.last().expect("an OPEN"),
    ];
    client.fails(&mut world, &at_root, Status::NO_GRACE);
}

#[test]
fn operations_and_their_failures_are_counted() {
    let counters = Arc::new(ShareCounters::default());
    let of_share = Share {
        counters: Arc::clone(&counters),
        ..share(false, Squash::None)
    };
    let mut world = World::with(volatile_volume(), of_share, Vec::new());
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    let missing = in_share(&[Operation::Lookup(name("missing"))]);
    client.fails(&mut world, &missing, Status::NOENT);
    assert_eq!(counted(&world, "LOOKUP"), (3, 1));
    let data = [7; 5000];
    let write = at_data(write(stateid, 0, Stable::UNSTABLE, &data));
    client.ok(&mut world, &write);
    client.ok(&mut world, &at_data(read(stateid, 0, 6000)));
    client.ok(&mut world, &at_data(read(stateid, 9000, 10)));
    assert_eq!(counted(&world, "READ"), (2, 0));
    let values = [
        &counters.reads,
        &counters.bytes_read,
        &counters.writes,
        &counters.bytes_written,
    ];
    let values = values.map(reactors::Counter::get);
    assert_eq!(values, [2, 5000, 1, 5000]);
    let wrong = at_data(read(StateId::INVALID, 0, 1));
    client.fails(&mut world, &wrong, Status::BAD_STATEID);
    assert_eq!(counted(&world, "READ"), (3, 1));
    assert_eq!(counters.reads.get(), 2);
    assert_eq!(world.server.counters().replays.get(), 0);
    let record = client.next_record(&mut world, &[Operation::PutRootFh(())], true);
    let before = counted(&world, "PUTROOTFH").0;
    for _ in 0..2 {
        world.send_record(&record);
    }
    assert_eq!(world.server.counters().replays.get(), 1);
    assert_eq!(counted(&world, "PUTROOTFH").0, before + 1);
}

/// The handle of the share's directory.
fn handle(world: &mut World, client: &mut Client) -> Vec<u8> {
    let answer = client.ok(world, &in_share(&[Operation::GetFh(())]));
    match answer.last() {
        OperationResult::GetFh(Outcome::Ok(handle)) => handle.0.to_vec(),
        _ => panic!("{:?}", answer.parts()),
    }
}

#[test]
fn an_ended_share_is_stale_and_what_was_open_is_closed() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    let handle = handle(&mut world, &mut client);
    let by_handle = [Operation::PutFh(Opaque(&handle)), Operation::GetFh(())];
    let file = client.ok(
        &mut world,
        &in_share(&[Operation::Lookup(name("f")), Operation::GetFh(())]),
    );
    let OperationResult::GetFh(Outcome::Ok(file)) = file.last() else {
        panic!("a handle");
    };
    let now = world.now;
    world.server.set_shares(Vec::new(), &now);
    client.fails(&mut world, &by_handle[..1], Status::STALE);
    let lookup = [Operation::PutRootFh(()), Operation::Lookup(name("data"))];
    client.fails(&mut world, &lookup, Status::NOENT);
    assert_eq!(reported(&world)[0].opens, 0);
    // The same share again has the same handles. What was open stays closed.
    world
        .server
        .set_shares(vec![share(false, Squash::None)], &now);
    client.ok(&mut world, &by_handle);
    let read = [Operation::PutFh(file), read(stateid, 0, 1)];
    client.fails(&mut world, &read, Status::BAD_STATEID);
}

/// The change attribute of the root.
fn root_change(world: &mut World, client: &mut Client) -> u64 {
    // The number of the change attribute.
    let wanted = Bitmap::of(&[3]);
    let operations = [Operation::PutRootFh(()), Operation::GetAttr(wanted)];
    let answer = client.ok(world, &operations);
    match answer.last() {
        OperationResult::GetAttr(Outcome::Ok(attributes)) => attributes.change.expect("asked for"),
        _ => panic!("{:?}", answer.parts()),
    }
}

#[test]
fn shares_change_while_files_are_open() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    let other = Share {
        number: ShareNumber(8),
        name: "other".to_owned(),
        ..share(false, Squash::None)
    };
    let before = root_change(&mut world, &mut client);
    world.advance(1000);
    let now = world.now;
    world
        .server
        .set_shares(vec![other, share(true, Squash::None)], &now);
    // Clients look names up again.
    assert_ne!(root_change(&mut world, &mut client), before);
    let data = at_data(write(stateid, 0, Stable::UNSTABLE, b"x"));
    client.fails(&mut world, &data, Status::ROFS);
    client.ok(&mut world, &at_data(read(stateid, 0, 1)));
    // The volume is shared twice, and the file can be written by the other share.
    let mut by_other = data.clone();
    by_other[1] = Operation::Lookup(name("other"));
    client.ok(&mut world, &by_other);
    // It stays open while one share has the volume.
    world
        .server
        .set_shares(vec![share(false, Squash::None)], &now);
    client.fails(&mut world, &by_other[..2], Status::NOENT);
    client.ok(&mut world, &data);
}
