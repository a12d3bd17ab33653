//! A durable volume: replies wait for the log.

use files_server::limits::GRACE_MS;
use files_server::{Execution, Record, Resumption, Squash, Step};
use files_spec::attributes::number;
use files_spec::operations::{CommitArgs, Operation, OperationResult, Outcome};
use files_spec::types::{CreateType, Stable};
use files_spec::{Bitmap, Status};

use crate::client::{ADDRESS, Client, World, in_share, name, share};
use crate::data::{at_file, data, read, write, written};
use crate::device::{durable_world, opened};
use crate::names::make;
use crate::opens::open_file;

#[test]
fn the_reply_to_a_change_waits_for_the_log() {
    let mut world = durable_world();
    let mut client = Client::new(&mut world, b"a");
    let operations = in_share(&[make(CreateType::Directory, "d", 0o755)]);
    let bytes = client.next_record(&mut world, &operations, true);
    let record = Record {
        bytes: &bytes,
        placement: None,
        client: ADDRESS,
    };
    let mut x = Execution::new();
    let now = world.now;
    assert_eq!(
        world.server.begin(&mut x, &record, &mut world.caller, &now),
        Step::AwaitDurable
    );
    assert!(x.is_suspended() && !world.server.is_durable(&x));
    // A retransmission in the meantime (RFC 8881 §2.10.6.2).
    assert_eq!(world.send_record(&bytes).status(), Status::DELAY);
    world.serve_volume();
    assert!(world.server.is_durable(&x));
    let step = world.server.resume(&mut x, &record, Resumption::Done, &now);
    assert_eq!(step, Step::Reply);
    assert_eq!(world.send_record(&bytes).bytes(), x.reply());
}

#[test]
fn unstable_writes_are_durable_with_commit() {
    let mut world = durable_world();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    let unstable = at_file(write(stateid, 0, Stable::UNSTABLE, b"unstable"));
    let answer = client.ok(&mut world, &unstable);
    assert_eq!(written(&answer).committed, Stable::UNSTABLE);
    let stable = at_file(write(stateid, 8, Stable::DATA_SYNC, b" stable"));
    let answer = client.ok(&mut world, &stable);
    assert_eq!(written(&answer).committed, Stable::FILE_SYNC);
    client.ok(
        &mut world,
        &at_file(Operation::Commit(CommitArgs {
            offset: 0,
            count: 0,
        })),
    );
    // Everything that was acknowledged is there after a restart.
    let volume = opened(&mut world.device);
    let device = std::mem::take(&mut world.device);
    let mut world = World::with(volume, share(false, Squash::None), Vec::new());
    world.device = device;
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    let answer = client.ok(&mut world, &at_file(read(stateid, 0, 100)));
    assert_eq!(data(&answer), (true, &b"unstable stable"[..]));
}

/// Files that were open without links before a restart are freed when they cannot be reclaimed.
#[test]
fn removed_files_that_are_not_reclaimed_are_freed() {
    for reclaiming in [vec![], vec![Box::from(*b"a")]] {
        let mut world = durable_world();
        let mut client = Client::new(&mut world, b"a");
        open_file(&mut world, &mut client, "f");
        client.ok(&mut world, &in_share(&[Operation::Remove(name("f"))]));
        let has_grace = !reclaiming.is_empty();
        let volume = opened(&mut world.device);
        let device = std::mem::take(&mut world.device);
        let mut world = World::with(volume, share(false, Squash::None), reclaiming);
        world.device = device;
        let now = world.now;
        world.server.tick(&now);
        let inodes = 1 + u64::from(has_grace);
        assert_eq!(world.server.volumes()[0].usage().inodes, inodes);
        world.advance(GRACE_MS);
        let now = world.now;
        world.server.tick(&now);
        world.store_records();
        world.server.tick(&now);
        assert_eq!(world.server.volumes()[0].usage().inodes, 1);
    }
}

#[test]
fn a_change_that_cannot_become_durable_fails() {
    let mut world = durable_world();
    let mut client = Client::new(&mut world, b"a");
    world.fails = true;
    let operations = in_share(&[make(CreateType::Directory, "d", 0o755)]);
    let answer = client.send(&mut world, &operations);
    let (status, results) = answer.parts();
    assert_eq!((status, results.len()), (Status::IO, 2));
    let next = in_share(&[make(CreateType::Directory, "e", 0o755)]);
    client.fails(&mut world, &next, Status::IO);
}

/// More changes than the log has room for: operations wait for it and are executed once.
#[test]
fn many_changes_pass_through_a_small_log() {
    let mut world = durable_world();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    for round in 0..3000_u32 {
        let bytes = round.to_be_bytes();
        let operation = write(
            stateid,
            u64::from(round % 50) * 100,
            Stable::UNSTABLE,
            &bytes,
        );
        client.ok(&mut world, &at_file(operation));
    }
    let answer = client.ok(&mut world, &at_file(read(stateid, 4900, 4)));
    assert_eq!(data(&answer).1, 2999_u32.to_be_bytes());
    assert_eq!(world.server.volumes()[0].problems(), Vec::<String>::new());
}

/// The simulation found that the change attribute of a directory went back after a restart that had
/// lost changes, while it was declared to be monotonic: clients take such attributes for old ones.
#[test]
fn the_change_attribute_is_monotonic_where_nothing_survives() {
    for (mut world, expected) in [(durable_world(), 4), (World::new(), 0)] {
        let mut client = Client::new(&mut world, b"a");
        let get = Operation::GetAttr(Bitmap::of(&[number::CHANGE_ATTR_TYPE]));
        client.minor_version = 2;
        let answer = client.ok(&mut world, &in_share(&[get]));
        let OperationResult::GetAttr(Outcome::Ok(attributes)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        assert_eq!(attributes.change_attr_type, Some(expected));
    }
}
