//! An I/O queue over any transport: polled, without allocation, with data in leases of a pool.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use hugemem::{Lease, Pool};
use nvme_spec::command::{CopyRange, DatasetRange, WriteZeroesControl};
use nvme_spec::fabrics::ConnectAttributes;
use nvme_spec::{Sqe, zero_based_u16};
use zerocopy::IntoBytes;

use crate::admin::require_success;
use crate::authentication::{self, Exchange, RECEIVE_BYTES};
use crate::deadline::Deadline;
use crate::error::HostError;
use crate::link::{
    COMPLETIONS_MAX, Completion, Completions, ConnectionCounters, Refusal, Refused, Transfer,
};
use crate::options::ConnectOptions;
use crate::transport::{IoLink, QueueParameters};

/// A completed command of an I/O queue; reads have their data in `data`.
pub type HostCompletion = Completion<Lease>;

/// A batch of completions of an I/O queue.
pub type HostCompletions = Completions<Lease>;

/// Token of Connect, which completes before a user's first command.
const CONNECT_TOKEN: u64 = u64::MAX;

/// Parameters for connecting an I/O queue. Can be sent to the thread that will poll it.
#[derive(Debug, Clone)]
pub struct IoQueuePlan {
    pub(crate) options: ConnectOptions,
    pub(crate) parameters: QueueParameters,
}

impl IoQueuePlan {
    /// Connects the queue; `pool` provides its memory.
    ///
    /// # Errors
    /// [`HostError`]; nothing remains open.
    pub fn open(self, pool: Pool) -> Result<IoQueue, HostError> {
        let QueueParameters {
            qid,
            depth,
            cntlid,
            in_capsule_max_bytes,
            ..
        } = self.parameters;
        let data = self.options.connect_data(cntlid)?;
        let mut lease = pool.take(size_of_val(&data)).ok_or(HostError::NoMemory)?;
        lease.copy_from_slice(data.as_bytes());
        let fabric = &self.options.transport.0;
        let mut queue = IoQueue {
            connection: fabric.connect_io(&self.options, &self.parameters)?,
            pool,
            qid,
        };
        // This host counts its own slots and ignores SQHD, so a target does not have to send a
        // response capsule for it (Base 2.1 §6.3, CATTR; TCP 1.1 §3.6.2.9, SUCCESS).
        let attributes = ConnectAttributes::new().with_disable_sq_flow_control(true);
        // A depth of n needs n + 1 entries (Base 2.1 §3.3.1.5), which is n as a zero-based value.
        let sqe = Sqe::connect_queue(qid, depth, attributes, 0);
        let refused = queue
            .connection
            .submit(sqe, Transfer::Write(lease), CONNECT_TOKEN);
        refused.map_err(|refused| match refused.refusal {
            Refusal::NotRegistered => HostError::NotRegistered,
            _ => HostError::NoSlot,
        })?;
        let completion = queue.wait_completion(self.options.timeout, "Connect")?;
        let completion = require_success("Connect", &sqe, completion)?;
        let required = completion.cqe.connect_success().authreq();
        if authentication::is_wanted(&self.options, required.authentication())? {
            authentication::authenticate(&self.options, qid, &mut (&mut queue, &self.options))?;
        }
        queue.connection.connected(in_capsule_max_bytes);
        Ok(queue)
    }
}

impl Exchange for (&mut IoQueue, &ConnectOptions) {
    fn send(&mut self, sqe: Sqe, message: &[u8]) -> Result<(), HostError> {
        let (queue, options) = self;
        let mut lease = queue.pool.take(message.len()).ok_or(HostError::NoMemory)?;
        lease.copy_from_slice(message);
        queue
            .execute("Authentication Send", sqe, Transfer::Write(lease), options)
            .map(drop)
    }

    fn receive(&mut self, sqe: Sqe) -> Result<Vec<u8>, HostError> {
        let (queue, options) = self;
        let lease = queue.pool.take(RECEIVE_BYTES as usize);
        let transfer = Transfer::Read(lease.ok_or(HostError::NoMemory)?);
        let completion = queue.execute("Authentication Receive", sqe, transfer, options)?;
        let data = completion.data.ok_or(HostError::Malformed {
            what: "authentication message",
        })?;
        Ok(data.to_vec())
    }
}

/// A connected I/O queue.
///
/// The `submit_…` functions queue commands, [`Self::flush`] sends them together, and [`Self::poll`]
/// returns completions in any order. A command that is refused returns its lease.
#[derive(Debug)]
pub struct IoQueue {
    connection: IoLink,
    pool: Pool,
    qid: u16,
}

