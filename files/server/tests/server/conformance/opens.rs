//! OPEN, OPEN_DOWNGRADE, locks and the current state identifier (RFC 8881 §9.7, §16.2.3.1.2,
//! §18.10 to §18.18).

use files_spec::Status;
use files_spec::attributes::Attributes;
use files_spec::operations::{
    CopyArgs, CreateHow, Delegation, DowngradeArgs, ExistingLockOwner, LockArgs, LockFailure,
    LockTestArgs, Locker, NoDelegation, OpenArgs, OpenHow, Operation, OperationResult, Outcome,
    RangeArgs, SetattrArgs, share,
};
use files_spec::types::{LockType, Stable, StateId};

use crate::client::{Answer, Client, World, in_share, name};
use crate::data::{at_file, data, read, write};
use crate::locks::{lock, locked, owner, unlock};
use crate::opens::{BOTH, close, open, open_file, opened, unchecked};
use crate::version_2::copied;

const READ: u32 = share::ACCESS_READ;
const WRITE: u32 = share::ACCESS_WRITE;

/// RFC 8881 §9.7: the opens of the owner itself count, too.
#[test]
fn an_owner_conflicts_with_its_own_denial() {
    let cases = [
        ((BOTH, share::DENY_READ), (READ, 0)),
        ((BOTH, share::DENY_WRITE), (WRITE, 0)),
        ((READ, 0), (READ, share::DENY_READ)),
        ((WRITE, 0), (READ, share::DENY_BOTH)),
    ];
    for (held, wanted) in cases {
        for owner in [b"same", b"diff"] {
            let mut world = World::new();
            let mut client = Client::new(&mut world, b"a");
            let first = open("f", b"same", held, unchecked());
            client.ok(&mut world, &in_share(&[first]));
            let second = open("f", owner, wanted, OpenHow::NoCreate);
            client.fails(&mut world, &in_share(&[second]), Status::SHARE_DENIED);
        }
    }
}

/// A denial excludes opens and accesses without one, not accesses by an open file.
#[test]
fn a_denial_concerns_accesses_without_an_open_file() {
    for (deny, denied, permitted) in [
        (share::DENY_READ, READ, WRITE),
        (share::DENY_WRITE, WRITE, READ),
    ] {
        let mut world = World::new();
        let mut client = Client::new(&mut world, b"a");
        let first = open("f", b"o", (BOTH, deny), unchecked());
        let own = opened(&client.ok(&mut world, &in_share(&[first]))).stateid;
        let access = |access, stateid| match access {
            READ => at_file(read(stateid, 0, 10)),
            _ => at_file(write(stateid, 0, Stable::FILE_SYNC, b"data")),
        };
        for special in [StateId::ANONYMOUS, StateId::BYPASS] {
            client.fails(&mut world, &access(denied, special), Status::LOCKED);
            client.ok(&mut world, &access(permitted, special));
        }
        client.ok(&mut world, &access(WRITE, own));
        let second = open("f", b"p", (permitted, 0), OpenHow::NoCreate);
        let other = opened(&client.ok(&mut world, &in_share(&[second]))).stateid;
        let answer = client.ok(&mut world, &access(READ, other));
        assert_eq!(data(&answer), (true, &b"data"[..]));
    }
}

/// Of the attributes of an OPEN that creates nothing, only a size of 0 is applied.
#[test]
fn a_file_that_exists_keeps_its_attributes() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let how = |mode, size| {
        let attributes = Attributes {
            mode: Some(mode),
            size: Some(size),
            ..Attributes::default()
        };
        let create = OpenHow::Create(CreateHow::Unchecked(attributes));
        (in_share(&[open("f", b"o", (BOTH, 0), create)]), attributes)
    };
    let verify = |attributes| at_file(Operation::Verify(attributes));
    let (first, original) = how(0o644, 32);
    client.ok(&mut world, &first);
    client.ok(&mut world, &verify(original));
    client.ok(&mut world, &how(0o600, 16).0);
    client.ok(&mut world, &verify(original));
    client.ok(&mut world, &how(0o600, 0).0);
    let empty = Attributes {
        size: Some(0),
        ..original
    };
    client.ok(&mut world, &verify(empty));
}

