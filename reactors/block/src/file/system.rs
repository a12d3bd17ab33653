//! A file of the kernel: its descriptors, its lock and the rings on it.
//!
//! Each ring has its own open file description, because Linux reports a failed writeback once to
//! each (`errseq_t`, `fsync(2)`). The lock belongs to the first description, which stays open when
//! the file is reopened.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hugemem::Arena;
use rustix::fs::{
    Advice, AtFlags, FlockOperation, Mode, OFlags, SeekFrom, Stat, StatxFlags, fadvise, fdatasync,
    flock, fstat, statx,
};
use rustix::io::Errno;
use uring::{FileId, Notice, Operation, Ring, RingConfig, RingError, RingFile};

use super::condition::Condition;
use super::store::{DoneBatch, FileRing, FileStore};
use crate::error::ReopenError;
use crate::health::DamageCause;

/// What releases the lock of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockEnd {
    /// This process, when it closes the device.
    Unlocks,
    /// The kernel, when the last process has closed the description. An earlier process, which
    /// serves the file until this one continues, has the same description.
    Closes,
}

/// The first open file description, which has the lock.
struct Lock(OwnedFd, LockEnd);

impl Drop for Lock {
    fn drop(&mut self) {
        if self.1 == LockEnd::Closes {
            return;
        }
        // A ring releases its own reference to a file some time after the ring was closed, and the
        // lock would last until then. No write is in flight here: a ring that abandons a write
        // keeps its description and therefore this lock until the process ends.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// An open file description.
pub(super) struct Description {
    /// `None`: the first description is used.
    file: Option<OwnedFd>,
    lock: Arc<Lock>,
    condition: Arc<Condition>,
}

impl AsFd for Description {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().unwrap_or(&self.lock.0).as_fd()
    }
}

impl RingFile for Description {
    fn write_abandoned(&self) {
        self.condition.note_damage(DamageCause::WriteAbandoned);
    }
}

/// The next description of a ring.
type Slot = Mutex<Option<Arc<Description>>>;

struct Current {
    /// Used by the control plane, and the source of further descriptions.
    description: Arc<Description>,
    rings: Vec<Weak<Slot>>,
}

/// The file of a device.
pub(super) struct SystemFile {
    path: PathBuf,
    flags: OFlags,
    arena: Option<Arc<Arena>>,
    lock: Arc<Lock>,
    condition: Arc<Condition>,
    current: Mutex<Current>,
    /// Features unavailable to the queues' rings. Written when a queue opens, never by a request.
    ring_notices: Mutex<Vec<Notice>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SystemFile {
    /// `file` is open and locked.
    pub(super) fn new(
        file: (OwnedFd, LockEnd),
        path: PathBuf,
        read_only: bool,
        direct: bool,
        arena: Option<Arc<Arena>>,
        condition: Arc<Condition>,
    ) -> Self {
        let access = if read_only {
            OFlags::RDONLY
        } else {
            OFlags::RDWR
        };
        let direct = if direct {
            OFlags::DIRECT
        } else {
            OFlags::empty()
        };
        let (file, lock_end) = file;
        let lock = Arc::new(Lock(file, lock_end));
        let description = Arc::new(Description {
            file: None,
            lock: Arc::clone(&lock),
            condition: Arc::clone(&condition),
        });
        Self {
            path,
            flags: access | direct | OFlags::CLOEXEC | OFlags::NOCTTY,
            arena,
            lock,
            condition,
            current: Mutex::new(Current {
                description,
                rings: Vec::new(),
            }),
            ring_notices: Mutex::default(),
        }
    }

    pub(super) fn lock_owner(&self) -> BorrowedFd<'_> {
        self.lock.0.as_fd()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The description for the control plane.
    pub(super) fn current(&self) -> Arc<Description> {
        Arc::clone(&locked(&self.current).description)
    }

    pub(super) fn ring_notices(&self) -> Vec<Notice> {
        locked(&self.ring_notices).clone()
    }

    /// Opens another description of the same file as `of`, whatever its current name is. If the
    /// file cannot be opened again, both share one description.
    fn open_again(&self, of: &Arc<Description>) -> Arc<Description> {
        let path = format!("/proc/self/fd/{}", of.as_fd().as_raw_fd());
        match rustix::fs::open(path, self.flags, Mode::empty()) {
            Ok(file) => Arc::new(self.describe(file)),
            Err(_) => Arc::clone(of),
        }
    }

    fn describe(&self, file: OwnedFd) -> Description {
        Description {
            file: Some(file),
            lock: Arc::clone(&self.lock),
            condition: Arc::clone(&self.condition),
        }
    }

    fn failed(&self, step: &'static str) -> impl FnOnce(Errno) -> ReopenError {
        let path = self.path.clone();
        move |errno| ReopenError::System {
            path,
            step,
            source: errno.into(),
        }
    }
}

/// Length of a file or block device in bytes.
pub(super) fn length(file: impl AsFd, found: &Stat) -> Result<u64, Errno> {
    if rustix::fs::FileType::from_raw_mode(found.st_mode).is_block_device() {
        return rustix::fs::seek(file, SeekFrom::End(0));
    }
    Ok(u64::try_from(found.st_size).unwrap_or(0))
}

/// Identifies the file: a block device by its number, a regular file by its inode.
fn identity(found: &Stat) -> (u64, u64, u64) {
    if rustix::fs::FileType::from_raw_mode(found.st_mode).is_block_device() {
        return (0, 0, found.st_rdev);
    }
    (found.st_dev, found.st_ino, 0)
}

impl FileStore for SystemFile {
    type Ring = SystemRing;

