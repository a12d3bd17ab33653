//! Limits of what is decoded and encoded, with their relations.

use crate::xdr::UNIT_BYTES;

/// Limit of the payload of one READ or WRITE in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Limit of a record without its payload in bytes. READDIR replies are at most this long.
pub const INLINE_BYTES_MAX: usize = 64 << 10;

/// Limit of an RPC record in bytes.
pub const RECORD_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + INLINE_BYTES_MAX;

/// Limit of the fragments of a record. Linux sends one.
pub const FRAGMENTS_MAX: u32 = 64;

/// Limit of the operations in a COMPOUND. Linux sends at most 16 in a session whose server offers
/// more.
pub const OPERATIONS_MAX: usize = 64;

/// Limit of the tag of a COMPOUND in bytes. Linux sends an empty one.
pub const TAG_BYTES_MAX: usize = 256;

/// Limit of a file name in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Limit of the target of a symbolic link in bytes.
pub const LINK_TEXT_BYTES_MAX: usize = 4095;

/// Limit of a file handle in bytes (RFC 8881 §3.1, `NFS4_FHSIZE`).
pub const FILE_HANDLE_BYTES_MAX: usize = 128;

/// Limit of owners and other opaque identifiers in bytes (RFC 8881 §3.1, `NFS4_OPAQUE_LIMIT`).
pub const OPAQUE_BYTES_MAX: usize = 1024;

/// Limit of the text of a user or group in bytes.
pub const PRINCIPAL_BYTES_MAX: usize = 256;

/// Limit of the encoded attributes of one object in bytes.
pub const ATTRIBUTES_BYTES_MAX: usize = 4096;

/// Limit of the units of a bitmap.
pub const BITMAP_UNITS_MAX: usize = 8;

/// Limit of the units of a bitmap of a peer. Those beyond [`BITMAP_UNITS_MAX`] are of numbers that
/// no minor version defines.
pub const BITMAP_UNITS_DECODED_MAX: usize = 256;

/// Limit of the value of an extended attribute in bytes.
pub const XATTR_BYTES_MAX: usize = 32 << 10;

/// Limit of the names in a LISTXATTRS reply.
pub const XATTR_NAMES_MAX: usize = 1024;

/// Limit of the state identifiers in TEST_STATEID.
pub const STATE_IDS_MAX: usize = 1024;

/// Limit of the body of an RPC credential or verifier in bytes (RFC 5531 §8.2).
pub const AUTH_BYTES_MAX: usize = 400;

/// Limit of the machine name in an AUTH_SYS credential in bytes (RFC 5531 Appendix A).
pub const MACHINE_NAME_BYTES_MAX: usize = 255;

/// Limit of the supplementary groups in an AUTH_SYS credential (RFC 5531 Appendix A).
pub const GROUPS_MAX: usize = 16;

/// Limit of short lists: security flavors, source servers, algorithms, callback parameters,
/// referring calls.
pub const SHORT_LIST_MAX: usize = 64;

const _: () = assert!(PAYLOAD_BYTES_MAX.is_multiple_of(UNIT_BYTES));
const _: () = assert!(BITMAP_UNITS_MAX <= BITMAP_UNITS_DECODED_MAX);
// The length of a fragment has 31 bits.
const _: () = assert!(RECORD_BYTES_MAX < 1 << 31);
// A record of the longest names, links, attributes and values has room for them.
const _: () = assert!(XATTR_BYTES_MAX + ATTRIBUTES_BYTES_MAX < INLINE_BYTES_MAX);
const _: () = assert!(LINK_TEXT_BYTES_MAX + 2 * NAME_BYTES_MAX < INLINE_BYTES_MAX);
const _: () = assert!(STATE_IDS_MAX * 16 < INLINE_BYTES_MAX);
// The largest AUTH_SYS body: stamp, name, user, group, groups.
const _: () =
    assert!(4 + 4 + MACHINE_NAME_BYTES_MAX + 1 + 8 + 4 + 4 * GROUPS_MAX <= AUTH_BYTES_MAX);
