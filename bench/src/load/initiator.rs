//! The queue that a lane drives: the host's, a local device's, a file's on a server, or a disk with
//! planted faults in tests.

use std::time::Duration;

use hugemem::Lease;
use nvme_host::{ConnectionCounters, HostCompletions, IoQueue, Refused};

use crate::load::phase::RunError;

/// The operations that a lane needs of a queue, with the meaning of [`IoQueue`]'s functions of the
/// same names.
pub trait Initiator {
    /// Reads blocks into a lease.
    ///
    /// # Errors
    /// [`Refused`] with the lease.
    fn submit_read(
        &mut self,
        nsid: u32,
        lba: u64,
        blocks: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>>;

    /// Writes a lease.
    ///
    /// # Errors
    /// [`Refused`] with the lease.
    fn submit_write(
        &mut self,
        nsid: u32,
        lba: u64,
        blocks: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>>;

    /// Sends queued requests.
    ///
    /// # Errors
    /// [`RunError`], final.
    fn flush(&mut self) -> Result<(), RunError>;

    /// Returns completions.
    ///
    /// # Errors
    /// [`RunError`], final.
    fn poll(&mut self, completions: &mut HostCompletions) -> Result<usize, RunError>;

    /// Waits until there is something to poll.
    fn wait(&mut self, limit: Duration);

    /// The counters of the queue.
    fn counters(&self) -> ConnectionCounters {
        ConnectionCounters::default()
    }
}

impl Initiator for IoQueue {
    fn submit_read(
        &mut self,
        nsid: u32,
        lba: u64,
        blocks: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        self.submit_read(nsid, lba, blocks, data, token)
    }

    fn submit_write(
        &mut self,
        nsid: u32,
        lba: u64,
        blocks: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        self.submit_write(nsid, (lba, blocks), false, data, token)
    }

    fn flush(&mut self) -> Result<(), RunError> {
        Ok(self.flush()?)
    }

    fn poll(&mut self, completions: &mut HostCompletions) -> Result<usize, RunError> {
        Ok(self.poll(completions)?)
    }

    fn wait(&mut self, limit: Duration) {
        self.wait(limit);
    }

    fn counters(&self) -> ConnectionCounters {
        self.counters()
    }
}

/// For callers that borrow a queue.
impl<I: Initiator> Initiator for &mut I {
    fn submit_read(
        &mut self,
        nsid: u32,
        lba: u64,
        blocks: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        (**self).submit_read(nsid, lba, blocks, data, token)
    }

    fn submit_write(
        &mut self,
        nsid: u32,
        lba: u64,
        blocks: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        Initiator::submit_write(&mut **self, nsid, lba, blocks, data, token)
    }

    fn flush(&mut self) -> Result<(), RunError> {
        (**self).flush()
    }

    fn poll(&mut self, completions: &mut HostCompletions) -> Result<usize, RunError> {
        (**self).poll(completions)
    }

    fn wait(&mut self, limit: Duration) {
        (**self).wait(limit);
    }

    fn counters(&self) -> ConnectionCounters {
        (**self).counters()
    }
}
