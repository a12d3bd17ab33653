//! The steps that the conformance suite cannot force: an empty pool, a file system that can neither
//! punch nor zero, a file that is gone, and a deferred second step that nobody flushes.

use std::path::Path;

use hugemem::Arena;
use tempfile::TempDir;

use super::*;
use crate::conformance::arena;
use crate::device::Device;
use crate::health::HealthState;
use crate::request::Completion;
use crate::{FileDevice, FileOptions};

const BLOCKS: u64 = 2048;
const BLOCK: usize = 512;

struct Bench {
    device: FileDevice,
    queue: FileQueue,
    arena: Arc<Arena>,
    pool: Pool,
    folder: TempDir,
}

impl Bench {
    fn new(depth: usize) -> Self {
        let built_on = std::env::current_exe().unwrap();
        let folder = TempDir::new_in(built_on.parent().unwrap()).unwrap();
        let options = FileOptions {
            size_bytes: Some(BLOCKS * BLOCK as u64),
            block_size: BLOCK as u32,
            ..FileOptions::new("file", folder.path().join("image"))
        };
        let device = FileDevice::open(options).unwrap();
        let arena = arena();
        let pool = arena.pool(0);
        let options = QueueOptions {
            core: 0,
            depth,
            pool: pool.clone(),
        };
        let queue = FileQueue::open(Arc::clone(&device.shared), options).unwrap();
        Self {
            device,
            queue,
            arena,
            pool,
            folder,
        }
    }

