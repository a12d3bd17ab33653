//! Admin commands (Base 2.1 §5): their dwords, and constructors for hosts.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{AdminOpcode, Sqe, command_view};
use crate::{U16, U32, U64};

open_enum! {
    /// I/O Command Set (Base 2.1 §5.1.13.1, CSI).
    pub struct CommandSet(u8) {
        NVM = 0x00, "NVM command set";
        KEY_VALUE = 0x01, "Key Value command set";
        ZONED = 0x02, "Zoned Namespace command set";
        SUBSYSTEM_LOCAL_MEMORY = 0x03, "Subsystem Local Memory command set";
        COMPUTATIONAL_PROGRAMS = 0x04, "Computational Programs command set";
    }
}

open_enum! {
    /// Controller or Namespace Structure (Base 2.1 §5.1.13.1, CNS).
    pub struct Cns(u8) {
        NAMESPACE = 0x00, "Identify Namespace";
        CONTROLLER = 0x01, "Identify Controller";
        ACTIVE_NAMESPACE_LIST = 0x02, "active namespace ID list";
        NAMESPACE_DESCRIPTORS = 0x03, "namespace identification descriptors";
        NVM_SET_LIST = 0x04, "NVM set list";
        IO_NAMESPACE = 0x05, "I/O command set specific Identify Namespace";
        IO_CONTROLLER = 0x06, "I/O command set specific Identify Controller";
        IO_ACTIVE_NAMESPACE_LIST = 0x07, "I/O command set specific active namespace ID list";
        INDEPENDENT_NAMESPACE = 0x08, "I/O command set independent Identify Namespace";
        NAMESPACE_USER_DATA_FORMAT = 0x09, "Identify Namespace, user data format";
        IO_NAMESPACE_USER_DATA_FORMAT = 0x0a, "I/O command set namespace, user data format";
        ALLOCATED_NAMESPACE_LIST = 0x10, "allocated namespace ID list";
        ALLOCATED_NAMESPACE = 0x11, "Identify allocated Namespace";
        NAMESPACE_CONTROLLER_LIST = 0x12, "controllers attached to the namespace";
        CONTROLLER_LIST = 0x13, "controllers of the subsystem";
        PRIMARY_CONTROLLER_CAPABILITIES = 0x14, "primary controller capabilities";
        SECONDARY_CONTROLLER_LIST = 0x15, "secondary controller list";
        NAMESPACE_GRANULARITY_LIST = 0x16, "namespace granularity list";
        UUID_LIST = 0x17, "UUID list";
        DOMAIN_LIST = 0x18, "domain list";
        ENDURANCE_GROUP_LIST = 0x19, "endurance group list";
        IO_ALLOCATED_NAMESPACE_LIST = 0x1a, "I/O command set specific allocated namespace ID list";
        IO_ALLOCATED_NAMESPACE = 0x1b, "I/O command set specific Identify allocated Namespace";
        IO_COMMAND_SETS = 0x1c, "I/O command set data structure";
    }
}

/// Command Dword 10 of Identify (Base 2.1 §5.1.13).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct IdentifySelect {
    /// Controller or Namespace Structure.
    #[bits(8)]
    pub cns: Cns,
    __: u8,
    /// Controller Identifier.
    pub cntid: u16,
}
const _: () = assert!(size_of::<IdentifySelect>() == 4);

/// Command Dword 11 of Identify (Base 2.1 §5.1.13).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct IdentifyQualifier {
    /// CNS Specific Identifier (NVM set, endurance group, domain, format index).
    pub cnssid: u16,
    __: u8,
    /// Command Set Identifier.
    #[bits(8)]
    pub csi: CommandSet,
}
const _: () = assert!(size_of::<IdentifyQualifier>() == 4);

/// Command Dword 14 of Identify, Get Features and Set Features: the UUID index (Base 2.1 §8.1.28).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct UuidSelect {
    /// UUID Index; 0 selects none.
    #[bits(7)]
    pub uuid_index: u8,
    #[bits(25)]
    __: u32,
}
const _: () = assert!(size_of::<UuidSelect>() == 4);

