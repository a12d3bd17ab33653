//! The host's side of NVMe/TCP as pure functions over bytes: reading the header of a controller's
//! PDU, checking the response to the initialisation, digests (TCP 1.1 §3.3.1.1, §3.6.2).
//!
//! Used by [`Controller`](crate::Controller) and [`IoQueue`](crate::IoQueue), and by hosts of
//! tests, which handle single PDUs.

use crc_fast::{CrcAlgorithm, checksum};
use nvme_spec::tcp::{
    C2hData, CapsuleResp, CommonHeader, DATA_ALIGNMENT_MAX_Z, DIGEST_BYTES, DigestFlags, Framing,
    HeaderError, IcResp, MAXH2CDATA_MIN_BYTES, PDU_DATA_MAX_BYTES, PFV_1_0, PduLayout, PduType,
    R2t, TermReq, offset,
};
use zerocopy::FromBytes;

use crate::error::{HostError, ProtocolError};

/// The CRC32C digest of `bytes` in wire order, computed with the processor's instructions if it has
/// them (TCP 1.1 §3.3.1.1).
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES as usize] {
    (checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// The header of a PDU from a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// An ICResp, for [`negotiate`].
    Initialized,
    /// A response capsule.
    Response(CapsuleResp),
    /// Data.
    Data(C2hData),
    /// A request for data.
    Request(R2t),
    /// A termination request, followed by the header that it quotes.
    Termination(TermReq),
}

/// Reads the header at the start of `bytes`. Returns `None` while it is incomplete, including its
/// digest and padding. `framing` contains the negotiated digests and the host's data alignment.
///
/// # Errors
/// A PDU that a controller never sends, whose fields contradict each other or `framing`, or whose
/// header digest does not match.
#[inline(always)]
pub fn read_header(
    bytes: &[u8],
    framing: Framing,
) -> Result<Option<(Header, PduLayout)>, ProtocolError> {
    let Ok((common, _)) = CommonHeader::ref_from_prefix(bytes) else {
        return Ok(None);
    };
    let kind = common.pdu_type;
    if kind.is_from_host() {
        return Err(ProtocolError::UnexpectedPdu(kind));
    }
    let layout = common.layout(framing);
    let layout = layout.map_err(|fault| ProtocolError::header(common, fault))?;
    let Some(header) = bytes.get(..layout.header_bytes as usize) else {
        return Ok(None);
    };
    if layout.header_digest {
        let (header, rest) = header.split_at(usize::from(common.hlen));
        if let Some(found) = rest.first_chunk()
            && *found != digest(header)
        {
            let found = u32::from_le_bytes(*found);
            return Err(ProtocolError::HeaderDigest { kind, found });
        }
    }
    let read = match kind {
        PduType::IC_RESP => Some(Header::Initialized),
        PduType::CAPSULE_RESP => read(header).map(Header::Response),
        PduType::C2H_DATA => read(header).map(Header::Data),
        PduType::R2T => read(header).map(Header::Request),
        _ => read(header).map(Header::Termination),
    };
    let read = read.ok_or(ProtocolError::UnexpectedPdu(kind))?;
    Ok(Some((read, layout)))
}

fn read<T: FromBytes>(header: &[u8]) -> Option<T> {
    T::read_from_prefix(header).ok().map(|(header, _)| header)
}

impl ProtocolError {
    #[cold]
    fn header(common: &CommonHeader, fault: HeaderError) -> Self {
        let kind = common.pdu_type;
        match (fault, kind.header_bytes()) {
            (HeaderError::HeaderLength, Some(expected)) => Self::HeaderLength {
                kind,
                found: common.hlen,
                expected,
            },
            (HeaderError::PduType | HeaderError::HeaderLength, _) => Self::UnexpectedPdu(kind),
            (HeaderError::Flags, _) => Self::Flags {
                kind,
                found: common.flags.into_bits(),
            },
            (HeaderError::DataOffset, _) => Self::DataOffset {
                kind,
                found: common.pdo,
            },
            (HeaderError::PduLength, _) => Self::PduLength {
                kind,
                found: common.plen.get(),
            },
        }
    }
}

/// Builds a PDU from its header, with header digest, padding, data and data digest according to the
/// common header.
#[must_use]
pub fn assemble(header: &[u8], common: CommonHeader, data: &[u8]) -> Vec<u8> {
    let mut bytes = header.to_vec();
    if common.flags.hdgstf() {
        bytes.extend(digest(header));
    }
    if !data.is_empty() {
        bytes.resize(bytes.len().max(usize::from(common.pdo)), 0);
        bytes.extend_from_slice(data);
        if common.flags.ddgstf() {
            bytes.extend(digest(data));
        }
    }
    bytes
}

/// The negotiated parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Digests, and the target's data alignment.
    pub framing: Framing,
    /// Maximum data bytes of one H2CData PDU.
    pub h2c_data_max_bytes: u32,
}

/// Derives the negotiated parameters from an ICResp for a host that requested these digests (TCP
/// 1.1 §3.6.2.3).
///
/// # Errors
/// A field out of range, or [`HostError::DigestUnsupported`].
pub fn negotiate(response: &IcResp, requested: DigestFlags) -> Result<Negotiated, HostError> {
    let at = |offset| Err(ProtocolError::Initialization { offset }.into());
    if response.pfv.get() != PFV_1_0 {
        return at(offset::PFV);
    }
    if response.cpda_z > DATA_ALIGNMENT_MAX_Z {
        return at(offset::PDA);
    }
    let got = response.dgst;
    if (got.header() && !requested.header()) || (got.data() && !requested.data()) {
        return at(offset::DGST);
    }
    if requested.header() && !got.header() {
        return Err(HostError::DigestUnsupported("header"));
    }
    if requested.data() && !got.data() {
        return Err(HostError::DigestUnsupported("data"));
    }
    let h2c_data_max_bytes = response.maxh2cdata.get().min(PDU_DATA_MAX_BYTES);
    if h2c_data_max_bytes < MAXH2CDATA_MIN_BYTES {
        return at(offset::LIMIT);
    }
    let framing = Framing {
        header_digest: got.header(),
        data_digest: got.data(),
        alignment_z: response.cpda_z,
    };
    Ok(Negotiated {
        framing,
        h2c_data_max_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::digest;

    /// RFC 3720 §B.4.
    #[test]
    fn digests_match_the_published_examples() {
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(digest(&ascending), [0x4e, 0x79, 0xdd, 0x46]);
    }
}
