//! Physical Region Pages (Base 2.1 §4.3.1): division of a buffer into pages.

/// Size of one PRP entry, bytes.
pub const PRP_ENTRY_BYTES: u32 = 8;

/// The memory page size selected by CC.MPS: 2^(12 + MPS) bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    bytes: u64,
}

impl PageSize {
    /// The page size for a value of CC.MPS (4 bits).
    pub const fn from_mps(mps: u8) -> Self {
        Self {
            bytes: crate::registers::page_bytes(mps) as u64,
        }
    }

    /// Page size in bytes, 4096 to 134,217,728.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Offset of an address in its page; only the first entry of a transfer may have a non-zero
    /// offset (Base 2.1 §4.3.1).
    pub const fn offset(self, address: u64) -> u64 {
        address & (self.bytes - 1)
    }

    /// The address of the page that contains an address.
    pub const fn base(self, address: u64) -> u64 {
        address & !(self.bytes - 1)
    }

    /// Bytes from an address to the end of its page.
    pub const fn rest(self, address: u64) -> u64 {
        self.bytes - self.offset(address)
    }

    /// Whether an entry's offset is valid: a multiple of 4 in the first entry, zero in the others.
    pub const fn is_valid_entry(self, entry: u64, first: bool) -> bool {
        if first {
            entry & 0x3 == 0
        } else {
            self.offset(entry) == 0
        }
    }

    /// Number of PRP entries of a transfer of `length` bytes from `address`, including the first.
    pub const fn entries(self, address: u64, length: u64) -> u64 {
        if length == 0 {
            return 0;
        }
        let first = self.rest(address);
        if length <= first {
            1
        } else {
            1 + (length - first).div_ceil(self.bytes)
        }
    }

    /// Entries of one PRP list page, including its last.
    pub const fn list_entries(self) -> u64 {
        self.bytes / PRP_ENTRY_BYTES as u64
    }

    /// Entries between a list pointer (which may be inside a page) and the end of its page.
    pub const fn list_entries_from(self, pointer: u64) -> u64 {
        self.rest(pointer) / PRP_ENTRY_BYTES as u64
    }

    /// Number of PRP list pages of a transfer, 0 if PRP1 and PRP2 suffice; lists begin at page
    /// starts.
    ///
    /// The last entry of a full list page points to the next page if entries remain (Base 2.1
    /// §4.3.1).
    pub const fn list_pages(self, address: u64, length: u64) -> u64 {
        let entries = self.entries(address, length);
        if entries <= 2 {
            return 0;
        }
        let listed = entries - 1;
        let chained = self.list_entries() - 1;
        // All pages but the last hold one entry less, because their last entry is the pointer to
        // the next page.
        (listed - 1).div_ceil(chained)
    }
}

const _: () = assert!(PageSize::from_mps(0).bytes == 4096);
