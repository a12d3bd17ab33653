//! Verifies that the I/O path does not allocate, over many reads and writes of every kind.

#[expect(dead_code, reason = "the faults are another test's")]
mod fake;

use fake::{BLOCK, FakeTarget, TargetBehavior, arena};
use hugemem::allocation_counter::{CountingAllocator, allocations_on_this_thread};
use nvme_host::{Controller, HostCompletions};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn requests_do_not_allocate() {
    let behaviour = TargetBehavior {
        r2t_bytes: 4096,
        c2h_bytes: 1500,
        in_capsule_bytes: 2048,
        ..TargetBehavior::default()
    };
    let target = FakeTarget::start(behaviour);
    let mut options = target.options();
    options.header_digest = true;
    options.data_digest = true;
    let controller = Controller::connect(options).expect("connected");
    let pool = arena().pool(0);
    let mut queue = controller
        .open_io_queue(1, 16, pool.clone())
        .expect("opened");
    let mut completions = HostCompletions::new();
    let before = allocations_on_this_thread();
    let (mut submitted, mut ended) = (0_u64, 0);
    while ended < 4000 {
        while submitted < 4000 && queue.in_flight() < queue.depth() {
            let blocks = [1, 4, 16][submitted as usize % 3];
            let lease = pool.take(blocks * BLOCK).expect("memory");
            let lba = submitted % 64 * 16;
            let taken = if submitted.is_multiple_of(2) {
                queue.submit_read(1, lba, blocks as u32, lease, submitted)
            } else {
                queue.submit_write(1, (lba, blocks as u32), false, lease, submitted)
            };
            taken.expect("room");
            submitted += 1;
        }
        queue.flush().expect("sent");
        if queue.poll(&mut completions).expect("fine") == 0 {
            queue.wait(fake::LIMIT);
        }
        for completion in completions.drain(..) {
            assert!(completion.status().is_success());
            ended += 1;
        }
    }
    assert_eq!(allocations_on_this_thread() - before, 0);
}
