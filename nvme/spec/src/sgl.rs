//! Scatter gather list descriptors (Base 2.1 §4.3.2).

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::{U32, U64};

open_enum! {
    /// SGL Descriptor Type (Base 2.1 §4.3.2).
    pub struct SglType(u8) {
        DATA_BLOCK = 0x0, "data block";
        BIT_BUCKET = 0x1, "bit bucket";
        SEGMENT = 0x2, "segment";
        LAST_SEGMENT = 0x3, "last segment";
        KEYED_DATA_BLOCK = 0x4, "keyed data block";
        TRANSPORT_DATA_BLOCK = 0x5, "transport data block";
        VENDOR = 0xf, "vendor specific";
    }
}

open_enum! {
    /// SGL Descriptor Sub Type (Base 2.1 §4.3.2); Ah to Fh are transport specific.
    pub struct SglSubtype(u8) {
        ADDRESS = 0x0, "address";
        OFFSET = 0x1, "offset";
        TRANSPORT_A = 0xa, "transport specific Ah";
        INVALIDATE_KEY = 0xf, "transport specific Fh (RDMA: invalidate key)";
    }
}

/// Byte 15 of a descriptor.
#[bitfield(u8)]
#[derive(PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct SglIdentifier {
    /// Descriptor Sub Type.
    #[bits(4)]
    pub subtype: SglSubtype,
    /// Descriptor Type.
    #[bits(4)]
    pub kind: SglType,
}
const _: () = assert!(size_of::<SglIdentifier>() == 1);

/// A descriptor, 16 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct SglDescriptor {
    specific: [u8; 15],
    identifier: SglIdentifier,
}
const _: () = assert!(size_of::<SglDescriptor>() == 16);

/// Layout of data block, bit bucket, segment and transport descriptors (Base 2.1 §4.3.2).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Plain {
    address: U64,
    length: U32,
    reserved: [u8; 3],
    identifier: SglIdentifier,
}
const _: () = assert!(size_of::<Plain>() == 16);

/// Layout of the keyed data block (Base 2.1 §4.3.2): the length has three bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Keyed {
    address: U64,
    rest: KeyedRest,
}
const _: () = assert!(size_of::<Keyed>() == 16);

#[bitfield(u64, repr = U64, from = U64::new, into = U64::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct KeyedRest {
    #[bits(24)]
    length: u32,
    #[bits(32)]
    key: u32,
    #[bits(4)]
    subtype: SglSubtype,
    #[bits(4)]
    kind: SglType,
}

/// The content of a descriptor. Lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// A data block at a memory address.
    DataBlock {
        /// Address in the host's memory.
        address: u64,
        /// Length.
        length: u32,
    },
    /// In-capsule data: a data block at an offset from ICDOFF (Base 2.1 §4.3.2, sub type 1h).
    Offset {
        /// Offset from the start of the in-capsule data area.
        offset: u64,
        /// Length.
        length: u32,
    },
    /// Read data to be discarded.
    BitBucket {
        /// Length.
        length: u32,
    },
    /// More descriptors in another segment, followed by further segments.
    Segment {
        /// Address, or offset in the capsule if `in_capsule`.
        address: u64,
        /// Length of that segment.
        length: u32,
        /// Sub type 1h: the segment is in the capsule.
        in_capsule: bool,
    },
    /// The last segment of descriptors.
    LastSegment {
        /// Address, or offset in the capsule if `in_capsule`.
        address: u64,
        /// Length of that segment.
        length: u32,
        /// Sub type 1h: the segment is in the capsule.
        in_capsule: bool,
    },
    /// A remote memory region with its key (RDMA 1.1 §3.3).
    Keyed {
        /// Address in the host's registered memory.
        address: u64,
        /// Length, at most [`KEYED_LENGTH_MAX_BYTES`].
        length: u32,
        /// Key (RDMA: R_Key, STag).
        key: u32,
        /// The host requests that the key be invalidated with the response (sub type Fh).
        invalidate: bool,
    },
    /// Data that the transport transfers by its own means (TCP: data PDUs, sub type Ah).
    Transport {
        /// Length.
        length: u32,
    },
    /// An unsupported type or sub type.
    Unknown(SglIdentifier),
}

/// The largest length of a keyed data block: the field has 24 bits.
pub const KEYED_LENGTH_MAX_BYTES: u32 = (1 << 24) - 1;

impl SglDescriptor {
    /// Type and sub type.
    pub const fn identifier(&self) -> SglIdentifier {
        self.identifier
    }

