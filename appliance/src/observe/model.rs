//! The control plane's JSON: the types of `/api/v1`.
//!
//! Counters are totals since the start; a client takes differences. Times are in nanoseconds unless
//! a name says otherwise. An unknown value is `null`, never zero.

mod ana;
mod copies;
mod drive_memory;
mod files;
mod keys;
mod paces;
mod rate_limits;
mod reservations;

use std::collections::BTreeMap;

use hugemem::ClassCounters;
use nvme_target::CoreCounters;
use reactors::Nanos;
use serde::{Deserialize, Serialize};

use super::measured::{Sample as _, measured};
use super::observation::MemorySample;
use super::status::{DeviceInput, ExportInput, ListenerInput, ReactorInput, warnings};
pub(crate) use ana::{AnaAnswer, AnaChange, AnaInput, AnaRequest, AnaStatus, AnaWord};
pub(crate) use copies::{
    AbortCopyAnswer, AbortCopyRequest, CopyRequest, CopyState, CopyStatus, StartCopyAnswer,
};
pub(crate) use drive_memory::DriveMemoryStatus;
pub(crate) use files::{
    EvictClientAnswer, EvictClientRequest, FileClientStatus, FileListenerStatus,
    FileOperationStatus, FileServiceStatus, FilesStatus, OperationSample, ShareInput, ShareStatus,
    VolumeInput, VolumeStatus,
};
pub(crate) use keys::{
    AuthenticationStatus, ChannelStatus, KeyInput, KeyStatus, RevokeAnswer, RevokeRequest,
};
pub(crate) use paces::PaceStatus;
pub(crate) use rate_limits::{RateLimitInput, RateLimitStatus};
pub(crate) use reservations::{
    ClearAnswer, ClearRequest, DeviceReservations, EvictAnswer, EvictRequest, RegistrantStatus,
    ReservationWord,
};

/// Everything at one moment: `GET /api/v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Status {
    /// When the counters were read, milliseconds since 1970.
    pub(crate) now_unix_ms: u64,
    pub(crate) appliance: ApplianceStatus,
    pub(crate) reactors: Vec<ReactorStatus>,
    pub(crate) memory: MemoryStatus,
    /// In the configuration's order.
    pub(crate) devices: Vec<DeviceStatus>,
    /// In the configuration's order.
    pub(crate) exports: Vec<ExportStatus>,
    /// In the configuration's order.
    pub(crate) listeners: Vec<ListenerStatus>,
    /// The ANA groups of each export at each of its listeners.
    pub(crate) ana: Vec<AnaStatus>,
    /// One entry for each controller that a host has, discovery controllers included.
    pub(crate) hosts: Vec<HostStatus>,
    /// The keys of hosts, in the configuration's order; their names are pseudonyms over HTTP without
    /// a token.
    pub(crate) keys: Vec<KeyStatus>,
    /// The rate limits, in the configuration's order.
    pub(crate) rate_limits: Vec<RateLimitStatus>,
    /// The exports that may have to wait for others.
    pub(crate) paces: Vec<PaceStatus>,
    /// The file service; none if no files are served.
    pub(crate) files: Option<FilesStatus>,
    /// The copies of devices that run, and the last ones that have ended, oldest first.
    pub(crate) copies: Vec<CopyStatus>,
    pub(crate) target: TargetStatus,
    /// How long reads and writes took, over all exports.
    pub(crate) latency: Latency,
    /// Commands that ended with an error, by export and status.
    pub(crate) statuses: Vec<StatusCount>,
    /// Counters by name, of each transport that is in use (`tcp`, `rdma`), all reactors together.
    pub(crate) transports: TransportTotals,
}

/// Counters and levels by name, of each transport.
pub(crate) type TransportTotals = BTreeMap<String, BTreeMap<String, u64>>;

impl Status {
    /// As [`lost_rdma`].
    pub(crate) fn lost_rdma(&self) -> Option<String> {
        let service = self.files.as_ref().map(|it| &it.service);
        let of_files = service.map(|it| (it.rdma_devices_missing, it.rdma_listeners_down));
        lost_rdma(&self.transports, of_files)
    }
}

