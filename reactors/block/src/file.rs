//! A device in a file, through io_uring.
//!
//! Owns: the open file with its lock, so that no two appliances serve it, and what was found out
//! about the file system. Refuses: anything but regular files, and to guess a size.
//!
//! Durability: a completed write is in the drive's or the kernel's cache; a flush is
//! `fdatasync(2)`, a write with FUA is a write with `RWF_DSYNC` (`pwritev2(2)`), write zeroes with
//! FUA is followed by `fdatasync(2)`. A file that was created is on the medium, with its name,
//! before it is served.

mod direct;
mod notice;
mod open;
mod queue;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugemem::Arena;
use rustix::fs::{FlockOperation, flock};

use crate::device::{Deallocate, Device, DeviceIdentity, DeviceQueue, Geometry, QueueOptions};
use crate::error::OpenError;
use crate::health::{Health, HealthCounters, HealthState};
use crate::ledger::check_depth;
use crate::shape::{GrowingGeometry, ShapeError, max_transfer_blocks};

pub use notice::{BufferedReason, FileNotice, FileSystem};

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
    /// Something else than a regular file.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
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
    /// Somebody else serves the file.
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
struct Shared {
    file: Arc<OwnedFd>,
    geometry: GrowingGeometry,
    arena: Option<Arc<Arena>>,
    counters: Arc<HealthCounters>,
    /// The file system said that the file is gone.
    gone: AtomicBool,
    /// What the queues' rings could not have. Written when a queue opens, never by a request.
    ring_notices: Mutex<Vec<uring::Notice>>,
}

impl Shared {
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn ring_notices(&self) -> MutexGuard<'_, Vec<uring::Notice>> {
        self.ring_notices
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The kernel closes a ring's own reference to the file some time after the ring was closed,
        // and the lock would last until then. Nothing more can be in flight here, or it was given
        // up.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// A device in a regular file.
pub struct FileDevice {
    name: String,
    identity: DeviceIdentity,
    path: PathBuf,
    notices: Vec<FileNotice>,
    direct: bool,
    shared: Arc<Shared>,
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
        Ok(Self {
            name: options.name,
            identity: DeviceIdentity {
                uuid: options.uuid,
                model: "Windlass file".into(),
            },
            path: options.path,
            notices: opened.notices,
            direct: opened.direct,
            shared: Arc::new(Shared {
                file: Arc::new(opened.file),
                geometry: GrowingGeometry::new(geometry),
                arena: options.arena,
                counters: Arc::default(),
                gone: AtomicBool::new(false),
                ring_notices: Mutex::default(),
            }),
        })
    }

    /// Makes the file `size_bytes` long, or takes the length that somebody else gave it. Queues hear
    /// of it by [`DeviceQueue::device_grew`]. Blocking: for the control plane.
    ///
    /// # Errors
    /// [`FileError`]: the size is impossible or less than there is, or the file cannot grow. The
    /// device stays as it is.
    pub fn grow(&self, size_bytes: Option<u64>) -> Result<(), FileError> {
        let shape = |source| FileError::Shape {
            path: self.path.clone(),
            source,
        };
        let geometry = &self.shared.geometry;
        if let Some(wanted) = size_bytes {
            geometry.larger(wanted).map_err(shape)?;
        }
        let read_only = geometry.now().read_only;
        let size_bytes = open::grow(&self.shared.file, &self.path, size_bytes, read_only)?;
        geometry.grow(geometry.larger(size_bytes).map_err(shape)?);
        Ok(())
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
    /// What fdatasync(2) answered.
    pub fn sync(&self) -> std::io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.shared.file)?)
    }

    /// What the rings of the queues opened so far could not have, each notice once.
    #[must_use]
    pub fn ring_notices(&self) -> Vec<uring::Notice> {
        self.shared.ring_notices().clone()
    }

    /// Whether transfers go past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.shared.geometry.now()
    }

    fn identity(&self) -> &DeviceIdentity {
        &self.identity
    }

    fn health(&self) -> Health {
        let state = if self.shared.is_gone() {
            HealthState::Removed
        } else if self.shared.geometry.now().read_only {
            HealthState::ReadOnly
        } else {
            HealthState::Ready
        };
        self.shared.counters.sum(state)
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        check_depth(options.depth)?;
        if self.shared.is_gone() {
            return Err(OpenError::Removed);
        }
        let queue = queue::FileQueue::open(Arc::clone(&self.shared), options)?;
        Ok(Box::new(queue))
    }
}

#[cfg(test)]
mod tests;
