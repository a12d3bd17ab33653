//! A device in a file or on a block device (a partition, a logical volume), accessed through
//! io_uring.
//!
//! Owns: the open file with its lock, so that no two appliances serve it, and the detected
//! capabilities of the file system. It accepts only regular files and block devices, and never
//! guesses a size.
//!
//! After a failed sync and in other cases where accepted data may be lost ([`DamageCause`]), all
//! requests that promise durability or change the file fail on all queues until an operator reopens
//! the device. Linux reports a failed writeback once, and later syncs succeed although the data is
//! lost (`fsync(2)`, `errseq_t`).
//!
//! A write that the kernel does not complete after its host has disconnected has the same effect:
//! its request completes and the device is damaged, so that no later write is acknowledged that it
//! could overwrite. The device can be reopened after the kernel has completed the write.
//!
//! Durability: a completed write is in the drive's or the kernel's cache; a flush is
//! `fdatasync(2)`, a write with FUA is a write with `RWF_DSYNC` (`pwritev2(2)`), write zeroes with
//! FUA is followed by `fdatasync(2)`. A newly created file and its directory entry are on the
//! medium before the device serves requests.

mod condition;
mod direct;
mod notice;
mod open;
mod queue;
mod store;
mod sync_order;
mod system;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use crate::device::{Deallocate, Device, DeviceIdentity, DeviceQueue, Geometry, QueueOptions};
use crate::error::{OpenError, ReopenError};
use crate::health::{DamageCause, Health, HealthCounters, HealthState};
use crate::ledger::check_depth;
use crate::shape::{GrowingGeometry, ShapeError, max_transfer_blocks};
use condition::Condition;
use hugemem::Arena;
use system::{LockEnd, SystemFile};

pub use notice::{BufferedReason, FileNotice, FileSystem};
pub use open::FileCapabilities;
pub use store::{DONE_PER_POLL_MAX, DoneBatch, FileRing, FileStore};

/// Whether a [`FileDevice`] bypasses the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// If the file system supports it; otherwise a notice is added.
    #[default]
    Auto,
    /// Always: it is an error if the file system does not support it.
    Require,
    /// Never.
    Never,
}

/// Parameters of a [`FileDevice`].
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Name from the configuration.
    pub name: String,
    /// The device's UUID.
    pub uuid: [u8; 16],
    /// The file.
    pub path: PathBuf,
    /// Capacity in bytes. A missing or empty file is extended to this size without allocating
    /// space; any other file must have exactly this size. `None`: the current size of the file.
    pub size_bytes: Option<u64>,
    /// Bytes per block: 512 or 4096.
    pub block_size: u32,
    /// Refuse all operations that change the file, and allow other read-only devices on it.
    pub read_only: bool,
    /// Other processes that say so too may serve the file at the same time. It is neither created
    /// nor resized, because they might do the same.
    pub shared: bool,
    /// Whether to bypass the page cache.
    pub direct: DirectIo,
    /// The arena of the queues' leases, which is registered with each queue's ring.
    pub arena: Option<Arc<Arena>>,
    /// A directory that must contain the file; the path must begin with the path of the directory.
    /// The kernel resolves the path (`openat2(2)` with `RESOLVE_BENEATH`), so neither symbolic
    /// links nor concurrent changes lead out of the directory. A symbolic link as the last
    /// component is refused.
    pub below: Option<PathBuf>,
}

impl FileOptions {
    /// A writable file with blocks of 4096 bytes and its current size.
    #[must_use]
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            uuid: [0; 16],
            path: path.into(),
            size_bytes: None,
            block_size: 4096,
            read_only: false,
            shared: false,
            direct: DirectIo::Auto,
            arena: None,
            below: None,
        }
    }
}

/// Why a file cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The size or block size is invalid.
    #[error("{}: {source}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The problem with the size.
        source: ShapeError,
    },
    /// The file does not exist, and cannot be created without a size (or read-only).
    #[error("{}: the file does not exist: set its size to create it", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file of a shared device does not exist.
    #[error("{}: the file does not exist, and a shared file is not created: create it with its \
             size, or mount what it lies on", path.display())]
    MissingShared {
        /// The file.
        path: PathBuf,
    },
    /// Neither a regular file nor a block device.
    #[error("{}: neither a regular file nor a block device", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The path leads out of the directory that the file must lie below.
    #[error("{}: not below {}, or reached by a symbolic link", path.display(), directory.display())]
    Elsewhere {
        /// The path.
        path: PathBuf,
        /// The directory.
        directory: PathBuf,
    },
    /// The file has a different size than the configuration says.
    #[error("{}: the file has {found} bytes, the configuration says {wanted}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        found: u64,
        /// The configured length in bytes.
        wanted: u64,
    },
    /// The blocks are smaller than the sectors of the block device.
    #[error(
        "{}: its sectors have {sector} bytes, the configured blocks {block_size}: \
         set block_size = {sector}",
        path.display()
    )]
    SectorSize {
        /// The block device.
        path: PathBuf,
        /// Bytes per sector.
        sector: u32,
        /// Bytes per block.
        block_size: u32,
    },
    /// Another process serves the file, or the block device is mounted.
    #[error("{}: in use by another process, or by another device of this one", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Direct I/O was required and is not available.
    #[error("{}: no direct I/O on {file_system}: {reason}", path.display())]
    NoDirect {
        /// The file.
        path: PathBuf,
        /// The file system.
        file_system: FileSystem,
        /// The reason.
        reason: BufferedReason,
    },
    /// A system call failed.
    #[error("{}: cannot {step}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The failed step, as a verb.
        step: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// State shared by all queues of a file.
