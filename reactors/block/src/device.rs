//! The traits that every block device implements, and their contract.
//!
//! A [`Device`] is shared by all reactors; a [`DeviceQueue`] belongs to one. The contract of a
//! queue:
//!
//! - `submit` either takes a request (which then completes exactly once, through `poll`, with its
//!   tag and its lease) or returns it unchanged in a [`Refusal`].
//! - `flush` ends a turn in which requests were submitted. A request that the back end cannot take
//!   yet is submitted by a later poll, and [`DeviceQueue::has_ready`] is true until then.
//! - `poll` delivers completions in any order, as many as the batch has room for, and never blocks.
//! - Requests of one queue that are in flight together may be executed in any order, as NVMe
//!   commands of one submission queue are. A request that is submitted after the completion of
//!   another was polled sees the effect of that other request, on every queue of the device.
//! - A queue that is dropped with requests in flight delivers no completions; leases return to
//!   their pool when the back end can no longer access them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hugemem::{Borrow, DeviceLease, DeviceMemory, Pool};
use reactors::Nanos;

use crate::copying::{CopyLimits, CopyOrigin, CopySource};
use crate::error::{DeviceError, OpenError, ReopenError};
use crate::health::{ErrorRecord, Health};
use crate::request::{CompletionBatch, Refusal, Request};
use crate::shared_queues::SharedQueues;

/// Maximum depth of a queue, in requests.
pub const QUEUE_DEPTH_MAX: usize = 4096;

/// Block sizes of a device in bytes: 512 or 4096, the two formats that every NVMe host supports.
pub const BLOCK_SIZES: [u32; 2] = [512, 4096];

/// The content of deallocated blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deallocate {
    /// The device does not support [`Operation::Deallocate`](crate::Operation::Deallocate).
    Unsupported,
    /// Deallocated blocks read as zeroes.
    ReadsZero,
    /// Deallocated blocks read as unspecified data until they are written.
    Unspecified,
}

/// Geometry of a device. An open device may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes per logical block: 512 or 4096.
    pub block_size: u32,
    /// Number of logical blocks.
    pub block_count: u64,
    /// Whether a completed write may be lost in a power failure until a flush completes.
    pub volatile_write_cache: bool,
    /// Preferred size and alignment of requests in blocks; 1 if the back end has no preference.
    pub optimal_io_blocks: u32,
    /// Whether blocks can be deallocated, and what they read as afterwards.
    pub deallocate: Deallocate,
    /// Largest read, write or compare in blocks. Write zeroes and deallocate are limited only by
    /// the size of the device.
    pub max_transfer_blocks: u32,
    /// Whether every operation that changes the medium is refused with
    /// [`DeviceError::ReadOnly`](crate::DeviceError::ReadOnly).
    pub read_only: bool,
    /// The writes that are never torn.
    pub atomic: AtomicWrites,
}

/// Writes of which a read, or a power failure, leaves either everything or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicWrites {
    /// Most blocks beside other requests.
    pub normal_blocks: u32,
    /// Most blocks over a power failure.
    pub power_failure_blocks: u32,
    /// Blocks between boundaries that such a write must not cross; 0 if there are none.
    pub normal_boundary_blocks: u32,
    /// The same over a power failure.
    pub power_failure_boundary_blocks: u32,
    /// The first boundary.
    pub boundary_offset_blocks: u32,
}

impl AtomicWrites {
    /// Single blocks only.
    pub const BLOCK: Self = Self {
        normal_blocks: 1,
        power_failure_blocks: 1,
        normal_boundary_blocks: 0,
        power_failure_boundary_blocks: 0,
        boundary_offset_blocks: 0,
    };
}

impl Geometry {
    /// Capacity in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.block_count * u64::from(self.block_size)
    }
}

/// Identity of a device across restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// The device's UUID (RFC 9562, bytes in network order) from the configuration: the same after
    /// every restart.
    pub uuid: [u8; 16],
    /// Human-readable type of the back end, ASCII, at most 40 characters (the size of an NVMe model
    /// number).
    pub model: String,
}

