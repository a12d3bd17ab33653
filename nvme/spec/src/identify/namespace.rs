//! Identify Namespace: CNS 00h (NVM 1.1 §4.1.5.1), the NVM command set's part CNS 05h (NVM 1.1
//! §4.1.5.3) and the part that all command sets share, CNS 08h (Base 2.1 §5.1.13.2).

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{IDENTIFY_BYTES, zero_default};
use crate::{U16, U32, U64, U128};

/// Namespace Features (NSFEAT).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nsfeat {
    /// Thin Provisioning.
    pub thinp: bool,
    /// NAWUN, NAWUPF and NACWU are valid.
    pub nsabp: bool,
    /// Deallocated or Unwritten Logical Block error.
    pub dae: bool,
    /// NGUID and EUI64 are never reused.
    pub uidreuse: bool,
    /// Which preferred write and deallocate fields are valid: 01b NPWG, NPWA, NPDG, NPDA, NOWS; 10b
    /// NPDGL and NPDAL instead of NPDG and NPDA; 11b all.
    #[bits(2)]
    pub optperf: u8,
    /// Multiple Atomicity Mode.
    pub mam: bool,
    /// Preferred read fields are valid.
    pub optrperf: bool,
}
const _: () = assert!(size_of::<Nsfeat>() == 1);

/// Formatted LBA Size (FLBAS).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Flbas {
    /// Format Index, lower bits.
    #[bits(4)]
    pub index_low: u8,
    /// Metadata is transferred at the end of the block (extended LBA).
    pub metadata_extended: bool,
    /// Format Index, upper bits.
    #[bits(2)]
    pub index_high: u8,
    __: bool,
}
const _: () = assert!(size_of::<Flbas>() == 1);

impl Flbas {
    /// Index of the format in use, 0 to 63.
    pub const fn index(&self) -> usize {
        (self.index_high() as usize) << Self::INDEX_LOW_BITS | self.index_low() as usize
    }
}

/// Metadata Capabilities (MC).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Mc {
    /// As part of an extended LBA.
    pub extended: bool,
    /// In a separate buffer.
    pub separate: bool,
    #[bits(6)]
    __: u8,
}
const _: () = assert!(size_of::<Mc>() == 1);

/// End-to-end Data Protection Capabilities (DPC).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Dpc {
    /// Type 1.
    pub type1: bool,
    /// Type 2.
    pub type2: bool,
    /// Type 3.
    pub type3: bool,
    /// In the first bytes of metadata.
    pub first: bool,
    /// In the last bytes of metadata.
    pub last: bool,
    #[bits(3)]
    __: u8,
}
const _: () = assert!(size_of::<Dpc>() == 1);

/// End-to-end Data Protection Type Settings (DPS).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Dps {
    /// Protection information type; 0 if disabled.
    #[bits(3)]
    pub protection_type: u8,
    /// In the first bytes of metadata.
    pub first: bool,
    #[bits(4)]
    __: u8,
}
const _: () = assert!(size_of::<Dps>() == 1);

/// Namespace Multi-path I/O and Namespace Sharing Capabilities (NMIC).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nmic {
    /// May be attached to two or more controllers.
    pub shared: bool,
    /// Dispersed namespace.
    pub dispersed: bool,
    #[bits(6)]
    __: u8,
}
const _: () = assert!(size_of::<Nmic>() == 1);

/// Reservation Capabilities (RESCAP).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Rescap {
    /// Persist Through Power Loss.
    pub ptpl: bool,
    /// Write Exclusive.
    pub write_exclusive: bool,
    /// Exclusive Access.
    pub exclusive_access: bool,
    /// Write Exclusive, Registrants Only.
    pub write_exclusive_registrants: bool,
    /// Exclusive Access, Registrants Only.
    pub exclusive_access_registrants: bool,
    /// Write Exclusive, All Registrants.
    pub write_exclusive_all: bool,
    /// Exclusive Access, All Registrants.
    pub exclusive_access_all: bool,
    /// Ignore Existing Key as defined in NVM Express 1.3 and later.
    pub iekey: bool,
}
const _: () = assert!(size_of::<Rescap>() == 1);

/// Format Progress Indicator (FPI).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Fpi {
    /// Percentage that remains to be formatted.
    #[bits(7)]
    pub remaining_percent: u8,
    /// The indicator is supported.
    pub supported: bool,
}
const _: () = assert!(size_of::<Fpi>() == 1);

open_enum! {
    /// The value read from a deallocated block (DLFEAT bits 2:0).
    pub struct DeallocatedRead(u8) {
        NOT_REPORTED = 0, "not reported";
        ZEROES = 1, "all bytes 00h";
        ONES = 2, "all bytes FFh";
    }
}

/// Deallocate Logical Block Features (DLFEAT).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Dlfeat {
    /// The value read from a deallocated block.
    #[bits(3)]
    pub read: DeallocatedRead,
    /// Write Zeroes may deallocate (DEAC).
    pub write_zeroes_deallocate: bool,
    /// The guard of a deallocated block is a CRC of its data.
    pub guard_crc: bool,
    #[bits(3)]
    __: u8,
}
const _: () = assert!(size_of::<Dlfeat>() == 1);

