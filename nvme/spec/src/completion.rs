//! The completion queue entry, on a queue and in a response capsule (Base 2.1 §4.2.1).

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::status::{Status, StatusCodeType};
use crate::{U16, U32};

/// Bytes 14 and 15 of a completion: phase tag and status (Base 2.1 §4.2.1).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct StatusField {
    /// Phase Tag: toggles with each pass of a memory-based queue; cleared on fabrics.
    pub phase: bool,
    /// Status Code.
    #[bits(8)]
    pub sc: u8,
    /// Status Code Type.
    #[bits(3)]
    pub sct: StatusCodeType,
    /// Command Retry Delay.
    #[bits(2)]
    pub crd: u8,
    /// More.
    pub more: bool,
    /// Do Not Retry.
    pub dnr: bool,
}
const _: () = assert!(size_of::<StatusField>() == 2);

impl StatusField {
    /// The status without the phase tag.
    pub const fn status(&self) -> Status {
        let status = Status::new(self.sct(), self.sc())
            .with_crd(self.crd())
            .with_more(self.more());
        if self.dnr() {
            status.with_dnr()
        } else {
            status
        }
    }

    /// The field for a status, phase tag cleared.
    pub const fn from_status(status: Status) -> Self {
        Self::new()
            .with_sc(status.sc())
            .with_sct(status.sct())
            .with_crd(status.crd())
            .with_more(status.more())
            .with_dnr(status.dnr())
    }
}

/// A completion queue entry, 16 bytes (Base 2.1 §4.2.1).
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
pub struct Cqe {
    /// Command specific result, dword 0.
    pub dw0: U32,
    /// Command specific result, dword 1.
    pub dw1: U32,
    /// Submission Queue Head Pointer; on fabrics valid only with flow control.
    pub sqhd: U16,
    /// Submission Queue Identifier; reserved on fabrics.
    pub sqid: U16,
    /// Command Identifier of the completed command.
    pub cid: U16,
    /// Status and phase tag.
    pub status: StatusField,
}
const _: () = assert!(size_of::<Cqe>() == 16);

impl Cqe {
    /// A completion of `cid`; all other fields are zero.
    pub const fn new(cid: u16, status: Status) -> Self {
        Self {
            dw0: U32::ZERO,
            dw1: U32::ZERO,
            sqhd: U16::ZERO,
            sqid: U16::ZERO,
            cid: U16::new(cid),
            status: StatusField::from_status(status),
        }
    }

    /// The status without the phase tag.
    pub const fn status(&self) -> Status {
        self.status.status()
    }

    /// The completion with dword 0 set.
    pub const fn with_dw0(mut self, dw0: u32) -> Self {
        self.dw0 = U32::new(dw0);
        self
    }

    /// The completion with a 64-bit result in dwords 0 and 1.
    pub const fn with_result(mut self, result: u64) -> Self {
        self.dw0 = U32::new(result as u32);
        self.dw1 = U32::new((result >> 32) as u32);
        self
    }

    /// Dwords 0 and 1 as one 64-bit result (Property Get, Get Features with 64-bit attributes).
    pub const fn result(&self) -> u64 {
        (self.dw1.get() as u64) << 32 | self.dw0.get() as u64
    }
}