/// Command dwords 10 to 15 of Identify.
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
pub struct Identify {
    /// Structure and controller.
    pub select: IdentifySelect,
    /// Command set and further identifier.
    pub qualifier: IdentifyQualifier,
    reserved12: [u8; 8],
    /// UUID index.
    pub uuid: UuidSelect,
    reserved15: U32,
}
command_view!(Identify, identify, with_identify);

open_enum! {
    /// The value of a feature that Get Features returns (Base 2.1 §5.1.11, SEL).
    pub struct FeatureSelect(u8) {
        CURRENT = 0, "current";
        DEFAULT = 1, "default";
        SAVED = 2, "saved";
        SUPPORTED_CAPABILITIES = 3, "supported capabilities";
    }
}

/// Command Dword 10 of Get Features (Base 2.1 §5.1.11).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct GetFeaturesSelect {
    /// Feature Identifier.
    #[bits(8)]
    pub fid: FeatureId,
    /// Select.
    #[bits(3)]
    pub sel: FeatureSelect,
    #[bits(21)]
    __: u32,
}
const _: () = assert!(size_of::<GetFeaturesSelect>() == 4);

/// Command dwords 10 to 15 of Get Features.
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
pub struct GetFeatures {
    /// Feature and value.
    pub select: GetFeaturesSelect,
    /// Feature specific.
    pub cdw11: U32,
    reserved12: [u8; 8],
    /// UUID index.
    pub uuid: UuidSelect,
    reserved15: U32,
}
command_view!(GetFeatures, get_features, with_get_features);

/// Command Dword 10 of Set Features (Base 2.1 §5.1.25).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct SetFeaturesSelect {
    /// Feature Identifier.
    #[bits(8)]
    pub fid: FeatureId,
    #[bits(23)]
    __: u32,
    /// Save.
    pub sv: bool,
}
const _: () = assert!(size_of::<SetFeaturesSelect>() == 4);

/// Command dwords 10 to 15 of Set Features.
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
pub struct SetFeatures {
    /// Feature and save.
    pub select: SetFeaturesSelect,
    /// Feature specific.
    pub cdw11: U32,
    /// Feature specific.
    pub cdw12: U32,
    /// Feature specific.
    pub cdw13: U32,
    /// UUID index.
    pub uuid: UuidSelect,
    /// Feature specific.
    pub cdw15: U32,
}
command_view!(SetFeatures, set_features, with_set_features);

open_enum! {
    /// Feature Identifiers (Base 2.1 §5.1.25; NVM 1.1 §4.1.3).
    pub struct FeatureId(u8) {
        ARBITRATION = 0x01, "Arbitration";
        POWER_MANAGEMENT = 0x02, "Power Management";
        LBA_RANGE_TYPE = 0x03, "LBA Range Type";
        TEMPERATURE_THRESHOLD = 0x04, "Temperature Threshold";
        ERROR_RECOVERY = 0x05, "Error Recovery";
        VOLATILE_WRITE_CACHE = 0x06, "Volatile Write Cache";
        NUMBER_OF_QUEUES = 0x07, "Number of Queues";
        INTERRUPT_COALESCING = 0x08, "Interrupt Coalescing";
        INTERRUPT_VECTOR_CONFIGURATION = 0x09, "Interrupt Vector Configuration";
        WRITE_ATOMICITY = 0x0a, "Write Atomicity Normal";
        ASYNC_EVENT_CONFIGURATION = 0x0b, "Asynchronous Event Configuration";
        AUTONOMOUS_POWER_STATE = 0x0c, "Autonomous Power State Transition";
        HOST_MEMORY_BUFFER = 0x0d, "Host Memory Buffer";
        TIMESTAMP = 0x0e, "Timestamp";
        KEEP_ALIVE_TIMER = 0x0f, "Keep Alive Timer";
        HOST_CONTROLLED_THERMAL = 0x10, "Host Controlled Thermal Management";
        NON_OPERATIONAL_POWER_STATE = 0x11, "Non-Operational Power State Config";
        READ_RECOVERY_LEVEL = 0x12, "Read Recovery Level Config";
        PREDICTABLE_LATENCY_MODE = 0x13, "Predictable Latency Mode Config";
        PREDICTABLE_LATENCY_WINDOW = 0x14, "Predictable Latency Mode Window";
        LBA_STATUS_ATTRIBUTES = 0x15, "LBA Status Information Attributes";
        HOST_BEHAVIOR = 0x16, "Host Behavior Support";
        SANITIZE_CONFIG = 0x17, "Sanitize Config";
        ENDURANCE_GROUP_EVENT_CONFIG = 0x18, "Endurance Group Event Configuration";
        IO_COMMAND_SET_PROFILE = 0x19, "I/O Command Set Profile";
        SPINUP_CONTROL = 0x1a, "Spinup Control";
        POWER_LOSS_SIGNALING = 0x1b, "Power Loss Signaling Config";
        PERFORMANCE_CHARACTERISTICS = 0x1c, "Performance Characteristics";
        FLEXIBLE_DATA_PLACEMENT = 0x1d, "Flexible Data Placement";
        FLEXIBLE_DATA_PLACEMENT_EVENTS = 0x1e, "Flexible Data Placement Events";
        NAMESPACE_ADMIN_LABEL = 0x1f, "Namespace Admin Label";
        CONTROLLER_DATA_QUEUE = 0x21, "Controller Data Queue";
        ENHANCED_CONTROLLER_METADATA = 0x7d, "Enhanced Controller Metadata";
        CONTROLLER_METADATA = 0x7e, "Controller Metadata";
        NAMESPACE_METADATA = 0x7f, "Namespace Metadata";
        SOFTWARE_PROGRESS_MARKER = 0x80, "Software Progress Marker";
        HOST_IDENTIFIER = 0x81, "Host Identifier";
        RESERVATION_NOTIFICATION_MASK = 0x82, "Reservation Notification Mask";
        RESERVATION_PERSISTENCE = 0x83, "Reservation Persistence";
        NAMESPACE_WRITE_PROTECTION = 0x84, "Namespace Write Protection Config";
        BOOT_PARTITION_WRITE_PROTECTION = 0x85, "Boot Partition Write Protection Config";
    }
}

