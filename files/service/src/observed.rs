//! What other threads see of the service, and what they ask it for.

use std::fmt;
use std::net::TcpListener;
use std::sync::mpsc::Sender;

use files_server::{ClientReport, Part, PartOptions, Share, VolumeIndex};
use files_store::{Error, Volume, VolumeUse};
use reactors::Counter;

use crate::accesses::Access;
use crate::core::{DeviceOfVolume, RecordStore};

/// What an operator asks the service for. A response is dropped if its receiver is gone.
#[derive(Debug)]
pub enum FileMessage {
    /// List the clients.
    Clients {
        /// The receiver of the response.
        reply: Sender<Vec<ClientReport>>,
    },
    /// Evict a client.
    Evict {
        /// Its number in the list.
        number: u64,
        /// The receiver of the response: whether there was such a client.
        reply: Sender<bool>,
    },
    /// Make the directories of shares, and set their quotas.
    PrepareParts {
        /// The directories with their quotas.
        parts: Vec<PartOptions>,
        /// The receiver of the response, when they are durable: the parts, or the index of the first
        /// one that cannot be made or stored, and why.
        reply: Sender<Result<Vec<Part>, (usize, Error)>>,
    },
    /// A request of the control path to a device.
    Access(Access),
    /// Forget a volume that [`Self::ReplaceVolume`] has brought and that is not served yet, because it is
    /// to be opened once more.
    PrepareReplacement {
        /// Its place.
        index: VolumeIndex,
        /// The receiver of the response.
        reply: Sender<PreparedReplacement>,
    },
    /// Continue with a volume that was lost as it was opened again, when no request uses it any more.
    ReplaceVolume {
        /// Its place.
        index: VolumeIndex,
        /// The volume.
        volume: Box<Volume>,
        /// Answers when it is served.
        reply: Sender<()>,
    },
    /// Serve one more volume, which has no share yet.
    AddVolume {
        /// The volume.
        volume: Box<Volume>,
        /// Its device.
        device: DeviceOfVolume,
        /// The receiver of the response: its place, or the volume if there is none.
        reply: Sender<Result<VolumeIndex, Box<Volume>>>,
    },
    /// Return a volume when no request uses it any more and all of its changes are durable.
    RemoveVolume {
        /// Its place.
        index: VolumeIndex,
        /// The receiver of the response: the volume; `None` if a share has it.
        reply: Sender<Option<Box<Volume>>>,
    },
    /// Keep a volume that is to be removed and is still there.
    KeepVolume {
        /// Its place.
        index: VolumeIndex,
        /// The receiver of the response: whether it was still there.
        reply: Sender<bool>,
    },
    /// Change a listener of a transport.
    ChangeListener(ListenerChange),
    /// Store the records of clients from now on, those of present ones included.
    KeepRecords(NewRecords),
    /// Replace the shares.
    SetShares {
        /// The new ones.
        shares: Vec<Share>,
        /// Answers when they are served.
        reply: Sender<()>,
    },
}

/// Whether a volume can be replaced.
#[derive(Debug)]
pub enum PreparedReplacement {
    /// It is not lost.
    NotLost,
    /// It is lost. What it had in memory, if that is not freed yet.
    Lost(Option<Box<Volume>>),
}

/// Where the records of clients are stored from now on.
pub struct NewRecords {
    /// The store, which has none of this server's.
    pub store: Box<dyn RecordStore + Send>,
    /// The receiver of the response: whether they are stored there.
    pub reply: Sender<bool>,
}

impl fmt::Debug for NewRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewRecords").finish_non_exhaustive()
    }
}

/// A change of the listeners over TCP.
#[derive(Debug)]
pub enum ListenerChange {
    /// Accept connections of one more listener, which does not block.
    Add {
        /// A number that no other listener has.
        number: u32,
        /// The listener.
        listener: TcpListener,
        /// The receiver of the response: whether connections are accepted.
        reply: Sender<bool>,
    },
    /// Close a listener and its connections. Their requests continue.
    Remove {
        /// Its number.
        number: u32,
        /// Answers when they are closed.
        reply: Sender<()>,
    },
}

/// The counters and levels of the service, written only by its reactor. Levels are those of the last
/// second.
#[derive(Debug, Default)]
pub struct ServiceCounters {
    /// Connections that were accepted.
    pub connections_accepted: Counter,
    /// Level: connections.
    pub connections: Counter,
    /// Level: requests that are executed or whose reply is not sent.
    pub requests_in_flight: Counter,
    /// Bytes of READs that were sent from the devices' own memory.
    pub read_bytes_borrowed: Counter,
    /// Bytes of READs that were copied from it, because writers or the client had to wait.
    pub read_bytes_copied: Counter,
    /// Bytes of WRITEs that a device took from where they were received.
    pub write_bytes_inline: Counter,
    /// Bytes of WRITEs that were copied into memory for a device.
    pub write_bytes_copied: Counter,
    /// Bytes of WRITEs that were read by RDMA into memory for a device.
    pub write_bytes_fetched: Counter,
}

/// The use and the limits of a volume, written only by its reactor once in a second.
#[derive(Debug, Default)]
pub struct VolumeLevels {
    /// Bytes for data.
    pub data_bytes: Counter,
    /// Bytes that can be allocated.
    pub free_bytes: Counter,
    /// Objects.
    pub inodes: Counter,
    /// Memory of the metadata in bytes, and its limit.
    pub memory_bytes: Counter,
    /// Its limit in bytes.
    pub memory_bytes_max: Counter,
    /// Used bytes of the log; a checkpoint empties it.
    pub log_bytes: Counter,
    /// Size of the log in bytes; 0 for a volatile volume.
    pub log_bytes_max: Counter,
    /// 1 if the device failed to store metadata, so that nothing can be changed any more.
    pub has_failed: Counter,
    /// 1 if the device is gone, so that clients wait until the volume is opened again.
    pub is_lost: Counter,
}

impl VolumeLevels {
    /// Publishes the levels of a volume.
    pub(crate) fn set(&self, volume: &Volume) {
        let VolumeUse {
            data_bytes,
            free_bytes,
            retired_bytes,
            inodes,
            memory_bytes,
            memory_bytes_max,
            log_bytes,
            log_bytes_max,
        } = volume.usage();
        self.data_bytes.set(data_bytes);
        self.free_bytes.set(free_bytes + retired_bytes);
        self.inodes.set(inodes);
        self.memory_bytes.set(memory_bytes);
        self.memory_bytes_max.set(memory_bytes_max);
        self.log_bytes.set(log_bytes);
        self.log_bytes_max.set(log_bytes_max);
        let is_lost = volume.is_lost();
        self.has_failed
            .set(u64::from(volume.has_failed() && !is_lost));
        self.is_lost.set(u64::from(is_lost));
    }
}
