//! NVMe/TCP protocol data units (TCP 1.1 §3.6): headers, flags, digests, alignment, termination
//! codes.
//!
//! A PDU consists of header, header digest, padding, data and data digest. `PLEN` counts all of
//! them; `PDO` is the offset of the data.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::Sqe;
use crate::completion::Cqe;
use crate::{U16, U32};

/// Default port of a discovery controller (TCP 1.1 §3.1; IANA).
pub const DISCOVERY_PORT: u16 = 8009;

/// Default port of an I/O controller (TCP 1.1 §3.1; IANA).
pub const IO_PORT: u16 = 4420;

/// Size of a header or data digest, CRC32C (TCP 1.1 §3.3.1.1).
pub const DIGEST_BYTES: u32 = 4;

/// Largest header of any PDU: ICReq and ICResp.
pub const HEADER_MAX_BYTES: usize = 128;

/// The largest HPDA and CPDA: alignment to 128 bytes (TCP 1.1 §3.6.2.2).
pub const DATA_ALIGNMENT_MAX_Z: u8 = 31;

/// The minimum MAXH2CDATA of a controller (TCP 1.1 §3.6.2.3).
pub const MAXH2CDATA_MIN_BYTES: u32 = 4096;

/// In-capsule data that an admin queue always supports (TCP 1.1 §3.3.1: 8,192 bytes).
pub const ADMIN_IN_CAPSULE_DATA_BYTES: u32 = 8192;

/// Bytes of the offending PDU's header that a termination request may carry (TCP 1.1 §3.6.2.4).
pub const TERM_DATA_MAX_BYTES: usize = 128;

/// Largest termination request, bytes.
pub const TERM_PDU_MAX_BYTES: usize = size_of::<TermReq>() + TERM_DATA_MAX_BYTES;

/// The most data of one PDU for which header, padding and digests still fit in PLEN.
pub const PDU_DATA_MAX_BYTES: u32 = u32::MAX - 1024;

open_enum! {
    /// PDU-Type (TCP 1.1 §3.6.2.1).
    pub struct PduType(u8) {
        IC_REQ = 0x00, "ICReq";
        IC_RESP = 0x01, "ICResp";
        H2C_TERM_REQ = 0x02, "H2CTermReq";
        C2H_TERM_REQ = 0x03, "C2HTermReq";
        CAPSULE_CMD = 0x04, "CapsuleCmd";
        CAPSULE_RESP = 0x05, "CapsuleResp";
        H2C_DATA = 0x06, "H2CData";
        C2H_DATA = 0x07, "C2HData";
        R2T = 0x09, "R2T";
    }
}

impl PduType {
    /// The HLEN of the type, bytes; `None` for an unknown type.
    pub const fn header_bytes(self) -> Option<u8> {
        Some(match self {
            Self::IC_REQ => size_of::<IcReq>() as u8,
            Self::IC_RESP => size_of::<IcResp>() as u8,
            Self::H2C_TERM_REQ | Self::C2H_TERM_REQ => size_of::<TermReq>() as u8,
            Self::CAPSULE_CMD => size_of::<CapsuleCmd>() as u8,
            Self::CAPSULE_RESP => size_of::<CapsuleResp>() as u8,
            Self::H2C_DATA => size_of::<H2cData>() as u8,
            Self::C2H_DATA => size_of::<C2hData>() as u8,
            Self::R2T => size_of::<R2t>() as u8,
            _ => return None,
        })
    }

    /// Whether a host sends the type.
    pub const fn is_from_host(self) -> bool {
        matches!(
            self,
            Self::IC_REQ | Self::H2C_TERM_REQ | Self::CAPSULE_CMD | Self::H2C_DATA
        )
    }

    /// Whether the type may carry data (not counting a termination request's copy of a header).
    pub const fn may_have_data(self) -> bool {
        matches!(self, Self::CAPSULE_CMD | Self::H2C_DATA | Self::C2H_DATA)
    }

    /// Whether the type must carry data.
    pub const fn must_have_data(self) -> bool {
        matches!(self, Self::H2C_DATA | Self::C2H_DATA)
    }

    /// Whether the type ends the connection.
    pub const fn is_termination(self) -> bool {
        matches!(self, Self::H2C_TERM_REQ | Self::C2H_TERM_REQ)
    }