/// Options for opening a queue.
#[derive(Clone)]
pub struct QueueOptions {
    /// Processor that will poll the queue, for memory placement; a device may ignore it.
    pub core: usize,
    /// Maximum number of requests in flight, 1 ..= [`QUEUE_DEPTH_MAX`].
    pub depth: usize,
    /// Pool for the leases that the queue itself needs. The queue only calls [`Pool::take`];
    /// waiting in the pool's queue is left to the owner of the requests.
    pub pool: Pool,
    /// What this queue shares with the queues of other devices on the reactor.
    pub shared: SharedQueues,
}

impl QueueOptions {
    /// Options of a queue that shares nothing with other devices.
    #[must_use]
    pub fn new(core: usize, depth: usize, pool: Pool) -> Self {
        Self {
            core,
            depth,
            pool,
            shared: SharedQueues::default(),
        }
    }
}

/// Time after which the device has to end a request by force once it was given up
/// ([`DeviceQueue::abandon`]). It equals the default time after which Linux's block drivers abort a
/// request.
pub const GIVEN_UP_MAX: Nanos = Nanos::from_secs(30);

/// Maximum time that a device takes to end requests that were [abandoned](DeviceQueue::abandon).
pub const ABANDONED_MAX: Nanos = Nanos::from_secs(28);

/// How data of requests may take its way: of copies, and of large reads and writes of hosts whose
/// transport accesses memory of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataPath {
    /// Through the arena.
    #[default]
    Host,
    /// Through memory of a device that all devices of the request reach, while there is any; else
    /// through the arena.
    DeviceMemory,
    /// The same, but a device that copies by itself ([`DeviceQueue::copy_limits`]) does so.
    Best,
}

/// Whether a draining queue is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Drain {
    /// No request is in flight: the queue may be dropped.
    Done,
    /// This many requests are still to be polled.
    Outstanding(usize),
}

/// A block device. Shared by all reactors, which only open queues of it.
pub trait Device: Send + Sync {
    /// Name from the configuration.
    fn name(&self) -> &str;

    /// Geometry of the device.
    fn geometry(&self) -> Geometry;

    /// Identity of the device.
    fn identity(&self) -> &DeviceIdentity;

    /// Counters and state, summed over all queues. For the control plane: may take a lock.
    fn health(&self) -> Health;

    /// Adds the newest entries of the back end's own error log to `records`, newest first, at most
    /// [`ERROR_RECORDS_MAX`](crate::ERROR_RECORDS_MAX). For the control plane: may take a lock.
    fn error_log(&self, records: &mut Vec<ErrorRecord>) {
        let _ = records;
    }

    /// Returns a damaged device ([`HealthState::Damaged`](crate::HealthState::Damaged)) to service
    /// after an operator has repaired the underlying storage. Writes that were accepted before the
    /// damage and not flushed may be lost; the operator has to accept that. Open queues resume
    /// without further calls. Blocking: for the control plane.
    ///
    /// # Errors
    /// [`ReopenError`]: the device stays damaged.
    fn reopen(&self) -> Result<(), ReopenError> {
        Err(ReopenError::Unsupported)
    }

    /// Memory of the device itself in which it can place data, if it has any now. For the control
    /// plane: may take a lock.
    fn device_memory(&self) -> Option<Arc<DeviceMemory>> {
        None
    }

    /// Whether requests may have their data in this memory of a device: it is that of this device,
    /// or of another one that this device reaches. For the control plane: may take a lock.
    fn reaches(&self, memory: &Arc<DeviceMemory>) -> bool {
        self.device_memory()
            .is_some_and(|own| Arc::ptr_eq(&own, memory))
    }

    /// This device as the source of copies that another device of its drive executes; `None` if none can.
    fn copy_origin(&self) -> Option<CopyOrigin> {
        None
    }

    /// Opens a queue for the calling thread, which alone uses it.
    ///
    /// # Errors
    /// [`OpenError`]: the depth is out of bounds, there is no memory for the queue's own buffer,
    /// the kernel provides no ring, or the device is gone.
    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError>;
}

/// The queue of one reactor to a device.
pub trait DeviceQueue {
    /// Whether a read of this range may be submitted without a lease: it completes with a borrow of
    /// the device's own memory, if the range is contiguous there. The result does not change while
    /// the device grows.
    fn can_borrow_read(&self, lba: u64, blocks: u32) -> bool {
        let _ = (lba, blocks);
        false
    }

