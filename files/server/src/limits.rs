//! Limits of the server's state, with their relations.

use files_spec::limits::{INLINE_BYTES_MAX, OPERATIONS_MAX, RECORD_BYTES_MAX};

/// Limit of the clients, also of those that are not confirmed.
pub const CLIENTS_MAX: usize = 1024;

/// Limit of the sessions of all clients.
pub const SESSIONS_MAX: usize = 2048;

/// Limit of the sessions of one client. Linux has one.
pub const SESSIONS_PER_CLIENT_MAX: usize = 16;

/// Limit of the slots of a session. Linux uses at most 64 unless told otherwise.
pub const SLOTS_MAX: u32 = 64;

/// Limit of a reply that is kept for a retransmission in bytes, without the header of RPC.
pub const CACHED_REPLY_BYTES_MAX: u32 = 4096;

/// Limit of the slots of a session when the others may keep half of all replies, so that every
/// client has one.
pub const SLOTS_OF_MANY_MAX: u32 = 8;

/// Limit of the replies that are kept for all sessions in bytes. Later sessions get fewer slots.
pub const REPLY_CACHE_BYTES_MAX: usize = 64 << 20;

/// Limit of the bytes behind SEQUENCE by which a retransmission is recognized.
pub const FINGERPRINT_BYTES_MAX: usize = 512;

/// Longest header of a call in bytes that a connection keeps. Longer ones are decoded with every
/// call.
pub const HEADER_KEPT_BYTES_MAX: usize = 256;

/// Limit of the open and lock states of all clients.
pub const STATES_MAX: usize = 65_536;

/// Limit of the open and lock states of one client.
pub const STATES_PER_CLIENT_MAX: usize = 32_768;

/// Limit of the byte-range locks of one file.
pub const LOCKS_PER_FILE_MAX: usize = 4096;

/// Limit of the byte-range locks of all files.
pub const LOCKS_MAX: usize = 131_072;

/// How long a client keeps its state after its last request, in milliseconds. Later, its state is
/// removed when another client needs it.
pub const LEASE_MS: u64 = 90_000;

/// How long a client that does not send requests keeps state that no other client needs, in
/// milliseconds.
pub const COURTESY_MS: u64 = 24 * 3600 * 1000;

/// How long clients can reclaim their state after a restart, in milliseconds.
pub const GRACE_MS: u64 = LEASE_MS;

/// Limit of the silent clients without opens and locks that one call of `Server::tick` removes.
pub const IDLE_CLIENTS_PER_TICK_MAX: usize = 256;

/// Limit of the files without links that one call of `Server::tick` frees in each volume.
pub const ORPHANS_PER_TICK_MAX: usize = 1024;

/// How long a client without opens and locks stays among those that may reclaim after a restart, in
/// milliseconds. A restart waits for them.
pub const UNUSED_RECORD_MS: u64 = 60_000;

/// Limit of the ranges of the device that one READ returns. A READ of more is short.
pub const READ_RANGES_MAX: usize = 64;

/// Limit of the bytes that one COPY shares between two files. A COPY of more is short.
pub const SHARED_COPY_BYTES_MAX: u64 = 1 << 30;

/// Limit of a reply without payload in bytes.
pub const REPLY_BYTES_MAX: usize = INLINE_BYTES_MAX;

/// Limit of the result of an operation that changes something, in bytes. It is reserved before the
/// operation is executed, so that a change never lacks its result.
pub const CHANGE_RESULT_BYTES_MAX: usize = 256;

/// Length of a reply without a tag up to the result of SEQUENCE, in bytes.
pub const REPLY_BEGINNING_BYTES: usize = 36 + 44;

/// Room for the result of an operation that fails, in bytes: number, status and an empty bitmap.
pub const FAILED_RESULT_BYTES: usize = 12;

/// Least size of requests and replies that a session may ask for, in bytes: the shortest COMPOUND
/// that is of use.
pub const CHANNEL_BYTES_MIN: u32 = 384;

/// Least size of callbacks and their replies that a session with slots for them may ask for, in
/// bytes: one operation behind CB_SEQUENCE.
pub const CALLBACK_BYTES_MIN: u32 = 128;

/// Least number of operations of a callback: one behind CB_SEQUENCE.
pub const CALLBACK_OPERATIONS_MIN: u32 = 2;

const _: () = assert!(RECORD_BYTES_MAX < u32::MAX as usize);
const _: () = assert!(OPERATIONS_MAX * FAILED_RESULT_BYTES < REPLY_BYTES_MAX);
// A change fits behind the header and the result of SEQUENCE.
const _: () = assert!(
    REPLY_BEGINNING_BYTES + CHANGE_RESULT_BYTES_MAX + FAILED_RESULT_BYTES
        <= CHANNEL_BYTES_MIN as usize
);
// One client can have the largest session.
const _: () =
    assert!(SLOTS_MAX as usize * CACHED_REPLY_BYTES_MAX as usize <= REPLY_CACHE_BYTES_MAX);
// Every client can have a session.
const _: () = assert!(
    CLIENTS_MAX * SLOTS_OF_MANY_MAX as usize * CACHED_REPLY_BYTES_MAX as usize
        <= REPLY_CACHE_BYTES_MAX / 2
);
const _: () = assert!(CLIENTS_MAX <= SESSIONS_MAX);
const _: () = assert!(STATES_PER_CLIENT_MAX < STATES_MAX);
const _: () = assert!(COURTESY_MS > LEASE_MS);
