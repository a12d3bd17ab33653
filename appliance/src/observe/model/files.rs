//! The JSON of the file service: what it serves, its clients, and the eviction of a client.

use appliance_config::{ByteSize, FileListener, Share, Volume};
use serde::{Deserialize, Serialize};

use crate::observe::measured::measured;
use crate::observe::observation::{FilesSample, ShareSample, VolumeSample};

/// The file service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FilesStatus {
    pub(crate) service: FileServiceStatus,
    /// In the configuration's order.
    pub(crate) volumes: Vec<VolumeStatus>,
    /// In the configuration's order.
    pub(crate) shares: Vec<ShareStatus>,
    /// In the configuration's order.
    pub(crate) listeners: Vec<FileListenerStatus>,
    /// The operations that clients have asked for.
    pub(crate) operations: Vec<FileOperationStatus>,
}

measured! {
    /// What concerns all shares. Levels are at most a second old.
    struct FileServiceStatus from seen: &FilesSample {
        /// Connections of clients of files.
        connections: u64 = seen.service.connections, Gauge "files_connections";
        /// Connections of clients of files that were accepted.
        connections_accepted: u64 = seen.service.connections_accepted,
            Counter "files_connections_accepted";
        /// Requests of clients of files that are executed or whose reply is not sent.
        requests_in_flight: u64 = seen.service.requests_in_flight,
            Gauge "files_requests_in_flight";
        /// Requests of clients of files, each a sequence of operations.
        requests: u64 = seen.service.requests, Counter "files_requests";
        /// Retransmissions that were answered from the replay cache.
        replays: u64 = seen.service.replays, Counter "files_replays";
        /// Clients of files.
        clients: u64 = seen.service.clients, Gauge "files_clients";
        /// Sessions of clients of files.
        sessions: u64 = seen.service.sessions, Gauge "files_sessions";
        /// Open files, each counted for each of its owners.
        opens: u64 = seen.service.opens, Gauge "files_opens";
        /// Byte-range locks.
        locks: u64 = seen.service.locks, Gauge "files_locks";
        /// Clients of files that lost their state after their lease had expired.
        clients_expired: u64 = seen.service.clients_expired, Counter "files_clients_expired";
        /// Clients of files that operators evicted.
        clients_evicted: u64 = seen.service.clients_evicted, Counter "files_clients_evicted";
        /// Bytes of READs that were sent from the memory of devices.
        read_bytes_borrowed: u64 = seen.service.read_bytes_borrowed,
            CounterBytes "files_read_borrowed";
        /// Bytes of READs that were copied from the memory of devices.
        read_bytes_copied: u64 = seen.service.read_bytes_copied, CounterBytes "files_read_copied";
        /// Bytes of WRITEs that devices took from where they were received.
        write_bytes_inline: u64 = seen.service.write_bytes_inline,
            CounterBytes "files_write_inline";
        /// Bytes of WRITEs that were copied into memory for devices.
        write_bytes_copied: u64 = seen.service.write_bytes_copied,
            CounterBytes "files_write_copied";
        /// Bytes of WRITEs that were read by RDMA into memory for devices.
        write_bytes_fetched: u64 = seen.service.write_bytes_fetched,
            CounterBytes "files_write_fetched";
        /// Connections of clients of files over RDMA.
        rdma_connections: u64 = seen.service.rdma_connections, Gauge "files_rdma_connections";
        /// RDMA devices that serve no files because they failed or were removed.
        rdma_devices_missing: u64 = seen.service.rdma_devices_missing,
            Gauge "files_rdma_devices_missing";
        /// Listeners for files over RDMA whose device or address is gone. They are tried again.
        rdma_listeners_down: u64 = seen.service.rdma_listeners_down,
            Gauge "files_rdma_listeners_down";
        /// Connections over RDMA that were closed for an error or a violation of the protocol.
        rdma_connections_failed: u64 = seen.service.rdma_connections_failed,
            Counter "files_rdma_connections_failed";
        /// Calls over RDMA whose header or chunks cannot be used.
        rdma_calls_refused: u64 = seen.service.rdma_calls_refused,
            Counter "files_rdma_calls_refused";
        /// Bytes that were written into memory of clients by RDMA.
        rdma_bytes_written: u64 = seen.service.rdma_bytes_written,
            CounterBytes "files_rdma_written";
        /// Bytes that were read from memory of clients by RDMA.
        rdma_bytes_read: u64 = seen.service.rdma_bytes_read, CounterBytes "files_rdma_read";
        /// Whether clients reclaim after a restart, so that nothing new is opened.
        in_grace: bool = seen.service.in_grace, Gauge "files_in_grace";
    }
}

/// The input of the status of a volume.
pub(crate) struct VolumeInput<'o> {
    pub(crate) volume: &'o Volume,
    /// `None` if it is not served.
    pub(crate) seen: Option<&'o VolumeSample>,
}

