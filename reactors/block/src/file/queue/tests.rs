//! Steps that the conformance suite cannot force: an empty pool, a file system that can neither
//! punch nor zero, a file that is gone, and a deferred second step without a flush.

use std::path::Path;

use hugemem::Arena;
use tempfile::TempDir;

use super::super::system::SystemFile;
use super::*;
use crate::device::Device;
use crate::error::ReopenError;
use crate::health::HealthState;
use crate::request::Completion;
use crate::{FileDevice, FileOptions};
use block_testing::conformance::arena;

mod stuck;

const BLOCKS: u64 = 2048;
const BLOCK: usize = 512;

struct Bench {
    device: FileDevice,
    queue: FileQueue<SystemFile>,
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
        let options = QueueOptions::new(0, depth, pool.clone());
        let queue = FileQueue::open(Arc::clone(&device.device.shared), options).unwrap();
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

    /// Polls until `count` completions were delivered; flushes only once, as a caller that submits
    /// once does.
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

    /// Completes all operations in the ring without the queue.
    fn empty_ring(&mut self) {
        while self.queue.ring.in_flight() > 0 {
            self.queue.ring.flush();
            self.queue.ring.poll(&mut DoneBatch::new());
        }
    }

    /// Runs one request whose operation fails with a simulated kernel error.
    fn run_failing(&mut self, operation: Operation, failure: Failure) -> Result<(), DeviceError> {
        self.start_one(operation);
        let index = self.queue.jobs.iter().position(Option::is_some).unwrap();
        self.empty_ring();
        self.queue.advance(Done {
            tag: index as u64,
            result: Err(failure),
            lease: None,
        });
        self.wait(1)[0].result
    }

    fn start_one(&mut self, operation: Operation) {
        let data = operation.has_data().then(|| self.lease(BLOCK, 1));
        let blocks = u32::from(operation != Operation::Flush);
        self.submit(1, operation, 0, blocks, data);
    }

    /// Runs one request; returns also the error of a refusal.
    fn run(&mut self, operation: Operation) -> Result<(), DeviceError> {
        let data = operation.has_data().then(|| self.lease(BLOCK, 1));
        let (tag, lba) = (1, 0);
        let blocks = u32::from(operation != Operation::Flush);
        let request = Request {
            tag,
            operation,
            lba,
            blocks,
            data,
        };
        match self.queue.submit(request) {
            Ok(()) => self.wait(1)[0].result,
            Err(Refusal::Never(_, error)) => Err(error),
            Err(Refusal::Later(_)) => panic!("the queue is not full"),
        }
    }

    /// Opens another queue of the same device.
    fn other_queue(&self) -> FileQueue<SystemFile> {
        let options = QueueOptions::new(1, 4, self.pool.clone());
        FileQueue::open(Arc::clone(&self.device.device.shared), options).unwrap()
    }

    fn lease(&self, bytes: usize, byte: u8) -> Lease {
        let mut lease = self.pool.take(bytes).unwrap();
        lease.fill(byte);
        lease
    }

