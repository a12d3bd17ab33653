//! The metadata of a volume in memory, and their account.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::change::{Device, Time};
use crate::codec::Bytes;
use crate::layout::Uuid;
use crate::numbers::NumberMap;
use crate::ranges::Ranges;
use crate::space::{Run, Space};

mod apply;
mod stored;

/// The number of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u64);

/// The number of a share, a part of the volume with quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareId(pub u32);

/// The root directory.
pub(crate) const ROOT: u64 = 1;

/// Permissions of the root directory and of those of parts; user and group 0 own them.
pub(crate) const ROOT_MODE: u32 = 0o755;

/// Cookies of the first entry of a directory; lower ones have a meaning in protocols.
const FIRST_COOKIE: u64 = 3;

// The account of memory, with the reserves of tables that grow by doubling. The byte form of a
// checkpoint is always shorter.
const INODE_BYTES: u64 = 576;
const ENTRY_BYTES: u64 = 320;
const MAPPING_BYTES: u64 = 64;
const WRITTEN_BYTES: u64 = 48;
const XATTR_BYTES: u64 = 128;
const SHARED_BYTES: u64 = 48;

/// A handle of an object, which survives restarts. It is stale when the object does not exist any
/// more, also if its number was used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// The volume.
    pub volume: Uuid,
    /// The object.
    pub inode: InodeId,
    /// Which object with this number.
    pub generation: u32,
}

impl Handle {
    /// Length of its byte form.
    pub const BYTES: usize = 28;

    /// The byte form.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.volume.0);
        bytes[16..24].copy_from_slice(&self.inode.0.to_be_bytes());
        bytes[24..].copy_from_slice(&self.generation.to_be_bytes());
        bytes
    }

    /// The handle of a byte form.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (volume, rest) = bytes.split_at(16);
        let (inode, generation) = rest.split_at(8);
        let array = |bytes: &[u8]| bytes.try_into().unwrap_or_default();
        Self {
            volume: Uuid(volume.try_into().unwrap_or_default()),
            inode: InodeId(u64::from_be_bytes(array(inode))),
            generation: generation
                .try_into()
                .map(u32::from_be_bytes)
                .unwrap_or_default(),
        }
    }
}

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Link,
    /// Block device.
    Block(Device),
    /// Character device.
    Character(Device),
    /// Socket.
    Socket,
    /// FIFO.
    Fifo,
}

/// The attributes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Handle.
    pub handle: Handle,
    /// Type.
    pub kind: Kind,
    /// Permissions.
    pub mode: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of links.
    pub links: u32,
    /// Share.
    pub share: ShareId,
    /// Size in bytes: data of a file, target of a link, entries of a directory.
    pub size: u64,
    /// Bytes of the device that the object occupies.
    pub used: u64,
    /// Changes with every change of the object and never returns to an earlier value.
    pub change: u64,
    /// Time of the last access that was set.
    pub accessed: Time,
    /// Time of the last change of the data.
    pub modified: Time,
    /// Time of the last change.
    pub changed: Time,
    /// Time of the creation.
    pub created: Time,
}

/// Limits and use of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareUse {
    /// Limit of its objects.
    pub inodes_max: u64,
    /// Limit of its blocks. A block that several files share counts for each.
    pub blocks_max: u64,
    /// Number of its objects.
    pub inodes: u64,
    /// Number of its blocks.
    pub blocks: u64,
}

impl Default for ShareUse {
    fn default() -> Self {
        Self {
            inodes_max: u64::MAX,
            blocks_max: u64::MAX,
            inodes: 0,
            blocks: 0,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) size: u64,
    /// Blocks of the file, with the block of the device and the count of each run.
    pub(crate) blocks: BTreeMap<u64, (u64, u64)>,
    pub(crate) block_count: u64,
    /// The bytes that were written. Others read as zeroes.
    pub(crate) written: Ranges,
}

#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) parent: u64,
    /// Name and object of each entry, by cookie.
    pub(crate) entries: BTreeMap<u64, (Bytes, u64)>,
    pub(crate) index: HashMap<Bytes, u64>,
    pub(crate) name_bytes: u64,
    pub(crate) next_cookie: u64,
}

#[derive(Debug)]
pub(crate) enum Node {
    File(File),
    Directory(Directory),
    Link(Bytes),
    Block(Device),
    Character(Device),
    Socket,
    Fifo,
}

#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) generation: u32,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) links: u32,
    pub(crate) share: u32,
    pub(crate) change: u64,
    pub(crate) accessed: Time,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    pub(crate) created: Time,
    pub(crate) xattrs: BTreeMap<Bytes, Bytes>,
    pub(crate) xattr_bytes: u64,
    pub(crate) node: Node,
}

