//! I/O commands of the NVM command set (NVM 1.1 §3.3): their dwords, and constructors for hosts.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{IoOpcode, Sqe, command_view};
use crate::{U16, U32, U64};

/// Protection information field (NVM 1.1 §3.3.1, PRINFO).
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct ProtectionInfo {
    /// Check the reference tag.
    pub check_reference_tag: bool,
    /// Check the application tag.
    pub check_application_tag: bool,
    /// Check the guard.
    pub check_guard: bool,
    /// Action: the controller inserts or strips protection information.
    pub action: bool,
    #[bits(4)]
    __: u8,
}

/// Command Dword 12 of Read, Write and Compare (NVM 1.1 §3.3.1, §3.3.4, §3.3.6).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct ReadWriteControl {
    /// Number of Logical Blocks, zero-based.
    pub nlb_z: u16,
    /// Command Extension Type.
    #[bits(4)]
    pub cetype: u8,
    /// Directive Type (Write only).
    #[bits(4)]
    pub dtype: u8,
    /// Storage Tag Check.
    pub stc: bool,
    __: bool,
    /// Protection Information.
    #[bits(4)]
    pub prinfo: ProtectionInfo,
    /// Force Unit Access.
    pub fua: bool,
    /// Limited Retry.
    pub lr: bool,
}
const _: () = assert!(size_of::<ReadWriteControl>() == 4);

/// Command Dword 13 of Read and Write (NVM 1.1 §3.3.4, §3.3.6): hints about the data.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct DatasetHints {
    /// Access Frequency.
    #[bits(4)]
    pub access_frequency: u8,
    /// Access Latency.
    #[bits(2)]
    pub access_latency: u8,
    /// Sequential Request.
    pub sequential: bool,
    /// Incompressible.
    pub incompressible: bool,
    __: u8,
    /// Directive Specific (Write), Command Extension Value.
    pub dspec: u16,
}
const _: () = assert!(size_of::<DatasetHints>() == 4);

/// Command dwords 10 to 15 of Read, Write and Compare.
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
pub struct ReadWrite {
    /// Starting LBA.
    pub slba: U64,
    /// Length and control.
    pub control: ReadWriteControl,
    /// Dataset hints.
    pub dsm: DatasetHints,
    /// (Expected) Initial Logical Block Reference Tag, lower dword.
    pub reference_tag: U32,
    /// (Expected) Logical Block Application Tag.
    pub application_tag: U16,
    /// (Expected) Logical Block Application Tag Mask.
    pub application_tag_mask: U16,
}
command_view!(ReadWrite, read_write, with_read_write);

impl ReadWrite {
    /// A range without flags.
    pub const fn new(slba: u64, nlb_z: u16) -> Self {
        Self {
            slba: U64::new(slba),
            control: ReadWriteControl::new().with_nlb_z(nlb_z),
            dsm: DatasetHints::new(),
            reference_tag: U32::ZERO,
            application_tag: U16::ZERO,
            application_tag_mask: U16::ZERO,
        }
    }

    /// Number of logical blocks, 1 to 65,536.
    pub const fn blocks(&self) -> u32 {
        self.control.nlb_z() as u32 + 1
    }
}

/// Command Dword 12 of Write Zeroes (NVM 1.1 §3.3.8).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct WriteZeroesControl {
    /// Number of Logical Blocks, zero-based.
    pub nlb_z: u16,
    /// Command Extension Type.
    #[bits(4)]
    pub cetype: u8,
    #[bits(3)]
    __: u8,
    /// Namespace Zeroes: the whole namespace, if the controller can zero it in one operation.
    pub nsz: bool,
    /// Storage Tag Check.
    pub stc: bool,
    /// Deallocate.
    pub deac: bool,
    /// Protection Information.
    #[bits(4)]
    pub prinfo: ProtectionInfo,
    /// Force Unit Access.
    pub fua: bool,
    /// Limited Retry.
    pub lr: bool,
}
const _: () = assert!(size_of::<WriteZeroesControl>() == 4);

