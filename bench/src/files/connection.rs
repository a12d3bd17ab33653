//! A connection to a server: a socket that does not block, and the client that it carries.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use files_client::{Answer, Client, ClientOptions, Event, ReplyStream};
use files_spec::limits::RECORD_BYTES_MAX;
use files_spec::operations::Operation;
use files_spec::xdr::Hole;
use nvme_host::ConnectionCounters;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{FilesError, FilesTarget};

/// How long a connection or a reply of the preparation is awaited.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum number of pieces of one system call.
const PIECES_MAX: usize = 64;
/// The number of the only connection of a client.
const CONNECTION: u64 = 1;
/// The token of [`FilesConnection::call`], which no other request has.
const CALL: u64 = u64::MAX;

/// For requests that have no payload in other memory.
pub(super) fn no_payload(_slot: u32) -> &'static [u8] {
    &[]
}

/// A connection with a session.
#[derive(Debug)]
pub(super) struct FilesConnection {
    socket: TcpStream,
    client: Client,
    replies: ReplyStream,
    /// Slots with requests that are not sent yet, in order.
    queued: VecDeque<u32>,
    /// Bytes of the first of them that are sent.
    sent_bytes: usize,
    counters: ConnectionCounters,
}

impl FilesConnection {
    /// Connects, and creates a session with this number of slots.
    pub(super) fn new(target: &FilesTarget, owner: &str, slots: u32) -> Result<Self, FilesError> {
        let address = target.address;
        let failed = |source| FilesError::Connect { address, source };
        let socket = TcpStream::connect_timeout(&address, PATIENCE).map_err(failed)?;
        socket.set_nodelay(true).map_err(FilesError::Socket)?;
        socket.set_nonblocking(true).map_err(FilesError::Socket)?;
        let client = Client::new(ClientOptions {
            owner: owner.as_bytes().to_vec(),
            // No other client has this name.
            verifier: [1; 8],
            uid: target.uid,
            minor_version: target.minor_version,
            slots,
            message_bytes: RECORD_BYTES_MAX as u32,
        });
        let mut connection = Self {
            socket,
            client,
            replies: ReplyStream::default(),
            queued: VecDeque::with_capacity(slots as usize),
            sent_bytes: 0,
            counters: ConnectionCounters::default(),
        };
        connection.establish()?;
        let granted = connection.client.limits().slots;
        if granted < slots {
            let wanted = slots;
            return Err(FilesError::Slots { granted, wanted });
        }
        // There is nothing to reclaim. A server may wait for that before others open anything.
        connection.call(
            &[Operation::ReclaimComplete(false)],
            |answer| match answer.status {
                files_spec::Status::OK | files_spec::Status::COMPLETE_ALREADY => Ok(()),
                status => Err(FilesError::Operation {
                    operation: "RECLAIM_COMPLETE",
                    object: "this client".to_owned(),
                    status,
                }),
            },
        )?;
        Ok(connection)
    }

    fn establish(&mut self) -> Result<(), FilesError> {
        let deadline = Instant::now() + PATIENCE;
        while !self.client.is_established() {
            if let Some(message) = self.client.control() {
                let bytes = message.bytes().to_vec();
                self.client.control_sent(CONNECTION);
                let mut at = 0;
                while at < bytes.len() {
                    match self.socket.write(&bytes[at..]) {
                        Ok(count) => at += count,
                        Err(error) => self.await_socket(error, deadline)?,
                    }
                }
            }
            if self.poll(usize::MAX, &mut |_, _| Ok(()))? == 0 {
                self.wait(PATIENCE.min(Duration::from_millis(100)));
            }
            check(deadline)?;
        }
        Ok(())
    }

