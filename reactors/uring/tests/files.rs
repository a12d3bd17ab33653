//! File operations on a real file system: data is returned, reads past the end of a file fail,
//! ranges lose and keep their space, errors are reported as they are, and every lease is returned.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::Arc;

use arrayvec::ArrayVec;
use hugemem::{Arena, ArenaConfig, Lease, PagePolicy, Pool};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tempfile::TempDir;
use uring::{
    AllocateMode, Done, FILES_MAX, Failure, FileId, Operation, Ring, RingConfig, RingError,
};

const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
const LEN: usize = 16 * 1024;

struct Bench {
    arena: Arc<Arena>,
    pool: Pool,
    ring: Ring,
    directory: TempDir,
}

impl Bench {
    fn new(depth: u32, fixed_buffers: bool) -> Self {
        let config = ArenaConfig {
            bytes: 4 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 64 * 1024,
        };
        let arena = Arena::new(config).unwrap();
        let config = RingConfig {
            fixed_buffers,
            ..RingConfig::new(depth)
        };
        let ring = Ring::new(&config, Some(&arena)).unwrap();
        assert_eq!(ring.has_fixed_buffers(), fixed_buffers);
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self {
            pool: arena.pool(0),
            arena,
            ring,
            directory,
        }
    }

    /// Opens a file of `len` bytes of `0xAA` for the ring and for the test.
    fn file(&mut self, len: usize, flags: i32) -> (FileId, File) {
        let path = self.directory.path().join("file");
        std::fs::write(&path, vec![0xAA; len]).unwrap();
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let plain = options.open(&path).unwrap();
        let owned: OwnedFd = options.custom_flags(flags).open(&path).unwrap().into();
        (self.ring.add_file(Arc::new(owned)).unwrap(), plain)
    }

    fn lease(&self, len: usize, byte: u8) -> Lease {
        let mut lease = self.pool.take(len).unwrap();
        lease.fill(byte);
        lease
    }

    /// Runs one operation to completion.
    fn run(&mut self, operation: Operation) -> Done {
        self.ring.submit(5, operation).unwrap();
        let done = self.wait();
        assert_eq!(done.tag, 5);
        assert_eq!(self.ring.in_flight(), 0);
        done
    }

