//! Block devices: what every back end of the appliance looks like to the core that serves it.
//!
//! Owns: the [`Device`] and [`DeviceQueue`] traits, the back ends in RAM ([`MemoryDevice`]) and
//! nowhere ([`NullDevice`]), and one conformance suite that every device runs. Refuses: to know NVMe,
//! to block, and to allocate after a queue was opened.
//!
//! Everything that moves data does so in leases of the arena ([`hugemem::Lease`]); a device whose
//! medium is memory lends it instead ([`DeviceQueue::lends_reads`]).
#![forbid(unsafe_code)]

mod bounds;
mod device;
mod error;
mod health;
mod ledger;
mod memory;
mod null;
mod request;
mod shape;

pub use device::{
    BLOCK_SIZES, Deallocate, Device, DeviceIdentity, DeviceQueue, Drain, Geometry, QUEUE_DEPTH_MAX,
    QueueOptions,
};
pub use error::{DeviceError, Direction, OpenError};
pub use health::{Health, HealthState};
pub use memory::{MemoryDevice, MemoryError, MemoryOptions};
pub use null::{NullDevice, NullError, NullOptions};
pub use request::{
    COMPLETIONS_PER_POLL_MAX, Completion, CompletionBatch, Operation, Refusal, Request,
};
pub use shape::{ShapeError, TRANSFER_BYTES_MAX};