#[test]
fn an_open_is_reduced_to_what_was_asked_for() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let mut stateid = StateId::ANONYMOUS;
    let mut step = |access, reduces, status| {
        let operation = match reduces {
            true => Operation::OpenDowngrade(DowngradeArgs {
                open_stateid: stateid,
                seqid: 0,
                share_access: access,
                share_deny: 0,
            }),
            false => open("f", b"o", (access, 0), unchecked()),
        };
        let request = match reduces {
            true => at_file(operation),
            false => in_share(&[operation]),
        };
        let answer = client.send(&mut world, &request);
        assert_eq!(answer.status(), status, "{operation:?}");
        match answer.last() {
            OperationResult::OpenDowngrade(Outcome::Ok(reduced)) => stateid = reduced,
            OperationResult::Open(Outcome::Ok(ok)) => stateid = ok.stateid,
            _ => {}
        }
    };
    step(WRITE, false, Status::OK);
    step(BOTH, false, Status::OK);
    step(READ, true, Status::INVAL);
    step(READ, false, Status::OK);
    for (access, reduces) in [
        (READ, true),
        (WRITE, false),
        (READ, true),
        (WRITE, false),
        (WRITE, true),
        (READ, false),
        (BOTH, true),
    ] {
        step(access, reduces, Status::OK);
    }
    step(0, true, Status::INVAL);
}

#[test]
fn the_reason_for_no_delegation_is_what_the_client_wanted() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    for (wants, expected) in [
        (0, Delegation::None),
        (0x100, Delegation::NoneExt(NoDelegation::Other(3))),
        (0x200, Delegation::NoneExt(NoDelegation::Other(3))),
        (0x300, Delegation::NoneExt(NoDelegation::Other(3))),
        (0x400, Delegation::NoneExt(NoDelegation::Other(0))),
    ] {
        let operation = open("f", b"o", (READ | wants, 0), unchecked());
        let answer = client.ok(&mut world, &in_share(&[operation]));
        assert_eq!(opened(&answer).delegation, expected);
    }
}

/// RFC 8881 §16.2.3.1.2.
#[test]
fn the_current_state_identifier_is_that_of_the_current_object() {
    let current = StateId::CURRENT;
    let create = open("f", b"o", (BOTH, 0), unchecked());
    let close = || close(current);
    let write = write(current, 5, Stable::FILE_SYNC, b"data");
    let size = Operation::SetAttr(SetattrArgs {
        stateid: current,
        obj_attributes: Attributes {
            size: Some(8),
            ..Attributes::default()
        },
    });
    let everything = (0, u64::MAX);
    let lock = lock(LockType::WRITE, everything, current, b"l");
    let unlock = unlock(everything, current);
    let handle = Operation::GetFh(());
    let (save, restore) = (Operation::SaveFh(()), Operation::RestoreFh(()));
    let (root, free) = (Operation::PutRootFh(()), Operation::FreeStateId(current));
    let file = at_file(Operation::GetFh(()));
    let away = [&[create][..], &file, &[close()]].concat();
    let none = [&file[..], &[close()]].concat()[2..].to_vec();
    let requests = [
        (vec![create, handle, close()], Status::OK),
        (vec![create, write, close()], Status::OK),
        (vec![create, handle, size, close()], Status::OK),
        (vec![create, lock, unlock], Status::OK),
        (vec![create, lock, write, unlock], Status::OK),
        (vec![create, save, root, restore, close()], Status::OK),
        (vec![create, free], Status::LOCKS_HELD),
        (vec![create, lock, close()], Status::BAD_STATEID),
        (vec![create, close(), close()], Status::BAD_STATEID),
        (vec![create, save, root, close()], Status::ISDIR),
        (away, Status::BAD_STATEID),
        (none, Status::BAD_STATEID),
    ];
    for (operations, status) in requests {
        let mut world = World::new();
        let mut client = Client::new(&mut world, b"a");
        open_file(&mut world, &mut client, "f");
        client.fails(&mut world, &in_share(&operations), status);
    }
}

/// CLAIM_FH of a file that was closed, and special identifiers without one.
#[test]
fn a_file_is_used_by_its_handle() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    client.ok(
        &mut world,
        &at_file(close(StateId {
            seqid: 0,
            ..stateid
        })),
    );
    let Operation::Open(args) = open("f", b"p", (BOTH | 0x400, 0), OpenHow::NoCreate) else {
        panic!("an OPEN");
    };
    let by_handle = Operation::Open(OpenArgs {
        claim: files_spec::operations::Claim::FileHandle,
        ..args
    });
    let stateid = opened(&client.ok(&mut world, &at_file(by_handle))).stateid;
    assert_eq!(stateid.seqid, 1);
    let written = write(stateid, 5, Stable::FILE_SYNC, b"data");
    client.ok(&mut world, &at_file(written));
    for stateid in [stateid, StateId::ANONYMOUS, StateId::BYPASS] {
        let answer = client.ok(&mut world, &at_file(read(stateid, 0, 1000)));
        assert_eq!(data(&answer), (true, &b"\0\0\0\0\0data"[..]));
        let answer = client.ok(&mut world, &at_file(read(stateid, 5, 0)));
        assert_eq!(data(&answer), (false, &b""[..]));
        let answer = client.ok(&mut world, &at_file(read(stateid, 1000, 10)));
        assert_eq!(data(&answer), (true, &b""[..]));
    }
}

