//! Log pages (Base 2.1 §5.1.12): supported pages, errors, health, firmware, changed namespaces,
//! command effects, Asymmetric Namespace Access, discovery, reservations.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ascii::SpacePadded;
use crate::command::{AdminOpcode, CommandSet, IoOpcode};
use crate::completion::StatusField;
use crate::identify::{NAMESPACE_LIST_ENTRIES, NamespaceList, zero_default};
use crate::{NSID_BROADCAST, U16, U32, U64, U128};

mod ana;
mod discovery;

pub use crate::command::LogPageId;
pub use ana::*;
pub use discovery::*;

/// LID Supported and Effects, 4 bytes (Base 2.1 §5.1.12.1.1).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct LogPageSupport {
    /// LID Supported.
    pub lsupp: bool,
    /// Index Offset Supported.
    pub ios: bool,
    #[bits(14)]
    __: u16,
    /// LID Specific Parameter.
    pub lidsp: u16,
}
const _: () = assert!(size_of::<LogPageSupport>() == 4);

/// Supported Log Pages, LID 00h, 1024 bytes (Base 2.1 §5.1.12.1.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SupportedLogPages {
    entries: [LogPageSupport; 256],
}
const _: () = assert!(size_of::<SupportedLogPages>() == 1024);

impl SupportedLogPages {
    /// The entry of a log page.
    pub const fn get(&self, lid: LogPageId) -> LogPageSupport {
        self.entries[lid.0 as usize]
    }

    /// Sets the entry of a log page.
    pub const fn set(&mut self, lid: LogPageId, support: LogPageSupport) {
        self.entries[lid.0 as usize] = support;
    }
}

/// Parameter Error Location (Base 2.1 §5.1.12.1.2): the position of the error in the command.
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct ParameterErrorLocation {
    /// Byte of the command.
    pub byte: u8,
    /// Bit of that byte.
    #[bits(3)]
    pub bit: u8,
    #[bits(5)]
    __: u8,
}
const _: () = assert!(size_of::<ParameterErrorLocation>() == 2);

impl ParameterErrorLocation {
    /// The error is not in a parameter.
    pub const NONE: Self = Self::from_bits(U16::MAX_VALUE);
}

/// Error Information log entry, LID 01h, 64 bytes (Base 2.1 §5.1.12.1.2).
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
pub struct ErrorEntry {
    /// Error Count: a unique number, 0 in an unused entry.
    pub error_count: U64,
    /// Submission Queue ID; FFFFh if there is no command.
    pub sqid: U16,
    /// Command ID; FFFFh if there is no command.
    pub cid: U16,
    /// Status of the command, with its phase tag.
    pub status: StatusField,
    /// Parameter Error Location.
    pub location: ParameterErrorLocation,
    /// First LBA with the error.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    /// Vendor Specific Information Available: a log page identifier, or 0.
    pub vsia: u8,
    /// Transport Type; 0 if the error is not a transport error.
    pub trtype: TransportType,
    /// Command Set Indicator.
    pub csi: CommandSet,
    /// Opcode.
    pub opcode: u8,
    /// Command Specific Information.
    pub csinfo: U64,
    /// Transport Type Specific Information.
    pub ttsi: U16,
    reserved42: [u8; 21],
    /// Log Page Version: 1 if CSI and Opcode are valid.
    pub lpver: u8,
}
const _: () = assert!(size_of::<ErrorEntry>() == 64);

/// Critical Warning of the SMART log (Base 2.1 §5.1.12.1.3).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CriticalWarning {
    /// Available spare below threshold.
    pub spare: bool,
    /// Temperature beyond threshold.
    pub temperature: bool,
    /// Reliability degraded.
    pub reliability: bool,
    /// Media in read only mode.
    pub read_only: bool,
    /// Volatile memory backup device failed.
    pub backup_failed: bool,
    /// Persistent memory region read only or unreliable.
    pub pmr_unreliable: bool,
    #[bits(2)]
    __: u8,
}
const _: () = assert!(size_of::<CriticalWarning>() == 1);