/// Describes lost RDMA devices and listeners without a device, if there are any. `of_files`: those of
/// the file service, which may use the same devices.
pub(crate) fn lost_rdma(
    transports: &TransportTotals,
    of_files: Option<(u64, u64)>,
) -> Option<String> {
    let counters = transports.get("rdma");
    let count = |name: &str| counters.and_then(|it| it.get(name)).copied().unwrap_or(0);
    let of_files = of_files.unwrap_or_default();
    let devices = count("devices_missing").max(of_files.0);
    let listeners = count("listeners_down") + of_files.1;
    (devices + listeners > 0).then(|| {
        format!("{devices} RDMA device(s) are missing, and {listeners} listener(s) have no device")
    })
}

/// The process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ApplianceStatus {
    /// Its name in the configuration.
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) pid: u32,
    /// Whole seconds since the start.
    pub(crate) uptime_s: u64,
    /// From the beginning of the start to exports that answer.
    pub(crate) start_took_ms: u64,
    /// The configuration file; none with the embedded default.
    pub(crate) config_path: Option<String>,
    pub(crate) state: RunState,
}

/// Whether an appliance serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunState {
    /// Hosts may connect.
    Running,
    /// Connects are refused; what is in flight comes to its end.
    Stopping,
}

measured! {
    /// One reactor.
    struct ReactorStatus from input: &ReactorInput<'_> {
        /// Its number, from 0.
        index: usize = input.index;
        /// The core that it is pinned to.
        core: usize = input.seen.core;
        /// Whether its thread lives.
        running: bool = input.seen.is_running, Gauge "reactor_running";
        /// Share of busy time over about the last 100 ms, in thousandths.
        busy_permille: u32 = input.seen.stats.busy_permille;
        /// Whether it is blocked in the kernel, waiting for work.
        asleep: bool = input.seen.stats.asleep;
        /// Turns taken.
        turns: u64 = input.seen.stats.turns, Counter "reactor_turns";
        /// Time in turns that made progress.
        busy_ns: u64 = input.seen.stats.busy.0, CounterSeconds "reactor_busy";
        /// Time in turns without progress, pausing and sleeping.
        idle_ns: u64 = input.seen.stats.idle.0, CounterSeconds "reactor_idle";
        /// Times it blocked in the kernel.
        sleeps: u64 = input.seen.stats.sleeps, Counter "reactor_sleeps";
        /// Sleeps that work ended, not a deadline.
        wakeups: u64 = input.seen.stats.wakeups, Counter "reactor_wakeups";
        /// Polls that took longer than the threshold of a stall.
        stalls: u64 = input.seen.stats.stalls, Counter "reactor_stalls";
        /// Queues that it serves, admin queues included.
        queues: u64 = input.seen.counters.queues, Gauge "reactor_queues";
        /// Commands in execution.
        depth: u64 = input.seen.counters.executions, Gauge "reactor_depth";
        /// The longest poll so far.
        longest_poll: Option<NamedTime> =
            input.seen.stats.longest_poll.as_ref().map(|it| NamedTime::new(&it.name, it.lasted)),
            GaugeSeconds "reactor_longest_poll": |it| Some(it.longest_poll.sample().unwrap_or(0));
        /// How long the reads and writes of its queues took.
        latency: Latency = input.latency;
        /// What it is in at this moment and has been in for more than two seconds.
        stuck: Option<NamedTime> =
            input.seen.stuck.as_ref().map(|it| NamedTime::new(&it.name, it.lasted)),
            Gauge "reactor_stuck": |it| it.stuck.is_some().sample()
            => "Whether it has been in one poll for more than two seconds.";
    }
}

/// A poller and a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct NamedTime {
    pub(crate) name: String,
    pub(crate) ns: u64,
}

impl NamedTime {
    fn new(name: &str, Nanos(ns): Nanos) -> Self {
        Self {
            name: name.to_owned(),
            ns,
        }
    }
}

