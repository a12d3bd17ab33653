//! Behaviour that only the RAM device has: borrows, requests deferred by borrows, and zeroing in
//! pieces.

use std::os::fd::AsFd as _;

use hugemem::{Arena, ArenaConfig, Borrow, Pool};

use super::*;
use crate::request::Completion;

fn device(size_bytes: u64, block_size: u32) -> MemoryDevice {
    let options = MemoryOptions {
        name: "ram".into(),
        uuid: [1; 16],
        size_bytes,
        block_size,
        pages: PagePolicy::Ordinary,
        read_only: false,
    };
    MemoryDevice::new(options).unwrap()
}

struct Bench {
    queue: Box<dyn DeviceQueue>,
    pool: Pool,
    next_tag: u64,
}

impl Bench {
    fn new(device: &MemoryDevice) -> Self {
        let config = ArenaConfig {
            bytes: 1 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 4096,
        };
        let pool = Arena::new(config).unwrap().pool(0);
        let queue = device.open_queue(QueueOptions::new(0, 64, pool.clone()));
        Self {
            queue: queue.unwrap(),
            pool,
            next_tag: 0,
        }
    }

    fn submit(&mut self, operation: Operation, lba: u64, blocks: u32, byte: Option<u8>) -> u64 {
        self.next_tag += 1;
        let data = byte.map(|byte| {
            let mut lease = self.pool.take(blocks as usize * 512).unwrap();
            lease.fill(byte);
            lease
        });
        let request = Request {
            tag: self.next_tag,
            operation,
            lba,
            blocks,
            data,
        };
        self.queue.submit(request).unwrap();
        self.next_tag
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut batch = CompletionBatch::new();
        self.queue.poll(&mut batch);
        batch.into_iter().collect()
    }

    fn poll_tags(&mut self) -> Vec<u64> {
        self.poll()
            .iter()
            .map(|completion| completion.tag)
            .collect()
    }

    fn borrow_read(&mut self, lba: u64) -> Borrow {
        let tag = self.submit(Operation::Read, lba, 1, None);
        let mut completions = self.poll();
        let completion = completions.pop().unwrap();
        assert_eq!((completion.tag, completions.len()), (tag, 0));
        let Some(Data::Borrow(borrow)) = completion.data else {
            panic!("not a borrow")
        };
        borrow
    }
}

const WRITE: Operation = Operation::Write { fua: false };

#[test]
fn invalid_memory_device_sizes() {
    let options = MemoryOptions {
        name: "ram".into(),
        uuid: [1; 16],
        size_bytes: 0,
        block_size: 4096,
        pages: PagePolicy::Ordinary,
        read_only: false,
    };
    for (size_bytes, expected) in [
        (0, ShapeError::Empty),
        (
            4097,
            ShapeError::Uneven {
                size_bytes: 4097,
                block_size: 4096,
            },
        ),
    ] {
        let refused = MemoryDevice::new(MemoryOptions {
            size_bytes,
            ..options.clone()
        });
        let Err(MemoryError::Shape(error)) = refused else {
            panic!("{size_bytes} bytes")
        };
        assert_eq!(error, expected);
    }
    let refused = MemoryDevice::new(MemoryOptions {
        size_bytes: 1 << 60,
        ..options
    });
    assert!(matches!(refused, Err(MemoryError::Memory { .. })));
}

#[test]
fn reads_do_not_starve_a_write() {
    let device = device(1 << 20, 512);
    let mut bench = Bench::new(&device);
    let borrow = bench.borrow_read(3);
    let write = bench.submit(WRITE, 3, 1, Some(0xAB));
    // These touch the same unit of memory, and each would borrow it again before the previous
    // borrow is dropped.
    let reads = [3, 0, 7].map(|lba| bench.submit(Operation::Read, lba, 1, None));
    assert_eq!(bench.poll_tags(), []);
    assert!(
        bench.queue.has_ready(),
        "no other event signals the end of the borrow"
    );
    assert_eq!(device.health().waits, 4);
    // Requests for other memory are not deferred.
    let elsewhere = bench.submit(WRITE, 8, 1, Some(1));
    let flush = bench.submit(Operation::Flush, 3, 1, None);
    assert_eq!(bench.poll_tags(), [elsewhere, flush]);
    drop(borrow);
    let completions = bench.poll();
    let tags: Vec<u64> = completions
        .iter()
        .map(|completion| completion.tag)
        .collect();
    assert_eq!(
        tags,
        [write, reads[0], reads[1], reads[2]],
        "in the order in which they came"
    );
    assert_eq!(completions[1].data.as_deref(), Some(&[0xAB; 512][..]));
    assert_eq!(completions[2].data.as_deref(), Some(&[0; 512][..]));
    assert!(!bench.queue.has_ready());
}