/// Namespace Attributes (NSATTR).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nsattr {
    /// Currently write protected.
    pub write_protected: bool,
    #[bits(7)]
    __: u8,
}
const _: () = assert!(size_of::<Nsattr>() == 1);

/// Relative performance (RP) of an LBA format.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RelativePerformance {
    /// 0 best, 1 better, 2 good, 3 degraded.
    #[bits(2)]
    pub rp: u8,
    #[bits(6)]
    __: u8,
}
const _: () = assert!(size_of::<RelativePerformance>() == 1);

/// LBA Format, 4 bytes (NVM 1.1 §4.1.5.1).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata Size, bytes.
    pub ms: U16,
    /// LBA Data Size: 2^LBADS bytes; below 9 the format is not available.
    pub lbads: u8,
    /// Relative Performance.
    pub rp: RelativePerformance,
}
const _: () = assert!(size_of::<LbaFormat>() == 4);

impl LbaFormat {
    /// A format without metadata; `None` if the size is not a power of two of at least 512.
    pub const fn with_block_bytes(bytes: u32) -> Option<Self> {
        if bytes < 512 || !bytes.is_power_of_two() {
            return None;
        }
        Some(Self {
            ms: U16::ZERO,
            lbads: bytes.ilog2() as u8,
            rp: RelativePerformance::new(),
        })
    }

    /// Block size in bytes; `None` if the format is not available or the size is unreasonable.
    pub const fn block_bytes(&self) -> Option<u32> {
        match self.lbads {
            9..=31 => Some(1 << self.lbads),
            _ => None,
        }
    }
}

/// Number of LBA formats in the table.
pub const LBA_FORMATS: usize = 64;

/// Identify Namespace data structure, 4096 bytes, CNS 00h (NVM 1.1 §4.1.5.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Namespace Size, blocks.
    pub nsze: U64,
    /// Namespace Capacity, blocks.
    pub ncap: U64,
    /// Namespace Utilization, blocks.
    pub nuse: U64,
    /// Namespace Features.
    pub nsfeat: Nsfeat,
    /// Number of LBA Formats, zero-based.
    pub nlbaf_z: u8,
    /// Formatted LBA Size.
    pub flbas: Flbas,
    /// Metadata Capabilities.
    pub mc: Mc,
    /// Data Protection Capabilities.
    pub dpc: Dpc,
    /// Data Protection Type Settings.
    pub dps: Dps,
    /// Multi-path and sharing capabilities.
    pub nmic: Nmic,
    /// Reservation Capabilities.
    pub rescap: Rescap,
    /// Format Progress Indicator.
    pub fpi: Fpi,
    /// Deallocate Logical Block Features.
    pub dlfeat: Dlfeat,
    /// Namespace Atomic Write Unit Normal in blocks, zero-based.
    pub nawun_z: U16,
    /// Namespace Atomic Write Unit Power Fail in blocks, zero-based.
    pub nawupf_z: U16,
    /// Namespace Atomic Compare & Write Unit in blocks, zero-based.
    pub nacwu_z: U16,
    /// Namespace Atomic Boundary Size Normal in blocks, zero-based; 0 means no boundary.
    pub nabsn_z: U16,
    /// Namespace Atomic Boundary Offset, blocks.
    pub nabo: U16,
    /// Namespace Atomic Boundary Size Power Fail in blocks, zero-based; 0 means no boundary.
    pub nabspf_z: U16,
    /// Namespace Optimal I/O Boundary, blocks; 0 means no boundary.
    pub noiob: U16,
    /// NVM Capacity, bytes.
    pub nvmcap: U128,
    /// Namespace Preferred Write Granularity in blocks, zero-based.
    pub npwg_z: U16,
    /// Namespace Preferred Write Alignment in blocks, zero-based.
    pub npwa_z: U16,
    /// Namespace Preferred Deallocate Granularity in blocks, zero-based.
    pub npdg_z: U16,
    /// Namespace Preferred Deallocate Alignment in blocks, zero-based.
    pub npda_z: U16,
    /// Namespace Optimal Write Size in blocks, zero-based.
    pub nows_z: U16,
    /// Maximum Single Source Range Length, blocks.
    pub mssrl: U16,
    /// Maximum Copy Length, blocks.
    pub mcl: U32,
    /// Maximum Source Range Count, zero-based.
    pub msrc_z: u8,
    /// Key Per I/O Status.
    pub kpios: u8,
    /// Number of Unique Attribute LBA Formats.
    pub nulbaf: u8,
    reserved83: u8,
    /// Key Per I/O Data Access Alignment and Granularity, blocks.
    pub kpiodaag: U32,
    reserved88: [u8; 4],
    /// ANA Group Identifier.
    pub anagrpid: U32,
    reserved96: [u8; 3],
    /// Namespace Attributes.
    pub nsattr: Nsattr,
    /// NVM Set Identifier.
    pub nvmsetid: U16,
    /// Endurance Group Identifier.
    pub endgid: U16,
    /// Namespace Globally Unique Identifier, big-endian.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier, big-endian.
    pub eui64: [u8; 8],
    /// LBA formats.
    pub lbaf: [LbaFormat; LBA_FORMATS],
    /// Vendor specific.
    pub vs: [u8; 3712],
}
const _: () = assert!(size_of::<IdentifyNamespace>() == IDENTIFY_BYTES);

