//! Fabrics commands and responses (Base 2.1 §6): Connect, Disconnect, properties, authentication.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::{AdminOpcode, Sqe, command_view};
use crate::completion::Cqe;
use crate::nqn::NqnField;
use crate::status::Status;
use crate::{U16, U32, U64};

open_enum! {
    /// Fabrics Command Type (Base 2.1 §6); its low bits encode the data direction, as in an opcode.
    pub struct FabricsType(u8) {
        PROPERTY_SET = 0x00, "Property Set";
        CONNECT = 0x01, "Connect";
        PROPERTY_GET = 0x04, "Property Get";
        AUTHENTICATION_SEND = 0x05, "Authentication Send";
        AUTHENTICATION_RECEIVE = 0x06, "Authentication Receive";
        DISCONNECT = 0x08, "Disconnect";
    }
}

/// CNTLID in Connect data that requests any controller, with the dynamic controller model (Base 2.1
/// §6.3).
pub const CNTLID_DYNAMIC: u16 = 0xffff;

/// CNTLID in Connect data that requests any available controller, with the static controller model
/// (Base 2.1 §6.3).
pub const CNTLID_STATIC_ANY: u16 = 0xfffe;

/// The largest controller identifier: FFF0h to FFFFh are reserved (Base 2.1 §3.1.2).
pub const CNTLID_MAX: u16 = 0xffef;

/// The minimum size of an admin submission queue on fabrics, entries (Base 2.1 §6.3).
pub const ADMIN_QUEUE_ENTRIES_MIN: u16 = 32;

impl Sqe {
    /// Whether the opcode is 7Fh.
    pub const fn is_fabrics(&self) -> bool {
        self.opcode == AdminOpcode::FABRICS.0
    }

    /// The Fabrics Command Type, byte 4 (valid if [`Sqe::is_fabrics`]).
    pub const fn fctype(&self) -> FabricsType {
        let [fctype, ..] = self.nsid.to_bytes();
        FabricsType(fctype)
    }

    /// A Fabrics command with all other fields zero.
    pub const fn fabrics(fctype: FabricsType) -> Self {
        Self::new(AdminOpcode::FABRICS.0, fctype.0 as u32)
    }

    /// Connect; its data is a [`ConnectData`].
    pub const fn connect_queue(
        qid: u16,
        sqsize_z: u16,
        cattr: ConnectAttributes,
        kato_ms: u32,
    ) -> Self {
        Self::fabrics(FabricsType::CONNECT).with_connect(Connect {
            recfmt: U16::ZERO,
            qid: U16::new(qid),
            sqsize_z: U16::new(sqsize_z),
            cattr,
            reserved47: 0,
            kato: U32::new(kato_ms),
            reserved52: [0; 12],
        })
    }

    /// Property Get at a register offset.
    pub const fn get_property(offset: u32, size: PropertySize) -> Self {
        Self::fabrics(FabricsType::PROPERTY_GET).with_property(Property::new(offset, size, 0))
    }

    /// Property Set at a register offset.
    pub const fn set_property(offset: u32, size: PropertySize, value: u64) -> Self {
        Self::fabrics(FabricsType::PROPERTY_SET).with_property(Property::new(offset, size, value))
    }

    /// Disconnect an I/O queue. (Named apart from the view [`Sqe::disconnect`].)
    pub const fn disconnect_queue() -> Self {
        Self::fabrics(FabricsType::DISCONNECT)
    }
}

/// Connect Attributes, byte 46 (Base 2.1 §6.3, CATTR).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct ConnectAttributes {
    /// Priority Class: 0 urgent to 3 low.
    #[bits(2)]
    pub priority: u8,
    /// Disable SQ Flow Control.
    pub disable_sq_flow_control: bool,
    /// Individual I/O Queue Deletion Support.
    pub individual_queue_deletion: bool,
    #[bits(4)]
    __: u8,
}
const _: () = assert!(size_of::<ConnectAttributes>() == 1);