    /// Borrows `blocks` blocks from `lba` on for a read, if the device has them in its own memory
    /// and no range lock prevents it. The read is complete and counted, with no completion to poll.
    /// `None` implies nothing about the range or the device: submit the read.
    fn borrow_read(&mut self, lba: u64, blocks: u32) -> Option<Borrow> {
        let _ = (lba, blocks);
        None
    }

    /// Writes `data`, whole blocks from `lba` on, inline, if the device keeps them in its own
    /// memory and no range lock prevents it. The write is complete and counted, with no completion
    /// to poll. Until [`flush`](Self::flush) the device may keep the range locked for other queues.
    /// `false` implies nothing about the range or the device, and nothing has happened: submit the
    /// write.
    fn write_inline(&mut self, lba: u64, data: &[u8]) -> bool {
        let _ = (lba, data);
        false
    }

    /// Whether the device supports [`place_directly`](Self::place_directly).
    fn supports_direct_placement(&self) -> bool {
        false
    }

    /// Direct data placement: calls `fill` to write `bytes` bytes, whole blocks from `lba` on,
    /// directly into the device's own memory, if no range lock prevents it. Readers see the old or
    /// the new content of these blocks, nothing in between. The blocks are a part of a write: their
    /// bytes are counted now, and the write itself when the rest is submitted, or by
    /// [`count_placed_write`](Self::count_placed_write). `false` implies nothing about the range or
    /// the device;
    /// `fill` was not called then.
    fn place_directly(&mut self, lba: u64, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let _ = (lba, bytes, fill);
        false
    }

    /// Counts a write whose data was placed completely, so that no part of it is submitted.
    fn count_placed_write(&mut self) {}

    /// Takes a request or returns it.
    ///
    /// # Errors
    /// [`Refusal::Later`] if the queue is full, [`Refusal::Never`] if the request cannot succeed.
    /// Both return the request unchanged.
    fn submit(&mut self, request: Request) -> Result<(), Refusal>;

    /// The memory of the device itself in which requests may have their data now.
    fn device_memory(&self) -> Option<Arc<DeviceMemory>> {
        None
    }

    /// How the device's data may take its way.
    fn data_path(&self) -> DataPath {
        DataPath::Host
    }

    /// Whether a request of `blocks` blocks may be executed as several ones: nothing that the device
    /// promises about it depends on one command of the drive.
    fn may_split(&self, blocks: u32) -> bool {
        let _ = blocks;
        true
    }

    /// Maximum length in blocks of a request whose data is in a slice of this memory; 0 if the device
    /// does not [reach](Device::reaches) it now.
    fn blocks_in(&self, memory: &Arc<DeviceMemory>) -> u32 {
        let _ = memory;
        0
    }

    /// The device's own memory, and [`blocks_in`](Self::blocks_in) of it; `None` if it has none now, or the
    /// memory has ended.
    fn own_memory(&self) -> Option<(Arc<DeviceMemory>, u32)> {
        let memory = self.device_memory().filter(|it| !it.has_ended())?;
        let blocks = self.blocks_in(&memory);
        Some((memory, blocks))
    }

    /// Takes a read or a write without data, whose data is in one slice of `lease`, from the byte `offset`
    /// of the lease on, which is a multiple of the block size; or returns it. If it is taken, a request
    /// is in flight on that slice ([`DeviceLease::begin`] or [`DeviceLease::begin_by_neighbour`]) until
    /// its completion, after which the caller calls [`DeviceLease::complete`]. Requests in flight on
    /// several slices may have the same tag.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), and [`DeviceError::Interrupted`](crate::DeviceError::Interrupted)
    /// if the memory of the lease has ended, or the device does not [reach](Device::reaches) it.
    fn submit_in_device(
        &mut self,
        request: Request,
        lease: &mut DeviceLease,
        offset: usize,
    ) -> Result<(), Refusal> {
        let _ = (lease, offset);
        Err(Refusal::Never(request, DeviceError::Unsupported))
    }

    /// What the device copies by itself within its own blocks; `None` if it copies nothing.
    fn copy_limits(&self) -> Option<CopyLimits> {
        None
    }

