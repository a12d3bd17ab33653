//! The submission queue entry, on a queue and in a command capsule (Base 2.1 §4.1.1).
//!
//! [`Sqe`] has the common fields; the types of [`admin`], [`io`], [`reservation`] and
//! [`crate::fabrics`] are views of the six command specific dwords.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::sgl::SglDescriptor;
use crate::{U16, U32, U64};

pub mod admin;
pub mod io;
mod opcode;
pub mod reservation;

pub use admin::*;
pub use io::*;
pub use opcode::{AdminOpcode, DataDirection, IoOpcode};

open_enum! {
    /// Fused operation (Base 2.1 §4.1.1, FUSE).
    pub struct Fuse(u8) {
        NORMAL = 0, "normal operation";
        FIRST = 1, "first command of a fused operation";
        SECOND = 2, "second command of a fused operation";
    }
}

open_enum! {
    /// The kind of data and metadata pointers (Base 2.1 §4.1.1, PSDT).
    pub struct Psdt(u8) {
        PRP = 0, "PRPs";
        SGL = 1, "SGL, metadata in one buffer";
        SGL_METADATA_SEGMENT = 2, "SGL, metadata by an SGL segment";
    }
}

/// Byte 1 of a command (Base 2.1 §4.1.1, bits 15:8).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CommandFlags {
    /// Fused operation.
    #[bits(2)]
    pub fuse: Fuse,
    #[bits(4)]
    __: u8,
    /// PRP or SGL for Data Transfer.
    #[bits(2)]
    pub psdt: Psdt,
}
const _: () = assert!(size_of::<CommandFlags>() == 1);

/// The data pointer, bytes 24 to 39: two PRP entries or one SGL descriptor.
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
#[repr(transparent)]
pub struct DataPointer(pub [u8; 16]);
const _: () = assert!(size_of::<DataPointer>() == 16);

/// The data pointer as PRP entries (Base 2.1 §4.1.1).
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
pub struct PrpPair {
    /// PRP Entry 1.
    pub prp1: U64,
    /// PRP Entry 2, or the address of a PRP list.
    pub prp2: U64,
}
const _: () = assert!(size_of::<PrpPair>() == 16);

impl DataPointer {
    /// The data pointer as an SGL descriptor (SGL1).
    pub const fn sgl(&self) -> SglDescriptor {
        transmute!(self.0)
    }

    /// The data pointer as PRP entries.
    pub const fn prp(&self) -> PrpPair {
        transmute!(self.0)
    }
}

impl From<SglDescriptor> for DataPointer {
    fn from(sgl: SglDescriptor) -> Self {
        transmute!(sgl)
    }
}

impl From<PrpPair> for DataPointer {
    fn from(prp: PrpPair) -> Self {
        transmute!(prp)
    }
}

/// Command dwords 10 to 15, which are command specific.
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
pub struct CommandDwords {
    /// Command Dword 10.
    pub cdw10: U32,
    /// Command Dword 11.
    pub cdw11: U32,
    /// Command Dword 12.
    pub cdw12: U32,
    /// Command Dword 13.
    pub cdw13: U32,
    /// Command Dword 14.
    pub cdw14: U32,
    /// Command Dword 15.
    pub cdw15: U32,
}
const _: () = assert!(size_of::<CommandDwords>() == 24);

/// A submission queue entry, 64 bytes (Base 2.1 §4.1.1).
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
pub struct Sqe {
    /// Opcode; admin, I/O and Fabrics opcodes share the field.
    pub opcode: u8,
    /// Fused operation and kind of data pointer.
    pub flags: CommandFlags,
    /// Command Identifier.
    pub cid: U16,
    /// Namespace Identifier; the first byte is the type of a Fabrics command.
    pub nsid: U32,
    /// Command Dword 2.
    pub cdw2: U32,
    /// Command Dword 3.
    pub cdw3: U32,
    /// Metadata Pointer.
    pub mptr: U64,
    /// Data Pointer.
    pub dptr: DataPointer,
    /// Command Dwords 10 to 15.
    pub specific: CommandDwords,
}
const _: () = assert!(size_of::<Sqe>() == 64);

/// Implements the view of command dwords 10 to 15 as a command's own type.
macro_rules! command_view {
    ($view:ident, $get:ident, $with:ident) => {
        const _: () = assert!(size_of::<$view>() == size_of::<$crate::command::CommandDwords>());

        impl $crate::command::Sqe {
            #[doc = concat!("Dwords 10 to 15 as [`", stringify!($view), "`].")]
            pub const fn $get(&self) -> $view {
                zerocopy::transmute!(self.specific)
            }

            #[doc = concat!("The same with a [`", stringify!($view), "`] in dwords 10 to 15.")]
            pub const fn $with(mut self, view: $view) -> Self {
                self.specific = zerocopy::transmute!(view);
                self
            }
        }
    };
}
pub(crate) use command_view;

impl Sqe {
    /// A command with all other fields zero.
    pub const fn new(opcode: u8, nsid: u32) -> Self {
        let zero: Self = transmute!([0_u8; 64]);
        Self {
            opcode,
            nsid: U32::new(nsid),
            ..zero
        }
    }

    /// The command with a command identifier.
    pub const fn with_cid(mut self, cid: u16) -> Self {
        self.cid = U16::new(cid);
        self
    }

    /// The command with SGL1 as data pointer.
    pub const fn with_sgl(mut self, sgl: SglDescriptor) -> Self {
        self.flags = self.flags.with_psdt(Psdt::SGL);
        self.dptr = transmute!(sgl);
        self
    }

    /// The command with PRP entries as data pointer.
    pub const fn with_prp(mut self, prp1: u64, prp2: u64) -> Self {
        self.flags = self.flags.with_psdt(Psdt::PRP);
        self.dptr = transmute!(PrpPair {
            prp1: U64::new(prp1),
            prp2: U64::new(prp2)
        });
        self
    }

    /// The command with a fused operation part.
    pub const fn with_fuse(mut self, fuse: Fuse) -> Self {
        self.flags = self.flags.with_fuse(fuse);
        self
    }

    /// The opcode as an opcode of the admin command set.
    pub const fn admin_opcode(&self) -> AdminOpcode {
        AdminOpcode(self.opcode)
    }

    /// The opcode as an opcode of the NVM command set.
    pub const fn io_opcode(&self) -> IoOpcode {
        IoOpcode(self.opcode)
    }

    /// The direction of data: from the opcode, or from the type of a Fabrics command.
    pub const fn direction(&self) -> DataDirection {
        if self.is_fabrics() {
            DataDirection::from_opcode(self.fctype().0)
        } else {
            DataDirection::from_opcode(self.opcode)
        }
    }
}
