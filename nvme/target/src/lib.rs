//! The protocol core of an NVMe over Fabrics target: what commands mean, without moving a byte.
//!
//! Two halves. [`Target`] is shared by all reactors and belongs to the control path: configuration,
//! the registry of controllers, snapshots. [`TargetCore`] belongs to one reactor and is the I/O
//! path: it takes command capsules from transports, drives block devices, and answers, without a
//! lock, an allocation, a socket, a thread or a clock of its own.
//!
//! Specifications: NVM Express Base 2.1 ("Base 2.1"), NVM Command Set 1.1 ("NVM 1.1"), NVMe/TCP
//! Transport 1.1 ("TCP 1.1").

#![forbid(unsafe_code)]

mod admin;
mod config;

mod counters;
mod interface;
mod io;
mod target;
mod target_core;

pub use config::{
    ADMIN_QUEUE_DEPTH_MAX, CONTROLLERS_MAX, CoreLimits, DEVICES_MAX, DeviceIndex, IO_QUEUES_MAX,
    NAMESPACE_ID_MAX, NamespaceConfig, PortConfig, PortId, QUEUE_DEPTH_MAX, SUBSYSTEMS_MAX,
    SubsystemConfig, TargetConfig, TargetError, TargetLimits, TransportKind,
};
pub use counters::{CoreCounters, Counter, IoCounters, IoTotals};
pub use interface::{
    ADMIN_IN_CAPSULE_MAX_BYTES, Admission, Arrival, Close, CloseReason, Completed, ConnectOutcome,
    DataSource, Direction, QueueId, QueueInfo, TransportId, Work,
};
pub use target::Target;
pub use target_core::{CoreDrain, TargetCore};
