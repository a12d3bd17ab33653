//! The named limits of a configuration. A value outside its limit is a problem with a place, never
//! a panic.

use crate::value::{ByteSize, Period};

/// Largest configuration file, in bytes: several times the size of one with a thousand exports.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;
/// Largest file, in bytes, in which the parser also reports syntax errors after the first, because
/// each costs memory.
pub const SYNTAX_RECOVERY_BYTES_MAX: usize = 64 * 1024;
/// Most problems that are reported; further ones are only counted.
pub const PROBLEMS_MAX: usize = 256;

/// Most devices of one appliance.
pub const DEVICES_MAX: usize = 128;
/// Most listeners of one appliance.
pub const LISTENERS_MAX: usize = 64;
/// Most exports (NVMe subsystems) of one appliance: each has at least one device of its own.
pub const EXPORTS_MAX: usize = 128;
/// Most namespaces of one export.
pub const NAMESPACES_MAX: usize = DEVICES_MAX;
/// Largest namespace identifier that a file may give.
pub const NSID_MAX: u32 = 1024;
/// Highest identifier of an ANA group.
pub const ANA_GROUPS_MAX: u32 = 128;
/// Most entries of `ana` of one export: for each listener one for each group and one for all.
pub const ANA_ENTRIES_MAX: usize = LISTENERS_MAX * (ANA_GROUPS_MAX as usize + 1);
/// Most masks of one export: each has a table of the namespaces that its hosts see.
pub const MASKS_MAX: usize = 64;
/// Highest controller identifier (Base 2.1 §3.1.2: FFF0h and above are reserved).
pub const CONTROLLER_ID_MAX: u16 = 65_519;
/// Most hosts in the list of one export.
pub const HOSTS_MAX: usize = 1024;
/// Maximum number of keys.
pub const KEYS_MAX: usize = 4096;
/// Maximum number of keys of a host in an export: more than one while they are exchanged.
pub const HOST_KEYS_MAX: usize = 4;

/// Most volumes of one appliance.
pub const VOLUMES_MAX: usize = 16;
/// Most shares of one appliance.
pub const SHARES_MAX: usize = 64;
/// Most file listeners of one appliance.
pub const FILE_LISTENERS_MAX: usize = 8;
/// Most addresses and networks of clients of one share.
pub const CLIENT_NETWORKS_MAX: usize = 64;
/// Least memory for the metadata of a volume.
pub const VOLUME_MEMORY_MIN: ByteSize = ByteSize::from_mib(1);
/// Smallest quota of a share: one block.
pub const QUOTA_SIZE_MIN: ByteSize = ByteSize::from_kib(4);
/// Largest quota of files: more than any memory has room for.
pub const QUOTA_FILES_MAX: u64 = 1_000_000_000_000;

/// Most rate limits of one appliance.
pub const RATE_LIMITS_MAX: usize = 1024;
/// Highest limit of commands in a second: more than an appliance executes.
pub const RATE_IOPS_MAX: u64 = 100_000_000;
/// Lowest limit of bytes in a second: less would delay single commands for minutes.
pub const RATE_BANDWIDTH_MIN: ByteSize = ByteSize::from_kib(64);
/// Highest limit of bytes in a second: more than an appliance moves.
pub const RATE_BANDWIDTH_MAX: ByteSize = ByteSize::from_gib(64);
/// Shortest latency target: less than any network takes.
pub const LATENCY_TARGET_MIN: Period = Period::from_micros(10);
/// Longest latency target.
pub const LATENCY_TARGET_MAX: Period = Period::from_millis(10_000);
/// Largest weight.
pub const WEIGHT_MAX: u32 = 10_000;
/// Shortest burst. A reactor that sleeps may start commands later than they are due by most of this.
pub const RATE_BURST_MIN: Period = Period::from_millis(2);
/// Longest burst.
pub const RATE_BURST_MAX: Period = Period::from_millis(10_000);

