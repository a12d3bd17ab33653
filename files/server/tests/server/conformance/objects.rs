//! Objects of every type, where another type is expected, and where any type is.

use files_spec::Status;
use files_spec::attributes::Attributes;
use files_spec::operations::{
    CommitArgs, LockTestArgs, OpenHow, Operation, OperationResult, Outcome, RangeArgs, RenameArgs,
    RenameOk, SeekArgs, SetattrArgs,
};
use files_spec::types::{CreateType, LockType, Stable, StateId};
use files_spec::xdr::Opaque;

use super::{DIRECTORY, EVERY_TYPE, FILE, LINK, kind_of, make_every_type};
use crate::client::{Answer, Client, World, at_share, in_share, name};
use crate::data::{read, write};
use crate::locks::owner;
use crate::names::{list, make};
use crate::opens::{open, unchecked};

/// The status of an operation on an object that is no directory.
fn no_directory(it: &str) -> Status {
    match it {
        LINK => Status::SYMLINK,
        _ => Status::NOTDIR,
    }
}

fn rename<'a>(oldname: &'a str, newname: &'a str) -> Operation<'a> {
    Operation::Rename(RenameArgs {
        oldname: name(oldname),
        newname: name(newname),
    })
}

/// Renames within the directory of the share.
fn move_to<'a>(oldname: &'a str, newname: &'a str) -> Vec<Operation<'a>> {
    in_share(&[Operation::SaveFh(()), rename(oldname, newname)])
}

fn renamed(answer: &Answer) -> RenameOk {
    match answer.last() {
        OperationResult::Rename(Outcome::Ok(ok)) => ok,
        _ => panic!("{:?}", answer.parts()),
    }
}

#[test]
fn what_is_no_directory_contains_nothing() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    make_every_type(&mut world, &mut client);
    for it in EVERY_TYPE.into_iter().filter(|it| *it != DIRECTORY) {
        let at = in_share(&[Operation::Lookup(name(it))]);
        let from = [&at[..], &[Operation::SaveFh(())], &at_share()].concat();
        let to = [&in_share(&[Operation::SaveFh(())])[..], &at].concat();
        let file = [Operation::Lookup(name(FILE)), Operation::SaveFh(())];
        let beside = [&in_share(&file)[..], &at].concat();
        let cases = [
            (&at, Operation::Lookup(name("x"))),
            (&at, Operation::LookupP(())),
            (&at, Operation::Remove(name("x"))),
            (&at, Operation::SecInfo(name("x"))),
            (&at, list(0, 4096)),
            (&at, make(CreateType::Directory, "x", 0o755)),
            (&at, open("x", b"o", (1, 0), OpenHow::NoCreate)),
            (&at, open("x", b"o", (1, 0), unchecked())),
            (&beside, Operation::Link(name("x"))),
            (&from, rename("x", "y")),
            (&to, rename(DIRECTORY, "y")),
        ];
        for (before, operation) in cases {
            let request = [&before[..], &[operation]].concat();
            client.fails(&mut world, &request, no_directory(it));
        }
    }
}

#[test]
fn what_is_no_file_has_no_data() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    client.minor_version = 2;
    make_every_type(&mut world, &mut client);
    let special = StateId::ANONYMOUS;
    let size = Operation::SetAttr(SetattrArgs {
        stateid: special,
        obj_attributes: Attributes {
            size: Some(0),
            ..Attributes::default()
        },
    });
    let range = RangeArgs {
        stateid: special,
        offset: 0,
        length: 1,
    };
    let operations = [
        read(special, 0, 1),
        write(special, 0, Stable::FILE_SYNC, b"x"),
        Operation::Commit(CommitArgs {
            offset: 0,
            count: 0,
        }),
        Operation::LockT(LockTestArgs {
            locktype: LockType::READ,
            offset: 0,
            length: 1,
            owner: owner(b"l"),
        }),
        Operation::Allocate(range),
        Operation::Deallocate(range),
        Operation::Seek(SeekArgs {
            stateid: special,
            offset: 0,
            what: 0,
        }),
    ];
    for it in EVERY_TYPE.into_iter().filter(|it| *it != FILE) {
        let status = match it {
            DIRECTORY => Status::ISDIR,
            LINK => Status::SYMLINK,
            _ => Status::WRONG_TYPE,
        };
        let at = |operation| in_share(&[Operation::Lookup(name(it)), operation]);
        for operation in operations {
            client.fails(&mut world, &at(operation), status);
        }
        let opened = open(it, b"o", (1, 0), OpenHow::NoCreate);
        client.fails(&mut world, &in_share(&[opened]), status);
        let of_size = match it {
            DIRECTORY => Status::ISDIR,
            _ => Status::INVAL,
        };
        client.fails(&mut world, &at(size), of_size);
    }
    for it in EVERY_TYPE.into_iter().filter(|it| *it != LINK) {
        let request = in_share(&[Operation::Lookup(name(it)), Operation::ReadLink(())]);
        client.fails(&mut world, &request, Status::WRONG_TYPE);
    }
}