/// Bytes 40 to 63 of Connect (Base 2.1 §6.3).
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
pub struct Connect {
    /// Record Format; 0 is the only one.
    pub recfmt: U16,
    /// Queue Identifier; 0 is the admin queue.
    pub qid: U16,
    /// Submission Queue Size in entries, zero-based.
    pub sqsize_z: U16,
    /// Connect Attributes.
    pub cattr: ConnectAttributes,
    reserved47: u8,
    /// Keep Alive Timeout, milliseconds; 0 disables it. Reserved on I/O queues.
    pub kato: U32,
    reserved52: [u8; 12],
}
command_view!(Connect, connect, with_connect);

impl Connect {
    /// Submission queue size in entries; a valid queue has at least 2.
    pub const fn sqsize(&self) -> u32 {
        self.sqsize_z.get() as u32 + 1
    }
}

/// Data of Connect, 1024 bytes (Base 2.1 §6.3).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ConnectData {
    /// Host Identifier.
    pub hostid: [u8; 16],
    /// Requested Controller Identifier, [`CNTLID_DYNAMIC`] or [`CNTLID_STATIC_ANY`].
    pub cntlid: U16,
    reserved18: [u8; 238],
    /// Subsystem NQN.
    pub subnqn: NqnField,
    /// Host NQN.
    pub hostnqn: NqnField,
    reserved768: [u8; 256],
}
const _: () = assert!(size_of::<ConnectData>() == 1024);

impl ConnectData {
    /// The data of a Connect command.
    pub const fn new(hostid: [u8; 16], cntlid: u16, subnqn: NqnField, hostnqn: NqnField) -> Self {
        Self {
            hostid,
            cntlid: U16::new(cntlid),
            reserved18: [0; 238],
            subnqn,
            hostnqn,
            reserved768: [0; 256],
        }
    }
}

/// Authentication requirements in the upper half of a successful Connect's dword 0 (Base 2.1 §6.3,
/// AUTHREQ).
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct AuthenticationRequirements {
    __: bool,
    /// Authentication Transaction Required (ATR).
    pub authentication: bool,
    /// Authentication and Secure Channel Required (ASCR).
    pub secure_channel: bool,
    #[bits(13)]
    __: u16,
}

/// Dword 0 of a successful Connect response (Base 2.1 §6.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ConnectSuccess {
    /// Assigned Controller Identifier.
    pub cntlid: u16,
    /// Authentication requirements.
    #[bits(16)]
    pub authreq: AuthenticationRequirements,
}

/// Dword 0 of a Connect response with status Connect Invalid Parameters (Base 2.1 §6.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ConnectInvalid {
    /// Invalid Parameter Offset: bytes from the start of the command or the data.
    pub ipo: u16,
    /// Invalid Attributes bit 0: the offset is in the data, not in the command.
    pub in_data: bool,
    #[bits(15)]
    __: u16,
}

/// A field of Connect that may be invalid, with its published offset (Base 2.1 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectField {
    /// Command: Record Format, byte 40. (Status Connect Incompatible Format if unsupported.)
    RecordFormat,
    /// Command: Queue Identifier, byte 42.
    QueueId,
    /// Command: Submission Queue Size, byte 44.
    SqSize,
    /// Command: Connect Attributes, byte 46.
    Attributes,
    /// Command: Keep Alive Timeout, byte 48.
    KeepAliveTimeout,
    /// Data: Host Identifier, byte 0.
    HostId,
    /// Data: Controller Identifier, byte 16.
    ControllerId,
    /// Data: Subsystem NQN, byte 256.
    SubsystemNqn,
    /// Data: Host NQN, byte 512.
    HostNqn,
}

