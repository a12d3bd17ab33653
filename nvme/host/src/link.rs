//! The interface of every transport for a queue: sends commands, receives completions, and owns the
//! memory of commands in flight.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use nvme_spec::{Cqe, Sqe, Status};

use crate::error::HostError;

/// Maximum number of completions per poll.
pub const COMPLETIONS_MAX: usize = 128;

/// The data transfer of a command.
#[derive(Debug)]
pub enum Transfer<B> {
    /// No data.
    None,
    /// The target fills the whole buffer.
    Read(B),
    /// The target fills the buffer, or a part of it from the start.
    ReadUpTo(B),
    /// The target reads the buffer.
    Write(B),
}

/// A completed command.
#[derive(Debug)]
pub struct Completion<B> {
    /// The submitter's number for the command.
    pub token: u64,
    /// The completion queue entry. If the target sent no capsule, it only has the status success.
    pub cqe: Cqe,
    /// Bytes that a read received.
    pub received: u32,
    /// The buffer, returned to the submitter.
    pub data: Option<B>,
}

impl<B> Completion<B> {
    /// The status of the command.
    #[must_use]
    pub fn status(&self) -> Status {
        self.cqe.status()
    }
}

/// A batch of completions.
pub type Completions<B> = ArrayVec<Completion<B>, COMPLETIONS_MAX>;

/// The reason why a command was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Retry later: all slots are in use, or the connection cannot queue more.
    #[error("the queue is full")]
    Full,
    /// Do not retry: the connection has failed.
    #[error("the connection has failed")]
    Failed,
    /// Do not retry: the buffer is empty or too large for a command.
    #[error("the buffer's length is not valid for the command")]
    Length,
    /// Retry later: the pool has no memory for the command's own list.
    #[error("no memory is free in the pool")]
    NoMemory,
    /// Do not retry: the buffer is in memory that is not registered with the transport, see
    /// [`Transport::attach`](crate::Transport::attach).
    #[error("the buffer's memory is not registered")]
    NotRegistered,
}

/// A refused command, with its buffer.
#[derive(Debug)]
pub struct Refused<B> {
    /// The reason.
    pub refusal: Refusal,
    /// The buffer.
    pub data: Option<B>,
}

/// Counters of a connection. Bytes are bytes of data, without headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// Completed commands.
    pub completed: u64,
    /// Received data that the kernel (TCP) or the device (RDMA) wrote directly to its place.
    pub placed_bytes: u64,
    /// Received data that was copied to its place from the receive buffer.
    pub copied_bytes: u64,
    /// Receiving system calls, or polls of a completion queue, with a result.
    pub receives: u64,
    /// Receiving system calls, or polls of a completion queue, without a result.
    pub empty_receives: u64,
    /// Sending system calls, or posts to a send queue.
    pub sends: u64,
    /// Work requests posted (RDMA).
    pub work_requests: u64,
    /// Completions polled (RDMA).
    pub work_completions: u64,
    /// Keys that the target invalidated for the host (RDMA).
    pub invalidations: u64,
    /// Data PDUs with a wrong digest.
    pub data_digest_errors: u64,
}

impl ConnectionCounters {
    /// Adds the counters of another connection.
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

/// A connected queue of any transport; `B` is the memory of commands' data.
///
/// A failure is final: every later call returns the same error, and
/// [`take_failed_command`](Self::take_failed_command) returns the buffers.
pub(crate) trait Link<B>: Debug {
    /// Sets the maximum size of in-capsule data after Connect has succeeded.
    fn connected(&mut self, in_capsule_max_bytes: u32);

    /// Queues a command, which the next [`flush`](Self::flush) sends. Returns its command
    /// identifier.
    fn submit(&mut self, sqe: Sqe, transfer: Transfer<B>, token: u64) -> Result<u16, Refused<B>>;

    /// Sends everything queued.
    fn flush(&mut self) -> Result<(), HostError>;

    /// Adds completed commands to `completions` until it has `most` entries. Returns the number
    /// added.
    fn poll_until(
        &mut self,
        completions: &mut Completions<B>,
        most: usize,
    ) -> Result<usize, HostError>;

    /// Whether data is queued that [`flush`](Self::flush) would send.
    fn has_unsent(&self) -> bool;

    /// Takes one command back from a failed connection: its token and buffer. Returns `None` after
    /// the last.
    fn take_failed_command(&mut self) -> Option<(u64, Option<B>)>;

    /// Number of commands in flight.
    fn in_flight(&self) -> usize;

    /// Maximum number of commands in flight.
    fn depth(&self) -> usize;

    /// The connection's counters.
    fn counters(&self) -> ConnectionCounters;

    /// Waits until polling may have a result, at most for `limit`.
    fn wait(&mut self, limit: Duration);

    /// A descriptor to wait on, if one is enough.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}