impl Inode {
    /// The bytes that the account counts for the object.
    pub(crate) fn bytes(&self) -> u64 {
        let node = match &self.node {
            Node::File(file) => {
                file.blocks.len() as u64 * MAPPING_BYTES + file.written.len() as u64 * WRITTEN_BYTES
            }
            Node::Directory(it) => it.entries.len() as u64 * ENTRY_BYTES + it.name_bytes,
            Node::Link(target) => target.len() as u64,
            Node::Block(_) | Node::Character(_) | Node::Socket | Node::Fifo => 0,
        };
        INODE_BYTES + self.xattr_bytes + node
    }

    fn block_count(&self) -> u64 {
        match &self.node {
            Node::File(file) => file.block_count,
            _ => 0,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match &self.node {
            Node::File(_) => Kind::File,
            Node::Directory(_) => Kind::Directory,
            Node::Link(_) => Kind::Link,
            Node::Block(device) => Kind::Block(*device),
            Node::Character(device) => Kind::Character(*device),
            Node::Socket => Kind::Socket,
            Node::Fifo => Kind::Fifo,
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.node, Node::Directory(_))
    }
}

/// The bytes that the account counts for parts of objects, in advance.
pub(crate) mod cost {
    use super::{ENTRY_BYTES, INODE_BYTES, MAPPING_BYTES, WRITTEN_BYTES, XATTR_BYTES};

    pub(crate) const fn inode() -> u64 {
        INODE_BYTES
    }

    pub(crate) const fn entry(name: &[u8]) -> u64 {
        ENTRY_BYTES + name.len() as u64
    }

    /// Runs of blocks that are added, each of which may divide another one.
    pub(crate) const fn mappings(count: usize) -> u64 {
        2 * (count as u64 + 1) * (MAPPING_BYTES + WRITTEN_BYTES)
    }

    pub(crate) const fn xattr(name: usize, value: usize) -> u64 {
        XATTR_BYTES + name as u64 + value as u64
    }
}

/// The metadata of a volume.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) uuid: Uuid,
    /// How often the volume was opened.
    pub(crate) boots: u32,
    pub(crate) next_inode: u64,
    pub(crate) inodes: NumberMap<u64, Inode>,
    pub(crate) shares: BTreeMap<u32, ShareUse>,
    /// Objects without links.
    pub(crate) orphans: BTreeSet<u64>,
    pub(crate) space: Space,
    /// The account of all objects in bytes.
    inode_bytes: u64,
}

/// A change that the state does not permit: the log does not belong to the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inconsistent;

impl State {
    /// A volume with nothing but its root directory.
    pub(crate) fn new(uuid: Uuid, data: Run) -> Self {
        let mut state = Self {
            uuid,
            boots: 0,
            next_inode: ROOT + 1,
            inodes: NumberMap::default(),
            shares: BTreeMap::new(),
            orphans: BTreeSet::new(),
            space: Space::new(data),
            inode_bytes: 0,
        };
        let root = Inode {
            generation: 0,
            mode: ROOT_MODE,
            uid: 0,
            gid: 0,
            links: 2,
            share: 0,
            change: 1,
            accessed: Time::default(),
            modified: Time::default(),
            changed: Time::default(),
            created: Time::default(),
            xattrs: BTreeMap::new(),
            xattr_bytes: 0,
            node: Node::Directory(Directory::new(ROOT)),
        };
        state.add(ROOT, root);
        state
    }

    /// The account of the metadata in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.inode_bytes + self.space.shared_runs() as u64 * SHARED_BYTES
    }

    pub(crate) fn inode(&self, id: u64) -> Result<&Inode, Inconsistent> {
        self.inodes.get(&id).ok_or(Inconsistent)
    }

    pub(crate) fn directory(&self, id: u64) -> Result<&Directory, Inconsistent> {
        match &self.inode(id)?.node {
            Node::Directory(directory) => Ok(directory),
            _ => Err(Inconsistent),
        }
    }

    pub(crate) fn file(&self, id: u64) -> Result<&File, Inconsistent> {
        match &self.inode(id)?.node {
            Node::File(file) => Ok(file),
            _ => Err(Inconsistent),
        }
    }

    fn share(&mut self, id: u32) -> &mut ShareUse {
        self.shares.entry(id).or_default()
    }

    /// Adds an object to the volume and its accounts.
    fn add(&mut self, id: u64, inode: Inode) {
        self.inode_bytes += inode.bytes();
        let share = self.share(inode.share);
        share.inodes += 1;
        share.blocks += inode.block_count();
        self.inodes.insert(id, inode);
    }

    /// Removes an object from the volume and its accounts.
    fn delete(&mut self, id: u64) -> Result<Inode, Inconsistent> {
        let inode = self.inodes.remove(&id).ok_or(Inconsistent)?;
        self.inode_bytes -= inode.bytes();
        let share = self.share(inode.share);
        share.inodes -= 1;
        share.blocks -= inode.block_count();
        Ok(inode)
    }

    /// Changes an object and keeps its accounts.
    fn with<R>(
        &mut self,
        id: u64,
        change: impl FnOnce(&mut Inode, &mut Space) -> Result<R, Inconsistent>,
    ) -> Result<R, Inconsistent> {
        let inode = self.inodes.get_mut(&id).ok_or(Inconsistent)?;
        let (bytes, blocks) = (inode.bytes(), inode.block_count());
        let result = change(inode, &mut self.space)?;
        inode.change = (inode.change + 1).max(u64::from(self.boots) << 32);
        self.inode_bytes = self.inode_bytes - bytes + inode.bytes();
        let (share, now) = (inode.share, inode.block_count());
        let share = self.share(share);
        share.blocks = share.blocks - blocks + now;
        Ok(result)
    }

    pub(crate) fn attributes(&self, id: u64) -> Option<Attributes> {
        let inode = self.inodes.get(&id)?;
        let size = match &inode.node {
            Node::File(file) => file.size,
            Node::Directory(directory) => directory.entries.len() as u64,
            Node::Link(target) => target.len() as u64,
            _ => 0,
        };
        Some(Attributes {
            handle: Handle {
                volume: self.uuid,
                inode: InodeId(id),
                generation: inode.generation,
            },
            kind: inode.kind(),
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            links: inode.links,
            share: ShareId(inode.share),
            size,
            used: inode.block_count() * crate::limits::BLOCK_BYTES,
            change: inode.change,
            accessed: inode.accessed,
            modified: inode.modified,
            changed: inode.changed,
            created: inode.created,
        })
    }
}

