//! A blocking NVMe/TCP client at the level of bytes and PDUs, for tests that act as a malicious
//! host.
//!
//! It sends any bytes, performs only the checks that the test requests, and blocks with a time
//! limit.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nvme_spec::Sqe;
use nvme_spec::completion::Cqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{DigestFlags, Framing, IcReq, IcResp, PduType, R2t};
use zerocopy::IntoBytes;

use crate::pdu::{Pdu, PduInbox, capsule, h2c_data, in_capsule};
use crate::steps::{HostSteps, Names, StepError};

/// Size of one receive in bytes.
const RECEIVE_BYTES: usize = 64 << 10;

/// The reason for which the client cannot continue. It fails the test, unless the test expects it.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    /// The socket failed; a reset by the target is [`Received::Closed`] instead.
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
    /// Nothing was received within the limit.
    #[error("nothing received within {0:?}")]
    TimedOut(Duration),
    /// The target closed the connection while a PDU was expected.
    #[error("the target closed the connection instead of responding")]
    Closed,
    /// A PDU of another type than the expected one.
    #[error("received {found}, expected {expected}")]
    Unexpected {
        /// The expected type.
        expected: PduType,
        /// The received type.
        found: PduType,
    },
    /// A PDU with an invalid header length, length or digest.
    #[error("the target sent a malformed {0}")]
    Malformed(PduType),
    /// A command of a helper function failed.
    #[error("{0}")]
    Refused(nvme_spec::Status),
}

impl From<StepError> for RawError {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Refused(status) => Self::Refused(status),
            StepError::NotReady(limit) => Self::TimedOut(limit),
        }
    }
}

/// A PDU or the end of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A PDU.
    Pdu(Pdu),
    /// The end of the stream, orderly or by a reset.
    Closed,
}

/// The client.
#[derive(Debug)]
pub struct RawClient {
    stream: TcpStream,
    inbox: PduInbox,
    limit: Duration,
    /// The framing of PDUs that are sent and received; set by [`Self::initialize`].
    pub framing: Framing,
    next_cid: u16,
}

