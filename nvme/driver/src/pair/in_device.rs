//! Requests whose data is in the controller memory buffer (Base 2.1 §8.2.1): commands that move data
//! between the medium and the drive's own memory.

use std::sync::Arc;

use block::{DeviceError, Operation, Refusal, Request};
use hugemem::DeviceLease;
use nvme_spec::Sqe;

use super::{Gate, NamespaceLimits, Pair, zero_based};

impl Pair {
    /// Submits a read or write that is valid for its namespace, with its data in `lease`; or returns
    /// it.
    #[cold]
    pub(crate) fn submit_in_device(
        &mut self,
        queue: u8,
        namespace_limits: &NamespaceLimits,
        request: Request,
        lease: &mut DeviceLease,
    ) -> Result<(), Refusal> {
        if self.gate != Gate::Open {
            return Err(self.refuse(request));
        }
        let memory = self.data_memory.as_ref();
        if !memory.is_some_and(|it| Arc::ptr_eq(it, lease.memory())) || !lease.is_valid() {
            // The drive was reset or replaced: the content is lost.
            return Err(Refusal::Never(request, DeviceError::Interrupted));
        }
        let bytes = (request.blocks as usize) << namespace_limits.shift;
        if bytes > lease.memory().slice_bytes() || request.blocks > namespace_limits.part_blocks {
            return Err(Refusal::Never(request, DeviceError::Unsupported));
        }
        let Some(index) = self.table.free.pop() else {
            return Err(Refusal::Later(request));
        };
        if self.tail == self.rung {
            self.refresh_tick();
        }
        let (nsid, lba) = (namespace_limits.nsid, request.lba);
        let sqe = match request.operation {
            Operation::Write { fua } => Sqe::write(nsid, lba, zero_based(request.blocks), fua),
            _ => Sqe::read(nsid, lba, zero_based(request.blocks)),
        };
        // The list of PRP entries, if there is one, is in the arena as usual.
        let address = lease.begin();
        let sqe = self
            .pointers
            .point(sqe, &self.memory, index, address, bytes as u64);
        let whole = (request.tag, request.operation, bytes as u32);
        self.submit_whole(index, queue, whole, None, sqe);
        Ok(())
    }
}
