//! Opcodes and the direction of data in their low bits (Base 2.1 §4.1.1; §5 and §7; NVM
//! 1.1 §3).

use bitfield_struct::bitfield;

open_enum! {
    /// Admin command opcodes (Base 2.1 §5).
    pub struct AdminOpcode(u8) {
        DELETE_IO_SQ = 0x00, "Delete I/O Submission Queue";
        CREATE_IO_SQ = 0x01, "Create I/O Submission Queue";
        GET_LOG_PAGE = 0x02, "Get Log Page";
        DELETE_IO_CQ = 0x04, "Delete I/O Completion Queue";
        CREATE_IO_CQ = 0x05, "Create I/O Completion Queue";
        IDENTIFY = 0x06, "Identify";
        ABORT = 0x08, "Abort";
        SET_FEATURES = 0x09, "Set Features";
        GET_FEATURES = 0x0a, "Get Features";
        ASYNC_EVENT_REQUEST = 0x0c, "Asynchronous Event Request";
        NAMESPACE_MANAGEMENT = 0x0d, "Namespace Management";
        FIRMWARE_COMMIT = 0x10, "Firmware Commit";
        FIRMWARE_IMAGE_DOWNLOAD = 0x11, "Firmware Image Download";
        DEVICE_SELF_TEST = 0x14, "Device Self-test";
        NAMESPACE_ATTACHMENT = 0x15, "Namespace Attachment";
        KEEP_ALIVE = 0x18, "Keep Alive";
        DIRECTIVE_SEND = 0x19, "Directive Send";
        DIRECTIVE_RECEIVE = 0x1a, "Directive Receive";
        VIRTUALIZATION_MANAGEMENT = 0x1c, "Virtualization Management";
        NVME_MI_SEND = 0x1d, "NVMe-MI Send";
        NVME_MI_RECEIVE = 0x1e, "NVMe-MI Receive";
        CAPACITY_MANAGEMENT = 0x20, "Capacity Management";
        DISCOVERY_INFORMATION_MANAGEMENT = 0x21, "Discovery Information Management";
        FABRIC_ZONING_RECEIVE = 0x22, "Fabric Zoning Receive";
        LOCKDOWN = 0x24, "Lockdown";
        FABRIC_ZONING_LOOKUP = 0x25, "Fabric Zoning Lookup";
        CLEAR_EXPORTED_CONFIGURATION = 0x28, "Clear Exported NVM Resource Configuration";
        FABRIC_ZONING_SEND = 0x29, "Fabric Zoning Send";
        CREATE_EXPORTED_SUBSYSTEM = 0x2a, "Create Exported NVM Subsystem";
        MANAGE_EXPORTED_SUBSYSTEM = 0x2d, "Manage Exported NVM Subsystem";
        MANAGE_EXPORTED_NAMESPACE = 0x31, "Manage Exported Namespace";
        MANAGE_EXPORTED_PORT = 0x35, "Manage Exported Port";
        SEND_DISCOVERY_LOG_PAGE = 0x39, "Send Discovery Log Page";
        TRACK_SEND = 0x3d, "Track Send";
        TRACK_RECEIVE = 0x3e, "Track Receive";
        MIGRATION_SEND = 0x41, "Migration Send";
        MIGRATION_RECEIVE = 0x42, "Migration Receive";
        CONTROLLER_DATA_QUEUE = 0x45, "Controller Data Queue";
        DOORBELL_BUFFER_CONFIG = 0x7c, "Doorbell Buffer Config";
        FABRICS = 0x7f, "Fabrics";
        FORMAT_NVM = 0x80, "Format NVM";
        SECURITY_SEND = 0x81, "Security Send";
        SECURITY_RECEIVE = 0x82, "Security Receive";
        SANITIZE = 0x84, "Sanitize";
        GET_LBA_STATUS = 0x86, "Get LBA Status";
    }
}

open_enum! {
    /// I/O command opcodes of the NVM command set (NVM 1.1 §3.3) and of all sets (Base
    /// 2.1 §7).
    pub struct IoOpcode(u8) {
        FLUSH = 0x00, "Flush";
        WRITE = 0x01, "Write";
        READ = 0x02, "Read";
        WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
        COMPARE = 0x05, "Compare";
        WRITE_ZEROES = 0x08, "Write Zeroes";
        DATASET_MANAGEMENT = 0x09, "Dataset Management";
        VERIFY = 0x0c, "Verify";
        RESERVATION_REGISTER = 0x0d, "Reservation Register";
        RESERVATION_REPORT = 0x0e, "Reservation Report";
        RESERVATION_ACQUIRE = 0x11, "Reservation Acquire";
        IO_MANAGEMENT_RECEIVE = 0x12, "I/O Management Receive";
        RESERVATION_RELEASE = 0x15, "Reservation Release";
        CANCEL = 0x18, "Cancel";
        COPY = 0x19, "Copy";
        IO_MANAGEMENT_SEND = 0x1d, "I/O Management Send";
        FABRICS = 0x7f, "Fabrics";
    }
}

/// The direction of a command's data (Base 2.1 §4.1.1, opcode bits 1:0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataDirection {
    /// 00b: no data.
    None,
    /// 01b: from the host to the controller.
    HostToController,
    /// 10b: from the controller to the host.
    ControllerToHost,
    /// 11b: both.
    Bidirectional,
}

/// The parts of an opcode.
#[bitfield(u8)]
struct OpcodeParts {
    #[bits(2)]
    transfer: u8,
    #[bits(6)]
    function: u8,
}

impl DataDirection {
    /// The direction from the low bits of an opcode, or of a Fabrics command type.
    pub const fn from_opcode(opcode: u8) -> Self {
        match OpcodeParts::from_bits(opcode).transfer() {
            0 => Self::None,
            1 => Self::HostToController,
            2 => Self::ControllerToHost,
            _ => Self::Bidirectional,
        }
    }

    /// Whether the host sends data.
    pub const fn is_host_to_controller(self) -> bool {
        matches!(self, Self::HostToController | Self::Bidirectional)
    }

    /// Whether the controller sends data.
    pub const fn is_controller_to_host(self) -> bool {
        matches!(self, Self::ControllerToHost | Self::Bidirectional)
    }
}
