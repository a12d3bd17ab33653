//! A client at the level of bytes and PDUs, without manners: for tests that are hostile to a
//! target.
//!
//! It sends whatever it is told to, checks nothing that it was not asked to check, and blocks with
//! a limit. The functions that build PDUs give plain bytes, valid as they come, for the test to
//! damage.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nvme_spec::Sqe;
use nvme_spec::completion::Cqe;
use nvme_spec::fabrics::PropertySize;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, DigestFlags, FatalError, Framing, H2cData,
    IcReq, IcResp, PduType, R2t, TERM_PDU_MAX_BYTES, TermReq,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::steps::{self, Steps};
use crate::tcp::pdu::{assemble, digest};

pub use crate::steps::RawNames;

/// The longest PDU that is taken in, bytes: a target that announces more is not believed.
const PDU_MAX_BYTES: usize = 16 << 20;

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

/// What came from the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A PDU.
    Pdu(Pdu),
    /// The end of the stream, in order or by a reset.
    Closed,
}

/// One whole PDU as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pdu {
    /// All bytes, digests included.
    pub bytes: Vec<u8>,
}

impl Pdu {
    /// The common header.
    #[must_use]
    pub fn common(&self) -> CommonHeader {
        // A PDU is read header first, so eight bytes are always there.
        CommonHeader::read_from_prefix(&self.bytes).map_or(
            CommonHeader {
                pdu_type: PduType(0xff),
                flags: nvme_spec::tcp::PduFlags::new(),
                hlen: 0,
                pdo: 0,
                plen: 0.into(),
            },
            |(common, _)| common,
        )
    }

    /// The type.
    #[must_use]
    pub fn kind(&self) -> PduType {
        self.common().pdu_type
    }

    fn view<T: FromBytes>(&self, kind: PduType) -> Option<T> {
        if self.kind() != kind {
            return None;
        }
        T::read_from_prefix(&self.bytes).ok().map(|(pdu, _)| pdu)
    }

    /// The connection's initialisation, if it is that.
    #[must_use]
    pub fn initialization(&self) -> Option<IcResp> {
        self.view(PduType::IC_RESP)
    }

    /// The completion of a response capsule, if it is one.
    #[must_use]
    pub fn completion(&self) -> Option<Cqe> {
        self.view::<CapsuleResp>(PduType::CAPSULE_RESP)
            .map(|pdu| pdu.cqe)
    }

    /// The request for data, if it is one.
    #[must_use]
    pub fn request(&self) -> Option<R2t> {
        self.view(PduType::R2T)
    }

    /// The header and the data of a data PDU, if it is one.
    #[must_use]
    pub fn data(&self) -> Option<(C2hData, &[u8])> {
        let header: C2hData = self.view(PduType::C2H_DATA)?;
        let start = usize::from(header.ch.pdo);
        let data = self
            .bytes
            .get(start..start.checked_add(header.datal.get() as usize)?)?;
        Some((header, data))
    }

    /// Status, information and the quoted header of a termination request, if it is one.
    #[must_use]
    pub fn termination(&self) -> Option<(FatalError, u32, &[u8])> {
        let request: TermReq = self.view(PduType::C2H_TERM_REQ)?;
        Some((
            request.fatal_error(),
            request.fei.get(),
            self.bytes.get(size_of::<TermReq>()..)?,
        ))
    }

    /// Whether the digests that the flags announce are right; true where none is announced.
    #[must_use]
    pub fn digests_match(&self) -> bool {
        let common = self.common();
        let hlen = usize::from(common.hlen);
        let header = self.bytes.get(..hlen);
        let header_right = !common.flags.hdgstf()
            || header.is_some_and(|header| self.bytes.get(hlen..hlen + 4) == Some(&digest(header)));
        let data_right = !common.flags.ddgstf()
            || self
                .bytes
                .split_last_chunk::<4>()
                .is_some_and(|(rest, found)| {
                    rest.get(usize::from(common.pdo)..)
                        .is_some_and(|data| digest(data) == *found)
                });
        header_right && data_right
    }
}

/// A command capsule with in-capsule data, digests and alignment as `framing` has them.
#[must_use]
pub fn capsule(sqe: Sqe, data: &[u8], framing: Framing) -> Vec<u8> {
    let pdu = CapsuleCmd::new(sqe, data.len() as u32, framing);
    assemble(pdu.as_bytes(), pdu.ch, data)
}