/// SMART / Health Information, LID 02h, 512 bytes (Base 2.1 §5.1.12.1.3).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SmartHealth {
    /// Critical Warning.
    pub critical_warning: CriticalWarning,
    /// Composite Temperature, kelvin.
    pub temperature: U16,
    /// Available Spare, percent.
    pub available_spare: u8,
    /// Available Spare Threshold, percent.
    pub available_spare_threshold: u8,
    /// Percentage Used; may exceed 100.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_group_warning: u8,
    reserved7: [u8; 25],
    /// Data Units Read: thousands of 512-byte units, rounded up (see [`data_units`]).
    pub data_units_read: U128,
    /// Data Units Written: thousands of 512-byte units, rounded up (see [`data_units`]).
    pub data_units_written: U128,
    /// Host Read Commands.
    pub host_read_commands: U128,
    /// Host Write Commands.
    pub host_write_commands: U128,
    /// Controller Busy Time, minutes.
    pub controller_busy_time: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unexpected Power Losses (Unsafe Shutdowns).
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries over the controller's life.
    pub error_log_entries: U128,
    /// Warning Composite Temperature Time, minutes.
    pub warning_temperature_time: U32,
    /// Critical Composite Temperature Time, minutes.
    pub critical_temperature_time: U32,
    /// Temperature Sensors 1 to 8, kelvin; 0 if absent.
    pub temperature_sensors: [U16; 8],
    /// Thermal Management Temperature 1 and 2 Transition Counts.
    pub thermal_transitions: [U32; 2],
    /// Total Time For Thermal Management Temperature 1 and 2, seconds.
    pub thermal_times: [U32; 2],
    reserved232: [u8; 280],
}
const _: () = assert!(size_of::<SmartHealth>() == 512);

/// Converts bytes to data units of the SMART log: 1000 times 512 bytes, rounded up.
pub const fn data_units(bytes: u128) -> u128 {
    bytes.div_ceil(512 * 1000)
}

/// Active Firmware Info (Base 2.1 §5.1.12.1.4, AFI).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct ActiveFirmware {
    /// Slot of the running firmware, 1 to 7.
    #[bits(3)]
    pub active_slot: u8,
    __: bool,
    /// Slot that the next reset activates; 0 if not indicated.
    #[bits(3)]
    pub next_slot: u8,
    __: bool,
}
const _: () = assert!(size_of::<ActiveFirmware>() == 1);

/// Firmware Slot Information, LID 03h, 512 bytes (Base 2.1 §5.1.12.1.4).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct FirmwareSlots {
    /// Active Firmware Info.
    pub afi: ActiveFirmware,
    reserved1: [u8; 7],
    /// Firmware Revision of slots 1 to 7; all zero if empty.
    pub frs: [SpacePadded<8>; 7],
    reserved64: [u8; 448],
}
const _: () = assert!(size_of::<FirmwareSlots>() == 512);

/// Changed Attached Namespace List, LID 04h, 4096 bytes (Base 2.1 §5.1.12.1.5).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct ChangedNamespaces(pub NamespaceList);
const _: () = assert!(size_of::<ChangedNamespaces>() == 4096);

impl ChangedNamespaces {
    /// Marks an overflow: the first entry is FFFFFFFFh, the rest zero.
    pub fn fill_overflow(&mut self) {
        self.0.fill([NSID_BROADCAST]);
    }

    /// Whether more namespaces changed than the list holds.
    pub fn is_overflow(&self) -> bool {
        self.0.iter().next() == Some(NSID_BROADCAST)
    }

    /// Overwrites the list; more than 1024 identifiers set the overflow entry.
    pub fn fill(&mut self, nsids: impl Iterator<Item = u32> + Clone) {
        if nsids.clone().nth(NAMESPACE_LIST_ENTRIES).is_some() {
            self.fill_overflow();
        } else {
            self.0.fill(nsids);
        }
    }
}

