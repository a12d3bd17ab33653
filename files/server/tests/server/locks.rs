//! Byte-range locks.

use files_server::limits::{LEASE_MS, LOCKS_PER_FILE_MAX};
use files_spec::Status;
use files_spec::operations::{
    ExistingLockOwner, LockArgs, LockFailure, LockTestArgs, Locker, NewLockOwner, OpenHow,
    Operation, OperationResult, Outcome, UnlockArgs, share,
};
use files_spec::types::{LockType, Owner, StateId};
use files_spec::xdr::Opaque;

use crate::client::{Answer, Client, World, in_share, name};
use crate::opens::{open, open_file, opened, unchecked};

pub(crate) fn owner(bytes: &[u8]) -> Owner<'_> {
    Owner {
        clientid: 0,
        owner: Opaque(bytes),
    }
}

pub(crate) fn lock<'a>(
    locktype: LockType,
    (offset, length): (u64, u64),
    open_stateid: StateId,
    by: &'a [u8],
) -> Operation<'a> {
    Operation::Lock(LockArgs {
        locktype,
        reclaim: false,
        offset,
        length,
        locker: Locker::New(NewLockOwner {
            open_seqid: 0,
            open_stateid,
            lock_seqid: 0,
            lock_owner: owner(by),
        }),
    })
}

pub(crate) fn unlock((offset, length): (u64, u64), lock_stateid: StateId) -> Operation<'static> {
    Operation::LockU(UnlockArgs {
        locktype: LockType::WRITE,
        seqid: 0,
        lock_stateid,
        offset,
        length,
    })
}

pub(crate) fn locked(answer: &Answer) -> StateId {
    match answer.last() {
        OperationResult::Lock(Outcome::Ok(stateid)) => stateid,
        _ => panic!("{:?}", answer.parts()),
    }
}

pub(crate) fn at_file<'a>(operation: Operation<'a>) -> Vec<Operation<'a>> {
    in_share(&[Operation::Lookup(name("f")), operation])
}

#[test]
fn invalid_locks_are_refused() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let open_id = open_file(&mut world, &mut client, "f");
    let read_only = open("f", b"other", (share::ACCESS_READ, 0), OpenHow::NoCreate);
    let read_only = opened(&client.ok(&mut world, &in_share(&[read_only]))).stateid;
    let write = LockType::WRITE;
    let existing = Operation::Lock(LockArgs {
        locktype: write,
        reclaim: false,
        offset: 0,
        length: 1,
        locker: Locker::Existing(ExistingLockOwner {
            lock_stateid: open_id,
            lock_seqid: 0,
        }),
    });
    let cases = [
        (lock(write, (0, 0), open_id, b"l"), Status::INVAL),
        (lock(write, (u64::MAX, 2), open_id, b"l"), Status::INVAL),
        (lock(LockType(9), (0, 1), open_id, b"l"), Status::BADXDR),
        (lock(write, (0, 1), read_only, b"l"), Status::OPENMODE),
        (
            lock(write, (0, 1), StateId::ANONYMOUS, b"l"),
            Status::BAD_STATEID,
        ),
        (existing, Status::BAD_STATEID),
        (unlock((0, 1), open_id), Status::BAD_STATEID),
    ];
    for (operation, status) in cases {
        client.fails(&mut world, &at_file(operation), status);
    }
    let reclaim = match lock(write, (0, 1), open_id, b"l") {
        Operation::Lock(args) => Operation::Lock(LockArgs {
            reclaim: true,
            ..args
        }),
        other => other,
    };
    client.fails(&mut world, &at_file(reclaim), Status::NO_GRACE);
}

