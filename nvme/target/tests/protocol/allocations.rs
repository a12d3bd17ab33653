//! The I/O path allocates nothing: 100,000 requests through admission, lease, execution, device and
//! completion.

use hugemem::allocation_counter::{CountingAllocator, allocations_on_this_thread};
use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_target::{Admission, Completed, Direction};

use crate::harness::{CACHED, Link, Node, RAM, World};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const REQUESTS: usize = 100_000;
const WINDOW: usize = 32;

fn sqe(index: usize) -> Sqe {
    let lba = (index % 128) as u64;
    let ranges = || Sqe::deallocate(RAM, 1).with_sgl(SglDescriptor::transport(32));
    let sqe = match index % 8 {
        0 => Sqe::write(RAM, lba, 7, false).with_sgl(SglDescriptor::transport(4096)),
        1 => Sqe::write(CACHED, lba, 0, true).with_sgl(SglDescriptor::in_capsule(0, 4096)),
        2 => Sqe::read(CACHED, lba, 0).with_sgl(SglDescriptor::transport(4096)),
        3 => Sqe::flush(CACHED),
        4 if index.is_multiple_of(5) => ranges(),
        6 if index.is_multiple_of(5) => {
            // Two ranges of block 0, because the data is zero.
            Sqe::copy_ranges(RAM, lba, 1).with_sgl(SglDescriptor::transport(64))
        }
        // An error, which is logged or counted.
        5 if index % 100 == 5 => Sqe::read(99, lba, 7).with_sgl(SglDescriptor::transport(4096)),
        _ => Sqe::read(RAM, lba, 7).with_sgl(SglDescriptor::transport(4096)),
    };
    sqe.with_cid((index % WINDOW) as u16)
}

/// Sends one request. Returns true if it completed immediately.
fn issue(node: &mut Node, io: Link, index: usize, now: reactors::Nanos) -> bool {
    let tag = index as u64;
    let work = match node.core.admit(io.queue, tag, &sqe(index), now) {
        Admission::Respond(_) => return true,
        Admission::Held => return false,
        Admission::Work(work) => work,
        Admission::Throttled => panic!("no rate is limited"),
        Admission::Copy => node.core.take_set_aside().expect("just admitted"),
    };
    let lease = work.needs_lease().then(|| {
        let mut lease = node
            .pool
            .take(work.lease_bytes() as usize)
            .expect("a lease");
        lease.resize(work.bytes() as usize);
        if work.direction() == Direction::FromHost {
            lease.fill(0);
        }
        lease
    });
    node.core.execute(io.queue, tag, work, lease, now).is_some()
}

fn run(world: &mut World, io: Link, requests: usize) -> u64 {
    let mut bytes = 0;
    let (mut issued, mut done) = (0, 0);
    while done < requests {
        let node = &mut world.nodes[0];
        while issued < requests && issued - done < WINDOW {
            if issue(node, io, issued, world.now) {
                done += 1;
            }
            issued += 1;
        }
        node.poll(world.now);
        while let Some(Completed { bytes: moved, .. }) = node.core.next_completion(node.tcp) {
            bytes += u64::from(moved);
            done += 1;
        }
        node.flush();
    }
    bytes
}

#[test]
fn steady_state_does_not_allocate() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world.ram.stop_recording();
    world.cached.stop_recording();
    // Everything is allocated at start; the first requests only fill the pool's cache.
    run(&mut world, io, 100);
    let before = allocations_on_this_thread();
    let bytes = run(&mut world, io, REQUESTS);
    assert_eq!(allocations_on_this_thread() - before, 0);
    assert!(bytes > REQUESTS as u64 / 2 * 4096);
    assert_eq!(world.leases(), 0);
    let counters = world.nodes[0].core.counters();
    assert!(counters.commands.get() > REQUESTS as u64);
    assert!(counters.errors.get() > 0);
}
