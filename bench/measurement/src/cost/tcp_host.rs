//! The host's end of an I/O queue over TCP: creates requests, handles responses, never waits for
//! long.
//!
//! This is not `nvme_host`'s queue, whose streams and buffers would have to belong to the caller's
//! thread. Here a batch is prepared as bytes before the target's turns, which are the only measured
//! part.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use nvme_host::pdu::{Header, read_header};
use nvme_host_testing::pdu::{capsule, h2c_data};
use nvme_host_testing::tcp::RawClient;
use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::Framing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cost::measure::CostError;
use crate::cost::rig::{BLOCK_BYTES, setup};
use bench::random::Random;

/// No digests.
const FRAMING: Framing = Framing {
    header_digest: false,
    data_digest: false,
    alignment_z: 0,
};

/// Time to wait for bytes that are certain to arrive unless the target needs another turn.
const SHORT_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};

/// Twice the maximum number of bytes that the target sends in one batch.
const INCOMING_BYTES: usize = 2 << 20;

/// Waits for one of these for a short time.
pub(super) fn wait(watched: &mut [PollFd<'_>]) -> Result<(), CostError> {
    match poll(watched, Some(&SHORT_WAIT)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(setup("poll", &errno)),
    }
}

/// Requests that are sent together and completed before the next batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    /// The namespace.
    pub(super) nsid: u32,
    /// Its size in bytes.
    pub(super) device_bytes: u64,
    /// Whether the requests are writes.
    pub(super) write: bool,
    /// Size of a request in bytes.
    pub(super) bytes: u32,
    /// Number of requests.
    pub(super) depth: u16,
}

/// The host's end of an I/O queue.
pub(super) struct Host {
    /// The reactor that serves its I/O queue.
    pub(super) reactor: usize,
    _admin: RawClient,
    stream: TcpStream,
    /// The target's end of `stream`, to check what has arrived there.
    pub(super) target_end: TcpStream,
    outgoing: Vec<u8>,
    /// Number of bytes of `outgoing` that were sent.
    sent: usize,
    /// The reactor's count of received bytes after it has received everything that was sent.
    pub(super) sent_in_all: u64,
    incoming: Box<[u8]>,
    filled: usize,
    in_flight: u64,
    data: Vec<u8>,
}

impl Host {
    /// The host of an open I/O queue on `reactor`.
    pub(super) fn new(
        admin: RawClient,
        io: RawClient,
        target_end: TcpStream,
        reactor: usize,
    ) -> Result<Self, CostError> {
        let stream = io.into_stream();
        let configured = stream.set_nonblocking(true);
        configured.map_err(|error| setup("the host's socket", &error))?;
        Ok(Self {
            reactor,
            _admin: admin,
            stream,
            target_end,
            outgoing: Vec::with_capacity(INCOMING_BYTES),
            sent: 0,
            sent_in_all: 0,
            incoming: vec![0; INCOMING_BYTES].into_boxed_slice(),
            filled: 0,
            in_flight: 0,
            data: vec![0xa5; 128 << 10],
        })
    }

    /// Whether data waits to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Whether every request is completed.
    pub(super) fn is_completed(&self) -> bool {
        self.in_flight == 0
    }

    /// Creates a batch of requests.
    pub(super) fn submit(&mut self, batch: &Batch, random: &mut Random) {
        debug_assert_eq!(self.sent, self.outgoing.len(), "a batch is sent as a whole");
        self.outgoing.clear();
        self.sent = 0;
        let blocks = (batch.bytes / BLOCK_BYTES) as u16;
        for cid in 0..batch.depth {
            let lba = random.below(batch.device_bytes / u64::from(batch.bytes)) * u64::from(blocks);
            let in_capsule = batch.write && batch.bytes <= 4096;
            let sqe = if batch.write {
                Sqe::write(batch.nsid, lba, blocks - 1, false)
            } else {
                Sqe::read(batch.nsid, lba, blocks - 1)
            };
            let data = &self.data[..if in_capsule { batch.bytes as usize } else { 0 }];
            let sgl = if in_capsule {
                SglDescriptor::in_capsule(0, batch.bytes)
            } else {
                SglDescriptor::transport(batch.bytes)
            };
            let sqe = sqe.with_cid(cid).with_sgl(sgl);
            self.outgoing.extend(capsule(sqe, data, FRAMING));
        }
        self.in_flight = u64::from(batch.depth);
    }

    /// Sends as much as the socket accepts.
    pub(super) fn send(&mut self) -> Result<(), CostError> {
        while self.sent < self.outgoing.len() {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(bytes) => {
                    self.sent += bytes;
                    self.sent_in_all += bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(setup("the host's socket", &error)),
            }
        }
        Ok(())
    }

    /// Handles responses until the batch is completed, the target requests data, or no more
    /// arrives.
    pub(super) fn collect(&mut self, certain: bool) -> Result<(), CostError> {
        let mut waited = false;
        while self.in_flight > 0 {
            match self.stream.read(&mut self.incoming[self.filled..]) {
                Ok(0) => return Err(CostError::Setup("the connection ended".to_owned())),
                Ok(bytes) => {
                    self.filled += bytes;
                    waited = false;
                    self.take_pdus()?;
                    if self.sent < self.outgoing.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if waited || !certain {
                        return Ok(());
                    }
                    wait(&mut [PollFd::new(&self.stream, PollFlags::IN)])?;
                    waited = true;
                }
                Err(error) => return Err(setup("the host's socket", &error)),
            }
        }
        Ok(())
    }

    fn take_pdus(&mut self) -> Result<(), CostError> {
        let mut begin = 0;
        loop {
            let read = read_header(&self.incoming[begin..self.filled], FRAMING);
            let read = read.map_err(|error| setup("a response", &error))?;
            let Some((header, layout)) = read else { break };
            let bytes = (layout.header_bytes + layout.data_bytes) as usize;
            if self.filled - begin < bytes {
                break;
            }
            self.take_pdu(&header)?;
            begin += bytes;
        }
        self.incoming.copy_within(begin..self.filled, 0);
        self.filled -= begin;
        Ok(())
    }

    fn take_pdu(&mut self, header: &Header) -> Result<(), CostError> {
        match header {
            Header::Data(data) => self.in_flight -= u64::from(data.ch.flags.success()),
            Header::Response(capsule) if capsule.cqe.status().is_success() => self.in_flight -= 1,
            Header::Request(request) => {
                let tags = (request.cccid.get(), request.ttag.get());
                let data = &self.data[..request.r2tl.get() as usize];
                if self.sent == self.outgoing.len() {
                    self.outgoing.clear();
                    self.sent = 0;
                }
                let pdu = h2c_data(tags, request.r2to.get(), data, true, FRAMING);
                self.outgoing.extend(pdu);
            }
            Header::Initialized | Header::Response(_) | Header::Termination(_) => {
                return Err(CostError::Setup(format!("a response: {header:?}")));
            }
        }
        Ok(())
    }
}