open_enum! {
    /// Log Page Identifiers (Base 2.1 §5.1.12.1; NVM 1.1 §4.1.4).
    pub struct LogPageId(u8) {
        SUPPORTED_LOG_PAGES = 0x00, "Supported Log Pages";
        ERROR_INFORMATION = 0x01, "Error Information";
        SMART_HEALTH = 0x02, "SMART / Health Information";
        FIRMWARE_SLOT = 0x03, "Firmware Slot Information";
        CHANGED_ATTACHED_NAMESPACES = 0x04, "Changed Attached Namespace List";
        COMMANDS_SUPPORTED_AND_EFFECTS = 0x05, "Commands Supported and Effects";
        DEVICE_SELF_TEST = 0x06, "Device Self-test";
        TELEMETRY_HOST = 0x07, "Telemetry Host-Initiated";
        TELEMETRY_CONTROLLER = 0x08, "Telemetry Controller-Initiated";
        ENDURANCE_GROUP = 0x09, "Endurance Group Information";
        PREDICTABLE_LATENCY_NVM_SET = 0x0a, "Predictable Latency Per NVM Set";
        PREDICTABLE_LATENCY_EVENTS = 0x0b, "Predictable Latency Event Aggregate";
        ANA = 0x0c, "Asymmetric Namespace Access";
        PERSISTENT_EVENT = 0x0d, "Persistent Event Log";
        LBA_STATUS = 0x0e, "LBA Status Information";
        ENDURANCE_GROUP_EVENTS = 0x0f, "Endurance Group Event Aggregate";
        MEDIA_UNIT_STATUS = 0x10, "Media Unit Status";
        SUPPORTED_CAPACITY_CONFIGURATIONS = 0x11, "Supported Capacity Configuration List";
        FEATURES_SUPPORTED_AND_EFFECTS = 0x12, "Feature Identifiers Supported and Effects";
        MI_COMMANDS_SUPPORTED_AND_EFFECTS = 0x13, "NVMe-MI Commands Supported and Effects";
        COMMAND_AND_FEATURE_LOCKDOWN = 0x14, "Command and Feature Lockdown";
        BOOT_PARTITION = 0x15, "Boot Partition";
        ROTATIONAL_MEDIA = 0x16, "Rotational Media Information";
        DISPERSED_NAMESPACE_SUBSYSTEMS = 0x17, "Dispersed Namespace Participating NVM Subsystems";
        MANAGEMENT_ADDRESSES = 0x18, "Management Address List";
        PHY_RECEIVER_EYE = 0x19, "Physical Interface Receiver Eye Opening Measurement";
        REACHABILITY_GROUPS = 0x1a, "Reachability Groups";
        REACHABILITY_ASSOCIATIONS = 0x1b, "Reachability Associations";
        CHANGED_ALLOCATED_NAMESPACES = 0x1c, "Changed Allocated Namespace List";
        FDP_CONFIGURATIONS = 0x20, "FDP Configurations";
        RECLAIM_UNIT_HANDLE_USAGE = 0x21, "Reclaim Unit Handle Usage";
        FDP_STATISTICS = 0x22, "FDP Statistics";
        FDP_EVENTS = 0x23, "FDP Events";
        DISCOVERY = 0x70, "Discovery";
        HOST_DISCOVERY = 0x71, "Host Discovery";
        AVE_DISCOVERY = 0x72, "AVE Discovery";
        PULL_MODEL_DDC_REQUEST = 0x73, "Pull Model DDC Request";
        RESERVATION_NOTIFICATION = 0x80, "Reservation Notification";
        SANITIZE_STATUS = 0x81, "Sanitize Status";
    }
}

