//! The protocol core of an NVMe over Fabrics target. It executes commands and performs no I/O.
//!
//! It has two parts. [`Target`] is shared by all reactors and belongs to the control path:
//! configuration, the registry of controllers, snapshots. [`TargetCore`] belongs to one reactor and
//! is the I/O path: it receives commands from transports, drives block devices, and returns
//! completions, without a lock, an allocation, a socket, a thread or a clock of its own.
//!
//! A controller's state belongs to the core of its admin queue. Its I/O queues may be on other
//! cores. These read the state through a few atomics, and are notified when a reset, the end of the
//! association or a changed configuration concerns them.
//!
//! Specifications: NVM Express Base 2.1 ("Base 2.1"), NVM Command Set 1.1 ("NVM 1.1"), NVMe/TCP
//! Transport 1.1 ("TCP 1.1").

#![forbid(unsafe_code)]

mod admin;
mod ana;
mod authentication;
mod config;
mod controller;
mod counters;
mod error_log;
mod eviction;
mod exclusions;
mod generated_keys;
mod handover;
mod host_accounts;
mod interface;
mod io;
mod latency;
mod network;
mod pacing;
mod page;
mod rate;
mod rates;
mod registry;
mod reservations;
mod revocation;
mod secure_channel;
mod shared;
mod shares;
mod snapshot;
mod snapshot_cell;
mod stages;
mod status;
mod statuses;
mod sync;
mod target;
mod target_core;
pub mod trace_events;
mod view;

pub use ana::{ANA_GROUPS_MAX, AnaState, UnknownAnaState};
pub use authentication::{
    Concatenation, Exponentiations, HOST_KEYS_MAX, HostAuthentication, KeyUse, NamedSecret,
    QueueAuthentication,
};
pub use config::{
    ADMIN_QUEUE_DEPTH_MAX, ADMIN_QUEUE_DEPTH_MAX_RDMA, AnaPath, CONTROLLER_IDS, CONTROLLERS_MAX,
    CoreLimits, DEVICES_MAX, DISCOVERY_CONTROLLERS_MAX, DeviceIndex, IO_QUEUES_MAX, MASKS_MAX,
    MaskedAccess, NAMESPACE_ID_MAX, NamespaceConfig, NamespaceMask, PortConfig, PortId,
    PortSecurity, QUEUE_DEPTH_MAX, RATE_LIMITS_MAX, SUBSYSTEMS_MAX, SubsystemConfig, TargetConfig,
    TargetError, TargetLimits, TransportKind,
};
pub use controller::ControllerKind;
pub use controller::state::ControllerState;
pub use counters::{
    CopyCounters, CopyTotals, CoreCounters, Counter, HostPathReason, IoCounters, IoTotals,
    TransferCounters, TransferReason, TransferTotals,
};
pub use eviction::{EvictedAssociations, HostName};
pub use generated_keys::{GENERATED_KEYS_MAX, GeneratedKeys, Generation};
pub use handover::{HandoverError, NotQuiet, RestoredConnection, UnfinishedCommands};
pub use interface::{
    ADMIN_IN_CAPSULE_MAX_BYTES, Admission, Arrival, Close, CloseReason, Completed, ConnectOutcome,
    DataSource, Direction, InlineCompletion, KEYED_BLOCKS_MAX, KeyedBlock, KeyedBlocks, QueueId,
    QueueInfo, TransportId, Work, WorkProgress,
};
pub use latency::{LATENCY_BUCKETS, LatencyCounts, latency_bucket_start};
pub use network::network_of;
pub use pacing::{PACING_INTERVAL, PaceReason, PaceSnapshot, Pacing, WEIGHT_DEFAULT, WEIGHT_MAX};
pub use rates::{RateLimit, RateLimitSnapshot, RateScope, Throttled};
pub use reservations::{
    InitialReservations, RegistrantSnapshot, ReservationError, ReservationSnapshot,
    ReservationStore, StoreRequest,
};
pub use secure_channel::{KeyOwner, QueueChannel, SecureChannel};
pub use snapshot::{ControllerSnapshot, QueueSnapshot, SubsystemSnapshot, TargetSnapshot};
pub use stages::{ByOperation, Measured, OperationCounts, Stage, StageCounts, TargetLatency};
pub use status::from_device as device_status;
pub use statuses::{STATUSES_MAX, StatusCounts, TargetStatuses};
pub use target::Target;
pub use target_core::{
    CoreAudit, CoreDrain, DEVICE_PIECES_MAX, DEVICE_TRANSFER_BYTES_MIN, InlineTiming, Outstanding,
    Released, TargetCore, Timing,
};
