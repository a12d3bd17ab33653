//! A polled driver for NVMe drives that belong to this program.
#![forbid(unsafe_code)]

mod admin;
pub mod backing;
mod bring_up;
mod doorbell;
mod drive;
#[cfg(any(test, feature = "emulated"))]
pub mod emulated;
mod error;
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
mod vfio_backing;
mod wiring;

pub use bring_up::{BringUp, BringUpState};
pub use drive::{Drive, DriveState, NamespaceInfo};
pub use error::{DriveError, GoneReason, Unusable};
pub use identity::NamespaceStatus;
pub use options::{Deadlines, DriveOptions, QUEUE_DEPTH_MAX, REACTORS_MAX};
pub use owner::DriveOwner;
pub use shared::DriveCounters;
pub use vfio_backing::VfioBacking;