    fn await_socket(&self, error: io::Error, deadline: Instant) -> Result<(), FilesError> {
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(ended(error, false));
        }
        self.wait_for(PollFlags::OUT, Duration::from_millis(100));
        check(deadline)
    }

    /// The largest payload of a READ or WRITE that the session permits, in bytes.
    pub(super) fn payload_bytes_max(&self) -> u32 {
        /// Room for everything else in a request or reply.
        const HEADERS_BYTES: u32 = 1024;
        let limits = self.client.limits();
        let record = limits.request_bytes.min(limits.reply_bytes);
        let payload = record.saturating_sub(HEADERS_BYTES);
        payload.min(files_spec::limits::PAYLOAD_BYTES_MAX as u32)
    }

    /// The counters.
    pub(super) fn counters(&self) -> ConnectionCounters {
        self.counters
    }

    /// Data that was copied from the receive buffer.
    pub(super) fn count_copied(&mut self, bytes: usize) {
        self.counters.copied_bytes += bytes as u64;
    }

    /// Number of requests that are not answered.
    pub(super) fn waiting(&self) -> usize {
        self.client.waiting()
    }

    /// A slot that can take a request.
    pub(super) fn free_slot(&self) -> Option<u32> {
        self.client.free_slots().last().copied()
    }

    /// Queues a request; [`Self::flush`] sends it.
    pub(super) fn submit(
        &mut self,
        slot: u32,
        token: u64,
        operations: &[Operation<'_>],
    ) -> Result<(), FilesError> {
        let begun = self.client.begin(slot, token, operations, false);
        begun.map_err(|_| FilesError::Request)?;
        self.client.sent(slot, CONNECTION);
        self.queued.push_back(slot);
        Ok(())
    }

    /// Sends what is queued, as far as the socket takes it. `payload` has the data of a slot's
    /// request.
    pub(super) fn flush<'p>(
        &mut self,
        payload: &dyn Fn(u32) -> &'p [u8],
    ) -> Result<(), FilesError> {
        while !self.queued.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let mut count = 0;
            let mut skip = self.sent_bytes;
            let mut bytes = 0;
            for &slot in self.queued.iter().take(PIECES_MAX / 3) {
                let message = self.client.message(slot);
                let Hole { at, length } = message.hole().unwrap_or_default();
                let (before, after) = message.bytes().split_at(at);
                let data = match length {
                    0 => &[][..],
                    _ => payload(slot),
                };
                for piece in [before, data, after] {
                    let skipped = skip.min(piece.len());
                    skip -= skipped;
                    if skipped < piece.len() {
                        pieces[count] = IoSlice::new(&piece[skipped..]);
                        bytes += piece.len() - skipped;
                        count += 1;
                    }
                }
            }
            let sent = match self.socket.write_vectored(&pieces[..count]) {
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(ended(error, self.replies.is_within_record())),
            };
            self.counters.sends += 1;
            self.advance(sent);
            if sent < bytes {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Removes what is sent from the queue.
    fn advance(&mut self, sent: usize) {
        self.sent_bytes += sent;
        while let Some(&slot) = self.queued.front() {
            let message = self.client.message(slot);
            let hole = message.hole().map_or(0, |hole| hole.length as usize);
            let length = message.bytes().len() + hole;
            if self.sent_bytes < length {
                return;
            }
            self.sent_bytes -= length;
            self.queued.pop_front();
        }
    }

    /// Receives once, and calls `answered` for at most `most` requests with their tokens. Returns
    /// their number.
    pub(super) fn poll(
        &mut self,
        most: usize,
        answered: &mut dyn FnMut(u64, Answer<'_>) -> Result<(), FilesError>,
    ) -> Result<usize, FilesError> {
        let taken = self.take(most, answered)?;
        if taken > 0 || !self.receive()? {
            return Ok(taken);
        }
        self.take(most, answered)
    }

    fn receive(&mut self) -> Result<bool, FilesError> {
        match self.socket.read(self.replies.room()) {
            Ok(0) if self.replies.is_within_record() => Err(FilesError::ClosedWithinReply),
            Ok(0) => Err(FilesError::Closed),
            Ok(count) => {
                self.replies.received(count);
                self.counters.receives += 1;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.counters.empty_receives += 1;
                Ok(false)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(ended(error, self.replies.is_within_record())),
        }
    }

    fn take(
        &mut self,
        most: usize,
        answered: &mut dyn FnMut(u64, Answer<'_>) -> Result<(), FilesError>,
    ) -> Result<usize, FilesError> {
        let mut taken = 0;
        while taken < most
            && let Some(record) = self.replies.next_record().map_err(FilesError::Record)?
        {
            match self.client.received(CONNECTION, record)? {
                Event::Answered { token, answer } => {
                    self.counters.completed += 1;
                    taken += 1;
                    answered(token, answer)?;
                }
                Event::Ignored | Event::Advanced | Event::Established => {}
                // Nothing is sent twice over one connection.
                Event::Delayed { .. } | Event::ReplyLost { .. } | Event::SessionLost { .. } => {
                    return Err(FilesError::SessionLost);
                }
            }
        }
        Ok(taken)
    }

    /// Waits until something can be received, or sent if something is queued.
    pub(super) fn wait(&self, limit: Duration) {
        let flags = match self.queued.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        };
        self.wait_for(flags, limit);
    }

    fn wait_for(&self, flags: PollFlags, limit: Duration) {
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: limit.subsec_nanos().into(),
        };
        // An early wake-up only causes one more poll.
        let _ = poll(&mut [PollFd::new(&self.socket, flags)], Some(&limit));
    }

    /// Sends a request and waits for its answer, of which `take` makes the result. Answers of other
    /// requests are lost meanwhile.
    pub(super) fn call<T>(
        &mut self,
        operations: &[Operation<'_>],
        take: impl FnOnce(Answer<'_>) -> Result<T, FilesError>,
    ) -> Result<T, FilesError> {
        let slot = self.free_slot().ok_or(FilesError::Request)?;
        self.submit(slot, CALL, operations)?;
        let deadline = Instant::now() + PATIENCE;
        let (mut take, mut result) = (Some(take), None);
        while result.is_none() {
            self.flush(&no_payload)?;
            let polled = self.poll(1, &mut |token, answer| {
                if token == CALL
                    && let Some(take) = take.take()
                {
                    result = Some(take(answer)?);
                }
                Ok(())
            })?;
            if polled == 0 {
                self.wait(Duration::from_millis(100));
                check(deadline)?;
            }
        }
        result.ok_or(FilesError::Request)
    }
}

fn check(deadline: Instant) -> Result<(), FilesError> {
    match Instant::now() < deadline {
        true => Ok(()),
        false => Err(FilesError::TimedOut(PATIENCE)),
    }
}

/// The error of a connection that a peer has reset, or of another failure.
fn ended(error: io::Error, is_within_reply: bool) -> FilesError {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe if is_within_reply => {
            FilesError::ClosedWithinReply
        }
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => FilesError::Closed,
        _ => FilesError::Socket(error),
    }
}