impl IoQueue {
    /// Queue identifier.
    #[must_use]
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// The pool that the queue was opened with.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Reads `blocks` from `lba` on into `data`, which must have exactly their length.
    ///
    /// # Errors
    /// [`Refused`] with the lease.
    pub fn submit_read(
        &mut self,
        nsid: u32,
        lba: u64,
        blocks: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        let Some(nlb_z) = zero_based_u16(blocks) else {
            return Err(refuse_length(data));
        };
        self.submit(Sqe::read(nsid, lba, nlb_z), Transfer::Read(data), token)
            .map(|_| ())
    }

    /// Writes `data`, which must have exactly the length of `blocks`, from `lba` on. `fua` requests
    /// Force Unit Access.
    ///
    /// # Errors
    /// [`Refused`] with the lease.
    pub fn submit_write(
        &mut self,
        nsid: u32,
        (lba, blocks): (u64, u32),
        fua: bool,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        let Some(nlb_z) = zero_based_u16(blocks) else {
            return Err(refuse_length(data));
        };
        self.submit(
            Sqe::write(nsid, lba, nlb_z, fua),
            Transfer::Write(data),
            token,
        )
        .map(|_| ())
    }

    /// Compares `data`, which must have exactly the length of `blocks`, with the blocks from `lba`
    /// on.
    ///
    /// # Errors
    /// [`Refused`] with the lease.
    pub fn submit_compare(
        &mut self,
        nsid: u32,
        lba: u64,
        blocks: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        let Some(nlb_z) = zero_based_u16(blocks) else {
            return Err(refuse_length(data));
        };
        self.submit(Sqe::compare(nsid, lba, nlb_z), Transfer::Write(data), token)
            .map(|_| ())
    }

