//! Operations of minor version 2: holes, clones, extended attributes.

use files_spec::Status;
use files_spec::name::XattrName;
use files_spec::operations::{
    CloneArgs, ListXattrsArgs, Operation, OperationNumber, OperationResult, Outcome, RangeArgs,
    SeekArgs, SeekOk, SetXattrArgs, SetXattrOption,
};
use files_spec::types::{CreateType, Stable, StateId};
use files_spec::xdr::Opaque;

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

fn range(stateid: StateId, offset: u64, length: u64) -> RangeArgs {
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
