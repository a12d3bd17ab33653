//! Names, attributes and directories.

use files_server::{Clients, Network, Share, Squash, limits::REPLY_BYTES_MAX};
use files_spec::attributes::{Attributes, number};
use files_spec::operations::{
    AccessArgs, CreateArgs, CreateHow, OpenHow, Operation, OperationResult, Outcome, RangeArgs,
    RenameArgs, SetattrArgs, share as access_of,
};
use files_spec::readdir::ReaddirArgs;
use files_spec::types::{CreateType, DeviceNumber, FileType, Stable, StateId, Time, access};
use files_spec::xdr::{Opaque, Text};
use files_spec::{Bitmap, Status};

use crate::client::{Answer, Client, World, in_share, name, share, volatile_volume};
use crate::data::{at_file, read, write};
use crate::opens::{open, open_file};

pub(crate) fn make<'a>(objtype: CreateType<'a>, it: &'a str, mode: u32) -> Operation<'a> {
    Operation::Create(CreateArgs {
        objtype,
        objname: name(it),
        createattrs: Attributes {
            mode: Some(mode),
            ..Attributes::default()
        },
    })
}

pub(crate) fn handle_of(answer: &Answer) -> Vec<u8> {
    match answer.last() {
        OperationResult::GetFh(Outcome::Ok(handle)) => handle.0.to_vec(),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn list(cookie: u64, maxcount: u32) -> Operation<'static> {
    Operation::ReadDir(ReaddirArgs {
        cookie,
        cookieverf: [0; 8],
        dircount: 0,
        maxcount,
        attr_request: Bitmap::of(&[number::TYPE, number::FILEID]),
    })
}

/// Names and cookies of a listing, and whether the directory ends.
pub(crate) fn entries(answer: &Answer) -> (Vec<(String, u64)>, bool) {
    let OperationResult::ReadDir(Outcome::Ok(ok)) = answer.last() else {
        panic!("{:?}", answer.parts());
    };
    let entries = ok.entries.iter();
    let entries = entries.map(|it| (it.name.as_str().to_owned(), it.cookie));
    (entries.collect(), ok.eof)
}

/// RFC 8881 §15.1.2.
#[test]
fn invalid_and_stale_handles_are_refused() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let directory = make(CreateType::Directory, "d", 0o755);
    let answer = client.ok(&mut world, &in_share(&[directory, Operation::GetFh(())]));
    let valid = handle_of(&answer);
    let mut put = |world: &mut World, bytes: &[u8], status| {
        client.fails(world, &[Operation::PutFh(Opaque(bytes))], status);
    };
    put(&mut world, &[], Status::BADHANDLE);
    put(&mut world, &[1, 0, 0], Status::BADHANDLE);
    put(&mut world, &[0xff; 128], Status::BADHANDLE);
    put(&mut world, &valid[1..], Status::BADHANDLE);
    let changed = |at: usize| {
        let mut bytes = valid.clone();
        bytes[at] ^= 1;
        bytes
    };
    put(&mut world, &changed(0), Status::BADHANDLE);
    put(&mut world, &changed(1), Status::BADHANDLE);
    // Share, volume, object, generation.
    for at in [7, 8, 31, 35] {
        put(&mut world, &changed(at), Status::STALE);
    }
    put(&mut world, &valid, Status::OK);
    let remove = Operation::Remove(name("d"));
    client.ok(&mut world, &in_share(&[remove]));
    client.fails(
        &mut world,
        &[Operation::PutFh(Opaque(&valid))],
        Status::STALE,
    );
}

#[test]
fn operations_without_a_current_object_fail() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let operations = [
        Operation::GetFh(()),
        Operation::SaveFh(()),
        Operation::Lookup(name("x")),
        Operation::LookupP(()),
        Operation::GetAttr(Bitmap::EMPTY),
        list(0, 1000),
        make(CreateType::Fifo, "f", 0),
        Operation::SecInfoNoName(0),
    ];
    for operation in operations {
        client.fails(&mut world, &[operation], Status::NOFILEHANDLE);
    }
    client.fails(
        &mut world,
        &[Operation::RestoreFh(())],
        Status::NOFILEHANDLE,
    );
    // RFC 8881 §18.45: SECINFO leaves no current object.
    let root = Operation::PutRootFh(());
    let security = Operation::SecInfoNoName(0);
    client.fails(
        &mut world,
        &[root, security, Operation::GetFh(())],
        Status::NOFILEHANDLE,
    );
}

