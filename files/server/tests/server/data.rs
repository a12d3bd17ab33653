//! READ, WRITE and COMMIT.

use files_server::limits::READ_RANGES_MAX;
use files_server::{Execution, Record, Resumption, Step};
use files_spec::Status;
use files_spec::attributes::Attributes;
use files_spec::operations::{
    CloseArgs, CommitArgs, OpenHow, Operation, OperationResult, Outcome, ReadArgs, SetattrArgs,
    WriteArgs, WriteOk, share,
};
use files_spec::types::{CreateType, Stable, StateId};
use files_spec::xdr::Payload;

use crate::client::{ADDRESS, Answer, Client, World, in_share, name};
use crate::names::make;
use crate::opens::{open, open_file, opened};

pub(crate) fn write(stateid: StateId, offset: u64, stable: Stable, data: &[u8]) -> Operation<'_> {
    Operation::Write(WriteArgs {
        stateid,
        offset,
        stable,
        data: Payload::Inline(data),
    })
}

pub(crate) fn read(stateid: StateId, offset: u64, count: u32) -> Operation<'static> {
    Operation::Read(ReadArgs {
        stateid,
        offset,
        count,
    })
}

pub(crate) fn data(answer: &Answer) -> (bool, &[u8]) {
    match answer.last() {
        OperationResult::Read(Outcome::Ok(ok)) => match ok.data {
            Payload::Inline(bytes) => (ok.eof, bytes),
            Payload::Elsewhere(_) => panic!("the test decodes whole replies"),
        },
        _ => panic!("{:?}", answer.parts()),
    }
}

pub(crate) fn written(answer: &Answer) -> WriteOk {
    match answer.last() {
        OperationResult::Write(Outcome::Ok(ok)) => ok,
        _ => panic!("{:?}", answer.parts()),
    }
}

pub(crate) fn at_file<'a>(operation: Operation<'a>) -> Vec<Operation<'a>> {
    in_share(&[Operation::Lookup(name("f")), operation])
}

#[test]
fn invalid_reads_and_writes_are_refused() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    client.ok(
        &mut world,
        &in_share(&[make(CreateType::Directory, "d", 0o755)]),
    );
    let directory = |operation| in_share(&[Operation::Lookup(name("d")), operation]);
    client.fails(&mut world, &directory(read(stateid, 0, 1)), Status::ISDIR);
    let root = [Operation::PutRootFh(()), read(stateid, 0, 1)];
    client.fails(&mut world, &root, Status::ISDIR);
    let open_to_read = open("f", b"reader", (share::ACCESS_READ, 0), OpenHow::NoCreate);
    let reader = opened(&client.ok(&mut world, &in_share(&[open_to_read]))).stateid;
    let unstable = Stable::UNSTABLE;
    let cases = [
        (write(reader, 0, unstable, b"x"), Status::OPENMODE),
        (write(stateid, u64::MAX, unstable, b"x"), Status::FBIG),
        (write(stateid, 0, Stable(3), b"x"), Status::BADXDR),
        (
            write(StateId::INVALID, 0, unstable, b"x"),
            Status::BAD_STATEID,
        ),
        (read(StateId::CURRENT, 0, 1), Status::BAD_STATEID),
        (
            Operation::Commit(CommitArgs {
                offset: u64::MAX,
                count: 2,
            }),
            Status::INVAL,
        ),
    ];
    for (operation, status) in cases {
        client.fails(&mut world, &at_file(operation), status);
    }
    world.uid = 5;
    let anonymous = write(StateId::ANONYMOUS, 0, unstable, b"x");
    client.fails(&mut world, &at_file(anonymous), Status::ACCESS);
    client.ok(&mut world, &at_file(read(StateId::ANONYMOUS, 0, 1)));
}

#[test]
fn what_was_written_is_read() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    let mut model = Vec::new();
    let mut random: u32 = 1;
    let mut next = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) % below
    };
    for round in 0..200_u8 {
        let (offset, length) = (next(100_000) as usize, next(20_000) as usize);
        let bytes = vec![round; length];
        let operation = write(stateid, offset as u64, Stable::UNSTABLE, &bytes);
        let ok = written(&client.ok(&mut world, &at_file(operation)));
        // Nothing can be lost on a volatile volume that COMMIT would save.
        assert_eq!(
            (ok.count as usize, ok.committed),
            (length, Stable::FILE_SYNC)
        );
        if length > 0 && model.len() < offset + length {
            model.resize(offset + length, 0);
        }
        if length > 0 {
            model[offset..offset + length].copy_from_slice(&bytes);
        }
        let (offset, length) = (next(130_000) as usize, next(40_000) as usize);
        let answer = client.ok(
            &mut world,
            &at_file(read(stateid, offset as u64, length as u32)),
        );
        let begin = offset.min(model.len());
        let end = (offset + length).min(model.len()).max(begin);
        assert_eq!(
            data(&answer),
            (offset + length >= model.len(), &model[begin..end])
        );
    }
    let several = in_share(&[
        Operation::Lookup(name("f")),
        read(stateid, 0, 10),
        read(stateid, 5, 5000),
    ]);
    let answer = client.ok(&mut world, &several);
    assert_eq!(data(&answer).1, &model[5..5005]);
}

