//! Block devices: what every back end of the appliance looks like to the core that serves it.
//!
//! Owns: the [`Device`] and [`DeviceQueue`] traits; the back ends in RAM ([`MemoryDevice`]), in
//! files ([`FileDevice`]) and nowhere ([`NullDevice`]); wrappers that fail by plan
//! ([`FaultDevice`]) and answer late ([`DelayDevice`]); the devices of one reactor and the protocols that
//! serve them ([`DeviceSet`], [`DeviceClient`]); and one conformance suite that every device
//! runs (feature `conformance`). Refuses: to know NVMe, to block, and to allocate after a queue was
//! opened.
//!
//! Everything that moves data does so in leases of the arena ([`hugemem::Lease`]); a device whose
//! medium is memory lends it instead ([`DeviceQueue::lends_read`]).
#![forbid(unsafe_code)]

mod bounds;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod delay;
mod device;
mod error;
mod fault;
mod file;
mod health;
mod ledger;
mod memory;
mod null;
mod request;
mod set;
mod shape;

pub use delay::{DelayDevice, Latency};
pub use device::{
    ABANDONED_MAX, BLOCK_SIZES, Deallocate, Device, DeviceIdentity, DeviceQueue, Drain,
    GIVEN_UP_MAX, Geometry, QUEUE_DEPTH_MAX, QueueOptions,
};
pub use error::{DeviceError, Direction, OpenError, ReopenError};
pub use fault::{Effect, FaultControl, FaultDevice, FaultPlan, FaultRule, OperationKinds, When};
pub use file::{
    BufferedReason, DONE_PER_POLL_MAX, DirectIo, DoneBatch, FileDevice, FileError, FileNotice,
    FileOptions, FileRing, FileStore, FileSystem, StoreDevice,
};
pub use health::{
    Damage, DamageCause, DriveHealth, ERROR_RECORDS_MAX, ErrorRecord, Health, HealthCounters,
    HealthState, HealthWarnings, QueueCounters,
};
pub use memory::{MemoryDevice, MemoryError, MemoryOptions};
pub use null::{NullDevice, NullError, NullOptions};
pub use request::{
    COMPLETIONS_PER_POLL_MAX, Completion, CompletionBatch, Operation, Refusal, Request,
};
pub use set::{
    CLIENT_TAG_BITS, ClientId, Completions, DEVICES_MAX, DeviceClient, DevicePoller, DeviceSet,
    Places, ReactorDevices, Submitted, WaitId,
};
pub use shape::{ShapeError, TRANSFER_BYTES_MAX};