#[test]
fn the_root_contains_the_shares_and_cannot_be_changed() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let root = Operation::PutRootFh(());
    let answer = client.ok(&mut world, &[root, list(0, 1000)]);
    assert_eq!(entries(&answer), (vec![("data".to_owned(), 3)], true));
    let changes = [
        (make(CreateType::Directory, "d", 0o755), Status::ROFS),
        (Operation::Remove(name("data")), Status::ROFS),
        (Operation::ReadLink(()), Status::WRONG_TYPE),
        (Operation::LookupP(()), Status::NOENT),
        (Operation::Lookup(name("other")), Status::NOENT),
    ];
    for (operation, status) in changes {
        client.fails(&mut world, &[root, operation], status);
    }
    // The share is another file system, and its parent is the root.
    let all = Operation::GetAttr(Bitmap::of(&[number::FSID, number::MOUNTED_ON_FILEID]));
    let answer = client.ok(&mut world, &in_share(&[all, Operation::LookupP(()), all]));
    let (_, results) = answer.parts();
    let attributes = |index: usize| match results[index] {
        OperationResult::GetAttr(Outcome::Ok(it)) => it,
        other => panic!("{other:?}"),
    };
    let (of_share, of_root) = (attributes(3), attributes(5));
    assert_ne!(of_share.fsid, of_root.fsid);
    assert_eq!(
        (of_share.mounted_on_fileid, of_root.mounted_on_fileid),
        (Some(2), Some(1))
    );
}

#[test]
fn objects_of_every_type_are_created_read_and_removed() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let number = DeviceNumber { major: 8, minor: 1 };
    let objects = [
        (CreateType::Directory, FileType::DIRECTORY),
        (CreateType::Link(Opaque(b"target")), FileType::LINK),
        (CreateType::Block(number), FileType::BLOCK),
        (CreateType::Character(number), FileType::CHARACTER),
        (CreateType::Socket, FileType::SOCKET),
        (CreateType::Fifo, FileType::FIFO),
    ];
    let get = Operation::GetAttr(Bitmap::of(&[number::TYPE, number::MODE, number::RAWDEV]));
    for (objtype, file_type) in objects {
        let answer = client.ok(&mut world, &in_share(&[make(objtype, "it", 0o640), get]));
        let OperationResult::GetAttr(Outcome::Ok(attributes)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        assert_eq!(attributes.file_type, Some(file_type));
        assert_eq!(attributes.mode, Some(0o640));
        let again = make(objtype, "it", 0);
        client.fails(&mut world, &in_share(&[again]), Status::EXIST);
        let lookup = Operation::Lookup(name("it"));
        let link = Operation::ReadLink(());
        let status = match objtype {
            CreateType::Link(_) => Status::OK,
            _ => Status::WRONG_TYPE,
        };
        client.fails(&mut world, &in_share(&[lookup, link]), status);
        client.ok(&mut world, &in_share(&[Operation::Remove(name("it"))]));
        client.fails(&mut world, &in_share(&[lookup]), Status::NOENT);
    }
    let other = make(CreateType::Other(1), "it", 0);
    client.fails(&mut world, &in_share(&[other]), Status::BADTYPE);
}

#[test]
fn names_are_moved_and_linked() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let rename = |old, new| {
        Operation::Rename(RenameArgs {
            oldname: name(old),
            newname: name(new),
        })
    };
    let save = Operation::SaveFh(());
    let directory = make(CreateType::Directory, "d", 0o755);
    client.ok(&mut world, &in_share(&[directory]));
    client.ok(&mut world, &in_share(&[make(CreateType::Fifo, "f", 0o644)]));
    client.fails(
        &mut world,
        &in_share(&[rename("f", "g")]),
        Status::NOFILEHANDLE,
    );
    client.fails(
        &mut world,
        &in_share(&[save, rename("x", "g")]),
        Status::NOENT,
    );
    // RFC 8881 §18.26: types that do not fit.
    client.fails(
        &mut world,
        &in_share(&[save, rename("f", "d")]),
        Status::EXIST,
    );
    let inside = Operation::Lookup(name("d"));
    client.fails(
        &mut world,
        &in_share(&[save, inside, rename("d", "e")]),
        Status::INVAL,
    );
    client.ok(&mut world, &in_share(&[save, inside, rename("f", "g")]));
    let back = Operation::Link(name("h"));
    let source = [inside, Operation::Lookup(name("g")), save];
    let mut link = in_share(&source);
    link.extend(in_share(&[back, Operation::Lookup(name("h"))]));
    link.push(Operation::GetAttr(Bitmap::of(&[number::NUMLINKS])));
    let answer = client.ok(&mut world, &link);
    let OperationResult::GetAttr(Outcome::Ok(attributes)) = answer.last() else {
        panic!("{:?}", answer.parts());
    };
    assert_eq!(attributes.numlinks, Some(2));
    client.fails(
        &mut world,
        &in_share(&[Operation::Remove(name("d"))]),
        Status::NOTEMPTY,
    );
}

