//! A polled driver for NVMe drives that belong to this program.
#![forbid(unsafe_code)]

mod admin;
pub mod backing;
mod doorbell;
mod error;
mod identity;
mod memory;
mod options;
mod registers;
mod shared;
mod startup;
mod status;
mod wiring;

pub use error::{DriveError, GoneReason, Unusable};
pub use identity::NamespaceStatus;
pub use options::{Deadlines, DriveOptions, QUEUE_DEPTH_MAX, REACTORS_MAX};
pub use shared::DriveCounters;
