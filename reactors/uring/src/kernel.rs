//! The only module that passes memory to the kernel: it builds, submits and reaps entries, and
//! keeps every lease of an entry in a fixed table until the entry's completion was reaped.
//!
//! The safety argument: a lease is moved into the table before its entry is pushed, no code can
//! access it while it is there, and it leaves the table in three ways only: when the kernel's
//! completion with the entry's own generation was reaped; never (leaked and counted), if the ring
//! is dropped and the kernel does not complete the entry in time; or when the process ends. So the
//! kernel never writes to memory that other code uses.
#![expect(
    unsafe_code,
    reason = "the kernel reads and writes memory by the addresses given here"
)]

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hugemem::{Arena, Lease};
use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;

use crate::operation::{Done, FILES_MAX, FileId, Operation, Pending, Step, outcome};
use crate::slots::{SlotKey, SlotTable};

/// The kernel accepts at most 1 GiB per registered buffer (`io_uring_register(2)`, since Linux
/// 5.1).
pub(crate) const FIXED_BUFFER_BYTES_MAX: usize = 1 << 30;

/// Leaked leases of all rings of this process, see [`leaked_leases`].
static LEAKED_LEASES: AtomicU64 = AtomicU64::new(0);

/// Leases that rings had to leak when they were dropped, because the kernel did not complete their
/// operations in time. They stay taken until the process ends.
#[must_use]
pub fn leaked_leases() -> u64 {
    LEAKED_LEASES.load(Ordering::Relaxed)
}

/// A file that a ring keeps open.
pub trait RingFile: AsFd + Send + Sync {
    /// The ring was dropped while the kernel had an operation in progress that may still change the
    /// file. The ring leaks its reference to the file, so the file is never closed.
    fn write_abandoned(&self) {}
}

impl RingFile for OwnedFd {}

/// A pinned region: pieces of one length, numbered from the start.
#[derive(Clone, Copy, Debug)]
struct Pinned {
    base: usize,
    len: usize,
    piece: usize,
}

impl Pinned {
    /// The registered buffer that contains the whole range; `None` if the range lies in another
    /// arena or spans two buffers.
    fn index(&self, address: usize, len: usize) -> Option<u16> {
        let start = address.checked_sub(self.base)?;
        let last = start.checked_add(len)?.checked_sub(1)?;
        if last >= self.len || start / self.piece != last / self.piece {
            return None;
        }
        u16::try_from(start / self.piece).ok()
    }
}

/// An arena whose region the kernel has pinned as this ring's fixed buffers.
struct FixedBuffers {
    pinned: Pinned,
    /// Keeps the region mapped while the ring may use it.
    _arena: Arc<Arena>,
}

/// Events of a ring other than plain success. Plain integers, because a ring belongs to one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounters {
    /// System calls that submitted operations or fetched completions.
    pub submissions: u64,
    /// Short transfers that were submitted again for the rest.
    pub continued: u64,
    /// Operations submitted again because the kernel requested it (`EAGAIN`, `EINTR`).
    pub retried: u64,
    /// Completions without an operation in flight: a fault, ignored.
    pub stale: u64,
    /// Submissions that the kernel refused with a permanent error.
    pub submission_errors: u64,
}

/// The ring and its table of operations in flight.
pub(crate) struct Kernel {
    ring: IoUring,
    slots: SlotTable<Pending>,
    files: Vec<Arc<dyn RingFile>>,
    files_registered: bool,
    buffers: Option<FixedBuffers>,
    counters: RingCounters,
    drop_wait: Duration,
    /// Entries were pushed that the kernel has not taken.
    unsubmitted: bool,
    /// Some of these continue an operation that the kernel cut short.
    resubmitted: bool,
    /// Simulates a drive that does not respond: dropping the ring cannot cancel operations.
    #[cfg(test)]
    pub(crate) ignores_cancel: bool,
}

impl Kernel {
    /// `ring` must have at least `depth` submission entries.
    pub(crate) fn new(ring: IoUring, depth: u32, drop_wait: Duration) -> Self {
        assert!(ring.params().sq_entries() >= depth, "an entry per slot");
        let files_registered = ring.submitter().register_files(&[-1; FILES_MAX]).is_ok();
        Self {
            ring,
            slots: SlotTable::new(depth),
            files: Vec::with_capacity(FILES_MAX),
            files_registered,
            buffers: None,
            counters: RingCounters::default(),
            drop_wait,
            unsubmitted: false,
            resubmitted: false,
            #[cfg(test)]
            ignores_cancel: false,
        }
    }

    /// Registers the arena's region as fixed buffers of at most `piece` bytes, which the kernel
    /// pins.
    pub(crate) fn register_arena(&mut self, arena: Arc<Arena>, piece: usize) -> Result<(), Errno> {
        let (base, len) = (arena.region().base_address(), arena.region().len());
        let buffers: Vec<libc::iovec> = (0..len)
            .step_by(piece)
            .map(|offset| libc::iovec {
                iov_base: std::ptr::without_provenance_mut(base + offset),
                iov_len: piece.min(len - offset),
            })
            .collect();
        // SAFETY: the vectors cover exactly the arena's mapping, which outlives the ring: `arena`
        // is stored beside it and dropped after it. The kernel accesses the memory only on behalf
        // of entries, which refer to leases in the table.
        unsafe { self.ring.submitter().register_buffers(&buffers) }.map_err(|e| errno(&e))?;
        self.buffers = Some(FixedBuffers {
            pinned: Pinned { base, len, piece },
            _arena: arena,
        });
        Ok(())
    }