#[test]
fn a_read_beyond_the_limit_of_the_reply_is_refused() {
    let mut world = World::new();
    let channel = files_spec::operations::ChannelAttributes {
        maxresponsesize: 4096,
        ..crate::client::CHANNEL
    };
    let mut client = Client::unreclaimed(&mut world, b"a", channel);
    client.ok(&mut world, &[Operation::ReclaimComplete(false)]);
    let stateid = open_file(&mut world, &mut client, "f");
    let bytes = [7; 8192];
    client.ok(
        &mut world,
        &at_file(write(stateid, 0, Stable::UNSTABLE, &bytes)),
    );
    client.fails(
        &mut world,
        &at_file(read(stateid, 0, 4096)),
        Status::REP_TOO_BIG,
    );
    let answer = client.ok(&mut world, &at_file(read(stateid, 0, 3000)));
    assert!(answer.bytes().len() <= 4096);
    let five = [read(stateid, 0, 1); 5];
    let mut operations = in_share(&[Operation::Lookup(name("f"))]);
    operations.extend(five);
    client.fails(&mut world, &operations, Status::REP_TOO_BIG);
}

#[test]
fn a_failure_of_the_device_fails_the_operation_only() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    client.ok(
        &mut world,
        &at_file(write(stateid, 0, Stable::UNSTABLE, &[1; 100])),
    );
    world.fails = true;
    let fails = write(stateid, 0, Stable::UNSTABLE, &[2; 5000]);
    client.fails(&mut world, &at_file(fails), Status::IO);
    client.fails(&mut world, &at_file(read(stateid, 0, 10)), Status::IO);
    world.fails = false;
    let answer = client.ok(&mut world, &at_file(read(stateid, 0, 1)));
    assert!(!data(&answer).0);
    assert_eq!(world.server.volumes()[0].problems(), Vec::<String>::new());
}

#[test]
fn an_open_file_is_truncated_by_its_state() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    client.ok(
        &mut world,
        &at_file(write(stateid, 0, Stable::UNSTABLE, &[1; 5000])),
    );
    let truncate = |stateid, size| {
        at_file(Operation::SetAttr(SetattrArgs {
            stateid,
            obj_attributes: Attributes {
                size: Some(size),
                ..Attributes::default()
            },
        }))
    };
    client.fails(
        &mut world,
        &truncate(StateId::INVALID, 0),
        Status::BAD_STATEID,
    );
    client.ok(&mut world, &truncate(stateid, 100));
    client.ok(&mut world, &truncate(StateId::ANONYMOUS, 200));
    let answer = client.ok(&mut world, &at_file(read(stateid, 0, 4096)));
    let expected = [[1; 100], [0; 100]].concat();
    assert_eq!(data(&answer), (true, &expected[..]));
    client.fails(&mut world, &truncate(stateid, u64::MAX), Status::FBIG);
}

/// Between plan and end of a READ, its block can become part of another file.
#[test]
fn a_read_never_returns_the_data_of_another_file() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let mut other = Client::new(&mut world, b"b");
    let empty = Operation::SetAttr(SetattrArgs {
        stateid: StateId::ANONYMOUS,
        obj_attributes: Attributes {
            size: Some(0),
            ..Attributes::default()
        },
    });
    let changes = [
        (at_file(empty), Status::OK),
        (in_share(&[Operation::Remove(name("f"))]), Status::STALE),
    ];
    for (change, status) in changes {
        let stateid = open_file(&mut world, &mut other, "f");
        other.ok(
            &mut world,
            &at_file(write(stateid, 0, Stable::UNSTABLE, &[1; 4096])),
        );
        let close = Operation::Close(CloseArgs {
            seqid: 0,
            open_stateid: stateid,
        });
        other.ok(&mut world, &at_file(close));
        let operations = at_file(read(StateId::ANONYMOUS, 0, 4096));
        let bytes = client.next_record(&mut world, &operations, false);
        let record = Record {
            bytes: &bytes,
            placement: None,
            client: ADDRESS,
        };
        let mut x = Execution::new();
        let now = world.now;
        let step = world.server.begin(&mut x, &record, &mut world.caller, &now);
        assert!(matches!(step, Step::Read { .. }));
        other.ok(&mut world, &change);
        let step = world.server.resume(&mut x, &record, Resumption::Done, &now);
        assert_eq!((step, x.holes().len()), (Step::Reply, 0));
        assert_eq!(x.reply()[24..28], status.0.to_be_bytes());
    }
}

#[test]
fn a_read_of_very_many_ranges_is_short() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    for at in 0..200 {
        client.ok(
            &mut world,
            &at_file(write(stateid, at * 2, Stable::UNSTABLE, &[9])),
        );
    }
    let answer = client.ok(&mut world, &at_file(read(stateid, 0, 1000)));
    let (eof, bytes) = data(&answer);
    assert_eq!((eof, bytes.len()), (false, READ_RANGES_MAX));
    let answer = client.ok(&mut world, &at_file(read(stateid, 380, 1000)));
    assert_eq!((data(&answer).0, data(&answer).1.len()), (true, 19));
}