    /// Takes a write whose data is what `sources` of the same device have, or returns it. The sources are
    /// within [`copy_limits`](Self::copy_limits), and do not overlap the range that is written. The lease
    /// of the request has no data: the device keeps its list of sources there, with
    /// [`COPY_SOURCE_BYTES`](crate::COPY_SOURCE_BYTES) for each of them from the byte `list_at` on. What is
    /// before it stays. After an error, any of the blocks may be written.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn submit_copy(
        &mut self,
        request: Request,
        sources: &[CopySource],
        list_at: usize,
    ) -> Result<(), Refusal> {
        let _ = (sources, list_at);
        Err(Refusal::Never(request, DeviceError::Unsupported))
    }

    /// This device as the source of copies that another device of its drive executes, and as their
    /// destination; `None` if none can now.
    fn copy_origin(&self) -> Option<CopyOrigin> {
        None
    }

    /// Takes a write whose data is what `sources` of another device have, or returns it. The sources are
    /// within [`CopyOrigin::limits_to`]. The lease is that of [`submit_copy`](Self::submit_copy). After an
    /// error, any of the blocks may be written.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn submit_copy_from(
        &mut self,
        request: Request,
        origin: &CopyOrigin,
        (sources, list_at): (&[CopySource], usize),
    ) -> Result<(), Refusal> {
        let _ = (origin, sources, list_at);
        Err(Refusal::Never(request, DeviceError::Unsupported))
    }

    /// Cancels requests whose effect is no longer wanted, as far as the queue can do so without a
    /// request to the layer below. `is_unwanted` selects requests by their tags. A request that
    /// waits inside the queue ends with [`DeviceError::Aborted`](crate::DeviceError::Aborted); a
    /// request of several steps begins no further step. A step in progress continues. Every request
    /// still completes exactly once, through [`poll`](Self::poll), and until then it may take
    /// effect.
    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        let _ = is_unwanted;
    }

    /// Ends by force requests that were [given up](Self::give_up) and have not completed within
    /// [`GIVEN_UP_MAX`]. The back end ends them within [`ABANDONED_MAX`]. Before it completes a
    /// request that may still change the medium, the device refuses all later writes on all queues,
    /// so that the request cannot take effect after an acknowledged write. Such a request completes
    /// without its data. Called repeatedly while requests remain.
    fn abandon(&mut self, is_overdue: &mut dyn FnMut(u64) -> bool) {
        let _ = is_overdue;
    }

    /// Ends a turn: all requests submitted so far are passed to the back end when this returns, and
    /// other queues see the inline writes.
    fn flush(&mut self);

    /// Moves finished requests into `completions` until it is full. Returns their number.
    fn poll(&mut self, completions: &mut CompletionBatch) -> usize;

    /// Number of requests whose completion has not been polled, plus completed requests that were
    /// [abandoned](Self::abandon) and whose operation the layer below still has. While it is not 0,
    /// the queue has to be polled.
    fn in_flight(&self) -> usize;

    /// How often the device was gone, as far as this queue has noticed: what was completed and not
    /// flushed before may be lost, although the device has failed no request.
    fn absences(&self) -> u32 {
        0
    }

    /// A descriptor that is readable when `poll` has completions, if the back end has one.
    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether `poll` may have work that [`wake_source`](Self::wake_source) does not signal: while
    /// this is true, the reactor has to continue polling.
    fn has_ready(&self) -> bool;

    /// Called before the reactor sleeps on [`wake_source`](Self::wake_source), after the last
    /// flush. A polled back end enables its interrupt here and then checks once more. `false`:
    /// there is work, or no interrupt is available, so the reactor does not sleep. The next
    /// [`poll`](Self::poll) disables the interrupt, whether or not the reactor slept.
    fn prepare_sleep(&mut self) -> bool {
        !self.has_ready()
    }

    /// Notifies the queue that the device has grown: requests may use its new end from now on.
    /// Until then the queue refuses them.
    fn device_grew(&mut self) {}

    /// Begins and continues closing. New requests are refused with
    /// [`DeviceError::Removed`](crate::DeviceError::Removed) permanently; requests in flight
    /// complete through `poll`. Call it and poll until it returns [`Drain::Done`].
    fn drain(&mut self) -> Drain;
}
