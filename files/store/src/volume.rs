//! A volume in use: decides whether a change is possible, records it and applies it.

use crate::change::{Change, NewNode, Time};
use crate::check;
use crate::codec::Stored;
use crate::error::Error;
use crate::layout::{SHARES_MAX, Uuid};
use crate::limits::BLOCK_BYTES;
use crate::log::{DiskCompletion, DiskRequest, Log};
use crate::numbers::NumberMap;
use crate::space::Run;
use crate::state::{
    Attributes, Directory, File, Handle, InodeId, Node, ROOT, ShareId, ShareUse, State,
};

mod data;
mod names;
mod view;

use data::InFlight;
pub use data::{MovePiece, Range, Seek, WriteId, WritePlan};
pub use names::{Created, DirectoryEntry, NewObject, XattrMode};
pub use view::FileView;

/// Room for a record that frees an object, behind the record that removed its last link.
const REAP_BYTES: usize = 16;

/// Identifies the batch of a change. A ticket of a volatile volume is durable at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Whether a change is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It survives a power cut.
    Durable,
    /// Carry out the requests of [`Volume::poll`].
    Pending,
    /// The device failed or was gone; it is not known whether it is durable.
    Failed,
}

/// What a volume on a volatile device is made with.
#[derive(Clone, Copy, Debug)]
pub struct VolatileOptions {
    /// Identifier of the volume, drawn at random.
    pub uuid: Uuid,
    /// Size of the device in bytes.
    pub device_bytes: u64,
    /// Limit of the memory for metadata in bytes.
    pub memory_bytes: u64,
}

/// Use and limits of a volume; nothing of one that is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeUse {
    /// Bytes for data.
    pub data_bytes: u64,
    /// Bytes that can be allocated now.
    pub free_bytes: u64,
    /// Bytes that can be allocated when the log is durable.
    pub retired_bytes: u64,
    /// Number of objects.
    pub inodes: u64,
    /// The account of metadata in bytes.
    pub memory_bytes: u64,
    /// Its limit.
    pub memory_bytes_max: u64,
    /// Used bytes of the log; a checkpoint empties it.
    pub log_bytes: u64,
    /// Size of the log in bytes; 0 for a volatile volume.
    pub log_bytes_max: u64,
}

impl VolumeUse {
    /// Those of a state without writes in flight and without a log.
    pub(crate) fn of(state: &State, data: Run, memory_bytes_max: u64) -> Self {
        Self {
            data_bytes: data.count * BLOCK_BYTES,
            free_bytes: state.space.free_blocks() * BLOCK_BYTES,
            retired_bytes: state.space.retired_blocks() * BLOCK_BYTES,
            inodes: state.inodes.len() as u64,
            memory_bytes: state.bytes(),
            memory_bytes_max,
            log_bytes: 0,
            log_bytes_max: 0,
        }
    }
}

/// A volume.
#[derive(Debug)]
pub struct Volume {
    state: State,
    /// `None` for a volatile volume.
    log: Option<Log>,
    data: Run,
    memory_bytes_max: u64,
    /// How often each object is open, by a client or by a write in flight.
    opens: NumberMap<u64, u32>,
    writes: Vec<InFlight>,
    next_write: u64,
    /// The account of metadata and blocks that writes in flight will need.
    reserved_bytes: u64,
    reserved_blocks: NumberMap<u32, u64>,
    /// Whether the device was gone. Then nothing else is left.
    is_lost: bool,
    /// What it was when it was lost.
    former: Option<Box<Volume>>,
}

impl Volume {
    /// An empty volume on a device that keeps nothing: no log, no format.
    #[must_use]
    pub fn volatile(options: &VolatileOptions) -> Self {
        let data = Run {
            start: 0,
            count: options.device_bytes / BLOCK_BYTES,
        };
        let state = State::new(options.uuid, data);
        Self::new(state, None, data, options.memory_bytes)
    }

    /// The volume that was read from a durable device.
    pub(crate) fn durable(state: State, log: Log) -> Self {
        let (data, memory) = (log.layout().data(), log.layout().memory_bytes);
        let mut volume = Self::new(state, Some(log), data, memory);
        let boots = volume.state.boots + 1;
        volume.apply(&Change::Opened { boots }, false);
        volume
    }

    fn new(state: State, log: Option<Log>, data: Run, memory_bytes_max: u64) -> Self {
        Self {
            state,
            log,
            data,
            memory_bytes_max,
            opens: NumberMap::default(),
            writes: Vec::new(),
            next_write: 0,
            reserved_bytes: 0,
            reserved_blocks: NumberMap::default(),
            is_lost: false,
            former: None,
        }
    }

    /// The device was gone, or another volume takes its place: what is in memory may not be what the
    /// device has any more. No request is made, and every operation fails with [`Error::Lost`].
    pub fn lose(&mut self) {
        let uuid = self.state.uuid;
        let data = Run { start: 0, count: 0 };
        let lost = Self {
            is_lost: true,
            ..Self::new(State::new(uuid, data), self.log.take(), data, 0)
        };
        self.former = Some(Box::new(std::mem::replace(self, lost)));
        if let Some(log) = &mut self.log {
            log.fail();
        }
    }