#[test]
fn reads_share_borrowed_ranges() {
    let device = device(1 << 20, 512);
    let mut bench = Bench::new(&device);
    let first = bench.borrow_read(3);
    let second = bench.borrow_read(3);
    let tag = bench.submit(Operation::Read, 3, 1, Some(9));
    assert_eq!(bench.poll_tags(), [tag]);
    drop((first, second));
}

#[test]
fn write_waits_for_a_borrow_of_another_queue() {
    let device = device(1 << 20, 512);
    let (mut reader, mut writer) = (Bench::new(&device), Bench::new(&device));
    let borrow = reader.borrow_read(0);
    let write = writer.submit(WRITE, 0, 8, Some(5));
    let zeroes = Operation::WriteZeroes {
        fua: false,
        deallocate: true,
    };
    let zero = writer.submit(zeroes, 0, 1, None);
    assert_eq!(writer.poll_tags(), []);
    assert!(borrow.iter().all(|&byte| byte == 0));
    drop(borrow);
    assert_eq!(writer.poll_tags(), [write, zero]);
    assert!(reader.borrow_read(0).iter().all(|&byte| byte == 0));
    assert!(reader.borrow_read(1).iter().all(|&byte| byte == 5));
}

/// A write that is refused inline may wait for a lease before it returns as a request.
#[test]
fn refused_inline_write_does_not_block_readers() {
    let device = device(1 << 20, 512);
    let (mut reader, mut writer) = (Bench::new(&device), Bench::new(&device));
    let borrow = reader.borrow_read(0);
    assert!(!writer.queue.write_inline(0, &[1; 512]));
    let read = writer.submit(Operation::Read, 0, 1, None);
    assert_eq!(writer.poll_tags(), [read]);
    drop(borrow);
}

/// A write that waits for a borrow is cancelled: its lease returns to the pool and its data is
/// never written.
#[test]
fn waiting_write_can_be_cancelled() {
    let device = device(1 << 20, 512);
    let (mut reader, mut writer) = (Bench::new(&device), Bench::new(&device));
    let borrow = reader.borrow_read(0);
    let unwanted = writer.submit(WRITE, 0, 1, Some(1));
    let wanted = writer.submit(WRITE, 8, 1, Some(2));
    let behind = writer.submit(WRITE, 0, 1, Some(3));
    assert_eq!(writer.poll_tags(), [wanted]);
    writer.queue.give_up(&mut |tag| tag == unwanted);
    let mut ended = writer.poll();
    assert_eq!(ended.len(), 1, "it does not wait for the borrow");
    let ended = ended.remove(0);
    assert_eq!(
        (ended.tag, ended.result),
        (unwanted, Err(DeviceError::Aborted))
    );
    assert!(ended.data.is_some(), "its lease comes home");
    drop(borrow);
    assert_eq!(writer.poll_tags(), [behind]);
    assert!(reader.borrow_read(0).iter().all(|&byte| byte == 3));
    assert_eq!(writer.queue.in_flight(), 0);
}

#[test]
fn large_write_zeroes_does_not_block_other_requests() {
    const SIZE: u64 = 8 << 20;
    let device = device(SIZE, 512);
    let mut bench = Bench::new(&device);
    let last = SIZE / 512 - 1;
    for lba in [0, last] {
        bench.submit(WRITE, lba, 1, Some(0xFF));
    }
    assert_eq!(bench.poll().len(), 2);
    let zeroes = Operation::WriteZeroes {
        fua: false,
        deallocate: false,
    };
    let zero = bench.submit(zeroes, 1, last as u32, None);
    let done_part = bench.submit(Operation::Read, 0, 1, Some(0));
    let part_to_do = bench.submit(Operation::Read, last, 1, Some(0));
    let mut polls = 0;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.extend(bench.poll_tags());
        polls += 1;
        assert!(polls <= SIZE.div_ceil(ZERO_BYTES_PER_POLL_MAX as u64) + 1);
    }
    assert!(
        polls >= SIZE / ZERO_BYTES_PER_POLL_MAX as u64,
        "{polls} polls"
    );
    assert_eq!(
        seen,
        [done_part, zero, part_to_do],
        "only what is still to be zeroed waits"
    );
    assert!(bench.borrow_read(0).iter().all(|&byte| byte == 0xFF));
    assert!(bench.borrow_read(last).iter().all(|&byte| byte == 0));
    assert_eq!(device.health().write_zeroes, 1);
}

