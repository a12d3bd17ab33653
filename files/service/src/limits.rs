//! Limits of connections and requests in flight, with their relations.

use files_server::limits::SLOTS_MAX;
use files_spec::limits::{PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX};
use files_store::limits::BLOCK_BYTES;
use reactors::Nanos;

/// Limit of the connections.
pub const CONNECTIONS_MAX: usize = 256;

/// Limit of the requests of one connection that are executed or whose reply is not sent yet. Others
/// stay in the socket.
pub const REQUESTS_PER_CONNECTION_MAX: usize = SLOTS_MAX as usize;

/// Limit of the requests of all connections.
pub const REQUESTS_MAX: usize = 1024;

/// Limit of the records of requests that are executed, in bytes. Others stay in the sockets.
pub const RECORDS_BYTES_MAX: usize = 64 << 20;

/// Limit of the data of READ that wait for one connection, in bytes. A client that does not read
/// its replies keeps no more memory.
pub const UNSENT_BYTES_MAX: usize = 4 << 20;

/// Limit of the memory that a request keeps for its next record, in bytes.
pub const RECORD_KEPT_BYTES: usize = 128 << 10;

/// Limit of one request to a device in bytes.
pub const PIECE_BYTES_MAX: usize = 128 << 10;

/// Limit of the requests to devices that one WRITE or READ has in flight.
pub const PIECES_IN_FLIGHT_MAX: usize = 4;

/// Limit of the requests to a device that the log and the checkpoints of one volume have in flight.
pub const REQUESTS_PER_VOLUME_MAX: usize = 2 * PIECES_IN_FLIGHT_MAX;

/// How often a request is given to a device again that was reset with it, or has aborted it.
pub const REPEATS_MAX: u8 = 3;

/// Limit of the volumes.
pub const VOLUMES_MAX: usize = 16;

/// Limit of the requests to devices for data in flight.
pub const DEVICE_REQUESTS_MAX: usize = REQUESTS_MAX * PIECES_IN_FLIGHT_MAX;

/// How long a reply that is not sent may lend memory of a device, whose writers wait for it, in
/// milliseconds. Later, its data are copied.
pub const BORROWED_MS: u64 = 100;

/// How long a client may leave a reply unread or a record incomplete, in milliseconds.
pub const STALL_MS: u64 = 60_000;

/// Interval of the work that time requires, in milliseconds.
pub const TICK_MS: u64 = 1000;

/// Interval of the attempts of requests and connections that wait for memory.
pub const RETRY_INTERVAL: Nanos = Nanos::from_micros(200);

const _: () = assert!(REQUESTS_MAX <= 1 << 16);
const _: () = assert!(RECORDS_BYTES_MAX >= REQUESTS_PER_CONNECTION_MAX * RECORD_BYTES_MAX / 2);
const _: () = assert!(UNSENT_BYTES_MAX >= 2 * PAYLOAD_BYTES_MAX);
const _: () = assert!(PIECE_BYTES_MAX.is_multiple_of(BLOCK_BYTES as usize));