/// RFC 8881 §18.23.
#[test]
fn a_directory_is_listed_in_parts_while_it_changes() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let names: Vec<_> = (0..100).map(|it| format!("name-{it:03}")).collect();
    for it in &names {
        client.ok(&mut world, &in_share(&[make(CreateType::Fifo, it, 0o644)]));
    }
    let lists = [
        (list(1, 1000), Status::BAD_COOKIE),
        (list(2, 1000), Status::BAD_COOKIE),
        (list(0, 0), Status::TOOSMALL),
        (list(0, 60), Status::TOOSMALL),
    ];
    for (operation, status) in lists {
        client.fails(&mut world, &in_share(&[operation]), status);
    }
    let other = Operation::ReadDir(ReaddirArgs {
        cookie: 5,
        cookieverf: [1; 8],
        dircount: 0,
        maxcount: 1000,
        attr_request: Bitmap::EMPTY,
    });
    client.fails(&mut world, &in_share(&[other]), Status::NOT_SAME);
    let (mut cookie, mut found) = (0, Vec::new());
    loop {
        let answer = client.ok(&mut world, &in_share(&[list(cookie, 400)]));
        let (part, eof) = entries(&answer);
        // Removal of what was listed does not disturb the rest.
        for (it, _) in &part {
            client.ok(&mut world, &in_share(&[Operation::Remove(name(it))]));
        }
        cookie = part.last().map_or(cookie, |it| it.1);
        found.extend(part.into_iter().map(|it| it.0));
        if eof {
            break;
        }
    }
    assert_eq!(found, names);
    let huge = client.ok(&mut world, &in_share(&[list(0, u32::MAX)]));
    assert!(huge.bytes().len() < REPLY_BYTES_MAX);
}

#[test]
fn attributes_are_verified_and_set() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    client.ok(&mut world, &in_share(&[make(CreateType::Fifo, "f", 0o644)]));
    let lookup = Operation::Lookup(name("f"));
    let mode = |mode| Attributes {
        mode: Some(mode),
        ..Attributes::default()
    };
    let cases = [
        (Operation::Verify(mode(0o644)), Status::OK),
        (Operation::Verify(mode(0o600)), Status::NOT_SAME),
        (Operation::NVerify(mode(0o644)), Status::SAME),
        (Operation::NVerify(mode(0o600)), Status::OK),
        (
            Operation::GetAttr(Bitmap::of(&[number::TIME_MODIFY_SET])),
            Status::INVAL,
        ),
    ];
    for (operation, status) in cases {
        client.fails(&mut world, &in_share(&[lookup, operation]), status);
    }
    let set = |obj_attributes| {
        Operation::SetAttr(SetattrArgs {
            stateid: StateId::ANONYMOUS,
            obj_attributes,
        })
    };
    let size = Attributes {
        size: Some(5),
        ..Attributes::default()
    };
    let owner = Attributes {
        owner: Some(Text("name@domain")),
        ..Attributes::default()
    };
    let fixed = Attributes {
        fileid: Some(1),
        ..Attributes::default()
    };
    for (attributes, status) in [
        (size, Status::INVAL),
        (owner, Status::BADOWNER),
        (fixed, Status::INVAL),
    ] {
        client.fails(&mut world, &in_share(&[lookup, set(attributes)]), status);
    }
    let valid = Attributes {
        mode: Some(0o4711),
        owner: Some(Text("17")),
        owner_group: Some(Text("18")),
        ..Attributes::default()
    };
    let check = Operation::Verify(valid);
    client.ok(&mut world, &in_share(&[lookup, set(valid), check]));
    let time = Time {
        seconds: 77,
        nseconds: 999_999_999,
    };
    let times = Attributes {
        time_modify_set: Some(files_spec::types::SetTime::ClientTime(time)),
        ..Attributes::default()
    };
    let modified = Attributes {
        time_modify: Some(time),
        ..Attributes::default()
    };
    client.ok(
        &mut world,
        &in_share(&[lookup, set(times), Operation::Verify(modified)]),
    );
}