    /// What was in memory before [`Self::lose`], once: to free it takes long if there are many objects.
    pub fn take_former(&mut self) -> Option<Box<Volume>> {
        self.former.take()
    }

    /// Whether [`Self::lose`] has ended it.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The identifier of the volume.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.state.uuid
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> InodeId {
        InodeId(ROOT)
    }

    /// The object of a handle.
    ///
    /// # Errors
    /// Returns [`Error::Stale`] if it does not exist any more, or is in another volume.
    pub fn resolve(&self, handle: &Handle) -> Result<InodeId, Error> {
        let found = self.inode(handle.inode)?;
        match self.is_of(found, handle) {
            true => Ok(handle.inode),
            false => Err(Error::Stale),
        }
    }

    /// Whether an object with a handle's number is that of the handle.
    #[inline]
    fn is_of(&self, found: &crate::state::Inode, handle: &Handle) -> bool {
        found.generation == handle.generation && self.state.uuid == handle.volume
    }

    /// The share of an object.
    ///
    /// # Errors
    /// Returns [`Error::Stale`] if it does not exist.
    pub fn share(&self, inode: InodeId) -> Result<ShareId, Error> {
        Ok(ShareId(self.inode(inode)?.share))
    }

    /// The attributes of an object.
    ///
    /// # Errors
    /// Returns [`Error::Stale`] if it does not exist.
    pub fn attributes(&self, inode: InodeId) -> Result<Attributes, Error> {
        let found = self.state.attributes(inode.0);
        found
            .filter(|_| !self.is_lost)
            .ok_or_else(|| self.missing())
    }

    /// Use and limits of the volume.
    #[must_use]
    pub fn usage(&self) -> VolumeUse {
        if self.is_lost {
            return VolumeUse::default();
        }
        let log = self.log.as_ref().map(Log::usage).unwrap_or_default();
        VolumeUse {
            memory_bytes: self.state.bytes() + self.reserved_bytes,
            log_bytes: log.0,
            log_bytes_max: log.1,
            ..VolumeUse::of(&self.state, self.data, self.memory_bytes_max)
        }
    }

    /// Use and quotas of a share.
    #[must_use]
    pub fn share_use(&self, share: ShareId) -> ShareUse {
        self.state.shares.get(&share.0).copied().unwrap_or_default()
    }

    /// Sets the quotas of a share: objects and blocks of 4 KiB. What it has more than that, it keeps.
    ///
    /// # Errors
    /// Returns [`Error::NoSpace`] if the volume has too many shares, and [`Error::Busy`] or
    /// [`Error::Io`] if the change cannot be recorded.
    pub fn set_quota(
        &mut self,
        share: ShareId,
        inodes_max: u64,
        blocks_max: u64,
    ) -> Result<Ticket, Error> {
        if self.is_lost {
            return Err(Error::Lost);
        }
        let now = self.share_use(share);
        if (now.inodes_max, now.blocks_max) == (inodes_max, blocks_max) {
            return Ok(self.commit());
        }
        let is_known = self.state.shares.contains_key(&share.0);
        if !is_known && self.state.shares.len() >= SHARES_MAX {
            return Err(Error::NoSpace);
        }
        self.record(&Change::SetQuota {
            share: share.0,
            inodes: inodes_max,
            blocks: blocks_max,
        })
    }

    /// Opens an object: it exists until it is closed, also without links.
    ///
    /// # Errors
    /// Returns [`Error::Stale`] if it does not exist.
    pub fn open(&mut self, inode: InodeId) -> Result<(), Error> {
        self.inode(inode)?;
        *self.opens.entry(inode.0).or_default() += 1;
        Ok(())
    }

    /// Closes an object once. If it has no links, it is freed with the last close.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if it is not open, and [`Error::Busy`] if the log has no room; it
    /// is still open then. What was open on a lost volume is closed.
    pub fn close(&mut self, inode: InodeId) -> Result<(), Error> {
        if self.is_lost {
            return Ok(());
        }
        let count = self.opens.get(&inode.0).copied().ok_or(Error::Invalid)?;
        if count > 1 {
            self.opens.insert(inode.0, count - 1);
            return Ok(());
        }
        if self.state.orphans.contains(&inode.0) {
            self.record(&Change::Reap { inode: inode.0 })?;
        }
        self.opens.remove(&inode.0);
        Ok(())
    }

    /// Frees up to `max` objects without links that are not open. The user calls it until it
    /// returns 0, when clients cannot reclaim opens from before a restart any more.
    pub fn reap_orphans(&mut self, max: usize) -> usize {
        let unused = self.state.orphans.iter();
        let unused = unused.filter(|id| !self.opens.contains_key(id)).take(max);
        let unused: Vec<u64> = unused.copied().collect();
        let reaped = unused
            .iter()
            .take_while(|&&inode| self.record(&Change::Reap { inode }).is_ok());
        reaped.count()
    }

    /// The ticket of every change so far. Data of writes that ended before are durable with it.
    #[must_use]
    pub fn commit(&self) -> Ticket {
        Ticket(self.log.as_ref().map_or(0, Log::last_batch))
    }

