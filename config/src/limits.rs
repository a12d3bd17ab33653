//! Every limit of a configuration, by name. A value outside its limit is a problem with a place,
//! never a panic.

use crate::value::{ByteSize, Period};

/// Largest configuration file, in bytes. A thousand exports fit several times over.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;
/// Largest file, in bytes, in which syntax errors after the first are looked for too: each costs
/// memory.
pub const SYNTAX_RECOVERY_BYTES_MAX: usize = 64 * 1024;
/// Most problems that are kept; further ones are counted.
pub const PROBLEMS_MAX: usize = 256;

/// Most devices of one appliance.
pub const DEVICES_MAX: usize = 128;
/// Most listeners of one appliance.
pub const LISTENERS_MAX: usize = 64;
/// Most exports (NVMe subsystems) of one appliance: each has a device of its own.
pub const EXPORTS_MAX: usize = 128;
/// Most namespaces of one export.
pub const NAMESPACES_MAX: usize = DEVICES_MAX;
/// Largest namespace identifier that may be given.
pub const NSID_MAX: u32 = 1024;
/// Most hosts in the list of one export.
pub const HOSTS_MAX: usize = 1024;

/// Most cores in a core list: one reactor each.
pub const CORES_MAX: usize = 256;
/// Largest core number: Linux on x86-64 is built for at most 8192 processors.
pub const CORE_NUMBER_MAX: u16 = 8191;

/// Least memory of the arena: below it not every size class has a useful number of leases.
pub const MEMORY_MIN: ByteSize = ByteSize::from_mib(16);
/// Most memory of the arena, and most of one device of type `memory`.
pub const MEMORY_MAX: ByteSize = ByteSize::from_gib(16 * 1024);
/// Most bytes of one device of type `file` or `null`.
pub const DEVICE_SIZE_MAX: ByteSize = ByteSize::from_gib(1024 * 1024);

/// Shortest time that a shutdown may be given.
pub const SHUTDOWN_DEADLINE_MIN: Period = Period::from_millis(100);
/// Longest time that a shutdown may be given.
pub const SHUTDOWN_DEADLINE_MAX: Period = Period::from_millis(10 * 60 * 1000);

/// Shortest poll that may be called a stall.
pub const STALL_THRESHOLD_MIN: Period = Period::from_millis(1);
/// Longest poll that need not be called a stall: one of twice the time is stuck.
pub const STALL_THRESHOLD_MAX: Period = Period::from_millis(1000);

/// Most connections that may be allowed at once.
pub const CONNECTIONS_MAX: u32 = 65_535;
/// Least data per command: one page of the smallest memory page size that a controller may
/// announce.
pub const TRANSFER_MIN: ByteSize = ByteSize::from_kib(4);
/// Most data per command: one lease of the arena's largest class.
pub const TRANSFER_MAX: ByteSize = ByteSize::from_mib(1);

/// Most in-capsule data of an I/O queue.
pub const IN_CAPSULE_DATA_MAX: ByteSize = ByteSize::from_kib(64);
/// Unit of in-capsule data, in bytes: the capsule size is announced in units of 16 bytes (IOCCSZ;
/// NVM Express Base Specification 2.1, section 5.1.13.2.1, Identify Controller data structure).
pub const IN_CAPSULE_DATA_UNIT_BYTES: u64 = 16;
/// Least entries of an I/O queue (MQES is zero-based and at least 1; NVM Express Base Specification
/// 2.1, section 3.1.4.1).
pub const QUEUE_DEPTH_MIN: u16 = 2;
/// Most entries of an I/O queue.
pub const QUEUE_DEPTH_MAX: u16 = 1024;

/// Most requests that one reactor may have at a drive at once.
pub const DRIVE_QUEUE_DEPTH_MAX: u16 = 1024;
/// Largest identifier of a drive's namespace (NVM Express Base Specification 2.1, section 3.2.1.2:
/// FFFFFFFFh stands for all of them).
pub const DRIVE_NAMESPACE_MAX: u32 = 0xffff_fffe;
/// Shortest time that a drive may be given for a command.
pub const COMMAND_DEADLINE_MIN: Period = Period::from_millis(100);
/// Longest time that a drive may be given for a command.
pub const COMMAND_DEADLINE_MAX: Period = Period::from_millis(10 * 60 * 1000);

/// Most I/O queues of one controller.
pub const IO_QUEUES_MAX: u16 = 128;
/// Most controllers at once that may be allowed.
pub const CONTROLLERS_MAX: u16 = 4096;

/// Longest name of an appliance, device or listener, in characters.
pub const NAME_CHARS_MAX: usize = 64;
/// Longest name of a congestion control algorithm, in characters: Linux's TCP_CA_NAME_MAX (16) less
/// its closing NUL.
pub const CONGESTION_CONTROL_CHARS_MAX: usize = 15;
/// Longest name of a group of users, in characters: what useradd and groupadd take.
pub const GROUP_CHARS_MAX: usize = 32;
/// Longest path of a socket, in bytes: Linux's UNIX_PATH_MAX (108) less its closing NUL.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Most directories that files of configurations in requests may be restricted to.
pub const ALLOWED_PATHS_MAX: usize = 64;
/// Longest path of a file, in bytes: Linux's PATH_MAX less its closing NUL.
pub const PATH_BYTES_MAX: usize = 4095;

const _: () = assert!(SYNTAX_RECOVERY_BYTES_MAX <= FILE_BYTES_MAX);
const _: () = assert!(TRANSFER_MAX.bytes() <= MEMORY_MIN.bytes());
const _: () = assert!(IN_CAPSULE_DATA_MAX.bytes() <= TRANSFER_MAX.bytes());
const _: () = assert!(
    IN_CAPSULE_DATA_MAX
        .bytes()
        .is_multiple_of(IN_CAPSULE_DATA_UNIT_BYTES)
);
const _: () = assert!(NAMESPACES_MAX <= NSID_MAX as usize && EXPORTS_MAX <= DEVICES_MAX);