impl IdentifyNamespace {
    /// Number of LBA formats in use, 1 to 64 (a peer's larger count is limited).
    pub fn formats(&self) -> &[LbaFormat] {
        let count = (usize::from(self.nlbaf_z) + 1).min(LBA_FORMATS);
        self.lbaf.get(..count).unwrap_or_default()
    }

    /// The format in use; `None` if FLBAS exceeds the formats.
    pub fn format(&self) -> Option<&LbaFormat> {
        self.formats().get(self.flbas.index())
    }

    /// Block size in bytes; `None` if the page has no usable format.
    pub fn block_bytes(&self) -> Option<u32> {
        self.format()?.block_bytes()
    }
}

/// Extended LBA Format (ELBAF), 4 bytes (NVM 1.1 §4.1.5.3).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct ExtendedLbaFormat {
    /// Storage Tag Size, bits.
    #[bits(7)]
    pub sts: u8,
    /// Protection Information Format: 0 16-bit, 1 32-bit, 2 64-bit guard.
    #[bits(2)]
    pub pif: u8,
    /// Qualified Protection Information Format.
    #[bits(4)]
    pub qpif: u8,
    #[bits(19)]
    __: u32,
}
const _: () = assert!(size_of::<ExtendedLbaFormat>() == 4);

/// NVM command set specific Identify Namespace, 4096 bytes, CNS 05h CSI 00h (NVM 1.1 §4.1.5.3).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NvmIdentifyNamespace {
    /// Logical Block Storage Tag Mask.
    pub lbstm: U64,
    /// Protection Information Capabilities.
    pub pic: u8,
    /// Protection Information Format Attribute.
    pub pifa: u8,
    reserved10: [u8; 2],
    /// Extended LBA formats, by format index.
    pub elbaf: [ExtendedLbaFormat; LBA_FORMATS],
    /// Namespace Preferred Deallocate Granularity Large, blocks.
    pub npdgl: U32,
    /// Namespace Preferred Read Granularity, blocks.
    pub nprg: U32,
    /// Namespace Preferred Read Alignment, blocks.
    pub npra: U32,
    /// Namespace Optimal Read Size, blocks.
    pub nors: U32,
    /// Namespace Preferred Deallocate Alignment Large, blocks.
    pub npdal: U32,
    /// LBA Format Placement Shard Size.
    pub lbapss: U32,
    /// Tracked LBA Allocation Granularity.
    pub tlbaag: U32,
    reserved296: [u8; 3800],
}
const _: () = assert!(size_of::<NvmIdentifyNamespace>() == IDENTIFY_BYTES);

/// Namespace Features of the command set independent structure (Base 2.1 §5.1.13.2).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct IndependentNsfeat {
    #[bits(3)]
    __: u8,
    /// NGUID and EUI64 are never reused.
    pub uidreuse: bool,
    /// Rotational Media.
    pub rmedia: bool,
    /// Volatile Write Cache Not Present.
    pub vwcnp: bool,
    #[bits(2)]
    __: u8,
}
const _: () = assert!(size_of::<IndependentNsfeat>() == 1);

/// Namespace Status (NSTAT).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nstat {
    /// Namespace Ready.
    pub nrdy: bool,
    #[bits(7)]
    __: u8,
}
const _: () = assert!(size_of::<Nstat>() == 1);

/// I/O command set independent Identify Namespace, 4096 bytes, CNS 08h (Base 2.1 §5.1.13.2).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IndependentIdentifyNamespace {
    /// Namespace Features.
    pub nsfeat: IndependentNsfeat,
    /// Multi-path and sharing capabilities.
    pub nmic: Nmic,
    /// Reservation Capabilities.
    pub rescap: Rescap,
    /// Format Progress Indicator.
    pub fpi: Fpi,
    /// ANA Group Identifier.
    pub anagrpid: U32,
    /// Namespace Attributes.
    pub nsattr: Nsattr,
    reserved9: u8,
    /// NVM Set Identifier.
    pub nvmsetid: U16,
    /// Endurance Group Identifier.
    pub endgid: U16,
    /// Namespace Status.
    pub nstat: Nstat,
    /// Key Per I/O Status.
    pub kpios: u8,
    /// Maximum Key Tag.
    pub maxkt: U16,
    reserved18: [u8; 2],
    /// Reachability Group Identifier.
    pub rgrpid: U32,
    reserved24: [u8; 4072],
}
const _: () = assert!(size_of::<IndependentIdentifyNamespace>() == IDENTIFY_BYTES);

zero_default!(
    IdentifyNamespace,
    NvmIdentifyNamespace,
    IndependentIdentifyNamespace
);
