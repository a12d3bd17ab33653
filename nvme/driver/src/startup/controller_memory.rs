//! The controller memory buffer: detection, support for submission queues, and address (Base 2.1
//! §8.2.1).

use std::sync::Arc;

use hugemem::Region;
use nvme_spec::registers::{Cap, Cmbloc, Cmbmsc, Cmbsts, Cmbsz, Register};

use super::offset;
use crate::backing::{ControllerMemory, DeviceBacking};
use crate::drive_access::CmbQueues;
use crate::memory::{PAGE_BYTES, SQE_BYTES};

/// Alignment of the buffer's address for the controller, in bytes.
const ADDRESS_ALIGN_BYTES: u64 = 1 << 30;

/// A mapped buffer that supports submission queues.
pub(super) struct Buffer {
    memory: Arc<dyn ControllerMemory>,
    address: u64,
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
        if !size.sqs() {
            return None;
        }
        let start = size.unit_bytes()?.checked_mul(u64::from(location.ofst()))?;
        let memory = backing.controller_memory(location.bir(), start, bytes)?;
        if !cap.cmbs() {
            let address = memory.bus_address();
            return Some(Self { memory, address });
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
        Some(Self { memory, address })
    }

    /// Room for submission queues of `entries` entries, if at least one fits.
    pub(super) fn room(&self, entries: usize) -> Option<CmbQueues> {
        let stride = (entries * SQE_BYTES).next_multiple_of(PAGE_BYTES);
        let queues = self.memory.len() / stride;
        (queues > 0).then(|| CmbQueues {
            memory: Arc::clone(&self.memory),
            address: self.address,
            queues,
            stride,
        })
    }
}
