//! The limits on clients' resources.

use std::time::Duration;

/// Most concurrent HTTP connections.
pub(super) const HTTP_CONNECTIONS_MAX: usize = 64;
/// Most concurrent connections at the Unix socket. Separate from HTTP, so that a flood there does
/// not lock out users of the machine.
pub(super) const SOCKET_CONNECTIONS_MAX: usize = 32;
/// Most bytes of a request's line and headers together.
pub(super) const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Most headers of a request.
pub(super) const HEADERS_MAX: usize = 64;
/// Most bytes of a request's body: a configuration of the largest size, escaped.
pub(super) const BODY_BYTES_MAX: usize = 2 * appliance_config::limits::FILE_BYTES_MAX;
/// Longest wait for a request's line and headers, from the end of the response before it.
pub(super) const HEADER_TIME_MAX: Duration = Duration::from_secs(10);
/// Time limit for a request's body and for creating the response.
pub(super) const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// Time limit for applying a configuration, whose removals wait for requests in flight.
pub(super) const APPLY_TIME_MAX: Duration = Duration::from_secs(110);
/// Time limit for reopening a device, whose file system may be slow.
pub(super) const REOPEN_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest wait until commands of hosts that an operator fences have ended: devices complete those of
/// ended associations within 60 s (CQT).
pub(super) const HOST_COMMANDS_TIME_MAX: Duration = Duration::from_secs(80);
/// Longest wait for the reactor of the file service, whose turns take microseconds.
pub(super) const FILE_SERVICE_TIME_MAX: Duration = Duration::from_secs(5);
/// Time between two checks whether such commands have ended.
pub(super) const COMMANDS_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time limit for a request that fences hosts.
pub(super) const FENCE_TIME_MAX: Duration = Duration::from_secs(90);
/// Lifetime after which a connection gets no further request; it has the same time again to receive
/// its response.
pub(super) const CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);
/// Most concurrent responses of the largest size. The list bounds the events of one response, and
/// [`VALUES_MAX`](crate::observe::history::VALUES_MAX) the values of the history.
pub(super) const LARGE_ANSWERS_MAX: usize = 4;
/// Most hosts in metrics, each with one export: the first by name. The configuration bounds all
/// other labels.
pub(super) const HOST_LABELS_MAX: usize = 256;
/// Most I/O connections in metrics, six series each: the first by controller.
pub(super) const CONNECTION_LABELS_MAX: usize = 256;
/// Most series of errors by export and status: the first in order.
pub(super) const STATUS_LABELS_MAX: usize = 256;
/// Most concurrent traces: each may take as much memory as several large responses.
pub(super) const TRACES_MAX: usize = 1;
/// Most refused connections that are kept until the client has received the response.
pub(super) const REFUSALS_MAX: usize = 32;
/// How long such a connection is kept.
pub(super) const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// Time limit for a TLS handshake.
pub(super) const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Time between two checks whether files with credentials have changed.
pub(super) const CREDENTIALS_INTERVAL: Duration = Duration::from_secs(10);
/// Most bytes of a file with certificates or a private key.
pub(super) const PEM_BYTES_MAX: usize = 64 * 1024;
/// Most records of refused changes per minute: clients without permission must not fill the journal.
pub(super) const REFUSED_RECORDS_MAX: u32 = 30;
/// Length of a token in bytes.
pub(super) const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=1024;

// A connection may last this long in total.
const _: () = assert!(APPLY_TIME_MAX.as_secs() < 2 * CONNECTION_TIME_MAX.as_secs());
const _: () = assert!(FILE_SERVICE_TIME_MAX.as_secs() < REQUEST_TIME_MAX.as_secs());
const _: () = assert!(FENCE_TIME_MAX.as_secs() < 2 * CONNECTION_TIME_MAX.as_secs());
const _: () = assert!(HOST_COMMANDS_TIME_MAX.as_secs() < FENCE_TIME_MAX.as_secs());
