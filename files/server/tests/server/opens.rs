//! Opens, their state identifiers and share modes.

use files_server::limits::{COURTESY_MS, LEASE_MS};
use files_spec::attributes::{Attributes, number};
use files_spec::operations::{
    Claim, CloseArgs, CreateHow, DowngradeArgs, ExclusiveCreate, OpenArgs, OpenHow, OpenOk,
    Operation, OperationResult, Outcome, RenameArgs, share,
};
use files_spec::types::{CreateType, Owner, SetTime, Stable, StateId};
use files_spec::xdr::Opaque;
use files_spec::{Bitmap, Status};

use crate::client::{Answer, Client, World, in_share, name};
use crate::data::write;
use crate::names::make;

pub(crate) const BOTH: u32 = share::ACCESS_READ | share::ACCESS_WRITE;

/// OPEN of a name by an owner.
pub(crate) fn open<'a>(
    it: &'a str,
    owner: &'a [u8],
    (share_access, share_deny): (u32, u32),
    openhow: OpenHow<'a>,
) -> Operation<'a> {
    Operation::Open(OpenArgs {
        seqid: 0,
        share_access,
        share_deny,
        owner: Owner {
            clientid: 0,
            owner: Opaque(owner),
        },
        openhow,
        claim: Claim::Null(name(it)),
    })
}

pub(crate) fn unchecked() -> OpenHow<'static> {
    OpenHow::Create(CreateHow::Unchecked(Attributes {
        mode: Some(0o644),
        ..Attributes::default()
    }))
}

pub(crate) fn opened(answer: &Answer) -> OpenOk<'_> {
    match answer.last() {
        OperationResult::Open(Outcome::Ok(ok)) => ok,
        _ => panic!("{:?}", answer.parts()),
    }
}

/// Opens or creates a file to read and write.
pub(crate) fn open_file(world: &mut World, client: &mut Client, it: &str) -> StateId {
    let operation = open(it, b"owner", (BOTH, 0), unchecked());
    opened(&client.ok(world, &in_share(&[operation]))).stateid
}

pub(crate) fn close(open_stateid: StateId) -> Operation<'static> {
    Operation::Close(CloseArgs {
        seqid: 0,
        open_stateid,
    })
}

#[test]
fn invalid_opens_are_refused() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    client.ok(
        &mut world,
        &in_share(&[make(CreateType::Directory, "d", 0o755)]),
    );
    let link = make(CreateType::Link(Opaque(b"x")), "l", 0o755);
    client.ok(&mut world, &in_share(&[link]));
    client.ok(&mut world, &in_share(&[make(CreateType::Fifo, "f", 0o755)]));
    let none = OpenHow::NoCreate;
    let read = (share::ACCESS_READ, 0);
    let guarded = OpenHow::Create(CreateHow::Guarded(Attributes::default()));
    let times = OpenHow::Create(CreateHow::Exclusive41(ExclusiveCreate {
        verf: [1; 8],
        attrs: Attributes {
            time_modify_set: Some(SetTime::ServerTime),
            ..Attributes::default()
        },
    }));
    let cases = [
        (open("x", b"o", read, none), Status::NOENT),
        (open("x", b"o", (0, 0), none), Status::INVAL),
        (open("x", b"o", (1, 4), none), Status::INVAL),
        (open("x", b"o", read, times), Status::INVAL),
        (open("d", b"o", read, none), Status::ISDIR),
        (open("d", b"o", read, guarded), Status::EXIST),
        (open("d", b"o", read, unchecked()), Status::ISDIR),
        (open("l", b"o", read, guarded), Status::EXIST),
        (open("l", b"o", read, none), Status::SYMLINK),
        (open("f", b"o", read, none), Status::WRONG_TYPE),
    ];
    for (operation, status) in cases {
        client.fails(&mut world, &in_share(&[operation]), status);
    }
    let Operation::Open(args) = open("x", b"o", read, none) else {
        panic!("an OPEN");
    };
    for (claim, status) in [
        (
            Claim::DelegateCurFh(StateId::ANONYMOUS),
            Status::BAD_STATEID,
        ),
        (Claim::DelegatePrevFh, Status::NOTSUPP),
        (Claim::Previous(0), Status::NO_GRACE),
        (Claim::FileHandle, Status::ISDIR),
    ] {
        let operation = Operation::Open(OpenArgs { claim, ..args });
        client.fails(&mut world, &in_share(&[operation]), status);
    }
    assert_eq!(world.server.counts().2, 0);
}