struct Shared<S> {
    store: S,
    geometry: GrowingGeometry,
    counters: Arc<HealthCounters>,
    condition: Arc<Condition>,
}

/// A device on an open file of any kind of system. [`FileDevice`] uses the kernel's files; the
/// simulator uses a simulated file system.
pub struct StoreDevice<S: FileStore> {
    name: String,
    identity: DeviceIdentity,
    shared: Arc<Shared<S>>,
}

impl<S: FileStore> StoreDevice<S> {
    /// Creates a device of the given geometry on `store`.
    #[must_use]
    pub fn new(name: String, uuid: [u8; 16], geometry: Geometry, store: S) -> Self {
        Self::with_condition(name, uuid, geometry, store, Arc::default())
    }

    fn with_condition(
        name: String,
        uuid: [u8; 16],
        geometry: Geometry,
        store: S,
        condition: Arc<Condition>,
    ) -> Self {
        Self {
            name,
            identity: DeviceIdentity {
                uuid,
                model: "Windlass file".into(),
            },
            shared: Arc::new(Shared {
                store,
                geometry: GrowingGeometry::new(geometry),
                counters: Arc::default(),
                condition,
            }),
        }
    }

    /// The file below the device.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Detects a file that has become shorter than the device.
    fn check_length(&self) {
        let wanted = self.shared.geometry.now().bytes();
        if self.store().length().is_ok_and(|length| length < wanted) {
            self.shared.condition.note_damage(DamageCause::Truncated);
        }
    }

    /// Extends the device to the first `size_bytes` of a file that has become longer. Queues are
    /// notified by [`DeviceQueue::device_grew`].
    ///
    /// # Errors
    /// [`ShapeError`]: the size is invalid or less than the current one.
    pub fn grow(&self, size_bytes: u64) -> Result<(), ShapeError> {
        let geometry = &self.shared.geometry;
        geometry.grow(geometry.larger(size_bytes)?);
        Ok(())
    }
}

impl<S: FileStore> Device for StoreDevice<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.shared.geometry.now()
    }

    fn identity(&self) -> &DeviceIdentity {
        &self.identity
    }

    /// Also detects a file that has become shorter than the device.
    fn health(&self) -> Health {
        let Shared {
            geometry,
            counters,
            condition,
            ..
        } = &*self.shared;
        let geometry = geometry.now();
        let is_removed = condition.now().is_removed();
        if !is_removed {
            self.check_length();
        }
        let damage = condition.damage().filter(|_| !is_removed);
        let state = match damage {
            _ if is_removed => HealthState::Removed,
            Some(_) => HealthState::Damaged,
            None if geometry.read_only => HealthState::ReadOnly,
            None => HealthState::Ready,
        };
        Health {
            damage,
            ..counters.sum(state)
        }
    }

    fn reopen(&self) -> Result<(), ReopenError> {
        let Shared {
            store,
            geometry,
            condition,
            ..
        } = &*self.shared;
        let now = condition.now();
        if now.is_abandoned() {
            return Err(ReopenError::WriteAbandoned);
        }
        match condition.stuck_writes() {
            0 => {}
            writes => return Err(ReopenError::WriteStuck { writes }),
        }
        if now.cause().is_none() && !now.is_removed() {
            return Err(ReopenError::NotDamaged);
        }
        store.reopen(geometry.now().bytes())?;
        condition.note_reopened();
        Ok(())
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        check_depth(options.depth)?;
        if self.shared.condition.now().is_removed() {
            return Err(OpenError::Removed);
        }
        let queue = queue::FileQueue::open(Arc::clone(&self.shared), options)?;
        Ok(Box::new(queue))
    }
}

/// A device in a regular file or on a block device.
pub struct FileDevice {
    device: StoreDevice<SystemFile>,
    is_shared: bool,
    notices: Vec<FileNotice>,
}

