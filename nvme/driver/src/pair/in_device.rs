//! Requests whose data is in a controller memory buffer (Base 2.1 §8.2.1): commands that move data
//! between the medium and the memory of the drive itself, or of a neighbour in its address space.

use std::sync::Arc;

use block::{DeviceError, Operation, Refusal, Request};
use hugemem::{DeviceLease, DeviceMemory};
use nvme_spec::Sqe;

use super::{Gate, NamespaceLimits, Pair, data, zero_based};

impl Pair {
    /// Whether requests may have their data in this memory: the drive's own, or that of a neighbour.
    #[inline]
    pub(crate) fn reaches(&self, memory: &Arc<DeviceMemory>) -> bool {
        let own = self.data_memory.as_ref();
        own.is_some_and(|it| Arc::ptr_eq(it, memory)) || memory.is_shared_with(self.space)
    }

    /// Submits a read or write that is valid for its namespace, with its data in `lease` from `offset`
    /// on; or returns it.
    #[inline]
    pub(crate) fn submit_in_device(
        &mut self,
        queue: u8,
        namespace_limits: &NamespaceLimits,
        request: Request,
        (lease, offset): (&mut DeviceLease, usize),
    ) -> Result<(), Refusal> {
        if self.gate != Gate::Open {
            return Err(self.refuse(request));
        }
        let own = self.data_memory.as_ref();
        let is_own = own.is_some_and(|it| Arc::ptr_eq(it, lease.memory()));
        if !(is_own || lease.memory().is_shared_with(self.space)) || !lease.is_valid() {
            // The drive that has the memory was reset or replaced: the content is lost.
            return Err(Refusal::Never(request, DeviceError::Interrupted));
        }
        let bytes = (request.blocks as usize) << namespace_limits.shift;
        let slice_bytes = lease.memory().slice_bytes();
        let is_within = offset < lease.bytes() && bytes <= slice_bytes - offset % slice_bytes;
        if !is_within || request.blocks > namespace_limits.part_blocks {
            return Err(Refusal::Never(request, DeviceError::Unsupported));
        }
        let Some(index) = self.table.free.pop() else {
            return Err(Refusal::Later(request));
        };
        let begun = match is_own {
            true => Some(lease.begin(offset)),
            false => lease.begin_by_neighbour(offset),
        };
        let Some(address) = begun else {
            self.table.free.push(index);
            return Err(Refusal::Never(request, DeviceError::Interrupted));
        };
        if self.tail == self.rung {
            self.refresh_tick();
        }
        let (nsid, lba) = (namespace_limits.nsid, request.lba);
        let sqe = match request.operation {
            Operation::Write { fua } => Sqe::write(nsid, lba, zero_based(request.blocks), fua),
            _ => Sqe::read(nsid, lba, zero_based(request.blocks)),
        };
        let sqe = match self.data_pages {
            Some(pages) if is_own => data::point_to_pages(sqe, pages, address, bytes as u64),
            // The list of PRP entries, if there is one, is that of the slot as usual.
            _ => (self.pointers).point(sqe, &self.memory, index, address, bytes as u64),
        };
        let whole = (request.tag, request.operation, bytes as u32);
        self.submit_whole(index, queue, whole, None, sqe);
        Ok(())
    }
}