/// A data PDU in answer to an R2T.
#[must_use]
pub fn h2c_data(
    (cccid, ttag): (u16, u16),
    offset: u32,
    data: &[u8],
    last: bool,
    framing: Framing,
) -> Vec<u8> {
    let pdu = H2cData::new(cccid, ttag, offset, data.len() as u32, last, framing);
    assemble(pdu.as_bytes(), pdu.ch, data)
}

/// Computes the header digest of a PDU anew, after its header was changed.
pub fn fix_header_digest(pdu: &mut [u8]) {
    if let Some(&hlen) = pdu.get(2) {
        let hlen = usize::from(hlen);
        if pdu.len() >= hlen + 4 {
            let value = digest(&pdu[..hlen]);
            pdu[hlen..hlen + 4].copy_from_slice(&value);
        }
    }
}

/// The client.
#[derive(Debug)]
pub struct RawClient {
    stream: TcpStream,
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
        let mut bytes = vec![0; size_of::<CommonHeader>()];
        if !self.fill(&mut bytes, deadline)? {
            return Ok(Received::Closed);
        }
        let common = Pdu {
            bytes: bytes.clone(),
        }
        .common();
        let plen = common.plen.get() as usize;
        let least = usize::from(common.hlen).max(bytes.len());
        if !(least..=PDU_MAX_BYTES).contains(&plen) {
            return Err(RawError::Malformed(common.pdu_type));
        }
        bytes.resize(plen, 0);
        if self.fill(&mut bytes[size_of::<CommonHeader>()..], deadline)? {
            Ok(Received::Pdu(Pdu { bytes }))
        } else {
            Err(RawError::Malformed(common.pdu_type))
        }
    }

    /// Fills `bytes`; false where the stream ends before. An end within them is an error of the
    /// target's.
    fn fill(&mut self, bytes: &mut [u8], deadline: Instant) -> Result<bool, RawError> {
        let mut filled = 0;
        while filled < bytes.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RawError::TimedOut(self.limit));
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => return Ok(false),
                Ok(more) => filled += more,
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
        Ok(true)
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
            Received::Pdu(pdu) if !pdu.digests_match() => Err(RawError::Malformed(expected)),
            Received::Pdu(pdu) => Ok(pdu),
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
                    debug_assert!(
                        pdu.bytes.len() <= TERM_PDU_MAX_BYTES,
                        "checked by the caller"
                    );
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
            SglDescriptor::in_capsule(0, data.len() as u32)
        };
        self.send_capsule(sqe.with_cid(cid).with_sgl(sgl), data)?;
        let mut read = Vec::new();
        loop {
            let Received::Pdu(pdu) = self.receive()? else {
                return Err(RawError::Closed);
            };
            if !pdu.digests_match() {
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

    /// Sends Connect for a queue, and gives its completion whatever the status.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub fn connect_queue(
        &mut self,
        names: &RawNames,
        cntlid: u16,
        qid: u16,
        sqsize_z: u16,
    ) -> Result<Cqe, RawError> {
        steps::connect_queue(self, names, cntlid, qid, sqsize_z)
    }

    /// Reads a property of the controller.
    ///
    /// # Errors
    /// As [`Self::command`], and [`RawError::Refused`].
    pub fn get_property(&mut self, offset: u32, size: PropertySize) -> Result<u64, RawError> {
        steps::get_property(self, offset, size)
    }

    /// Initialises, connects the admin queue of any controller, enables it and waits until it is
    /// ready. Gives the controller's identifier.
    ///
    /// # Errors
    /// As [`Self::command`], [`RawError::Refused`] where a step fails, [`RawError::TimedOut`] where
    /// it stays unready.
    pub fn open_admin(&mut self, names: &RawNames) -> Result<u16, RawError> {
        self.initialize(false, false)?;
        steps::open_admin(self, names)
    }

    /// Initialises and connects I/O queue `qid` of the controller `cntlid`.
    ///
    /// # Errors
    /// As [`Self::command`], and [`RawError::Refused`].
    pub fn open_io(&mut self, names: &RawNames, cntlid: u16, qid: u16) -> Result<(), RawError> {
        self.initialize(false, false)?;
        steps::open_io(self, names, cntlid, qid)
    }
}

impl Steps for RawClient {
    type Error = RawError;

    fn run(&mut self, sqe: Sqe, data: &[u8]) -> Result<Cqe, RawError> {
        self.command(sqe, data, 0).map(|(cqe, _)| cqe)
    }

    fn refused(status: nvme_spec::Status) -> RawError {
        RawError::Refused(status)
    }

    fn timed_out(limit: Duration) -> RawError {
        RawError::TimedOut(limit)
    }

    fn limit(&self) -> Duration {
        self.limit
    }
}
