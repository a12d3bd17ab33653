//! Data pointers of commands: two PRP entries, a PRP list in the slot's memory, or one SGL
//! descriptor (Base 2.1 §4.3).
//!
//! Data is contiguous for the drive because the arena is, so an SGL is always one descriptor. It
//! saves the cost of a PRP list: writing the list, its memory, and the drive's read of it. PRP
//! entries for up to two pages are in the command like a descriptor, and are used because every
//! drive is optimized for them.

use std::sync::atomic::Ordering;

use nvme_spec::Sqe;
use nvme_spec::prp::PageSize;
use nvme_spec::sgl::SglDescriptor;

use crate::data_pages::DataPages;
use crate::memory::PairMemory;

const PAGE: PageSize = PageSize::from_mps(0);

/// Entries of a list that are written at once, which takes a quarter of the instructions.
const GROUP_ENTRIES: u32 = 8;

/// Size of an entry of a list in bytes.
const ENTRY_BYTES: usize = size_of::<u64>();

/// The list in a slot's memory. Most requests of a slot use the same few leases, so the list is
/// often correct already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct List {
    /// Device address of the second page.
    second: u64,
    /// Number of entries.
    entries: u32,
}

/// Adds `bytes` bytes of data at the device address `address` to a command, within a slice of the memory
/// whose pages have entries.
#[inline]
pub(super) fn point_to_pages(sqe: Sqe, pages: DataPages, address: u64, bytes: u64) -> Sqe {
    let first = PAGE.rest(address);
    if bytes <= first {
        return sqe.with_prp(address, 0);
    }
    let second = address + first;
    match bytes - first <= PAGE.bytes() {
        true => sqe.with_prp(address, second),
        false => sqe.with_prp(address, pages.list(second)),
    }
}

/// Settings for data pointers, and the lists that exist.
pub(super) struct Pointers {
    lists: Box<[List]>,
    sgl: bool,
    /// Device address of the arena's first byte.
    pub(super) dma_base: u64,
}

impl Pointers {
    pub(super) fn new(slots: u16, sgl: bool) -> Self {
        Self {
            lists: (0..slots).map(|_| List::default()).collect(),
            sgl,
            dma_base: 0,
        }
    }

    /// Discards the lists, because addresses are about to change.
    pub(super) fn reset(&mut self, dma_base: u64) {
        self.dma_base = dma_base;
        self.lists.fill(List::default());
    }

    /// Adds `bytes` bytes of data at the device address `address` to a command.
    #[inline]
    pub(super) fn point(
        &mut self,
        sqe: Sqe,
        memory: &PairMemory,
        slot: u16,
        address: u64,
        bytes: u64,
    ) -> Sqe {
        let first = PAGE.rest(address);
        if bytes <= first {
            return sqe.with_prp(address, 0);
        }
        let second = address + first;
        if bytes - first <= PAGE.bytes() {
            return sqe.with_prp(address, second);
        }
        if self.sgl {
            return sqe.with_sgl(SglDescriptor::data_block(address, bytes as u32));
        }
        let entries = (bytes - first).div_ceil(PAGE.bytes()) as u32;
        let list = self.list(memory, slot, second, entries);
        sqe.with_prp(address, list)
    }

    /// The device address of a list in the slot's memory, for `entries` pages from `second` on. It
    /// crosses no page boundary (Base 2.1 §4.3.1).
    fn list(&mut self, memory: &PairMemory, slot: u16, second: u64, entries: u32) -> u64 {
        let (buffer, offset) = memory.list(slot);
        let list = &mut self.lists[usize::from(slot)];
        let valid_entries = if list.second == second {
            list.entries
        } else {
            0
        };
        let room = (memory.list_bytes() / ENTRY_BYTES) as u32;
        let page = |entry: u32| (second + u64::from(entry) * PAGE.bytes()).to_le();
        let mut entry = valid_entries;
        while entry < entries {
            let place = offset + entry as usize * ENTRY_BYTES;
            if room - entry >= GROUP_ENTRIES {
                // The drive does not use entries behind the data.
                let group: [u64; GROUP_ENTRIES as usize] =
                    std::array::from_fn(|nth| page(entry + nth as u32));
                buffer.store_words(place, &group);
                entry += GROUP_ENTRIES;
            } else {
                buffer.store_u64(place, page(entry), Ordering::Relaxed);
                entry += 1;
            }
        }
        *list = List {
            second,
            entries: entry,
        };
        self.dma_base + (buffer.region_offset() + offset) as u64
    }

    /// Writes 16 bytes into the slot's memory and returns their device address.
    pub(super) fn small(&mut self, memory: &PairMemory, slot: u16, words: [u64; 2]) -> u64 {
        self.lists[usize::from(slot)] = List::default();
        let (buffer, offset) = memory.list(slot);
        buffer.store_u64(offset, words[0], Ordering::Relaxed);
        buffer.store_u64(offset + 8, words[1], Ordering::Relaxed);
        self.dma_base + (buffer.region_offset() + offset) as u64
    }
}

#[cfg(test)]
mod tests;