/// RFC 8881 §18.51.
#[test]
fn a_client_that_may_still_reclaim_opens_nothing_else() {
    let mut world = World::new();
    let channel = crate::client::CHANNEL;
    let mut client = Client::unreclaimed(&mut world, b"a", channel);
    let operation = open("x", b"o", (BOTH, 0), unchecked());
    client.fails(&mut world, &in_share(&[operation]), Status::GRACE);
    client.ok(&mut world, &[Operation::ReclaimComplete(false)]);
    client.ok(&mut world, &in_share(&[operation]));
}

/// RFC 8881 §8.2.2, §8.2.4, §9.9.
#[test]
fn state_identifiers_count_the_changes_of_an_open() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let mut other = Client::new(&mut world, b"b");
    let read = open("f", b"o", (share::ACCESS_READ, 0), unchecked());
    let write = open("f", b"o", (share::ACCESS_WRITE, 0), OpenHow::NoCreate);
    let first = opened(&client.ok(&mut world, &in_share(&[read]))).stateid;
    let second = opened(&client.ok(&mut world, &in_share(&[write]))).stateid;
    assert_eq!((first.other, first.seqid + 1), (second.other, second.seqid));
    assert_eq!(world.server.counts().2, 1);
    let at = |operation| in_share(&[Operation::Lookup(name("f")), operation]);
    client.fails(&mut world, &at(close(first)), Status::OLD_STATEID);
    let later = StateId {
        seqid: second.seqid + 1,
        ..second
    };
    client.fails(&mut world, &at(close(later)), Status::BAD_STATEID);
    let special = close(StateId::ANONYMOUS);
    client.fails(&mut world, &at(special), Status::BAD_STATEID);
    client.fails(
        &mut world,
        &at(close(StateId::CURRENT)),
        Status::BAD_STATEID,
    );
    let of_other = close(second);
    other.fails(&mut world, &at(of_other), Status::BAD_STATEID);
    // Another file.
    client.ok(
        &mut world,
        &in_share(&[open("g", b"o", (BOTH, 0), unchecked())]),
    );
    let wrong = in_share(&[Operation::Lookup(name("g")), close(second)]);
    client.fails(&mut world, &wrong, Status::BAD_STATEID);
    let downgrade = |share_access| {
        Operation::OpenDowngrade(DowngradeArgs {
            open_stateid: StateId { seqid: 0, ..second },
            seqid: 0,
            share_access,
            share_deny: 0,
        })
    };
    client.fails(&mut world, &at(downgrade(0)), Status::INVAL);
    client.ok(&mut world, &at(downgrade(share::ACCESS_READ)));
    let up = downgrade(share::ACCESS_WRITE);
    client.fails(&mut world, &at(up), Status::INVAL);
    let current = StateId { seqid: 0, ..second };
    client.fails(
        &mut world,
        &at(Operation::FreeStateId(current)),
        Status::LOCKS_HELD,
    );
    client.ok(&mut world, &at(close(current)));
    client.fails(&mut world, &at(close(current)), Status::BAD_STATEID);
    // The current state identifier is that of the OPEN (RFC 8881 §16.2.3.1.2).
    let again = open("f", b"o", (BOTH, 0), OpenHow::NoCreate);
    client.ok(&mut world, &in_share(&[again, close(StateId::CURRENT)]));
}

/// RFC 8881 §9.7.
#[test]
fn share_modes_exclude_all_owners() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let mut other = Client::new(&mut world, b"b");
    let exclusive = open("f", b"o", (BOTH, share::DENY_WRITE), unchecked());
    let open_id = opened(&client.ok(&mut world, &in_share(&[exclusive]))).stateid;
    let read = open("f", b"o", (share::ACCESS_READ, 0), OpenHow::NoCreate);
    let write = open("f", b"o", (share::ACCESS_WRITE, 0), OpenHow::NoCreate);
    let deny = open(
        "f",
        b"p",
        (share::ACCESS_READ, share::DENY_READ),
        OpenHow::NoCreate,
    );
    other.ok(&mut world, &in_share(&[read]));
    other.fails(&mut world, &in_share(&[write]), Status::SHARE_DENIED);
    client.fails(&mut world, &in_share(&[deny]), Status::SHARE_DENIED);
    // The same owner may open again, but not for what it denies.
    client.ok(&mut world, &in_share(&[read]));
    client.fails(&mut world, &in_share(&[write]), Status::SHARE_DENIED);
    let at = in_share(&[
        Operation::Lookup(name("f")),
        close(StateId {
            seqid: 0,
            ..open_id
        }),
    ]);
    client.ok(&mut world, &at);
    other.ok(&mut world, &in_share(&[write]));
}