measured! {
    /// The arena.
    struct MemoryStatus from memory: &MemorySample {
        /// The arena's size.
        bytes: u64 = memory.bytes, GaugeBytes "arena";
        /// The size of its pages.
        page_bytes: u64 = memory.page_bytes;
        /// What its pages cost, and what improves it.
        notices: Vec<String> = memory.notices.clone();
        /// How long the request has waited for a buffer that waits longest now; 0 when none waits.
        oldest_wait_ns: u64 = memory.counters.oldest_wait_ns, GaugeSeconds "pool_oldest_wait";
        /// The longest that a request waited for a buffer since the start.
        longest_wait_ns: u64 = memory.counters.longest_wait_ns, GaugeSeconds "pool_longest_wait";
        /// The size classes that it has, smallest first.
        classes: Vec<ClassStatus> = {
            let classes = memory.counters.classes.iter();
            classes.filter(|class| class.total > 0).map(ClassStatus::read).collect()
        };
    }
}

/// A longer wait for a buffer is reported by `/healthz`, `windlass status`, `windlass doctor` and
/// an event.
pub(crate) const BUFFER_WAIT_MAX_NS: u64 = 1_000_000_000;

measured! {
    /// The buffers of one size.
    struct ClassStatus from class: &ClassCounters {
        /// The size.
        slice_bytes: u64 = class.slice_bytes as u64;
        /// Buffers there are.
        total: u64 = class.total, Gauge "pool_slices";
        /// Free buffers.
        free: u64 = class.free, Gauge "pool_slices_free";
        /// Buffers in use.
        taken: u64 = class.taken;
        /// Requests that had to wait for a buffer.
        waits: u64 = class.waits, Counter "pool_waits";
        /// Requests that wait for a buffer now.
        waiting: u64 = class.waiting, Gauge "pool_waiting";
    }
}

/// What moved. Bytes and requests are of successful commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Totals {
    pub(crate) reads: u64,
    pub(crate) bytes_read: u64,
    pub(crate) writes: u64,
    pub(crate) bytes_written: u64,
    /// Flush, Compare, Write Zeroes, Dataset Management.
    pub(crate) others: u64,
    /// Commands that ended with an error in a device; those that were refused before are in the
    /// target's count alone.
    pub(crate) errors: u64,
}

