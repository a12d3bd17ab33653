//! I/O commands between admission and execution.

/// What an I/O command asks of its device or devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoOperation {
    Read,
    /// A read with Force Unit Access from a device with a volatile cache: flushed first.
    DurableRead,
    Write {
        fua: bool,
    },
    Compare,
    Flush,
    /// Flush of every namespace of the subsystem.
    FlushAll,
    WriteZeroes {
        fua: bool,
        deallocate: bool,
    },
    Deallocate {
        ranges: u16,
    },
}

/// An I/O command that was checked against the namespace as `epoch` had it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoWork {
    pub(crate) operation: IoOperation,
    pub(crate) device: u8,
    pub(crate) blocks: u32,
    pub(crate) lba: u64,
    pub(crate) nsid: u32,
    pub(crate) epoch: u32,
}