/// RFC 8881 §9.7: a client that denies others to write is not surprised by an empty file.
#[test]
fn a_denied_write_is_no_truncation_either() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let mut other = Client::new(&mut world, b"b");
    let exclusive = open("f", b"o", (BOTH, share::DENY_WRITE), unchecked());
    client.ok(&mut world, &in_share(&[exclusive]));
    let empty = OpenHow::Create(CreateHow::Unchecked(Attributes {
        size: Some(0),
        ..Attributes::default()
    }));
    let truncating = open("f", b"o", (share::ACCESS_READ, 0), empty);
    other.fails(&mut world, &in_share(&[truncating]), Status::SHARE_DENIED);
    // The owner of the denial may.
    client.ok(&mut world, &in_share(&[truncating]));
}

/// A client whose lease has expired keeps its opens until another client needs them.
#[test]
fn an_expired_client_yields_to_others() {
    let mut world = World::new();
    let mut silent = Client::new(&mut world, b"a");
    let exclusive = open("f", b"o", (BOTH, share::DENY_BOTH), unchecked());
    silent.ok(&mut world, &in_share(&[exclusive]));
    world.advance(LEASE_MS + 1);
    world.server.tick(&world.now);
    // Courtesy: nobody needs the file.
    silent.ok(&mut world, &in_share(&[Operation::Lookup(name("f"))]));
    let read = open("f", b"o", (share::ACCESS_READ, 0), OpenHow::NoCreate);
    let mut other = Client::new(&mut world, b"b");
    other.fails(&mut world, &in_share(&[read]), Status::SHARE_DENIED);
    world.advance(LEASE_MS + 1);
    other.ok(&mut world, &in_share(&[read]));
    let root = Operation::PutRootFh(());
    assert_eq!(
        silent.send(&mut world, &[root]).status(),
        Status::BADSESSION
    );
    world.advance(COURTESY_MS + 1);
    world.server.tick(&world.now);
    assert_eq!(world.server.counts(), (0, 0, 0));
}

/// RFC 8881 §18.16.
#[test]
fn files_are_created_exclusively_once() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let exclusive = |byte| {
        OpenHow::Create(CreateHow::Exclusive41(ExclusiveCreate {
            verf: [byte; 8],
            attrs: Attributes {
                mode: Some(0o640),
                ..Attributes::default()
            },
        }))
    };
    let request = |byte| in_share(&[open("f", b"o", (BOTH, 0), exclusive(byte))]);
    let first = client.ok(&mut world, &request(0xf1));
    assert_eq!(opened(&first).attrset, Bitmap::of(&[number::MODE]));
    client.ok(&mut world, &request(0xf1));
    client.fails(&mut world, &request(0xf2), Status::EXIST);
    let guarded = OpenHow::Create(CreateHow::Guarded(Attributes::default()));
    let guarded = open("f", b"o", (BOTH, 0), guarded);
    client.fails(&mut world, &in_share(&[guarded]), Status::EXIST);
}

/// OPEN4_RESULT_PRESERVE_UNLINKED: a file whose last name another file takes, or nobody, lives
/// until its last close.
#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    let replaced = Operation::Rename(RenameArgs {
        oldname: name("other"),
        newname: name("f"),
    });
    for unlinked in [
        vec![Operation::Remove(name("f"))],
        vec![Operation::SaveFh(()), replaced],
    ] {
        let mut world = World::new();
        let mut client = Client::new(&mut world, b"a");
        let stateid = open_file(&mut world, &mut client, "f");
        let other = open_file(&mut world, &mut client, "other");
        let handle = [Operation::Lookup(name("f")), Operation::GetFh(())];
        let answer = client.ok(&mut world, &in_share(&handle));
        let OperationResult::GetFh(Outcome::Ok(handle)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        client.ok(&mut world, &in_share(&unlinked));
        let put = Operation::PutFh(handle);
        let names = Operation::GetAttr(Bitmap::of(&[number::NUMLINKS]));
        let answer = client.ok(&mut world, &[put, names]);
        let OperationResult::GetAttr(Outcome::Ok(attributes)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        assert_eq!(attributes.numlinks, Some(0));
        client.ok(
            &mut world,
            &[put, write(stateid, 0, Stable::FILE_SYNC, b"x")],
        );
        client.ok(&mut world, &[put, close(stateid)]);
        client.fails(&mut world, &[put], Status::STALE);
        if let [Operation::SaveFh(()), _] = unlinked[..] {
            let at_other = [Operation::Lookup(name("f")), close(other)];
            client.ok(&mut world, &in_share(&at_other));
        }
        assert_eq!(world.server.volumes()[0].problems(), Vec::<String>::new());
    }
}