impl FileDevice {
    /// Opens (and, if a size is given, creates) the file, locks it and detects the capabilities of
    /// its file system. Blocking: for the control plane.
    ///
    /// # Errors
    /// [`FileError`]: the file is closed again, and removed if it was created.
    pub fn open(options: FileOptions) -> Result<Self, FileError> {
        let opened = open::open(&options)?;
        Ok(Self::over(opened, options, LockEnd::Unlocks))
    }

    /// Continues with the open and locked file of an earlier process ([`lock_owner`](Self::lock_owner)),
    /// which it has passed. Both have the lock until the file is closed in both, so neither end
    /// releases it. The file is neither read nor changed.
    ///
    /// # Errors
    /// [`FileError`]: the file has another size or kind.
    pub fn adopt(
        options: FileOptions,
        file: OwnedFd,
        capabilities: FileCapabilities,
    ) -> Result<Self, FileError> {
        let opened = open::adopt(&options, file, capabilities)?;
        Ok(Self::over(opened, options, LockEnd::Closes))
    }

    fn over(opened: open::Opened, options: FileOptions, lock_end: LockEnd) -> Self {
        let geometry = Geometry {
            block_size: options.block_size,
            block_count: opened.block_count,
            volatile_write_cache: true,
            optimal_io_blocks: (opened.preferred_bytes / options.block_size).max(1),
            deallocate: if opened.deallocates {
                Deallocate::ReadsZero
            } else {
                Deallocate::Unsupported
            },
            max_transfer_blocks: max_transfer_blocks(options.block_size),
            read_only: options.read_only,
            atomic: crate::AtomicWrites::BLOCK,
        };
        let condition = Arc::<Condition>::default();
        let FileOptions {
            name,
            uuid,
            path,
            read_only,
            shared,
            arena,
            ..
        } = options;
        let store = SystemFile::new(
            (opened.file, lock_end),
            path,
            read_only,
            opened.direct,
            arena,
            Arc::clone(&condition),
        );
        let device = StoreDevice::with_condition(name, uuid, geometry, store, condition);
        let notices = opened.notices;
        Self {
            device,
            is_shared: shared,
            notices,
        }
    }

    /// The detected capabilities, for a process that continues with the file.
    #[must_use]
    pub fn capabilities(&self) -> FileCapabilities {
        FileCapabilities {
            direct: self.is_direct(),
            deallocates: self.geometry().deallocate != Deallocate::Unsupported,
        }
    }

    /// The descriptor that has the lock, for a process that continues with the file.
    #[must_use]
    pub fn lock_owner(&self) -> BorrowedFd<'_> {
        self.device.shared.store.lock_owner()
    }

    /// Whether other processes may serve the file too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Extends the file to `size_bytes`, or adopts the size that it has now. A shared file must have
    /// the size already. Queues are notified by
    /// [`DeviceQueue::device_grew`]. Blocking: for the control plane.
    ///
    /// # Errors
    /// [`FileError`]: the size is invalid or less than the current one, or the file cannot grow.
    /// The device is unchanged.
    pub fn grow(&self, size_bytes: Option<u64>) -> Result<(), FileError> {
        let Shared {
            store, geometry, ..
        } = &*self.device.shared;
        let shape = |source| FileError::Shape {
            path: store.path().into(),
            source,
        };
        if let Some(wanted) = size_bytes {
            geometry.larger(wanted).map_err(shape)?;
        }
        let may_resize = !geometry.now().read_only && !self.is_shared;
        let file = store.current();
        let size_bytes = open::grow(&*file, store.path(), size_bytes, may_resize)?;
        self.device.grow(size_bytes).map_err(shape)
    }

    /// Missing capabilities of the file system and their consequences.
    #[must_use]
    pub fn notices(&self) -> &[FileNotice] {
        &self.notices
    }

    /// Makes all completed writes of all queues durable. Blocking: for the end of an orderly
    /// shutdown.
    ///
    /// # Errors
    /// The error of fdatasync(2); always an error if the device is damaged.
    pub fn sync(&self) -> std::io::Result<()> {
        let Shared {
            store, condition, ..
        } = &*self.device.shared;
        store.sync()?;
        self.device.check_length();
        match condition.damage() {
            Some(damage) => Err(std::io::Error::other(damage.cause.to_string())),
            None => Ok(()),
        }
    }

    /// Features that were unavailable to the rings of the queues opened so far, without duplicates.
    #[must_use]
    pub fn ring_notices(&self) -> Vec<uring::Notice> {
        self.device.store().ring_notices()
    }

    /// Whether transfers bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.device.store().is_direct()
    }
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn identity(&self) -> &DeviceIdentity {
        self.device.identity()
    }

    fn health(&self) -> Health {
        self.device.health()
    }

    fn reopen(&self) -> Result<(), ReopenError> {
        self.device.reopen()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        self.device.open_queue(options)
    }
}

#[cfg(test)]
mod tests;
