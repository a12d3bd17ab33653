//! The host's end of an I/O queue over TCP: makes requests, takes in answers, never waits for long.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use nvme_host::raw::RawClient;
use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, Framing, H2cData, PduType, R2t,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::{FromBytes, IntoBytes};

use crate::cost::measure::CostError;
use crate::cost::rig::{BLOCK_BYTES, setup};
use crate::random::Random;

/// How long to wait for bytes that are certain to come unless the target needs another turn.
const SHORTLY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};

/// The most bytes that the target sends in one batch, and as much again.
const INCOMING_BYTES: usize = 2 << 20;

/// Waits until one of these is ready, or shortly.
pub(super) fn wait(watched: &mut [PollFd<'_>]) -> Result<(), CostError> {
    match poll(watched, Some(&SHORTLY)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(setup("poll", &errno)),
    }
}

/// Requests that are sent together, and answered before the next batch is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    /// The namespace.
    pub(super) nsid: u32,
    /// Its size, bytes.
    pub(super) device_bytes: u64,
    /// Whether they are writes.
    pub(super) write: bool,
    /// Bytes of a request.
    pub(super) bytes: u32,
    /// Requests.
    pub(super) depth: u16,
}

/// The host's end of an I/O queue.
pub(super) struct Host {
    /// The reactor that serves its I/O queue.
    pub(super) reactor: usize,
    _admin: RawClient,
    stream: TcpStream,
    /// The target's end of `stream`, to look at what has arrived there.
    pub(super) target_end: TcpStream,
    outgoing: Vec<u8>,
    /// Of `outgoing`.
    sent: usize,
    /// Bytes that the reactor has received once it has received all that was sent.
    pub(super) sent_in_all: u64,
    incoming: Box<[u8]>,
    filled: usize,
    in_flight: u64,
    data: Vec<u8>,
}

impl Host {
    /// The host of an open I/O queue that `reactor` serves.
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

    /// Whether something waits for the socket to take it.
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Whether every request is answered.
    pub(super) fn is_answered(&self) -> bool {
        self.in_flight == 0
    }

    /// Makes a batch of requests.
    pub(super) fn submit(&mut self, batch: &Batch, random: &mut Random) {
        debug_assert_eq!(self.sent, self.outgoing.len(), "a batch is sent as a whole");
        self.outgoing.clear();
        self.sent = 0;
        let blocks = (batch.bytes / BLOCK_BYTES) as u16;
        let framing = Framing::default();
        for cid in 0..batch.depth {
            let lba = random.below(batch.device_bytes / u64::from(batch.bytes)) * u64::from(blocks);
            let in_capsule = batch.write && batch.bytes <= 4096;
            let sqe = if batch.write {
                Sqe::write(batch.nsid, lba, blocks - 1, false)
            } else {
                Sqe::read(batch.nsid, lba, blocks - 1)
            };
            let (sgl, data_bytes) = if in_capsule {
                (SglDescriptor::in_capsule(0, batch.bytes), batch.bytes)
            } else {
                (SglDescriptor::transport(batch.bytes), 0)
            };
            let sqe = sqe.with_cid(cid).with_sgl(sgl);
            let capsule = CapsuleCmd::new(sqe, data_bytes, framing);
            self.outgoing.extend_from_slice(capsule.as_bytes());
            self.outgoing
                .extend_from_slice(&self.data[..data_bytes as usize]);
        }
        self.in_flight = u64::from(batch.depth);
    }

    /// Sends what the socket takes.
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

    /// Takes in answers until the batch is answered, the target asks for data, or nothing more
    /// comes.
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
        while let Ok((common, _)) =
            CommonHeader::read_from_prefix(&self.incoming[begin..self.filled])
        {
            let bytes = common.plen.get() as usize;
            if self.filled - begin < bytes {
                break;
            }
            self.take_pdu(begin, &common)?;
            begin += bytes;
        }
        self.incoming.copy_within(begin..self.filled, 0);
        self.filled -= begin;
        Ok(())
    }

    fn take_pdu(&mut self, begin: usize, common: &CommonHeader) -> Result<(), CostError> {
        let bytes = &self.incoming[begin..self.filled];
        let unexpected = || CostError::Setup(format!("an answer: {common:?}"));
        match common.pdu_type {
            PduType::C2H_DATA => {
                let (header, _) = C2hData::ref_from_prefix(bytes).map_err(|_| unexpected())?;
                self.in_flight -= u64::from(header.ch.flags.success());
            }
            PduType::CAPSULE_RESP => {
                let (capsule, _) = CapsuleResp::ref_from_prefix(bytes).map_err(|_| unexpected())?;
                if !capsule.cqe.status().is_success() {
                    return Err(unexpected());
                }
                self.in_flight -= 1;
            }
            PduType::R2T => {
                let (request, _) = R2t::ref_from_prefix(bytes).map_err(|_| unexpected())?;
                let (cid, tag) = (request.cccid.get(), request.ttag.get());
                let (offset, length) = (request.r2to.get(), request.r2tl.get());
                let header = H2cData::new(cid, tag, offset, length, true, Framing::default());
                if self.sent == self.outgoing.len() {
                    self.outgoing.clear();
                    self.sent = 0;
                }
                self.outgoing.extend_from_slice(header.as_bytes());
                self.outgoing
                    .extend_from_slice(&self.data[..length as usize]);
            }
            _ => return Err(unexpected()),
        }
        Ok(())
    }
}