#[test]
fn dropped_queue_releases_its_range_locks() {
    let device = device(1 << 20, 512);
    let mut bench = Bench::new(&device);
    let borrow = bench.borrow_read(0);
    bench.submit(WRITE, 0, 1, Some(1));
    bench.submit(Operation::Read, 100, 1, None);
    assert_eq!(bench.queue.in_flight(), 2);
    drop(bench);
    drop(borrow);
    let mut bench = Bench::new(&device);
    let tags = [0, 100].map(|lba| bench.submit(WRITE, lba, 1, Some(2)));
    assert_eq!(bench.poll_tags(), tags);
}

#[test]
fn inline_read_borrows_memory_and_is_counted() {
    let device = device(1 << 20, 512);
    let mut bench = Bench::new(&device);
    let borrow = bench
        .queue
        .borrow_read(3, 2)
        .expect("nothing is in the way");
    assert_eq!(borrow.len(), 1024);
    assert_eq!((bench.queue.in_flight(), device.health().reads), (0, 1));
    let held = bench.submit(WRITE, 3, 1, Some(1));
    assert!(bench.queue.borrow_read(100, 1).is_none(), "a write waits");
    drop(borrow);
    assert_eq!(bench.poll_tags(), [held]);
    assert!(bench.queue.borrow_read(100, 1).is_some());
}

fn grow(device: &MemoryDevice, size_bytes: u64) {
    let missing = device.allocate_growth(size_bytes).expect("memory");
    device.grow(missing.expect("it grows"));
}

#[test]
fn shrinking_and_invalid_growth_are_refused() {
    let device = device(1 << 20, 4096);
    for size_bytes in [0, 4096, (1 << 20) + 1, (1 << 20) - 4096, 1 << 60] {
        assert!(device.allocate_growth(size_bytes).is_err(), "{size_bytes}");
    }
    let missing = device.allocate_growth(1 << 20).expect("it is as large");
    assert!(missing.is_none());
    assert_eq!(device.geometry().bytes(), 1 << 20);
}

/// Such a read takes a lease like all other requests, under the rules of shares: no request waits
/// for a lease inside the device.
#[test]
fn read_across_memory_segments_is_not_borrowed() {
    let device = device(8192, 512);
    grow(&device, 16384);
    let mut bench = Bench::new(&device);
    let ranges = [(0, 16), (15, 1), (14, 2), (16, 2), (16, 16)];
    for (lba, blocks) in ranges {
        assert!(bench.queue.can_borrow_read(lba, blocks), "{lba} {blocks}");
        assert!(
            bench.queue.borrow_read(lba, blocks).is_some(),
            "{lba} {blocks}"
        );
    }
    for (lba, blocks) in [(15, 2), (0, 17), (0, 32), (31, 2), (u64::MAX, 1), (0, 0)] {
        assert!(!bench.queue.can_borrow_read(lba, blocks), "{lba} {blocks}");
        assert!(
            bench.queue.borrow_read(lba, blocks).is_none(),
            "{lba} {blocks}"
        );
    }
}

