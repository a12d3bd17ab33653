//! Operations of minor version 2: holes, clones, extended attributes.

use files_spec::Status;
use files_spec::name::XattrName;
use files_spec::operations::{
    CloneArgs, CopyArgs, ListXattrsArgs, NetworkLocation, Operation, OperationNumber,
    OperationResult, Outcome, RangeArgs, SeekArgs, SeekOk, SetXattrArgs, SetXattrOption,
};
use files_spec::types::{CreateType, Stable, StateId};
use files_spec::xdr::{List, Opaque, Text};

use crate::client::{Answer, Client, World, in_share, name};
use crate::data::{at_file, data, read, write};
use crate::names::make;
use crate::opens::open_file;

fn client(world: &mut World) -> Client {
    let mut client = Client::new(world, b"a");
    client.minor_version = 2;
    client
}

fn xattr(text: &str) -> XattrName<'_> {
    XattrName::new(text.as_bytes()).expect("valid")
}

fn set<'a>(option: SetXattrOption, key: &'a str, value: &'a [u8]) -> Operation<'a> {
    Operation::SetXattr(SetXattrArgs {
        option,
        key: xattr(key),
        value: Opaque(value),
    })
}

pub(crate) fn range(stateid: StateId, offset: u64, length: u64) -> RangeArgs {
    RangeArgs {
        stateid,
        offset,
        length,
    }
}

fn sought(answer: &Answer) -> SeekOk {
    match answer.last() {
        OperationResult::Seek(Outcome::Ok(ok)) => ok,
        _ => panic!("{:?}", answer.parts()),
    }
}

#[test]
fn operations_of_version_2_do_not_exist_in_version_1() {
    let mut world = World::new();
    let mut client = client(&mut world);
    open_file(&mut world, &mut client, "f");
    client.minor_version = 1;
    let get = at_file(Operation::GetXattr(xattr("a")));
    let answer = client.send(&mut world, &get);
    assert_eq!(answer.status(), Status::OP_ILLEGAL);
    assert_eq!(answer.last().number(), OperationNumber::ILLEGAL);
}

#[test]
fn holes_are_made_filled_and_found() {
    let mut world = World::new();
    let mut client = client(&mut world);
    let stateid = open_file(&mut world, &mut client, "f");
    client.ok(
        &mut world,
        &at_file(write(stateid, 0, Stable::UNSTABLE, &[1; 20_000])),
    );
    client.ok(
        &mut world,
        &in_share(&[make(CreateType::Directory, "d", 0o755)]),
    );
    let seek = |offset, what| {
        Operation::Seek(SeekArgs {
            stateid,
            offset,
            what,
        })
    };
    let directory = [Operation::Lookup(name("d")), seek(0, 0)];
    let invalid = [
        (
            at_file(Operation::Deallocate(range(stateid, 0, 0))),
            Status::INVAL,
        ),
        (
            at_file(Operation::Allocate(range(stateid, 0, u64::MAX))),
            Status::FBIG,
        ),
        (
            at_file(Operation::Allocate(range(stateid, 0, 1 << 40))),
            Status::NOSPC,
        ),
        (
            at_file(Operation::Allocate(range(StateId::INVALID, 0, 1))),
            Status::BAD_STATEID,
        ),
        (at_file(seek(20_000, 0)), Status::NXIO),
        (at_file(seek(0, 9)), Status::UNION_NOTSUPP),
        (in_share(&directory), Status::ISDIR),
    ];
    for (operations, status) in invalid {
        client.fails(&mut world, &operations, status);
    }
    client.ok(
        &mut world,
        &at_file(Operation::Deallocate(range(stateid, 4096, 8192))),
    );
    let answer = client.ok(&mut world, &at_file(read(stateid, 0, 20_000)));
    let expected = [vec![1; 4096], vec![0; 8192], vec![1; 20_000 - 12_288]].concat();
    assert_eq!(data(&answer), (true, &expected[..]));
    let answers = [
        (seek(0, 1), (false, 4096)),
        (seek(5000, 0), (false, 12_288)),
        (seek(13_000, 1), (true, 20_000)),
    ];
    for (operation, expected) in answers {
        let ok = sought(&client.ok(&mut world, &at_file(operation)));
        assert_eq!((ok.eof, ok.offset), expected);
    }
    client.ok(
        &mut world,
        &at_file(Operation::Allocate(range(stateid, 0, 50_000))),
    );
    let ok = sought(&client.ok(&mut world, &at_file(seek(30_000, 0))));
    assert_eq!((ok.eof, ok.offset), (true, 50_000));
}

