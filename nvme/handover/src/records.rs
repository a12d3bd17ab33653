//! The records of a target: configuration as hosts know it, controllers, queues and counters.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::tcp::TcpConnectionRecord;

/// The state of a target and its connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// What all cores share.
    pub target: TargetRecord,
    /// One record per reactor.
    pub cores: Vec<CoreRecord>,
    /// All controllers.
    pub controllers: Vec<ControllerRecord>,
    /// All queues, admin queues included.
    pub queues: Vec<QueueRecord>,
    /// The connections of NVMe/TCP.
    pub tcp_connections: Vec<TcpConnectionRecord>,
}

/// What all cores of a target share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetRecord {
    /// Number of reactors.
    pub reactors: u32,
    /// Time of the export in nanoseconds of CLOCK_MONOTONIC, which both processes read.
    pub exported_at_ns: u64,
    /// Largest transfer in bytes, which MDTS reports.
    pub transfer_max_bytes: u32,
    /// Generation counter of the discovery log.
    pub discovery_generation: u64,
    /// The next controller identifier by the first identifier of its range.
    pub next_controller_ids: BTreeMap<u16, u16>,
    /// The subsystems that hosts know.
    pub subsystems: Vec<SubsystemRecord>,
    /// The ports that the discovery log reports.
    pub ports: Vec<PortRecord>,
    /// The reservations of devices.
    pub reservations: Vec<ReservationRecord>,
}

/// One subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubsystemRecord {
    /// Its qualified name.
    pub nqn: String,
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Its namespaces, by ascending identifier.
    pub namespaces: Vec<NamespaceRecord>,
    /// The ports at which hosts reach it, ascending.
    pub ports: Vec<u16>,
    /// The ANA states that are set.
    pub ana_states: Vec<AnaRecord>,
    /// What some of its hosts see of the namespaces, by host.
    pub masks: BTreeMap<String, Vec<MaskedRecord>>,
}

/// A namespace that a host with a mask sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaskedRecord {
    /// Namespace identifier.
    pub nsid: u32,
    /// Whether the host can only read it.
    pub read_only: bool,
}

/// One namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceRecord {
    /// Namespace identifier.
    pub nsid: u32,
    /// Name of the device that stores its blocks.
    pub device: String,
    /// Size of a block in bytes.
    pub block_bytes: u32,
    /// Number of blocks.
    pub block_count: u64,
    /// UUID.
    pub uuid: [u8; 16],
    /// NGUID.
    pub nguid: [u8; 16],
    /// EUI-64.
    pub eui64: [u8; 8],
    /// Whether writes are refused.
    pub read_only: bool,
    /// ANA group.
    pub ana_group: u32,
    /// Whether hosts can reserve it.
    pub reservations: bool,
}

/// The state of an ANA group at a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnaRecord {
    /// The port.
    pub port: u16,
    /// The group.
    pub group: u32,
    /// The state's name.
    pub state: String,
}

/// One port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRecord {
    /// Its number.
    pub id: u16,
    /// Its transport.
    pub transport: TransportRecord,
    /// The address that the discovery log reports.
    pub address: String,
    /// The transport service identifier.
    pub service: String,
    /// Whether the address is an IPv6 address.
    pub ipv6: bool,
    /// Whether hosts must use a secure channel.
    pub secure: bool,
}

/// A transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportRecord {
    /// NVMe over TCP.
    #[default]
    Tcp,
    /// NVMe over RDMA.
    Rdma,
}

/// The reservations of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservationRecord {
    /// The device's name.
    pub device: String,
    /// The name under which the state is stored; zero if the device stores none.
    pub identity: [u8; 16],
    /// The stored form of `nvme_reservations`, which has a version and a checksum of its own.
    pub state: Bytes,
}

/// One reactor's core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreRecord {
    /// The reactor.
    pub reactor: u32,
    /// Its counters by name.
    pub counters: BTreeMap<String, u64>,
    /// The traffic of its devices.
    pub devices: Vec<DeviceTotals>,
}

/// The traffic of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceTotals {
    /// The device's name.
    pub device: String,
    /// Its traffic.
    pub totals: TotalsRecord,
}

/// Traffic of a queue or device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TotalsRecord {
    /// Read commands.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Write commands.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Other I/O commands.
    pub others: u64,
    /// I/O commands that ended with an error.
    pub errors: u64,
}

/// The account of a host's share of limited resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareRecord {
    /// Whether an export listed the host when it connected.
    pub listed: bool,
    /// The host's address, if no export listed it.
    pub address: Option<IpAddr>,
}

