//! Identify Controller, CNS 01h (Base 2.1 §5.1.13.2.1), and the NVM command set's part, CNS 06h
//! (NVM 1.1 §4.1.5.4).

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{IDENTIFY_BYTES, zero_default};
use crate::ascii::SpacePadded;
use crate::nqn::NqnField;
use crate::registers::Version;
use crate::{U16, U32, U64, U128};

/// Controller Multi-Path I/O and Namespace Sharing Capabilities (CMIC).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Cmic {
    /// The subsystem may have more than one port.
    pub multiple_ports: bool,
    /// The subsystem may have two or more controllers.
    pub multiple_controllers: bool,
    /// The controller is an SR-IOV virtual function.
    pub virtual_function: bool,
    /// Asymmetric Namespace Access Reporting.
    pub ana_reporting: bool,
    #[bits(4)]
    __: u8,
}
const _: () = assert!(size_of::<Cmic>() == 1);

/// Optional Asynchronous Events Supported (OAES).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Oaes {
    __: u8,
    /// Attached Namespace Attribute Notices.
    pub namespace_attribute: bool,
    /// Firmware Activation Notices.
    pub firmware_activation: bool,
    __: bool,
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
const _: () = assert!(size_of::<Oaes>() == 4);

/// Controller Attributes (CTRATT).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Ctratt {
    /// 128-bit Host Identifier (HIDS).
    pub hids: bool,
    /// Non-Operational Power State Permissive Mode.
    pub nopspm: bool,
    /// NVM Sets.
    pub nsets: bool,
    /// Read Recovery Levels.
    pub rrlvls: bool,
    /// Endurance Groups.
    pub egs: bool,
    /// Predictable Latency Mode.
    pub plm: bool,
    /// Traffic Based Keep Alive Support.
    pub tbkas: bool,
    /// Namespace Granularity.
    pub ng: bool,
    /// SQ Associations.
    pub sqa: bool,
    /// UUID List.
    pub ulist: bool,
    /// Multi-Domain Subsystem.
    pub mds: bool,
    /// Fixed Capacity Management.
    pub fcm: bool,
    /// Variable Capacity Management.
    pub vcm: bool,
    /// Delete Endurance Group.
    pub deg: bool,
    /// Delete NVM Set.
    pub dnvms: bool,
    /// Extended LBA Formats Supported.
    pub elbas: bool,
    /// MDTS and Size Limits Exclude Metadata.
    pub mem: bool,
    /// HMB Restrict Non-Operational Power State Access.
    pub hmbr: bool,
    /// Reservations and Host Identifier Interaction.
    pub rhii: bool,
    /// Flexible Data Placement Support.
    pub fdps: bool,
    #[bits(12)]
    __: u16,
}
const _: () = assert!(size_of::<Ctratt>() == 4);

open_enum! {
    /// Controller Type (CNTRLTYPE).
    pub struct ControllerType(u8) {
        NOT_REPORTED = 0, "not reported";
        IO = 1, "I/O controller";
        DISCOVERY = 2, "discovery controller";
        ADMINISTRATIVE = 3, "administrative controller";
    }
}

open_enum! {
    /// Discovery Controller Type (DCTYPE).
    pub struct DiscoveryControllerType(u8) {
        NOT_REPORTED = 0, "not reported";
        DIRECT = 1, "direct discovery controller";
        CENTRAL = 2, "central discovery controller";
    }
}

/// Optional Admin Command Support (OACS).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Oacs {
    /// Security Send and Receive.
    pub security: bool,
    /// Format NVM.
    pub format: bool,
    /// Firmware Commit and Image Download.
    pub firmware: bool,
    /// Namespace Management and Attachment.
    pub namespace_management: bool,
    /// Device Self-test.
    pub self_test: bool,
    /// Directives.
    pub directives: bool,
    /// NVMe-MI Send and Receive.
    pub management_interface: bool,
    /// Virtualization Management.
    pub virtualization: bool,
    /// Doorbell Buffer Config.
    pub doorbell_buffer: bool,
    /// Get LBA Status.
    pub lba_status: bool,
    /// Command and Feature Lockdown.
    pub lockdown: bool,
    /// Host Managed Live Migration.
    pub live_migration: bool,
    #[bits(4)]
    __: u8,
}
const _: () = assert!(size_of::<Oacs>() == 2);

