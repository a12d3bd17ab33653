//! A blocking NVMe/TCP client at the level of bytes and PDUs, for tests that are hostile to a target.
//!
//! It sends whatever it is told to, checks nothing that it was not asked to check, and blocks with
//! a limit.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nvme_spec::Sqe;
use nvme_spec::completion::Cqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{DigestFlags, Framing, IcReq, IcResp, PduType, R2t};
use zerocopy::IntoBytes;

use crate::pdu::{Pdu, PduInbox, capsule, h2c_data, in_capsule};
use crate::steps::{Names, StepError, Steps};

/// Bytes of one receive.
const RECEIVE_BYTES: usize = 64 << 10;

/// Why the client could not go on. Each is a test's failure, unless the test waits for it.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    /// The socket failed; a reset by the target is [`Received::Closed`] instead.
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
    /// Nothing came within the limit.
    #[error("nothing came within {0:?}")]
    TimedOut(Duration),
    /// The target closed the connection where an answer was due.
    #[error("the target closed the connection instead of answering")]
    Closed,
    /// Another PDU than the one that was due.
    #[error("{found} came where {expected} was due")]
    Unexpected {
        /// What was due.
        expected: PduType,
        /// What came.
        found: PduType,
    },
    /// A PDU that cannot be right: its header length, its length or its digests.
    #[error("the target sent a malformed {0}")]
    Malformed(PduType),
    /// A command that a helper needed failed.
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

/// What came from the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A PDU.
    Pdu(Pdu),
    /// The end of the stream, in order or by a reset.
    Closed,
}

/// The client.
#[derive(Debug)]
pub struct RawClient {
    stream: TcpStream,
    inbox: PduInbox,
    limit: Duration,
    /// How PDUs are built and read from now on; [`Self::initialize`] sets it.
    pub framing: Framing,
    next_cid: u16,
}

impl RawClient {
    /// Connects; everything that waits does so for `limit` at most.
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

    /// The socket, for who goes on without this client's manners of waiting.
    #[must_use]
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends any bytes.
    ///
    /// # Errors
    /// [`RawError::Socket`], also where the target has closed the connection.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), RawError> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Tells the target that nothing more will come, and stays able to receive.
    ///
    /// # Errors
    /// [`RawError::Socket`].
    pub fn finish_sending(&mut self) -> Result<(), RawError> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }

    /// Receives one whole PDU, or the end of the stream.
    ///
    /// # Errors
    /// [`RawError::TimedOut`], [`RawError::Malformed`] where the lengths cannot be right,
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

    /// The error for the PDU that is arriving.
    fn malformed(&mut self) -> RawError {
        let kind = self.inbox.buffer().first().copied();
        RawError::Malformed(PduType(kind.unwrap_or(u8::MAX)))
    }

    /// Reads what has arrived, at least one byte; false where the stream ends.
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

    /// Receives one PDU, which must be of this type and have right digests.
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

    /// Receives until the target closes the connection; gives the last termination request before
    /// that, if any.
    ///
    /// # Errors
    /// As [`Self::receive`]: a target that does not close is [`RawError::TimedOut`].
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

    /// Initialises the connection with digests as told, and frames PDUs as agreed from then on.
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
        let answer = pdu
            .initialization()
            .ok_or(RawError::Malformed(PduType::IC_RESP))?;
        self.framing = Framing {
            header_digest: answer.dgst.header(),
            data_digest: answer.dgst.data(),
            alignment_z: answer.cpda_z,
        };
        Ok(answer)
    }

    /// Sends a valid command capsule with in-capsule data (none for empty `data`).
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_capsule(&mut self, sqe: Sqe, data: &[u8]) -> Result<(), RawError> {
        let bytes = capsule(sqe, data, self.framing);
        self.send(&bytes)
    }

    /// Sends a valid data PDU in answer to `request`.
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

    /// A command identifier that this client has not used for a while.
    pub fn next_cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1) & 0x7fff;
        self.next_cid
    }

    /// Sends a command under a fresh identifier, with in-capsule data where there is any, and waits
    /// for its completion. The data pointer is set to fit: in-capsule for data, else a transport
    /// block of `read_bytes`. Data that the command reads is returned.
    ///
    /// # Errors
    /// As [`Self::expect`]; [`RawError::Malformed`] for data that is out of order or out of place.
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

    /// Initialises, connects the admin queue of any controller, enables it and waits until it is
    /// ready. Gives the controller's identifier.
    ///
    /// # Errors
    /// As [`Self::command`], [`RawError::Refused`] where a step fails, [`RawError::TimedOut`] where
    /// it stays unready.
    pub fn open_admin(&mut self, names: &Names) -> Result<u16, RawError> {
        self.initialize(false, false)?;
        self.open_admin_queue(names)
    }

    /// Initialises and connects I/O queue `qid` of the controller `cntlid`.
    ///
    /// # Errors
    /// As [`Self::command`], and [`RawError::Refused`].
    pub fn open_io(&mut self, names: &Names, cntlid: u16, qid: u16) -> Result<(), RawError> {
        self.initialize(false, false)?;
        self.open_io_queue(names, cntlid, qid)
    }
}

impl Steps for RawClient {
    type Error = RawError;

    fn run(&mut self, sqe: Sqe, data: &[u8]) -> Result<Cqe, RawError> {
        self.command(sqe, data, 0).map(|(cqe, _)| cqe)
    }

    fn limit(&self) -> Duration {
        self.limit
    }
}
