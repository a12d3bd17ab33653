//! Discovery log, LID 70h (Base 2.1 §5.1.12.3.1): a header of 1024 bytes, then entries of 1024
//! bytes.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ascii::SpacePadded;
use crate::identify::zero_default;
use crate::nqn::NqnField;
use crate::{U16, U64};

open_enum! {
    /// Transport Type (TRTYPE).
    pub struct TransportType(u8) {
        PCIE = 0x00, "PCIe";
        RDMA = 0x01, "RDMA";
        FIBRE_CHANNEL = 0x02, "Fibre Channel";
        TCP = 0x03, "TCP";
        INTRA_HOST = 0xfe, "intra-host";
    }
}

open_enum! {
    /// Address Family (ADRFAM).
    pub struct AddressFamily(u8) {
        NONE = 0x00, "none";
        IPV4 = 0x01, "IPv4";
        IPV6 = 0x02, "IPv6";
        INFINIBAND = 0x03, "InfiniBand";
        FIBRE_CHANNEL = 0x04, "Fibre Channel";
        INTRA_HOST = 0xfe, "intra-host";
    }
}

open_enum! {
    /// Subsystem Type (SUBTYPE).
    pub struct SubsystemType(u8) {
        REFERRAL = 0x01, "referral to another discovery subsystem";
        NVM = 0x02, "NVM subsystem";
        CURRENT_DISCOVERY = 0x03, "current discovery subsystem";
    }
}

open_enum! {
    /// Whether the fabric must be secure (TREQ bits 1:0).
    pub struct SecureChannel(u8) {
        NOT_SPECIFIED = 0, "not specified";
        REQUIRED = 1, "required";
        NOT_REQUIRED = 2, "not required";
    }
}

/// Transport Requirements (TREQ).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct TransportRequirements {
    /// Secure channel.
    #[bits(2)]
    pub secure_channel: SecureChannel,
    /// The controller can disable SQ flow control.
    pub disable_sq_flow_control: bool,
    #[bits(5)]
    __: u8,
}
const _: () = assert!(size_of::<TransportRequirements>() == 1);

/// Entry Flags (EFLAGS).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct EntryFlags {
    /// Duplicate Returned Information: the entry refers to the same log as others with the flag.
    pub dupretinfo: bool,
    /// Explicit Persistent Connection Support for Discovery.
    pub epcsd: bool,
    /// No CDC Connectivity.
    pub ncc: bool,
    #[bits(13)]
    __: u16,
}
const _: () = assert!(size_of::<EntryFlags>() == 2);

/// Log Specific Parameter of Get Log Page for the discovery log.
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct DiscoveryLogParameter {
    /// Extended Discovery Log Page Entries.
    pub extdlpe: bool,
    /// Port Local Entries Only.
    pub pleo: bool,
    /// All NVM Subsystem Entries.
    pub allsube: bool,
    #[bits(5)]
    __: u8,
}

/// Header of the log, 1024 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// Generation Counter: changes with the log.
    pub genctr: U64,
    /// Number of Records.
    pub numrec: U64,
    /// Record Format; 0.
    pub recfmt: U16,
    reserved18: [u8; 1006],
}
const _: () = assert!(size_of::<DiscoveryHeader>() == 1024);

impl DiscoveryHeader {
    /// Creates a header.
    pub const fn new(genctr: u64, numrec: u64) -> Self {
        Self {
            genctr: U64::new(genctr),
            numrec: U64::new(numrec),
            recfmt: U16::ZERO,
            reserved18: [0; 1006],
        }
    }
}

open_enum! {
    /// Security Type of a TCP entry (TCP 1.1 §3.6.1.1, SECTYPE).
    pub struct TcpSecurity(u8) {
        NONE = 0, "no security";
        TLS_1_2 = 1, "TLS 1.2";
        TLS_1_3 = 2, "TLS 1.3";
    }
}

/// Transport Specific Address Subtype of a TCP entry, 256 bytes (TCP 1.1 §3.6.1.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct TcpAddressSubtype {
    /// Security Type.
    pub sectype: TcpSecurity,
    reserved1: [u8; 255],
}
const _: () = assert!(size_of::<TcpAddressSubtype>() == 256);

open_enum! {
    /// RDMA Queue Pair Service Type (RDMA 1.1 §3.1).
    pub struct RdmaQpType(u8) {
        RELIABLE_CONNECTED = 1, "reliable connected";
        RELIABLE_DATAGRAM = 2, "reliable datagram";
    }
}

open_enum! {
    /// RDMA Provider Type (RDMA 1.1 §3.1).
    pub struct RdmaProvider(u8) {
        NONE = 1, "no provider specified";
        INFINIBAND = 2, "InfiniBand";
        ROCE_V1 = 3, "RoCE v1";
        ROCE_V2 = 4, "RoCE v2";
        IWARP = 5, "iWARP";
    }
}

open_enum! {
    /// RDMA Connection Management Service (RDMA 1.1 §3.1).
    pub struct RdmaCms(u8) {
        RDMA_CM = 1, "RDMA_IP_CM";
    }
}

/// Transport Specific Address Subtype of an RDMA entry, 256 bytes (RDMA 1.1 §3.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RdmaAddressSubtype {
    /// Queue Pair Service Type.
    pub qptype: RdmaQpType,
    /// Provider Type.
    pub prtype: RdmaProvider,
    /// Connection Management Service.
    pub cms: RdmaCms,
    reserved3: [u8; 5],
    /// Partition Key, for the InfiniBand address family.
    pub pkey: U16,
    reserved10: [u8; 246],
}
const _: () = assert!(size_of::<RdmaAddressSubtype>() == 256);

/// Discovery log entry, 1024 bytes (Base 2.1 §5.1.12.3.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// Transport Type.
    pub trtype: TransportType,
    /// Address Family.
    pub adrfam: AddressFamily,
    /// Subsystem Type.
    pub subtype: SubsystemType,
    /// Transport Requirements.
    pub treq: TransportRequirements,
    /// Port ID.
    pub portid: U16,
    /// Controller ID: FFFFh if dynamic.
    pub cntlid: U16,
    /// Admin Max SQ Size, entries; at least 32.
    pub asqsz: U16,
    /// Entry Flags.
    pub eflags: EntryFlags,
    reserved12: [u8; 20],
    /// Transport Service Identifier: a port number in decimal for IP.
    pub trsvcid: SpacePadded<32>,
    reserved64: [u8; 192],
    /// Subsystem NQN.
    pub subnqn: NqnField,
    /// Transport Address: an IP address in text form.
    pub traddr: SpacePadded<256>,
    /// Transport Specific Address Subtype; see the views below.
    pub tsas: [u8; 256],
}
const _: () = assert!(size_of::<DiscoveryEntry>() == 1024);

impl DiscoveryEntry {
    /// The transport specific part of a TCP entry.
    pub const fn tcp(&self) -> &TcpAddressSubtype {
        zerocopy::transmute_ref!(&self.tsas)
    }

    /// The transport specific part of a TCP entry.
    pub fn tcp_mut(&mut self) -> &mut TcpAddressSubtype {
        zerocopy::transmute_mut!(&mut self.tsas)
    }

    /// The transport specific part of an RDMA entry.
    pub const fn rdma(&self) -> &RdmaAddressSubtype {
        zerocopy::transmute_ref!(&self.tsas)
    }

    /// The transport specific part of an RDMA entry.
    pub fn rdma_mut(&mut self) -> &mut RdmaAddressSubtype {
        zerocopy::transmute_mut!(&mut self.tsas)
    }
}

zero_default!(DiscoveryHeader, DiscoveryEntry);
