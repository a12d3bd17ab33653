//! Features: the values of Command Dword 11 and of the completion's dword 0, and feature data (Base
//! 2.1 §5.1.25).
//!
//! Keep Alive Timer has no type: Command Dword 11 is the timeout in milliseconds; 0 disables it.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::U16;

pub use crate::command::{FeatureId, FeatureSelect};

/// Dword 0 of Get Features with Select = supported capabilities (Base 2.1 §5.1.11).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FeatureCapabilities {
    /// Saveable.
    pub saveable: bool,
    /// Namespace specific.
    pub namespace_specific: bool,
    /// Changeable.
    pub changeable: bool,
    #[bits(29)]
    __: u32,
}

/// Arbitration (Base 2.1 §5.1.25.1.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ArbitrationFeature {
    /// Arbitration Burst: 2^AB commands; 7 means no limit.
    #[bits(3)]
    pub ab: u8,
    #[bits(5)]
    __: u8,
    /// Low Priority Weight, zero-based.
    pub lpw_z: u8,
    /// Medium Priority Weight, zero-based.
    pub mpw_z: u8,
    /// High Priority Weight, zero-based.
    pub hpw_z: u8,
}

/// Power Management (Base 2.1 §5.1.25.1.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct PowerManagement {
    /// Power State.
    #[bits(5)]
    pub ps: u8,
    /// Workload Hint.
    #[bits(3)]
    pub wh: u8,
    #[bits(24)]
    __: u32,
}

open_enum! {
    /// Threshold Type Select (Base 2.1 §5.1.25.1.3, THSEL).
    pub struct ThresholdType(u8) {
        OVER = 0, "over temperature threshold";
        UNDER = 1, "under temperature threshold";
    }
}

/// Temperature Threshold (Base 2.1 §5.1.25.1.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct TemperatureThreshold {
    /// Temperature Threshold, kelvin.
    pub tmpth: u16,
    /// Threshold Temperature Select: 0 composite, 1 to 8 a sensor, Fh all (Set only).
    #[bits(4)]
    pub tmpsel: u8,
    /// Threshold Type Select.
    #[bits(2)]
    pub thsel: ThresholdType,
    /// Temperature Threshold Hysteresis, kelvin.
    #[bits(3)]
    pub tmpthh: u8,
    #[bits(7)]
    __: u8,
}

/// Error Recovery (NVM 1.1 §4.1.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ErrorRecovery {
    /// Time Limited Error Recovery, 100 ms units; 0 means no limit.
    pub tler: u16,
    /// Deallocated or Unwritten Logical Block Error Enable.
    pub dulbe: bool,
    #[bits(15)]
    __: u16,
}

/// Volatile Write Cache (Base 2.1 §5.1.25.1.4).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct VolatileWriteCache {
    /// Volatile Write Cache Enable.
    pub wce: bool,
    #[bits(31)]
    __: u32,
}

/// Number of Queues: requested in Command Dword 11, allocated in dword 0 (Base 2.1 §5.1.25.2.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct NumberOfQueues {
    /// Number of I/O Submission Queues, zero-based; FFFFh is invalid in a request.
    pub nsq_z: u16,
    /// Number of I/O Completion Queues, zero-based; FFFFh is invalid in a request.
    pub ncq_z: u16,
}

impl NumberOfQueues {
    /// Submission queues, 1 to 65,536.
    pub const fn nsq(self) -> u32 {
        self.nsq_z() as u32 + 1
    }

    /// Completion queues, 1 to 65,536.
    pub const fn ncq(self) -> u32 {
        self.ncq_z() as u32 + 1
    }

    /// Whether a request contains one of the two invalid counts.
    pub const fn is_invalid_request(self) -> bool {
        self.nsq_z() == u16::MAX || self.ncq_z() == u16::MAX
    }
}

/// Interrupt Coalescing (PCIe only; Base 2.1 §5.1.25.2.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InterruptCoalescing {
    /// Aggregation Threshold in entries, zero-based.
    pub thr_z: u8,
    /// Aggregation Time, 100 µs units.
    pub time: u8,
    __: u16,
}

/// Interrupt Vector Configuration (PCIe only; Base 2.1 §5.1.25.2.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InterruptVector {
    /// Interrupt Vector.
    pub iv: u16,
    /// Coalescing Disable.
    pub cd: bool,
    #[bits(15)]
    __: u16,
}

/// Write Atomicity Normal (NVM 1.1 §4.1.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct WriteAtomicity {
    /// Disable Normal: AWUN and NAWUN need not be honoured.
    pub dn: bool,
    #[bits(31)]
    __: u32,
}