    fn is_direct(&self) -> bool {
        self.flags.contains(OFlags::DIRECT)
    }

    fn length(&self) -> io::Result<u64> {
        let file = self.current();
        let found = fstat(&*file)?;
        Ok(length(&*file, &found)?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(fdatasync(&*self.current())?)
    }

    fn open_ring(&self, depth: u32) -> Result<SystemRing, RingError> {
        let config = RingConfig::new(depth);
        let mut ring = Ring::new(&config, self.arena.as_ref())?;
        {
            let mut notices = locked(&self.ring_notices);
            for notice in ring.notices() {
                if !notices.contains(notice) {
                    notices.push(*notice);
                }
            }
        }
        let next = Arc::new(Slot::default());
        let mut current = locked(&self.current);
        let description = self.open_again(&current.description);
        ring.add_file(Arc::clone(&description) as _)?;
        current.rings.retain(|slot| slot.strong_count() > 0);
        current.rings.push(Arc::downgrade(&next));
        Ok(SystemRing {
            ring,
            description,
            next,
        })
    }

    fn reopen(&self, bytes: u64) -> Result<(), ReopenError> {
        let first = fstat(&self.lock.0).map_err(self.failed("examine"))?;
        let file =
            rustix::fs::open(&self.path, self.flags, Mode::empty()).map_err(self.failed("open"))?;
        let found = fstat(&file).map_err(self.failed("examine"))?;
        if identity(&found) != identity(&first) {
            let path = self.path.clone();
            return Err(ReopenError::Replaced { path });
        }
        let length = length(&file, &found).map_err(self.failed("find the length of"))?;
        if length < bytes {
            return Err(ReopenError::Shorter {
                path: self.path.clone(),
                found: length,
                wanted: bytes,
            });
        }
        fdatasync(&file).map_err(self.failed("sync"))?;
        // After a failed writeback the page cache may mark pages as clean that the medium does not
        // have: drop them, so that reads return the content of the medium. This is a hint and may
        // fail.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        let description = Arc::new(self.describe(file));
        let mut current = locked(&self.current);
        for slot in current.rings.iter().filter_map(Weak::upgrade) {
            *locked(&slot) = Some(self.open_again(&description));
        }
        current.description = description;
        Ok(())
    }

    fn renew(&self, ring: &mut SystemRing) {
        if let Some(description) = locked(&ring.next).take() {
            ring.description = Arc::clone(&description);
            ring.ring.replace_file(FileId::FIRST, description);
        }
    }
}

/// A ring on the file.
pub(super) struct SystemRing {
    ring: Ring,
    description: Arc<Description>,
    next: Arc<Slot>,
}

impl FileRing for SystemRing {
    #[inline]
    fn submit(&mut self, tag: u64, operation: Operation) -> Result<(), Operation> {
        self.ring.submit(tag, operation)
    }

    #[inline]
    fn flush(&mut self) {
        self.ring.flush();
    }

    #[inline]
    fn poll(&mut self, done: &mut DoneBatch) {
        self.ring.poll(done);
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    #[inline]
    fn has_unflushed(&self) -> bool {
        self.ring.has_unflushed()
    }

    fn length(&self) -> io::Result<u64> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(&*self.description, c"", flags, StatxFlags::BASIC_STATS)?;
        if rustix::fs::FileType::from_raw_mode(found.stx_mode.into()).is_block_device() {
            return Ok(rustix::fs::seek(&*self.description, SeekFrom::End(0))?);
        }
        Ok(found.stx_size)
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.as_fd())
    }
}
