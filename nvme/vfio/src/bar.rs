//! One BAR of a device: mapped where the kernel allows it, otherwise accessed through the
//! descriptor (old kernels do not allow mapping the page with the MSI-X table).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::{pread, pwrite};

use crate::capabilities::RegionInfo;
use crate::device::Handle;
use crate::mapping::Mapping;

/// The registers or the memory behind a base address register. Every access is bounds-checked,
/// aligned and a single operation; shared by all threads.
#[derive(Debug)]
pub struct Bar {
    /// Mapped parts and their offsets in the BAR, in ascending order.
    parts: Vec<(usize, Mapping)>,
    len: usize,
    /// Offset of the BAR in the descriptor.
    offset: u64,
    /// Stays open while anything of the device is mapped.
    device: Arc<Handle>,
}

impl Bar {
    pub(crate) fn map(device: &Arc<Handle>, region: &RegionInfo) -> io::Result<Bar> {
        let len = usize::try_from(region.size).map_err(io::Error::other)?;
        let mut parts = Vec::with_capacity(region.mappable.len());
        for &(start, part_len) in &region.mappable {
            // Both are within the region, whose size fits `usize`.
            let (start, part_len) = (start as usize, part_len as usize);
            let offset = region.offset + start as u64;
            parts.push((start, Mapping::new(device.as_fd(), offset, part_len)?));
        }
        parts.sort_by_key(|(start, _)| *start);
        Ok(Bar {
            parts,
            len,
            offset: region.offset,
            device: Arc::clone(device),
        })
    }

    /// Size of the BAR in bytes.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a BAR without bytes is not mapped"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The mapped part that contains `bytes` bytes at `offset`, and the offset within the part.
    #[inline]
    fn part(&self, offset: usize, bytes: usize) -> Option<(&Mapping, usize)> {
        assert!(
            offset.is_multiple_of(bytes) && offset <= self.len && bytes <= self.len - offset,
            "{bytes} bytes at {offset:#x} of a BAR of {:#x}",
            self.len
        );
        self.parts.iter().find_map(|(start, mapping)| {
            let within = offset.checked_sub(*start)?;
            (within < mapping.len()).then_some((mapping, within))
        })
    }

    /// The mapped part that contains `len` bytes at `offset`, and the offset within the part. `None`
    /// if the kernel does not map all of them.
    pub(crate) fn mapped(&self, offset: u64, len: u64) -> Option<(&Mapping, usize)> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        self.parts.iter().find_map(|(start, mapping)| {
            let within = offset.checked_sub(*start)?;
            mapping.address_of(within, len)?;
            Some((mapping, within))
        })
    }

    /// Reads four bytes in one access. Returns all ones if the function was removed.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 4 or the access is outside the BAR.
    #[inline]
    #[must_use]
    pub fn read_u32(&self, offset: usize) -> u32 {
        match self.part(offset, 4) {
            Some((mapping, offset)) => mapping.read_u32(offset),
            None => u32::from_le_bytes(self.read_through_descriptor(offset)),
        }
    }

    /// Reads eight bytes in one access. Returns all ones if the function was removed.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 or the access is outside the BAR.
    #[inline]
    #[must_use]
    pub fn read_u64(&self, offset: usize) -> u64 {
        match self.part(offset, 8) {
            Some((mapping, offset)) => mapping.read_u64(offset),
            None => u64::from_le_bytes(self.read_through_descriptor(offset)),
        }
    }

    /// Writes four bytes in one access, after every earlier store of this thread to memory.
    ///
    /// # Panics
    /// As [`read_u32`](Self::read_u32).
    #[inline]
    pub fn write_u32(&self, offset: usize, value: u32) {
        match self.part(offset, 4) {
            Some((mapping, offset)) => mapping.write_u32(offset, value),
            None => self.write_through_descriptor(offset, &value.to_le_bytes()),
        }
    }

    /// Writes eight bytes in one access, after every earlier store of this thread to memory.
    ///
    /// # Panics
    /// As [`read_u64`](Self::read_u64).
    #[inline]
    pub fn write_u64(&self, offset: usize, value: u64) {
        match self.part(offset, 8) {
            Some((mapping, offset)) => mapping.write_u64(offset, value),
            None => self.write_through_descriptor(offset, &value.to_le_bytes()),
        }
    }

    #[cold]
    fn read_through_descriptor<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        match pread(&*self.device, &mut bytes, self.offset + offset as u64) {
            Ok(read) if read == N => bytes,
            // The bus also returns all ones for a function that does not exist.
            _ => [0xff; N],
        }
    }

    #[cold]
    fn write_through_descriptor(&self, offset: usize, bytes: &[u8]) {
        // Writes to a function that was removed are ignored, as on the bus.
        let _ = pwrite(&*self.device, bytes, self.offset + offset as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A BAR of two pages of which only the second is mapped.
    fn half_mapped() -> (Bar, Arc<Handle>) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192 * 2).unwrap();
        let device = Handle::new(file.into(), None);
        let region = RegionInfo {
            size: 8192,
            offset: 8192,
            mappable: vec![(4096, 4096)],
        };
        (Bar::map(&device, &region).unwrap(), device)
    }

    #[test]
    fn mapped_and_unmapped_parts_behave_alike() {
        let (bar, file) = half_mapped();
        for offset in [0, 2048, 4088, 4096, 8184] {
            bar.write_u64(offset, 0x1122_3344_0000_0000 + offset as u64);
            assert_eq!(bar.read_u64(offset), 0x1122_3344_0000_0000 + offset as u64);
            assert_eq!(bar.read_u32(offset + 4), 0x1122_3344);
            bar.write_u32(offset + 4, 7);
            let mut bytes = [0; 8];
            pread(&*file, &mut bytes, 8192 + offset as u64).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), (7 << 32) + offset as u64);
        }
    }

    #[test]
    fn bytes_that_the_kernel_does_not_map_are_not_mapped_for_others() {
        let (bar, _file) = half_mapped();
        for (offset, len) in [
            (0, 4096),
            (0, 8192),
            (4095, 4097),
            (4096, 4097),
            (8192, 1),
            (u64::MAX, 1),
            (4096, u64::MAX),
        ] {
            assert!(bar.mapped(offset, len).is_none(), "{offset:#x} {len:#x}");
        }
        assert!(matches!(bar.mapped(4096, 4096), Some((_, 0))));
        assert!(matches!(bar.mapped(8191, 1), Some((_, 4095))));
    }

    #[test]
    fn failed_reads_return_all_ones() {
        let (bar, file) = half_mapped();
        rustix::fs::ftruncate(&*file, 0).unwrap();
        assert_eq!(bar.read_u32(8), u32::MAX);
        assert_eq!(bar.read_u64(8), u64::MAX);
    }

    #[test]
    #[should_panic(expected = "4 bytes at 0x2000 of a BAR of 0x2000")]
    fn an_access_past_the_end_panics() {
        let _ = half_mapped().0.read_u32(8192);
    }
}