/// Command dwords 10 and 11 of Get Log Page (Base 2.1 §5.1.12).
#[bitfield(u64, repr = U64, from = U64::new, into = U64::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct LogPageSelect {
    /// Log Page Identifier.
    #[bits(8)]
    pub lid: LogPageId,
    /// Log Specific Parameter.
    #[bits(7)]
    pub lsp: u8,
    /// Retain Asynchronous Event.
    pub rae: bool,
    /// Number of Dwords (NUMDL and NUMDU, which are adjacent), zero-based.
    pub numd_z: u32,
    /// Log Specific Identifier.
    pub lsi: u16,
}
const _: () = assert!(size_of::<LogPageSelect>() == 8);

/// Command Dword 14 of Get Log Page (Base 2.1 §5.1.12).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct LogPageQualifier {
    /// UUID Index.
    #[bits(7)]
    pub uuid_index: u8,
    __: u16,
    /// Offset Type: the offset counts entries, not bytes.
    pub ot: bool,
    /// Command Set Identifier.
    #[bits(8)]
    pub csi: CommandSet,
}
const _: () = assert!(size_of::<LogPageQualifier>() == 4);

/// Command dwords 10 to 15 of Get Log Page.
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
pub struct GetLogPage {
    /// Page, length and parameters.
    pub select: LogPageSelect,
    /// Log Page Offset, bytes unless `qualifier.ot()`.
    pub lpo: U64,
    /// UUID index, offset type, command set.
    pub qualifier: LogPageQualifier,
    reserved15: U32,
}
command_view!(GetLogPage, get_log_page, with_get_log_page);

impl GetLogPage {
    /// Number of bytes requested: 4 to 16 GiB.
    pub const fn length_bytes(&self) -> u64 {
        (self.select.numd_z() as u64 + 1) * 4
    }
}

/// Command dwords 10 to 15 of Abort (Base 2.1 §5.1.1).
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
pub struct Abort {
    /// Submission Queue Identifier of the command to abort.
    pub sqid: U16,
    /// Command Identifier of the command to abort.
    pub cid: U16,
    reserved11: [u8; 20],
}
command_view!(Abort, abort, with_abort);

/// Dword 0 of the completion of Abort (Base 2.1 §5.1.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AbortResult {
    /// Immediate Abort Not Performed.
    pub not_aborted: bool,
    #[bits(31)]
    __: u32,
}

/// Command Dword 11 of Create I/O Completion Queue (PCIe 1.1 §3.2; Base 2.1 §5.2.1).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CreateCqControl {
    /// Physically Contiguous.
    pub pc: bool,
    /// Interrupts Enabled.
    pub ien: bool,
    #[bits(14)]
    __: u16,
    /// Interrupt Vector.
    pub iv: u16,
}
const _: () = assert!(size_of::<CreateCqControl>() == 4);

/// Command dwords 10 to 15 of Create I/O Completion Queue.
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
pub struct CreateIoCq {
    /// Queue Identifier.
    pub qid: U16,
    /// Queue Size in entries, zero-based.
    pub qsize_z: U16,
    /// Control.
    pub control: CreateCqControl,
    reserved12: [u8; 16],
}
command_view!(CreateIoCq, create_io_cq, with_create_io_cq);

