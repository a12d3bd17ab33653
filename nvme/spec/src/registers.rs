//! Controller properties: registers on PCIe, accessed by Property Get and Set on fabrics (Base 2.1
//! §3.1.4; PCIe 1.1 §3.1 for doorbells).

use bitfield_struct::bitfield;

use crate::fabrics::PropertySize;

open_enum! {
    /// Offset of a property, bytes (Base 2.1 §3.1.4).
    pub struct Register(u32) {
        CAP = 0x00, "Controller Capabilities";
        VS = 0x08, "Version";
        INTMS = 0x0c, "Interrupt Mask Set";
        INTMC = 0x10, "Interrupt Mask Clear";
        CC = 0x14, "Controller Configuration";
        CSTS = 0x1c, "Controller Status";
        NSSR = 0x20, "NVM Subsystem Reset";
        AQA = 0x24, "Admin Queue Attributes";
        ASQ = 0x28, "Admin Submission Queue Base Address";
        ACQ = 0x30, "Admin Completion Queue Base Address";
        CMBLOC = 0x38, "Controller Memory Buffer Location";
        CMBSZ = 0x3c, "Controller Memory Buffer Size";
        BPINFO = 0x40, "Boot Partition Information";
        BPRSEL = 0x44, "Boot Partition Read Select";
        BPMBL = 0x48, "Boot Partition Memory Buffer Location";
        CMBMSC = 0x50, "Controller Memory Buffer Memory Space Control";
        CMBSTS = 0x58, "Controller Memory Buffer Status";
        CMBEBS = 0x5c, "Controller Memory Buffer Elasticity Buffer Size";
        CMBSWTP = 0x60, "Controller Memory Buffer Sustained Write Throughput";
        NSSD = 0x64, "NVM Subsystem Shutdown";
        CRTO = 0x68, "Controller Ready Timeouts";
        PMRCAP = 0xe00, "Persistent Memory Region Capabilities";
        PMRCTL = 0xe04, "Persistent Memory Region Control";
        PMRSTS = 0xe08, "Persistent Memory Region Status";
        PMREBS = 0xe0c, "Persistent Memory Region Elasticity Buffer Size";
        PMRSWTP = 0xe10, "Persistent Memory Region Sustained Write Throughput";
        PMRMSCL = 0xe14, "Persistent Memory Region Memory Space Control Lower";
        PMRMSCU = 0xe18, "Persistent Memory Region Memory Space Control Upper";
    }
}

impl Register {
    /// Width of a known property; `None` if no property begins at the offset.
    pub const fn size(self) -> Option<PropertySize> {
        match self {
            Self::CAP | Self::ASQ | Self::ACQ | Self::BPMBL | Self::CMBMSC => {
                Some(PropertySize::BYTES_8)
            }
            _ if self.name().is_some() => Some(PropertySize::BYTES_4),
            _ => None,
        }
    }

    /// Whether a fabrics controller has the property (Base 2.1 §3.1.4: CAP, VS, CC, CSTS, NSSR and,
    /// optionally, NSSD and CRTO).
    pub const fn is_for_fabrics(self) -> bool {
        matches!(
            self,
            Self::CAP | Self::VS | Self::CC | Self::CSTS | Self::NSSR | Self::NSSD | Self::CRTO
        )
    }
}

/// The value of every read of a memory-mapped register of a removed device.
pub const REGISTER_GONE_U32: u32 = u32::MAX;

/// The value that starts an NVM Subsystem Reset: "NVMe" (Base 2.1 §3.1.4.7, NSSRC).
pub const NSSR_RESET: u32 = 0x4e56_4d65;

/// The value that starts a normal NVM Subsystem Shutdown: "Nrml" (Base 2.1 §3.1.4.20, NSSC).
pub const NSSD_NORMAL: u32 = 0x4e72_6d6c;

/// The value that starts an abrupt NVM Subsystem Shutdown: "Abpt" (Base 2.1 §3.1.4.20, NSSC).
pub const NSSD_ABRUPT: u32 = 0x4162_7074;

