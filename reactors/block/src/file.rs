//! A device in a file or on a block device (a partition, a logical volume), through io_uring.
//!
//! Owns: the open file with its lock, so that no two appliances serve it, and what was found out
//! about the file system. Refuses: anything but regular files and block devices, and to guess a
//! size.
//!
//! After a failed sync and in other cases where accepted data may be lost ([`DamageCause`]), all
//! requests that promise durability or change the file fail on all queues until an operator
//! reopens the device: Linux reports a failed writeback once, and later syncs succeed although the
//! data is gone (`fsync(2)`, `errseq_t`).
//!
//! A write that the kernel does not finish after its host has gone ends the same way: its request
//! completes and the device is damaged, so that nothing is acknowledged that the write could
//! overwrite. The device can be reopened once the kernel has finished it.
//!
//! Durability: a completed write is in the drive's or the kernel's cache; a flush is
//! `fdatasync(2)`, a write with FUA is a write with `RWF_DSYNC` (`pwritev2(2)`), write zeroes with
//! FUA is followed by `fdatasync(2)`. A file that was created is on the medium, with its name,
//! before it is served.

mod condition;
mod direct;
mod notice;
mod open;
mod queue;
mod store;
mod sync_order;
mod system;

use std::path::PathBuf;
use std::sync::Arc;

use crate::device::{Deallocate, Device, DeviceIdentity, DeviceQueue, Geometry, QueueOptions};
use crate::error::{OpenError, ReopenError};
use crate::health::{DamageCause, Health, HealthCounters, HealthState};
use crate::ledger::check_depth;
use crate::shape::{GrowingGeometry, ShapeError, max_transfer_blocks};
use condition::Condition;
use hugemem::Arena;
use system::SystemFile;

pub use notice::{BufferedReason, FileNotice, FileSystem};
pub use store::{DONE_PER_POLL_MAX, DoneBatch, FileRing, FileStore};

/// Whether a [`FileDevice`] goes past the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// Where the file system can, and with a notice where it cannot.
    #[default]
    Auto,
    /// Or not at all: a file system that cannot is an error.
    Require,
    /// Never.
    Never,
}

/// What a [`FileDevice`] is to be.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Name from the configuration.
    pub name: String,
    /// The device's UUID.
    pub uuid: [u8; 16],
    /// The file.
    pub path: PathBuf,
    /// Capacity in bytes. A file that is missing or empty is made this long, without taking room;
    /// one that has data must be exactly this long. Without it the file's own length counts.
    pub size_bytes: Option<u64>,
    /// Bytes per block: 512 or 4096.
    pub block_size: u32,
    /// Refuse everything that would change the file, and share it with other readers.
    pub read_only: bool,
    /// Whether to go past the page cache.
    pub direct: DirectIo,
    /// The arena that the queues' leases come from, to be registered with each queue's ring.
    pub arena: Option<Arc<Arena>>,
    /// A directory that the file must lie below, by a path that begins with the directory's. The
    /// kernel resolves the path (`openat2(2)` with `RESOLVE_BENEATH`), so neither symbolic links nor
    /// changes of the path meanwhile lead elsewhere; a symbolic link as its last part is refused.
    pub below: Option<PathBuf>,
}

impl FileOptions {
    /// A file served for writing, with blocks of 4096 bytes and its own length.
    #[must_use]
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            uuid: [0; 16],
            path: path.into(),
            size_bytes: None,
            block_size: 4096,
            read_only: false,
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
    /// The size or block size is impossible.
    #[error("{}: {source}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// What is wrong with the size.
        source: ShapeError,
    },
    /// There is no file, and none can be made without a size (or for reading only).
    #[error("{}: no such file, and nothing to create it with: give a size", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Something else than a regular file or a block device.
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
    /// The file has another length than the configuration says.
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
    /// Somebody else serves the file, or the block device is mounted.
    #[error("{}: in use by another process, or by another device of this one", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Direct I/O was required and cannot be had.
    #[error("{}: no direct I/O on {file_system}: {reason}", path.display())]
    NoDirect {
        /// The file.
        path: PathBuf,
        /// What it lies on.
        file_system: FileSystem,
        /// Why not.
        reason: BufferedReason,
    },
    /// The kernel refused a step.
    #[error("{}: cannot {step}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What was tried, as a verb.
        step: &'static str,
        /// What the kernel answered.
        source: std::io::Error,
    },
}

