//! Block devices: one interface for all storage back ends of the appliance.
//!
//! Owns: the [`Device`] and [`DeviceQueue`] traits; the back ends in RAM ([`MemoryDevice`]), on
//! files ([`FileDevice`]) and without a medium ([`NullDevice`]); the devices of one reactor and
//! their clients, the protocols ([`DeviceSet`], [`DeviceClient`]); copies of one device to another
//! ([`Copier`]). It has no knowledge of NVMe,
//! never blocks, and does not allocate after a queue is opened. The crate `block_testing` has
//! devices that inject faults and delays, and the conformance suite for all devices.
//!
//! Data moves in leases of the arena ([`hugemem::Lease`]). A device whose medium is memory lets a
//! read borrow that memory instead ([`DeviceQueue::can_borrow_read`]).
#![forbid(unsafe_code)]

mod bounds;
mod copier;
mod copying;
mod device;
mod error;
mod file;
mod health;
mod ledger;
mod memory;
mod null;
mod request;
mod set;
mod shape;
mod shared_queues;

pub use copier::{
    COPIES_MAX, COPY_MEMORY_TIME_MAX, COPY_PIECE_BYTES, COPY_PIECE_SOURCES_MAX, COPY_PIECES_MAX,
    COPY_REQUEST_TIME_MAX, Copier, CopyEnd, CopyError, CopyFailure, CopyMessage, CopyPlan,
    CopyProgress, CopyStart, CopyStep, CopyStop, DEVICE_MEMORY_FAILURES_MAX, OWN_COPY_FAILURES_MAX,
};
pub use copying::{
    COPY_SOURCE_BYTES, CopyLimits, CopyOrigin, CopySource, check_copy, check_copy_from,
};
pub use device::{
    ABANDONED_MAX, AtomicWrites, BLOCK_SIZES, DataPath, Deallocate, Device, DeviceIdentity,
    DeviceQueue, Drain, GIVEN_UP_MAX, Geometry, QUEUE_DEPTH_MAX, QueueOptions,
};
pub use error::{DeviceError, Direction, OpenError, ReopenError};
pub use file::{
    BufferedReason, DONE_PER_POLL_MAX, DirectIo, DoneBatch, FileCapabilities, FileDevice,
    FileError, FileNotice, FileOptions, FileRing, FileStore, FileSystem, StoreDevice,
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
    CLIENT_TAG_BITS, ClientId, Completions, DEVICES_MAX, DeviceClient, DeviceMask, DevicePoller,
    DeviceSet, NoDeviceMemory, ReactorDevices, Submitted, WaitingId,
};
pub use shape::{ShapeError, TRANSFER_BYTES_MAX};
pub use shared_queues::SharedQueues;