/// Command sets in CAP.CSS (Base 2.1 §3.1.4.1).
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct CommandSetsSupported {
    /// NVM Command Set (NCSS).
    pub nvm: bool,
    #[bits(5)]
    __: u8,
    /// One or more I/O command sets, selected by a profile (IOCSS).
    pub profiles: bool,
    /// No I/O command set: admin only (NOIOCSS).
    pub admin_only: bool,
}

/// Controller Capabilities (Base 2.1 §3.1.4.1, CAP).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Cap {
    /// Maximum Queue Entries Supported, zero-based.
    pub mqes_z: u16,
    /// Contiguous Queues Required.
    pub cqr: bool,
    /// Arbitration: weighted round robin with urgent priority.
    pub ams_weighted: bool,
    /// Arbitration: vendor specific.
    pub ams_vendor: bool,
    #[bits(5)]
    __: u8,
    /// Timeout for CSTS.RDY to follow CC.EN, 500 ms units.
    pub to: u8,
    /// Doorbell Stride: 2^(2 + DSTRD) bytes.
    #[bits(4)]
    pub dstrd: u8,
    /// NVM Subsystem Reset Supported.
    pub nssrs: bool,
    /// Command Sets Supported.
    #[bits(8)]
    pub css: CommandSetsSupported,
    /// Boot Partition Support.
    pub bps: bool,
    /// Controller Power Scope.
    #[bits(2)]
    pub cps: u8,
    /// Memory Page Size Minimum: 2^(12 + MPSMIN) bytes.
    #[bits(4)]
    pub mpsmin: u8,
    /// Memory Page Size Maximum: 2^(12 + MPSMAX) bytes.
    #[bits(4)]
    pub mpsmax: u8,
    /// Persistent Memory Region Supported.
    pub pmrs: bool,
    /// Controller Memory Buffer Supported.
    pub cmbs: bool,
    /// NVM Subsystem Shutdown Supported.
    pub nsss: bool,
    /// Controller Ready With Media Support (CRMS bit 0).
    pub crwms: bool,
    /// Controller Ready Independent of Media Support (CRMS bit 1).
    pub crims: bool,
    /// NVM Subsystem Shutdown Enhancements Supported.
    pub nsses: bool,
    #[bits(2)]
    __: u8,
}
const _: () = assert!(size_of::<Cap>() == 8);

impl Cap {
    /// Entries of the largest queue, 1 to 65,536.
    pub const fn mqes(self) -> u32 {
        self.mqes_z() as u32 + 1
    }

    /// Timeout for CSTS.RDY to follow CC.EN, milliseconds.
    pub const fn timeout_ms(self) -> u32 {
        self.to() as u32 * 500
    }

    /// Smallest memory page, bytes; also the unit of MDTS.
    pub const fn page_bytes_min(self) -> u32 {
        page_bytes(self.mpsmin())
    }

    /// Largest memory page, bytes.
    pub const fn page_bytes_max(self) -> u32 {
        page_bytes(self.mpsmax())
    }

    /// Distance between doorbells, bytes.
    pub const fn doorbell_stride_bytes(self) -> u32 {
        4 << self.dstrd()
    }
}

/// A memory page of 2^(12 + code) bytes, as in CAP.MPSMIN, CAP.MPSMAX and CC.MPS; `code` has 4
/// bits.
pub const fn page_bytes(code: u8) -> u32 {
    4096 << (code & 0xf)
}

/// Offset of the first doorbell in the register space, bytes (PCIe 1.1 §3.1.2).
pub const DOORBELL_BASE_BYTES: u64 = 0x1000;

/// Offset of a submission queue's tail doorbell (PCIe 1.1 §3.1.2.1).
pub const fn sq_tail_doorbell(cap: Cap, qid: u16) -> u64 {
    DOORBELL_BASE_BYTES + 2 * qid as u64 * cap.doorbell_stride_bytes() as u64
}

/// Offset of a completion queue's head doorbell (PCIe 1.1 §3.1.2.2).
pub const fn cq_head_doorbell(cap: Cap, qid: u16) -> u64 {
    DOORBELL_BASE_BYTES + (2 * qid as u64 + 1) * cap.doorbell_stride_bytes() as u64
}

