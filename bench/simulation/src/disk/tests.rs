use hugemem::{Arena, ArenaConfig, PagePolicy, Pool};

use super::*;

const BLOCK: usize = 512;

fn shape(volatile: bool) -> DiskShape {
    DiskShape {
        block_size: BLOCK as u32,
        block_count: 16,
        volatile,
        deallocate: Deallocate::ReadsZero,
        transfer_blocks_max: 16,
        read_only: false,
    }
}

const CALM: DiskBehaviour = DiskBehaviour {
    latency_min: Nanos(1000),
    latency_max: Nanos(2000),
    slow_permille: 0,
    slow_max: Nanos(2000),
    error_permille: 0,
    flush_error_permille: 0,
    later_permille: 0,
    linger_permille: 0,
    linger_max: Nanos::ZERO,
    write_back_permille: 0,
    forgotten_before: 0,
};

struct Bench {
    disk: Disk,
    queue: Box<dyn DeviceQueue>,
    pool: Pool,
    time: SharedTime,
}

impl Bench {
    fn new(volatile: bool, behaviour: DiskBehaviour, seed: u64) -> Self {
        let time = SharedTime::default();
        let random = Random::new(seed, 0);
        let disk = Disk::new(0, shape(volatile), behaviour, random, time.clone());
        let arena = Arena::new(ArenaConfig {
            bytes: 1 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 64 << 10,
        })
        .expect("a small arena");
        let pool = arena.pool(16);
        let options = QueueOptions::new(0, 8, pool.clone());
        let queue = disk.open_queue(options).expect("the disk is there");
        Self {
            disk,
            queue,
            pool,
            time,
        }
    }

    fn submit(&mut self, operation: Operation, fill: Option<u8>) {
        let mut data = operation
            .has_data()
            .then(|| self.pool.take(2 * BLOCK).expect("a free slice"));
        if let (Some(data), Some(fill)) = (&mut data, fill) {
            data.fill(fill);
        }
        let request = Request {
            tag: 7,
            operation,
            lba: 4,
            blocks: if operation == Operation::Flush { 0 } else { 2 },
            data,
        };
        assert!(self.queue.submit(request).is_ok());
    }

    fn wait(&mut self) -> Completion {
        let due = self.disk.next_due().expect("a request in flight");
        self.time.set(due);
        let mut batch = CompletionBatch::new();
        assert_eq!(self.queue.poll(&mut batch), 1);
        batch.remove(0)
    }

    fn run(&mut self, operation: Operation, fill: Option<u8>) -> Completion {
        self.submit(operation, fill);
        self.wait()
    }

    fn read(&mut self) -> Vec<u8> {
        let completion = self.run(Operation::Read, None);
        assert_eq!(completion.result, Ok(()));
        completion.data.expect("a read's lease").to_vec()
    }
}

const WRITE: Operation = Operation::Write { fua: false };

#[test]
fn requests_do_not_complete_early() {
    let mut bench = Bench::new(true, CALM, 1);
    bench.submit(WRITE, Some(1));
    let mut batch = CompletionBatch::new();
    assert_eq!(bench.queue.poll(&mut batch), 0);
    assert_eq!(bench.disk.in_flight(), 1);
    bench.disk.hold(Nanos::from_millis(5));
    assert_eq!(bench.disk.next_due(), Some(Nanos::from_millis(5)));
    bench.time.set(Nanos::from_millis(4));
    assert_eq!(bench.queue.poll(&mut batch), 0);
    assert_eq!(bench.wait().result, Ok(()));
    assert_eq!(bench.read(), [1; 2 * BLOCK]);
}

#[test]
fn only_flushed_or_fua_writes_surely_survive_a_power_cut() {
    let mut lost = 0;
    for seed in 0..32 {
        let mut bench = Bench::new(true, CALM, seed);
        bench.run(WRITE, Some(1));
        bench.run(Operation::Flush, None);
        bench.run(WRITE, Some(2));
        bench.disk.cut_power();
        let found = bench.read();
        lost += found.chunks(BLOCK).filter(|block| block[0] == 1).count();
        assert!(found.iter().all(|byte| [1, 2].contains(byte)));
        bench.run(Operation::Write { fua: true }, Some(3));
        bench.disk.cut_power();
        assert_eq!(bench.read(), [3; 2 * BLOCK]);
    }
    assert!((1..64).contains(&lost), "{lost} of 64 blocks lost");
}

#[test]
fn all_writes_survive_without_a_cache() {
    let mut bench = Bench::new(false, CALM, 1);
    bench.run(WRITE, Some(1));
    bench.disk.cut_power();
    assert_eq!(bench.read(), [1; 2 * BLOCK]);
}

#[test]
fn removed_disk_fails_all_requests_until_reinserted() {
    let mut bench = Bench::new(true, CALM, 1);
    bench.submit(WRITE, Some(1));
    bench.disk.remove();
    assert_eq!(bench.wait().result, Err(DeviceError::Removed));
    let request = Request {
        tag: 1,
        operation: Operation::Flush,
        lba: 0,
        blocks: 0,
        data: None,
    };
    let refused = bench.queue.submit(request);
    assert!(matches!(
        refused,
        Err(Refusal::Never(_, DeviceError::Removed))
    ));
    let options = QueueOptions::new(0, 8, bench.pool.clone());
    assert!(bench.disk.open_queue(options.clone()).is_err());
    bench.disk.reinsert();
    assert!(bench.disk.open_queue(options).is_ok());
}

#[test]
fn failed_writes_are_partial_and_failed_reads_return_garbage() {
    let failing = DiskBehaviour {
        error_permille: 1000,
        ..CALM
    };
    let mut partly = 0;
    for seed in 0..32 {
        let mut bench = Bench::new(true, failing, seed);
        assert!(bench.run(WRITE, Some(1)).result.is_err());
        let read = bench.run(Operation::Read, Some(9));
        assert!(read.result.is_err());
        assert_eq!(read.data.expect("its lease").to_vec(), [0xEE; 2 * BLOCK]);
        bench.disk.set_behaviour(CALM);
        let found = bench.read();
        partly += usize::from(found[0] != found[BLOCK]);
    }
    assert!(partly > 0, "no write was ever torn");
}

#[test]
fn lingering_requests_with_data_are_reported_with_their_times() {
    let lingering = DiskBehaviour {
        linger_permille: 1000,
        linger_max: Nanos::from_secs(2),
        ..CALM
    };
    let mut bench = Bench::new(true, lingering, 1);
    bench.run(Operation::Read, Some(0));
    bench.run(Operation::Deallocate, None);
    assert_eq!(bench.disk.lingering(), []);
    let submitted = bench.time.now();
    bench.run(WRITE, Some(1));
    assert_eq!(bench.disk.lingering(), [(submitted, bench.time.now())]);
    // The appliance ends.
    drop(bench.queue);
    assert_eq!(bench.disk.lingering(), []);
}