/// Firmware Updates (FRMW).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Frmw {
    /// The first slot is read only.
    pub first_slot_read_only: bool,
    /// Number of firmware slots, 1 to 7.
    #[bits(3)]
    pub slots: u8,
    /// Activation without reset.
    pub activation_without_reset: bool,
    /// Multiple Update Detection.
    pub mupd: bool,
    #[bits(2)]
    __: u8,
}
const _: () = assert!(size_of::<Frmw>() == 1);

/// Log Page Attributes (LPA).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Lpa {
    /// SMART / Health log per namespace.
    pub smart_per_namespace: bool,
    /// Commands Supported and Effects log.
    pub commands_effects: bool,
    /// Extended data: NUMDU and the log page offset are honoured.
    pub extended_data: bool,
    /// Telemetry logs.
    pub telemetry: bool,
    /// Persistent Event log.
    pub persistent_event: bool,
    /// Supported Log Pages, Feature Effects and MI Effects logs.
    pub supported_logs: bool,
    /// Telemetry Data Area 4.
    pub telemetry_area_4: bool,
    __: bool,
}
const _: () = assert!(size_of::<Lpa>() == 1);

/// Asymmetric Namespace Access Capabilities (ANACAP).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Anacap {
    /// Reports the Optimized state.
    pub optimized: bool,
    /// Reports the Non-Optimized state.
    pub non_optimized: bool,
    /// Reports the Inaccessible state.
    pub inaccessible: bool,
    /// Reports the Persistent Loss state.
    pub persistent_loss: bool,
    /// Reports the Change state.
    pub change: bool,
    __: bool,
    /// ANAGRPID does not change while a namespace is attached.
    pub group_fixed: bool,
    /// Supports a non-zero ANAGRPID in Namespace Management.
    pub group_settable: bool,
}
const _: () = assert!(size_of::<Anacap>() == 1);

/// Queue Entry Size (SQES, CQES), powers of two.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct EntrySizes {
    /// Required entry size: 2^n bytes.
    #[bits(4)]
    pub min: u8,
    /// Largest entry size: 2^n bytes.
    #[bits(4)]
    pub max: u8,
}
const _: () = assert!(size_of::<EntrySizes>() == 1);

/// Optional NVM Command Support (ONCS).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Oncs {
    /// Compare.
    pub compare: bool,
    /// Write Uncorrectable.
    pub write_uncorrectable: bool,
    /// Dataset Management.
    pub dataset_management: bool,
    /// Write Zeroes.
    pub write_zeroes: bool,
    /// Save in Set Features and Select in Get Features.
    pub save_select: bool,
    /// Reservations.
    pub reservations: bool,
    /// Timestamp.
    pub timestamp: bool,
    /// Verify.
    pub verify: bool,
    /// Copy.
    pub copy: bool,
    /// Copy Single Atomicity.
    pub copy_single_atomicity: bool,
    /// All Fast Copy.
    pub all_fast_copy: bool,
    /// Maximum Write Zeroes With Deallocate: WZDSL applies.
    pub maxwzd: bool,
    /// Namespace Zeroes.
    pub nszs: bool,
    #[bits(3)]
    __: u8,
}
const _: () = assert!(size_of::<Oncs>() == 2);

/// Fused Operation Support (FUSES).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Fuses {
    /// Compare and Write.
    pub compare_and_write: bool,
    #[bits(15)]
    __: u16,
}
const _: () = assert!(size_of::<Fuses>() == 2);

/// Format NVM Attributes (FNA).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Fna {
    /// Format applies to all namespaces.
    pub format_all: bool,
    /// Secure erase applies to all namespaces.
    pub erase_all: bool,
    /// Cryptographic erase.
    pub crypto_erase: bool,
    /// Format with the broadcast namespace identifier is not supported.
    pub no_broadcast: bool,
    #[bits(4)]
    __: u8,
}
const _: () = assert!(size_of::<Fna>() == 1);

/// Copy Descriptor Formats Supported (CDFS).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Cdfs {
    /// Format 0h.
    pub format_0: bool,
    /// Format 1h.
    pub format_1: bool,
    /// Format 2h.
    pub format_2: bool,
    /// Format 3h.
    pub format_3: bool,
    /// Format 4h.
    pub format_4: bool,
    #[bits(11)]
    __: u16,
}
const _: () = assert!(size_of::<Cdfs>() == 2);