measured! {
    /// One device of the configuration.
    struct DeviceStatus from input: DeviceInput<'_> {
        /// Its name in the configuration.
        name: String = input.device.name.to_string();
        /// Where its blocks are.
        #[serde(rename = "type")]
        #[words("nvme", "file", "memory", "null")]
        device_type: String = input.device.backing.word().to_owned();
        /// Whether it can be used.
        state: DeviceState = input.state(),
            Gauge "device_ready":
                |it| matches!(it.state, DeviceState::Ready | DeviceState::ReadOnly).sample(),
            Gauge "device_damaged": |it| (it.state == DeviceState::Damaged).sample()
            => "Whether it lost data that it had accepted: writes and flushes fail until it is \
                reopened.";
        /// What damaged it; none unless it is damaged.
        damage: Option<DamageStatus> = input.health.damage.map(DamageStatus::from);
        /// Whether its stored reservations cannot be restored: hosts are refused until they are
        /// cleared.
        reservations_damaged: bool = input.seen.is_some_and(|seen| seen.has_damaged_reservations),
            Gauge "device_reservations_damaged";
        /// In bytes; none where the device could not be had.
        block_size: Option<u32> = input.seen.map(|seen| seen.block_size);
        /// None if the device is not open.
        block_count: Option<u64> = input.seen.map(|seen| seen.block_count),
            GaugeBytes "device_size":
                |it| Some(it.block_count? * u64::from(it.block_size?)) => "Its size.";
        /// Errors of the medium among the errors.
        media_errors: u64 = input.health.media_errors, Counter "device_media_errors";
        /// Requests that had to wait inside the device.
        waits: u64 = input.health.waits, Counter "device_waits";
        /// Flushes that the device completed.
        flushes: u64 = input.health.flushes, Counter "device_flushes";
        /// None where there is no sensor.
        temperature_celsius: Option<i32> =
            input.health.temperature_kelvin.map(|kelvin| i32::from(kelvin) - 273),
            Gauge "device_temperature_celsius":
                |it| u64::try_from(it.temperature_celsius?.max(0)).ok()
            => "Its temperature in degrees Celsius, those below zero as zero.";
        /// Spare blocks left: 100 is as new.
        available_spare_percent: Option<u8> = input.health.available_spare_percent,
            Gauge "device_spare_percent";
        /// Wear; may exceed 100.
        used_percent: Option<u8> = input.health.used_percent, Gauge "device_used_percent";
        /// What a drive warns of, in words.
        warnings: Vec<String> =
            input.health.drive.map_or_else(Vec::new, |drive| warnings(drive.warnings)),
            Gauge "device_warnings": |it| Some(it.warnings.len() as u64)
            => "Kinds of warnings that it gives.";
        /// What moved.
        totals: Totals = input.totals;
        /// Time of reads and writes in the device; reads that borrow its memory are not counted.
        /// None if the device is not open.
        latency: Option<Latency> = input.latency;
        /// What the driver counts of the drive that the device is on, by name; none for other types.
        drive: Option<BTreeMap<String, u64>> = input.drive_counters();
        /// How data of copies takes its way, `data_path` of the configuration; none for types other
        /// than `nvme`.
        data_path: Option<String> = input.data_path();
        /// The controller memory buffer of its drive, as far as it holds data; none without one.
        drive_memory: Option<DriveMemoryStatus> =
            input.seen.and_then(|seen| seen.memory.as_deref()).map(DriveMemoryStatus::from);
        /// Copies of hosts to it that succeeded, by the way of their data: `host`, `drive_memory`, or `drive`
        /// for those that the drive executed by itself.
        copies: BTreeMap<String, u64> = input.copies();
        /// Copies of hosts to it that took or continued on the way through `memory` although
        /// `data_path` allows another one, by reason.
        copies_on_host_path: BTreeMap<String, u64> = input.copies_on_host_path();
        /// `reads` and `writes` of hosts through its own memory, their `bytes`, and how many `failed`.
        transfers: BTreeMap<String, u64> = input.transfers();
        /// Its other reads and writes although `data_path` allows that memory, by reason.
        transfers_on_host_path: BTreeMap<String, u64> = input.transfers_on_host_path();
    }
}

/// What damaged a device: data that it had accepted may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DamageStatus {
    /// One word: `sync_failed`, `write_failed`, `short_write`, `truncated`, `write_abandoned`,
    /// `write_stuck`.
    pub(crate) cause: String,
    /// The same for people.
    pub(crate) text: String,
    /// When it was noticed, milliseconds since 1970.
    pub(crate) unix_ms: u64,
}

/// What `POST /api/v1/device/reopen` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ReopenRequest {
    /// The name of a damaged device.
    pub(crate) device: String,
}

/// What `POST /api/v1/device/reopen` answers: the device takes writes and flushes again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ReopenAnswer {
    pub(crate) device: String,
    /// What may be lost, and what to do, for people.
    pub(crate) text: String,
}

/// What `POST /api/v1/upgrade` takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UpgradeRequest {
    /// The path of the new program; without it, that of the running one.
    pub(crate) program: Option<String>,
    /// Start the new process and let it check everything, but hand nothing over.
    pub(crate) dry_run: bool,
}

/// What `POST /api/v1/upgrade` answers: a new process serves, or would serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct UpgradeAnswer {
    /// The path of the new program.
    pub(crate) program: String,
    /// The identifier of the new process; absent after a dry run.
    pub(crate) pid: Option<u32>,
    /// Connections of hosts that continue without a reconnection.
    pub(crate) connections: u64,
    /// Time in which hosts had to wait, microseconds; absent after a dry run.
    pub(crate) pause_us: Option<u64>,
    /// What hosts and operators notice, for people.
    pub(crate) effects: Vec<String>,
}