impl ConnectField {
    /// Dword 0 that identifies the field.
    pub const fn invalid(self) -> ConnectInvalid {
        let (ipo, in_data) = match self {
            Self::RecordFormat => (40, false),
            Self::QueueId => (42, false),
            Self::SqSize => (44, false),
            Self::Attributes => (46, false),
            Self::KeepAliveTimeout => (48, false),
            Self::HostId => (0, true),
            Self::ControllerId => (16, true),
            Self::SubsystemNqn => (256, true),
            Self::HostNqn => (512, true),
        };
        ConnectInvalid::new().with_ipo(ipo).with_in_data(in_data)
    }
}

impl Cqe {
    /// The response of a successful Connect.
    pub const fn connected(cid: u16, cntlid: u16, authreq: AuthenticationRequirements) -> Self {
        let dw0 = ConnectSuccess::new()
            .with_cntlid(cntlid)
            .with_authreq(authreq);
        Self::new(cid, Status::SUCCESS).with_dw0(dw0.into_bits())
    }

    /// The response of a Connect that is rejected because of one field; with Do Not Retry.
    pub const fn connect_invalid(cid: u16, field: ConnectField) -> Self {
        Self::new(cid, Status::CONNECT_INVALID_PARAMETERS.with_dnr())
            .with_dw0(field.invalid().into_bits())
    }

    /// Dword 0 of a successful Connect.
    pub const fn connect_success(&self) -> ConnectSuccess {
        ConnectSuccess::from_bits(self.dw0.get())
    }

    /// Dword 0 of a Connect with invalid parameters.
    pub const fn connect_invalid_parameters(&self) -> ConnectInvalid {
        ConnectInvalid::from_bits(self.dw0.get())
    }
}

open_enum! {
    /// Size of a property (Base 2.1 §6.6, ATTRIB bits 2:0).
    pub struct PropertySize(u8) {
        BYTES_4 = 0, "4 bytes";
        BYTES_8 = 1, "8 bytes";
    }
}

/// Attributes of Property Get and Property Set, byte 40 (Base 2.1 §6.5, §6.6).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct PropertyAttributes {
    /// Size.
    #[bits(3)]
    pub size: PropertySize,
    #[bits(5)]
    __: u8,
}
const _: () = assert!(size_of::<PropertyAttributes>() == 1);

/// Bytes 40 to 63 of Property Get and Property Set (Base 2.1 §6.5, §6.6).
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
pub struct Property {
    /// Attributes.
    pub attrib: PropertyAttributes,
    reserved41: [u8; 3],
    /// Offset of the property, as in [`crate::registers`].
    pub offset: U32,
    /// Value to set; reserved in Property Get.
    pub value: U64,
    reserved56: [u8; 8],
}
command_view!(Property, property, with_property);

impl Property {
    const fn new(offset: u32, size: PropertySize, value: u64) -> Self {
        Self {
            attrib: PropertyAttributes::new().with_size(size),
            reserved41: [0; 3],
            offset: U32::new(offset),
            value: U64::new(value),
            reserved56: [0; 8],
        }
    }

    /// The value truncated to the size: 4-byte properties use the low half.
    pub const fn sized_value(&self) -> u64 {
        match self.attrib.size() {
            PropertySize::BYTES_4 => self.value.get() as u32 as u64,
            _ => self.value.get(),
        }
    }
}

/// Bytes 40 to 63 of Disconnect (Base 2.1 §6.4).
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
pub struct Disconnect {
    /// Record Format; 0 is the only one.
    pub recfmt: U16,
    reserved42: [u8; 22],
}
command_view!(Disconnect, disconnect, with_disconnect);

/// Bytes 40 to 63 of Authentication Send and Receive (Base 2.1 §6.1, §6.2).
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
pub struct Authentication {
    reserved40: u8,
    /// SP Specific 0; 1 in NVMe in-band authentication.
    pub spsp0: u8,
    /// SP Specific 1; 1 in NVMe in-band authentication.
    pub spsp1: u8,
    /// Security Protocol; E9h in NVMe in-band authentication.
    pub secp: u8,
    /// Transfer Length or Allocation Length, bytes.
    pub length: U32,
    reserved48: [u8; 16],
}
command_view!(Authentication, authentication, with_authentication);
