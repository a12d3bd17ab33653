//! The controller memory buffer: detection, support for submission queues and data, and address
//! (Base 2.1 §8.2.1).

use std::sync::Arc;

use hugemem::{DeviceMemory, Region};
use nvme_spec::registers::{Cap, Cmbloc, Cmbmsc, Cmbsts, Cmbsz, Register};

use super::offset;
use crate::backing::{ControllerMemory, DeviceBacking};
use crate::drive_access::CmbQueues;
use crate::memory::{PAGE_BYTES, SQE_BYTES};

/// Alignment of the buffer's address for the controller, in bytes.
const ADDRESS_ALIGN_BYTES: u64 = 1 << 30;

/// Size of a slice for data in bytes, unless a command of the drive transfers less.
const SLICE_BYTES: usize = 256 << 10;

/// A mapped buffer that supports submission queues, or data of reads and writes.
pub(super) struct Buffer {
    memory: Arc<dyn ControllerMemory>,
    address: u64,
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
        let found = |address, memory| Self {
            memory,
            address,
            holds_queues,
            holds_data,
        };
        if !cap.cmbs() {
            return Some(found(memory.bus_address(), memory));
        }
        // The buffer needs an address that the controller uses for no other memory (Base 2.1
        // §3.1.4.16): the first aligned one after the arena.
        let end = backing.dma_address(0).checked_add(arena.len() as u64)?;
        let address = end.checked_next_multiple_of(ADDRESS_ALIGN_BYTES)?;
        set(Cmbmsc::new()
            .with_cre(true)
            .with_cmse(true)
            .with_cba(address / PAGE_BYTES as u64));
        if Cmbsts::from_bits(read(Register::CMBSTS)).cbai() {
            set(Cmbmsc::new());
            return None;
        }
        Some(found(address, memory))
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

    /// The part behind the submission queues, for data of at most `part_bytes` bytes per command.
    pub(super) fn data(
        &self,
        queues: Option<&CmbQueues>,
        part_bytes: usize,
    ) -> Option<Arc<DeviceMemory>> {
        if !self.holds_data {
            return None;
        }
        // Both are multiples of a page.
        let begin = queues.map_or(0, |room| room.queues * room.stride);
        let bytes = self.memory.len().checked_sub(begin)? as u64;
        let slice_bytes = SLICE_BYTES.min(part_bytes) / PAGE_BYTES * PAGE_BYTES;
        DeviceMemory::new(self.address + begin as u64, bytes, slice_bytes)
    }
}