#[test]
fn clones_are_independent_of_their_source() {
    let mut world = World::new();
    let mut client = client(&mut world);
    let from = open_file(&mut world, &mut client, "f");
    let to = open_file(&mut world, &mut client, "g");
    client.ok(
        &mut world,
        &at_file(write(from, 0, Stable::UNSTABLE, &[1; 8192])),
    );
    let clone = |src_offset, count| {
        let mut operations = at_file(Operation::SaveFh(()));
        operations.extend(in_share(&[
            Operation::Lookup(name("g")),
            Operation::Clone(CloneArgs {
                src_stateid: from,
                dst_stateid: to,
                src_offset,
                dst_offset: 0,
                count,
            }),
        ]));
        operations
    };
    let unsaved = clone(0, 0).split_off(4);
    client.fails(&mut world, &unsaved, Status::NOFILEHANDLE);
    client.fails(&mut world, &clone(1, 4096), Status::INVAL);
    client.fails(&mut world, &clone(0, 1 << 20), Status::INVAL);
    client.ok(&mut world, &clone(0, 0));
    client.ok(
        &mut world,
        &at_file(write(from, 0, Stable::UNSTABLE, &[2; 4096])),
    );
    let target = in_share(&[Operation::Lookup(name("g")), read(to, 0, 8192)]);
    let answer = client.ok(&mut world, &target);
    assert_eq!(data(&answer), (true, &[1; 8192][..]));
    assert_eq!(world.server.volumes()[0].problems(), Vec::<String>::new());
}

pub(crate) fn copy_args(from: StateId, to: StateId) -> CopyArgs<'static> {
    CopyArgs {
        src_stateid: from,
        dst_stateid: to,
        src_offset: 0,
        dst_offset: 0,
        count: 0,
        consecutive: true,
        synchronous: true,
        source_server: List::new(&[]),
    }
}

/// COPY from `f` to a name.
fn copy<'o>(to: &'o str, args: CopyArgs<'o>) -> Vec<Operation<'o>> {
    let mut operations = at_file(Operation::SaveFh(()));
    operations.extend(in_share(&[
        Operation::Lookup(name(to)),
        Operation::Copy(args),
    ]));
    operations
}

/// The number of bytes that a COPY has copied.
pub(crate) fn copied(answer: &Answer) -> u64 {
    let OperationResult::Copy(Outcome::Ok(ok)) = answer.last() else {
        panic!("{:?}", answer.parts());
    };
    assert_eq!(ok.response.callback_id, None);
    assert!(ok.requirements.consecutive && ok.requirements.synchronous);
    ok.response.count
}

#[test]
fn invalid_copies_change_nothing() {
    let mut world = World::new();
    let mut client = client(&mut world);
    let from = open_file(&mut world, &mut client, "f");
    let to = open_file(&mut world, &mut client, "g");
    let fill = |id, byte| write(id, 0, Stable::UNSTABLE, byte);
    client.ok(&mut world, &at_file(fill(from, &[1; 20_000])));
    let at_target = |operation| in_share(&[Operation::Lookup(name("g")), operation]);
    client.ok(&mut world, &at_target(fill(to, &[2; 20_000])));
    client.ok(
        &mut world,
        &in_share(&[make(CreateType::Directory, "d", 0o755)]),
    );
    let args = copy_args(from, to);
    let other = [NetworkLocation::Name(Text("other"))];
    let cases = [
        (
            "g",
            CopyArgs {
                src_offset: 20_001,
                ..args
            },
            Status::INVAL,
        ),
        (
            "g",
            CopyArgs {
                count: 20_001,
                ..args
            },
            Status::INVAL,
        ),
        (
            "g",
            CopyArgs {
                src_offset: 8192,
                count: u64::MAX,
                ..args
            },
            Status::INVAL,
        ),
        (
            "g",
            CopyArgs {
                dst_offset: u64::MAX - 4095,
                ..args
            },
            Status::FBIG,
        ),
        (
            "g",
            CopyArgs {
                src_stateid: StateId::INVALID,
                ..args
            },
            Status::BAD_STATEID,
        ),
        (
            "g",
            CopyArgs {
                dst_stateid: StateId::INVALID,
                ..args
            },
            Status::BAD_STATEID,
        ),
        (
            "g",
            CopyArgs {
                source_server: List::new(&other),
                ..args
            },
            Status::NOTSUPP,
        ),
        // No whole block can be shared.
        (
            "g",
            CopyArgs {
                src_offset: 1,
                ..args
            },
            Status::NOTSUPP,
        ),
        (
            "g",
            CopyArgs {
                dst_offset: 512,
                ..args
            },
            Status::NOTSUPP,
        ),
        (
            "g",
            CopyArgs {
                count: 4095,
                ..args
            },
            Status::NOTSUPP,
        ),
        ("d", args, Status::ISDIR),
        // Ranges of one file that overlap.
        (
            "f",
            CopyArgs {
                dst_stateid: from,
                ..args
            },
            Status::INVAL,
        ),
        (
            "f",
            CopyArgs {
                dst_stateid: from,
                dst_offset: 4096,
                ..args
            },
            Status::INVAL,
        ),
        (
            "f",
            CopyArgs {
                dst_stateid: from,
                src_offset: 8192,
                dst_offset: 4096,
                count: 4097,
                ..args
            },
            Status::INVAL,
        ),
    ];
    for (to, args, status) in cases {
        client.fails(&mut world, &copy(to, args), status);
    }
    let unsaved = copy("g", args).split_off(4);
    client.fails(&mut world, &unsaved, Status::NOFILEHANDLE);
    let anonymous = CopyArgs {
        dst_stateid: StateId::ANONYMOUS,
        ..args
    };
    world.uid = 5;
    client.fails(&mut world, &copy("g", anonymous), Status::ACCESS);
    world.uid = 0;
    client.minor_version = 1;
    let answer = client.send(&mut world, &copy("g", args));
    assert_eq!(answer.status(), Status::OP_ILLEGAL);
    client.minor_version = 2;
    let answer = client.ok(&mut world, &at_target(read(to, 0, 20_000)));
    assert_eq!(data(&answer), (true, &[2; 20_000][..]));
}