#[test]
fn every_type_is_created_once_linked_moved_and_removed() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    make_every_type(&mut world, &mut client);
    for it in EVERY_TYPE {
        if it != FILE {
            let again = make(kind_of(it), it, 0o755);
            client.fails(&mut world, &in_share(&[again]), Status::EXIST);
        }
        let links = |links| {
            Operation::Verify(Attributes {
                numlinks: Some(links),
                ..Attributes::default()
            })
        };
        let at = [Operation::Lookup(name(it)), Operation::SaveFh(())];
        let mut link = in_share(&at);
        link.extend(in_share(&[Operation::Link(name("second"))]));
        if it == DIRECTORY {
            client.fails(&mut world, &link, Status::ISDIR);
        } else {
            client.ok(&mut world, &link);
            client.fails(&mut world, &link, Status::EXIST);
            client.ok(&mut world, &in_share(&[at[0], links(2)]));
            // Both names are of one object: nothing is moved.
            let unmoved = renamed(&client.ok(&mut world, &move_to(it, "second")));
            assert_eq!(unmoved.source_cinfo.before, unmoved.source_cinfo.after);
            assert_eq!(unmoved.target_cinfo.before, unmoved.target_cinfo.after);
            let remove = Operation::Remove(name("second"));
            client.ok(&mut world, &in_share(&[remove]));
            client.ok(&mut world, &in_share(&[at[0], links(1)]));
        }
        client.ok(&mut world, &move_to(it, "moved"));
        client.fails(&mut world, &in_share(&[at[0]]), Status::NOENT);
        let remove = Operation::Remove(name("moved"));
        client.ok(&mut world, &in_share(&[remove]));
        client.fails(&mut world, &in_share(&[remove]), Status::NOENT);
    }
}

/// RFC 8881 §18.4.
#[test]
fn regular_files_and_empty_links_are_not_created_by_create() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let regular = make(CreateType::Other(1), "x", 0o755);
    let attribute = make(CreateType::Other(9), "x", 0o755);
    let empty = make(CreateType::Link(Opaque(b"")), "x", 0o755);
    for (operation, status) in [
        (regular, Status::BADTYPE),
        (attribute, Status::BADTYPE),
        (empty, Status::INVAL),
    ] {
        client.fails(&mut world, &in_share(&[operation]), status);
    }
}

/// RFC 8881 §18.26.
#[test]
fn what_is_renamed_replaces_its_own_kind() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    make_every_type(&mut world, &mut client);
    for (directory, inside) in [("empty", None), ("full", Some("x"))] {
        let make_it = make(CreateType::Directory, directory, 0o755);
        client.ok(&mut world, &in_share(&[make_it]));
        if let Some(inside) = inside {
            let inside = make(CreateType::Fifo, inside, 0o644);
            let request = in_share(&[Operation::Lookup(name(directory)), inside]);
            client.ok(&mut world, &request);
        }
    }
    for (old, new, status) in [
        ("missing", "new", Status::NOENT),
        (DIRECTORY, FILE, Status::EXIST),
        (DIRECTORY, LINK, Status::EXIST),
        (DIRECTORY, "full", Status::EXIST),
        (FILE, "empty", Status::EXIST),
        (FILE, "full", Status::EXIST),
        ("fifo", "empty", Status::EXIST),
        (DIRECTORY, "empty", Status::OK),
        ("fifo", FILE, Status::OK),
        (LINK, "socket", Status::OK),
    ] {
        client.fails(&mut world, &move_to(old, new), status);
    }
    for it in ["full", "block"] {
        let unmoved = renamed(&client.ok(&mut world, &move_to(it, it)));
        assert_eq!(unmoved.source_cinfo.before, unmoved.source_cinfo.after);
        assert_eq!(unmoved.target_cinfo.before, unmoved.target_cinfo.after);
    }
    let mut into_itself = in_share(&[Operation::SaveFh(()), Operation::Lookup(name("full"))]);
    into_itself.push(rename("full", "y"));
    client.fails(&mut world, &into_itself, Status::INVAL);
    let unsaved = in_share(&[rename("full", "y")]);
    client.fails(&mut world, &unsaved, Status::NOFILEHANDLE);
}