/// The state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeviceState {
    Ready,
    ReadOnly,
    /// It lost data that it had accepted: writes and flushes fail until it is reopened.
    Damaged,
    /// A drive is being reset; requests wait.
    Resetting,
    /// It was there and is gone.
    Removed,
    /// It could not be opened at start.
    Absent,
}

measured! {
    /// One export.
    struct ExportStatus from input: ExportInput<'_> {
        /// Its NVMe Qualified Name.
        nqn: String = input.export.nqn.to_string();
        /// Those that hosts see now.
        namespaces: Vec<NamespaceStatus> = input.namespaces;
        /// Names of listeners.
        listeners: Vec<String> = input.export.listeners.iter().map(ToString::to_string).collect();
        /// Controllers that hosts have of it now.
        controllers: u64 = input.controllers, Gauge "export_controllers";
        /// Of all its devices.
        totals: Totals = input.totals;
        /// From the turn that receives a command to the end of the turn that sends its response.
        /// None if the export is not active.
        latency: Option<Latency> = input.latency;
        /// Parts of it, counted only for commands that waited in them: `buffer` (for a buffer),
        /// `fetch` (for the host's data), `device`, `send` (from the result to the end of the turn
        /// in which the whole answer was handed to the network).
        stages: BTreeMap<String, Latency> = input.stages;
    }
}

/// One namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct NamespaceStatus {
    pub(crate) nsid: u32,
    /// The device's name.
    pub(crate) device: String,
    pub(crate) bytes: u64,
    pub(crate) uuid: String,
}

/// How long commands took in the last seconds, reads and writes apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Latency {
    /// The time that this is of: a few seconds before `now_unix_ms`.
    pub(crate) window_ms: u64,
    pub(crate) read: Percentiles,
    pub(crate) write: Percentiles,
}

/// Percentiles, to 6 %; `null` when there was no command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Percentiles {
    /// Commands that were measured.
    pub(crate) count: u64,
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
    pub(crate) p999_ns: Option<u64>,
}

measured! {
    /// One listener.
    struct ListenerStatus from input: ListenerInput<'_> {
        /// Its name in the configuration.
        name: String = input.listener.name.to_string();
        /// How hosts are served.
        #[words("tcp", "rdma")]
        transport: String = input.listener.transport.word().to_owned();
        /// What it is bound to.
        address: String = input.bound.unwrap_or_else(|| input.listener.address.to_string());
        /// Connections now; none where several listeners share a transport, which counts for all.
        connections: Option<u64> = input.connections, Gauge "listener_connections";
    }
}

/// One controller of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct HostStatus {
    /// The host's NQN; over HTTP without a token, a pseudonym that is constant until the appliance
    /// stops.
    pub(crate) nqn: String,
    /// The host's identifier, hexadecimal; none over HTTP without a token.
    pub(crate) host_id: Option<String>,
    /// The subsystem's name.
    pub(crate) export: String,
    /// None over HTTP without a token.
    pub(crate) controller_id: Option<u16>,
    pub(crate) kind: ControllerKind,
    /// Where the controller stands, in one word.
    pub(crate) state: String,
    /// That of the listener at which the host has connected; none if it was removed since.
    pub(crate) transport: Option<String>,
    /// The host's address; none where it is not known.
    pub(crate) address: Option<String>,
    /// How it authenticated itself on the admin queue; none if it has not.
    pub(crate) authentication: Option<AuthenticationStatus>,
    /// How TLS protects its admin queue; none if it does not.
    pub(crate) channel: Option<ChannelStatus>,
    /// I/O queues.
    pub(crate) queues: Vec<QueueStatus>,
    /// Over all its I/O queues, closed ones included.
    pub(crate) totals: Totals,
    /// Entries of its error log so far.
    pub(crate) errors_logged: u64,
}

/// What a controller is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum ControllerKind {
    Io,
    Discovery,
}

/// One I/O queue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct QueueStatus {
    pub(crate) qid: u16,
    /// The reactor that serves it.
    pub(crate) reactor: usize,
    /// Whether its host authenticated itself on it.
    pub(crate) authenticated: bool,
    /// Whether TLS protects it.
    pub(crate) protected: bool,
    pub(crate) totals: Totals,
}