/// Command dwords 10 to 15 of Write Zeroes.
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
pub struct WriteZeroes {
    /// Starting LBA.
    pub slba: U64,
    /// Length and control.
    pub control: WriteZeroesControl,
    reserved: U32,
    /// Initial Logical Block Reference Tag, lower dword.
    pub reference_tag: U32,
    /// Logical Block Application Tag.
    pub application_tag: U16,
    /// Logical Block Application Tag Mask.
    pub application_tag_mask: U16,
}
command_view!(WriteZeroes, write_zeroes, with_write_zeroes);

impl WriteZeroes {
    /// Number of logical blocks, 1 to 65,536.
    pub const fn blocks(&self) -> u32 {
        self.control.nlb_z() as u32 + 1
    }
}

/// Command Dword 10 of Dataset Management (NVM 1.1 §3.3.3).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct DatasetRangeCount {
    /// Number of Ranges, zero-based.
    pub nr_z: u8,
    #[bits(24)]
    __: u32,
}
const _: () = assert!(size_of::<DatasetRangeCount>() == 4);

/// Command Dword 11 of Dataset Management (NVM 1.1 §3.3.3).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct DatasetAttributes {
    /// Integral Dataset for Read.
    pub idr: bool,
    /// Integral Dataset for Write.
    pub idw: bool,
    /// Deallocate.
    pub ad: bool,
    #[bits(29)]
    __: u32,
}
const _: () = assert!(size_of::<DatasetAttributes>() == 4);

/// Command dwords 10 to 15 of Dataset Management.
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
pub struct DatasetManagement {
    /// Number of ranges.
    pub count: DatasetRangeCount,
    /// Attributes.
    pub attributes: DatasetAttributes,
    reserved: [u8; 16],
}
command_view!(
    DatasetManagement,
    dataset_management,
    with_dataset_management
);

/// The largest number of ranges of one Dataset Management command.
pub const DATASET_RANGES_MAX: usize = 256;

impl DatasetManagement {
    /// Number of ranges, 1 to 256.
    pub const fn ranges(&self) -> usize {
        self.count.nr_z() as usize + 1
    }

    /// Length of the range list in bytes, 16 to 4096.
    pub const fn data_length_bytes(&self) -> usize {
        self.ranges() * size_of::<DatasetRange>()
    }
}

/// Context attributes of a range (NVM 1.1 §3.3.3): hints.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct ContextAttributes {
    /// Access Frequency.
    #[bits(4)]
    pub access_frequency: u8,
    /// Access Latency.
    #[bits(2)]
    pub access_latency: u8,
    #[bits(2)]
    __: u8,
    /// Sequential Read Range.
    pub sequential_read: bool,
    /// Sequential Write Range.
    pub sequential_write: bool,
    /// Write Prepare.
    pub write_prepare: bool,
    #[bits(13)]
    __: u16,
    /// Command Access Size, in blocks.
    pub command_access_size: u8,
}
const _: () = assert!(size_of::<ContextAttributes>() == 4);

/// One range of Dataset Management, 16 bytes (NVM 1.1 §3.3.3).
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
pub struct DatasetRange {
    /// Context attributes.
    pub context: ContextAttributes,
    /// Length in logical blocks, one-based; 0 is an empty range.
    pub length: U32,
    /// Starting LBA.
    pub slba: U64,
}
const _: () = assert!(size_of::<DatasetRange>() == 16);

impl DatasetRange {
    /// A range without hints.
    pub const fn new(slba: u64, blocks: u32) -> Self {
        Self {
            context: ContextAttributes::new(),
            length: U32::new(blocks),
            slba: U64::new(slba),
        }
    }
}

open_enum! {
    /// Copy Descriptor Format (NVM 1.1 §3.3.2, DESFMT): the protection information of the source
    /// ranges, and whether each names a namespace.
    pub struct CopyFormat(u8) {
        SAME_NAMESPACE = 0, "one namespace, 16-bit guard";
        SAME_NAMESPACE_WIDE_GUARD = 1, "one namespace, 32-bit or 64-bit guard";
        NAMESPACES = 2, "several namespaces, 16-bit guard";
        NAMESPACES_WIDE_GUARD = 3, "several namespaces, 32-bit or 64-bit guard";
        MEMORY = 4, "subsystem local memory";
    }
}

impl CopyFormat {
    /// Whether each source range names its namespace.
    pub const fn names_namespaces(self) -> bool {
        matches!(self, Self::NAMESPACES | Self::NAMESPACES_WIDE_GUARD)
    }
}

