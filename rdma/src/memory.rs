//! Memory to register.
#![expect(
    unsafe_code,
    reason = "declares the promise that memory of others is to be registered under"
)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use hugemem::{DeviceMemory, DmaBuf, Region};

/// Rights on registered memory, in addition to reads by the local device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// The local device may write: for receives and for the data of RDMA reads.
    pub local_write: bool,
    /// The peer may read. A target registers its memory without this right.
    pub remote_read: bool,
    /// The peer may write; needs [`local_write`](Self::local_write).
    pub remote_write: bool,
    /// Memory windows may be bound to it.
    pub bind_window: bool,
}

impl Access {
    /// Memory of a target: only its own device accesses it. If the transport (iWARP) needs more
    /// rights for the data of RDMA reads, the provider adds them.
    pub const LOCAL: Self = Self {
        local_write: true,
        remote_read: false,
        remote_write: false,
        bind_window: false,
    };

    /// Memory of a host that sends its keys to a target.
    pub const REMOTE: Self = Self {
        local_write: true,
        remote_read: true,
        remote_write: true,
        bind_window: false,
    };

    /// Memory of a host that grants access by memory windows only.
    pub const WINDOWS: Self = Self {
        local_write: true,
        remote_read: false,
        remote_write: false,
        bind_window: true,
    };
}

/// A range of this process's memory to register.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRange<'a> {
    address: usize,
    len: usize,
    region: Option<&'a Region>,
}

impl<'a> MemoryRange<'a> {
    /// A part of a region, by offset.
    ///
    /// # Panics
    /// Panics if the range is empty or exceeds the region.
    #[must_use]
    pub fn of_region(region: &'a Region, range: Range<usize>) -> Self {
        assert!(
            range.start < range.end && range.end <= region.len(),
            "bytes {range:?} of a region of {}",
            region.len()
        );
        Self {
            address: region.base_address() + range.start,
            len: range.len(),
            region: Some(region),
        }
    }

    /// Memory outside any region: an application's buffer.
    ///
    /// # Panics
    /// Panics if the range is empty or wraps around.
    ///
    /// # Safety
    /// While work requests name the range, and while a peer that was given its remote key may use
    /// it, the memory stays mapped, and the program neither holds a reference to bytes that the
    /// device may write nor writes bytes that the device may read.
    #[must_use]
    pub unsafe fn foreign(address: usize, len: usize) -> MemoryRange<'static> {
        assert!(
            len > 0 && address.checked_add(len).is_some(),
            "{len} bytes at {address:#x}"
        );
        MemoryRange {
            address,
            len,
            region: None,
        }
    }

    /// The larger range from `start` to `end` of the same memory; `None` if it does not contain
    /// this range or exceeds the region.
    ///
    /// Registering more than was promised accesses nothing: work requests and peers get keys and
    /// addresses of the promised range only.
    pub(crate) fn expanded(&self, start: usize, end: usize) -> Option<Self> {
        let around = start <= self.address && end >= self.address + self.len;
        let within = self.region.is_none_or(|region| {
            let base = region.base_address();
            start >= base && end <= base + region.len()
        });
        (around && within).then_some(Self {
            address: start,
            len: end - start,
            region: self.region,
        })
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The region that it is a part of.
    #[must_use]
    pub fn region(&self) -> Option<&'a Region> {
        self.region
    }
}

/// Memory of another device to register, by its descriptor. Work requests name it by its bus
/// addresses; the program does not access it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRange<'a> {
    descriptor: BorrowedFd<'a>,
    offset: u64,
    address: u64,
    bytes: u64,
}

impl<'a> DeviceRange<'a> {
    /// All slices of a memory, which are in `buffer`.
    #[must_use]
    pub fn of(memory: &DeviceMemory, buffer: &'a DmaBuf) -> Self {
        Self {
            descriptor: buffer.as_fd(),
            offset: buffer.offset(),
            address: memory.address(),
            bytes: memory.bytes(),
        }
    }

    /// The descriptor, and where the memory begins in it.
    #[must_use]
    pub fn descriptor(&self) -> (BorrowedFd<'a>, u64) {
        (self.descriptor, self.offset)
    }

    /// Bus address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
