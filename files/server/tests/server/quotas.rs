//! Shares of directories of a volume, and their quotas.

use files_server::{PartOptions, Share, ShareNumber, Squash, VolumeIndex};
use files_spec::attributes::number;
use files_spec::operations::{Operation, OperationResult, Outcome, RenameArgs};
use files_spec::types::{CreateType, FileType, Stable, StateId};
use files_spec::{Bitmap, Status};
use files_store::Error;

use crate::client::{Client, World, at_share, in_share, name, share, volatile_volume};
use crate::data::write;
use crate::names::make;
use crate::opens::{BOTH, open, open_file, opened, unchecked};

const BLOCK: u64 = 4096;

fn part(directory: Option<&str>, files_max: Option<u64>, bytes_max: Option<u64>) -> PartOptions {
    PartOptions {
        volume: VolumeIndex(0),
        directory: directory.map(str::to_owned),
        files_max,
        bytes_max,
    }
}

/// Serves a directory as the share `team` beside the whole volume as `data`.
fn serve(world: &mut World, options: &PartOptions) {
    let now = world.now;
    let prepared = world
        .server
        .prepare_parts(std::slice::from_ref(options), &now);
    let prepared = prepared.expect("a free name")[0];
    let team = Share {
        number: ShareNumber(8),
        name: "team".to_owned(),
        directory: prepared.directory,
        part: prepared.part,
        ..share(false, Squash::None)
    };
    let all = vec![share(false, Squash::None), team];
    world.server.set_shares(all, &now);
}

fn in_team<'a>(operations: &[Operation<'a>]) -> Vec<Operation<'a>> {
    let mut all = vec![Operation::PutRootFh(()), Operation::Lookup(name("team"))];
    all.extend_from_slice(operations);
    all
}

/// Opens a new file of the team.
fn create(world: &mut World, client: &mut Client, it: &str) -> Result<StateId, Status> {
    let operation = open(it, b"owner", (BOTH, 0), unchecked());
    let answer = client.send(world, &in_team(&[operation]));
    match answer.status() {
        Status::OK => Ok(opened(&answer).stateid),
        status => Err(status),
    }
}

/// What `df` shows of the team, and its quota.
fn room(world: &mut World, client: &mut Client) -> [u64; 6] {
    let wanted = Bitmap::of(&[
        number::FILES_FREE,
        number::FILES_TOTAL,
        number::QUOTA_AVAIL_HARD,
        number::QUOTA_USED,
        number::SPACE_FREE,
        number::SPACE_TOTAL,
    ]);
    let answer = client.ok(world, &in_team(&[Operation::GetAttr(wanted)]));
    match answer.last() {
        OperationResult::GetAttr(Outcome::Ok(it)) => [
            it.files_free.expect("asked for"),
            it.files_total.expect("asked for"),
            it.quota_avail_hard.expect("asked for"),
            it.quota_used.expect("asked for"),
            it.space_free.expect("asked for"),
            it.space_total.expect("asked for"),
        ],
        _ => panic!("{:?}", answer.parts()),
    }
}

#[test]
fn a_share_has_no_more_files_and_blocks_than_its_quotas() {
    let mut world = World::new();
    serve(
        &mut world,
        &part(Some("team"), Some(2), Some(3 * BLOCK + 5)),
    );
    let mut client = Client::new(&mut world, b"a");
    assert_eq!(
        room(&mut world, &mut client),
        [2, 3, 3 * BLOCK, 0, 3 * BLOCK, 3 * BLOCK]
    );
    let file = create(&mut world, &mut client, "f").expect("one of two");
    let directory = make(CreateType::Directory, "d", 0o755);
    client.ok(&mut world, &in_team(&[directory]));
    assert_eq!(create(&mut world, &mut client, "g"), Err(Status::DQUOT));
    for (kind, it) in [
        (CreateType::Directory, "e"),
        (CreateType::Fifo, "p"),
        (CreateType::Link(files_spec::xdr::Opaque(b"f")), "l"),
    ] {
        client.fails(
            &mut world,
            &in_team(&[make(kind, it, 0o755)]),
            Status::DQUOT,
        );
    }
    let data = [7; 4 * BLOCK as usize];
    let at_file = |offset, bytes: usize| {
        let write = write(file, offset, Stable::UNSTABLE, &data[..bytes]);
        in_team(&[Operation::Lookup(name("f")), write])
    };
    client.fails(&mut world, &at_file(0, data.len()), Status::DQUOT);
    assert_eq!(room(&mut world, &mut client)[3], 0, "nothing of it");
    client.ok(&mut world, &at_file(0, 3 * BLOCK as usize));
    client.fails(&mut world, &at_file(3 * BLOCK, 1), Status::DQUOT);
    client.ok(&mut world, &at_file(5, 3 * BLOCK as usize - 5));
    assert_eq!(
        room(&mut world, &mut client),
        [0, 3, 0, 3 * BLOCK, 0, 3 * BLOCK]
    );
    // The rest of the volume has room.
    let other = open_file(&mut world, &mut client, "other");
    let write_other = write(other, 0, Stable::UNSTABLE, &data);
    client.ok(
        &mut world,
        &in_share(&[Operation::Lookup(name("other")), write_other]),
    );
    client.ok(&mut world, &in_team(&[Operation::Remove(name("d"))]));
    create(&mut world, &mut client, "g").expect("room again");
}