/// The written data stays, the new end reads as zeroes, and a queue without notification refuses
/// it.
#[test]
fn memory_device_grows_with_open_queues() {
    // The old end lies within a unit, and within a block of a request across it.
    let device = device((1 << 20) - 512, 512);
    let edge = (1 << 20) / 512 - 1;
    let (mut notified, mut not_notified) = (Bench::new(&device), Bench::new(&device));
    notified.submit(WRITE, edge - 1, 1, Some(3));
    assert_eq!(notified.poll().len(), 1);
    let held = notified.borrow_read(edge - 1);
    for more in [512, 1 << 20] {
        let size_bytes = device.geometry().bytes() + more;
        grow(&device, size_bytes);
        assert_eq!(device.geometry().bytes(), size_bytes);
    }
    notified.queue.device_grew();
    assert_eq!(*held, [3; 512]);
    drop(held);
    let request = |lba| Request {
        tag: 1,
        operation: Operation::Read,
        lba,
        blocks: 1,
        data: None,
    };
    let refused = not_notified.queue.submit(request(edge));
    let Err(Refusal::Never(_, DeviceError::OutOfRange)) = refused else {
        panic!("{refused:?}");
    };
    assert!(not_notified.queue.borrow_read(edge, 1).is_none());
    // Three stores: the first, one of a single block, and the rest.
    for lba in [edge, edge + 1, edge + 100] {
        assert_eq!(*notified.borrow_read(lba), [0; 512], "{lba}");
    }
    notified.submit(WRITE, edge - 2, 5, Some(8));
    assert_eq!(notified.poll().len(), 1);
    assert!(
        notified.queue.borrow_read(edge - 1, 3).is_none(),
        "not in one piece"
    );
    notified.submit(Operation::Read, edge - 2, 5, Some(0));
    let read = notified.poll().pop().expect("at once");
    assert!(matches!(read.data, Some(Data::Lease(_))));
    assert_eq!(read.data.as_deref(), Some(&[8; 5 * 512][..]));
    drop(read);
    for (byte, result) in [(8, Ok(())), (9, Err(DeviceError::CompareMismatch))] {
        notified.submit(Operation::Compare, edge - 2, 5, Some(byte));
        assert_eq!(notified.poll().pop().expect("at once").result, result);
    }
    let held = notified.borrow_read(edge);
    notified.submit(Operation::Deallocate, edge - 2, 5, None);
    assert_eq!(notified.poll().len(), 0, "a piece of it is borrowed");
    drop(held);
    assert_eq!(notified.poll().len(), 1);
    assert!((edge - 2..edge + 3).all(|lba| *notified.borrow_read(lba) == [0; 512]));
}

/// Other queues see an inline write at the latest after the turn.
#[test]
fn inline_write_is_visible_after_flush() {
    let device = device(32 << 20, 512);
    let (mut writer, mut reader) = (Bench::new(&device), Bench::new(&device));
    assert!(writer.queue.write_inline(3, &[7; 512]));
    writer.queue.flush();
    assert_eq!(reader.borrow_read(3)[..], [7; 512]);
    assert!(reader.queue.write_inline(3, &[8; 512]));
    assert!(writer.queue.borrow_read(3, 1).is_none(), "the turn goes on");
    reader.queue.flush();
    assert_eq!(writer.borrow_read(3)[..], [8; 512]);
    drop(reader);
}

#[test]
fn waiting_requests_do_not_use_queue_depth() {
    const WAITING: u64 = 200;
    let device = device(4 << 20, 512);
    let mut bench = Bench::new(&device);
    let borrow = bench.borrow_read(0);
    let mut waiting = Vec::new();
    for byte in 1..=WAITING {
        waiting.push(bench.submit(WRITE, 0, 1, Some(byte as u8)));
    }
    assert_eq!(bench.poll_tags(), []);
    assert_eq!(bench.queue.in_flight(), WAITING as usize);
    // As many requests as the queue is deep, for other memory.
    let others: Vec<u64> = (0..64)
        .map(|index| bench.submit(Operation::Read, 4096 + index, 1, None))
        .collect();
    assert_eq!(bench.poll_tags(), others);
    assert!(bench.queue.borrow_read(4096, 8).is_some());
    assert!(bench.queue.write_inline(4096, &[1; 512]));
    assert!(
        bench.queue.borrow_read(1, 1).is_none(),
        "a write waits for its memory"
    );
    drop(borrow);
    let mut ended = Vec::new();
    while ended.len() < waiting.len() {
        let tags = bench.poll_tags();
        assert!(!tags.is_empty() && tags.len() <= TRIES_PER_POLL_MAX);
        ended.extend(tags);
    }
    assert_eq!(ended, waiting, "in the order in which they came");
    assert_eq!(bench.borrow_read(0)[0], WAITING as u8);
}

