//! Copies that the drive executes by itself (NVM 1.1 §3.3.2): within a namespace, descriptor format 0, and
//! from another one, format 2.

use block::{COPY_SOURCE_BYTES, CopySource, Operation, Refusal, Request};
use hugemem::Lease;
use nvme_spec::Sqe;
use nvme_spec::command::CopyRange;
use zerocopy::IntoBytes;

use super::{Gate, NamespaceLimits, Pair, zero_based};

const _: () = assert!(size_of::<CopyRange>() == COPY_SOURCE_BYTES);

impl Pair {
    /// Submits a copy that is valid for its namespace, or returns it. Its list of source ranges is written
    /// into its lease, from the byte `list_at` on. They are of the namespace `snsid`, if there is one.
    #[cold]
    pub(crate) fn submit_copy(
        &mut self,
        queue: u8,
        namespace_limits: &NamespaceLimits,
        mut request: Request,
        (sources, list_at): (&[CopySource], usize),
        snsid: Option<u32>,
    ) -> Result<(), Refusal> {
        if self.gate != Gate::Open {
            return Err(self.refuse(request));
        }
        let (Some(lease), Operation::Write { fua }) = (&mut request.data, request.operation) else {
            return Err(Refusal::Never(request, block::DeviceError::Internal));
        };
        let Some(index) = self.table.free.pop() else {
            return Err(Refusal::Later(request));
        };
        let list = &mut lease[list_at..];
        for (entry, source) in list.chunks_exact_mut(COPY_SOURCE_BYTES).zip(sources) {
            let nlb_z = zero_based(source.blocks);
            let range = match snsid {
                None => CopyRange::new(source.lba, nlb_z),
                Some(snsid) => CopyRange::of_namespace(snsid, source.lba, nlb_z),
            };
            entry.copy_from_slice(range.as_bytes());
        }
        if self.tail == self.rung {
            self.refresh_tick();
        }
        // At most as many as the drive takes, 256.
        let count_z = (sources.len() - 1) as u8;
        let (nsid, lba) = (namespace_limits.nsid, request.lba);
        let sqe = match snsid {
            None => Sqe::copy_ranges(nsid, lba, count_z),
            Some(_) => Sqe::copy_from_namespaces(nsid, lba, count_z),
        };
        let mut command = sqe.copy();
        command.control.set_fua(fua);
        let data = request.data.map(Lease::into_dma);
        let address = data.as_ref().map_or(0, |lease| self.address(lease)) + list_at as u64;
        let list_bytes = (sources.len() * COPY_SOURCE_BYTES) as u64;
        let sqe = sqe.with_copy(command);
        let sqe = self
            .pointers
            .point(sqe, &self.memory, index, address, list_bytes);
        let bytes = request.blocks << namespace_limits.shift;
        let whole = (request.tag, request.operation, bytes);
        self.submit_whole(index, queue, whole, data, sqe);
        Ok(())
    }
}
