//! Writable mappings of a region: system calls only, without access to the bytes.
#![expect(
    unsafe_code,
    reason = "mapping, advising and unmapping memory are unsafe by nature"
)]

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MlockFlags, MremapFlags, ProtFlags};
use rustix::mm::{madvise, mlock_with, mmap, mmap_anonymous, mremap, munmap};

/// Maximum number of threads that populate a mapping; more only contend for the kernel's free
/// lists.
const POPULATE_THREADS_MAX: usize = 8;
/// Bytes that justify the start of another thread.
const POPULATE_BYTES_PER_THREAD: usize = 32 << 20;
/// Bytes populated in one call, or one page if that is larger.
const POPULATE_PIECE_BYTES: usize = 16 << 20;

/// A shared, writable mapping of a whole file. Unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is process-wide and lives until drop; the type gives out addresses only, and
// each module that turns them into references has its own argument.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; every method through a shared reference is a system call that the kernel
// serialises.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a file (a multiple of its page size) at a multiple of `align`, without
    /// populating pages.
    pub(super) fn new(file: BorrowedFd<'_>, len: usize, align: usize) -> Result<Mapping, Errno> {
        assert!(
            len > 0 && align.is_power_of_two(),
            "{len} bytes aligned to {align}"
        );
        let reserved = len.checked_add(align).ok_or(Errno::NOMEM)?;
        let nothing = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new private mapping at an address chosen by the kernel affects nothing else.
        let window = unsafe { mmap_anonymous(null_mut(), reserved, ProtFlags::empty(), nothing) }?;
        let skip = window.addr().next_multiple_of(align) - window.addr();
        let target = window.wrapping_byte_add(skip);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let shared = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: [target, target + len) lies in the window just reserved, which no other code
        // knows, so replacing it affects no other mapping.
        let mapped = unsafe { mmap(target, len, access, shared, file, 0) };
        let unmap = |start: *mut c_void, bytes: usize| {
            if bytes > 0 {
                // SAFETY: the range lies in the window and outside of the file's mapping.
                let outcome = unsafe { munmap(start, bytes) };
                debug_assert!(outcome.is_ok(), "{outcome:?}");
            }
        };
        match mapped.map(|address| NonNull::new(address.cast::<u8>())) {
            Ok(Some(base)) => {
                unmap(window, skip);
                unmap(target.wrapping_byte_add(len), align - skip);
                Ok(Mapping { base, len })
            }
            Ok(None) => Err(Errno::FAULT),
            Err(errno) => {
                unmap(window, reserved);
                Err(errno)
            }
        }
    }

    /// Maps the same memory at another address (`mremap(2)` with an old size of 0).
    pub(crate) fn duplicate(&self) -> Result<Mapping, Errno> {
        let from = self.base.as_ptr().cast();
        // SAFETY: an old size of 0 keeps the mapping and creates another one of the same shared
        // pages, at an address chosen by the kernel that no other code knows.
        let address = unsafe { mremap(from, 0, self.len, MremapFlags::MAYMOVE) }?;
        let base = NonNull::new(address.cast::<u8>()).ok_or(Errno::FAULT)?;
        let len = self.len;
        Ok(Mapping { base, len })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The byte at `offset`, which may be the end.
    pub(super) fn pointer(&self, offset: usize) -> NonNull<u8> {
        assert!(
            offset <= self.len,
            "offset {offset} in a region of {} bytes",
            self.len
        );
        // SAFETY: the offset stays within the mapping or at its end.
        unsafe { self.base.add(offset) }
    }

    /// Excludes the mapping from forked processes; otherwise copy-on-write would move pages away
    /// from devices.
    pub(super) fn exclude_from_fork(&self) -> Result<(), Errno> {
        self.advise(0, self.len, Advice::LinuxDontFork)
    }

    /// Asks for transparent hugepages.
    pub(super) fn prefer_huge(&self) -> Result<(), Errno> {
        self.advise(0, self.len, Advice::LinuxHugepage)
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) -> Result<(), Errno> {
        assert!(
            len <= self.len && offset <= self.len - len,
            "advice outside of the mapping"
        );
        let start = self.base.as_ptr().wrapping_add(offset);
        // SAFETY: this value owns the mapping, and the three kinds of advice that this module gives
        // (against forks, for hugepages, to populate) do not change its bytes.
        unsafe { madvise(start.cast(), len, advice) }
    }

    /// Locks each page as it is populated, which is cheaper than a walk afterwards.
    pub(super) fn lock_on_fault(&self) -> Result<(), Errno> {
        // SAFETY: this value owns the mapping; locking does not change its bytes.
        unsafe { mlock_with(self.base.as_ptr().cast(), self.len, MlockFlags::ONFAULT) }
    }

    /// Populates every page of `parts`, with several threads if there are many; `step` is the page
    /// size.
    ///
    /// Works in pieces: other mmap calls in this process meanwhile, including the one for the stack
    /// of another of these threads, wait for one piece.
    pub(super) fn populate(&self, parts: &[Range<usize>], step: usize) -> Result<(), Errno> {
        let pieces: Vec<_> = parts.iter().flat_map(|part| cut(part, step)).collect();
        let bytes: usize = pieces.iter().map(Range::len).sum();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = cores.min(bytes / POPULATE_BYTES_PER_THREAD);
        let threads = threads.clamp(1, POPULATE_THREADS_MAX);
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.populate_piece(piece)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let spawn = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
            let helpers: Vec<_> = (1..threads).filter_map(spawn).collect();
            let mut outcome = work();
            for helper in helpers {
                outcome = outcome.and(helper.join().unwrap_or(Err(Errno::FAULT)));
            }
            outcome
        })
    }

    fn populate_piece(&self, piece: &Range<usize>) -> Result<(), Errno> {
        loop {
            match self.advise(piece.start, piece.len(), Advice::LinuxPopulateWrite) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                outcome => return outcome,
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the range since `new`; code with references into it also holds
        // the region that owns this value, so none exist.
        let outcome = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(outcome.is_ok(), "{outcome:?}");
    }
}

/// Divides a part into pieces that begin and, except for the last, end at a page.
fn cut(part: &Range<usize>, page: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let piece = POPULATE_PIECE_BYTES.next_multiple_of(page);
    let (start, end) = (part.start / page * page, part.end);
    let starts = (start..end).step_by(piece);
    starts.map(move |start| start..end.min(start + piece))
}