    /// Whether a negotiated header digest covers the type (TCP 1.1 §3.3.1.1: all but initialisation
    /// and termination).
    pub const fn may_have_digest(self) -> bool {
        matches!(
            self,
            Self::CAPSULE_CMD | Self::CAPSULE_RESP | Self::H2C_DATA | Self::C2H_DATA | Self::R2T
        )
    }

    /// The flags that are valid for the type (TCP 1.1 §3.6.2).
    pub const fn valid_flags(self) -> PduFlags {
        let none = PduFlags::new();
        match self {
            Self::CAPSULE_CMD => none.with_hdgstf(true).with_ddgstf(true),
            Self::CAPSULE_RESP | Self::R2T => none.with_hdgstf(true),
            Self::H2C_DATA => none.with_hdgstf(true).with_ddgstf(true).with_last_pdu(true),
            Self::C2H_DATA => none
                .with_hdgstf(true)
                .with_ddgstf(true)
                .with_last_pdu(true)
                .with_success(true),
            _ => none,
        }
    }
}

/// FLAGS of a common header (TCP 1.1 §3.6.2); which are valid depends on the type.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct PduFlags {
    /// HDGSTF: a header digest follows the header.
    pub hdgstf: bool,
    /// DDGSTF: a data digest follows the data.
    pub ddgstf: bool,
    /// LAST_PDU: the last data PDU of the command (C2HData) or of the R2T (H2CData).
    pub last_pdu: bool,
    /// SUCCESS (C2HData): the command succeeded and no response capsule follows.
    pub success: bool,
    #[bits(4)]
    __: u8,
}
const _: () = assert!(size_of::<PduFlags>() == 1);

impl PduFlags {
    /// Header digest follows.
    pub const HDGSTF: Self = Self::new().with_hdgstf(true);
    /// Data digest follows.
    pub const DDGSTF: Self = Self::new().with_ddgstf(true);
    /// Last data PDU.
    pub const LAST_PDU: Self = Self::new().with_last_pdu(true);
    /// Success without a response capsule.
    pub const SUCCESS: Self = Self::new().with_success(true);

    /// Whether every flag of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.into_bits() & other.into_bits() == other.into_bits()
    }

    /// The union of both sets of flags.
    pub const fn union(self, other: Self) -> Self {
        Self::from_bits(self.into_bits() | other.into_bits())
    }
}

/// The negotiated options of a connection that determine the layout of its PDUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// Header digests are enabled.
    pub header_digest: bool,
    /// Data digests are enabled.
    pub data_digest: bool,
    /// The receiver's data alignment in dwords, zero-based (HPDA or CPDA).
    pub alignment_z: u8,
}

impl Framing {
    /// The receiver's data alignment, bytes.
    pub const fn alignment_bytes(self) -> u32 {
        (self.alignment_z as u32 + 1) * 4
    }

    /// The framing for a receiver that needs only dword alignment (HPDA or CPDA of zero).
    #[must_use]
    pub const fn dword_aligned(self) -> Self {
        Self {
            alignment_z: 0,
            ..self
        }
    }

    const fn header_digest_bytes(self) -> u32 {
        if self.header_digest { DIGEST_BYTES } else { 0 }
    }

    const fn data_digest_bytes(self) -> u32 {
        if self.data_digest { DIGEST_BYTES } else { 0 }
    }

    /// Offset of the data after a header of `header_bytes` (PDO), aligned for the receiver (TCP 1.1
    /// §3.3).
    ///
    /// Panics if `alignment_z` exceeds [`DATA_ALIGNMENT_MAX_Z`]; check a peer's value before.
    #[inline]
    pub const fn data_offset(self, header_bytes: u8) -> u8 {
        assert!(self.alignment_z <= DATA_ALIGNMENT_MAX_Z);
        let end = header_bytes as u32 + self.header_digest_bytes();
        let offset = end.next_multiple_of(self.alignment_bytes());
        assert!(offset <= u8::MAX as u32);
        offset as u8
    }