/// Command Dword 11 of Create I/O Submission Queue (Base 2.1 §5.2.2).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CreateSqControl {
    /// Physically Contiguous.
    pub pc: bool,
    /// Queue Priority: 0 urgent to 3 low.
    #[bits(2)]
    pub qprio: u8,
    #[bits(13)]
    __: u16,
    /// Completion Queue Identifier.
    pub cqid: u16,
}
const _: () = assert!(size_of::<CreateSqControl>() == 4);

/// Command dwords 10 to 15 of Create I/O Submission Queue.
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
pub struct CreateIoSq {
    /// Queue Identifier.
    pub qid: U16,
    /// Queue Size in entries, zero-based.
    pub qsize_z: U16,
    /// Control.
    pub control: CreateSqControl,
    /// NVM Set Identifier.
    pub nvmsetid: U16,
    reserved12: [u8; 14],
}
command_view!(CreateIoSq, create_io_sq, with_create_io_sq);

/// Command dwords 10 to 15 of Delete I/O Submission and Completion Queue (Base 2.1 §5.2.3, §5.2.4).
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
pub struct DeleteIoQueue {
    /// Queue Identifier.
    pub qid: U16,
    reserved: [u8; 22],
}
command_view!(DeleteIoQueue, delete_io_queue, with_delete_io_queue);

impl Sqe {
    /// Identify with a structure that needs neither a controller nor a command set.
    pub const fn identify_structure(cns: Cns, nsid: u32) -> Self {
        Self::identify_for_command_set(cns, nsid, CommandSet::NVM)
    }

    /// Identify with a structure of an I/O command set.
    pub const fn identify_for_command_set(cns: Cns, nsid: u32, csi: CommandSet) -> Self {
        Self::new(AdminOpcode::IDENTIFY.0, nsid).with_identify(Identify {
            select: IdentifySelect::new().with_cns(cns),
            qualifier: IdentifyQualifier::new().with_csi(csi),
            reserved12: [0; 8],
            uuid: UuidSelect::new(),
            reserved15: U32::ZERO,
        })
    }

    /// Get the value of a feature.
    pub const fn get_feature(fid: FeatureId, sel: FeatureSelect, nsid: u32, cdw11: u32) -> Self {
        Self::new(AdminOpcode::GET_FEATURES.0, nsid).with_get_features(GetFeatures {
            select: GetFeaturesSelect::new().with_fid(fid).with_sel(sel),
            cdw11: U32::new(cdw11),
            reserved12: [0; 8],
            uuid: UuidSelect::new(),
            reserved15: U32::ZERO,
        })
    }

    /// Set a feature to the value of Command Dword 11, without saving it.
    pub const fn set_feature(fid: FeatureId, nsid: u32, cdw11: u32) -> Self {
        Self::new(AdminOpcode::SET_FEATURES.0, nsid).with_set_features(SetFeatures {
            select: SetFeaturesSelect::new().with_fid(fid),
            cdw11: U32::new(cdw11),
            cdw12: U32::ZERO,
            cdw13: U32::ZERO,
            uuid: UuidSelect::new(),
            cdw15: U32::ZERO,
        })
    }

    /// Get `(numd_z + 1) * 4` bytes of a log page from byte `offset`.
    pub const fn log_page(nsid: u32, select: LogPageSelect, offset: u64) -> Self {
        Self::new(AdminOpcode::GET_LOG_PAGE.0, nsid).with_get_log_page(GetLogPage {
            select,
            lpo: U64::new(offset),
            qualifier: LogPageQualifier::new(),
            reserved15: U32::ZERO,
        })
    }

    /// Abort the command `cid` of submission queue `sqid`.
    pub const fn abort_command(sqid: u16, cid: u16) -> Self {
        Self::new(AdminOpcode::ABORT.0, 0).with_abort(Abort {
            sqid: U16::new(sqid),
            cid: U16::new(cid),
            reserved11: [0; 20],
        })
    }

    /// Asynchronous Event Request.
    pub const fn async_event_request() -> Self {
        Self::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0)
    }

    /// Keep Alive.
    pub const fn keep_alive() -> Self {
        Self::new(AdminOpcode::KEEP_ALIVE.0, 0)
    }
}
