//! Where command capsules arrive: one shared receive queue of a device and a reactor.
//!
//! Each receive is two pieces of memory. The command comes into a table that program and device
//! share, and is copied out of it, 64 bytes; the data behind it comes into a lease of its own,
//! which becomes the command's buffer without a copy. Such a receive gets another lease before it
//! is posted again; when there is none it waits in the pool's line, and the shared receive queue is
//! shorter for as long: hosts are then held up by the device (RNR), and nothing is lost.
//!
//! A posted receive keeps its lease for as long as no command comes, which may be for ever. So there
//! are as many as the arena promises, and their leases are of one class of slices: requests always
//! have others.

use std::sync::Arc;

use hugemem::{Account, Arena, DmaBuffer, Lease, Pool, SlicePromise, WaiterToken};
use nvme_fabrics::RequestToken;
use nvme_spec::Sqe;
use rdma::{MemoryMap, PostError, Provider, ReceiveRequest, SgeList, SharedReceiveQueue};
use reactors::Nanos;
use reactors::sim::planted;
use zerocopy::transmute;

use crate::counters::RdmaCounters;
use crate::posted::{CompletedReceive, QueueDestroyed, ReceiveBuffer};
use crate::token::{RECEIVES, WorkId};

/// Bytes of a command in a capsule.
pub(crate) const COMMAND_BYTES: usize = size_of::<Sqe>();
/// Commands in one piece of shared memory: a slice of the arena that it surely has.
const COMMANDS_PER_TABLE: usize = 64;

/// Why receives cannot be had.
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
    /// `None` while it is with a command, or waits for another.
    data: Option<ReceiveBuffer>,
    /// As it is posted: the same each time, for as long as the data's buffer is the same.
    request: ReceiveRequest,
}

/// The receives of one shared receive queue.
#[derive(Debug)]
pub(crate) struct Receives<P: Provider> {
    queue: P::SharedReceiveQueue,
    receives: Vec<Receive>,
    commands: Vec<DmaBuffer>,
    in_capsule_bytes: usize,
    /// For their data; `None` where they carry none.
    promise: Option<SlicePromise>,
    /// The name in the pool's line, but for the slot.
    waiter: RequestToken,
    /// Receives that wait for memory.
    waiting: usize,
    queued: bool,
}

impl<P: Provider> Receives<P> {
    /// Takes memory for `count` receives with up to `in_capsule_bytes` of data, as was promised for
    /// so many, and queues as many as the pool has buffers for. `waiter` names them in the pool's
    /// line.
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

    /// Bytes of in-capsule data that there is room for.
    pub(crate) fn in_capsule_bytes(&self) -> usize {
        self.in_capsule_bytes
    }

    /// Whether all of them wait for memory: no command can come in.
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

    /// Reads the data that was received behind it.
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

    /// Takes the data's buffer.
    pub(crate) fn take_data(&mut self, receive: &CompletedReceive) -> Option<Lease> {
        let data = self.receives[usize::from(receive.index())].data.take()?;
        Some(data.completed(receive))
    }

    /// Queues a receive again, with its buffer, or with a fresh one where it was taken, or as soon as
    /// there is one.
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
        let lease = if planted("rdma-receives-unbounded") {
            pool.take_or_wait(
                Account::PROMISED,
                self.in_capsule_bytes,
                token,
                now.as_nanos(),
            )
        } else {
            pool.take_promised(promise, self.in_capsule_bytes, token, now.as_nanos())
        };
        match lease {
            Some(lease) => self.post_with(index, lease, map),
            None => {
                counters.receive_waits.add(1);
                self.waiting += 1;
                Ok(())
            }
        }
    }

    /// The buffer has come that receive `index` waits for.
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

    /// Posts what was queued.
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