measured! {
    /// Counters of the target, all reactors together.
    sum struct TargetStatus from core: &CoreCounters {
        /// Commands of all kinds.
        commands = core.commands.get();
        /// Commands on admin queues, of all of them.
        admin_commands = core.admin_commands.get();
        /// Commands that ended with an error.
        errors = core.errors.get(), Counter "command_errors";
        /// Errors that were counted but not logged, because there were too many at once.
        errors_not_logged = core.errors_not_logged.get(), Counter "command_errors_not_logged";
        /// Connects that made a queue.
        connects = core.connects.get(), Counter "connects";
        /// Connects that were refused.
        connects_refused = core.connects_refused.get(), Counter "connects_refused";
        /// Queues on which hosts authenticated themselves, repetitions included.
        authentications = core.authentications.get(), Counter "authentications";
        /// Authentications that failed.
        authentications_failed = core.authentications_failed.get(),
            Counter "authentications_failed";
        /// Associations of hosts that had lost one with the same subsystem without a shutdown.
        reconnects = core.reconnects.get(), Counter "reconnects";
        /// Resets of controllers that hosts asked for.
        controller_resets = core.controller_resets.get(), Counter "controller_resets";
        /// Keep-alive times that ran out.
        keep_alive_expired = core.keep_alive_expired.get(), Counter "keep_alive_expired";
        /// Asynchronous events that were sent to hosts.
        events = core.events.get(), Counter "host_events";
        /// Requests that a device deferred.
        deferred = core.deferred.get(), Counter "requests_deferred";
        /// Commands that were in a device when their queue ended.
        orphaned = core.orphaned.get(), Counter "requests_orphaned";
        /// Completions that belong to no command.
        stale_completions = core.stale_completions.get(), Counter "stale_completions";
        /// Calls with a handle that is no longer valid.
        stale_queues = core.stale_queues.get(), Counter "stale_queues";
        /// Generation of the discovery log: the whole target's, 0 for one reactor.
        discovery_generation = 0;
    }
}

/// Commands that ended with one status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StatusCount {
    /// The export's name; none for discovery, Connect, and exports that are gone.
    pub(crate) export: Option<String>,
    /// Status Code Type and Status Code; none for statuses beyond the bound of those that are told
    /// apart.
    pub(crate) code: Option<StatusCode>,
    pub(crate) count: u64,
}

/// A completion status without its flags (Base 2.1 §4.2.3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StatusCode {
    pub(crate) sct: u8,
    pub(crate) sc: u8,
    /// What it means, for people.
    pub(crate) text: String,
}

/// The last seconds or the last hour: `GET /api/v1/history`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct History {
    /// The time of the last value, milliseconds since 1970.
    pub(crate) now_unix_ms: u64,
    /// The number of the last value's step, counted since the start, from which a client can
    /// compute the number of new values.
    pub(crate) step: u64,
    pub(crate) step_ms: u64,
    /// What there are series of.
    pub(crate) keys: Vec<HistoryKey>,
    /// Things that had no room: see the limit of keys.
    pub(crate) left_out: u64,
    /// By `<kind>/<name>/<what>`, the oldest value first, all of one length; `null`: not known.
    pub(crate) series: BTreeMap<String, Vec<Option<f32>>>,
}

/// One thing that series are kept of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct HistoryKey {
    pub(crate) kind: HistoryKind,
    /// As in the configuration; a number for a reactor, bytes of a slice for a pool, empty for the
    /// total.
    pub(crate) name: String,
}

/// Kinds of things that series are kept of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum HistoryKind {
    Total,
    Reactor,
    Pool,
    Export,
    Device,
    Host,
}

impl HistoryKind {
    /// The prefix of series of this kind.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            HistoryKind::Total => "total",
            HistoryKind::Reactor => "reactor",
            HistoryKind::Pool => "pool",
            HistoryKind::Export => "export",
            HistoryKind::Device => "device",
            HistoryKind::Host => "host",
        }
    }
}