/// What all queues of a file share.
struct Shared<S> {
    store: S,
    geometry: GrowingGeometry,
    counters: Arc<HealthCounters>,
    condition: Arc<Condition>,
}

/// A device on an open file, whatever system the file belongs to. [`FileDevice`] is one on the
/// kernel's; the simulator has one on a simulated file system.
pub struct StoreDevice<S: FileStore> {
    name: String,
    identity: DeviceIdentity,
    shared: Arc<Shared<S>>,
}

impl<S: FileStore> StoreDevice<S> {
    /// A device of the given shape on `store`.
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

    /// What the device lies on.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Notices a file that has become shorter than the device.
    fn check_length(&self) {
        let wanted = self.shared.geometry.now().bytes();
        if self.store().length().is_ok_and(|length| length < wanted) {
            self.shared.condition.note_damage(DamageCause::Truncated);
        }
    }

    /// Lets requests reach the first `size_bytes` of a file that has become longer. Queues hear of
    /// it by [`DeviceQueue::device_grew`].
    ///
    /// # Errors
    /// [`ShapeError`]: the size is impossible or less than there is.
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

    /// Also notices a file that has become shorter than the device.
    fn health(&self) -> Health {
        let Shared {
            geometry,
            counters,
            condition,
            ..
        } = &*self.shared;
        let geometry = geometry.now();
        let is_gone = condition.now().is_gone();
        if !is_gone {
            self.check_length();
        }
        let damage = condition.damage().filter(|_| !is_gone);
        let state = match damage {
            _ if is_gone => HealthState::Removed,
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
        if now.cause().is_none() && !now.is_gone() {
            return Err(ReopenError::NotDamaged);
        }
        store.reopen(geometry.now().bytes())?;
        condition.note_reopened();
        Ok(())
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        check_depth(options.depth)?;
        if self.shared.condition.now().is_gone() {
            return Err(OpenError::Removed);
        }
        let queue = queue::FileQueue::open(Arc::clone(&self.shared), options)?;
        Ok(Box::new(queue))
    }
}

/// A device in a regular file or on a block device.
pub struct FileDevice {
    device: StoreDevice<SystemFile>,
    notices: Vec<FileNotice>,
}

impl FileDevice {
    /// Opens (and, where a size is given, creates) the file, locks it and asks its file system what
    /// it can do. Blocking: for the control plane.
    ///
    /// # Errors
    /// [`FileError`]: nothing stays open, and a file that was created is removed again.
    pub fn open(options: FileOptions) -> Result<Self, FileError> {
        let opened = open::open(&options)?;
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
        };
        let condition = Arc::<Condition>::default();
        let FileOptions {
            name,
            uuid,
            path,
            read_only,
            arena,
            ..
        } = options;
        let store = SystemFile::new(
            opened.file,
            path,
            read_only,
            opened.direct,
            arena,
            Arc::clone(&condition),
        );
        let device = StoreDevice::with_condition(name, uuid, geometry, store, condition);
        let notices = opened.notices;
        Ok(Self { device, notices })
    }

    /// Makes the file `size_bytes` long, or takes the length that somebody else gave it. Queues hear
    /// of it by [`DeviceQueue::device_grew`]. Blocking: for the control plane.
    ///
    /// # Errors
    /// [`FileError`]: the size is impossible or less than there is, or the file cannot grow. The
    /// device stays as it is.
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
        let read_only = geometry.now().read_only;
        let file = store.current();
        let size_bytes = open::grow(&*file, store.path(), size_bytes, read_only)?;
        self.device.grow(size_bytes).map_err(shape)
    }

    /// What the file system cannot do, and what that costs.
    #[must_use]
    pub fn notices(&self) -> &[FileNotice] {
        &self.notices
    }

    /// Makes durable whatever was written, by whichever queue. Blocking: for the end of an orderly
    /// stop.
    ///
    /// # Errors
    /// What fdatasync(2) answered; an error in any case when the device is damaged.
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

    /// What the rings of the queues opened so far could not have, each notice once.
    #[must_use]
    pub fn ring_notices(&self) -> Vec<uring::Notice> {
        self.device.store().ring_notices()
    }

    /// Whether transfers go past the page cache.
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
