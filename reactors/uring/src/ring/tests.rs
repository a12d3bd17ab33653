//! Tests that need internal access: each way of running completions, stray completions, and a drop
//! with operations that the kernel does not complete.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use hugemem::{ArenaConfig, PagePolicy};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::{PipeFlags, pipe_with};

use super::*;
use crate::leaked_leases;

fn arena() -> Arc<Arena> {
    let config = ArenaConfig {
        bytes: 1 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 16 * 1024,
    };
    Arena::new(config).unwrap()
}

fn taken(arena: &Arena) -> u64 {
    arena
        .counters()
        .classes
        .iter()
        .map(|class| class.taken)
        .sum()
}

fn pipe() -> (Arc<OwnedFd>, OwnedFd) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    (Arc::new(reader), writer)
}

/// Polls until `count` operations have ended, sleeping on the ring's descriptor in between.
fn wait_for(ring: &mut Ring, count: usize) -> Vec<Done> {
    let mut all = Vec::new();
    while all.len() < count {
        let mut batch = ArrayVec::<Done, 8>::new();
        ring.flush();
        if ring.poll(&mut batch) == 0 {
            assert!(is_readable(ring, 10), "no completion within 10 s");
        }
        all.extend(batch);
    }
    all
}

fn is_readable(ring: &Ring, seconds: i64) -> bool {
    let mut polled = [PollFd::new(ring, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut polled, Some(&timeout)).unwrap() == 1
}

#[test]
fn invalid_ring_depths_are_refused() {
    for depth in [0, RING_DEPTH_MAX + 1, u32::MAX] {
        let refused = Ring::new(&RingConfig::new(depth), None).unwrap_err();
        assert_eq!(refused, RingError::Depth { depth });
    }
}

#[test]
fn kernel_errors_have_specific_messages() {
    assert_eq!(set_up_error(Errno::NOSYS, 8), RingError::Unsupported);
    assert_eq!(set_up_error(Errno::PERM, 8), RingError::Forbidden);
    assert_eq!(
        set_up_error(Errno::NOMEM, 8),
        RingError::NoMemory { depth: 8 }
    );
    assert_eq!(
        set_up_error(Errno::MFILE, 8),
        RingError::Refused(Errno::MFILE)
    );
    assert!(RingError::Unsupported.to_string().contains("no io_uring"));
    assert!(
        RingError::Forbidden
            .to_string()
            .contains("io_uring_disabled")
    );
}

#[test]
fn every_completion_mode_makes_the_descriptor_readable() {
    for completion_mode in CompletionMode::ALL {
        let arena = arena();
        let pool = arena.pool(0);
        let config = RingConfig::new(4);
        let mut ring =
            Ring::with_completion_modes(&config, Some(&arena), &[completion_mode]).unwrap();
        assert_eq!(
            ring.notices(),
            completion_mode.notice().as_slice(),
            "{completion_mode:?}"
        );
        assert!(ring.has_fixed_buffers());
        let (reader, writer) = pipe();
        let file = ring.add_file(reader).unwrap();
        let lease = pool.take(4096).unwrap();
        ring.submit(
            7,
            Operation::Read {
                file,
                offset: 0,
                lease,
            },
        )
        .unwrap();
        ring.flush();
        assert!(
            !is_readable(&ring, 0),
            "{completion_mode:?}: nothing was written yet"
        );
        rustix::io::write(&writer, &[3; 4096]).unwrap();
        assert!(
            is_readable(&ring, 10),
            "{completion_mode:?}: the descriptor does not wake"
        );
        let mut batch = ArrayVec::<Done, 8>::new();
        assert_eq!(ring.poll(&mut batch), 1, "{completion_mode:?}");
        assert_eq!((batch[0].tag, batch[0].result), (7, Ok(())));
        assert!(
            batch[0]
                .lease
                .as_ref()
                .unwrap()
                .iter()
                .all(|&byte| byte == 3)
        );
        assert!(
            !is_readable(&ring, 0),
            "{completion_mode:?}: still readable after the poll"
        );
        assert_eq!(ring.in_flight(), 0);
    }
}

/// Waits until a thread of this process sleeps in the kernel.
fn until_asleep(thread: rustix::thread::Pid) {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    loop {
        let stat = std::fs::read_to_string(&path).unwrap();
        let state = stat.rsplit_once(") ").unwrap().1.as_bytes()[0];
        if state == b'S' {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn every_completion_mode_wakes_a_sleeping_thread() {
    for completion_mode in CompletionMode::ALL {
        let arena = arena();
        let pool = arena.pool(0);
        let mut ring =
            Ring::with_completion_modes(&RingConfig::new(4), None, &[completion_mode]).unwrap();
        let (reader, writer) = pipe();
        let file = ring.add_file(reader).unwrap();
        let lease = pool.take(4096).unwrap();
        ring.submit(
            7,
            Operation::Read {
                file,
                offset: 0,
                lease,
            },
        )
        .unwrap();
        ring.flush();
        let sleeper = rustix::thread::gettid();
        let waker = std::thread::spawn(move || {
            until_asleep(sleeper);
            rustix::io::write(&writer, &[3; 4096]).unwrap();
        });
        let start = std::time::Instant::now();
        let woken = is_readable(&ring, 60);
        assert!(
            woken && start.elapsed() < Duration::from_secs(30),
            "{completion_mode:?}"
        );
        assert_eq!(wait_for(&mut ring, 1)[0].tag, 7);
        waker.join().unwrap();
    }
}

#[test]
fn only_plain_completion_mode_adds_a_notice() {
    assert_eq!(CompletionMode::SingleIssuer.notice(), None);
    assert_eq!(CompletionMode::Cooperative.notice(), None);
    assert!(
        CompletionMode::Plain
            .notice()
            .unwrap()
            .to_string()
            .contains("Linux 5.19")
    );
}

#[test]
fn stray_completions_are_counted_and_ignored() {
    let mut ring = Ring::new(&RingConfig::new(4), None).unwrap();
    let (reader, writer) = pipe();
    let file = ring.add_file(reader).unwrap();
    let arena = arena();
    let lease = arena.pool(0).take(4096).unwrap();
    ring.submit(
        1,
        Operation::Read {
            file,
            offset: 0,
            lease,
        },
    )
    .unwrap();
    // An unknown slot, a slot that was never used, and the used slot with another generation.
    for user_data in [u64::MAX, 1 << 32 | 3, 9 << 32] {
        ring.kernel.push_stray(user_data);
        ring.flush();
    }
    rustix::io::write(&writer, &[1; 4096]).unwrap();
    let done = wait_for(&mut ring, 1);
    assert_eq!((done[0].tag, done[0].result), (1, Ok(())));
    assert_eq!(ring.counters().stale, 3);
}

#[test]
fn arena_registered_in_pieces_serves_every_lease() {
    let arena = arena();
    let pool = arena.pool(0);
    let config = RingConfig {
        fixed_buffers: false,
        ..RingConfig::new(4)
    };
    let mut ring = Ring::new(&config, None).unwrap();
    // 20 KiB pieces cut through leases of 16 KiB, which are then used without a fixed buffer.
    ring.kernel
        .register_arena(Arc::clone(&arena), 20 * 1024)
        .unwrap();
    assert!(ring.has_fixed_buffers());
    let file = std::fs::File::open("/dev/zero").unwrap();
    let file = ring.add_file(Arc::new(OwnedFd::from(file))).unwrap();
    let leases: Vec<_> =
        std::iter::from_fn(|| pool.take(4096).or_else(|| pool.take(16 * 1024))).collect();
    assert!(leases.len() > 20);
    for mut lease in leases {
        lease.fill(0xFF);
        ring.submit(
            1,
            Operation::Read {
                file,
                offset: 0,
                lease,
            },
        )
        .unwrap();
        let done = wait_for(&mut ring, 1);
        assert_eq!(done[0].result, Ok(()));
        assert!(
            done[0]
                .lease
                .as_ref()
                .unwrap()
                .iter()
                .all(|&byte| byte == 0)
        );
    }
}

#[test]
fn dropped_ring_cancels_operations_and_returns_leases() {
    let arena = arena();
    let pool = arena.pool(0);
    let (reader, _writer) = pipe();
    let mut ring = Ring::new(&RingConfig::new(4), Some(&arena)).unwrap();
    let file = ring.add_file(reader).unwrap();
    for tag in 0..3 {
        let lease = pool.take(4096).unwrap();
        ring.submit(
            tag,
            Operation::Read {
                file,
                offset: 0,
                lease,
            },
        )
        .unwrap();
        if tag < 2 {
            ring.flush();
        }
    }
    assert_eq!(taken(&arena), 3);
    drop(ring);
    assert_eq!(taken(&arena), 0);
}

/// Held by tests that leak leases, because all rings have one counter of these.
static LEAKING: Mutex<()> = Mutex::new(());

#[test]
fn memory_still_in_use_by_the_kernel_is_leaked_and_counted() {
    let _leaking = LEAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let arena = arena();
    let pool = arena.pool(0);
    let (reader, writer) = pipe();
    let mut config = RingConfig::new(4);
    config.drop_wait = Duration::ZERO;
    let mut ring = Ring::new(&config, Some(&arena)).unwrap();
    ring.kernel.ignores_cancel = true;
    let file = ring.add_file(reader).unwrap();
    let lease = pool.take(4096).unwrap();
    ring.submit(
        1,
        Operation::Read {
            file,
            offset: 0,
            lease,
        },
    )
    .unwrap();
    ring.submit(
        2,
        Operation::Sync {
            file,
            data_only: true,
        },
    )
    .unwrap();
    let leaked_before = leaked_leases();
    drop(ring);
    assert_eq!(leaked_leases(), leaked_before + 1);
    assert_eq!(
        taken(&arena),
        1,
        "the lease must not be given to anybody else"
    );
    drop(writer);
}

struct WatchedFile {
    file: OwnedFd,
    abandoned: AtomicU32,
}

impl AsFd for WatchedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl RingFile for WatchedFile {
    fn write_abandoned(&self) {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn file_with_an_abandoned_write_is_never_closed() {
    let _leaking = LEAKING.lock().unwrap_or_else(PoisonError::into_inner);
    for writes in [false, true] {
        let arena = arena();
        let pool = arena.pool(0);
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (file, other_end) = if writes {
            // A full pipe blocks writes, an empty one blocks reads.
            rustix::io::ioctl_fionbio(&writer, true).unwrap();
            while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
            rustix::io::ioctl_fionbio(&writer, false).unwrap();
            (writer, reader)
        } else {
            (reader, writer)
        };
        let watched = Arc::new(WatchedFile {
            file,
            abandoned: AtomicU32::new(0),
        });
        let mut config = RingConfig::new(4);
        config.drop_wait = Duration::ZERO;
        let mut ring = Ring::new(&config, Some(&arena)).unwrap();
        ring.kernel.ignores_cancel = true;
        let file = ring.add_file(Arc::clone(&watched) as _).unwrap();
        let lease = pool.take(4096).unwrap();
        let (offset, sync) = (0, false);
        let operation = if writes {
            Operation::Write {
                file,
                offset,
                lease,
                sync,
            }
        } else {
            Operation::Read {
                file,
                offset,
                lease,
            }
        };
        ring.submit(1, operation).unwrap();
        drop(ring);
        assert_eq!(watched.abandoned.load(Ordering::Relaxed), u32::from(writes));
        assert_eq!(Arc::strong_count(&watched), 1 + usize::from(writes));
        drop(other_end);
    }
}