    /// Makes all writes that completed before durable.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn submit_flush(&mut self, nsid: u32, token: u64) -> Result<(), Refused<Lease>> {
        self.submit(Sqe::flush(nsid), Transfer::None, token)
            .map(|_| ())
    }

    /// Zeroes `blocks` from `lba` on. `deallocate` requests to deallocate them if possible.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn submit_write_zeroes(
        &mut self,
        nsid: u32,
        lba: u64,
        blocks: u32,
        deallocate: bool,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        let Some(nlb_z) = zero_based_u16(blocks) else {
            return Err(Refused {
                refusal: Refusal::Length,
                data: None,
            });
        };
        let control = WriteZeroesControl::new()
            .with_nlb_z(nlb_z)
            .with_deac(deallocate);
        let sqe = Sqe::write_zeroes_range(nsid, lba, control);
        self.submit(sqe, Transfer::None, token).map(|_| ())
    }

    /// Deallocates 1 to 256 ranges. Their list uses a lease of the pool, which the completion
    /// returns.
    ///
    /// # Errors
    /// [`Refused`]; [`Refusal::NoMemory`] if the pool has no free lease.
    pub fn submit_deallocate(
        &mut self,
        nsid: u32,
        ranges: &[DatasetRange],
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        let (nr_z, list) = self.range_list(ranges.len(), ranges.as_bytes())?;
        let sqe = Sqe::deallocate(nsid, nr_z);
        self.submit(sqe, Transfer::Write(list), token).map(|_| ())
    }

    /// Copies 1 to 256 source ranges of the namespace `nsid` to its blocks from `sdlba` on. Their list
    /// uses a lease of the pool, which the completion returns.
    ///
    /// # Errors
    /// [`Refused`]; [`Refusal::NoMemory`] if the pool has no free lease.
    pub fn submit_copy(
        &mut self,
        nsid: u32,
        sdlba: u64,
        ranges: &[CopyRange],
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        let (nr_z, list) = self.range_list(ranges.len(), ranges.as_bytes())?;
        let sqe = Sqe::copy_ranges(nsid, sdlba, nr_z);
        self.submit(sqe, Transfer::Write(list), token).map(|_| ())
    }

    /// Copies 1 to 256 source ranges, each of which names its namespace, to the blocks from `sdlba` on
    /// of the namespace `nsid`, as [`submit_copy`](Self::submit_copy) does. The format has to be
    /// enabled ([`Controller::set_host_behavior`](crate::Controller::set_host_behavior)).
    ///
    /// # Errors
    /// [`Refused`]; [`Refusal::NoMemory`] if the pool has no free lease.
    pub fn submit_copy_from_namespaces(
        &mut self,
        nsid: u32,
        sdlba: u64,
        ranges: &[CopyRange],
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        let (nr_z, list) = self.range_list(ranges.len(), ranges.as_bytes())?;
        let sqe = Sqe::copy_from_namespaces(nsid, sdlba, nr_z);
        self.submit(sqe, Transfer::Write(list), token).map(|_| ())
    }

    /// A lease with a list of 1 to 256 ranges, and their zero-based number.
    fn range_list(&self, count: usize, list: &[u8]) -> Result<(u8, Lease), Refused<Lease>> {
        let refused = |refusal| Refused {
            refusal,
            data: None,
        };
        let nr_z = count.checked_sub(1).and_then(|it| u8::try_from(it).ok());
        let nr_z = nr_z.ok_or_else(|| refused(Refusal::Length))?;
        let lease = self.pool.take(list.len());
        let mut lease = lease.ok_or_else(|| refused(Refusal::NoMemory))?;
        lease.copy_from_slice(list);
        Ok((nr_z, lease))
    }

    /// Queues any command and sets its identifier and data pointer. Returns the identifier.
    ///
    /// # Errors
    /// [`Refused`] with the lease.
    pub fn submit(
        &mut self,
        sqe: Sqe,
        transfer: Transfer<Lease>,
        token: u64,
    ) -> Result<u16, Refused<Lease>> {
        self.connection.submit(sqe, transfer, token)
    }

    /// Sends everything queued: with one system call if the socket has room, or with one doorbell.
    ///
    /// # Errors
    /// [`HostError`], final.
    pub fn flush(&mut self) -> Result<(), HostError> {
        self.connection.flush()
    }

    /// Adds completed commands to `completions`, after at most one receiving system call or poll of
    /// the completion queue, and sends data for R2Ts. Returns the number added; 0 if `completions`
    /// is full.
    ///
    /// # Errors
    /// [`HostError`], final: [`Self::take_failed_command`] returns the leases.
    pub fn poll(&mut self, completions: &mut HostCompletions) -> Result<usize, HostError> {
        let added = self.connection.poll_until(completions, COMPLETIONS_MAX)?;
        if self.connection.has_unsent() {
            self.connection.flush()?;
        }
        Ok(added)
    }

    /// Sends everything queued, and waits for one completion, at most for `limit`; `what` names it
    /// in the error.
    ///
    /// # Errors
    /// [`HostError`]; all except [`HostError::TimedOut`] are final.
    pub fn wait_completion(
        &mut self,
        limit: Duration,
        what: &'static str,
    ) -> Result<HostCompletion, HostError> {
        let deadline = Deadline::after(limit, what);
        self.flush()?;
        let mut completions = HostCompletions::new();
        loop {
            self.connection.poll_until(&mut completions, 1)?;
            if let Some(completion) = completions.pop() {
                return Ok(completion);
            }
            self.flush()?;
            self.connection.wait(deadline.left()?);
        }
    }

    /// Takes one command back from a failed queue: its token and lease. Returns `None` after the
    /// last.
    pub fn take_failed_command(&mut self) -> Option<(u64, Option<Lease>)> {
        self.connection.take_failed_command()
    }

    /// Runs the only command of the queue to completion.
    fn execute(
        &mut self,
        command: &'static str,
        sqe: Sqe,
        transfer: Transfer<Lease>,
        options: &ConnectOptions,
    ) -> Result<HostCompletion, HostError> {
        let refused = self.connection.submit(sqe, transfer, CONNECT_TOKEN);
        refused.map_err(|_| HostError::NoSlot)?;
        let completion = self.wait_completion(options.timeout, command)?;
        require_success(command, &sqe, completion)
    }

    /// Number of commands in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.connection.in_flight()
    }

    /// Maximum number of commands in flight.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.connection.depth()
    }

    /// The queue's counters.
    #[must_use]
    pub fn counters(&self) -> ConnectionCounters {
        self.connection.counters()
    }

    /// Waits until polling may have a result, at most for `limit`.
    pub fn wait(&mut self, limit: Duration) {
        self.connection.wait(limit);
    }

    /// A descriptor to wait on, if one is enough: a TCP socket.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.connection.descriptor()
    }
}

fn refuse_length(data: Lease) -> Refused<Lease> {
    Refused {
        refusal: Refusal::Length,
        data: Some(data),
    }
}