#[test]
fn quotas_change_while_files_are_open() {
    let mut world = World::new();
    serve(&mut world, &part(Some("team"), None, None));
    let mut client = Client::new(&mut world, b"a");
    let file = create(&mut world, &mut client, "f").expect("no quota");
    let at_file = |offset| {
        let write = write(file, offset, Stable::UNSTABLE, b"x");
        in_team(&[Operation::Lookup(name("f")), write])
    };
    client.ok(&mut world, &at_file(0));
    serve(&mut world, &part(Some("team"), Some(1), Some(0)));
    client.ok(&mut world, &at_file(1));
    client.fails(&mut world, &at_file(BLOCK), Status::DQUOT);
    assert_eq!(create(&mut world, &mut client, "g"), Err(Status::DQUOT));
    assert_eq!(room(&mut world, &mut client)[2..4], [0, BLOCK]);
    serve(&mut world, &part(Some("team"), None, None));
    client.ok(&mut world, &at_file(BLOCK));
    create(&mut world, &mut client, "g").expect("no quota");
}

#[test]
fn the_directory_of_a_share_is_closed_to_that_of_the_volume() {
    let mut world = World::new();
    serve(&mut world, &part(Some("team"), None, None));
    let mut client = Client::new(&mut world, b"a");
    create(&mut world, &mut client, "f").expect("no quota");
    open_file(&mut world, &mut client, "other");
    let refused = [
        (Operation::Lookup(name("team")), Status::ACCESS),
        (Operation::Remove(name("team")), Status::ACCESS),
        (make(CreateType::Directory, "team", 0o755), Status::EXIST),
    ];
    for (operation, status) in refused {
        client.fails(&mut world, &in_share(&[operation]), status);
    }
    for (oldname, newname) in [("team", "mine"), ("other", "team")] {
        let rename = Operation::Rename(RenameArgs {
            oldname: name(oldname),
            newname: name(newname),
        });
        let mut operations = at_share().to_vec();
        operations.extend([Operation::SaveFh(()), rename]);
        client.fails(&mut world, &operations, Status::XDEV);
    }
    // Above the directory is the root of the server.
    let wanted = Bitmap::of(&[number::FSID, number::TYPE]);
    let above = in_team(&[Operation::LookupP(()), Operation::GetAttr(wanted)]);
    let answer = client.ok(&mut world, &above);
    let OperationResult::GetAttr(Outcome::Ok(it)) = answer.last() else {
        panic!("{:?}", answer.parts());
    };
    assert_eq!(it.file_type, Some(FileType::DIRECTORY));
    assert_eq!(it.fsid.map(|it| it.major), Some(0));
    client.fails(
        &mut world,
        &in_team(&[Operation::Lookup(name("other"))]),
        Status::NOENT,
    );
    assert_eq!(world.server.volumes()[0].problems(), [""; 0]);
}

#[test]
fn what_is_open_in_a_directory_that_is_not_shared_any_more_is_closed() {
    let mut world = World::new();
    serve(&mut world, &part(Some("team"), None, None));
    let mut client = Client::new(&mut world, b"a");
    create(&mut world, &mut client, "f").expect("no quota");
    open_file(&mut world, &mut client, "other");
    let now = world.now;
    let opens = |world: &World| world.server.clients(&now)[0].opens;
    assert_eq!(opens(&world), 2);
    world
        .server
        .set_shares(vec![share(false, Squash::None)], &now);
    assert_eq!(opens(&world), 1);
}

#[test]
fn directories_are_made_once_and_names_of_others_are_refused() {
    let mut world = World::with(volatile_volume(), share(false, Squash::None), Vec::new());
    let mut client = Client::new(&mut world, b"a");
    open_file(&mut world, &mut client, "taken");
    let now = world.now;
    let whole = part(None, None, None);
    let options = [whole.clone(), part(Some("team"), None, None)];
    let made = world.server.prepare_parts(&options, &now);
    let made = made.expect("free names");
    assert_eq!(made[0].directory, world.server.volumes()[0].root());
    assert_ne!(made[0].part, made[1].part);
    assert_eq!(world.server.prepare_parts(&options, &now), Ok(made));
    for (wrong, error) in [("taken", Error::Exists), ("..", Error::Invalid)] {
        let options = [whole.clone(), part(Some(wrong), None, None)];
        let refused = world.server.prepare_parts(&options, &now);
        assert_eq!(refused, Err((1, error)));
    }
}