    fn wait(&mut self) -> Done {
        loop {
            let mut batch = ArrayVec::<Done, 1>::new();
            self.ring.flush();
            if self.ring.poll(&mut batch) == 1 {
                return batch.remove(0);
            }
            let mut polled = [PollFd::new(&self.ring, PollFlags::IN)];
            let timeout = Timespec {
                tv_sec: 30,
                tv_nsec: 0,
            };
            assert_eq!(
                rustix::event::poll(&mut polled, Some(&timeout)).unwrap(),
                1,
                "hangs"
            );
        }
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

fn read(file: FileId, offset: u64, lease: Lease) -> Operation {
    Operation::Read {
        file,
        offset,
        lease,
    }
}

#[test]
fn written_data_is_read_back_with_and_without_fixed_buffers() {
    for fixed_buffers in [true, false] {
        for flags in [0, O_DIRECT] {
            let mut bench = Bench::new(4, fixed_buffers);
            let (file, plain) = bench.file(4 * LEN, flags);
            for (byte, sync) in [(1, false), (2, true)] {
                let lease = bench.lease(LEN, byte);
                let offset = LEN as u64;
                let done = bench.run(Operation::Write {
                    file,
                    offset,
                    lease,
                    sync,
                });
                assert_eq!(done.result, Ok(()));
                drop(done);
                let lease = bench.lease(LEN, 0);
                let done = bench.run(read(file, offset, lease));
                assert_eq!(done.result, Ok(()));
                assert!(done.lease.unwrap().iter().all(|&found| found == byte));
            }
            let done = bench.run(Operation::Sync {
                file,
                data_only: true,
            });
            assert_eq!((done.result, done.lease.is_none()), (Ok(()), true));
            assert_eq!(
                bench
                    .run(Operation::Sync {
                        file,
                        data_only: false
                    })
                    .result,
                Ok(())
            );
            let mut around = [0; 2];
            plain.read_exact_at(&mut around, LEN as u64 - 1).unwrap();
            assert_eq!(around, [0xAA, 2]);
            plain
                .read_exact_at(&mut around, 2 * LEN as u64 - 1)
                .unwrap();
            assert_eq!(around, [2, 0xAA]);
            assert_eq!(bench.taken(), 0);
        }
    }
}

#[test]
fn read_beyond_the_end_of_the_file_fails() {
    for flags in [0, O_DIRECT] {
        let mut bench = Bench::new(4, true);
        // The file ends within a sector; a direct read cannot continue from there.
        for (len, offset) in [
            (LEN + 700, 0),
            (LEN + 700, LEN),
            (LEN, LEN),
            (0, 0),
            (512, 1 << 30),
        ] {
            let (file, _) = bench.file(len, flags);
            let lease = bench.lease(4 * LEN, 0xFF);
            let done = bench.run(read(file, offset as u64, lease));
            let end = Err(Failure::EndOfFile);
            assert_eq!(done.result, end, "{len} {offset} {flags:x}");
            assert_eq!(done.lease.map(|lease| lease.len()), Some(4 * LEN));
        }
    }
}

#[test]
fn punch_hole_frees_space_and_zero_range_keeps_it() {
    let mut bench = Bench::new(4, true);
    let (file, plain) = bench.file(64 * LEN, 0);
    plain.sync_all().unwrap();
    let full = plain.metadata().unwrap().blocks();
    let range = (LEN as u64, 32 * LEN as u64);
    for mode in [AllocateMode::ZeroRange, AllocateMode::PunchHole] {
        plain.write_all_at(&vec![0xAA; 64 * LEN], 0).unwrap();
        plain.sync_all().unwrap();
        let done = bench.run(Operation::Allocate {
            file,
            mode,
            offset: range.0,
            len: range.1,
        });
        match done.result {
            Ok(()) => {}
            // Such a file system does not support the mode.
            Err(Failure::Errno(Errno::OPNOTSUPP)) => continue,
            Err(failure) => panic!("{mode:?}: {failure:?}"),
        }
        let mut data = vec![0; 64 * LEN];
        plain.read_exact_at(&mut data, 0).unwrap();
        let end = LEN + 32 * LEN;
        assert!(
            data[..LEN]
                .iter()
                .chain(&data[end..])
                .all(|&byte| byte == 0xAA)
        );
        assert!(data[LEN..end].iter().all(|&byte| byte == 0));
        assert_eq!(plain.metadata().unwrap().len(), 64 * LEN as u64);
        let room = plain.metadata().unwrap().blocks();
        match mode {
            AllocateMode::ZeroRange => assert!(room >= full, "{room} of {full} sectors"),
            AllocateMode::PunchHole => assert!(room < full, "{room} of {full} sectors"),
        }
    }
}

#[test]
fn errors_return_the_lease() {
    let mut bench = Bench::new(4, true);
    let path = bench.directory.path().join("read-only");
    std::fs::write(&path, [0; 4096]).unwrap();
    let file = bench
        .ring
        .add_file(Arc::new(OwnedFd::from(File::open(&path).unwrap())))
        .unwrap();
    let lease = bench.lease(4096, 1);
    let done = bench.run(Operation::Write {
        file,
        offset: 0,
        lease,
        sync: false,
    });
    assert_eq!(done.result, Err(Failure::Errno(Errno::BADF)));
    assert_eq!(done.lease.unwrap().len(), 4096);
    let (file, _) = bench.file(LEN, O_DIRECT);
    let lease = bench.lease(4096, 1);
    let invalid = Err(Failure::Errno(Errno::INVAL));
    assert_eq!(bench.run(read(file, 1, lease)).result, invalid);
    assert_eq!(bench.taken(), 0);
}

#[test]
fn a_full_ring_returns_the_operation() {
    let mut bench = Bench::new(2, true);
    let (file, _) = bench.file(LEN, 0);
    for tag in 0..2 {
        let lease = bench.lease(4096, 0);
        bench.ring.submit(tag, read(file, 0, lease)).unwrap();
    }
    let lease = bench.lease(4096, 9);
    let back = bench.ring.submit(2, read(file, 0, lease)).unwrap_err();
    assert_eq!(back.into_lease().unwrap()[..], [9; 4096]);
    assert_eq!(bench.ring.in_flight(), 2);
    let mut tags = [bench.wait().tag, bench.wait().tag];
    tags.sort_unstable();
    assert_eq!(tags, [0, 1]);
}

#[test]
fn one_system_call_submits_a_batch() {
    let mut bench = Bench::new(32, true);
    let (file, _) = bench.file(32 * 4096, 0);
    for tag in 0..32 {
        let lease = bench.lease(4096, 0);
        bench
            .ring
            .submit(tag, read(file, tag * 4096, lease))
            .unwrap();
    }
    assert_eq!(bench.ring.counters().submissions, 0);
    assert!(bench.ring.has_unflushed());
    bench.ring.flush();
    assert_eq!(bench.ring.counters().submissions, 1);
    assert!(!bench.ring.has_unflushed());
    let mut seen = [false; 32];
    for _ in 0..32 {
        let done = bench.wait();
        assert_eq!(done.result, Ok(()));
        assert!(
            !std::mem::replace(&mut seen[done.tag as usize], true),
            "{} twice",
            done.tag
        );
    }
    assert_eq!(bench.taken(), 0);
}

#[test]
fn short_transfer_is_continued_by_the_ring() {
    let mut bench = Bench::new(4, true);
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let file = bench.ring.add_file(Arc::new(reader)).unwrap();
    rustix::io::write(&writer, &[1; 1024]).unwrap();
    let lease = bench.lease(LEN, 0);
    bench.ring.submit(1, read(file, 0, lease)).unwrap();
    bench.ring.flush();
    let mut batch = ArrayVec::<Done, 1>::new();
    assert_eq!(bench.ring.poll(&mut batch), 0);
    rustix::io::write(&writer, &[2; LEN - 1024]).unwrap();
    let data = bench.wait().lease.unwrap();
    assert!(data[..1024].iter().all(|&byte| byte == 1));
    assert!(data[1024..].iter().all(|&byte| byte == 2));
    assert!(bench.ring.counters().continued >= 1);
}

#[test]
fn lease_of_another_arena_works_without_a_fixed_buffer() {
    let mut bench = Bench::new(4, true);
    let (file, _) = bench.file(LEN, 0);
    let other = Bench::new(1, false);
    let lease = other.lease(4096, 0);
    let done = bench.run(read(file, 0, lease));
    assert_eq!(done.result, Ok(()));
    assert!(done.lease.unwrap().iter().all(|&byte| byte == 0xAA));
}

#[test]
fn file_table_is_limited() {
    let mut bench = Bench::new(1, true);
    for _ in 0..FILES_MAX {
        bench.file(512, 0);
    }
    let file = File::open("/dev/null").unwrap();
    assert_eq!(
        bench.ring.add_file(Arc::new(OwnedFd::from(file))),
        Err(RingError::TooManyFiles)
    );
}

#[test]
#[should_panic(expected = "not a file of this ring")]
fn a_file_of_another_ring_panics() {
    let mut bench = Bench::new(1, true);
    let (file, _) = Bench::new(1, true).file(512, 0);
    let _ = bench.ring.submit(
        0,
        Operation::Sync {
            file,
            data_only: true,
        },
    );
}

#[test]
fn replaced_file_is_closed_and_later_operations_use_the_new_one() {
    let mut bench = Bench::new(2, true);
    let (file, _) = bench.file(4096, 0);
    let lease = bench.lease(4096, 0);
    assert_eq!(bench.run(read(file, 0, lease)).lease.unwrap()[0], 0xAA);
    let path = bench.directory.path().join("other");
    std::fs::write(&path, [0xBB; 4096]).unwrap();
    let other = Arc::new(OwnedFd::from(File::open(&path).unwrap()));
    for _ in 0..2 * FILES_MAX {
        bench.ring.replace_file(file, Arc::clone(&other) as _);
    }
    assert_eq!(Arc::strong_count(&other), 2);
    let lease = bench.lease(4096, 0);
    assert_eq!(bench.run(read(file, 0, lease)).lease.unwrap()[0], 0xBB);
}