    /// The common header of a PDU that may carry digests, with `data_bytes` of data (0: no data, no
    /// data digest).
    ///
    /// Panics if `data_bytes` exceeds [`PDU_DATA_MAX_BYTES`]: the sender chooses the length.
    #[inline]
    pub const fn header(
        self,
        pdu_type: PduType,
        header_bytes: u8,
        data_bytes: u32,
    ) -> CommonHeader {
        assert!(data_bytes <= PDU_DATA_MAX_BYTES);
        let flags = PduFlags::new().with_hdgstf(self.header_digest);
        let (flags, pdo, plen) = if data_bytes == 0 {
            (flags, 0, header_bytes as u32 + self.header_digest_bytes())
        } else {
            let pdo = self.data_offset(header_bytes);
            let plen = pdo as u32 + data_bytes + self.data_digest_bytes();
            (flags.with_ddgstf(self.data_digest), pdo, plen)
        };
        CommonHeader {
            pdu_type,
            flags,
            hlen: header_bytes,
            pdo,
            plen: U32::new(plen),
        }
    }
}

/// The first eight bytes of every PDU (TCP 1.1 §3.6.2.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CommonHeader {
    /// PDU-Type.
    pub pdu_type: PduType,
    /// FLAGS.
    pub flags: PduFlags,
    /// Header Length, bytes, without the header digest.
    pub hlen: u8,
    /// PDU Data Offset, bytes from the start of the PDU; 0 without data.
    pub pdo: u8,
    /// PDU Length, bytes, including digests and padding.
    pub plen: U32,
}
const _: () = assert!(size_of::<CommonHeader>() == 8);

impl CommonHeader {
    const fn plain(pdu_type: PduType, header_bytes: usize) -> Self {
        Self {
            pdu_type,
            flags: PduFlags::new(),
            hlen: header_bytes as u8,
            pdo: 0,
            plen: U32::new(header_bytes as u32),
        }
    }

    /// The layout of the PDU, for a receiver that has negotiated `framing`, with its own data
    /// alignment.
    ///
    /// The receiver must check itself whether the PDU is expected, how much data is acceptable, and
    /// whether DATAL agrees. Reserved flags are ignored.
    ///
    /// # Errors
    /// The first field that contradicts the type, the framing or the lengths (TCP 1.1 §3.6.2).
    #[inline]
    pub const fn layout(&self, framing: Framing) -> Result<PduLayout, HeaderError> {
        let kind = self.pdu_type;
        let Some(expected) = kind.header_bytes() else {
            return Err(HeaderError::PduType);
        };
        if self.hlen != expected {
            return Err(HeaderError::HeaderLength);
        }
        let plen = self.plen.get();
        let base_layout = PduLayout {
            header_digest: false,
            header_bytes: expected as u32,
            data_bytes: 0,
            data_digest: false,
        };
        if !kind.may_have_digest() {
            // The receiver of a termination request does not need the header that it contains.
            let is_whole = plen == base_layout.header_bytes || kind.is_termination();
            return if is_whole {
                Ok(base_layout)
            } else {
                Err(HeaderError::PduLength)
            };
        }
        if self.flags.hdgstf() != framing.header_digest {
            return Err(HeaderError::Flags);
        }
        let base_layout = PduLayout {
            header_digest: framing.header_digest,
            header_bytes: base_layout.header_bytes + framing.header_digest_bytes(),
            ..base_layout
        };
        if !kind.must_have_data() && plen == base_layout.header_bytes {
            return Ok(base_layout);
        }
        if !kind.may_have_data() {
            return Err(HeaderError::PduLength);
        }
        if self.flags.ddgstf() != framing.data_digest {
            return Err(HeaderError::Flags);
        }
        let offset = self.pdo as u32;
        if offset < base_layout.header_bytes || !offset.is_multiple_of(framing.alignment_bytes()) {
            return Err(HeaderError::DataOffset);
        }
        match plen.checked_sub(offset + framing.data_digest_bytes()) {
            None | Some(0) => Err(HeaderError::PduLength),
            Some(data_bytes) => Ok(PduLayout {
                header_bytes: offset,
                data_bytes,
                data_digest: framing.data_digest,
                ..base_layout
            }),
        }
    }
}

/// Layout of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduLayout {
    /// A header digest follows the header.
    pub header_digest: bool,
    /// Bytes of header, header digest and padding: offset of the data, or end of the PDU.
    pub header_bytes: u32,
    /// Bytes of data; 0 for none.
    pub data_bytes: u32,
    /// A data digest follows the data.
    pub data_digest: bool,
}

/// A field of a common header that violates a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// PDU-Type is unknown.
    PduType,
    /// FLAGS: digests other than negotiated.
    Flags,
    /// HLEN differs from that of the type.
    HeaderLength,
    /// PDO is inside the header, or violates the receiver's alignment.
    DataOffset,
    /// PLEN differs from the sum of header, data and digests.
    PduLength,
}