    /// Whether a change is durable.
    #[must_use]
    pub fn progress(&self, ticket: Ticket) -> Progress {
        match &self.log {
            _ if self.is_lost => Progress::Failed,
            Some(log) if ticket.0 <= log.durable() => Progress::Durable,
            Some(log) if log.has_failed() => Progress::Failed,
            Some(_) => Progress::Pending,
            None => Progress::Durable,
        }
    }

    /// Whether nothing is written to the device but the data of files.
    #[must_use]
    pub fn is_volatile(&self) -> bool {
        self.log.is_none()
    }

    /// Whether the device failed to store metadata, so that nothing can be changed any more.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.log.as_ref().is_some_and(Log::has_failed)
    }

    /// Whether no request to the device is needed or in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_lost || self.log.as_ref().is_none_or(Log::is_idle)
    }

    /// The next request to the device, if any. Several can be in flight.
    pub fn poll(&mut self) -> Option<DiskRequest> {
        let state = &self.state;
        self.log.as_mut()?.poll(|body| state.put(body))
    }

    /// Takes the end of a request of [`Self::poll`].
    pub fn complete(&mut self, completion: DiskCompletion) {
        if let Some(log) = &mut self.log {
            log.complete(completion);
            self.state.space.reuse(log.durable());
        }
    }

    /// The inconsistencies of the metadata; none in a volume that works.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let reserved = self.reserved_blocks.values().sum();
        check::problems(&self.state, self.data, reserved)
    }

    fn inode(&self, inode: InodeId) -> Result<&crate::state::Inode, Error> {
        let found = self.state.inodes.get(&inode.0);
        found
            .filter(|_| !self.is_lost)
            .ok_or_else(|| self.missing())
    }

    /// Why an object does not exist.
    fn missing(&self) -> Error {
        match self.is_lost {
            true => Error::Lost,
            false => Error::Stale,
        }
    }

    fn directory(&self, inode: InodeId) -> Result<&Directory, Error> {
        match &self.inode(inode)?.node {
            Node::Directory(directory) => Ok(directory),
            _ => Err(Error::NotDirectory),
        }
    }

    fn file(&self, inode: InodeId) -> Result<&File, Error> {
        self.file_view(inode).map(|it| it.file)
    }

    /// Checks that the account of metadata may grow.
    fn check_memory(&self, growth: u64) -> Result<(), Error> {
        let bytes = self.state.bytes() + self.reserved_bytes + growth;
        (bytes <= self.memory_bytes_max)
            .then_some(())
            .ok_or(Error::NoSpace)
    }

    /// Checks that a share may have further objects and blocks.
    fn check_quota(&self, share: u32, inodes: u64, blocks: u64) -> Result<(), Error> {
        let used = self.share_use(ShareId(share));
        let reserved = self.reserved_blocks.get(&share).copied().unwrap_or(0);
        let has_inodes = inodes == 0 || used.inodes + inodes <= used.inodes_max;
        let all = used.blocks + reserved + blocks;
        let has_blocks = blocks == 0 || all <= used.blocks_max;
        (has_inodes && has_blocks).then_some(()).ok_or(Error::Quota)
    }

    /// Records a change that is possible, and applies it.
    fn record(&mut self, change: &Change) -> Result<Ticket, Error> {
        if self.is_lost {
            return Err(Error::Lost);
        }
        if let Some(log) = &self.log {
            if log.has_failed() {
                return Err(Error::Io);
            }
            let mut record = Vec::new();
            change.put(&mut record);
            if !log.has_room(record.len() + 4 + REAP_BYTES) {
                return Err(Error::Busy);
            }
        }
        Ok(self.apply(change, true))
    }

    /// Applies a change and adds it to the log, which has room.
    fn apply(&mut self, change: &Change, allocated: bool) -> Ticket {
        let batch = self.log.as_ref().map(Log::next_batch);
        let applied = self.state.apply(change, batch, allocated);
        applied.expect("the change was checked before");
        if let Some(log) = &mut self.log {
            let mut record = Vec::new();
            change.put(&mut record);
            log.push(&record, matches!(change, Change::Write { .. }));
        }
        Ticket(batch.unwrap_or(0))
    }

    /// Frees an object that has lost its last link, unless it is open. The log has room.
    fn reap_if_unused(&mut self, inode: u64) {
        if self.state.orphans.contains(&inode) && !self.opens.contains_key(&inode) {
            self.apply(&Change::Reap { inode }, true);
        }
    }
}

/// The time of a change that the user gives, checked.
fn checked(time: Time) -> Result<Time, Error> {
    const NANOSECONDS: u32 = 1_000_000_000;
    (time.nanoseconds < NANOSECONDS)
        .then_some(time)
        .ok_or(Error::Invalid)
}

/// What a new object is, checked.
fn checked_node(node: NewNode<'_>) -> Result<NewNode<'_>, Error> {
    match node {
        NewNode::Link([]) => Err(Error::Invalid),
        NewNode::Link(target) if target.len() > crate::limits::LINK_TARGET_BYTES_MAX => {
            Err(Error::NameTooLong)
        }
        node => Ok(node),
    }
}