/// Of requests for the same memory, the older one ends first, whatever else they wait for.
#[test]
fn overlapping_requests_complete_in_order() {
    const UNITS: u64 = 64;
    for seed in 0..40 {
        let mut seeded = reactors::sim::Seeded::new(seed, 0);
        let device = device(UNITS * 4096, 512);
        let (mut reader, mut bench) = (Bench::new(&device), Bench::new(&device));
        let mut borrows: Vec<Borrow> = (0..6)
            .map(|_| reader.borrow_read(seeded.below(UNITS) * 8))
            .collect();
        let mut open: Vec<(u64, std::ops::Range<u64>)> = Vec::new();
        for step in 0..400 {
            if step < 150 || !open.is_empty() && step % 40 == 39 {
                let first = seeded.below(UNITS);
                let wide = seeded.below(10) == 0;
                let most = if wide { UNITS } else { 1 };
                let units = seeded.below(most.min(UNITS - first)) + 1;
                let operation = match (wide, seeded.below(3)) {
                    (true, _) => Operation::WriteZeroes {
                        fua: false,
                        deallocate: false,
                    },
                    (false, 0) => Operation::Compare,
                    (false, _) => WRITE,
                };
                let data = operation.has_data().then_some(0);
                let tag = bench.submit(operation, first * 8, units as u32 * 8, data);
                open.push((tag, first..first + units));
            }
            if seeded.below(8) == 0 {
                bench.queue.give_up(&mut |tag| tag % 7 == 3);
            }
            if step > 100 && seeded.below(10) == 0 {
                borrows.pop();
            }
            for tag in bench.poll_tags() {
                let index = open.iter().position(|(it, _)| *it == tag).unwrap();
                let (_, range) = open.remove(index);
                let given_up = tag % 7 == 3;
                // The part that is zeroed already does not wait for the rest.
                let whole = |it: &std::ops::Range<u64>| it.end - it.start == 1;
                let older = open[..index].iter();
                let older = older.filter(|(it, range)| it % 7 != 3 && whole(range));
                let overtaken =
                    older.filter(|(_, it)| it.start < range.end && range.start < it.end);
                assert!(
                    given_up || overtaken.count() == 0,
                    "seed {seed}, request {tag}"
                );
            }
        }
        drop(borrows);
        // Readers yield to a write whose first blocks were placed directly and whose rest was never
        // received.
        for _ in 0..10_000 {
            let ended = bench.poll_tags();
            open.retain(|(tag, _)| !ended.contains(tag));
        }
        assert!(open.is_empty(), "seed {seed}: {open:?} wait for ever");
        assert_eq!(
            (bench.queue.in_flight(), bench.queue.has_ready()),
            (0, false)
        );
    }
}

/// Each unit of a refused write makes readers yield 4,095 times. After the write was given up they
/// would continue to do so, unit by unit, for a million polls.
#[test]
fn readers_do_not_yield_to_a_cancelled_write() {
    let device = device(4 << 20, 512);
    for at_once in [false, true] {
        let (mut reader, mut bench) = (Bench::new(&device), Bench::new(&device));
        let blocks = (ZERO_PIECE_BYTES / 512) as u64;
        // The write has locked all units but the last before it is refused.
        let borrow = reader.borrow_read(blocks - 8);
        if at_once {
            for unit in 0..blocks / 8 {
                let borrow = reader.borrow_read(unit * 8);
                let filled = bench
                    .queue
                    .place_directly(unit * 8, 4096, &mut |_| panic!("filled"));
                assert!(!filled);
                drop(borrow);
            }
        } else {
            let zeroes = Operation::WriteZeroes {
                fua: false,
                deallocate: false,
            };
            let tag = bench.submit(zeroes, 0, blocks as u32, None);
            for _ in 0..8 {
                assert_eq!(bench.poll().len(), 0);
            }
            bench.queue.give_up(&mut |it| it == tag);
            assert_eq!(bench.poll().len(), 1);
        }
        reader.submit(Operation::Read, 0, blocks as u32, None);
        assert_eq!(reader.poll().len(), 1, "at once: {at_once}");
        drop(borrow);
    }
}