#[test]
fn modes_decide_what_users_may_do() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let directory = make(CreateType::Directory, "d", 0o750);
    client.ok(&mut world, &in_share(&[directory]));
    let inside = Operation::Lookup(name("d"));
    let user = Attributes {
        owner: Some(Text("7")),
        ..Attributes::default()
    };
    let give = Operation::SetAttr(SetattrArgs {
        stateid: StateId::ANONYMOUS,
        obj_attributes: user,
    });
    client.ok(&mut world, &in_share(&[inside, give]));
    let fifo = make(CreateType::Fifo, "f", 0o600);
    world.uid = 8;
    client.fails(&mut world, &in_share(&[inside, fifo]), Status::ACCESS);
    client.fails(
        &mut world,
        &in_share(&[inside, list(0, 100)]),
        Status::ACCESS,
    );
    client.fails(&mut world, &in_share(&[inside, inside]), Status::ACCESS);
    client.fails(&mut world, &in_share(&[inside, give]), Status::PERM);
    let ask = Operation::Access(AccessArgs { access: 0x3f });
    let granted = |answer: &Answer| match answer.last() {
        OperationResult::Access(Outcome::Ok(ok)) => (ok.supported, ok.access),
        other => panic!("{other:?}"),
    };
    let answer = client.ok(&mut world, &in_share(&[inside, ask]));
    assert_eq!(granted(&answer), (0x1f, 0));
    world.uid = 7;
    let answer = client.ok(&mut world, &in_share(&[inside, ask]));
    assert_eq!(granted(&answer), (0x1f, 0x1f));
    client.ok(&mut world, &in_share(&[inside, fifo]));
    client.fails(&mut world, &in_share(&[inside, give]), Status::OK);
    let root = Attributes {
        owner: Some(Text("0")),
        ..Attributes::default()
    };
    let take = Operation::SetAttr(SetattrArgs {
        stateid: StateId::ANONYMOUS,
        obj_attributes: root,
    });
    client.fails(&mut world, &in_share(&[inside, take]), Status::PERM);
    // Only owners remove entries of a directory with the sticky bit.
    let sticky = make(CreateType::Directory, "t", 0o1777);
    world.uid = 0;
    client.ok(&mut world, &in_share(&[sticky]));
    let into = Operation::Lookup(name("t"));
    client.ok(&mut world, &in_share(&[into, fifo]));
    world.uid = 8;
    let remove = Operation::Remove(name("f"));
    client.fails(&mut world, &in_share(&[into, remove]), Status::ACCESS);
}

/// A program that gives the rights of its owner or group must not be changed by others.
#[test]
fn changed_data_lose_the_rights_of_their_owner() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    client.minor_version = 2;
    let stateid = open_file(&mut world, &mut client, "f");
    let mode_is = |mode: u32| {
        let obj_attributes = Attributes {
            mode: Some(mode),
            ..Attributes::default()
        };
        at_file(Operation::SetAttr(SetattrArgs {
            stateid: StateId::ANONYMOUS,
            obj_attributes,
        }))
    };
    let ask = at_file(Operation::GetAttr(Bitmap::of(&[number::MODE])));
    let mode = |world: &mut World, client: &mut Client| {
        let answer = client.ok(world, &ask);
        match answer.last() {
            OperationResult::GetAttr(Outcome::Ok(ok)) => ok.mode.expect("it was asked for"),
            other => panic!("{other:?}"),
        }
    };
    let cut = Operation::SetAttr(SetattrArgs {
        stateid,
        obj_attributes: Attributes {
            size: Some(1),
            ..Attributes::default()
        },
    });
    let range = RangeArgs {
        stateid,
        offset: 0,
        length: 4096,
    };
    let emptied = OpenHow::Create(CreateHow::Unchecked(Attributes {
        size: Some(0),
        ..Attributes::default()
    }));
    let all = [
        at_file(write(stateid, 0, Stable::UNSTABLE, b"data")),
        at_file(cut),
        at_file(Operation::Allocate(range)),
        at_file(Operation::Deallocate(range)),
        in_share(&[open("f", b"other", (access_of::ACCESS_WRITE, 0), emptied)]),
    ];
    for change in &all {
        for (before, after) in [
            (0o6777, 0o777),
            (0o4666, 0o666),
            (0o2767, 0o2767),
            (0o666, 0o666),
        ] {
            world.uid = 0;
            client.ok(&mut world, &mode_is(before));
            client.ok(&mut world, change);
            assert_eq!(mode(&mut world, &mut client), before, "user 0 may");
            world.uid = 7;
            client.ok(&mut world, change);
            assert_eq!(mode(&mut world, &mut client), after, "{change:?}");
        }
    }
    // What changes nothing leaves them.
    world.uid = 0;
    client.ok(&mut world, &mode_is(0o6777));
    world.uid = 7;
    client.ok(&mut world, &at_file(read(stateid, 0, 1)));
    assert_eq!(mode(&mut world, &mut client), 0o6777);
}

