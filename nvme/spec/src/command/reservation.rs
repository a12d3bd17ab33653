//! Reservation commands (Base 2.1 §7.5 to §7.8): their dwords and data.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::command_view;
use crate::{U16, U32, U64};

open_enum! {
    /// Reservation Type (Base 2.1 §7.5, RTYPE).
    pub struct ReservationType(u8) {
        NONE = 0, "no reservation";
        WRITE_EXCLUSIVE = 1, "write exclusive";
        EXCLUSIVE_ACCESS = 2, "exclusive access";
        WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 3, "write exclusive, registrants only";
        EXCLUSIVE_ACCESS_REGISTRANTS_ONLY = 4, "exclusive access, registrants only";
        WRITE_EXCLUSIVE_ALL_REGISTRANTS = 5, "write exclusive, all registrants";
        EXCLUSIVE_ACCESS_ALL_REGISTRANTS = 6, "exclusive access, all registrants";
    }
}

open_enum! {
    /// Reservation Register Action (Base 2.1 §7.6, RREGA).
    pub struct RegisterAction(u8) {
        REGISTER = 0, "register";
        UNREGISTER = 1, "unregister";
        REPLACE = 2, "replace";
    }
}

open_enum! {
    /// Reservation Acquire Action (Base 2.1 §7.5, RACQA).
    pub struct AcquireAction(u8) {
        ACQUIRE = 0, "acquire";
        PREEMPT = 1, "preempt";
        PREEMPT_AND_ABORT = 2, "preempt and abort";
    }
}

open_enum! {
    /// Reservation Release Action (Base 2.1 §7.7, RRELA).
    pub struct ReleaseAction(u8) {
        RELEASE = 0, "release";
        CLEAR = 1, "clear";
    }
}

open_enum! {
    /// Change Persist Through Power Loss State (Base 2.1 §7.6, CPTPL).
    pub struct PersistChange(u8) {
        NO_CHANGE = 0, "no change";
        CLEAR = 2, "released on power on";
        SET = 3, "persist through power loss";
    }
}

/// Command Dword 10 of Reservation Register (Base 2.1 §7.6).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RegisterControl {
    /// Action.
    #[bits(3)]
    pub action: RegisterAction,
    /// Ignore Existing Key.
    pub ignore_existing_key: bool,
    #[bits(26)]
    __: u32,
    /// Change Persist Through Power Loss State.
    #[bits(2)]
    pub cptpl: PersistChange,
}
const _: () = assert!(size_of::<RegisterControl>() == 4);

/// Command dwords 10 to 15 of Reservation Register.
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
pub struct ReservationRegister {
    /// Control.
    pub control: RegisterControl,
    reserved: [u8; 20],
}
command_view!(
    ReservationRegister,
    reservation_register,
    with_reservation_register
);

/// Data of Reservation Register, 16 bytes (Base 2.1 §7.6).
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
pub struct RegisterData {
    /// Current Reservation Key.
    pub crkey: U64,
    /// New Reservation Key.
    pub nrkey: U64,
}
const _: () = assert!(size_of::<RegisterData>() == 16);

/// Command Dword 10 of Reservation Acquire (Base 2.1 §7.5).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct AcquireControl {
    /// Action.
    #[bits(3)]
    pub action: AcquireAction,
    /// Ignore Existing Key.
    pub ignore_existing_key: bool,
    #[bits(4)]
    __: u8,
    /// Reservation Type.
    #[bits(8)]
    pub rtype: ReservationType,
    __: u16,
}
const _: () = assert!(size_of::<AcquireControl>() == 4);

/// Command dwords 10 to 15 of Reservation Acquire.
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
pub struct ReservationAcquire {
    /// Control.
    pub control: AcquireControl,
    reserved: [u8; 20],
}
command_view!(
    ReservationAcquire,
    reservation_acquire,
    with_reservation_acquire
);

/// Data of Reservation Acquire, 16 bytes (Base 2.1 §7.5).
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
pub struct AcquireData {
    /// Current Reservation Key.
    pub crkey: U64,
    /// Preempt Reservation Key.
    pub prkey: U64,
}
const _: () = assert!(size_of::<AcquireData>() == 16);

/// Command Dword 10 of Reservation Release (Base 2.1 §7.7).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct ReleaseControl {
    /// Action.
    #[bits(3)]
    pub action: ReleaseAction,
    /// Ignore Existing Key.
    pub ignore_existing_key: bool,
    #[bits(4)]
    __: u8,
    /// Reservation Type.
    #[bits(8)]
    pub rtype: ReservationType,
    __: u16,
}
const _: () = assert!(size_of::<ReleaseControl>() == 4);

/// Command dwords 10 to 15 of Reservation Release; its data is one 64-bit key.
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
pub struct ReservationRelease {
    /// Control.
    pub control: ReleaseControl,
    reserved: [u8; 20],
}
command_view!(
    ReservationRelease,
    reservation_release,
    with_reservation_release
);

