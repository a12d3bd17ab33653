//! The shared receive queue of one device and reactor, which receives command capsules.
//!
//! Each receive has two pieces of memory. The command is received into a table that the device also
//! accesses, and its 64 bytes are copied from there. In-capsule data is received into a lease,
//! which becomes the command's buffer without a copy. Such a receive takes another lease before it
//! is posted again. If the pool has none, the receive waits in the pool's queue, and the shared
//! receive queue is shorter meanwhile: the device delays hosts (RNR), and nothing is lost.
//!
//! A posted receive keeps its lease until a command arrives, which may never happen. Therefore the
//! arena reserves the leases of all receives, in one class of slices: requests always have others.

use std::sync::Arc;

use hugemem::{Arena, DmaBuffer, Lease, Pool, SlicePromise, WaiterToken};
use nvme_fabrics::RequestToken;
use nvme_spec::Sqe;
use rdma::{MemoryMap, PostError, Provider, ReceiveRequest, SgeList, SharedReceiveQueue};
use reactors::Nanos;
use zerocopy::transmute;

use crate::counters::RdmaCounters;
use crate::posted::{CompletedReceive, QueueDestroyed, ReceiveBuffer};
use crate::token::{RECEIVES, WorkId};

/// Bytes of a command in a capsule.
pub(crate) const COMMAND_BYTES: usize = size_of::<Sqe>();
/// Commands in one piece of shared memory, of a size that the arena always has.
const COMMANDS_PER_TABLE: usize = 64;

/// Why receives cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceivesError {
    #[error("the arena has no memory left for commands")]
    NoMemory,
    #[error("the arena has no slice for a receive with {in_capsule_bytes} bytes beside requests")]
    NoPromise { in_capsule_bytes: u32 },
    #[error("memory of the arena is not registered")]
    NotRegistered,
    #[error("the shared receive queue refuses a receive: {0}")]
    Refused(#[from] PostError),
}

#[derive(Debug)]
struct Receive {
    /// `None` while a command has the lease, or the receive waits for another.
    data: Option<ReceiveBuffer>,
    /// The prepared receive, which does not change as long as its lease is the same.
    request: ReceiveRequest,
}

/// The receives of one shared receive queue.
#[derive(Debug)]
pub(crate) struct Receives<P: Provider> {
    queue: P::SharedReceiveQueue,
    receives: Vec<Receive>,
    commands: Vec<DmaBuffer>,
    in_capsule_bytes: usize,
    /// The reserved leases for in-capsule data; `None` without in-capsule data.
    promise: Option<SlicePromise>,
    /// The token for the pool's queue, without the slot.
    waiter: RequestToken,
    /// Number of receives that wait for a lease.
    waiting: usize,
    queued: bool,
}

impl<P: Provider> Receives<P> {
    /// Allocates `count` receives with up to `in_capsule_bytes` of reserved data each, and queues
    /// as many as the pool has leases for. `waiter` identifies them in the pool's queue.
    pub(crate) fn new(
        queue: P::SharedReceiveQueue,
        count: u32,
        (in_capsule_bytes, promise): (u32, Option<SlicePromise>),
        waiter: RequestToken,
        (arena, pool, map): (&Arc<Arena>, &Pool, &MemoryMap<P>),
        counters: &RdmaCounters,
    ) -> Result<Self, ReceivesError> {
        let count = count as usize;
        let tables = count.div_ceil(COMMANDS_PER_TABLE);
        let table = || arena.dma_buffer(COMMANDS_PER_TABLE * COMMAND_BYTES);
        let commands: Option<Vec<_>> = (0..tables).map(|_| table()).collect();
        let mut this = Self {
            queue,
            receives: Vec::with_capacity(count),
            commands: commands.ok_or(ReceivesError::NoMemory)?,
            in_capsule_bytes: in_capsule_bytes as usize,
            promise,
            waiter: waiter.with_connection(RECEIVES),
            waiting: 0,
            queued: false,
        };
        for index in 0..count {
            let memory = this.memory_of(index, None, map);
            let id = WorkId::new().with_receive(true).with_sequence(index as u32);
            this.receives.push(Receive {
                data: None,
                request: ReceiveRequest {
                    wr_id: id.into_bits(),
                    memory: memory.ok_or(ReceivesError::NotRegistered)?,
                },
            });
        }
        for index in 0..count as u16 {
            this.post_first(index, pool, map, counters, Nanos::ZERO)?;
        }
        Ok(this)
    }

    pub(crate) fn queue(&self) -> &P::SharedReceiveQueue {
        &self.queue
    }

    /// In-capsule data size in bytes.
    pub(crate) fn in_capsule_bytes(&self) -> usize {
        self.in_capsule_bytes
    }

    /// Whether all receives wait for a lease, so that no command can be received.
    #[inline]
    pub(crate) fn are_starved(&self) -> bool {
        self.waiting == self.receives.len()
    }

    /// Whether `index` is one of the receives.
    #[inline]
    pub(crate) fn contains(&self, index: u32) -> bool {
        (index as usize) < self.receives.len()
    }