impl RawClient {
    /// Connects; `limit` is the time limit of all operations.
    ///
    /// # Errors
    /// [`RawError::Socket`].
    pub fn connect(address: SocketAddr, limit: Duration) -> Result<Self, RawError> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self {
            stream,
            inbox: PduInbox::default(),
            limit,
            framing: Framing::default(),
            next_cid: 0,
        })
    }

    /// The socket, for a test that continues without this client.
    #[must_use]
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends any bytes.
    ///
    /// # Errors
    /// [`RawError::Socket`], also if the target has closed the connection.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), RawError> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Closes the sending side of the connection. Receiving is still possible.
    ///
    /// # Errors
    /// [`RawError::Socket`].
    pub fn finish_sending(&mut self) -> Result<(), RawError> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }

    /// Receives one whole PDU, or the end of the stream.
    ///
    /// # Errors
    /// [`RawError::TimedOut`], [`RawError::Malformed`] if a length is invalid,
    /// [`RawError::Socket`].
    pub fn receive(&mut self) -> Result<Received, RawError> {
        let deadline = Instant::now() + self.limit;
        loop {
            let next = self.inbox.next_pdu();
            if let Some(pdu) = next.map_err(|_| self.malformed())? {
                return Ok(Received::Pdu(pdu));
            }
            if !self.read_some(deadline)? {
                return match self.inbox.buffer().is_empty() {
                    true => Ok(Received::Closed),
                    false => Err(self.malformed()),
                };
            }
        }
    }

    /// The error for the partly received PDU.
    fn malformed(&mut self) -> RawError {
        let kind = self.inbox.buffer().first().copied();
        RawError::Malformed(PduType(kind.unwrap_or(u8::MAX)))
    }

    /// Reads at least one byte; returns false at the end of the stream.
    fn read_some(&mut self, deadline: Instant) -> Result<bool, RawError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RawError::TimedOut(self.limit));
            }
            self.stream.set_read_timeout(Some(left))?;
            let buffer = self.inbox.buffer();
            let before = buffer.len();
            buffer.resize(before + RECEIVE_BYTES, 0);
            let read = self.stream.read(&mut buffer[before..]);
            buffer.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(bytes) => return Ok(bytes > 0),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                        return Err(RawError::TimedOut(self.limit));
                    }
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => return Ok(false),
                    _ => return Err(error.into()),
                },
            }
        }
    }

    /// Receives one PDU, which must have this type and correct digests.
    ///
    /// # Errors
    /// As [`Self::receive`], and [`RawError::Closed`], [`RawError::Unexpected`].
    pub fn expect(&mut self, expected: PduType) -> Result<Pdu, RawError> {
        match self.receive()? {
            Received::Closed => Err(RawError::Closed),
            Received::Pdu(pdu) if pdu.kind() != expected => Err(RawError::Unexpected {
                expected,
                found: pdu.kind(),
            }),
            Received::Pdu(pdu) => match pdu.check(self.framing.dword_aligned()) {
                Ok(_) => Ok(pdu),
                Err(_) => Err(RawError::Malformed(expected)),
            },
        }
    }

    /// Receives until the target closes the connection. Returns the last termination request before
    /// that, if any.
    ///
    /// # Errors
    /// As [`Self::receive`]: if the target does not close, [`RawError::TimedOut`].
    pub fn expect_close(&mut self) -> Result<Option<Pdu>, RawError> {
        let mut termination = None;
        loop {
            match self.receive()? {
                Received::Closed => return Ok(termination),
                Received::Pdu(pdu) if pdu.kind() == PduType::C2H_TERM_REQ => {
                    termination = Some(pdu);
                }
                Received::Pdu(_) => {}
            }
        }
    }

    /// Initialises the connection with these digests, and uses the negotiated framing from then on.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn initialize(
        &mut self,
        header_digest: bool,
        data_digest: bool,
    ) -> Result<IcResp, RawError> {
        let digests = DigestFlags::new()
            .with_header(header_digest)
            .with_data(data_digest);
        self.send(IcReq::new(0, digests, 0).as_bytes())?;
        let pdu = self.expect(PduType::IC_RESP)?;
        let response = pdu.ic_resp().ok_or(RawError::Malformed(PduType::IC_RESP))?;
        self.framing = Framing {
            header_digest: response.dgst.header(),
            data_digest: response.dgst.data(),
            alignment_z: response.cpda_z,
        };
        Ok(response)
    }

    /// Sends a valid command capsule with in-capsule data, or without data if `data` is empty.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_capsule(&mut self, sqe: Sqe, data: &[u8]) -> Result<(), RawError> {
        let bytes = capsule(sqe, data, self.framing);
        self.send(&bytes)
    }

    /// Sends a valid data PDU in response to `request`.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_data(
        &mut self,
        request: &R2t,
        offset: u32,
        data: &[u8],
        last: bool,
    ) -> Result<(), RawError> {
        let tags = (request.cccid.get(), request.ttag.get());
        let bytes = h2c_data(tags, offset, data, last, self.framing);
        self.send(&bytes)
    }

    /// A command identifier that this client has not used recently.
    pub fn next_cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1) & 0x7fff;
        self.next_cid
    }

    /// Sends a command with a new identifier and waits for its completion. Sets the data pointer:
    /// in-capsule if there is `data`, otherwise a transport data block of `read_bytes`. Returns the
    /// completion and the data read.
    ///
    /// # Errors
    /// As [`Self::expect`]; [`RawError::Malformed`] if data arrives out of order or at a wrong
    /// offset.
    pub fn command(
        &mut self,
        sqe: Sqe,
        data: &[u8],
        read_bytes: u32,
    ) -> Result<(Cqe, Vec<u8>), RawError> {
        let cid = self.next_cid();
        let sgl = if data.is_empty() {
            SglDescriptor::transport(read_bytes)
        } else {
            in_capsule(data)
        };
        self.send_capsule(sqe.with_cid(cid).with_sgl(sgl), data)?;
        let mut read = Vec::new();
        loop {
            let Received::Pdu(pdu) = self.receive()? else {
                return Err(RawError::Closed);
            };
            if pdu.check(self.framing.dword_aligned()).is_err() {
                return Err(RawError::Malformed(pdu.kind()));
            }
            if let Some(cqe) = pdu.completion() {
                let right = cqe.cid.get() == cid;
                return if right {
                    Ok((cqe, read))
                } else {
                    Err(RawError::Malformed(pdu.kind()))
                };
            }
            let Some((header, part)) = pdu.data() else {
                let expected = PduType::CAPSULE_RESP;
                return Err(RawError::Unexpected {
                    expected,
                    found: pdu.kind(),
                });
            };
            let in_place = header.cccid.get() == cid && header.datao.get() as usize == read.len();
            if !in_place || read.len() + part.len() > read_bytes as usize {
                return Err(RawError::Malformed(PduType::C2H_DATA));
            }
            read.extend_from_slice(part);
            if header.ch.flags.success() {
                return Ok((Cqe::new(cid, nvme_spec::Status::SUCCESS), read));
            }
        }
    }

    /// Initialises the connection, connects the admin queue of any controller, enables it and waits
    /// until it is ready. Returns the controller's identifier.
    ///
    /// # Errors
    /// As [`Self::command`], [`RawError::Refused`] if a step fails, [`RawError::TimedOut`] if the
    /// controller does not become ready.
    pub fn open_admin(&mut self, names: &Names) -> Result<u16, RawError> {
        self.initialize(false, false)?;
        self.open_admin_queue(names)
    }

    /// Initialises the connection, and connects I/O queue `qid` of the controller `cntlid`.
    ///
    /// # Errors
    /// As [`Self::command`], and [`RawError::Refused`].
    pub fn open_io(&mut self, names: &Names, cntlid: u16, qid: u16) -> Result<(), RawError> {
        self.initialize(false, false)?;
        self.open_io_queue(names, cntlid, qid)
    }
}

impl HostSteps for RawClient {
    type Error = RawError;

    fn run(&mut self, sqe: Sqe, data: &[u8]) -> Result<Cqe, RawError> {
        self.command(sqe, data, 0).map(|(cqe, _)| cqe)
    }

    fn limit(&self) -> Duration {
        self.limit
    }
}