open_enum! {
    /// Behaviour of Flush with the broadcast namespace identifier (VWC bits 2:1).
    pub struct FlushBehavior(u8) {
        NOT_INDICATED = 0, "not indicated";
        BROADCAST_NOT_SUPPORTED = 2, "broadcast flush not supported";
        BROADCAST_SUPPORTED = 3, "broadcast flush supported";
    }
}

/// Volatile Write Cache (VWC).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Vwc {
    /// A volatile write cache is present.
    pub present: bool,
    /// Flush Behavior.
    #[bits(2)]
    pub flush: FlushBehavior,
    #[bits(5)]
    __: u8,
}
const _: () = assert!(size_of::<Vwc>() == 1);

/// Namespace Write Protection Capabilities (NWPC).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nwpc {
    /// No Write Protect and Write Protect.
    pub write_protect: bool,
    /// Write Protect Until Power Cycle.
    pub until_power_cycle: bool,
    /// Permanent Write Protect.
    pub permanent: bool,
    #[bits(5)]
    __: u8,
}
const _: () = assert!(size_of::<Nwpc>() == 1);

open_enum! {
    /// SGL support and alignment (SGLS bits 1:0).
    pub struct SglSupport(u8) {
        NONE = 0, "no SGLs";
        ANY_ALIGNMENT = 1, "SGLs of any alignment and granularity";
        DWORD = 2, "SGLs with dword alignment and granularity";
    }
}

/// SGL Support (SGLS).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Sgls {
    /// Support and alignment.
    #[bits(2)]
    pub support: SglSupport,
    /// Keyed SGL Data Block descriptor.
    pub keyed: bool,
    #[bits(5)]
    __: u8,
    /// SGL Descriptor Threshold: recommended maximum of descriptors per command; 0 means none is
    /// recommended.
    pub descriptor_threshold: u8,
    /// Bit Bucket descriptor.
    pub bit_bucket: bool,
    /// A byte-aligned contiguous metadata buffer in MPTR.
    pub byte_aligned_metadata: bool,
    /// SGL Length Larger than Data Length is allowed.
    pub longer_than_data: bool,
    /// MPTR may hold the address of an SGL descriptor.
    pub metadata_sgl: bool,
    /// The address of a descriptor may be an offset (in-capsule data).
    pub offset: bool,
    /// Transport SGL Data Block descriptor.
    pub transport: bool,
    #[bits(10)]
    __: u16,
}
const _: () = assert!(size_of::<Sgls>() == 4);

/// Fabrics Controller Attributes (FCATT).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Fcatt {
    /// Controller Model: set if static, cleared if dynamic.
    pub static_model: bool,
    #[bits(7)]
    __: u8,
}
const _: () = assert!(size_of::<Fcatt>() == 1);

/// Optional Fabrics Commands Support (OFCS).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Ofcs {
    /// Disconnect.
    pub disconnect: bool,
    #[bits(15)]
    __: u16,
}
const _: () = assert!(size_of::<Ofcs>() == 2);

/// Power state flags (byte 3 of a descriptor).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct PowerStateFlags {
    /// Max Power Scale: 0.0001 W; cleared: 0.01 W.
    pub max_power_scale: bool,
    /// Non-Operational State.
    pub non_operational: bool,
    #[bits(6)]
    __: u8,
}
const _: () = assert!(size_of::<PowerStateFlags>() == 1);

/// Power State Descriptor, 32 bytes (Base 2.1 §5.1.13.2.1).
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
pub struct PowerStateDescriptor {
    /// Maximum Power, in the unit of the scale flag.
    pub mp: U16,
    reserved2: u8,
    /// Flags.
    pub flags: PowerStateFlags,
    /// Entry Latency, microseconds.
    pub enlat: U32,
    /// Exit Latency, microseconds.
    pub exlat: U32,
    /// Relative Read Throughput, 0 is best.
    pub rrt: u8,
    /// Relative Read Latency, 0 is best.
    pub rrl: u8,
    /// Relative Write Throughput, 0 is best.
    pub rwt: u8,
    /// Relative Write Latency, 0 is best.
    pub rwl: u8,
    /// Idle Power, in the unit of its scale.
    pub idlp: U16,
    /// Idle Power Scale, in bits 7:6.
    pub ips: u8,
    reserved19: u8,
    /// Active Power, in the unit of its scale.
    pub actp: U16,
    /// Active Power Workload and Scale.
    pub apws: u8,
    reserved23: [u8; 9],
}
const _: () = assert!(size_of::<PowerStateDescriptor>() == 32);