measured! {
    /// A volume.
    struct VolumeStatus from input: VolumeInput<'_> {
        /// Its name in the configuration.
        name: String = input.volume.name.to_string();
        /// The name of its device.
        device: String = input.volume.device.to_string();
        /// Whether it is served.
        served: bool = input.seen.is_some(), Gauge "volume_served";
        /// Whether its files survive a restart.
        durable: bool = input.seen.is_some_and(|it| it.log_bytes_max > 0);
        /// Whether its metadata could not be stored, so that nothing can be changed until a restart.
        read_only: bool = input.seen.is_some_and(|it| it.has_failed), Gauge "volume_read_only";
        /// Whether its device is gone, so that clients wait.
        device_gone: bool = input.seen.is_some_and(|it| it.is_lost), Gauge "volume_device_gone";
        /// Its bytes for data.
        data_bytes: u64 = input.seen.map_or(0, |it| it.data_bytes), GaugeBytes "volume_data";
        /// Its bytes that no file has.
        free_bytes: u64 = input.seen.map_or(0, |it| it.free_bytes), GaugeBytes "volume_free";
        /// Its files, directories and other objects.
        inodes: u64 = input.seen.map_or(0, |it| it.inodes), Gauge "volume_inodes";
        /// Memory of its metadata.
        metadata_bytes: u64 = input.seen.map_or(0, |it| it.memory_bytes),
            GaugeBytes "volume_metadata";
        /// Most memory of its metadata.
        metadata_bytes_max: u64 = input.seen.map_or(0, |it| it.memory_bytes_max),
            GaugeBytes "volume_metadata_limit";
        /// Used bytes of its log, which a checkpoint empties.
        log_bytes: u64 = input.seen.map_or(0, |it| it.log_bytes), GaugeBytes "volume_log";
        /// The size of its log; 0 if its files do not survive a restart.
        log_bytes_max: u64 = input.seen.map_or(0, |it| it.log_bytes_max),
            GaugeBytes "volume_log_size";
    }
}

/// The input of the status of a share.
pub(crate) struct ShareInput<'o> {
    pub(crate) share: &'o Share,
    /// `None` if it is not served.
    pub(crate) seen: Option<&'o ShareSample>,
}

measured! {
    /// A share.
    struct ShareStatus from input: ShareInput<'_> {
        /// Its name in the configuration.
        name: String = input.share.name.to_string();
        /// The name of its volume.
        volume: String = input.share.volume.to_string();
        /// Whether clients are kept from changing anything.
        read_only: bool = input.share.read_only;
        /// The directory of the volume that it is; none if it is the whole volume.
        directory: Option<String> = input.share.directory.as_ref().map(ToString::to_string);
        /// Bytes of blocks of its files. Of a share of a whole volume, directories of other shares
        /// do not count.
        bytes_used: u64 = input.seen.map_or(0, |it| it.bytes_used), GaugeBytes "share_used";
        /// Most bytes of its files, 0 without a quota.
        bytes_used_max: u64 = input.share.max_size.map_or(0, ByteSize::bytes),
            GaugeBytes "share_quota";
        /// Files and other objects in a share.
        files: u64 = input.seen.map_or(0, |it| it.inodes.saturating_sub(1)), Gauge "share_files";
        /// Most files and other objects in a share, 0 without a quota.
        files_max: u64 = input.share.max_files.unwrap_or(0), Gauge "share_files_quota";
        /// Successful READs in a share.
        reads: u64 = input.seen.map_or(0, |it| it.reads), Counter "share_reads";
        /// Bytes of successful READs in a share.
        bytes_read: u64 = input.seen.map_or(0, |it| it.bytes_read), CounterBytes "share_read";
        /// Successful WRITEs in a share.
        writes: u64 = input.seen.map_or(0, |it| it.writes), Counter "share_writes";
        /// Bytes of successful WRITEs in a share.
        bytes_written: u64 = input.seen.map_or(0, |it| it.bytes_written),
            CounterBytes "share_written";
    }
}

/// A listener of the file service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FileListenerStatus {
    /// Its name in the configuration.
    pub(crate) name: String,
    /// `tcp` or `rdma`.
    pub(crate) transport: String,
    /// What it is bound to.
    pub(crate) address: String,
}

impl FileListenerStatus {
    pub(crate) fn read(listener: &FileListener, bound: Option<String>) -> Self {
        Self {
            name: listener.name.to_string(),
            transport: listener.transport.word().to_owned(),
            address: bound.unwrap_or_else(|| listener.address.to_string()),
        }
    }
}

/// The executions of an operation of NFS since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationSample {
    pub(crate) name: &'static str,
    pub(crate) executed: u64,
    pub(crate) failed: u64,
}

measured! {
    /// An operation of NFS.
    struct FileOperationStatus from seen: &OperationSample {
        /// The specification's name.
        name: String = seen.name.to_owned();
        /// Executions of an operation of NFS, failed ones included.
        executed: u64 = seen.executed, Counter "files_operations";
        /// Executions of an operation of NFS that failed. Many failures are ordinary, such as names
        /// that are looked up and do not exist.
        failed: u64 = seen.failed, Counter "files_operation_failures";
    }
}

/// A client of files: `GET /api/v1/clients` answers with a list of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FileClientStatus {
    /// Its number, hexadecimal, which no other client has; none over HTTP without a token.
    pub(crate) id: Option<String>,
    /// What it calls itself; none over HTTP without a token.
    pub(crate) name: Option<String>,
    /// Where its latest request came from; none over HTTP without a token.
    pub(crate) address: Option<String>,
    /// Time since its latest request, by which it renews its lease.
    pub(crate) silent_ms: u64,
    /// Whether its lease has expired: it loses its state when another client needs it.
    pub(crate) expired: bool,
    pub(crate) sessions: u64,
    /// Open files.
    pub(crate) opens: u64,
    /// Byte-range locks.
    pub(crate) locks: u64,
}

/// What `POST /api/v1/clients/evict` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct EvictClientRequest {
    /// The number of a client as the list has it, or the name or address of one or more clients.
    pub(crate) client: String,
}

/// What `POST /api/v1/clients/evict` answers: the clients have no sessions, opens and locks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct EvictClientAnswer {
    pub(crate) client: String,
    /// Clients that were evicted.
    pub(crate) clients: usize,
    /// What was done, for people.
    pub(crate) text: String,
}