/// A latency heat map: `GET /api/v1/heatmap`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Heatmap {
    /// The number of the last step, as in the history.
    pub(crate) step: u64,
    /// The time of the last step, milliseconds since 1970.
    pub(crate) now_unix_ms: u64,
    pub(crate) step_ms: u64,
    /// What the buckets end before, ascending; what took longer than the last is in it too.
    pub(crate) bounds_ns: Vec<u64>,
    /// For each step, oldest first, the reads and writes in each bucket; `null`: not known.
    pub(crate) counts: Vec<Option<Vec<u32>>>,
}

/// Something that happened: `GET /api/v1/events` answers with a list of these, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Event {
    /// Counts from 1 since the start.
    pub(crate) id: u64,
    /// Milliseconds since 1970.
    pub(crate) unix_ms: u64,
    pub(crate) severity: Severity,
    /// Of what kind, in one word: `host`, `device`, `reactor`, `memory`, `export`, `volume`, `files`,
    /// `copy`, `control`.
    pub(crate) what: String,
    /// What it happened to, by its name.
    pub(crate) subject: String,
    /// What happened, for people.
    pub(crate) text: String,
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    Info,
    Warning,
    Error,
}

/// What `POST /api/v1/apply` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplyRequest {
    /// Only list the steps.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// Do what can be done now even where something waits for a restart.
    #[serde(default)]
    pub(crate) partial: bool,
    /// The wanted configuration; without it, the file that the appliance was started with.
    #[serde(default)]
    pub(crate) text: Option<String>,
}

/// What `POST /api/v1/apply` answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ApplyAnswer {
    pub(crate) steps: Vec<ApplyStep>,
    /// Whether every step was carried out.
    pub(crate) applied: bool,
    /// Why nothing was changed, where the steps do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<String>,
}

impl ApplyAnswer {
    /// One line with the reason if not every step was carried out.
    pub(crate) fn failure_reason(&self) -> Option<String> {
        if let Some(refused) = &self.refused {
            let later = self.steps.iter().filter(|it| it.effect == "restart");
            let failed = self.steps.iter().filter_map(|it| it.error.as_deref());
            let why: Vec<&str> = failed.chain(later.map(|it| it.text.as_str())).collect();
            return Some(format!("{refused}: {}", why.join("; ")));
        }
        let failed = self.steps.iter().find(|it| it.error.is_some());
        failed.map(|it| {
            let error = it.error.as_deref().unwrap_or_default();
            format!("{}: {error}", it.text)
        })
    }
}

/// One step from the running configuration to the wanted one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ApplyStep {
    /// What it does to hosts.
    #[cfg_attr(test, schemars(extend("enum" = ["live", "drain", "restart"])))]
    pub(crate) effect: String,
    /// What it does, for people.
    pub(crate) text: String,
    pub(crate) state: StepState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Commands that were not answered at the deadline and were cut off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cut_off: Vec<OutstandingCommands>,
    /// What was done although it may have lost something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) warning: Option<String>,
}

/// Commands of one queue that held a step up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OutstandingCommands {
    pub(crate) export: String,
    pub(crate) host: String,
    pub(crate) queue: u16,
    pub(crate) commands: usize,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum StepState {
    Planned,
    Done,
    Failed,
    /// Not tried, because one before it failed or a restart is needed.
    Skipped,
    /// Done, and undone again because another failed.
    Undone,
}

/// What `POST /api/v1/apply` answers to a configuration that is wrong: nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct WrongConfiguration {
    /// All problems, as `windlass check` prints them.
    pub(crate) error: String,
    /// None where the request is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<ConfigurationProblem>,
}

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ConfigurationProblem {
    /// Where in the text, from 1; none where it is about the whole.
    pub(crate) line: Option<usize>,
    pub(crate) column: Option<usize>,
    pub(crate) message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

/// What every refusal says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Refusal {
    /// What is wrong and what to do about it, for people.
    pub(crate) error: String,
}