#[test]
fn root_is_squashed_and_read_only_shares_are_not_changed() {
    let squashed = share(false, Squash::Root);
    let mut world = World::with(volatile_volume(), squashed, Vec::new());
    let mut client = Client::new(&mut world, b"a");
    let fifo = make(CreateType::Fifo, "f", 0o600);
    client.fails(&mut world, &in_share(&[fifo]), Status::ACCESS);
    let read_only = share(true, Squash::None);
    let mut world = World::with(volatile_volume(), read_only, Vec::new());
    let mut client = Client::new(&mut world, b"a");
    client.fails(&mut world, &in_share(&[fifo]), Status::ROFS);
    let ask = Operation::Access(AccessArgs {
        access: access::READ | access::MODIFY,
    });
    let answer = client.ok(&mut world, &in_share(&[ask]));
    let OperationResult::Access(Outcome::Ok(ok)) = answer.last() else {
        panic!("{:?}", answer.parts());
    };
    assert_eq!(ok.access, access::READ);
}

/// For other clients the share does not exist, whether they know its name or a handle.
#[test]
fn a_share_exists_for_its_clients_only() {
    let networks = [
        "192.0.2.0/25",
        "2001:db8::/33",
        "198.51.100.7/32",
        "::1/128",
    ];
    let networks = networks.map(|text| {
        let (address, prefix) = text.split_once('/').expect("a network");
        Network {
            address: address.parse().expect("an address"),
            prefix_bits: prefix.parse().expect("a number"),
        }
    });
    let own = Share {
        clients: Clients::In(networks.to_vec()),
        ..share(false, Squash::None)
    };
    let mut world = World::with(volatile_volume(), own, Vec::new());
    let mut client = Client::new(&mut world, b"a");
    let lookup = [Operation::PutRootFh(()), Operation::Lookup(name("data"))];
    let answer = client.ok(&mut world, &in_share(&[Operation::GetFh(())]));
    let handle = handle_of(&answer);
    let by_handle = [Operation::PutFh(Opaque(&handle)), Operation::GetFh(())];
    let root = [Operation::PutRootFh(()), list(0, 4096)];
    for (address, is_admitted) in [
        ("192.0.2.0", true),
        ("192.0.2.127", true),
        ("192.0.2.128", false),
        ("193.0.2.1", false),
        ("::ffff:192.0.2.1", true),
        ("::ffff:192.0.2.200", false),
        ("198.51.100.7", true),
        ("198.51.100.6", false),
        ("2001:db8:7fff::1", true),
        ("2001:db8:8000::1", false),
        ("::1", true),
        ("127.0.0.1", false),
    ] {
        world.address = address.parse().expect("an address");
        let expected = |refusal| match is_admitted {
            true => Status::OK,
            false => refusal,
        };
        let found = client.send(&mut world, &lookup).status();
        assert_eq!(found, expected(Status::NOENT), "{address}");
        let found = client.send(&mut world, &by_handle).status();
        assert_eq!(found, expected(Status::STALE), "{address}");
        let answer = client.ok(&mut world, &root);
        assert_eq!(
            entries(&answer).0.len(),
            usize::from(is_admitted),
            "{address}"
        );
    }
}
