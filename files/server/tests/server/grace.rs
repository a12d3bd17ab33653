//! Reclaims after a restart.

use files_server::Squash;
use files_server::limits::GRACE_MS;
use files_spec::Status;
use files_spec::operations::{Claim, OpenArgs, OpenHow, Operation};
use files_spec::types::StateId;

use crate::client::{CHANNEL, Client, World, in_share, name, share, volatile_volume};
use crate::data::{at_file, read};
use crate::opens::{BOTH, open, unchecked};

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

fn reclaim() -> Vec<Operation<'static>> {
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
    client.ok(&mut world, &new);
    let mut late = Client::unreclaimed(&mut world, b"a", CHANNEL);
    late.fails(&mut world, &reclaim(), Status::NO_GRACE);
}