/// One controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerRecord {
    /// Controller identifier.
    pub controller_id: u16,
    /// NQN of its subsystem, or of the discovery subsystem.
    pub subsystem_nqn: String,
    /// NQN of its host; may be empty.
    pub host_nqn: String,
    /// Host identifier.
    pub host_id: [u8; 16],
    /// The port at which the host connected.
    pub port: u16,
    /// The transport of its admin queue.
    pub transport: TransportRecord,
    /// The target's own address to which the host connected.
    pub target_address: Option<IpAddr>,
    /// The host's address on the admin queue.
    pub host_address: Option<IpAddr>,
    /// The host's share of the controllers and queues.
    pub share: ShareRecord,
    /// In-capsule data of I/O commands in bytes, which IOCCSZ reports.
    pub in_capsule_max_bytes: u32,
    /// Most entries of an I/O queue, which CAP.MQES reports.
    pub queue_depth_max: u16,
    /// I/O queues that the host may create.
    pub io_queues_granted: u16,
    /// Its state, which CSTS reports.
    pub state: ControllerStateRecord,
    /// Controller Configuration (CC).
    pub cc: u32,
    /// Feature values.
    pub features: FeaturesRecord,
    /// The events that are pending or masked.
    pub events: Vec<EventRecord>,
    /// The command identifiers of the outstanding Asynchronous Event Requests, oldest first.
    pub event_requests: Vec<u16>,
    /// The Reservation Notification log.
    pub reservation_log: ReservationLogRecord,
    /// The Changed Namespace List, ascending.
    pub changed_namespaces: Vec<u32>,
    /// Changes of the ANA log since the last reset.
    pub ana_changes: u64,
    /// Health warnings at the last check (the bits of Critical Warning).
    pub warnings: u8,
    /// Remaining time of the keep-alive timer in nanoseconds.
    pub keep_alive_remaining_ns: Option<u64>,
    /// Whether that timer was already prolonged because receiving had stalled.
    pub was_prolonged: bool,
    /// Time until the next health check in nanoseconds.
    pub health_remaining_ns: Option<u64>,
    /// Whether a command was received since the keep-alive timer was checked last.
    pub has_traffic: bool,
    /// Whether the host has shut the controller down.
    pub host_shutdown: bool,
    /// Time since the last admin command in nanoseconds.
    pub idle_ns: u64,
    /// The Error Information log.
    pub errors: ErrorLogRecord,
    /// The traffic of its queues that are closed.
    pub closed_queues: TotalsRecord,
}

/// The state of a controller. States in which the target waits for something do not exist here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControllerStateRecord {
    /// CC.EN is 0.
    #[default]
    Disabled,
    /// Processes commands.
    Ready,
    /// Shut down after it was ready.
    ShutDown,
    /// Shut down without having been ready.
    ShutDownDisabled,
    /// Shut down, but a cache could not be flushed.
    ShutDownUnflushed,
    /// CC was invalid.
    Failed,
}

/// Feature values. Structures of the specification are stored as their bits or bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeaturesRecord {
    /// Arbitration.
    pub arbitration: u32,
    /// Power Management.
    pub power: u32,
    /// Over temperature threshold in kelvin.
    pub over_temperature_kelvin: u16,
    /// Under temperature threshold in kelvin.
    pub under_temperature_kelvin: u16,
    /// Error Recovery by namespace identifier minus one.
    pub error_recovery: Vec<u32>,
    /// Reservation Notification Mask by namespace identifier minus one.
    pub reservation_masks: Vec<u32>,
    /// Volatile Write Cache.
    pub write_cache: bool,
    /// Write Atomicity Normal.
    pub write_atomicity: u32,
    /// Asynchronous Event Configuration.
    pub async_events: u32,
    /// Keep Alive Timeout in milliseconds.
    pub keep_alive_ms: u32,
    /// Host Behavior Support data.
    pub host_behavior: Bytes,
    /// Timestamp in milliseconds when it was set.
    pub timestamp_ms: u64,
    /// Timestamp Origin.
    pub timestamp_origin: u8,
    /// Time since the timestamp was set, in nanoseconds.
    pub timestamp_age_ns: u64,
}

/// The state of one kind of event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRecord {
    /// Dword 0 of its completion, which identifies the kind.
    pub event: u32,
    /// Its state.
    pub state: EventStateRecord,
}

/// Whether an event is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventStateRecord {
    /// The next request reports it.
    #[default]
    Pending,
    /// It is masked until the host reads its log page.
    Reported,
}

/// The Reservation Notification log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservationLogRecord {
    /// Number of notifications so far.
    pub count: u64,
    /// Notifications that the host has not read, oldest first.
    pub waiting: Vec<NoticeRecord>,
}

/// One reservation notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoticeRecord {
    /// Its number.
    pub number: u64,
    /// The namespace.
    pub nsid: u32,
    /// The type of the log page.
    pub kind: u8,
}

/// The Error Information log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorLogRecord {
    /// Number of errors so far.
    pub count: u64,
    /// The latest entries as the log page has them, oldest first. Their error counts are the
    /// numbers up to `count`.
    pub entries: Vec<Bytes>,
    /// The newest records of the devices' own logs that were imported.
    pub imported: Vec<ImportedErrors>,
}

/// The newest imported record of a device's own error log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportedErrors {
    /// The device's name.
    pub device: String,
    /// The record's number.
    pub newest: u64,
}

/// One queue. Its controller, identifier and transport connection identify it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueRecord {
    /// Its controller.
    pub controller_id: u16,
    /// Queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// The reactor that serves it.
    pub reactor: u32,
    /// Its transport.
    pub transport: TransportRecord,
    /// Number of entries.
    pub depth: u16,
    /// Submission queue head (SQHD).
    pub sq_head: u16,
    /// Whether SQ flow control is enabled.
    pub flow_control: bool,
    /// In-capsule data that its commands may carry, in bytes.
    pub in_capsule_max_bytes: u32,
    /// Failed commands that may be logged before the next refill.
    pub log_allowance: u8,
    /// The host's share of the reactor's execution slots.
    pub share: ShareRecord,
    /// Its traffic.
    pub totals: TotalsRecord,
    /// How its host was authenticated, if it was. Since version 2.
    #[serde(default)]
    pub authentication: Option<AuthenticationRecord>,
}

/// How the host of a queue was authenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthenticationRecord {
    /// The hash function, as its identifier in DH-HMAC-CHAP.
    pub hash: u8,
    /// The Diffie-Hellman group, likewise.
    pub group: u8,
    /// The name of the host's key.
    pub key: String,
    /// The name of the controller's key, if the controller was authenticated too.
    pub controller_key: Option<String>,
    /// Time since then in nanoseconds.
    pub age_ns: u64,
}