/// Version (Base 2.1 §3.1.4.2, VS), also in Identify Controller.
#[bitfield(u32)]
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Tertiary Version.
    pub ter: u8,
    /// Minor Version.
    pub mnr: u8,
    /// Major Version.
    pub mjr: u16,
}
const _: () = assert!(size_of::<Version>() == 4);

impl Version {
    /// NVM Express 1.4.
    pub const V1_4: Self = Self::new().with_mjr(1).with_mnr(4);
    /// NVM Express 2.0.
    pub const V2_0: Self = Self::new().with_mjr(2);
    /// NVM Express 2.1.
    pub const V2_1: Self = Self::new().with_mjr(2).with_mnr(1);
}

open_enum! {
    /// I/O Command Set Selected (Base 2.1 §3.1.4.5, CC.CSS).
    pub struct CommandSetSelected(u8) {
        NVM = 0, "NVM command set";
        ALL_SUPPORTED = 6, "all supported I/O command sets";
        ADMIN_ONLY = 7, "admin command set only";
    }
}

open_enum! {
    /// Arbitration Mechanism Selected (Base 2.1 §3.1.4.5, CC.AMS).
    pub struct Arbitration(u8) {
        ROUND_ROBIN = 0, "round robin";
        WEIGHTED = 1, "weighted round robin with urgent priority class";
        VENDOR = 7, "vendor specific";
    }
}

open_enum! {
    /// Shutdown Notification (Base 2.1 §3.1.4.5, CC.SHN).
    pub struct ShutdownNotification(u8) {
        NONE = 0, "no notification";
        NORMAL = 1, "normal shutdown";
        ABRUPT = 2, "abrupt shutdown";
    }
}

/// Controller Configuration (Base 2.1 §3.1.4.5, CC).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cc {
    /// Enable.
    pub en: bool,
    #[bits(3)]
    __: u8,
    /// I/O Command Set Selected.
    #[bits(3)]
    pub css: CommandSetSelected,
    /// Memory Page Size: 2^(12 + MPS) bytes.
    #[bits(4)]
    pub mps: u8,
    /// Arbitration Mechanism Selected.
    #[bits(3)]
    pub ams: Arbitration,
    /// Shutdown Notification.
    #[bits(2)]
    pub shn: ShutdownNotification,
    /// I/O Submission Queue Entry Size: 2^IOSQES bytes.
    #[bits(4)]
    pub iosqes: u8,
    /// I/O Completion Queue Entry Size: 2^IOCQES bytes.
    #[bits(4)]
    pub iocqes: u8,
    /// Controller Ready Independent of Media Enable.
    pub crime: bool,
    #[bits(7)]
    __: u8,
}
const _: () = assert!(size_of::<Cc>() == 4);

/// IOSQES of the NVM command set: 64 bytes.
pub const IOSQES_NVM: u8 = 6;

/// IOCQES of the NVM command set: 16 bytes.
pub const IOCQES_NVM: u8 = 4;

const _: () = assert!(1 << IOSQES_NVM == size_of::<crate::Sqe>());
const _: () = assert!(1 << IOCQES_NVM == size_of::<crate::Cqe>());

impl Cc {
    /// The value that a host writes: enabled, 4 KiB pages, round robin, NVM command set and its
    /// entry sizes.
    pub const fn enabled_nvm() -> Self {
        Self::new()
            .with_en(true)
            .with_iosqes(IOSQES_NVM)
            .with_iocqes(IOCQES_NVM)
    }

    /// The memory page size, bytes.
    pub const fn page_bytes(self) -> u32 {
        page_bytes(self.mps())
    }
}

open_enum! {
    /// Shutdown Status (Base 2.1 §3.1.4.6, CSTS.SHST).
    pub struct ShutdownStatus(u8) {
        NORMAL_OPERATION = 0, "normal operation";
        OCCURRING = 1, "shutdown processing occurring";
        COMPLETE = 2, "shutdown processing complete";
    }
}

/// Controller Status (Base 2.1 §3.1.4.6, CSTS).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Csts {
    /// Ready.
    pub rdy: bool,
    /// Controller Fatal Status.
    pub cfs: bool,
    /// Shutdown Status.
    #[bits(2)]
    pub shst: ShutdownStatus,
    /// NVM Subsystem Reset Occurred.
    pub nssro: bool,
    /// Processing Paused.
    pub pp: bool,
    /// Shutdown Type: of the NVM subsystem, not of the controller.
    pub st: bool,
    #[bits(25)]
    __: u32,
}
const _: () = assert!(size_of::<Csts>() == 4);