/// Most cores in a core list: one reactor each.
pub const CORES_MAX: usize = 256;
/// Largest core number: Linux on x86-64 is built for at most 8192 processors.
pub const CORE_NUMBER_MAX: u16 = 8191;

/// Smallest arena: with less memory some size classes have too few leases to be useful.
pub const MEMORY_MIN: ByteSize = ByteSize::from_mib(16);
/// Largest arena, and largest device of type `memory`.
pub const MEMORY_MAX: ByteSize = ByteSize::from_gib(16 * 1024);
/// Most bytes of one device of type `file` or `null`.
pub const DEVICE_SIZE_MAX: ByteSize = ByteSize::from_gib(1024 * 1024);

/// Shortest configurable shutdown deadline.
pub const SHUTDOWN_DEADLINE_MIN: Period = Period::from_millis(100);
/// Longest configurable shutdown deadline.
pub const SHUTDOWN_DEADLINE_MAX: Period = Period::from_millis(10 * 60 * 1000);

/// Smallest stall threshold.
pub const STALL_THRESHOLD_MIN: Period = Period::from_millis(1);
/// Largest stall threshold. A poller that runs for twice as long is stuck.
pub const STALL_THRESHOLD_MAX: Period = Period::from_millis(1000);

/// Largest configurable number of connections.
pub const CONNECTIONS_MAX: u32 = 65_535;
/// Smallest maximum data transfer size: one page of the smallest memory page size that a controller
/// may report.
pub const TRANSFER_MIN: ByteSize = ByteSize::from_kib(4);
/// Largest maximum data transfer size: one lease of the arena's largest class.
pub const TRANSFER_MAX: ByteSize = ByteSize::from_mib(1);

/// Most in-capsule data of an I/O queue.
pub const IN_CAPSULE_DATA_MAX: ByteSize = ByteSize::from_kib(64);
/// Unit of in-capsule data, in bytes: the capsule size is reported in units of 16 bytes (IOCCSZ;
/// Base 2.1 §5.1.13.2.1).
pub const IN_CAPSULE_DATA_UNIT_BYTES: u64 = 16;
/// Least entries of an I/O queue (MQES is zero-based and at least 1; Base 2.1 §3.1.4.1).
pub const QUEUE_DEPTH_MIN: u16 = 2;
/// Most entries of an I/O queue.
pub const QUEUE_DEPTH_MAX: u16 = 1024;

/// Most requests that one reactor may have outstanding at a drive.
pub const DRIVE_QUEUE_DEPTH_MAX: u16 = 1024;
/// Largest identifier of a drive's namespace (Base 2.1 §3.2.1.2: FFFFFFFFh is the broadcast
/// value).
pub const DRIVE_NAMESPACE_MAX: u32 = 0xffff_fffe;
/// Shortest configurable command deadline of a drive.
pub const COMMAND_DEADLINE_MIN: Period = Period::from_millis(100);
/// Longest configurable command deadline of a drive.
pub const COMMAND_DEADLINE_MAX: Period = Period::from_millis(10 * 60 * 1000);

/// Most I/O queues of one controller.
pub const IO_QUEUES_MAX: u16 = 128;
/// Largest configurable number of controllers.
pub const CONTROLLERS_MAX: u16 = 4096;

/// Longest name of an appliance, device or listener, in characters.
pub const NAME_CHARS_MAX: usize = 64;
/// Longest name of a congestion control algorithm, in characters: Linux's TCP_CA_NAME_MAX (16) less
/// its terminating NUL.
pub const CONGESTION_CONTROL_CHARS_MAX: usize = 15;
/// Longest name of a group of users, in characters: the limit of useradd and groupadd.
pub const GROUP_CHARS_MAX: usize = 32;
/// Longest path of a socket, in bytes: Linux's UNIX_PATH_MAX (108) less its terminating NUL.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Most directories to which the device files of configurations in requests may be restricted.
pub const ALLOWED_PATHS_MAX: usize = 64;
/// Longest path of a file, in bytes: Linux's PATH_MAX less its terminating NUL.
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
