//! Every bound on what those who connect may take.

use std::time::Duration;

/// HTTP connections at once.
pub(super) const HTTP_CONNECTIONS_MAX: usize = 64;
/// Connections at once at the Unix socket, apart from those over HTTP: a flood there leaves people
/// on the machine their way in.
pub(super) const SOCKET_CONNECTIONS_MAX: usize = 32;
/// Bytes of a request's line and headers together.
pub(super) const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Headers of a request.
pub(super) const HEADERS_MAX: usize = 64;
/// Bytes of a request's body: a configuration of the largest size, escaped.
pub(super) const BODY_BYTES_MAX: usize = 2 * appliance_config::limits::FILE_BYTES_MAX;
/// For a request's line and headers, from the end of the answer before it.
pub(super) const HEADER_TIME_MAX: Duration = Duration::from_secs(10);
/// For a request's body and for making the answer.
pub(super) const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// For applying a configuration, whose removals wait for requests in flight.
pub(super) const APPLY_TIME_MAX: Duration = Duration::from_secs(110);
/// For reopening a device, whose file system may be slow.
pub(super) const REOPEN_TIME_MAX: Duration = Duration::from_secs(60);
/// After this a connection gets no further request, and has as long again to take its answer.
pub(super) const CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);
/// Events that one answer holds are bounded by the list; values of the history by
/// [`VALUES_MAX`](crate::observe::history::VALUES_MAX); answers of that size by this many at once.
pub(super) const LARGE_ANSWERS_MAX: usize = 4;
/// Hosts that metrics are told of, each with one export: the first by name. All other labels are
/// bounded by the configuration.
pub(super) const HOST_LABELS_MAX: usize = 256;
/// I/O connections that metrics are told of, six series each: the first by controller.
pub(super) const CONNECTION_LABELS_MAX: usize = 256;
/// Series of errors by export and status: those first in order.
pub(super) const STATUS_LABELS_MAX: usize = 256;
/// Traces that are written at once: each may take as much memory as a few large answers.
pub(super) const TRACES_MAX: usize = 1;
/// Refused connections that are kept at once until the peer has taken its answer in.
pub(super) const REFUSALS_MAX: usize = 32;
/// For how long such a connection is kept.
pub(super) const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// Bytes of a token.
pub(super) const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=1024;

// A connection may take so long in all.
const _: () = assert!(APPLY_TIME_MAX.as_secs() < 2 * CONNECTION_TIME_MAX.as_secs());