/// Identify Controller data structure, 4096 bytes (Base 2.1 §5.1.13.2.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI Vendor ID.
    pub vid: U16,
    /// PCI Subsystem Vendor ID.
    pub ssvid: U16,
    /// Serial Number.
    pub sn: SpacePadded<20>,
    /// Model Number.
    pub mn: SpacePadded<40>,
    /// Firmware Revision.
    pub fr: SpacePadded<8>,
    /// Recommended Arbitration Burst: 2^RAB commands.
    pub rab: u8,
    /// IEEE OUI Identifier, little-endian.
    pub ieee: [u8; 3],
    /// Multi-path and sharing capabilities.
    pub cmic: Cmic,
    /// Maximum Data Transfer Size: 2^MDTS pages of CAP.MPSMIN; 0 means no limit.
    pub mdts: u8,
    /// Controller ID.
    pub cntlid: U16,
    /// Version; see [`IdentifyController::version`].
    pub ver: U32,
    /// RTD3 Resume Latency, microseconds.
    pub rtd3r: U32,
    /// RTD3 Entry Latency, microseconds.
    pub rtd3e: U32,
    /// Optional Asynchronous Events Supported.
    pub oaes: Oaes,
    /// Controller Attributes.
    pub ctratt: Ctratt,
    /// Read Recovery Levels Supported.
    pub rrls: U16,
    /// Boot Partition Capabilities.
    pub bpcap: u8,
    reserved103: u8,
    /// NVM Subsystem Shutdown Latency, microseconds.
    pub nssl: U32,
    reserved108: [u8; 2],
    /// Power Loss Signaling Information.
    pub plsi: u8,
    /// Controller Type.
    pub cntrltype: ControllerType,
    /// FRU Globally Unique Identifier.
    pub fguid: [u8; 16],
    /// Command Retry Delay Time 1, 100 ms units.
    pub crdt1: U16,
    /// Command Retry Delay Time 2, 100 ms units.
    pub crdt2: U16,
    /// Command Retry Delay Time 3, 100 ms units.
    pub crdt3: U16,
    /// Controller Reachability Capabilities.
    pub crcap: u8,
    reserved135: [u8; 118],
    /// NVM Subsystem Report.
    pub nvmsr: u8,
    /// VPD Write Cycle Information.
    pub vwci: u8,
    /// Management Endpoint Capabilities.
    pub mec: u8,
    /// Optional Admin Command Support.
    pub oacs: Oacs,
    /// Abort Command Limit, zero-based.
    pub acl_z: u8,
    /// Asynchronous Event Request Limit, zero-based.
    pub aerl_z: u8,
    /// Firmware Updates.
    pub frmw: Frmw,
    /// Log Page Attributes.
    pub lpa: Lpa,
    /// Error Log Page Entries, zero-based.
    pub elpe_z: u8,
    /// Number of Power States Support, zero-based.
    pub npss_z: u8,
    /// Admin Vendor Specific Command Configuration.
    pub avscc: u8,
    /// Autonomous Power State Transition Attributes.
    pub apsta: u8,
    /// Warning Composite Temperature Threshold, kelvin.
    pub wctemp: U16,
    /// Critical Composite Temperature Threshold, kelvin.
    pub cctemp: U16,
    /// Maximum Time for Firmware Activation, 100 ms units.
    pub mtfa: U16,
    /// Host Memory Buffer Preferred Size, 4 KiB units.
    pub hmpre: U32,
    /// Host Memory Buffer Minimum Size, 4 KiB units.
    pub hmmin: U32,
    /// Total NVM Capacity, bytes.
    pub tnvmcap: U128,
    /// Unallocated NVM Capacity, bytes.
    pub unvmcap: U128,
    /// Replay Protected Memory Block Support.
    pub rpmbs: U32,
    /// Extended Device Self-test Time, minutes.
    pub edstt: U16,
    /// Device Self-test Options.
    pub dsto: u8,
    /// Firmware Update Granularity, 4 KiB units.
    pub fwug: u8,
    /// Keep Alive Support: granularity of the timer, 100 ms units; 0 if unsupported.
    pub kas: U16,
    /// Host Controlled Thermal Management Attributes.
    pub hctma: U16,
    /// Minimum Thermal Management Temperature, kelvin.
    pub mntmt: U16,
    /// Maximum Thermal Management Temperature, kelvin.
    pub mxtmt: U16,
    /// Sanitize Capabilities.
    pub sanicap: U32,
    /// Host Memory Buffer Minimum Descriptor Entry Size, 4 KiB units.
    pub hmminds: U32,
    /// Host Memory Maximum Descriptors Entries.
    pub hmmaxd: U16,
    /// NVM Set Identifier Maximum.
    pub nsetidmax: U16,
    /// Endurance Group Identifier Maximum.
    pub endgidmax: U16,
    /// ANA Transition Time, seconds.
    pub anatt: u8,
    /// Asymmetric Namespace Access Capabilities.
    pub anacap: Anacap,
    /// ANA Group Identifier Maximum.
    pub anagrpmax: U32,
    /// Number of ANA Group Identifiers.
    pub nanagrpid: U32,
    /// Persistent Event Log Size, 64 KiB units.
    pub pels: U32,
    /// Domain Identifier.
    pub domainid: U16,
    /// Key Per I/O Capabilities.
    pub kpioc: u8,
    reserved359: u8,
    /// Maximum Processing Time for Firmware Activation Without Reset, 100 ms units.
    pub mptfawr: U16,
    reserved362: [u8; 6],
    /// Max Endurance Group Capacity, bytes.
    pub megcap: U128,
    /// Temperature Threshold Hysteresis Attributes.
    pub tmpthha: u8,
    reserved385: u8,
    /// Command Quiesce Time, milliseconds.
    pub cqt: U16,
    reserved388: [u8; 124],
    /// Submission Queue Entry Size.
    pub sqes: EntrySizes,
    /// Completion Queue Entry Size.
    pub cqes: EntrySizes,
    /// Maximum Outstanding Commands of a queue.
    pub maxcmd: U16,
    /// Number of Namespaces: the largest valid identifier.
    pub nn: U32,
    /// Optional NVM Command Support.
    pub oncs: Oncs,
    /// Fused Operation Support.
    pub fuses: Fuses,
    /// Format NVM Attributes.
    pub fna: Fna,
    /// Volatile Write Cache.
    pub vwc: Vwc,
    /// Atomic Write Unit Normal in blocks, zero-based.
    pub awun_z: U16,
    /// Atomic Write Unit Power Fail in blocks, zero-based.
    pub awupf_z: U16,
    /// I/O Command Set Vendor Specific Command Configuration.
    pub icsvscc: u8,
    /// Namespace Write Protection Capabilities.
    pub nwpc: Nwpc,
    /// Atomic Compare & Write Unit in blocks, zero-based.
    pub acwu_z: U16,
    /// Copy Descriptor Formats Supported.
    pub cdfs: Cdfs,
    /// SGL Support.
    pub sgls: Sgls,
    /// Maximum Number of Allowed Namespaces; 0 if NN is the maximum.
    pub mnan: U32,
    /// Maximum Domain Namespace Attachments.
    pub maxdna: U128,
    /// Maximum I/O Controller Namespace Attachments.
    pub maxcna: U32,
    /// Optimal Aggregated Queue Depth.
    pub oaqd: U32,
    /// Recommended Host-Initiated Refresh Interval.
    pub rhiri: u8,
    /// Host-Initiated Refresh Time.
    pub hirt: u8,
    /// Controller Maximum Memory Range Tracking Descriptors.
    pub cmmrtd: U16,
    /// NVM Subsystem Maximum Memory Range Tracking Descriptors.
    pub nmmrtd: U16,
    /// Minimum Memory Range Tracking Granularity.
    pub minmrtg: u8,
    /// Maximum Memory Range Tracking Granularity.
    pub maxmrtg: u8,
    /// Tracking Attributes.
    pub trattr: u8,
    reserved577: u8,
    /// Maximum Controller User Data Migration Queues.
    pub mcudmq: U16,
    /// Maximum NVM Subsystem User Data Migration Queues.
    pub mnsudmq: U16,
    /// Maximum CDQ Memory Ranges.
    pub mcmr: U16,
    /// NVM Subsystem Maximum CDQ Memory Ranges.
    pub nmcmr: U16,
    /// Maximum Controller Data Queue PRP Count.
    pub mcdqpc: U16,
    reserved588: [u8; 180],
    /// NVM Subsystem NVMe Qualified Name.
    pub subnqn: NqnField,
    reserved1024: [u8; 768],
    /// I/O Queue Command Capsule Supported Size, 16-byte units; at least 4.
    pub ioccsz: U32,
    /// I/O Queue Response Capsule Supported Size, 16-byte units; at least 1.
    pub iorcsz: U32,
    /// In Capsule Data Offset, 16-byte units from the end of the command.
    pub icdoff: U16,
    /// Fabrics Controller Attributes.
    pub fcatt: Fcatt,
    /// Maximum SGL Data Block Descriptors of a command; 0 means no limit.
    pub msdbd: u8,
    /// Optional Fabrics Commands Support.
    pub ofcs: Ofcs,
    /// Discovery Controller Type.
    pub dctype: DiscoveryControllerType,
    /// Cross-Controller Reset Limit.
    pub ccrl: u8,
    reserved1808: [u8; 240],
    /// Power State Descriptors.
    pub psd: [PowerStateDescriptor; 32],
    /// Vendor specific.
    pub vs: [u8; 1024],
}
const _: () = assert!(size_of::<IdentifyController>() == IDENTIFY_BYTES);