/// Effects of a command, 4 bytes (Base 2.1 §5.1.12.1.6).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CommandEffects {
    /// Command Supported.
    pub csupp: bool,
    /// Logical Block Content Change.
    pub lbcc: bool,
    /// Namespace Capability Change.
    pub ncc: bool,
    /// Namespace Inventory Change.
    pub nic: bool,
    /// Controller Capability Change.
    pub ccc: bool,
    #[bits(9)]
    __: u16,
    /// Command Submission and Execution Relaxations.
    #[bits(2)]
    pub cser: u8,
    /// Command Submission and Execution: 0 no restriction, 1 no other command in the namespace, 2
    /// no other command in any namespace.
    #[bits(3)]
    pub cse: u8,
    /// UUID Selection Supported.
    pub uss: bool,
    /// Scope: namespace.
    pub scope_namespace: bool,
    /// Scope: controller.
    pub scope_controller: bool,
    /// Scope: NVM set.
    pub scope_nvm_set: bool,
    /// Scope: endurance group.
    pub scope_endurance_group: bool,
    /// Scope: domain.
    pub scope_domain: bool,
    /// Scope: NVM subsystem.
    pub scope_subsystem: bool,
    /// Scope: controller data queue.
    pub scope_data_queue: bool,
    #[bits(5)]
    __: u8,
}
const _: () = assert!(size_of::<CommandEffects>() == 4);

/// Commands Supported and Effects, LID 05h, 4096 bytes (Base 2.1 §5.1.12.1.6).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CommandsSupported {
    admin: [CommandEffects; 256],
    io: [CommandEffects; 256],
    reserved2048: [u8; 2048],
}
const _: () = assert!(size_of::<CommandsSupported>() == 4096);

impl CommandsSupported {
    /// Effects of an admin command.
    pub const fn admin(&self, opcode: AdminOpcode) -> CommandEffects {
        self.admin[opcode.0 as usize]
    }

    /// Effects of an I/O command.
    pub const fn io(&self, opcode: IoOpcode) -> CommandEffects {
        self.io[opcode.0 as usize]
    }

    /// Sets the effects of an admin command.
    pub const fn set_admin(&mut self, opcode: AdminOpcode, effects: CommandEffects) {
        self.admin[opcode.0 as usize] = effects;
    }

    /// Sets the effects of an I/O command.
    pub const fn set_io(&mut self, opcode: IoOpcode, effects: CommandEffects) {
        self.io[opcode.0 as usize] = effects;
    }
}

open_enum! {
    /// Reservation Notification Log Page Type (Base 2.1 §5.1.12.1.32).
    pub struct ReservationNotificationType(u8) {
        EMPTY = 0, "empty log page";
        REGISTRATION_PREEMPTED = 1, "registration preempted";
        RESERVATION_RELEASED = 2, "reservation released";
        RESERVATION_PREEMPTED = 3, "reservation preempted";
    }
}

/// Reservation Notification, LID 80h, 64 bytes (Base 2.1 §5.1.12.1.32).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ReservationNotification {
    /// Log Page Count: wraps to 1; 0 in an empty page.
    pub lpc: U64,
    /// The kind of notification.
    pub kind: ReservationNotificationType,
    /// Number of Available Log Pages after this one, saturating.
    pub nalp: u8,
    reserved10: [u8; 2],
    /// Namespace.
    pub nsid: U32,
    reserved16: [u8; 48],
}
const _: () = assert!(size_of::<ReservationNotification>() == 64);

impl ReservationNotification {
    /// A notification; `lpc` is its count, `nalp` the number of notifications that wait after it.
    pub const fn new(lpc: u64, kind: ReservationNotificationType, nalp: u8, nsid: u32) -> Self {
        Self {
            lpc: U64::new(lpc),
            kind,
            nalp,
            reserved10: [0; 2],
            nsid: U32::new(nsid),
            reserved16: [0; 48],
        }
    }
}

zero_default!(
    SupportedLogPages,
    SmartHealth,
    FirmwareSlots,
    ChangedNamespaces,
    CommandsSupported,
    ReservationNotification,
);