impl HeaderError {
    /// The offset of the field for Fatal Error Information (TCP 1.1 §3.6.2.4).
    pub const fn offset(self) -> u32 {
        match self {
            Self::PduType => offset::PDU_TYPE,
            Self::Flags => offset::FLAGS,
            Self::HeaderLength => offset::HLEN,
            Self::DataOffset => offset::PDO,
            Self::PduLength => offset::PLEN,
        }
    }
}

/// Byte offsets of header fields, for the Fatal Error Information of a termination request (TCP 1.1
/// §3.6.2.4).
pub mod offset {
    /// Common header: PDU-Type.
    pub const PDU_TYPE: u32 = 0;
    /// Common header: FLAGS.
    pub const FLAGS: u32 = 1;
    /// Common header: HLEN.
    pub const HLEN: u32 = 2;
    /// Common header: PDO.
    pub const PDO: u32 = 3;
    /// Common header: PLEN.
    pub const PLEN: u32 = 4;
    /// ICReq, ICResp: PFV.
    pub const PFV: u32 = 8;
    /// ICReq: HPDA; ICResp: CPDA.
    pub const PDA: u32 = 10;
    /// ICReq, ICResp: DGST.
    pub const DGST: u32 = 11;
    /// ICReq: MAXR2T; ICResp: MAXH2CDATA.
    pub const LIMIT: u32 = 12;
    /// CapsuleCmd: the command's SGL1.
    pub const SGL1: u32 = 32;
    /// Data PDUs, R2T: CCCID.
    pub const CCCID: u32 = 8;
    /// H2CData, R2T: TTAG.
    pub const TTAG: u32 = 10;
    /// Data PDUs: DATAO; R2T: R2TO.
    pub const DATAO: u32 = 12;
    /// Data PDUs: DATAL; R2T: R2TL.
    pub const DATAL: u32 = 16;
}

/// Requested or enabled digests (TCP 1.1 §3.6.2.2, DGST).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct DigestFlags {
    /// Header digest.
    pub header: bool,
    /// Data digest.
    pub data: bool,
    /// Reserved; a peer that sets it requests an unknown feature.
    #[bits(6)]
    pub reserved: u8,
}
const _: () = assert!(size_of::<DigestFlags>() == 1);

/// PDU Format Version of this protocol (TCP 1.1 §3.6.2.2, PFV).
pub const PFV_1_0: u16 = 0;

/// Initialize Connection Request, 128 bytes (TCP 1.1 §3.6.2.2).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IcReq {
    /// Common header.
    pub ch: CommonHeader,
    /// PDU Format Version.
    pub pfv: U16,
    /// Host PDU Data Alignment in dwords, zero-based, at most [`DATA_ALIGNMENT_MAX_Z`].
    pub hpda_z: u8,
    /// Digests that the host requests.
    pub dgst: DigestFlags,
    /// Maximum Number of Outstanding R2Ts per command, zero-based.
    pub maxr2t_z: U32,
    reserved16: [u8; 112],
}
const _: () = assert!(size_of::<IcReq>() == 128);

impl IcReq {
    /// Creates a request.
    pub const fn new(hpda_z: u8, dgst: DigestFlags, maxr2t_z: u32) -> Self {
        Self {
            ch: CommonHeader::plain(PduType::IC_REQ, size_of::<Self>()),
            pfv: U16::new(PFV_1_0),
            hpda_z,
            dgst,
            maxr2t_z: U32::new(maxr2t_z),
            reserved16: [0; 112],
        }
    }

    /// R2Ts that may be outstanding per command, 1 to 2^32.
    pub const fn maxr2t(&self) -> u64 {
        self.maxr2t_z.get() as u64 + 1
    }
}

/// Initialize Connection Response, 128 bytes (TCP 1.1 §3.6.2.3).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IcResp {
    /// Common header.
    pub ch: CommonHeader,
    /// PDU Format Version.
    pub pfv: U16,
    /// Controller PDU Data Alignment in dwords, zero-based, at most [`DATA_ALIGNMENT_MAX_Z`].
    pub cpda_z: u8,
    /// Enabled digests.
    pub dgst: DigestFlags,
    /// Maximum Host to Controller Data length of one H2CData PDU, bytes (not zero-based).
    pub maxh2cdata: U32,
    reserved16: [u8; 112],
}
const _: () = assert!(size_of::<IcResp>() == 128);