impl Directory {
    pub(crate) fn new(parent: u64) -> Self {
        Self {
            parent,
            entries: BTreeMap::new(),
            index: HashMap::new(),
            name_bytes: 0,
            next_cookie: FIRST_COOKIE,
        }
    }

    pub(crate) fn lookup(&self, name: &[u8]) -> Option<u64> {
        let cookie = self.index.get(name)?;
        self.entries.get(cookie).map(|entry| entry.1)
    }

    pub(crate) fn insert_at(
        &mut self,
        cookie: u64,
        name: Bytes,
        id: u64,
    ) -> Result<(), Inconsistent> {
        self.name_bytes += name.len() as u64;
        let is_new = self.index.insert(name.clone(), cookie).is_none();
        let is_free = self.entries.insert(cookie, (name, id)).is_none();
        (is_new && is_free).then_some(()).ok_or(Inconsistent)
    }

    fn insert(&mut self, name: Bytes, id: u64) -> Result<(), Inconsistent> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.insert_at(cookie, name, id)
    }

    fn remove(&mut self, name: &[u8]) -> Result<u64, Inconsistent> {
        let cookie = self.index.remove(name).ok_or(Inconsistent)?;
        let (name, id) = self.entries.remove(&cookie).ok_or(Inconsistent)?;
        self.name_bytes -= name.len() as u64;
        Ok(id)
    }
}

impl File {
    /// The run of device blocks at a block of the file, and what remains of it.
    #[inline]
    pub(crate) fn block(&self, block: u64) -> Option<Run> {
        // Most files have one run, or are read in the last one.
        let last = self.blocks.last_key_value().filter(|it| *it.0 <= block);
        let found = last.or_else(|| self.blocks.range(..=block).next_back());
        let (&first, &(device, count)) = found?;
        let skipped = block - first;
        (skipped < count).then(|| Run {
            start: device + skipped,
            count: count - skipped,
        })
    }

    /// The first block of the file at or after `block` that has a block of the device.
    pub(crate) fn next_block(&self, block: u64) -> Option<u64> {
        match self.block(block) {
            Some(_) => Some(block),
            None => self.blocks.range(block..).next().map(|it| *it.0),
        }
    }

    /// Adds blocks; those of the file must be free.
    pub(crate) fn map(&mut self, block: u64, run: Run) {
        self.block_count += run.count;
        let (mut first, mut device, mut count) = (block, run.start, run.count);
        let before = self.blocks.range(..first).next_back();
        if let Some((&at, &(start, length))) = before
            && at + length == first
            && start + length == device
        {
            (first, device, count) = (at, start, length + count);
        }
        let next = self.blocks.get(&(first + count));
        if let Some(&(start, length)) = next
            && start == device + count
        {
            self.blocks.remove(&(first + count));
            count += length;
        }
        self.blocks.insert(first, (device, count));
    }

    /// Removes the blocks of a range of the file and returns those of the device.
    pub(crate) fn unmap(&mut self, range: std::ops::Range<u64>) -> Vec<Run> {
        let mut removed = Vec::new();
        let mut at = range.start;
        while let Some(first) = self.next_block(at).filter(|&first| first < range.end) {
            let Some((&begin, &(device, count))) = self.blocks.range(..=first).next_back() else {
                break;
            };
            self.blocks.remove(&begin);
            let end = (begin + count).min(range.end);
            if begin < first {
                self.blocks.insert(begin, (device, first - begin));
            }
            if end < begin + count {
                let rest = (device + (end - begin), begin + count - end);
                self.blocks.insert(end, rest);
            }
            let run = Run {
                start: device + (first - begin),
                count: end - first,
            };
            self.block_count -= run.count;
            removed.push(run);
            at = end;
        }
        removed
    }
}
