//! A polled driver for NVMe drives that belong to this program.
//!
//! It owns the controller's lifecycle (start, events, deadlines, abort, reset, removal and return),
//! one I/O queue pair per reactor, and the drive's namespaces as [`block::Device`]s. It does not
//! wait, uses no interrupts on the fast path, no locks and no allocation per request, and no unsafe
//! code: every access to a device goes through [`backing::DeviceBacking`].
//!
//! Usage: poll [`BringUp`] until the drive is ready. It yields a [`Drive`] for the control plane
//! and a [`DriveOwner`], a poller for one reactor. [`Drive::device`] opens a namespace as a block
//! device; each reactor opens its queue with its index as [`core`](block::QueueOptions::core). The
//! control thread periodically checks [`Drive::function_reset_needed`] and [`Drive::wants_reopen`].
//!
//! Decisions:
//! - A request longer than the drive's limit for one command (MDTS, 256 KiB with PRP lists, 1 MiB
//!   with an SGL) is split here, so that hosts see one transfer limit for all namespaces. A split
//!   write is not atomic; hosts are promised no atomicity beyond one block.
//! - Data is described by one SGL descriptor if PRPs would need a list and the drive supports SGLs,
//!   otherwise by PRPs.
//! - If a drive lacks Write Zeroes or Compare, the driver writes zeroes or reads and compares; if
//!   it lacks Deallocate, Deallocate is refused. The content of deallocated blocks is reported as
//!   unspecified even if the drive reports zeroes, because a drive may ignore the hint.
//! - Formats with metadata or protection information, and block sizes other than 512 and 4096
//!   bytes, are refused ([`Unusable`]). So is a namespace whose size changes while it is in use:
//!   the size of a [`block::Device`] is constant, and a new size requires opening the drive again.
//! - A reset ends requests in flight with [`DeviceError::Interrupted`](block::DeviceError): they
//!   may or may not have been executed. Nothing is sent twice. Other requests wait for the reset.
//!   If the drive is gone, they end with `Removed`.
//! - A drive that grants fewer queue pairs than there are reactors is refused: sharing one would
//!   put a lock on the I/O path.
//! - The admin queue has no interrupt: its owner polls it with a tick of at most 250 ms.
//!
//! Sources: NVM Express Base Specification 2.1 ("Base 2.1"), NVM Command Set 1.1 ("NVM 1.1"), NVMe
//! over PCIe Transport 1.1 ("PCIe 1.1").
#![forbid(unsafe_code)]

mod admin;
pub mod backing;
mod bring_up;
mod data_pages;
mod doorbell;
mod drive;
mod drive_access;
mod error;
mod handshake;
mod identity;
mod memory;
mod options;
mod owner;
mod pair;
mod queue;
mod registers;
mod shared;
mod startup;
mod status;
mod sync;
mod vfio_backing;

pub use bring_up::{BringUp, BringUpState};
pub use drive::{Drive, DriveState, NamespaceInfo};
pub use error::{DriveError, GoneReason, Unusable};
pub use identity::NamespaceStatus;
pub use memory::arena_pieces;
pub use options::{Deadlines, DriveOptions, QUEUE_DEPTH_MAX, REACTORS_MAX};
pub use owner::DriveOwner;
pub use shared::DriveCounters;
pub use vfio_backing::VfioBacking;
