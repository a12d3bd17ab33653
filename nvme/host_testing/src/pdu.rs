//! NVMe/TCP PDUs without I/O: builds PDUs as bytes, which a test may damage, and splits a target's
//! byte stream into PDUs (TCP 1.1 §3.6).

use nvme_host::ProtocolError;
use nvme_host::pdu::{self, Header};
use nvme_spec::completion::Cqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, DIGEST_BYTES, FatalError, Framing, H2cData,
    IcResp, PduFlags, PduType, R2t, TERM_PDU_MAX_BYTES, TermReq,
};
use nvme_spec::{Sqe, U32};
use zerocopy::{FromBytes, IntoBytes};

pub use nvme_host::pdu::{assemble, digest};

/// The longest accepted PDU in bytes. A longer one is an error.
const PDU_MAX_BYTES: usize = 16 << 20;

/// A command capsule with in-capsule data, with the digests and alignment of `framing`.
#[must_use]
pub fn capsule(sqe: Sqe, data: &[u8], framing: Framing) -> Vec<u8> {
    let pdu = CapsuleCmd::new(sqe, data.len() as u32, framing);
    assemble(pdu.as_bytes(), pdu.ch, data)
}

/// The data pointer of a command without data or with all of its data in the capsule.
#[must_use]
pub fn in_capsule(data: &[u8]) -> SglDescriptor {
    match data.len() {
        0 => SglDescriptor::transport(0),
        bytes => SglDescriptor::in_capsule(0, bytes as u32),
    }
}

/// A data PDU in response to an R2T.
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

/// Recomputes the header digest of a PDU after a change of its header.
pub fn fix_header_digest(pdu: &mut [u8]) {
    if let Some(&hlen) = pdu.get(2) {
        let hlen = usize::from(hlen);
        if pdu.len() >= hlen + DIGEST_BYTES as usize {
            let value = digest(&pdu[..hlen]);
            pdu[hlen..hlen + DIGEST_BYTES as usize].copy_from_slice(&value);
        }
    }
}

/// A malformed PDU of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PduError {
    /// Its header violates a rule.
    #[error(transparent)]
    Header(#[from] ProtocolError),
    /// Its data does not match its digest.
    #[error("wrong data digest")]
    DataDigest,
    /// DATAL differs from the number of data bytes according to PLEN.
    #[error("DATAL is {datal}, but the PDU has {found} bytes of data")]
    DataLength {
        /// DATAL.
        datal: u32,
        /// Bytes of data in the PDU.
        found: u32,
    },
}

/// Bytes received from a target, which it splits into PDUs.
#[derive(Debug, Default)]
pub struct PduInbox {
    bytes: Vec<u8>,
    consumed: usize,
}

impl PduInbox {
    /// The buffer to which received bytes are appended.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Whether a PDU has been received in part.
    #[must_use]
    pub fn is_within_pdu(&self) -> bool {
        self.consumed < self.bytes.len()
    }

    /// The next PDU after all of it has been received. Checks only its length.
    ///
    /// # Errors
    /// [`ProtocolError::PduLength`].
    pub fn next_pdu(&mut self) -> Result<Option<Pdu>, ProtocolError> {
        let rest = &self.bytes[self.consumed..];
        if let Ok((common, _)) = CommonHeader::ref_from_prefix(rest) {
            let (kind, found) = (common.pdu_type, common.plen.get());
            let most = match kind {
                PduType::C2H_TERM_REQ => TERM_PDU_MAX_BYTES,
                _ => PDU_MAX_BYTES,
            };
            let least = usize::from(common.hlen).max(size_of::<CommonHeader>());
            if !(least..=most).contains(&(found as usize)) {
                return Err(ProtocolError::PduLength { kind, found });
            }
            if let Some(bytes) = rest.get(..found as usize) {
                self.consumed += bytes.len();
                let bytes = bytes.to_vec();
                return Ok(Some(Pdu { bytes }));
            }
        }
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
        Ok(None)
    }
}

/// One whole PDU as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pdu {
    /// All bytes, digests included.
    pub bytes: Vec<u8>,
}

impl Pdu {
    /// The common header.
    #[must_use]
    pub fn common(&self) -> CommonHeader {
        // `next_pdu` has read the common header, so its eight bytes are present.
        CommonHeader::read_from_prefix(&self.bytes).map_or(
            CommonHeader {
                pdu_type: PduType(0xff),
                flags: PduFlags::new(),
                hlen: 0,
                pdo: 0,
                plen: U32::new(0),
            },
            |(common, _)| common,
        )
    }

    /// The type.
    #[must_use]
    pub fn kind(&self) -> PduType {
        self.common().pdu_type
    }

    /// Checks that a target may send the PDU to a host that negotiated `framing`, with the
    /// alignment that the host requested. Returns its header and its data.
    ///
    /// # Errors
    /// The violated rule.
    pub fn check(&self, framing: Framing) -> Result<(Header, &[u8]), PduError> {
        let read = pdu::read_header(&self.bytes, framing)?;
        let too_short = || ProtocolError::PduLength {
            kind: self.kind(),
            found: self.bytes.len() as u32,
        };
        let (header, layout) = read.ok_or_else(too_short)?;
        let rest = &self.bytes[layout.header_bytes as usize..];
        let data = rest.get(..layout.data_bytes as usize);
        let data = data.ok_or_else(too_short)?;
        if layout.data_digest && rest[data.len()..] != digest(data) {
            return Err(PduError::DataDigest);
        }
        if let Header::Data(header) = header
            && header.datal.get() != layout.data_bytes
        {
            let (datal, found) = (header.datal.get(), layout.data_bytes);
            return Err(PduError::DataLength { datal, found });
        }
        Ok((header, data))
    }

    fn view<T: FromBytes>(&self, kind: PduType) -> Option<T> {
        if self.kind() != kind {
            return None;
        }
        T::read_from_prefix(&self.bytes).ok().map(|(pdu, _)| pdu)
    }

    /// The ICResp, if it is one.
    #[must_use]
    pub fn ic_resp(&self) -> Option<IcResp> {
        self.view(PduType::IC_RESP)
    }

    /// The completion of a response capsule, if it is one.
    #[must_use]
    pub fn completion(&self) -> Option<Cqe> {
        self.view::<CapsuleResp>(PduType::CAPSULE_RESP)
            .map(|pdu| pdu.cqe)
    }

    /// The R2T, if it is one.
    #[must_use]
    pub fn r2t(&self) -> Option<R2t> {
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
}