/// Command Dword 12 of Copy (NVM 1.1 §3.3.2).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CopyControl {
    /// Number of Ranges, zero-based.
    pub nr_z: u8,
    /// Descriptor Format.
    #[bits(4)]
    pub format: CopyFormat,
    /// Protection Information Read.
    #[bits(4)]
    pub prinfor: ProtectionInfo,
    /// Command Extension Type of the write.
    #[bits(4)]
    pub cetype: u8,
    /// Directive Type.
    #[bits(4)]
    pub dtype: u8,
    /// Storage Tag Check Write.
    pub stcw: bool,
    /// Storage Tag Check Read.
    pub stcr: bool,
    /// Protection Information Write.
    #[bits(4)]
    pub prinfow: ProtectionInfo,
    /// Force Unit Access of the write.
    pub fua: bool,
    /// Limited Retry.
    pub lr: bool,
}
const _: () = assert!(size_of::<CopyControl>() == 4);

/// Command Dword 13 of Copy (NVM 1.1 §3.3.2).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CopyExtension {
    /// Command Extension Value.
    pub cev: u16,
    /// Directive Specific.
    pub dspec: u16,
}
const _: () = assert!(size_of::<CopyExtension>() == 4);

/// Command dwords 10 to 15 of Copy.
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
pub struct CopyCommand {
    /// Starting Destination LBA.
    pub sdlba: U64,
    /// Number of ranges and control.
    pub control: CopyControl,
    /// Values of directive and command extension.
    pub extension: CopyExtension,
    /// Initial Logical Block Reference Tag, lower dword.
    pub reference_tag: U32,
    /// Logical Block Application Tag.
    pub application_tag: U16,
    /// Logical Block Application Tag Mask.
    pub application_tag_mask: U16,
}
command_view!(CopyCommand, copy, with_copy);

impl CopyCommand {
    /// Number of source ranges, 1 to 256.
    pub const fn ranges(&self) -> usize {
        self.control.nr_z() as usize + 1
    }

    /// Length of the list of source ranges of format 0 or 2 in bytes.
    pub const fn data_length_bytes(&self) -> usize {
        self.ranges() * size_of::<CopyRange>()
    }
}

/// Read Parameters of a source range (NVM 1.1 §3.3.2, RPARS).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CopyReadParameters {
    /// Number of Logical Blocks, zero-based.
    pub nlb_z: u16,
    /// Command Extension Type of the read.
    #[bits(4)]
    pub cetype: u8,
    #[bits(12)]
    __: u16,
}
const _: () = assert!(size_of::<CopyReadParameters>() == 4);

/// Source Options of a source range (NVM 1.1 §3.3.2, SOPT), which format 0 does not have.
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CopySourceOptions {
    #[bits(15)]
    __: u16,
    /// Fast Copy Only.
    pub fast_only: bool,
}
const _: () = assert!(size_of::<CopySourceOptions>() == 2);

/// One source range of Copy, 32 bytes, format 0 or 2 (NVM 1.1 §3.3.2).
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
pub struct CopyRange {
    /// Source Namespace Identifier. Reserved in format 0.
    pub snsid: U32,
    reserved4: [u8; 4],
    /// Starting LBA.
    pub slba: U64,
    /// Length and command extension.
    pub parameters: CopyReadParameters,
    /// Command Extension Value.
    pub cev: U16,
    /// Source Options.
    pub options: CopySourceOptions,
    /// Expected Initial Logical Block Reference Tag.
    pub reference_tag: U32,
    /// Expected Logical Block Application Tag.
    pub application_tag: U16,
    /// Expected Logical Block Application Tag Mask.
    pub application_tag_mask: U16,
}
const _: () = assert!(size_of::<CopyRange>() == 32);

impl CopyRange {
    /// `nlb_z + 1` blocks of the namespace of the command, format 0.
    pub const fn new(slba: u64, nlb_z: u16) -> Self {
        Self::of_namespace(0, slba, nlb_z)
    }

