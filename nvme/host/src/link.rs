//! What every transport does for a queue: commands out, completions in, and the memory of both in
//! its keeping meanwhile.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use nvme_spec::{Cqe, Sqe, Status};

use crate::error::HostError;

/// Completions that one poll hands out at most.
pub const COMPLETIONS_MAX: usize = 128;

/// What a command moves.
#[derive(Debug)]
pub enum Transfer<B> {
    /// Nothing.
    None,
    /// The target fills the buffer, whole.
    Read(B),
    /// The target fills the buffer, or a part of it from its start.
    ReadUpTo(B),
    /// The target gets the buffer.
    Write(B),
}

/// A command that is over.
#[derive(Debug)]
pub struct Completion<B> {
    /// The number that the submitter gave.
    pub token: u64,
    /// The completion queue entry; one with nothing but success where the target left the capsule
    /// out.
    pub cqe: Cqe,
    /// Bytes that a read received.
    pub received: u32,
    /// The buffer, back again.
    pub data: Option<B>,
}

impl<B> Completion<B> {
    /// How the command ended.
    #[must_use]
    pub fn status(&self) -> Status {
        self.cqe.status()
    }
}

/// A batch of completions.
pub type Completions<B> = ArrayVec<Completion<B>, COMPLETIONS_MAX>;

/// Why a command was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// All slots are in use, or the connection takes nothing: later.
    #[error("the queue is full")]
    Full,
    /// The connection has failed: never.
    #[error("the connection has failed")]
    Failed,
    /// The buffer is empty or too large for a command: never.
    #[error("the buffer's length does not fit the command")]
    Length,
    /// The pool has no memory for the command's own list: later.
    #[error("no memory is free in the pool")]
    NoMemory,
    /// The buffer lies in memory that the transport was not told of, see
    /// [`Transport::attach`](crate::Transport::attach): never.
    #[error("the buffer's memory is not registered")]
    NotRegistered,
}

/// A command that was not taken, and its buffer back.
#[derive(Debug)]
pub struct Refused<B> {
    /// Why.
    pub refusal: Refusal,
    /// The buffer.
    pub data: Option<B>,
}

/// What a connection counted. Bytes are bytes of data, not of headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// Commands completed.
    pub completed: u64,
    /// Received data that the kernel (TCP) or the device (RDMA) put in place.
    pub placed_bytes: u64,
    /// Received data that came with other things and was copied into place.
    pub copied_bytes: u64,
    /// Receiving system calls, or polls of a completion queue, that brought something.
    pub receives: u64,
    /// Receiving system calls, or polls of a completion queue, that found nothing.
    pub empty_receives: u64,
    /// Sending system calls, or posts to a send queue.
    pub sends: u64,
    /// Work requests posted (RDMA).
    pub work_requests: u64,
    /// Completions polled (RDMA).
    pub work_completions: u64,
    /// Keys that the target invalidated for the host (RDMA).
    pub invalidations: u64,
    /// Data PDUs whose digest did not match.
    pub data_digest_errors: u64,
}

impl ConnectionCounters {
    /// Adds what another connection counted.
    pub fn add(&mut self, other: &Self) {
        self.completed += other.completed;
        self.placed_bytes += other.placed_bytes;
        self.copied_bytes += other.copied_bytes;
        self.receives += other.receives;
        self.empty_receives += other.empty_receives;
        self.sends += other.sends;
        self.work_requests += other.work_requests;
        self.work_completions += other.work_completions;
        self.invalidations += other.invalidations;
        self.data_digest_errors += other.data_digest_errors;
    }
}

/// A connected queue of any transport; `B` is the memory that commands move.
///
/// A failure is final: whatever is asked after it gives the same error, and
/// [`abandon`](Self::abandon) gives the buffers back.
pub(crate) trait Link<B>: Debug {
    /// Connect has succeeded: from now on `in_capsule_max_bytes` go with a command.
    fn connected(&mut self, in_capsule_max_bytes: u32);

    /// Queues a command; it leaves with the next [`flush`](Self::flush). Gives its identifier on
    /// the wire.
    fn submit(&mut self, sqe: Sqe, transfer: Transfer<B>, token: u64) -> Result<u16, Refused<B>>;

    /// Sends all that is queued.
    fn flush(&mut self) -> Result<(), HostError>;

    /// Hands out commands that are over until `completions` holds `most`. Gives how many were
    /// added.
    fn poll_until(
        &mut self,
        completions: &mut Completions<B>,
        most: usize,
    ) -> Result<usize, HostError>;

    /// Whether something is queued that [`flush`](Self::flush) would send.
    fn has_unsent(&self) -> bool;

    /// Takes one command back from a connection that has failed: its token and buffer. `None` when
    /// none is left.
    fn abandon(&mut self) -> Option<(u64, Option<B>)>;

    /// Commands in flight.
    fn in_flight(&self) -> usize;

    /// Commands that can be in flight.
    fn depth(&self) -> usize;

    /// What the connection counted.
    fn counters(&self) -> ConnectionCounters;

    /// Waits until there is something to poll for, `limit` at most.
    fn wait(&mut self, limit: Duration);

    /// The descriptor to sleep on, where one is enough.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}