    /// The content of the descriptor; defined for all bytes.
    #[inline(always)]
    pub const fn decode(&self) -> Sgl {
        let plain: Plain = transmute!(*self);
        let keyed: Keyed = transmute!(*self);
        let (address, length) = (plain.address.get(), plain.length.get());
        match (self.identifier.kind(), self.identifier.subtype()) {
            (SglType::DATA_BLOCK, SglSubtype::ADDRESS) => Sgl::DataBlock { address, length },
            (SglType::DATA_BLOCK, SglSubtype::OFFSET) => Sgl::Offset {
                offset: address,
                length,
            },
            (SglType::BIT_BUCKET, SglSubtype::ADDRESS) => Sgl::BitBucket { length },
            (SglType::SEGMENT, subtype @ (SglSubtype::ADDRESS | SglSubtype::OFFSET)) => {
                Sgl::Segment {
                    address,
                    length,
                    in_capsule: subtype.0 == SglSubtype::OFFSET.0,
                }
            }
            (SglType::LAST_SEGMENT, subtype @ (SglSubtype::ADDRESS | SglSubtype::OFFSET)) => {
                Sgl::LastSegment {
                    address,
                    length,
                    in_capsule: subtype.0 == SglSubtype::OFFSET.0,
                }
            }
            (
                SglType::KEYED_DATA_BLOCK,
                subtype @ (SglSubtype::ADDRESS | SglSubtype::INVALIDATE_KEY),
            ) => Sgl::Keyed {
                address,
                length: keyed.rest.length(),
                key: keyed.rest.key(),
                invalidate: subtype.0 == SglSubtype::INVALIDATE_KEY.0,
            },
            (SglType::TRANSPORT_DATA_BLOCK, SglSubtype::TRANSPORT_A) => Sgl::Transport { length },
            _ => Sgl::Unknown(self.identifier),
        }
    }

    const fn plain(kind: SglType, subtype: SglSubtype, address: u64, length: u32) -> Self {
        transmute!(Plain {
            address: U64::new(address),
            length: U32::new(length),
            reserved: [0; 3],
            identifier: SglIdentifier::new().with_kind(kind).with_subtype(subtype),
        })
    }

    /// A data block at a memory address.
    pub const fn data_block(address: u64, length: u32) -> Self {
        Self::plain(SglType::DATA_BLOCK, SglSubtype::ADDRESS, address, length)
    }

    /// In-capsule data at `offset` from the in-capsule data area.
    pub const fn in_capsule(offset: u64, length: u32) -> Self {
        Self::plain(SglType::DATA_BLOCK, SglSubtype::OFFSET, offset, length)
    }

    /// A bit bucket.
    pub const fn bit_bucket(length: u32) -> Self {
        Self::plain(SglType::BIT_BUCKET, SglSubtype::ADDRESS, 0, length)
    }

    /// A segment of further descriptors in memory.
    pub const fn segment(address: u64, length: u32) -> Self {
        Self::plain(SglType::SEGMENT, SglSubtype::ADDRESS, address, length)
    }

    /// The last segment of descriptors in memory.
    pub const fn last_segment(address: u64, length: u32) -> Self {
        Self::plain(SglType::LAST_SEGMENT, SglSubtype::ADDRESS, address, length)
    }

    /// The last segment of descriptors, in the capsule.
    pub const fn last_segment_in_capsule(offset: u64, length: u32) -> Self {
        Self::plain(SglType::LAST_SEGMENT, SglSubtype::OFFSET, offset, length)
    }

    /// A transport data block (TCP 1.1 §3.3.2: describes data transferred by data PDUs).
    pub const fn transport(length: u32) -> Self {
        Self::plain(
            SglType::TRANSPORT_DATA_BLOCK,
            SglSubtype::TRANSPORT_A,
            0,
            length,
        )
    }

    /// A keyed data block; `None` if the length exceeds [`KEYED_LENGTH_MAX_BYTES`].
    pub const fn keyed(address: u64, length: u32, key: u32, invalidate: bool) -> Option<Self> {
        if length > KEYED_LENGTH_MAX_BYTES {
            return None;
        }
        let subtype = if invalidate {
            SglSubtype::INVALIDATE_KEY
        } else {
            SglSubtype::ADDRESS
        };
        Some(transmute!(Keyed {
            address: U64::new(address),
            rest: KeyedRest::new()
                .with_length(length)
                .with_key(key)
                .with_subtype(subtype)
                .with_kind(SglType::KEYED_DATA_BLOCK),
        }))
    }
}
