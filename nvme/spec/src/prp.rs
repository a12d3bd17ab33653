//! Physical Region Pages (Base 2.1 §4.3.1): how a buffer falls apart into pages.

/// Size of one PRP entry, bytes.
pub const PRP_ENTRY_BYTES: u32 = 8;

/// The memory page size that CC.MPS chose: 2^(12 + MPS) bytes.
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

    /// Bytes of a page, 4096 to 134,217,728.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Offset of an address in its page: only the first entry of a transfer may have one (Base 2.1
    /// §4.3.1).
    pub const fn offset(self, address: u64) -> u64 {
        address & (self.bytes - 1)
    }

    /// The address of the page that an address lies in.
    pub const fn base(self, address: u64) -> u64 {
        address & !(self.bytes - 1)
    }

    /// Bytes from an address to the end of its page.
    pub const fn rest(self, address: u64) -> u64 {
        self.bytes - self.offset(address)
    }

    /// Whether an entry's offset is legal: a multiple of 4 in the first entry, else zero.
    pub const fn is_valid_entry(self, entry: u64, first: bool) -> bool {
        if first {
            entry & 0x3 == 0
        } else {
            self.offset(entry) == 0
        }
    }

    /// PRP entries that a transfer of `length` bytes from `address` needs, the first included.
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

    /// Entries of one PRP list page, its last included.
    pub const fn list_entries(self) -> u64 {
        self.bytes / PRP_ENTRY_BYTES as u64
    }

    /// Entries between a list pointer (which may begin inside a page) and the end of that page.
    pub const fn list_entries_from(self, pointer: u64) -> u64 {
        self.rest(pointer) / PRP_ENTRY_BYTES as u64
    }

    /// Pages of PRP lists for a transfer, 0 where PRP1 and PRP2 suffice; lists begin at page
    /// starts.
    ///
    /// The last entry of a full list page points to the next one while entries remain (Base 2.1
    /// §4.3.1).
    pub const fn list_pages(self, address: u64, length: u64) -> u64 {
        let entries = self.entries(address, length);
        if entries <= 2 {
            return 0;
        }
        let listed = entries - 1;
        let chained = self.list_entries() - 1;
        // All but the last page hold one entry less, because that entry is the pointer to the next
        // page.
        (listed - 1).div_ceil(chained)
    }
}

const _: () = assert!(PageSize::from_mps(0).bytes == 4096);