/// Command Dword 11 of Reservation Report (Base 2.1 §7.8).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct ReportControl {
    /// Extended Data Structure: 128-bit host identifiers.
    pub eds: bool,
    #[bits(31)]
    __: u32,
}
const _: () = assert!(size_of::<ReportControl>() == 4);

/// Command dwords 10 to 15 of Reservation Report.
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
pub struct ReservationReport {
    /// Number of Dwords to return, zero-based.
    pub numd_z: U32,
    /// Control.
    pub control: ReportControl,
    reserved: [u8; 16],
}
command_view!(
    ReservationReport,
    reservation_report,
    with_reservation_report
);

impl ReservationReport {
    /// Number of bytes requested.
    pub const fn length_bytes(&self) -> u64 {
        (self.numd_z.get() as u64 + 1) * 4
    }
}

/// Header of the Reservation Status data structure, 24 bytes (Base 2.1 §7.8). One
/// [`RegisteredController`] for each registrant follows.
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
pub struct ReservationStatusHeader {
    /// Generation.
    pub gen_counter: U32,
    /// Reservation Type of the current reservation.
    pub rtype: ReservationType,
    /// Number of Registrants.
    pub regstrnt: U16,
    reserved7: [u8; 2],
    /// Persist Through Power Loss State: 1 if the reservation persists.
    pub ptpls: u8,
    reserved10: [u8; 14],
}
const _: () = assert!(size_of::<ReservationStatusHeader>() == 24);

impl ReservationStatusHeader {
    /// Creates a header.
    pub const fn new(
        gen_counter: u32,
        rtype: ReservationType,
        regstrnt: u16,
        persists: bool,
    ) -> Self {
        Self {
            gen_counter: U32::new(gen_counter),
            rtype,
            regstrnt: U16::new(regstrnt),
            reserved7: [0; 2],
            ptpls: persists as u8,
            reserved10: [0; 14],
        }
    }
}

/// Header of the Reservation Status Extended data structure, 64 bytes (Base 2.1 §7.8). One
/// [`RegisteredControllerExtended`] for each registrant follows.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ReservationStatusExtendedHeader {
    /// Reservation Status Header.
    pub rshdr: ReservationStatusHeader,
    reserved24: [u8; 40],
}
const _: () = assert!(size_of::<ReservationStatusExtendedHeader>() == 64);

impl ReservationStatusExtendedHeader {
    /// Creates a header.
    pub const fn new(rshdr: ReservationStatusHeader) -> Self {
        Self {
            rshdr,
            reserved24: [0; 40],
        }
    }
}

/// A registrant with a 64-bit host identifier, 24 bytes (Base 2.1 §7.8).
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
pub struct RegisteredController {
    /// Controller Identifier; [`Self::CNTLID_NONE`] if the registrant has no controller.
    pub cntlid: U16,
    /// Reservation Status.
    pub rcsts: RegistrantStatus,
    reserved3: [u8; 5],
    /// Host Identifier.
    pub hostid: [u8; 8],
    /// Reservation Key.
    pub rkey: U64,
}
const _: () = assert!(size_of::<RegisteredController>() == 24);

impl RegisteredController {
    /// Controller Identifier of a registrant without a controller in the NVM subsystem.
    pub const CNTLID_NONE: u16 = 0xffff;

    /// A registrant.
    pub const fn new(cntlid: u16, rcsts: RegistrantStatus, rkey: u64, hostid: [u8; 8]) -> Self {
        Self {
            cntlid: U16::new(cntlid),
            rcsts,
            reserved3: [0; 5],
            hostid,
            rkey: U64::new(rkey),
        }
    }
}

/// A registrant with a 128-bit host identifier, 64 bytes (Base 2.1 §7.8).
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
pub struct RegisteredControllerExtended {
    /// Controller Identifier; [`RegisteredController::CNTLID_NONE`] if the registrant has none.
    pub cntlid: U16,
    /// Reservation Status.
    pub rcsts: RegistrantStatus,
    reserved3: [u8; 5],
    /// Reservation Key.
    pub rkey: U64,
    /// Host Identifier.
    pub hostid: [u8; 16],
    reserved32: [u8; 32],
}
const _: () = assert!(size_of::<RegisteredControllerExtended>() == 64);

impl RegisteredControllerExtended {
    /// A registrant.
    pub const fn new(cntlid: u16, rcsts: RegistrantStatus, rkey: u64, hostid: [u8; 16]) -> Self {
        Self {
            cntlid: U16::new(cntlid),
            rcsts,
            reserved3: [0; 5],
            rkey: U64::new(rkey),
            hostid,
            reserved32: [0; 32],
        }
    }
}

/// Status of a registrant (Base 2.1 §7.8, RCSTS).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RegistrantStatus {
    /// Association with Host Holding Reservation: the registrant holds the reservation.
    pub holder: bool,
    #[bits(7)]
    __: u8,
}
const _: () = assert!(size_of::<RegistrantStatus>() == 1);