#[test]
fn copies_are_independent_and_short_where_blocks_are_shared_in_part() {
    let mut world = World::new();
    let mut client = client(&mut world);
    let from = open_file(&mut world, &mut client, "f");
    let to = open_file(&mut world, &mut client, "g");
    let args = copy_args(from, to);
    // The rest of an empty file.
    assert_eq!(copied(&client.ok(&mut world, &copy("g", args))), 0);
    let fill = |byte| write(from, 0, Stable::UNSTABLE, byte);
    client.ok(&mut world, &at_file(fill(&[1; 20_000])));
    assert_eq!(copied(&client.ok(&mut world, &copy("g", args))), 20_000);
    client.ok(&mut world, &at_file(fill(&[3; 20_000])));
    let at_target = |operation| in_share(&[Operation::Lookup(name("g")), operation]);
    let all = at_target(read(to, 0, 40_000));
    let answer = client.ok(&mut world, &all);
    assert_eq!(data(&answer), (true, &[1; 20_000][..]));
    // The last block of the target has bytes that stay.
    let end = at_target(write(to, 20_000, Stable::UNSTABLE, &[5; 10]));
    client.ok(&mut world, &end);
    assert_eq!(copied(&client.ok(&mut world, &copy("g", args))), 16_384);
    let part = CopyArgs {
        count: 5000,
        ..args
    };
    assert_eq!(copied(&client.ok(&mut world, &copy("g", part))), 4096);
    let answer = client.ok(&mut world, &all);
    let expected = [vec![3; 16_384], vec![1; 3616], vec![5; 10]].concat();
    assert_eq!(data(&answer), (true, &expected[..]));
    // Within a file.
    let within = CopyArgs {
        dst_stateid: from,
        dst_offset: 20_480,
        ..args
    };
    assert_eq!(copied(&client.ok(&mut world, &copy("f", within))), 20_000);
    assert_eq!(world.server.volumes()[0].problems(), Vec::<String>::new());
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    let mut world = World::new();
    let mut client = client(&mut world);
    open_file(&mut world, &mut client, "f");
    let get = |key| at_file(Operation::GetXattr(xattr(key)));
    let replace = set(SetXattrOption::REPLACE, "one", b"1");
    client.fails(&mut world, &get("one"), Status::NOXATTR);
    client.fails(&mut world, &at_file(replace), Status::NOXATTR);
    client.fails(
        &mut world,
        &at_file(Operation::RemoveXattr(xattr("one"))),
        Status::NOXATTR,
    );
    client.ok(
        &mut world,
        &at_file(set(SetXattrOption::CREATE, "one", b"first")),
    );
    let again = set(SetXattrOption::CREATE, "one", b"second");
    client.fails(&mut world, &at_file(again), Status::EXIST);
    client.ok(
        &mut world,
        &at_file(set(SetXattrOption::EITHER, "two", &[5; 3000])),
    );
    let answer = client.ok(&mut world, &get("one"));
    let OperationResult::GetXattr(Outcome::Ok(ok)) = answer.last() else {
        panic!("{:?}", answer.parts());
    };
    assert_eq!(ok.value.0, b"first");
    let list =
        |cookie, maxcount| at_file(Operation::ListXattrs(ListXattrsArgs { cookie, maxcount }));
    client.fails(&mut world, &list(0, 10), Status::TOOSMALL);
    client.fails(&mut world, &list(0, 20), Status::TOOSMALL);
    let mut cookie = 0;
    let mut found = Vec::new();
    loop {
        let answer = client.ok(&mut world, &list(cookie, 26));
        let OperationResult::ListXattrs(Outcome::Ok(ok)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        found.extend(ok.names.iter().map(|it| it.as_str().to_owned()));
        cookie = ok.cookie;
        if ok.eof {
            break;
        }
    }
    assert_eq!(found, ["one", "two"]);
    world.uid = 5;
    let denied = set(SetXattrOption::EITHER, "one", b"x");
    client.fails(&mut world, &at_file(denied), Status::ACCESS);
    world.uid = 0;
    client.ok(&mut world, &at_file(Operation::RemoveXattr(xattr("two"))));
    client.fails(&mut world, &get("two"), Status::NOXATTR);
    let root = [Operation::PutRootFh(()), Operation::GetXattr(xattr("one"))];
    client.fails(&mut world, &root, Status::NOXATTR);
}
