//! Changes of a volume. Each is one record of the log, and is applied in the same way when it is
//! made and when the log is replayed: it contains every decision, such as times and blocks.

use crate::codec::Bytes;

stored! {
    /// A time since 1970.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Time {
        /// Whole seconds.
        pub seconds: i64,
        /// Nanoseconds of the second.
        pub nanoseconds: u32,
    }
}

stored! {
    /// Major and minor number of a device file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Device {
        /// Major number.
        pub major: u32,
        /// Minor number.
        pub minor: u32,
    }
}

/// What a new object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewNode<'a> {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link with its target.
    Link(&'a [u8]),
    /// A block device.
    Block(Device),
    /// A character device.
    Character(Device),
    /// A socket.
    Socket,
    /// A FIFO.
    Fifo,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the change.
    Now,
    /// This time.
    To(Time),
}

/// Attributes to set; those that are `None` stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Size of a regular file in bytes.
    pub size: Option<u64>,
    /// Permissions.
    pub mode: Option<u32>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Time of the last access.
    pub accessed: Option<SetTime>,
    /// Time of the last modification.
    pub modified: Option<SetTime>,
}

stored! {
    /// Blocks of a file and the blocks of the device that hold them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Mapping {
        pub(crate) file: u64,
        pub(crate) device: u64,
        pub(crate) count: u64,
    }
}

stored! {
    /// What a new object is, in a record.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum StoredNode {
        1 => File {},
        2 => Directory {},
        3 => Link { target: Bytes, },
        4 => Block { device: Device, },
        5 => Character { device: Device, },
        6 => Socket {},
        7 => Fifo {},
    }
}

impl StoredNode {
    pub(crate) fn of(node: NewNode<'_>) -> Self {
        match node {
            NewNode::File => Self::File {},
            NewNode::Directory => Self::Directory {},
            NewNode::Link(target) => Self::Link {
                target: Bytes::new(target),
            },
            NewNode::Block(device) => Self::Block { device },
            NewNode::Character(device) => Self::Character { device },
            NewNode::Socket => Self::Socket {},
            NewNode::Fifo => Self::Fifo {},
        }
    }
}

stored! {
    /// A change.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum Change {
        /// The volume was opened. Handles and change attributes of later changes differ from those
        /// of changes that were lost before.
        1 => Opened { boots: u32, },
        2 => Create {
            directory: u64,
            name: Bytes,
            inode: u64,
            node: StoredNode,
            mode: u32,
            uid: u32,
            gid: u32,
            share: u32,
            time: Time,
        },
        3 => Link { inode: u64, directory: u64, name: Bytes, time: Time, },
        4 => Remove { directory: u64, name: Bytes, time: Time, },
        5 => Rename { from: u64, old: Bytes, to: u64, new: Bytes, time: Time, },
        6 => SetAttributes {
            inode: u64,
            size: Option<u64>,
            mode: Option<u32>,
            uid: Option<u32>,
            gid: Option<u32>,
            accessed: Option<Time>,
            modified: Option<Time>,
            time: Time,
        },
        7 => SetXattr { inode: u64, name: Bytes, value: Bytes, time: Time, },
        8 => RemoveXattr { inode: u64, name: Bytes, time: Time, },
        /// Data were written, some of them to blocks that were free before.
        9 => Write {
            inode: u64,
            offset: u64,
            length: u64,
            mappings: Vec<Mapping>,
            time: Time,
        },
        /// Free blocks became part of a file, not written.
        10 => Allocate { inode: u64, mappings: Vec<Mapping>, size: u64, time: Time, },
        11 => Deallocate { inode: u64, offset: u64, length: u64, time: Time, },
        /// Blocks of one file became blocks of another, too.
        12 => Clone {
            from: u64,
            to: u64,
            from_offset: u64,
            to_offset: u64,
            length: u64,
            time: Time,
        },
        /// An object without links that is not open any more was freed.
        13 => Reap { inode: u64, },
        14 => SetQuota { share: u32, inodes: u64, blocks: u64, },
    }
}
