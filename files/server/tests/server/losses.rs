//! A volume whose device was gone: requests wait, and what was durable is there again.

use files_client::requests::open_or_create;
use files_server::{Execution, Record, Resumption, Step, VolumeIndex};
use files_spec::Status;
use files_spec::operations::Operation;
use files_spec::types::{CreateType, Stable};

use crate::client::{ADDRESS, Client, World, in_share, name};
use crate::data::{at_file, data, read, write, written};
use crate::device::{durable_world, opened};
use crate::names::make;
use crate::opens::open_file;

const VOLUME: VolumeIndex = VolumeIndex(0);

fn record(bytes: &[u8]) -> Record<'_> {
    Record {
        bytes,
        placement: None,
        client: ADDRESS,
    }
}

/// The execution of a change that is not durable.
#[track_caller]
fn begun(world: &mut World, record: &Record<'_>) -> Execution {
    let (mut x, now) = (Execution::new(), world.now);
    let step = world.server.begin(&mut x, record, &mut world.caller, &now);
    assert_eq!(step, Step::AwaitDurable);
    x
}

#[test]
fn requests_wait_for_a_lost_volume_and_clients_keep_what_they_have_open() {
    let mut world = durable_world();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    let kept = at_file(write(stateid, 0, Stable::FILE_SYNC, b"kept"));
    let before = written(&client.ok(&mut world, &kept)).writeverf;
    open_file(&mut world, &mut client, "unlinked");
    client.ok(
        &mut world,
        &in_share(&[Operation::Remove(name("unlinked"))]),
    );
    // A change that is not durable when the device goes.
    let operations = in_share(&[make(CreateType::Directory, "d", 0o755)]);
    let bytes = client.next_record(&mut world, &operations, true);
    let record = record(&bytes);
    let (mut x, now) = (begun(&mut world, &record), world.now);
    assert!(world.server.is_used_by(&x, VOLUME));
    assert!(!world.server.is_used_by(&x, VolumeIndex(1)));
    world.server.lose_volume(VOLUME);
    world.server.lose_volume(VOLUME);
    assert!(world.server.is_durable(&x), "nothing is waited for");
    let step = world.server.resume(&mut x, &record, Resumption::Done, &now);
    assert_eq!(step, Step::Reply);
    assert!(!world.server.is_used_by(&x, VOLUME));
    assert_eq!(world.send_record(&bytes).status(), Status::DELAY);
    // Everything waits, and no share and no state ends.
    for waits in [&at_file(read(stateid, 0, 4))[..], &operations] {
        assert_eq!(client.send(&mut world, waits).status(), Status::DELAY);
    }
    let shares = vec![crate::client::share(false, files_server::Squash::None)];
    world.server.set_shares(shares, &now);
    world.server.tick(&now);
    assert_eq!(world.server.counts().2, 2);
    let volume = opened(&mut world.device);
    world.server.replace_volume(VOLUME, volume);
    world.serve_volume();
    let answer = client.ok(&mut world, &at_file(read(stateid, 0, 100)));
    assert_eq!(data(&answer), (true, &b"kept"[..]));
    let again = at_file(write(stateid, 4, Stable::UNSTABLE, b" more"));
    let after = written(&client.ok(&mut world, &again)).writeverf;
    assert_ne!(before, after, "clients write again what was not durable");
    client.fails(
        &mut world,
        &in_share(&[Operation::Lookup(name("d"))]),
        Status::NOENT,
    );
    client.ok(&mut world, &operations);
    // The open keeps the file without a link.
    world.server.tick(&now);
    let inodes = world.server.volumes()[0].usage().inodes;
    assert_eq!(inodes, 4, "the root, two files, a directory");
    assert_eq!(world.server.volumes()[0].problems(), Vec::<String>::new());
}

/// An open file that was never durable is closed, and another object with its number is not it.
#[test]
fn objects_that_a_device_has_lost_are_closed() {
    let mut world = durable_world();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    let old = world.device.clone();
    open_file(&mut world, &mut client, "lost");
    world.device = old;
    world.server.lose_volume(VOLUME);
    let volume = opened(&mut world.device);
    world.server.replace_volume(VOLUME, volume);
    world.serve_volume();
    assert_eq!(world.server.counts().2, 1);
    client.fails(
        &mut world,
        &in_share(&[Operation::Lookup(name("lost"))]),
        Status::NOENT,
    );
    // It gets the number of the lost one.
    let next = open_file(&mut world, &mut client, "next");
    assert_ne!(next, stateid);
    client.ok(&mut world, &at_file(read(stateid, 0, 1)));
    assert_eq!(world.server.counts().2, 2);
}

/// The client does not learn of the open file, so nobody would close it.
#[test]
fn an_open_that_is_lost_with_its_file_denies_nothing() {
    let mut world = durable_world();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    let create = in_share(&[open_or_create(name("new"))]);
    let bytes = client.next_record(&mut world, &create, true);
    let record = record(&bytes);
    let (mut x, now) = (begun(&mut world, &record), world.now);
    assert_eq!(world.server.counts().2, 2);
    world.server.lose_volume(VOLUME);
    let step = world.server.resume(&mut x, &record, Resumption::Done, &now);
    assert_eq!(step, Step::Reply);
    assert_eq!(world.server.counts().2, 1, "the open of the known file");
    let volume = opened(&mut world.device);
    world.server.replace_volume(VOLUME, volume);
    world.serve_volume();
    client.ok(&mut world, &at_file(read(stateid, 0, 1)));
}

/// Who brings the next volume frees the lost one, not the reactor.
#[test]
fn what_a_lost_volume_had_in_memory_is_handed_out_once() {
    let mut world = durable_world();
    let mut client = Client::new(&mut world, b"a");
    open_file(&mut world, &mut client, "f");
    let volume = &world.server.volumes()[0];
    assert!(!volume.is_lost());
    world.server.lose_volume(VOLUME);
    let volume = &mut world.server.volumes_mut()[0];
    assert_eq!(volume.usage().inodes, 0, "nothing is left in its place");
    let former = volume.take_former().expect("it is still there");
    assert_eq!(former.usage().inodes, 2);
    assert!(volume.take_former().is_none());
}
