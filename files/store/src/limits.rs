//! Limits of a volume, with their relations.

/// Unit of allocation in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Limit of a name in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Limit of the target of a symbolic link in bytes.
pub const LINK_TARGET_BYTES_MAX: usize = 4095;

/// Limit of the value of an extended attribute in bytes.
pub const XATTR_VALUE_BYTES_MAX: usize = 32 << 10;

/// Limit of the size of a file in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 60;

/// Limit of the hard links of a file.
pub const LINKS_MAX: u32 = 65_000;

/// Limit of one write in bytes.
pub const WRITE_BYTES_MAX: u64 = 1 << 20;

/// Limit of the ranges of the device that one change takes from the free ones.
pub const MAPPINGS_MAX: usize = 1024;

/// Limit of the writes in flight.
pub const WRITES_MAX: usize = 4096;

/// Limit of a batch of the log in bytes, without its header.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// Limit of one record in a batch in bytes.
pub const RECORD_BYTES_MAX: usize = 64 << 10;

/// Limit of one request to the device in bytes.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Least size of each of the two areas of the log in bytes.
pub const LOG_BYTES_MIN: u64 = 512 << 10;

/// Largest size of each of the two areas of the log in bytes.
pub const LOG_BYTES_MAX: u64 = 64 << 20;

/// Batches that an area of the log has at least: one in flight, the next one, and those that are
/// written while a checkpoint begins at half of the area.
pub const BATCHES_MIN: u64 = 4;

// The largest records: a value with its name, and a write into ranges of one block each.
const _: () = assert!(XATTR_VALUE_BYTES_MAX + NAME_BYTES_MAX + 64 < RECORD_BYTES_MAX);
const _: () = assert!(MAPPINGS_MAX * 24 + 64 < RECORD_BYTES_MAX);
const _: () = assert!(LINK_TARGET_BYTES_MAX + NAME_BYTES_MAX + 128 < RECORD_BYTES_MAX);
const _: () = assert!(WRITE_BYTES_MAX / BLOCK_BYTES < MAPPINGS_MAX as u64);
// Also the smallest log has room for the largest record in a batch.
const _: () = assert!(RECORD_BYTES_MAX as u64 + 2 * BLOCK_BYTES <= LOG_BYTES_MIN / BATCHES_MIN);
const _: () = assert!(RECORD_BYTES_MAX < BATCH_BYTES_MAX);
const _: () = assert!(LOG_BYTES_MIN.is_multiple_of(BLOCK_BYTES));
