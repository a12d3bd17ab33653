//! Reclaims after a restart.

use files_server::limits::{GRACE_MS, LEASE_MS, UNUSED_RECORD_MS};
use files_server::{Execution, Record, Resumption, Squash, Step};
use files_spec::Status;
use files_spec::operations::{
    Claim, CloseArgs, OpenArgs, OpenHow, Operation, OperationResult, Outcome, share as share_flags,
};
use files_spec::types::StateId;

use crate::client::{
    ADDRESS, CHANNEL, Client, World, create_session, exchange, in_share, name, share,
    volatile_volume,
};
use crate::data::{at_file, read};
use crate::opens::{BOTH, open, open_file, unchecked};

fn restarted(owners: &[&[u8]]) -> World {
    let reclaiming = owners.iter().map(|it| Box::from(*it)).collect();
    let mut volume = volatile_volume();
    let file = files_store::NewObject {
        node: files_store::NewNode::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        share: None,
    };
    let time = files_store::Time::default();
    let root = volume.root();
    volume.create(root, b"f", &file, time).expect("room");
    World::with(volume, share(false, Squash::None), reclaiming)
}

pub(crate) fn reclaim() -> Vec<Operation<'static>> {
    let Operation::Open(args) = open("f", b"o", (BOTH, 0), OpenHow::NoCreate) else {
        panic!("an OPEN");
    };
    let operation = Operation::Open(OpenArgs {
        claim: Claim::Previous(0),
        ..args
    });
    in_share(&[Operation::Lookup(name("f")), operation])
}

/// RFC 8881 §8.4.2.
#[test]
fn only_known_clients_reclaim_and_nothing_else_is_opened() {
    let mut world = restarted(&[b"a", b"b"]);
    let mut known = Client::unreclaimed(&mut world, b"a", CHANNEL);
    let mut unknown = Client::unreclaimed(&mut world, b"x", CHANNEL);
    let new = in_share(&[open("g", b"o", (BOTH, 0), unchecked())]);
    unknown.fails(&mut world, &reclaim(), Status::NO_GRACE);
    unknown.ok(&mut world, &[Operation::ReclaimComplete(false)]);
    unknown.fails(&mut world, &new, Status::GRACE);
    let special = at_file(read(StateId::ANONYMOUS, 0, 1));
    unknown.fails(&mut world, &special, Status::GRACE);
    known.fails(&mut world, &new, Status::GRACE);
    known.ok(&mut world, &reclaim());
    known.ok(&mut world, &[Operation::ReclaimComplete(false)]);
    known.fails(&mut world, &reclaim(), Status::NO_GRACE);
    known.fails(&mut world, &new, Status::GRACE);
    // The last client ends the period early.
    let mut last = Client::unreclaimed(&mut world, b"b", CHANNEL);
    last.ok(&mut world, &[Operation::ReclaimComplete(false)]);
    known.ok(&mut world, &new);
    unknown.ok(&mut world, &new);
}

#[test]
fn the_period_ends_with_its_time() {
    let mut world = restarted(&[b"a"]);
    world.advance(GRACE_MS - 1);
    let mut client = Client::new(&mut world, b"x");
    let new = in_share(&[open("g", b"o", (BOTH, 0), unchecked())]);
    client.fails(&mut world, &new, Status::GRACE);
    world.advance(1);
    // Those that have not reclaimed must not do so after another restart either.
    client.fails(&mut world, &new, Status::GRACE);
    world.store_records();
    assert!(world.records.is_empty());
    client.ok(&mut world, &new);
    let mut late = Client::unreclaimed(&mut world, b"a", CHANNEL);
    late.fails(&mut world, &reclaim(), Status::NO_GRACE);
}

/// The owners that may reclaim after a restart now.
fn recorded(world: &World) -> Vec<&[u8]> {
    world.records.iter().map(|it| &**it).collect()
}

/// Begins a request, whose reply waits until records are stored.
fn waits(world: &mut World, client: &mut Client, operations: &[Operation<'_>]) {
    let bytes = client.next_record(world, operations, true);
    let record = Record {
        bytes: &bytes,
        placement: None,
        client: ADDRESS,
    };
    let mut x = Execution::new();
    let now = world.now;
    let step = world.server.begin(&mut x, &record, &mut world.caller, &now);
    assert_eq!(step, Step::AwaitDurable);
    assert!(!world.server.is_durable(&x));
    world.store_records();
    assert!(world.server.is_durable(&x));
    let step = world.server.resume(&mut x, &record, Resumption::Done, &now);
    assert_eq!(step, Step::Reply);
}

/// RFC 8881 §8.4.3.
#[test]
fn a_client_is_recorded_before_its_first_open_is_answered() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    assert_eq!(world.server.take_records(), None, "it has no state");
    let new = in_share(&[open("f", b"o", (BOTH, 0), unchecked())]);
    waits(&mut world, &mut client, &new);
    assert_eq!(recorded(&world), [b"a"]);
    // The second one is answered at once.
    world.stores_records = false;
    client.ok(&mut world, &new);
}

/// RFC 8881 §8.4.3: otherwise, it could reclaim after a restart what another client has changed.
#[test]
fn the_record_of_a_client_ends_before_another_one_gets_its_file() {
    let mut world = World::new();
    let mut silent = Client::new(&mut world, b"a");
    let exclusive = open("f", b"o", (BOTH, share_flags::DENY_BOTH), unchecked());
    silent.ok(&mut world, &in_share(&[exclusive]));
    let mut other = Client::new(&mut world, b"b");
    world.advance(LEASE_MS + 1);
    let read = open("f", b"o", (BOTH, 0), OpenHow::NoCreate);
    other.ok(&mut world, &in_share(&[Operation::Lookup(name("f"))]));
    waits(&mut world, &mut other, &in_share(&[read]));
    assert_eq!(recorded(&world), [b"b"]);
    // A client that has restarted has no state any more.
    let answer = world.send(&[exchange(b"b", 2, 0)]);
    let OperationResult::ExchangeId(Outcome::Ok(ok)) = answer.last() else {
        panic!("{:?}", answer.parts());
    };
    let (id, sequence) = (ok.clientid, ok.sequenceid);
    world.send(&[create_session(id, sequence, CHANNEL)]);
    world.store_records();
    assert_eq!(recorded(&world), [b""; 0]);
}

/// A restart must not wait for clients that have nothing to reclaim.
#[test]
fn clients_without_state_are_forgotten_and_nothing_waits_for_that() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let state = open_file(&mut world, &mut client, "f");
    for _ in 0..3 {
        world.advance(UNUSED_RECORD_MS - 1);
        let now = world.now;
        client.ok(&mut world, &[Operation::PutRootFh(())]);
        world.server.tick(&now);
    }
    world.store_records();
    assert_eq!(recorded(&world), [b"a"]);
    let close = Operation::Close(CloseArgs {
        seqid: 0,
        open_stateid: state,
    });
    client.ok(&mut world, &at_file(close));
    world.advance(UNUSED_RECORD_MS);
    let now = world.now;
    world.server.tick(&now);
    world.stores_records = false;
    client.ok(&mut world, &[Operation::PutRootFh(())]);
    world.stores_records = true;
    world.store_records();
    assert_eq!(recorded(&world), [b""; 0]);
    // It is recorded again.
    let new = in_share(&[open("f", b"o", (BOTH, 0), unchecked())]);
    waits(&mut world, &mut client, &new);
    assert_eq!(recorded(&world), [b"a"]);
}