impl IcResp {
    /// Creates a response.
    pub const fn new(cpda_z: u8, dgst: DigestFlags, maxh2cdata_bytes: u32) -> Self {
        Self {
            ch: CommonHeader::plain(PduType::IC_RESP, size_of::<Self>()),
            pfv: U16::new(PFV_1_0),
            cpda_z,
            dgst,
            maxh2cdata: U32::new(maxh2cdata_bytes),
            reserved16: [0; 112],
        }
    }
}

open_enum! {
    /// Fatal Error Status of a termination request (TCP 1.1 §3.6.2.4, FES).
    pub struct FatalError(u16) {
        INVALID_HEADER_FIELD = 0x01, "invalid PDU header field";
        SEQUENCE_ERROR = 0x02, "PDU sequence error";
        HEADER_DIGEST_ERROR = 0x03, "header digest error";
        DATA_OUT_OF_RANGE = 0x04, "data transfer out of range";
        DATA_LIMIT_EXCEEDED = 0x05, "data transfer limit exceeded or R2T limit exceeded";
        UNSUPPORTED_PARAMETER = 0x06, "unsupported parameter";
    }
}

/// Terminate Connection Request in either direction, 24 bytes (TCP 1.1 §3.6.2.4, §3.6.2.5).
///
/// Up to [`TERM_DATA_MAX_BYTES`] of the offending PDU's header follow it directly.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct TermReq {
    /// Common header.
    pub ch: CommonHeader,
    /// Fatal Error Status.
    pub fes: U16,
    /// Fatal Error Information: a field's offset (01h, 06h), the received digest (03h), else 0.
    pub fei: U32,
    reserved14: [u8; 10],
}
const _: () = assert!(size_of::<TermReq>() == 24);

impl TermReq {
    /// A controller's request, followed by `data_bytes` (limited to the maximum) of the offending
    /// header.
    pub const fn from_controller(fes: FatalError, fei: u32, data_bytes: usize) -> Self {
        Self::new(PduType::C2H_TERM_REQ, fes, fei, data_bytes)
    }

    /// A host's request, followed by `data_bytes` (limited to the maximum) of the offending header.
    pub const fn from_host(fes: FatalError, fei: u32, data_bytes: usize) -> Self {
        Self::new(PduType::H2C_TERM_REQ, fes, fei, data_bytes)
    }

    const fn new(pdu_type: PduType, fes: FatalError, fei: u32, data_bytes: usize) -> Self {
        let data = if data_bytes > TERM_DATA_MAX_BYTES {
            TERM_DATA_MAX_BYTES
        } else {
            data_bytes
        };
        let mut ch = CommonHeader::plain(pdu_type, size_of::<Self>());
        ch.plen = U32::new((size_of::<Self>() + data) as u32);
        Self {
            ch,
            fes: U16::new(fes.0),
            fei: U32::new(fei),
            reserved14: [0; 10],
        }
    }

    /// The Fatal Error Status.
    pub const fn fatal_error(&self) -> FatalError {
        FatalError(self.fes.get())
    }
}

/// Command capsule, 72 bytes, followed by in-capsule data (TCP 1.1 §3.6.2.6).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CapsuleCmd {
    /// Common header.
    pub ch: CommonHeader,
    /// The command.
    pub sqe: Sqe,
}
const _: () = assert!(size_of::<CapsuleCmd>() == 72);

impl CapsuleCmd {
    /// Creates a capsule with `data_bytes` of in-capsule data (see [`Framing::header`] for the
    /// limit).
    pub const fn new(sqe: Sqe, data_bytes: u32, framing: Framing) -> Self {
        let ch = framing.header(PduType::CAPSULE_CMD, size_of::<Self>() as u8, data_bytes);
        Self { ch, sqe }
    }
}

/// Response capsule, 24 bytes (TCP 1.1 §3.6.2.7).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CapsuleResp {
    /// Common header.
    pub ch: CommonHeader,
    /// The completion.
    pub cqe: Cqe,
}
const _: () = assert!(size_of::<CapsuleResp>() == 24);

impl CapsuleResp {
    /// Creates a capsule.
    #[inline]
    pub const fn new(cqe: Cqe, framing: Framing) -> Self {
        Self {
            ch: framing.header(PduType::CAPSULE_RESP, size_of::<Self>() as u8, 0),
            cqe,
        }
    }
}