/// The best time of many for each step with `waiting` deferred requests, each for its own memory or
/// all for the same: a poll, a read of other memory, and the submission of another request.
fn costs(waiting: u64, same: bool) -> [std::time::Duration; 3] {
    const UNITS: u64 = 1200;
    let device = device(2 * UNITS * 4096, 512);
    let (mut reader, mut bench) = (Bench::new(&device), Bench::new(&device));
    let borrows: Vec<Borrow> = (0..UNITS)
        .map(|unit| reader.borrow_read(unit * 8))
        .collect();
    let zeroes = Operation::WriteZeroes {
        fua: false,
        deallocate: false,
    };
    for number in 0..waiting {
        let unit = if same { 0 } else { number };
        bench.submit(zeroes, unit * 8, 1, None);
    }
    let elsewhere = (UNITS + 200) * 8;
    let mut best = [std::time::Duration::MAX; 3];
    for _ in 0..300 {
        let mut timed = |index: usize, step: &mut dyn FnMut(&mut Bench)| {
            let begin = std::time::Instant::now();
            step(&mut bench);
            best[index] = best[index].min(begin.elapsed());
        };
        timed(0, &mut |bench| assert_eq!(bench.poll().len(), 0));
        timed(1, &mut |bench| {
            assert!(bench.queue.borrow_read(elsewhere, 8).is_some());
        });
        timed(2, &mut |bench| {
            bench.submit(Operation::Read, elsewhere, 1, None);
        });
        assert_eq!(bench.poll().len(), 1);
    }
    drop(borrows);
    best
}

/// Comparing every pair of 1,000 deferred requests in each poll took 300 times as long.
#[test]
fn poll_cost_is_independent_of_waiting_requests() {
    for same in [false, true] {
        let (few, many) = (costs(20, same), costs(1000, same));
        for (few, many) in few.iter().zip(many) {
            let floor = std::time::Duration::from_nanos(500);
            assert!(
                many < 4 * (*few).max(floor),
                "{few:?} and {many:?}, same {same}"
            );
        }
    }
}

fn passed(device: &MemoryDevice) -> Vec<(OwnedFd, u64)> {
    let pass = |store: &Arc<Store>| {
        let descriptor = store.region().as_fd().try_clone_to_owned().unwrap();
        (descriptor, store.len() as u64)
    };
    device.stores().iter().map(pass).collect()
}

fn passed_options(size_bytes: u64) -> MemoryOptions {
    MemoryOptions {
        name: "ram".into(),
        uuid: [1; 16],
        size_bytes,
        block_size: 512,
        pages: PagePolicy::Ordinary,
        read_only: false,
    }
}

/// The content of a device that grew, written through one device and read through the next.
#[test]
fn device_continues_with_all_its_extents() {
    let first = device(8192, 512);
    first.grow(first.allocate_growth(12288).unwrap().unwrap());
    let mut queue = Bench::new(&first).queue;
    for (lba, byte) in [(0, 1), (15, 2), (16, 3), (23, 4)] {
        assert!(queue.write_inline(lba, &[byte; 512]));
    }
    queue.flush();
    let next = MemoryDevice::adopt(passed_options(12288), passed(&first)).unwrap();
    drop((queue, first));
    assert_eq!(next.geometry().block_count, 24);
    let mut queue = Bench::new(&next).queue;
    for (lba, byte) in [(0, 1), (15, 2), (16, 3), (23, 4)] {
        let borrow = queue.borrow_read(lba, 1).unwrap();
        assert_eq!(&*borrow, &[byte; 512]);
    }
}

#[test]
fn memory_of_another_size_is_refused() {
    let first = device(8192, 512);
    let refusal = |size, extents| {
        let refused = MemoryDevice::adopt(passed_options(size), extents);
        refused.err().expect("refused").to_string()
    };
    assert_eq!(
        refusal(8192, Vec::new()),
        "a RAM device of 8192 bytes, but memory of 0 bytes was passed"
    );
    assert_eq!(
        refusal(12288, passed(&first)),
        "a RAM device of 12288 bytes, but memory of 8192 bytes was passed"
    );
    // The lengths are right, but not those of the files.
    let mut extents = passed(&first);
    extents[0].1 = 4096;
    assert_eq!(
        refusal(4096, extents),
        "no memory for a RAM device of 4096 bytes"
    );
}