    /// Takes every remaining lease.
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
fn compares_use_the_queues_reserved_lease_if_the_pool_is_empty() {
    let mut bench = Bench::new(8);
    let mut seeded = reactors::sim::Seeded::new(1, 0);
    let image: Vec<u8> = (0..BLOCKS as usize * BLOCK)
        .map(|_| seeded.draw() as u8)
        .collect();
    std::fs::write(bench.path(), &image).unwrap();
    // Larger than the queue's reserve, so that each takes several pieces.
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

/// A request that waits for a second lease is cancelled, and one in pieces ends after a piece.
#[test]
fn split_request_can_be_cancelled() {
    let mut bench = Bench::new(8);
    std::fs::write(bench.path(), vec![0; BLOCKS as usize * BLOCK]).unwrap();
    let bytes = 256 * 1024;
    let data = [0, 1].map(|_| bench.lease(bytes, 0));
    let rest = bench.exhaust();
    for (tag, lease) in (0..).zip(data) {
        let blocks = (bytes / BLOCK) as u32;
        bench.submit(tag, Operation::Compare, 0, blocks, Some(lease));
    }
    assert_eq!(bench.queue.waiting.len(), 1);
    bench.queue.give_up(&mut |_| true);
    assert_eq!(bench.queue.waiting.len(), 0);
    for completion in bench.wait(2) {
        assert_eq!(completion.result, Err(DeviceError::Aborted));
        assert_eq!(completion.data.unwrap().len(), bytes);
    }
    drop(rest);
    assert_eq!(bench.taken(), 1, "the queue keeps its own lease");
    assert_eq!(bench.queue.in_flight(), 0);
}

#[test]
fn write_zeroes_falls_back_to_writing_zeroes() {
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
fn unsupported_fallocate_mode_is_not_retried() {
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
        result: Err(Failure::Errno(Errno::OPNOTSUPP)),
        lease: None,
    };
    assert_eq!(
        bench.queue.job(0).stage,
        Stage::Allocate(AllocateMode::PunchHole)
    );
    // Simulates a kernel that refuses each way; the queue does not see the real operations end.
    bench.empty_ring();
    bench.queue.advance(refused());
    assert_eq!(
        bench.queue.job(0).stage,
        Stage::Allocate(AllocateMode::ZeroRange)
    );
    bench.empty_ring();
    bench.queue.advance(refused());
    assert_eq!(bench.queue.job(0).stage, Stage::WritingZeroes);
    assert!(!bench.queue.can_punch && !bench.queue.can_zero);
    assert_eq!(bench.wait(1)[0].result, Ok(()));
}

#[test]
fn zeroing_keeps_blocks_allocated_unless_deallocation_is_allowed() {
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
fn removed_file_refuses_requests() {
    let mut bench = Bench::new(2);
    let lease = bench.lease(BLOCK, 1);
    bench.submit(5, Operation::Read, 0, 1, Some(lease));
    bench.empty_ring();
    bench.queue.advance(Done {
        tag: 0,
        result: Err(Failure::Errno(Errno::NODEV)),
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
    let options = QueueOptions::new(0, 1, bench.pool.clone());
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
        bench.empty_ring();
        bench.queue.advance(Done {
            tag: 0,
            result: Err(Failure::Errno(Errno::IO)),
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
fn open_queue_fails_if_the_pool_is_empty() {
    let bench = Bench::new(1);
    let rest = bench.exhaust();
    let options = QueueOptions::new(0, 1, bench.pool.clone());
    let refused = bench.device.open_queue(options);
    assert!(matches!(
        refused.err(),
        Some(OpenError::NoMemory {
            bytes: RESERVE_BYTES
        })
    ));
    drop(rest);
}

const WRITE: Operation = Operation::Write { fua: false };
const FUA_WRITE: Operation = Operation::Write { fua: true };
const ZEROES: Operation = Operation::WriteZeroes {
    fua: false,
    deallocate: false,
};
const FUA_ZEROES: Operation = Operation::WriteZeroes {
    fua: true,
    deallocate: false,
};
/// Operations whose success promises durability or changes the file.
const PROMISING: [Operation; 6] = [
    WRITE,
    FUA_WRITE,
    Operation::Flush,
    ZEROES,
    FUA_ZEROES,
    Operation::Deallocate,
];

fn cause(bench: &Bench) -> Option<DamageCause> {
    let health = bench.device.health();
    assert_eq!(
        health.state == HealthState::Damaged,
        health.damage.is_some()
    );
    health.damage.map(|damage| damage.cause)
}

/// NVM 1.1 §3.2.1 (Write Fault) and fsync(2): a writeback error is reported once, and later syncs
/// succeed although the data is lost.
#[test]
fn failed_sync_fails_durable_requests_on_all_queues_until_reopen() {
    for syncing in [Operation::Flush, FUA_WRITE, FUA_ZEROES] {
        let mut bench = Bench::new(4);
        let mut other = bench.other_queue();
        if syncing == FUA_ZEROES {
            bench.start_one(syncing);
            bench.empty_ring();
            let done = |result| Done {
                tag: 0,
                result,
                lease: None,
            };
            bench.queue.advance(done(Ok(())));
            assert_eq!(bench.queue.job(0).stage, Stage::Syncing);
            bench.empty_ring();
            bench.queue.advance(done(Err(Failure::Errno(Errno::IO))));
            assert_eq!(bench.wait(1)[0].result, Err(DeviceError::MediaWrite));
        } else {
            let failed = bench.run_failing(syncing, Failure::Errno(Errno::IO));
            assert_eq!(failed, Err(DeviceError::MediaWrite), "{syncing:?}");
        }
        assert_eq!(cause(&bench), Some(DamageCause::SyncFailed));
        std::mem::swap(&mut bench.queue, &mut other);
        for _ in 0..2 {
            for operation in PROMISING {
                let refused = bench.run(operation);
                assert_eq!(refused, Err(DeviceError::Damaged), "{operation:?}");
            }
            assert_eq!(bench.run(Operation::Read), Ok(()));
            std::mem::swap(&mut bench.queue, &mut other);
        }
        bench.device.reopen().unwrap();
        assert_eq!(cause(&bench), None);
        for _ in 0..2 {
            for operation in [WRITE, FUA_WRITE, Operation::Flush, FUA_ZEROES] {
                assert_eq!(bench.run(operation), Ok(()), "{operation:?}");
            }
            std::mem::swap(&mut bench.queue, &mut other);
        }
        let error = bench.device.reopen().expect_err("nothing is damaged");
        assert!(matches!(error, ReopenError::NotDamaged), "{error}");
    }
}

#[test]
fn requests_in_flight_fail_when_the_device_is_damaged() {
    for operation in [WRITE, FUA_WRITE, Operation::Flush, ZEROES] {
        let mut bench = Bench::new(4);
        bench.start_one(operation);
        bench.start_one(Operation::Read);
        let condition = &bench.device.device.shared.condition;
        condition.note_damage(DamageCause::SyncFailed);
        let mut results: Vec<_> = bench.wait(2).iter().map(|it| it.result).collect();
        results.sort_by_key(Result::is_err);
        assert_eq!(
            results,
            [Ok(()), Err(DeviceError::Damaged)],
            "{operation:?}"
        );
        assert_eq!(bench.device.health().errors, 1, "{operation:?}");
    }
}

#[test]
fn damage_and_reopen_are_visible_to_every_queue() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let mut bench = Bench::new(4);
    let (damaged, reopened) = (AtomicBool::new(false), AtomicBool::new(false));
    let shared = Arc::clone(&bench.device.device.shared);
    std::thread::scope(|scope| {
        let reactor = scope.spawn(|| {
            let arena = arena();
            let options = QueueOptions::new(1, 1, arena.pool(0));
            let mut queue = FileQueue::open(Arc::clone(&shared), options).unwrap();
            let mut flush = || {
                let request = Request {
                    tag: 0,
                    operation: Operation::Flush,
                    lba: 0,
                    blocks: 0,
                    data: None,
                };
                if let Err(refusal) = queue.submit(request) {
                    let Refusal::Never(_, error) = refusal else {
                        panic!("one request at a time")
                    };
                    return Err(error);
                }
                queue.flush();
                let mut batch = CompletionBatch::new();
                while queue.poll(&mut batch) == 0 {
                    std::thread::yield_now();
                }
                batch[0].result
            };
            let mut refused = 0;
            while refused < 100 {
                let was_damaged = damaged.load(Ordering::Acquire);
                let result = flush();
                assert!(!was_damaged || result == Err(DeviceError::Damaged));
                refused += u32::from(result.is_err());
            }
            reopened.store(true, Ordering::Release);
            while flush().is_err() {
                std::thread::yield_now();
            }
        });
        let failed = bench.run_failing(Operation::Flush, Failure::Errno(Errno::IO));
        assert_eq!(failed, Err(DeviceError::MediaWrite));
        damaged.store(true, Ordering::Release);
        while !reopened.load(Ordering::Acquire) && !reactor.is_finished() {
            std::thread::yield_now();
        }
        bench.device.reopen().unwrap();
        reactor.join().unwrap();
    });
}

#[test]
fn flush_that_overlaps_a_failed_one_fails() {
    let mut bench = Bench::new(4);
    bench.start_one(Operation::Flush);
    bench.start_one(Operation::Flush);
    bench.empty_ring();
    let done = |tag, result| Done {
        tag,
        result,
        lease: None,
    };
    // The first sync received the error, and the second is reaped before it.
    bench.queue.advance(done(1, Ok(())));
    assert_eq!(bench.queue.job(1).stage, Stage::Held);
    let mut batch = CompletionBatch::new();
    assert_eq!(bench.queue.poll(&mut batch), 0);
    let failure = Failure::Errno(Errno::IO);
    bench.queue.advance(done(0, Err(failure)));
    let mut results: Vec<_> = bench.wait(2).iter().map(|it| it.result).collect();
    results.sort_by_key(|result| *result == Err(DeviceError::Damaged));
    assert_eq!(
        results,
        [Err(DeviceError::MediaWrite), Err(DeviceError::Damaged)]
    );
}

#[test]
fn truncated_file_is_a_media_error_and_never_reads_as_zeroes() {
    for less in [100, BLOCK as u64 * 8, BLOCKS * BLOCK as u64] {
        let mut bench = Bench::new(2);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(bench.path())
            .unwrap();
        let full = file.metadata().unwrap().len();
        file.set_len(full - less).unwrap();
        for operation in [Operation::Read, Operation::Compare] {
            let blocks = 16;
            let lease = bench.lease(16 * BLOCK, 0);
            let lba = BLOCKS - 16;
            bench.submit(3, operation, lba, blocks, Some(lease));
            assert_eq!(
                bench.wait(1)[0].result,
                Err(DeviceError::MediaRead),
                "{operation:?} {less}"
            );
        }
        assert_eq!(cause(&bench), Some(DamageCause::Truncated));
        assert_eq!(bench.run(WRITE), Err(DeviceError::Damaged));
        let error = bench.device.reopen().expect_err("it is shorter");
        assert!(matches!(error, ReopenError::Shorter { .. }), "{error}");
        assert!(cause(&bench).is_some());
        file.set_len(full).unwrap();
        bench.device.reopen().unwrap();
        assert_eq!(bench.run(WRITE), Ok(()));
        assert_eq!(bench.run(Operation::Flush), Ok(()));
        // A file of another length is detected without a request too.
        file.set_len(full - 1).unwrap();
        assert_eq!(cause(&bench), Some(DamageCause::Truncated));
    }
}

/// A write past the end of a truncated file would restore its length, and the truncated part would
/// read as zeroes.
#[test]
fn truncation_is_detected_before_the_next_write() {
    for operation in PROMISING {
        for changed in [0, 1] {
            let mut bench = Bench::new(4);
            for _ in 0..changed {
                assert_eq!(bench.run(WRITE), Ok(()));
            }
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(bench.path())
                .unwrap();
            let cut = 8 * BLOCK as u64;
            file.set_len(cut).unwrap();
            let data = operation.has_data().then(|| bench.lease(BLOCK, 1));
            let is_flush = operation == Operation::Flush;
            let refused = bench.queue.submit(Request {
                tag: 1,
                operation,
                lba: if is_flush { 0 } else { BLOCKS - 1 },
                blocks: u32::from(!is_flush),
                data,
            });
            let Err(Refusal::Never(_, error)) = refused else {
                panic!("{operation:?} was taken");
            };
            assert_eq!(error, DeviceError::Damaged);
            assert_eq!(cause(&bench), Some(DamageCause::Truncated));
            assert_eq!(file.metadata().unwrap().len(), cut, "{operation:?}");
        }
    }
}

#[test]
fn reopen_refuses_a_different_file_at_the_path() {
    let mut bench = Bench::new(2);
    let failure = Failure::Errno(Errno::IO);
    assert!(bench.run_failing(Operation::Flush, failure).is_err());
    let aside = bench.folder.path().join("aside");
    std::fs::rename(bench.path(), &aside).unwrap();
    let error = bench.device.reopen().expect_err("there is no file");
    assert!(matches!(error, ReopenError::System { step: "open", .. }));
    std::fs::copy(&aside, bench.path()).unwrap();
    let error = bench.device.reopen().expect_err("it is another file");
    assert!(matches!(error, ReopenError::Replaced { .. }), "{error}");
    std::fs::rename(&aside, bench.path()).unwrap();
    bench.device.reopen().unwrap();
    assert_eq!(bench.run(Operation::Flush), Ok(()));
}

#[test]
fn file_with_an_abandoned_write_stays_locked_and_is_not_reopened() {
    let bench = Bench::new(2);
    // A ring that abandons a write does this.
    let description = bench.device.device.shared.store.current();
    uring::RingFile::write_abandoned(&*description);
    std::mem::forget(description);
    assert_eq!(cause(&bench), Some(DamageCause::WriteAbandoned));
    let error = bench.device.reopen().expect_err("a write may still land");
    assert!(matches!(error, ReopenError::WriteAbandoned), "{error}");
    let path = bench.folder.path().join("image");
    let Bench {
        device,
        queue,
        folder,
        ..
    } = bench;
    drop((device, queue));
    let again = FileDevice::open(FileOptions {
        block_size: BLOCK as u32,
        ..FileOptions::new("file", path)
    });
    let error = again.err().expect("it is locked");
    assert!(matches!(error, crate::FileError::InUse { .. }), "{error}");
    drop(folder);
}

#[test]
fn failures_that_count_as_damage() {
    let (transfer, syncing) = (Stage::Transfer, Stage::Syncing);
    let errno = Failure::Errno;
    let rows = [
        (
            transfer,
            Operation::Flush,
            errno(Errno::IO),
            true,
            Some(DamageCause::SyncFailed),
        ),
        (
            transfer,
            Operation::Flush,
            errno(Errno::NOSPC),
            true,
            Some(DamageCause::SyncFailed),
        ),
        (
            transfer,
            Operation::Flush,
            errno(Errno::CANCELED),
            true,
            None,
        ),
        (
            syncing,
            FUA_ZEROES,
            errno(Errno::IO),
            true,
            Some(DamageCause::SyncFailed),
        ),
        (
            transfer,
            FUA_WRITE,
            errno(Errno::IO),
            true,
            Some(DamageCause::SyncFailed),
        ),
        (transfer, FUA_WRITE, errno(Errno::NOSPC), true, None),
        (
            transfer,
            FUA_WRITE,
            errno(Errno::NOSPC),
            false,
            Some(DamageCause::SyncFailed),
        ),
        (transfer, WRITE, errno(Errno::NOSPC), false, None),
        (
            transfer,
            WRITE,
            Failure::ShortWrite(Errno::NOSPC),
            true,
            None,
        ),
        (
            transfer,
            WRITE,
            Failure::ShortWrite(Errno::IO),
            true,
            Some(DamageCause::ShortWrite),
        ),
        (
            transfer,
            WRITE,
            Failure::ShortWrite(Errno::INVAL),
            true,
            Some(DamageCause::ShortWrite),
        ),
        // A bad sector: the host receives the error, and the rest of the device is unaffected.
        (transfer, WRITE, errno(Errno::IO), true, None),
        (
            transfer,
            WRITE,
            errno(Errno::IO),
            false,
            Some(DamageCause::WriteFailed),
        ),
        (transfer, WRITE, errno(Errno::ROFS), false, None),
        (transfer, WRITE, errno(Errno::INVAL), true, None),
        (transfer, Operation::Read, errno(Errno::IO), true, None),
        (
            transfer,
            Operation::Read,
            Failure::EndOfFile,
            true,
            Some(DamageCause::Truncated),
        ),
    ];
    for (stage, operation, failure, direct, expected) in rows {
        let damage = damage_of(stage, operation, failure, direct);
        assert_eq!(
            damage, expected,
            "{operation:?} {failure:?} direct {direct}"
        );
    }
}