    fn image(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    fn path(&self) -> impl AsRef<Path> + use<> {
        self.folder.path().join("image")
    }

    fn submit(
        &mut self,
        tag: u64,
        operation: Operation,
        lba: u64,
        blocks: u32,
        data: Option<Lease>,
    ) {
        self.queue
            .submit(Request {
                tag,
                operation,
                lba,
                blocks,
                data,
            })
            .unwrap();
    }

    /// Polls until `count` completions came; flushes once only, as a caller does that submits once.
    fn wait(&mut self, count: usize) -> Vec<Completion> {
        self.queue.flush();
        let mut all = Vec::new();
        let start = std::time::Instant::now();
        while all.len() < count {
            assert!(start.elapsed().as_secs() < 60, "no completion");
            let mut batch = CompletionBatch::new();
            self.queue.poll(&mut batch);
            all.extend(batch);
            std::thread::yield_now();
        }
        all
    }

    fn lease(&self, bytes: usize, byte: u8) -> Lease {
        let mut lease = self.pool.take(bytes).unwrap();
        lease.fill(byte);
        lease
    }

    /// Takes every lease that is left.
    fn exhaust(&self) -> Vec<Lease> {
        std::iter::from_fn(|| self.pool.take(4096)).collect()
    }

    fn taken(&self) -> u64 {
        self.arena
            .counters()
            .classes
            .iter()
            .map(|class| class.taken)
            .sum()
    }
}

#[test]
fn compares_get_through_on_the_queues_own_lease_when_the_pool_is_empty() {
    let mut bench = Bench::new(8);
    let mut seeded = reactors::sim::Seeded::new(1, 0);
    let image: Vec<u8> = (0..BLOCKS as usize * BLOCK)
        .map(|_| seeded.draw() as u8)
        .collect();
    std::fs::write(bench.path(), &image).unwrap();
    // Larger than the queue's own lease, so that each takes several pieces.
    let bytes = 256 * 1024;
    let mut data = [0, 1, 2].map(|_| bench.lease(bytes, 0));
    for (lease, content) in data.iter_mut().zip(image.chunks(bytes)) {
        lease.copy_from_slice(content);
    }
    data[2][bytes - 1] ^= 1;
    let rest = bench.exhaust();
    assert!(bench.pool.take(BLOCK).is_none());
    let blocks = (bytes / BLOCK) as u32;
    for (index, lease) in data.into_iter().enumerate() {
        let (tag, lba) = (index as u64, index as u64 * u64::from(blocks));
        bench.submit(tag, Operation::Compare, lba, blocks, Some(lease));
    }
    assert_eq!(bench.device.health().waits, 2);
    let mut completions = bench.wait(3);
    completions.sort_by_key(|completion| completion.tag);
    let results: Vec<_> = completions
        .iter()
        .map(|completion| completion.result)
        .collect();
    assert_eq!(results, [Ok(()), Ok(()), Err(DeviceError::CompareMismatch)]);
    assert!(
        completions
            .iter()
            .all(|completion| completion.data.as_ref().unwrap().len() == bytes)
    );
    assert_eq!(
        bench.device.health().errors,
        0,
        "a mismatch is no error of the device"
    );
    drop((completions, rest));
    assert_eq!(bench.taken(), 1, "the queue keeps its own lease");
    drop(bench.queue);
    assert_eq!(
        bench
            .arena
            .counters()
            .classes
            .iter()
            .map(|class| class.taken)
            .sum::<u64>(),
        0
    );
}

#[test]
fn zeroes_are_written_where_the_file_system_cannot_make_them() {
    for (fua, empty_pool) in [(false, false), (true, true)] {
        let mut bench = Bench::new(4);
        std::fs::write(bench.path(), vec![7; BLOCKS as usize * BLOCK]).unwrap();
        bench.queue.can_punch = false;
        bench.queue.can_zero = false;
        let rest = if empty_pool {
            bench.exhaust()
        } else {
            Vec::new()
        };
        let operation = Operation::WriteZeroes {
            fua,
            deallocate: true,
        };
        bench.submit(1, operation, 3, 1500, None);
        bench.submit(2, operation, 1600, 1, None);
        for completion in bench.wait(2) {
            assert_eq!(completion.result, Ok(()));
            assert!(completion.data.is_none());
        }
        let image = bench.image();
        for (block, bytes) in image.chunks(BLOCK).enumerate() {
            let zeroed = (3..1503).contains(&block) || block == 1600;
            let expected = if zeroed { 0 } else { 7 };
            assert!(bytes.iter().all(|&byte| byte == expected), "block {block}");
        }
        drop(rest);
        assert_eq!(bench.taken(), 1);
    }
}

#[test]
fn a_way_that_the_file_system_refuses_is_not_tried_again() {
    let mut bench = Bench::new(1);
    bench.submit(
        1,
        Operation::WriteZeroes {
            fua: false,
            deallocate: true,
        },
        0,
        8,
        None,
    );
    let refused = || Done {
        tag: 0,
        result: Err(rustix::io::Errno::OPNOTSUPP),
        lease: None,
    };
    assert_eq!(
        bench.queue.job(0).stage,
        Stage::Allocate(AllocateMode::PunchHole)
    );
    // As if the kernel had refused each way; what is really in the ring ends unseen.
    while bench.queue.ring.in_flight() > 0 {
        bench.queue.ring.flush();
        bench.queue.ring.poll(&mut ArrayVec::<Done, 1>::new());
    }
    bench.queue.advance(refused());
    assert_eq!(
        bench.queue.job(0).stage,
        Stage::Allocate(AllocateMode::ZeroRange)
    );
    while bench.queue.ring.in_flight() > 0 {
        bench.queue.ring.flush();
        bench.queue.ring.poll(&mut ArrayVec::<Done, 1>::new());
    }
    bench.queue.advance(refused());
    assert_eq!(bench.queue.job(0).stage, Stage::WritingZeroes);
    assert!(!bench.queue.can_punch && !bench.queue.can_zero);
    assert_eq!(bench.wait(1)[0].result, Ok(()));
}

#[test]
fn zeroing_keeps_room_unless_it_may_give_it_away() {
    use std::os::unix::fs::MetadataExt;
    let mut bench = Bench::new(1);
    std::fs::write(bench.path(), vec![7; BLOCKS as usize * BLOCK]).unwrap();
    let room = |bench: &Bench| {
        let file = std::fs::File::open(bench.path()).unwrap();
        file.sync_all().unwrap();
        file.metadata().unwrap().blocks()
    };
    let full = room(&bench);
    bench.submit(
        1,
        Operation::WriteZeroes {
            fua: true,
            deallocate: false,
        },
        0,
        1024,
        None,
    );
    assert_eq!(bench.wait(1)[0].result, Ok(()));
    assert!(room(&bench) >= full);
    bench.submit(
        2,
        Operation::WriteZeroes {
            fua: true,
            deallocate: true,
        },
        0,
        1024,
        None,
    );
    assert_eq!(bench.wait(1)[0].result, Ok(()));
    if bench.queue.can_punch {
        assert!(room(&bench) < full);
    }
    assert!(bench.image()[..1024 * BLOCK].iter().all(|&byte| byte == 0));
}

#[test]
fn a_file_that_is_gone_takes_no_more() {
    let mut bench = Bench::new(2);
    let lease = bench.lease(BLOCK, 1);
    bench.submit(5, Operation::Read, 0, 1, Some(lease));
    while bench.queue.ring.in_flight() > 0 {
        bench.queue.ring.flush();
        bench.queue.ring.poll(&mut ArrayVec::<Done, 1>::new());
    }
    bench.queue.advance(Done {
        tag: 0,
        result: Err(rustix::io::Errno::NODEV),
        lease: None,
    });
    assert_eq!(bench.wait(1)[0].result, Err(DeviceError::Removed));
    assert_eq!(bench.device.health().state, HealthState::Removed);
    let request = Request {
        tag: 6,
        operation: Operation::Flush,
        lba: 0,
        blocks: 0,
        data: None,
    };
    let Err(Refusal::Never(request, error)) = bench.queue.submit(request) else {
        panic!("taken")
    };
    assert_eq!((request.tag, error), (6, DeviceError::Removed));
    let options = QueueOptions {
        core: 0,
        depth: 1,
        pool: bench.pool.clone(),
    };
    assert!(matches!(
        bench.device.open_queue(options),
        Err(OpenError::Removed)
    ));
}

#[test]
fn media_errors_are_counted() {
    let mut bench = Bench::new(2);
    for (tag, operation) in [(1, Operation::Read), (2, Operation::Write { fua: false })] {
        let lease = bench.lease(BLOCK, 1);
        bench.submit(tag, operation, 0, 1, Some(lease));
        while bench.queue.ring.in_flight() > 0 {
            bench.queue.ring.flush();
            bench.queue.ring.poll(&mut ArrayVec::<Done, 1>::new());
        }
        bench.queue.advance(Done {
            tag: 0,
            result: Err(rustix::io::Errno::IO),
            lease: None,
        });
    }
    let results: Vec<_> = bench
        .wait(2)
        .iter()
        .map(|completion| completion.result)
        .collect();
    assert_eq!(
        results,
        [Err(DeviceError::MediaRead), Err(DeviceError::MediaWrite)]
    );
    let health = bench.device.health();
    assert_eq!(
        (health.errors, health.media_errors, health.bytes_read),
        (2, 2, 0)
    );
}

#[test]
fn an_empty_pool_opens_no_queue() {
    let bench = Bench::new(1);
    let rest = bench.exhaust();
    let options = QueueOptions {
        core: 0,
        depth: 1,
        pool: bench.pool.clone(),
    };
    let refused = bench.device.open_queue(options);
    assert!(matches!(
        refused.err(),
        Some(OpenError::NoMemory {
            bytes: RESERVE_BYTES
        })
    ));
    drop(rest);
}
