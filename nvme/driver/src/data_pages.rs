//! PRP entries (Base 2.1 §4.3.1) of all pages of the drive's own memory for data, in the order of their
//! addresses. They are written once for each start of the controller, before any queue pair uses them, so
//! that a command whose data is there points into them, and writes no list.

use std::sync::atomic::Ordering;

use hugemem::{DEVICE_SLICES_MAX, DeviceMemory, DmaBuffer};

use crate::memory::PAGE_BYTES;

/// Size of a slice for data in bytes, unless a command of the drive transfers less.
pub(crate) const SLICE_BYTES: usize = 256 << 10;

/// Maximum number of slices; what is behind them is not used.
pub(crate) const SLICES_MAX: usize = DEVICE_SLICES_MAX as usize;

const ENTRY_BYTES: usize = size_of::<u64>();

/// Size of the entries in bytes.
pub(crate) const DATA_PAGES_BYTES: usize = SLICES_MAX * SLICE_BYTES / PAGE_BYTES * ENTRY_BYTES;

/// Where the entries are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataPages {
    /// Device address of the first page of the memory.
    memory: u64,
    /// Device address of its entry.
    entries: u64,
}

impl DataPages {
    /// Writes the entries of this memory. `None` if a list of a slice would cross a page, or does not fit.
    pub(crate) fn write(buffer: &DmaBuffer, dma_base: u64, memory: &DeviceMemory) -> Option<Self> {
        let pages = memory.bytes() as usize / PAGE_BYTES;
        let entries = dma_base + buffer.region_offset() as u64;
        let is_aligned = |address: u64| address.is_multiple_of(PAGE_BYTES as u64);
        let slice_entries_bytes = memory.slice_bytes() / PAGE_BYTES * ENTRY_BYTES;
        let fits = is_aligned(entries)
            && is_aligned(memory.address())
            && memory.slice_bytes().is_multiple_of(PAGE_BYTES)
            && PAGE_BYTES.is_multiple_of(slice_entries_bytes)
            && pages * ENTRY_BYTES <= buffer.len();
        if !fits {
            return None;
        }
        for page in 0..pages {
            let address = memory.address() + (page * PAGE_BYTES) as u64;
            buffer.store_u64(page * ENTRY_BYTES, address.to_le(), Ordering::Relaxed);
        }
        Some(Self {
            memory: memory.address(),
            entries,
        })
    }

    /// The device address of the list that begins with the page at `address`.
    #[inline]
    pub(crate) fn list(self, address: u64) -> u64 {
        let page = (address - self.memory) / PAGE_BYTES as u64;
        self.entries + page * ENTRY_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use hugemem::{Arena, ArenaConfig, PagePolicy, Sharing};

    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    fn buffer(bytes: usize) -> DmaBuffer {
        let config = ArenaConfig {
            bytes: 8 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 1 << 20,
        };
        let arena = Arena::new(config).expect("memory");
        arena.dma_buffer(bytes).expect("room")
    }

    fn memory(address: u64, slices: u64, slice_bytes: usize) -> std::sync::Arc<DeviceMemory> {
        let own = Sharing::Own("this is a test".to_owned());
        let memory = DeviceMemory::new(address, slices * slice_bytes as u64, slice_bytes, own);
        memory.expect("a slice")
    }

    #[test]
    fn memory_whose_lists_cross_pages_or_do_not_fit_has_none() {
        let buffer = buffer(PAGE_BYTES);
        for (address, slices, slice_bytes) in [
            (PAGE + 512, 1, PAGE_BYTES),
            (PAGE, 2, 3 * PAGE_BYTES),
            (PAGE, 2, PAGE_BYTES + 512),
            (PAGE, 3, 256 * PAGE_BYTES),
        ] {
            let memory = memory(address, slices, slice_bytes);
            assert_eq!(DataPages::write(&buffer, 0, &memory), None);
        }
    }

    #[test]
    fn each_page_has_its_entry() {
        let buffer = buffer(DATA_PAGES_BYTES);
        let memory = memory(1 << 30, SLICES_MAX as u64, SLICE_BYTES);
        let pages = DataPages::write(&buffer, 1 << 40, &memory).expect("they fit");
        let begin = (1 << 40) + buffer.region_offset() as u64;
        for page in [0, 1, 63, 64, 4095] {
            let address = (1 << 30) + page * PAGE;
            let place = pages.list(address) - begin;
            assert_eq!(buffer.load_u64(place as usize, Ordering::Relaxed), address);
        }
    }
}