/// Admin Queue Attributes (Base 2.1 §3.1.4.8, AQA).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Aqa {
    /// Admin Submission Queue Size in entries, zero-based.
    #[bits(12)]
    pub asqs_z: u16,
    #[bits(4)]
    __: u8,
    /// Admin Completion Queue Size in entries, zero-based.
    #[bits(12)]
    pub acqs_z: u16,
    #[bits(4)]
    __: u8,
}
const _: () = assert!(size_of::<Aqa>() == 4);

/// Controller Memory Buffer Location (Base 2.1 §3.1.4.11, CMBLOC).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cmbloc {
    /// Base Indicator Register: the BAR that contains the buffer.
    #[bits(3)]
    pub bir: u8,
    /// Queue Mixed Memory Support.
    pub cqmms: bool,
    /// Queue Physically Discontiguous Support.
    pub cqpds: bool,
    /// Data Pointer Mixed Locations Support.
    pub cdpmls: bool,
    /// Data Pointer and Command Independent Locations Support.
    pub cdpcils: bool,
    /// Data Metadata Mixed Memory Support.
    pub cdmmms: bool,
    /// Queue Dword Alignment.
    pub cqda: bool,
    #[bits(3)]
    __: u8,
    /// Offset in units of CMBSZ.SZU.
    #[bits(20)]
    pub ofst: u32,
}
const _: () = assert!(size_of::<Cmbloc>() == 4);

/// Controller Memory Buffer Size (Base 2.1 §3.1.4.12, CMBSZ).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cmbsz {
    /// Submission Queue Support.
    pub sqs: bool,
    /// Completion Queue Support.
    pub cqs: bool,
    /// PRP and SGL List Support.
    pub lists: bool,
    /// Read Data Support.
    pub rds: bool,
    /// Write Data Support.
    pub wds: bool,
    #[bits(3)]
    __: u8,
    /// Size Units: 4 KiB times 16^SZU, up to 64 GiB.
    #[bits(4)]
    pub szu: u8,
    /// Size in units of SZU.
    #[bits(20)]
    pub sz: u32,
}
const _: () = assert!(size_of::<Cmbsz>() == 4);

impl Cmbsz {
    /// The unit of size and offset, bytes; `None` for a reserved code.
    pub const fn unit_bytes(self) -> Option<u64> {
        match self.szu() {
            szu @ 0..=6 => Some(4096 << (4 * szu as u32)),
            _ => None,
        }
    }

    /// The size, bytes; `None` for a reserved unit.
    pub const fn size_bytes(self) -> Option<u64> {
        match self.unit_bytes() {
            Some(unit) => Some(self.sz() as u64 * unit),
            None => None,
        }
    }
}

/// Controller Memory Buffer Memory Space Control (Base 2.1 §3.1.4.16, CMBMSC).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Cmbmsc {
    /// Capabilities Registers Enabled: CMBLOC and CMBSZ are valid.
    pub cre: bool,
    /// Controller Memory Space Enable.
    pub cmse: bool,
    #[bits(10)]
    __: u16,
    /// Controller Base Address, in 4 KiB pages.
    #[bits(52)]
    pub cba: u64,
}
const _: () = assert!(size_of::<Cmbmsc>() == 8);

/// Controller Memory Buffer Status (Base 2.1 §3.1.4.17, CMBSTS).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cmbsts {
    /// Controller Base Address Invalid.
    pub cbai: bool,
    #[bits(31)]
    __: u32,
}
const _: () = assert!(size_of::<Cmbsts>() == 4);

/// Controller Ready Timeouts (Base 2.1 §3.1.4.21, CRTO), 500 ms units.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Crto {
    /// Controller Ready With Media Timeout.
    pub crwmt: u16,
    /// Controller Ready Independent of Media Timeout.
    pub crimt: u16,
}
const _: () = assert!(size_of::<Crto>() == 4);
