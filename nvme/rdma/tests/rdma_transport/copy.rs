//! Copy over RDMA: the list of source ranges in capsules and in the host's memory, with little memory.

use crate::harness::FakeHost as Host;
use crate::harness::{Setup, Stage};
use nvme_spec::command::CopyRange;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use zerocopy::IntoBytes;

const BLOCK: usize = 512;
/// Copies at once: more than the arena has slices for.
const COPIES: u16 = 40;
/// First block of the first destination.
const TO: u64 = 100;
/// Bytes of the list of one Copy.
const LIST_BYTES: usize = 2 * size_of::<CopyRange>();

fn stage() -> Stage {
    Stage::with(Setup {
        arena_bytes: 6 << 20,
        ..Setup::default()
    })
}

/// Writes 1 to the first block and 2 to the next one.
fn fill(stage: &mut Stage, host: &mut Host) {
    host.write(0, &[1; BLOCK]);
    host.write(BLOCK, &[2; BLOCK]);
    let sqe = Sqe::write(1, 0, 1, false).with_sgl(host.keyed(0, 2 * BLOCK as u32));
    assert_eq!(host.command(stage, sqe).status(), Status::SUCCESS);
}

/// Sends all copies of the two blocks in the other order.
fn send_copies(host: &mut Host, in_capsule: bool) {
    let list = [CopyRange::new(1, 0), CopyRange::new(0, 0)];
    host.write(4096, list.as_bytes());
    for cid in 0..COPIES {
        let sqe = Sqe::copy_ranges(1, TO + 2 * u64::from(cid), 1).with_cid(cid);
        if in_capsule {
            let sgl = SglDescriptor::in_capsule(0, LIST_BYTES as u32);
            host.send(sqe.with_sgl(sgl), list.as_bytes());
        } else {
            host.send(sqe.with_sgl(host.keyed(4096, LIST_BYTES as u32)), &[]);
        }
    }
}

/// Copies wait for memory without a deadlock, wherever their lists are.
#[test]
fn copies_are_executed_with_little_memory() {
    for in_capsule in [false, true] {
        let mut stage = stage();
        let (_admin, mut io) = Host::attach(&mut stage, 64);
        fill(&mut stage, &mut io);
        let leases = stage.leases_out();
        send_copies(&mut io, in_capsule);
        for _ in 0..COPIES {
            let (cqe, _) = io.await_response(&mut stage);
            assert_eq!(cqe.status(), Status::SUCCESS, "in capsule: {in_capsule}");
        }
        for cid in 0..u64::from(COPIES) {
            let sqe = Sqe::read(1, TO + 2 * cid, 1).with_sgl(io.keyed(0, 2 * BLOCK as u32));
            assert_eq!(io.command(&mut stage, sqe).status(), Status::SUCCESS);
            let found = io.read(0, 2 * BLOCK);
            assert_eq!((found[0], found[BLOCK]), (2, 1), "copy {cid}");
        }
        assert_eq!(stage.leases_out(), leases, "in capsule: {in_capsule}");
    }
}

/// A connection that ends while its copies wait for memory returns what they hold.
#[test]
fn end_of_the_connection_ends_waiting_copies() {
    for in_capsule in [false, true] {
        let mut stage = stage();
        let (_admin, mut io) = Host::attach(&mut stage, 64);
        let (_other_admin, mut other) = Host::attach(&mut stage, 64);
        fill(&mut stage, &mut other);
        let leases = stage.leases_out();
        send_copies(&mut io, in_capsule);
        stage.turn();
        drop(io);
        for _ in 0..1000 {
            stage.turn();
        }
        assert!(stage.leases_out() <= leases, "in capsule: {in_capsule}");
        send_copies(&mut other, in_capsule);
        for _ in 0..COPIES {
            let (cqe, _) = other.await_response(&mut stage);
            assert_eq!(cqe.status(), Status::SUCCESS);
        }
    }
}

/// A list whose length is not that which the command determines.
#[test]
fn lists_of_another_length_are_refused() {
    let mut stage = stage();
    let (_admin, mut io) = Host::attach(&mut stage, 64);
    for bytes in [0, 32, 63, 65, 96] {
        let sqe = Sqe::copy_ranges(1, TO, 1).with_sgl(io.keyed(4096, bytes));
        let status = io.command(&mut stage, sqe).status();
        assert!(status.is(Status::DATA_SGL_LENGTH_INVALID), "{status}");
        let sqe = Sqe::copy_ranges(1, TO, 1).with_sgl(SglDescriptor::in_capsule(0, 64));
        io.send(sqe, &vec![0; bytes as usize]);
        let status = io.await_response(&mut stage).0.status();
        assert!(status.is(Status::DATA_SGL_LENGTH_INVALID), "{status}");
    }
}
