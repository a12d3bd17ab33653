//! Limits of connections over RDMA, with their relations.

use files_service::limits::{PIECE_BYTES_MAX, REQUESTS_PER_CONNECTION_MAX};
use files_spec::limits::INLINE_BYTES_MAX;
use files_spec::rdma::{HEADER_BYTES_MAX, SEGMENTS_MAX, WRITE_CHUNKS_MAX};
use files_spec::xdr::HOLES_MAX;

/// Size of the messages that are sent and received, in bytes. Linux has the same size.
pub const MESSAGE_BYTES: usize = 4096;

/// Most messages of one block of memory.
pub const BLOCK_MESSAGES: usize = 4;

/// Limit of the requests that a client may have outstanding on a connection: its credits. Fewer are
/// granted if the arena is short of memory.
pub const CREDITS_MAX: usize = REQUESTS_PER_CONNECTION_MAX;

/// The fewest credits of a connection. Without memory for them it is rejected.
pub const CREDITS_MIN: usize = 4;

/// Part of the arena that the messages of all connections may have. The rest is for data.
pub const MESSAGES_SHARE: usize = 8;

/// Part of the credits that are left which one connection may have.
pub const CREDITS_SHARE: usize = 4;

/// Entries of a send queue.
pub const SEND_REQUESTS_MAX: u32 = 512;

/// Entries of the completion queue of one device, if it has as many.
pub const COMPLETIONS_MAX: u32 = 32_768;

/// Limit of the devices in use at once.
pub const DEVICES_MAX: usize = 16;

/// Limit of the connections over RDMA.
pub const CONNECTIONS_MAX: usize = files_service::limits::CONNECTIONS_MAX;

/// Limit of the length of an item of a call that is not the data of a WRITE, in bytes.
pub const ITEM_BYTES_MAX: usize = INLINE_BYTES_MAX;

/// Most entries of the send queue for one reply beside those for the parts of its data: each segment
/// of the client's memory and each part of the results begins one, and the message takes one.
pub const REPLY_REQUESTS_MAX: usize = (WRITE_CHUNKS_MAX + 1) * (SEGMENTS_MAX + 1) + HOLES_MAX + 2;

/// Length of the zeroes that holes in files are written from, in bytes. It is shorter if the arena
/// has no slice of this length.
pub const ZEROES_BYTES_MAX: usize = PIECE_BYTES_MAX;

/// How long a reply may lend memory of a device that a writer waits for, in milliseconds. Later, the
/// connection is closed.
pub const LENT_MS: u64 = 500;

/// How long posted work may make no progress, in milliseconds. Later, the connection is closed.
pub const PROGRESS_MS: u64 = 10_000;

/// How long a connection may be without a call, in milliseconds. Later it is closed, since nothing
/// else tells that its client is gone. Linux closes connections after 5 minutes itself.
pub const IDLE_MS: u64 = 360_000;

/// How long a connection may take to be established, in milliseconds.
pub const ESTABLISH_MS: u64 = 10_000;

/// Time after which a failed listener is opened again, in milliseconds.
pub const LISTEN_AGAIN_MS: u64 = 5000;

/// Connection requests that wait at a listener.
pub const BACKLOG: u32 = 64;

/// Interval of the checks of connections, in milliseconds.
pub const CHECK_MS: u64 = 100;

const _: () = assert!(REPLY_REQUESTS_MAX <= SEND_REQUESTS_MAX as usize / 2);
const _: () = assert!(HEADER_BYTES_MAX < MESSAGE_BYTES);
const _: () = assert!(CREDITS_MAX <= u16::MAX as usize);
const _: () = assert!(CREDITS_MIN.is_multiple_of(BLOCK_MESSAGES));
const _: () = assert!(CONNECTIONS_MAX <= u16::MAX as usize);
