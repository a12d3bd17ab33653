//! A connection: the records that it receives and the replies that it sends.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use arrayvec::ArrayVec;
use files_service::limits::REQUESTS_PER_CONNECTION_MAX;
use files_service::{Ended, FileCore, Job, JobKey, Jobs};
use files_spec::rpc::MARK_BYTES;

use crate::limits::SLICES_MAX;
use crate::network::Interest;
use crate::receiver::Receiver;

/// A complete reply.
#[derive(Debug)]
struct Outgoing {
    job: JobKey,
    /// Its length with the mark in bytes.
    length: usize,
}

/// Appends the parts of a reply behind its first `skip` bytes, as many as there is room for.
#[inline]
fn gather<'j>(job: &'j Job, mut skip: usize, slices: &mut ArrayVec<IoSlice<'j>, SLICES_MAX>) {
    let mut push = |bytes: &'j [u8]| {
        let skipped = skip.min(bytes.len());
        skip -= skipped;
        let rest = &bytes[skipped..];
        rest.is_empty() || slices.try_push(IoSlice::new(rest)).is_ok()
    };
    let reply = job.execution.marked_reply();
    let mut at = 0;
    for (index, hole) in job.execution.holes().iter().enumerate() {
        let end = MARK_BYTES + hole.at;
        if !push(&reply[at..end]) {
            return;
        }
        for part in job.payload(index) {
            if !push(part.bytes()) {
                return;
            }
        }
        at = end;
    }
    push(&reply[at..]);
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    pub(crate) stream: S,
    /// The number of its listener.
    pub(crate) listener: u32,
    pub(crate) receiver: Receiver,
    /// Complete replies, in the order of their completion.
    outgoing: VecDeque<Outgoing>,
    /// Sent bytes of the first reply.
    sent: usize,
    /// The events that are watched.
    pub(crate) interest: Interest,
    /// Whether the socket has no room for more.
    pub(crate) is_blocked: bool,
    /// Whether its replies lend memory of devices while they cannot be sent.
    pub(crate) is_lending: bool,
    /// When it last sent or received something.
    pub(crate) active_ms: u64,
}

impl<S> Connection<S> {
    pub(crate) fn new(stream: S, listener: u32, now_ms: u64) -> Self {
        Self {
            stream,
            listener,
            receiver: Receiver::new(),
            outgoing: VecDeque::with_capacity(REQUESTS_PER_CONNECTION_MAX),
            sent: 0,
            interest: Interest::READABLE,
            is_blocked: false,
            is_lending: false,
            active_ms: now_ms,
        }
    }

    /// Queues the reply of a job.
    #[inline]
    pub(crate) fn push(&mut self, jobs: &mut Jobs, job: JobKey) {
        if let Some(it) = jobs.get_mut(job) {
            let length = it.execution.mark();
            self.outgoing.push_back(Outgoing { job, length });
        }
    }

    /// Whether a reply waits.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Copies the data of its replies that devices lend, and counts the bytes. Returns false if
    /// memory is missing.
    pub(crate) fn copy_borrowed(&self, core: &mut FileCore, copied: &mut u64) -> bool {
        self.outgoing.iter().all(|reply| {
            let Some(mut job) = core.jobs().take(reply.job) else {
                return true;
            };
            let is_copied = job.copy_borrowed(core.pool(), copied);
            core.jobs().put(reply.job, job);
            is_copied
        })
    }

    /// Ends the job of a reply that was not sent. Returns false if there is none.
    pub(crate) fn drop_reply(&mut self, core: &mut FileCore) -> bool {
        let Some(reply) = self.outgoing.pop_front() else {
            return false;
        };
        if let Some(job) = core.jobs().take(reply.job) {
            core.end_request(reply.job, job);
        }
        true
    }

    /// Sends replies until none is left or the socket is full. Returns the number of replies.
    ///
    /// # Errors
    /// The socket's error: the connection must be closed.
    pub(crate) fn send(&mut self, core: &mut FileCore, now_ms: u64) -> io::Result<usize>
    where
        S: Write,
    {
        self.is_blocked = false;
        let mut replies = 0;
        while self.has_outgoing() {
            let mut slices = ArrayVec::<_, SLICES_MAX>::new();
            let jobs = core.jobs();
            for (index, reply) in self.outgoing.iter().enumerate() {
                let skip = if index == 0 { self.sent } else { 0 };
                if let Some(job) = jobs.get(reply.job) {
                    gather(job, skip, &mut slices);
                }
                if slices.is_full() {
                    break;
                }
            }
            let written = self.stream.write_vectored(&slices);
            drop(slices);
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.active_ms = now_ms;
                    self.sent += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    break;
                }
                Err(error) => return Err(error),
            }
            replies += self.retire(core);
        }
        Ok(replies)
    }

    /// Ends the jobs whose replies are sent.
    fn retire(&mut self, core: &mut FileCore) -> usize {
        let mut ended = Ended::default();
        let mut replies = 0;
        while let Some(reply) = self.outgoing.front() {
            if self.sent < reply.length {
                break;
            }
            self.sent -= reply.length;
            replies += 1;
            core.jobs().end_sent(reply.job, &mut ended);
            self.outgoing.pop_front();
        }
        core.release(&ended);
        replies
    }
}