/// Host to controller data, 24 bytes (TCP 1.1 §3.6.2.8).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct H2cData {
    /// Common header.
    pub ch: CommonHeader,
    /// Command Capsule CID.
    pub cccid: U16,
    /// Transfer Tag of the R2T.
    pub ttag: U16,
    /// Data Offset from the start of the command's data, bytes.
    pub datao: U32,
    /// Data Length, bytes.
    pub datal: U32,
    reserved20: [u8; 4],
}
const _: () = assert!(size_of::<H2cData>() == 24);

impl H2cData {
    /// A part of the data that an R2T requested (see [`Framing::header`] for the limit of `datal`).
    pub const fn new(
        cccid: u16,
        ttag: u16,
        datao: u32,
        datal: u32,
        last: bool,
        framing: Framing,
    ) -> Self {
        let mut ch = framing.header(PduType::H2C_DATA, size_of::<Self>() as u8, datal);
        ch.flags = ch.flags.with_last_pdu(last);
        Self {
            ch,
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            datao: U32::new(datao),
            datal: U32::new(datal),
            reserved20: [0; 4],
        }
    }
}

/// Controller to host data, 24 bytes (TCP 1.1 §3.6.2.9).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct C2hData {
    /// Common header.
    pub ch: CommonHeader,
    /// Command Capsule CID.
    pub cccid: U16,
    reserved10: [u8; 2],
    /// Data Offset from the start of the command's data, bytes.
    pub datao: U32,
    /// Data Length, bytes.
    pub datal: U32,
    reserved20: [u8; 4],
}
const _: () = assert!(size_of::<C2hData>() == 24);

/// How a C2HData PDU ends the data of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum C2hEnd {
    /// More data PDUs follow.
    More,
    /// The last data PDU; a response capsule follows.
    Last,
    /// The last data PDU, and the command succeeded: no response capsule follows (TCP 1.1
    /// §3.3.2.1).
    Success,
}

impl C2hData {
    /// A part of a command's data (see [`Framing::header`] for the limit of `datal`).
    #[inline]
    pub const fn new(cccid: u16, datao: u32, datal: u32, end: C2hEnd, framing: Framing) -> Self {
        let mut ch = framing.header(PduType::C2H_DATA, size_of::<Self>() as u8, datal);
        ch.flags = ch
            .flags
            .with_last_pdu(matches!(end, C2hEnd::Last | C2hEnd::Success))
            .with_success(matches!(end, C2hEnd::Success));
        Self {
            ch,
            cccid: U16::new(cccid),
            reserved10: [0; 2],
            datao: U32::new(datao),
            datal: U32::new(datal),
            reserved20: [0; 4],
        }
    }

    /// The same PDU with `datal` bytes of another command, so that the part that is the same for
    /// all data PDUs of a connection is computed once. `self` has data, and `datal` is 1 to
    /// [`PDU_DATA_MAX_BYTES`].
    #[inline]
    #[must_use]
    pub const fn for_command(mut self, cccid: u16, datal: u32) -> Self {
        assert!(datal > 0 && datal <= PDU_DATA_MAX_BYTES);
        let around = self.ch.plen.get() - self.datal.get();
        self.ch.plen = U32::new(around + datal);
        self.cccid = U16::new(cccid);
        self.datal = U32::new(datal);
        self
    }
}

/// Ready to Transfer, 24 bytes (TCP 1.1 §3.6.2.10).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct R2t {
    /// Common header.
    pub ch: CommonHeader,
    /// Command Capsule CID.
    pub cccid: U16,
    /// Transfer Tag that the data PDUs return.
    pub ttag: U16,
    /// Requested Data Offset from the start of the command's data, bytes.
    pub r2to: U32,
    /// Requested Data Length, bytes.
    pub r2tl: U32,
    reserved20: [u8; 4],
}
const _: () = assert!(size_of::<R2t>() == 24);

impl R2t {
    /// A request for a part of a command's data.
    pub const fn new(cccid: u16, ttag: u16, r2to: u32, r2tl: u32, framing: Framing) -> Self {
        Self {
            ch: framing.header(PduType::R2T, size_of::<Self>() as u8, 0),
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            r2to: U32::new(r2to),
            r2tl: U32::new(r2tl),
            reserved20: [0; 4],
        }
    }
}