/// The range and type that LOCKT reports, or that there is no conflict.
fn reported(answer: &Answer) -> Option<(u64, u64, LockType)> {
    match answer.last() {
        OperationResult::LockT(Outcome::Ok(())) => None,
        OperationResult::LockT(Outcome::Failed(LockFailure::Denied(it))) => {
            Some((it.offset, it.length, it.locktype))
        }
        _ => panic!("{:?}", answer.parts()),
    }
}

#[test]
fn locks_of_an_owner_are_united_changed_and_divided() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let stateid = open_file(&mut world, &mut client, "f");
    let test = |by: &'static [u8], (offset, length)| {
        at_file(Operation::LockT(LockTestArgs {
            locktype: LockType::WRITE,
            offset,
            length,
            owner: owner(by),
        }))
    };
    let all = (0, u64::MAX);
    let first = at_file(lock(LockType::WRITE, (25, 75), stateid, b"l"));
    let mut state = locked(&client.ok(&mut world, &first));
    let mut again = |world: &mut World, client: &mut Client, locktype, (offset, length)| {
        let operation = Operation::Lock(LockArgs {
            locktype,
            reclaim: false,
            offset,
            length,
            locker: Locker::Existing(ExistingLockOwner {
                lock_stateid: state,
                lock_seqid: 0,
            }),
        });
        state = locked(&client.ok(world, &at_file(operation)));
        state
    };
    let (read, write) = (LockType::READ, LockType::WRITE);
    again(&mut world, &mut client, write, (50, 75));
    let answer = client.send(&mut world, &test(b"m", all));
    assert_eq!(reported(&answer), Some((25, 100, write)));
    // Its own locks are no conflict.
    assert_eq!(
        reported(&client.ok(&mut world, &test(b"l", (20, 50)))),
        None
    );
    again(&mut world, &mut client, read, (25, 100));
    let answer = client.send(&mut world, &test(b"m", all));
    assert_eq!(reported(&answer), Some((25, 100, read)));
    let state = again(&mut world, &mut client, write, (25, 100));
    let answer = client.send(&mut world, &test(b"m", all));
    assert_eq!(reported(&answer), Some((25, 100, write)));
    // What is not locked can be unlocked, too.
    let answer = client.ok(&mut world, &at_file(unlock((0, 10), state)));
    let OperationResult::LockU(Outcome::Ok(state)) = answer.last() else {
        panic!("{:?}", answer.parts());
    };
    client.ok(&mut world, &at_file(unlock((50, 50), state)));
    for (range, expected) in [
        ((50, 50), None),
        ((0, 50), Some((25, 25, write))),
        ((60, 1 << 48), Some((100, 25, write))),
    ] {
        let answer = client.send(&mut world, &test(b"m", range));
        assert_eq!(reported(&answer), expected);
    }
}

/// Operations of minor version 2 with special identifiers, and a copy up to the end.
#[test]
fn data_are_allocated_and_copied_without_a_length() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    client.minor_version = 2;
    let source = open_file(&mut world, &mut client, "f");
    for stateid in [source, StateId::ANONYMOUS, StateId::BYPASS] {
        let range = RangeArgs {
            stateid,
            offset: 0,
            length: 1,
        };
        client.ok(&mut world, &at_file(Operation::Allocate(range)));
    }
    let text = b"some fifteen by";
    let written = write(source, 0, Stable::FILE_SYNC, text);
    client.ok(&mut world, &at_file(written));
    let target = open_file(&mut world, &mut client, "g");
    let mut request = at_file(Operation::SaveFh(()));
    request.extend(in_share(&[
        Operation::Lookup(name("g")),
        Operation::Copy(CopyArgs {
            src_stateid: source,
            dst_stateid: target,
            src_offset: 0,
            dst_offset: 0,
            count: 0,
            consecutive: false,
            synchronous: true,
            source_server: files_spec::xdr::List::new(&[]),
        }),
    ]));
    let answer = client.ok(&mut world, &request);
    assert_eq!(copied(&answer), text.len() as u64);
    let all = [Operation::Lookup(name("g")), read(target, 0, 100)];
    let answer = client.ok(&mut world, &in_share(&all));
    assert_eq!(data(&answer), (true, &text[..]));
}