    /// `nlb_z + 1` blocks of the namespace `snsid`, format 2.
    pub const fn of_namespace(snsid: u32, slba: u64, nlb_z: u16) -> Self {
        Self {
            snsid: U32::new(snsid),
            reserved4: [0; 4],
            slba: U64::new(slba),
            parameters: CopyReadParameters::new().with_nlb_z(nlb_z),
            cev: U16::ZERO,
            options: CopySourceOptions::new(),
            reference_tag: U32::ZERO,
            application_tag: U16::ZERO,
            application_tag_mask: U16::ZERO,
        }
    }

    /// Number of logical blocks, 1 to 65,536.
    pub const fn blocks(&self) -> u32 {
        self.parameters.nlb_z() as u32 + 1
    }
}

impl Sqe {
    /// Read `nlb_z + 1` blocks.
    pub const fn read(nsid: u32, slba: u64, nlb_z: u16) -> Self {
        Self::new(IoOpcode::READ.0, nsid).with_read_write(ReadWrite::new(slba, nlb_z))
    }

    /// Write `nlb_z + 1` blocks, with Force Unit Access if requested.
    pub const fn write(nsid: u32, slba: u64, nlb_z: u16, fua: bool) -> Self {
        let mut range = ReadWrite::new(slba, nlb_z);
        range.control = range.control.with_fua(fua);
        Self::new(IoOpcode::WRITE.0, nsid).with_read_write(range)
    }

    /// Compare `nlb_z + 1` blocks.
    pub const fn compare(nsid: u32, slba: u64, nlb_z: u16) -> Self {
        Self::new(IoOpcode::COMPARE.0, nsid).with_read_write(ReadWrite::new(slba, nlb_z))
    }

    /// Verify `nlb_z + 1` blocks.
    pub const fn verify(nsid: u32, slba: u64, nlb_z: u16) -> Self {
        Self::new(IoOpcode::VERIFY.0, nsid).with_read_write(ReadWrite::new(slba, nlb_z))
    }

    /// Flush a namespace, or all namespaces with [`crate::NSID_BROADCAST`].
    pub const fn flush(nsid: u32) -> Self {
        Self::new(IoOpcode::FLUSH.0, nsid)
    }

    /// Write Zeroes over `control.nlb_z() + 1` blocks. (Named apart from the view
    /// [`Sqe::write_zeroes`].)
    pub const fn write_zeroes_range(nsid: u32, slba: u64, control: WriteZeroesControl) -> Self {
        Self::new(IoOpcode::WRITE_ZEROES.0, nsid).with_write_zeroes(WriteZeroes {
            slba: U64::new(slba),
            control,
            reserved: U32::ZERO,
            reference_tag: U32::ZERO,
            application_tag: U16::ZERO,
            application_tag_mask: U16::ZERO,
        })
    }

    /// Deallocate the `nr_z + 1` ranges of the data.
    pub const fn deallocate(nsid: u32, nr_z: u8) -> Self {
        Self::new(IoOpcode::DATASET_MANAGEMENT.0, nsid).with_dataset_management(DatasetManagement {
            count: DatasetRangeCount::new().with_nr_z(nr_z),
            attributes: DatasetAttributes::new().with_ad(true),
            reserved: [0; 16],
        })
    }

    /// Copy the `nr_z + 1` source ranges of the data to the blocks from `sdlba` on. (Named apart from
    /// the view [`Sqe::copy`].)
    pub const fn copy_ranges(nsid: u32, sdlba: u64, nr_z: u8) -> Self {
        Self::new(IoOpcode::COPY.0, nsid).with_copy(CopyCommand {
            sdlba: U64::new(sdlba),
            control: CopyControl::new().with_nr_z(nr_z),
            extension: CopyExtension::new(),
            reference_tag: U32::ZERO,
            application_tag: U16::ZERO,
            application_tag_mask: U16::ZERO,
        })
    }

    /// Copy the `nr_z + 1` source ranges of the data, each of which names its namespace, to the
    /// blocks from `sdlba` on of the namespace `nsid`.
    pub fn copy_from_namespaces(nsid: u32, sdlba: u64, nr_z: u8) -> Self {
        let sqe = Self::copy_ranges(nsid, sdlba, nr_z);
        let mut command = sqe.copy();
        command.control = command.control.with_format(CopyFormat::NAMESPACES);
        sqe.with_copy(command)
    }
}
