//! The traits that every block device implements, and what a caller may rely on.
//!
//! A [`Device`] is shared by all reactors; a [`DeviceQueue`] belongs to one. The contract of a
//! queue:
//!
//! - `submit` either takes a request (which then completes exactly once, through `poll`, with the
//!   tag and the lease that it came with) or hands it back whole in a [`Refusal`].
//! - `flush` ends a turn in which requests were submitted: what the back end was too busy to take
//!   then goes with a later poll, and [`DeviceQueue::has_ready`] says so.
//! - `poll` delivers completions in any order, as many as the batch has room for, and never blocks.
//! - Requests of one queue that are in flight together may be carried out in any order, as NVMe
//!   commands of one submission queue are. A request submitted after another's completion was
//!   polled sees that other's effect, on every queue of the device.
//! - Dropping a queue with requests in flight gives no completions; leases come home as soon as the
//!   back end can no longer touch them.

use std::os::fd::BorrowedFd;

use hugemem::{Loan, Pool};
use reactors::Nanos;

use crate::error::{OpenError, ReopenError};
use crate::health::{ErrorRecord, Health};
use crate::request::{CompletionBatch, Refusal, Request};

/// The deepest queue that a device opens, in requests.
pub const QUEUE_DEPTH_MAX: usize = 4096;

/// Block size of a device in bytes: 512 or 4096, the two formats that every NVMe host knows.
pub const BLOCK_SIZES: [u32; 2] = [512, 4096];

/// What deallocated blocks read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deallocate {
    /// The device takes no [`Operation::Deallocate`](crate::Operation::Deallocate).
    Unsupported,
    /// Deallocated blocks read as zeroes.
    ReadsZero,
    /// Deallocated blocks may read as anything until they are written.
    Unspecified,
}

/// Shape of a device. While the device is open, it may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes per logical block: 512 or 4096.
    pub block_size: u32,
    /// Number of logical blocks.
    pub block_count: u64,
    /// Whether a completed write may be lost in a power cut until a flush completes.
    pub volatile_write_cache: bool,
    /// Size and alignment, in blocks, at which the back end works best (1 where it does not
    /// matter).
    pub optimal_io_blocks: u32,
    /// Whether blocks can be deallocated, and what they read as afterwards.
    pub deallocate: Deallocate,
    /// Largest read, write or compare in blocks. Write zeroes and deallocate have no limit but the
    /// device.
    pub max_transfer_blocks: u32,
    /// Whether everything that would change the medium is refused with
    /// [`DeviceError::ReadOnly`](crate::DeviceError::ReadOnly).
    pub read_only: bool,
}

impl Geometry {
    /// Capacity in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.block_count * u64::from(self.block_size)
    }
}

/// Who a device is, over restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// The device's UUID (RFC 9562, bytes in network order), chosen by the configuration: the same
    /// device has the same one after every restart.
    pub uuid: [u8; 16],
    /// Human-readable kind of back end, ASCII, at most 40 characters (what an NVMe model number
    /// holds).
    pub model: String,
}

/// What a reactor asks for when it opens a queue.
#[derive(Clone)]
pub struct QueueOptions {
    /// Processor that will poll the queue (for placement; a device may ignore it).
    pub core: usize,
    /// Requests in flight at most, 1 ..= [`QUEUE_DEPTH_MAX`].
    pub depth: usize,
    /// Where the queue takes the leases that it needs for itself. The queue only ever calls
    /// [`Pool::take`]: waiting in the pool's line is left to the requests' owner.
    pub pool: Pool,
}

/// The longest that a request may stay in a device after it was given up, before the device has to
/// end it by force ([`DeviceQueue::abandon`]). As long as Linux's block drivers wait before they
/// abort a request themselves, unless told otherwise.
pub const GIVEN_UP_MAX: Nanos = Nanos::from_secs(30);

/// The longest that a device takes to end requests that it was told to
/// [abandon](DeviceQueue::abandon).
pub const ABANDONED_MAX: Nanos = Nanos::from_secs(28);

/// Whether a draining queue is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Drain {
    /// Nothing is in flight any more: the queue may be dropped.
    Done,
    /// So many requests are still to be polled.
    Outstanding(usize),
}

/// A block device. Shared by all reactors; opening a queue is the only thing that they do with it
/// on their own behalf.
pub trait Device: Send + Sync {
    /// Name from the configuration.
    fn name(&self) -> &str;

    /// Shape of the device.
    fn geometry(&self) -> Geometry;

    /// Who the device is.
    fn identity(&self) -> &DeviceIdentity;

    /// Counters and state, summed over all queues. For the control plane: may take a lock.
    fn health(&self) -> Health;

    /// Adds the newest errors that the back end itself keeps a log of to `records`, newest first,
    /// [`ERROR_RECORDS_MAX`](crate::ERROR_RECORDS_MAX) at most. For the control plane: may take a
    /// lock.
    fn error_log(&self, records: &mut Vec<ErrorRecord>) {
        let _ = records;
    }

    /// Returns a damaged device ([`HealthState::Damaged`](crate::HealthState::Damaged)) to service
    /// after an operator has repaired what lies below it. Writes that were accepted before the
    /// damage and not flushed may be lost: the operator must know that. Queues stay open and follow
    /// by themselves. Blocking: for the control plane.
    ///
    /// # Errors
    /// [`ReopenError`]: the device stays damaged.
    fn reopen(&self) -> Result<(), ReopenError> {
        Err(ReopenError::Unsupported)
    }