/// Unit of IOCCSZ and IORCSZ, bytes.
pub const CAPSULE_UNIT_BYTES: u32 = 16;

impl IdentifyController {
    /// The version.
    pub const fn version(&self) -> Version {
        Version::from_bits(self.ver.get())
    }

    /// The largest transfer in bytes, for a smallest page of `page_bytes_min`; `None` if unlimited.
    pub const fn transfer_bytes_max(&self, page_bytes_min: u32) -> Option<u64> {
        if self.mdts == 0 {
            return None;
        }
        match (page_bytes_min as u64).checked_shl(self.mdts as u32) {
            Some(bytes) if bytes >> self.mdts == page_bytes_min as u64 => Some(bytes),
            // A limit that exceeds 64 bits has no effect.
            _ => None,
        }
    }

    /// In-capsule data that an I/O queue supports, bytes: IOCCSZ without the command and ICDOFF.
    pub const fn in_capsule_data_bytes(&self) -> u64 {
        let capsule = self.ioccsz.get() as u64 * CAPSULE_UNIT_BYTES as u64;
        let start =
            size_of::<crate::Sqe>() as u64 + self.icdoff.get() as u64 * CAPSULE_UNIT_BYTES as u64;
        capsule.saturating_sub(start)
    }

    /// Sets IOCCSZ for `bytes` of in-capsule data directly after the command (rounded down to a
    /// multiple of 16).
    pub const fn set_in_capsule_data_bytes(&mut self, bytes: u32) {
        let units =
            size_of::<crate::Sqe>() as u32 / CAPSULE_UNIT_BYTES + bytes / CAPSULE_UNIT_BYTES;
        self.ioccsz = U32::new(units);
        self.icdoff = U16::ZERO;
    }
}

