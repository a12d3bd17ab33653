//! The controller memory buffer: detection, support for submission queues and data, and address
//! (Base 2.1 §8.2.1).

use std::sync::Arc;

use hugemem::{DeviceMemory, Export, Region, Sharing};
use nvme_spec::registers::{Cap, Cmbloc, Cmbmsc, Cmbsts, Cmbsz, Register};

use super::offset;
use crate::backing::{ControllerMemory, DeviceBacking};
use crate::data_pages::{SLICE_BYTES, SLICES_MAX};
use crate::drive_access::CmbQueues;
use crate::memory::{PAGE_BYTES, SQE_BYTES};

/// Alignment of the buffer's address for the controller, in bytes.
const ADDRESS_ALIGN_BYTES: u64 = 1 << 30;

/// A mapped buffer that supports submission queues, or data of reads and writes.
pub(super) struct Buffer {
    memory: Arc<dyn ControllerMemory>,
    /// The BAR that has it, and its beginning there.
    place: (u8, u64),
    address: u64,
    /// Whether nothing else of the address space has its addresses.
    is_reserved: bool,
    /// CMBSZ.SQS.
    holds_queues: bool,
    /// CMBSZ.RDS and CMBSZ.WDS.
    holds_data: bool,
}

impl Buffer {
    /// Detects and enables a buffer while the controller is disabled.
    pub(super) fn find(backing: &dyn DeviceBacking, cap: Cap, arena: &Region) -> Option<Self> {
        let read = |register| backing.read_u32(offset(register));
        let set = |value: Cmbmsc| backing.write_u64(offset(Register::CMBMSC), value.into_bits());
        if cap.cmbs() {
            // Base 2.1 §3.1.4.16: CMBLOC and CMBSZ read as zero until CRE is set.
            set(Cmbmsc::new().with_cre(true));
        }
        let size = Cmbsz::from_bits(read(Register::CMBSZ));
        let location = Cmbloc::from_bits(read(Register::CMBLOC));
        let bytes = size.size_bytes().filter(|bytes| *bytes > 0)?;
        let (holds_queues, holds_data) = (size.sqs(), size.rds() && size.wds());
        if !holds_queues && !holds_data {
            return None;
        }
        let start = size.unit_bytes()?.checked_mul(u64::from(location.ofst()))?;
        let memory = backing.controller_memory(location.bir(), start, bytes)?;
        let found = |address, is_reserved, memory| Self {
            memory,
            place: (location.bir(), start),
            address,
            is_reserved,
            holds_queues,
            holds_data,
        };
        if !cap.cmbs() {
            let address = memory.bus_address();
            let reserved = backing.reserve_addresses(bytes, Some(address));
            return Some(found(address, reserved.is_some(), memory));
        }
        // The buffer needs an address that the controller uses for no other memory (Base 2.1
        // §3.1.4.16): one that nothing in its address space has, or the first aligned one after the
        // arena.
        let reserved = backing.reserve_addresses(bytes, None);
        let address = match reserved {
            Some(address) => address,
            None => {
                let end = backing.dma_address(0).checked_add(arena.len() as u64)?;
                end.checked_next_multiple_of(ADDRESS_ALIGN_BYTES)?
            }
        };
        set(Cmbmsc::new()
            .with_cre(true)
            .with_cmse(true)
            .with_cba(address / PAGE_BYTES as u64));
        if Cmbsts::from_bits(read(Register::CMBSTS)).cbai() {
            set(Cmbmsc::new());
            return None;
        }
        Some(found(address, reserved.is_some(), memory))
    }

    /// Whether data of reads and writes may be in it.
    pub(super) fn holds_data(&self) -> bool {
        self.holds_data
    }

    /// Room for submission queues of `entries` entries for at most `reactors` reactors, if at least
    /// one fits.
    pub(super) fn room(&self, entries: usize, reactors: usize) -> Option<CmbQueues> {
        let stride = (entries * SQE_BYTES).next_multiple_of(PAGE_BYTES);
        let queues = (self.memory.len() / stride).min(reactors);
        (queues > 0 && self.holds_queues).then(|| CmbQueues {
            memory: Arc::clone(&self.memory),
            address: self.address,
            queues,
            stride,
        })
    }

    /// The part behind the submission queues, for data of at most `part_bytes` bytes per command. If
    /// possible, it is shared with the drives of the same address space.
    pub(super) fn data(
        &self,
        queues: Option<&CmbQueues>,
        part_bytes: usize,
        backing: &dyn DeviceBacking,
    ) -> Option<Arc<DeviceMemory>> {
        if !self.holds_data {
            return None;
        }
        // Both are multiples of a page.
        let begin = queues.map_or(0, |room| room.queues * room.stride);
        let room = self.memory.len().checked_sub(begin)?;
        let slice_bytes = SLICE_BYTES.min(part_bytes) / PAGE_BYTES * PAGE_BYTES;
        let slices = room.checked_div(slice_bytes)?.min(SLICES_MAX);
        let bytes = (slices * slice_bytes) as u64;
        if bytes == 0 {
            return None;
        }
        let sharing = self.share((begin as u64, bytes), backing);
        let export = self.export((begin as u64, bytes), backing);
        let address = self.address + begin as u64;
        DeviceMemory::with_export(address, bytes, slice_bytes, sharing, export)
    }

    /// Makes a part available to devices outside of the address space, from `begin` on.
    fn export(&self, (begin, bytes): (u64, u64), backing: &dyn DeviceBacking) -> Export {
        let (bar, start) = self.place;
        match backing.export_memory(bar, (start + begin, bytes)) {
            Ok(buffer) => Export::DmaBuf(buffer),
            Err(error) => Export::Refused(format!("the kernel exports no dma-buf of it: {error}")),
        }
    }

    /// Makes a part accessible to the neighbours, from `begin` on.
    fn share(&self, (begin, bytes): (u64, u64), backing: &dyn DeviceBacking) -> Sharing {
        let own = |why: String| Sharing::Own(why);
        let Some(space) = backing.address_space() else {
            return own("no other device is in its address space".to_owned());
        };
        if !self.is_reserved {
            return own("its addresses are not free in the IOMMU container".to_owned());
        }
        let (bar, start) = self.place;
        match backing.share_memory(bar, (start + begin, bytes), self.address + begin) {
            Ok(()) => Sharing::Neighbours(space),
            Err(error) => own(format!("the kernel does not map it in the IOMMU: {error}")),
        }
    }
}