    /// Opens a queue for the calling thread, which is the only one that will use it.
    ///
    /// # Errors
    /// [`OpenError`]: a depth out of bounds, no memory for the queue's own buffer, no ring from the
    /// kernel, or the device is gone.
    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError>;
}

/// One reactor's way to a device.
pub trait DeviceQueue {
    /// Whether a read of this range may come without a lease: it completes with a loan of the
    /// device's own memory, where that is in one piece. Stays as it is while the device grows.
    fn lends_read(&self, lba: u64, blocks: u32) -> bool {
        let _ = (lba, blocks);
        false
    }

    /// Reads `blocks` blocks from `lba` on at once, where the device has them in memory of its own
    /// and nothing is in the way: the whole request, counted as one, with no completion to poll.
    /// `None` tells nothing of the range or the device: submit the read.
    fn lend(&mut self, lba: u64, blocks: u32) -> Option<Loan> {
        let _ = (lba, blocks);
        None
    }

    /// Writes `data`, whole blocks from `lba` on, at once, where the device keeps them in memory of
    /// its own and nothing is in the way: the whole request, counted as one, with no completion to
    /// poll. Until [`flush`](Self::flush) the device may keep other queues from the range. `false`
    /// tells nothing of the range or the device, and nothing has happened: submit the write.
    fn write_at_once(&mut self, lba: u64, data: &[u8]) -> bool {
        let _ = (lba, data);
        false
    }

    /// Whether [`fill_at_once`](Self::fill_at_once) ever does anything.
    fn fills_at_once(&self) -> bool {
        false
    }

    /// Has `fill` write whole blocks from `lba` on, `bytes` bytes of them, straight into memory of
    /// the device's own, at once, where nothing is in the way. Nobody sees those blocks between
    /// their old and their new content. The blocks are a part of a write: their bytes are counted,
    /// and the write itself when the rest is submitted, or by
    /// [`count_filled`](Self::count_filled). `false` tells nothing of the range or the device, and
    /// `fill` was not called.
    fn fill_at_once(&mut self, lba: u64, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let _ = (lba, bytes, fill);
        false
    }

    /// Counts a write of which nothing is left to be submitted.
    fn count_filled(&mut self) {}

    /// Takes a request, or hands it back.
    ///
    /// # Errors
    /// [`Refusal::Later`] when the queue is full, [`Refusal::Never`] when the request cannot
    /// succeed. Both hold the request as it came.
    fn submit(&mut self, request: Request) -> Result<(), Refusal>;

    /// Cancels requests whose effect is no longer wanted, as far as that is possible without
    /// asking anything below the queue. `is_unwanted` says by its tag whether a request is one of
    /// them. A request that waits inside the queue ends with
    /// [`DeviceError::Aborted`](crate::DeviceError::Aborted); of a request that is done in several
    /// steps no further step begins. A step that has begun goes on. Every request still completes
    /// exactly once, through [`poll`](Self::poll), and until then it may take effect.
    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        let _ = is_unwanted;
    }

    /// Requests that were [given up](Self::give_up) have not completed within [`GIVEN_UP_MAX`]. The
    /// back end ends them by force within [`ABANDONED_MAX`]. Before a request completes that may still change the medium, the device
    /// refuses every later write on all queues, so that the request cannot take effect after a
    /// write that is acknowledged. The request completes without its data then. Called again
    /// while requests remain.
    fn abandon(&mut self, is_overdue: &mut dyn FnMut(u64) -> bool) {
        let _ = is_overdue;
    }

    /// Ends a turn: everything submitted so far is on its way when this returns, and what was done at
    /// once is over for other queues too.
    fn flush(&mut self);

    /// Moves finished requests into `completions` until it is full. Returns how many came.
    fn poll(&mut self, completions: &mut CompletionBatch) -> usize;

    /// Requests submitted whose completion has not been polled, and those completed that were
    /// [abandoned](Self::abandon) and which what lies below still has: while there are any, the
    /// queue has to be polled.
    fn in_flight(&self) -> usize;

    /// A descriptor that is readable when `poll` has something to deliver, where the back end has
    /// one.
    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether `poll` may have something to do that [`wake_source`](Self::wake_source) will not
    /// tell: while this is true, the reactor must go on polling.
    fn has_ready(&self) -> bool;

    /// Called just before the reactor sleeps on [`wake_source`](Self::wake_source), after the last
    /// flush: a back end that polls connects its interrupt here and then looks once more. `false`:
    /// there is something to do, or no interrupt to be had, so do not sleep. The next
    /// [`poll`](Self::poll) disconnects the interrupt again; the reactor need not have slept.
    fn prepare_sleep(&mut self) -> bool {
        !self.has_ready()
    }

    /// The device has grown: requests may reach its new end from now on. A queue that was not told
    /// goes on to refuse them.
    fn device_grew(&mut self) {}

    /// Begins (and continues) closing: new requests are refused with
    /// [`DeviceError::Removed`](crate::DeviceError::Removed) for good, those in flight go on to
    /// complete through `poll`. Call it, poll, and call it again until it says [`Drain::Done`].
    fn drain(&mut self) -> Drain;
}
