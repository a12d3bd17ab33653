//! What clients hold whose lease has expired: it stays until another client needs it, whatever it
//! is.

use files_server::limits::LEASE_MS;
use files_spec::Status;
use files_spec::operations::{OpenHow, share};
use files_spec::types::LockType;

use crate::client::{Client, World, in_share};
use crate::locks::{at_file, lock};
use crate::opens::{BOTH, open, open_file, opened, unchecked};

const READ: u32 = share::ACCESS_READ;
const WRITE: u32 = share::ACCESS_WRITE;

/// An OPEN that conflicts with those of clients, however many, succeeds after their lease.
#[test]
fn opens_of_expired_clients_yield_to_what_they_exclude() {
    let cases = [
        // A denial of writing, and an access to write.
        ((BOTH, share::DENY_WRITE), (WRITE, 0)),
        // An access to write, and a denial of it.
        ((WRITE, 0), (READ, share::DENY_WRITE)),
        // A denial of reading, and an access to read.
        ((WRITE, share::DENY_READ), (READ, 0)),
        ((READ, share::DENY_BOTH), (READ, 0)),
    ];
    for (held, wanted) in cases {
        let mut world = World::new();
        let mut holders = [b"1", b"2"].map(|owner| Client::new(&mut world, owner));
        let is_shared = held.0 & held.1 == 0;
        let count = if is_shared { 2 } else { 1 };
        for holder in &mut holders[..count] {
            let hold = open("f", b"o", held, unchecked());
            holder.ok(&mut world, &in_share(&[hold]));
        }
        let mut other = Client::new(&mut world, b"3");
        let want = [open("f", b"o", wanted, OpenHow::NoCreate)];
        other.fails(&mut world, &in_share(&want), Status::SHARE_DENIED);
        world.advance(LEASE_MS + 1);
        world.server.tick(&world.now);
        let mut other = Client::new(&mut world, b"4");
        other.ok(&mut world, &in_share(&want));
        for holder in &mut holders[..count] {
            let status = holder.send(&mut world, &[]).status();
            assert_eq!(status, Status::BADSESSION, "{held:?}, {wanted:?}");
        }
    }
}

#[test]
fn locks_of_expired_clients_yield_to_locks() {
    let mut world = World::new();
    let mut first = Client::new(&mut world, b"1");
    let everything = |stateid| at_file(lock(LockType::WRITE, (0, u64::MAX), stateid, b"l"));
    let stateid = open_file(&mut world, &mut first, "f");
    first.ok(&mut world, &everything(stateid));
    world.advance(2 * LEASE_MS);
    world.server.tick(&world.now);
    // Nobody needs it: the client goes on.
    first.ok(&mut world, &[]);
    world.advance(LEASE_MS + 1);
    let mut second = Client::new(&mut world, b"2");
    let write = open("f", b"o", (WRITE, 0), OpenHow::NoCreate);
    let stateid = opened(&second.ok(&mut world, &in_share(&[write]))).stateid;
    second.ok(&mut world, &everything(stateid));
    assert_eq!(first.send(&mut world, &[]).status(), Status::BADSESSION);
}