    pub(crate) fn has_fixed_buffers(&self) -> bool {
        self.buffers.is_some()
    }

    pub(crate) fn add_file(&mut self, file: Arc<dyn RingFile>) -> Option<FileId> {
        if self.files.len() == FILES_MAX {
            return None;
        }
        let index = self.files.len() as u32;
        self.register(index, &*file);
        self.files.push(file);
        Some(FileId(index))
    }

    /// Replaces the file of `id` by `file`.
    pub(crate) fn replace_file(&mut self, id: FileId, file: Arc<dyn RingFile>) {
        assert_eq!(self.slots.len(), 0, "no operation names the file");
        self.register(id.0, &*file);
        self.files[id.0 as usize] = file;
    }

    fn register(&mut self, index: u32, file: &dyn RingFile) {
        if self.files_registered {
            let descriptor = file.as_fd().as_raw_fd();
            let submitter = self.ring.submitter();
            let updated = submitter.register_files_update(index, &[descriptor]);
            // After the first refusal all files are used by their descriptors, which are open
            // anyway.
            self.files_registered = matches!(updated, Ok(1));
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn counters(&self) -> RingCounters {
        self.counters
    }

    /// Adds an operation to the table and pushes its entry; returns the operation if the table is
    /// full.
    pub(crate) fn start(&mut self, tag: u64, operation: Operation) -> Result<(), Operation> {
        if self.slots.is_full() {
            return Err(operation);
        }
        assert!(
            (operation.file().0 as usize) < self.files.len(),
            "not a file of this ring"
        );
        let Ok(key) = self.slots.insert(Pending::new(tag, operation)) else {
            unreachable!("the table was not full");
        };
        self.push(key);
        Ok(())
    }

    /// Pushes the entry for the remaining part of the operation under `key`.
    fn push(&mut self, key: SlotKey) {
        let Some(pending) = self.slots.get_mut(key) else {
            unreachable!("the entry was just stored")
        };
        let file = pending.operation.file().0;
        let entry = if self.files_registered {
            let index = types::Fd(file as RawFd);
            build(pending, index, self.buffers.as_ref()).flags(squeue::Flags::FIXED_FILE)
        } else {
            let descriptor = types::Fd(self.files[file as usize].as_fd().as_raw_fd());
            build(pending, descriptor, self.buffers.as_ref())
        };
        // SAFETY: the entry's memory lies in the lease that the table holds under `key`, and the
        // entry carries `key`, so the lease stays in the table until this entry's completion is
        // reaped; its descriptor is kept open in `files` for the same time. See the module.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(key.0)) };
        assert!(
            pushed.is_ok(),
            "the submission queue has an entry per slot, and a slot one entry"
        );
        self.unsubmitted = true;
    }

    /// Whether entries were pushed that the kernel has not taken.
    pub(crate) fn unsubmitted(&self) -> bool {
        self.unsubmitted
    }

    /// Whether operations were pushed again and wait for submission.
    pub(crate) fn has_resubmitted(&self) -> bool {
        self.resubmitted
    }

    /// Whether the kernel holds completions back until a system call fetches them.
    pub(crate) fn has_deferred(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Submits all pushed entries and fetches deferred completions in one system call, if there are
    /// any of either.
    pub(crate) fn submit_pending(&mut self) {
        if !self.unsubmitted && !self.has_deferred() {
            return;
        }
        loop {
            self.counters.submissions += 1;
            match self.ring.submit().map_err(|e| errno(&e)) {
                // The kernel is short of memory, or requires that completions are reaped first. The
                // entries that it did not take stay in the queue until the next call.
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.counters.submission_errors += 1;
                    break;
                }
            }
        }
        self.unsubmitted = !self.ring.submission().is_empty();
        self.resubmitted &= self.unsubmitted;
    }

    /// The next operation that has ended, if any. Submits the rest of short transfers.
    pub(crate) fn reap(&mut self) -> Option<Done> {
        loop {
            let entry = self.ring.completion().next()?;
            if let Some(done) = self.completed(SlotKey(entry.user_data()), entry.result()) {
                return Some(done);
            }
        }
    }

    fn completed(&mut self, key: SlotKey, result: i32) -> Option<Done> {
        let Some(pending) = self.slots.get_mut(key) else {
            self.counters.stale += 1;
            return None;
        };
        match pending.advance(outcome(result)) {
            Step::Continue => self.counters.continued += 1,
            Step::Retry => self.counters.retried += 1,
            Step::End(result) => return self.slots.remove(key).map(|entry| entry.end(result)),
        }
        self.push(key);
        self.resubmitted = true;
        None
    }

    /// Cancels the operations in flight and waits until the kernel has completed all of them, up to
    /// `drop_wait`. Leaks and counts the rest.
    fn abandon(&mut self) {
        let deadline = Instant::now() + self.drop_wait;
        self.submit_pending();
        while self.slots.len() > 0 {
            self.cancel();
            while let Some(done) = self.reap() {
                drop(done);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.slots.len() == 0 || left.is_zero() {
                break;
            }
            let timeout = Timespec::from(left.min(Duration::from_millis(50)));
            let arguments = SubmitArgs::new().timespec(&timeout);
            let _ = self.ring.submitter().submit_with_args(1, &arguments);
        }
        for pending in self.slots.drain() {
            if pending.holds_memory() {
                LEAKED_LEASES.fetch_add(1, Ordering::Relaxed);
            }
            if pending.operation.changes_file() {
                // The file stays open, and with it resources tied to the open file (a lock).
                let file = &self.files[pending.operation.file().0 as usize];
                file.write_abandoned();
                std::mem::forget(Arc::clone(file));
            }
            std::mem::forget(pending);
        }
    }

    fn cancel(&self) {
        #[cfg(test)]
        if self.ignores_cancel {
            return;
        }
        // This does not stop transfers that have begun: they end by themselves, and `abandon` waits
        // for them.
        let all = CancelBuilder::any();
        let _ = self
            .ring
            .submitter()
            .register_sync_cancel(Some(Timespec::new()), all);
    }

    /// Pushes an entry that belongs to no slot.
    #[cfg(test)]
    pub(crate) fn push_stray(&mut self, user_data: u64) {
        let entry = opcode::Nop::new().build().user_data(user_data);
        // SAFETY: a no-op refers to no memory.
        unsafe { self.ring.submission().push(&entry) }.unwrap();
        self.unsubmitted = true;
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if self.slots.len() > 0 {
            self.abandon();
        }
    }
}

impl AsFd for Kernel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns this descriptor and is borrowed for as long as the result.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Kernel")
            .field("in_flight", &self.slots.len())
            .field("files", &self.files.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Builds the entry for the remaining part of an operation.
fn build(pending: &mut Pending, file: types::Fd, buffers: Option<&FixedBuffers>) -> squeue::Entry {
    let transferred = pending.transferred();
    let rest = |lease: &mut Lease| {
        let rest = &mut lease[transferred as usize..];
        let (address, len) = (rest.as_mut_ptr(), rest.len());
        (
            address,
            len as u32,
            buffers.and_then(|buffers| buffers.pinned.index(address.addr(), len)),
        )
    };
    match &mut pending.operation {
        Operation::Read { offset, lease, .. } => {
            let offset = *offset + u64::from(transferred);
            match rest(lease) {
                (address, len, Some(index)) => opcode::ReadFixed::new(file, address, len, index)
                    .offset(offset)
                    .build(),
                (address, len, None) => {
                    opcode::Read::new(file, address, len).offset(offset).build()
                }
            }
        }
        Operation::Write {
            offset,
            lease,
            sync,
            ..
        } => {
            let offset = *offset + u64::from(transferred);
            let flags = if *sync { libc::RWF_DSYNC } else { 0 };
            match rest(lease) {
                (address, len, Some(index)) => {
                    let write = opcode::WriteFixed::new(file, address, len, index);
                    write.offset(offset).rw_flags(flags).build()
                }
                (address, len, None) => {
                    let write = opcode::Write::new(file, address, len);
                    write.offset(offset).rw_flags(flags).build()
                }
            }
        }
        Operation::Sync { data_only, .. } => {
            let flags = if *data_only {
                types::FsyncFlags::DATASYNC
            } else {
                types::FsyncFlags::empty()
            };
            opcode::Fsync::new(file).flags(flags).build()
        }
        Operation::Allocate {
            mode, offset, len, ..
        } => opcode::Fallocate::new(file, *len)
            .offset(*offset)
            .mode(mode.flags())
            .build(),
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_buffer_index_requires_a_range_within_one_piece() {
        let pinned = Pinned {
            base: 1 << 40,
            len: (5 << 30) / 2,
            piece: 1 << 30,
        };
        let at = |offset: usize, len| pinned.index(pinned.base + offset, len);
        assert_eq!(at(0, 4096), Some(0));
        assert_eq!(at((1 << 30) - 4096, 4096), Some(0));
        assert_eq!(at((1 << 30) - 4096, 4097), None, "across two pieces");
        assert_eq!(at(1 << 30, 1 << 30), Some(1));
        assert_eq!(at(2 << 30, 1 << 29), Some(2));
        assert_eq!(at(2 << 30, (1 << 29) + 1), None, "past the end");
        assert_eq!(at(3 << 30, 1), None);
        assert_eq!(
            pinned.index(pinned.base - 1, 4096),
            None,
            "before the start"
        );
        assert_eq!(pinned.index(usize::MAX, 2), None);
        assert_eq!(at(0, 0), None);
    }
}