/// Asynchronous Event Configuration (Base 2.1 §5.1.25.1.5). Bits 8 and up have the layout of OAES.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEventConfiguration {
    /// Health: available spare below threshold.
    pub spare: bool,
    /// Health: temperature beyond threshold.
    pub temperature: bool,
    /// Health: reliability degraded.
    pub reliability: bool,
    /// Health: media in read only mode.
    pub read_only: bool,
    /// Health: volatile memory backup device failed.
    pub backup_failed: bool,
    /// Health: persistent memory region read only or unreliable.
    pub pmr_unreliable: bool,
    #[bits(2)]
    __: u8,
    /// Attached Namespace Attribute Notices.
    pub namespace_attribute: bool,
    /// Firmware Activation Notices.
    pub firmware_activation: bool,
    /// Telemetry Log Notices.
    pub telemetry_log: bool,
    /// Asymmetric Namespace Access Change Notices.
    pub ana_change: bool,
    /// Predictable Latency Event Aggregate Log Change Notices.
    pub predictable_latency: bool,
    /// LBA Status Information Notices.
    pub lba_status: bool,
    /// Endurance Group Event Aggregate Log Change Notices.
    pub endurance_group: bool,
    /// Normal NVM Subsystem Shutdown.
    pub subsystem_shutdown: bool,
    /// Temperature Threshold Hysteresis Recovery.
    pub temperature_recovery: bool,
    #[bits(2)]
    __: u8,
    /// Allocated Namespace Attribute Notices.
    pub allocated_namespace_attribute: bool,
    #[bits(7)]
    __: u8,
    /// Zone Descriptor Changed Notices.
    pub zone_descriptor: bool,
    #[bits(3)]
    __: u8,
    /// Discovery Log Page Change Notification.
    pub discovery_log: bool,
}

open_enum! {
    /// Timestamp Origin (Base 2.1 §5.1.25.1.7, TORG).
    pub struct TimestampOrigin(u8) {
        RESET = 0, "counts from a controller level reset";
        SET = 1, "set by the host";
    }
}

/// Attributes of a timestamp.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct TimestampAttributes {
    /// Synch: the controller may have stopped counting.
    pub synch: bool,
    /// Timestamp Origin.
    #[bits(3)]
    pub origin: TimestampOrigin,
    #[bits(4)]
    __: u8,
}
const _: () = assert!(size_of::<TimestampAttributes>() == 1);

/// Timestamp data, 8 bytes (Base 2.1 §5.1.25.1.7).
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
pub struct Timestamp {
    milliseconds: [u8; 6],
    /// Attributes (Get Features only).
    pub attributes: TimestampAttributes,
    reserved7: u8,
}
const _: () = assert!(size_of::<Timestamp>() == 8);

impl Timestamp {
    /// A timestamp; milliseconds since the origin, truncated to 48 bits.
    pub const fn new(milliseconds: u64, attributes: TimestampAttributes) -> Self {
        let [a, b, c, d, e, f, _, _] = milliseconds.to_le_bytes();
        Self {
            milliseconds: [a, b, c, d, e, f],
            attributes,
            reserved7: 0,
        }
    }

    /// Milliseconds since the origin (set by the host: since 1970-01-01 UTC).
    pub const fn milliseconds(&self) -> u64 {
        let [a, b, c, d, e, f] = self.milliseconds;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}

/// Copy Descriptor Formats Enable (Base 2.1 §5.1.25.1.14, CDFE): the formats of Copy that the host
/// enables. Formats 0 and 1 are always enabled.
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CopyFormatsEnabled {
    #[bits(2)]
    __: u8,
    /// Format 2h.
    pub format_2: bool,
    /// Format 3h.
    pub format_3: bool,
    /// Format 4h.
    pub format_4: bool,
    #[bits(11)]
    __: u16,
}
const _: () = assert!(size_of::<CopyFormatsEnabled>() == 2);

/// Host Behavior Support data, 512 bytes (Base 2.1 §5.1.25.1.14).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct HostBehavior {
    /// Advanced Command Retry Enable: 1 if the host honours the retry delay of a status.
    pub acre: u8,
    /// Extended Telemetry Data Area 4 Supported.
    pub etdas: u8,
    /// LBA Format Extension Enable.
    pub lbafee: u8,
    /// Host Dispersed Namespace Support.
    pub hdisns: u8,
    /// Copy Descriptor Formats Enable.
    pub cdfe: CopyFormatsEnabled,
    reserved6: [u8; 506],
}
const _: () = assert!(size_of::<HostBehavior>() == 512);

impl Default for HostBehavior {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

/// Host Identifier, Command Dword 11 (Base 2.1 §5.1.25.1.28). Its data is 8 or 16 bytes.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct HostIdentifierSize {
    /// Enable Extended Host Identifier: 16 bytes, the only size on fabrics.
    pub exhid: bool,
    #[bits(31)]
    __: u32,
}

/// Reservation Notification Mask (Base 2.1 §5.1.25.1.29): a set bit masks the notification.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ReservationNotificationMask {
    __: bool,
    /// Mask Registration Preempted.
    pub regpre: bool,
    /// Mask Reservation Released.
    pub resrel: bool,
    /// Mask Reservation Preempted.
    pub respre: bool,
    #[bits(28)]
    __: u32,
}

/// Reservation Persistence (Base 2.1 §5.1.25.1.30).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ReservationPersistence {
    /// Persist Through Power Loss.
    pub ptpl: bool,
    #[bits(31)]
    __: u32,
}

open_enum! {
    /// Write Protection State (Base 2.1 §5.1.25.1.31, WPS).
    pub struct WriteProtectionState(u8) {
        NONE = 0, "no write protect";
        WRITE_PROTECT = 1, "write protect";
        UNTIL_POWER_CYCLE = 2, "write protect until power cycle";
        PERMANENT = 3, "permanent write protect";
    }
}

/// Namespace Write Protection Config (Base 2.1 §5.1.25.1.31).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct NamespaceWriteProtection {
    /// Write Protection State.
    #[bits(3)]
    pub wps: WriteProtectionState,
    #[bits(29)]
    __: u32,
}