/// NVM command set specific Identify Controller, 4096 bytes, CNS 06h CSI 00h (NVM 1.1 §4.1.5.4).
///
/// Size limits are 2^n pages of CAP.MPSMIN, like MDTS; 0 means no limit.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NvmIdentifyController {
    /// Verify Size Limit.
    pub vsl: u8,
    /// Write Zeroes Size Limit.
    pub wzsl: u8,
    /// Write Uncorrectable Size Limit.
    pub wusl: u8,
    /// Dataset Management Ranges Limit; 0 means no limit.
    pub dmrl: u8,
    /// Dataset Management Range Size Limit, blocks; 0 means no limit.
    pub dmrsl: U32,
    /// Dataset Management Size Limit, blocks; 0 means no limit.
    pub dmsl: U64,
    /// Key Per I/O Capabilities.
    pub kpiocap: u8,
    /// Write Zeroes With Deallocate Size Limit.
    pub wzdsl: u8,
    /// Admin Optional Command Support.
    pub aocs: U16,
    /// Version of the NVM Command Set specification.
    pub ver: U32,
    /// LBA Migration Queue Format.
    pub lbamqf: u8,
    reserved25: [u8; 4071],
}
const _: () = assert!(size_of::<NvmIdentifyController>() == IDENTIFY_BYTES);

zero_default!(IdentifyController, NvmIdentifyController);