#[test]
fn conflicting_locks_are_denied_with_the_one_that_is_held() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let mut other = Client::new(&mut world, b"b");
    let open_id = open_file(&mut world, &mut client, "f");
    let other_id = open_file(&mut world, &mut other, "f");
    let held = lock(LockType::WRITE, (10, 10), open_id, b"holder");
    let held = locked(&client.ok(&mut world, &at_file(held)));
    let wanted = lock(LockType::READ, (0, u64::MAX), other_id, b"waiter");
    let answer = other.send(&mut world, &at_file(wanted));
    assert_eq!(answer.status(), Status::DENIED);
    let OperationResult::Lock(Outcome::Failed(LockFailure::Denied(denied))) = answer.last() else {
        panic!("{:?}", answer.parts());
    };
    assert_eq!((denied.offset, denied.length), (10, 10));
    assert_eq!(denied.locktype, LockType::WRITE);
    assert_eq!(denied.owner.owner.0, b"holder");
    let test = |by: &'static [u8]| {
        Operation::LockT(LockTestArgs {
            locktype: LockType::WRITE_WAIT,
            offset: 15,
            length: 1,
            owner: owner(by),
        })
    };
    other.fails(&mut world, &at_file(test(b"waiter")), Status::DENIED);
    client.ok(&mut world, &at_file(test(b"holder")));
    // Unlocking a part releases that part.
    let answer = client.ok(&mut world, &at_file(unlock((12, 4), held)));
    let OperationResult::LockU(Outcome::Ok(after)) = answer.last() else {
        panic!("{:?}", answer.parts());
    };
    assert_eq!(after.seqid, held.seqid + 1);
    client.fails(
        &mut world,
        &at_file(unlock((12, 4), held)),
        Status::OLD_STATEID,
    );
    let inner = lock(LockType::WRITE, (12, 4), other_id, b"waiter");
    other.ok(&mut world, &at_file(inner));
    client.fails(
        &mut world,
        &at_file(Operation::FreeStateId(after)),
        Status::LOCKS_HELD,
    );
    let all = unlock((0, u64::MAX), StateId { seqid: 0, ..after });
    client.ok(&mut world, &at_file(all));
    let free = Operation::FreeStateId(StateId { seqid: 0, ..after });
    client.ok(&mut world, &at_file(free));
    client.fails(&mut world, &at_file(free), Status::BAD_STATEID);
}

#[test]
fn locks_end_with_their_client_or_their_open() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let mut other = Client::new(&mut world, b"b");
    let open_id = open_file(&mut world, &mut client, "f");
    let other_id = open_file(&mut world, &mut other, "f");
    let whole = (0, u64::MAX);
    client.ok(
        &mut world,
        &at_file(lock(LockType::WRITE, whole, open_id, b"l")),
    );
    let wanted = lock(LockType::WRITE, whole, other_id, b"l");
    other.fails(&mut world, &at_file(wanted), Status::DENIED);
    let close = Operation::Close(files_spec::operations::CloseArgs {
        seqid: 0,
        open_stateid: open_id,
    });
    client.ok(&mut world, &at_file(close));
    other.ok(&mut world, &at_file(wanted));
    // The lease of the holder expires.
    let open_id = open_file(&mut world, &mut client, "f");
    let again = lock(LockType::READ, whole, open_id, b"l");
    client.fails(&mut world, &at_file(again), Status::DENIED);
    world.advance(LEASE_MS - 1);
    client.ok(&mut world, &[Operation::PutRootFh(())]);
    world.advance(2);
    client.ok(&mut world, &at_file(again));
    assert_eq!(other.send(&mut world, &[]).status(), Status::BADSESSION);
}

#[test]
fn the_number_of_locks_of_a_file_is_limited() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let read = open("f", b"owner", (crate::opens::BOTH, 0), unchecked());
    let open_id = opened(&client.ok(&mut world, &in_share(&[read]))).stateid;
    let mut count = 0;
    let status = loop {
        let operation = lock(LockType::READ, (count * 2, 1), open_id, b"l");
        let status = client.send(&mut world, &at_file(operation)).status();
        if status != Status::OK || count > LOCKS_PER_FILE_MAX as u64 {
            break status;
        }
        count += 1;
    };
    assert_eq!(status, Status::DELAY);
    assert!(count > LOCKS_PER_FILE_MAX as u64 - 3);
    // Division of locks does not exceed the limit either.
    let whole = lock(LockType::WRITE, (1 << 40, 100), open_id, b"l");
    client.fails(&mut world, &at_file(whole), Status::DELAY);
}