    /// The command that was received.
    #[inline]
    pub(crate) fn command(&self, receive: &CompletedReceive) -> Sqe {
        let index = usize::from(receive.index());
        let offset = index % COMMANDS_PER_TABLE * COMMAND_BYTES;
        let table = &self.commands[index / COMMANDS_PER_TABLE];
        transmute!(table.load_words::<{ COMMAND_BYTES / 8 }>(offset))
    }

    /// Passes the received in-capsule data to `read`.
    pub(crate) fn read_data<R>(
        &mut self,
        receive: &CompletedReceive,
        read: impl FnOnce(&[u8]) -> R,
    ) -> R {
        let Some(data) = self.take_data(receive) else {
            return read(&[]);
        };
        let value = read(&data);
        self.receives[usize::from(receive.index())].data = Some(ReceiveBuffer::new(data));
        value
    }

    /// Takes the lease with the in-capsule data.
    pub(crate) fn take_data(&mut self, receive: &CompletedReceive) -> Option<Lease> {
        let data = self.receives[usize::from(receive.index())].data.take()?;
        Some(data.completed(receive))
    }

    /// Queues a receive again: with its lease, or with a new one if it was taken. Without a free
    /// lease the receive waits.
    #[expect(clippy::needless_pass_by_value, reason = "the proof is used up")]
    #[inline]
    pub(crate) fn post_again(
        &mut self,
        receive: CompletedReceive,
        pool: &Pool,
        map: &MemoryMap<P>,
        counters: &RdmaCounters,
        now: Nanos,
    ) -> Result<(), ReceivesError> {
        self.post_first(receive.index(), pool, map, counters, now)
    }

    /// Queues receive `index`, which is not posted.
    #[inline]
    fn post_first(
        &mut self,
        index: u16,
        pool: &Pool,
        map: &MemoryMap<P>,
        counters: &RdmaCounters,
        now: Nanos,
    ) -> Result<(), ReceivesError> {
        if self.receives[usize::from(index)].data.is_some() {
            return self.post(index);
        }
        self.post_with_buffer(index, pool, map, counters, now)
    }

    #[inline(never)]
    fn post_with_buffer(
        &mut self,
        index: u16,
        pool: &Pool,
        map: &MemoryMap<P>,
        counters: &RdmaCounters,
        now: Nanos,
    ) -> Result<(), ReceivesError> {
        let Some(promise) = &self.promise else {
            return self.post(index);
        };
        let token = WaiterToken(self.waiter.with_slot(index).into_bits());
        let lease = pool.take_promised(promise, self.in_capsule_bytes, token, now.as_nanos());
        match lease {
            Some(lease) => self.post_with(index, lease, map),
            None => {
                counters.receive_waits.add(1);
                self.waiting += 1;
                Ok(())
            }
        }
    }

    /// Queues receive `index`, which waited for a lease.
    pub(crate) fn granted(
        &mut self,
        index: u16,
        lease: Lease,
        map: &MemoryMap<P>,
    ) -> Result<(), ReceivesError> {
        self.waiting -= 1;
        self.post_with(index, lease, map)
    }

    fn post_with(
        &mut self,
        index: u16,
        lease: Lease,
        map: &MemoryMap<P>,
    ) -> Result<(), ReceivesError> {
        let buffer = ReceiveBuffer::new(lease);
        let memory = self.memory_of(usize::from(index), Some(&buffer), map);
        let receive = &mut self.receives[usize::from(index)];
        receive.request.memory = memory.ok_or(ReceivesError::NotRegistered)?;
        receive.data = Some(buffer);
        self.post(index)
    }

    fn memory_of(
        &self,
        index: usize,
        data: Option<&ReceiveBuffer>,
        map: &MemoryMap<P>,
    ) -> Option<SgeList> {
        let table = &self.commands[index / COMMANDS_PER_TABLE];
        let offset = index % COMMANDS_PER_TABLE * COMMAND_BYTES;
        let mut memory = map.gather(table, offset, COMMAND_BYTES)?;
        if let Some(data) = data.map(ReceiveBuffer::memory) {
            for piece in map.gather(data, 0, data.len())?.as_slice() {
                memory.push(*piece).ok()?;
            }
        }
        Some(memory)
    }

    #[inline]
    fn post(&mut self, index: u16) -> Result<(), ReceivesError> {
        self.queued = true;
        let request = &self.receives[usize::from(index)].request;
        Ok(self.queue.queue_receive(request)?)
    }

    /// Posts queued receives.
    #[inline]
    pub(crate) fn flush(&mut self) -> Result<(), rdma::FlushError> {
        if !std::mem::take(&mut self.queued) {
            return Ok(());
        }
        self.queue.flush()
    }
}

impl<P: Provider> Drop for Receives<P> {
    fn drop(&mut self) {
        match QueueDestroyed::receives(&mut self.queue) {
            Ok(proof) => {
                for data in self.receives.iter_mut().filter_map(|it| it.data.take()) {
                    drop(data.queue_destroyed(&proof));
                }
            }
            Err(error) => {
                let receives = self.receives.len();
                tracing::error!(
                    %error,
                    receives,
                    "a shared receive queue was not destroyed: the memory of its receives is given up"
                );
                std::mem::forget(std::mem::take(&mut self.commands));
                std::mem::forget(self.promise.take());
            }
        }
    }
}
