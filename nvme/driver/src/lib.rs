//! A polled driver for NVMe drives that belong to this program.
//!
//! Owns: the controller's life (start, events, deadlines, abort, reset, removal and return), one
//! I/O queue pair per reactor, and the drive's namespaces as [`block::Device`]s. Refuses: waiting,
//! interrupts on the fast path, locks and allocation per request, and unsafe code: everything that
//! touches a device lies behind [`backing::DeviceBacking`].
//!
//! How it is used: [`BringUp`] is polled until the drive is ready and yields a [`Drive`] for the
//! control plane and a [`DriveOwner`], a poller for one reactor. [`Drive::device`] makes a block
//! device of a namespace; each reactor opens its queue with its index as
//! [`core`](block::QueueOptions::core). The control thread now and then asks
//! [`Drive::function_reset_needed`] and [`Drive::wants_reopen`].
//!
//! Decisions:
//! - Requests longer than a command may be go in parts here (MDTS, 256 KiB with PRP lists, 1 MiB
//!   with an SGL): hosts see one transfer limit for all namespaces. A write in parts is not atomic;
//!   no atomicity beyond one block is promised to hosts.
//! - Data is one SGL descriptor where PRPs would need a list and the drive takes SGLs, else PRPs.
//! - Write Zeroes and Compare are done by writes of zeroes and by reads where a drive lacks them;
//!   Deallocate is then refused. What deallocated blocks read as stays unspecified even where the
//!   drive says zeroes, because a drive may ignore the hint.
//! - Formats with metadata or protection information and blocks other than 512 and 4096 bytes are
//!   refused ([`Unusable`]). So is a namespace whose size changes while it is in use: the size of a
//!   [`block::Device`] is constant, and a new one needs the drive to be opened anew.
//! - A reset ends what was in flight with [`DeviceError::Interrupted`](block::DeviceError), which
//!   may or may not have been carried out; nothing is sent twice. Requests wait meanwhile. A drive
//!   that is gone ends them with `Removed`.
//! - A drive that grants fewer queue pairs than there are reactors is refused: sharing one would
//!   put a lock on the I/O path.
//! - The admin queue has no interrupt: its owner looks at it with a tick of at most 250 ms.
//!
//! Sources: NVM Express Base Specification 2.1 ("Base 2.1"), NVM Command Set 1.1 ("NVM 1.1"), NVMe
//! over PCIe Transport 1.1 ("PCIe 1.1").
#![forbid(unsafe_code)]

mod admin;
pub mod backing;
mod bring_up;
mod doorbell;
mod drive;
#[cfg(any(test, feature = "emulated"))]
pub mod emulated;
mod error;
mod handshake;
mod identity;
mod memory;
mod options;
mod owner;
mod pair;
mod queue;
mod registers;
mod registry;
mod shared;
mod startup;
mod status;
mod sync;
mod vfio_backing;
mod wiring;

pub use bring_up::{BringUp, BringUpState};
pub use drive::{Drive, DriveState, NamespaceInfo};
pub use error::{DriveError, GoneReason, Unusable};
pub use identity::NamespaceStatus;
pub use memory::arena_pieces;
pub use options::{Deadlines, DriveOptions, QUEUE_DEPTH_MAX, REACTORS_MAX};
pub use owner::DriveOwner;
pub use shared::DriveCounters;
pub use vfio_backing::VfioBacking;
