//! The paths of the control plane, and the access to them.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use reactors::{LogLimit, Nanos};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::ana;
use super::apply::apply;
use super::audited;
use super::clients;
use super::copies;
use super::credentials::Credentials;
use super::dashboard;
use super::limits::{
    APPLY_TIME_MAX, BODY_BYTES_MAX, FENCE_TIME_MAX, REOPEN_TIME_MAX, REQUEST_TIME_MAX, TRACES_MAX,
};
use super::metrics;
use super::reopen::reopen;
use super::reservations;
use super::responses::{LargeResponses, refusal};
use super::revoke::revoke;
use super::token::{Role, Tokens};
use super::upgrade::upgrade;
use crate::observe::Observatory;
use crate::observe::history::STEPS;
use crate::observe::model::HistoryKind;
use crate::observe::pseudonyms::Pseudonyms;
use crate::requests::RequestSender;

/// All paths of the API, as the documentation lists them.
#[cfg(test)]
pub(super) const PATHS: [(&str, &str); 21] = [
    ("get", "/healthz"),
    ("get", "/metrics"),
    ("get", "/api/v1/status"),
    ("get", "/api/v1/history"),
    ("get", "/api/v1/heatmap"),
    ("get", "/api/v1/events"),
    ("get", "/api/v1/trace"),
    ("get", "/api/v1/reservations"),
    ("get", "/api/v1/ana"),
    ("get", "/api/v1/clients"),
    ("get", "/api/v1/openapi.json"),
    ("post", "/api/v1/apply"),
    ("post", "/api/v1/device/reopen"),
    ("post", "/api/v1/reservations/clear"),
    ("post", "/api/v1/hosts/evict"),
    ("post", "/api/v1/clients/evict"),
    ("post", "/api/v1/ana/set"),
    ("post", "/api/v1/upgrade"),
    ("post", "/api/v1/keys/revoke"),
    ("post", "/api/v1/copies/start"),
    ("post", "/api/v1/copies/abort"),
];

/// The path that applies configurations.
const APPLY: &str = "/api/v1/apply";

/// The path that reopens damaged devices.
const REOPEN: &str = "/api/v1/device/reopen";

/// The path that clears the reservations of a device.
const CLEAR: &str = "/api/v1/reservations/clear";

/// The path that evicts a host.
const EVICT: &str = "/api/v1/hosts/evict";

/// The path that evicts clients of files.
const EVICT_CLIENT: &str = "/api/v1/clients/evict";

/// The path that sets ANA states.
const SET_ANA: &str = "/api/v1/ana/set";

/// The path that hands over to a new process.
const UPGRADE: &str = "/api/v1/upgrade";

/// The path that revokes the secret of a key.
const REVOKE: &str = "/api/v1/keys/revoke";

/// The path that begins a copy of a device.
const START_COPY: &str = "/api/v1/copies/start";

/// The path that aborts a copy of a device.
const ABORT_COPY: &str = "/api/v1/copies/abort";

/// The documentation of the API.
pub(super) const OPENAPI: &str = include_str!("openapi.json");

/// The state that all requests share.
pub(super) struct ControlState {
    observatory: Mutex<Observatory>,
    /// Pseudonyms of hosts for clients that may not see their identity.
    pseudonyms: Pseudonyms,
    pub(super) room: LargeResponses,
    /// Permits for concurrent traces.
    traces: Semaphore,
    /// Limits the audit records of refusals.
    refusal_limit: Mutex<LogLimit>,
    started: Instant,
    /// The destination of configurations to apply.
    pub(super) request_sender: Option<RequestSender>,
}

impl ControlState {
    pub(super) fn new(
        observatory: Mutex<Observatory>,
        request_sender: Option<RequestSender>,
    ) -> Self {
        Self {
            observatory,
            request_sender,
            pseudonyms: Pseudonyms::new(),
            room: LargeResponses::new(),
            traces: Semaphore::new(TRACES_MAX),
            refusal_limit: Mutex::new(audited::refusal_limit()),
            started: Instant::now(),
        }
    }

    /// The pseudonyms for responses to `audience`, if it gets any.
    pub(super) fn pseudonyms(&self, audience: Audience) -> Option<&Pseudonyms> {
        match audience {
            Audience::Operators | Audience::Readers => None,
            Audience::Public => Some(&self.pseudonyms),
        }
    }

    /// The number of refusals without an audit record since the last one, if another one may be
    /// recorded now.
    pub(super) fn admit_refusal_record(&self) -> Option<u64> {
        let now = Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let limit = self.refusal_limit.lock();
        limit.unwrap_or_else(PoisonError::into_inner).admit(now)
    }

    /// Only the control thread locks it, so there is no wait.
    pub(super) fn observatory(&self) -> MutexGuard<'_, Observatory> {
        self.observatory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// How requests arrive.
#[derive(Clone)]
pub(super) enum Entrance {
    /// Over the Unix socket, whose permissions the kernel checks.
    Socket,
    /// Over HTTP, with a token if the credentials have any.
    Http(Arc<Credentials>),
}

/// The permission of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// Clients that proved their right to operate the appliance.
    Operators,
    /// Clients that proved their right to read. They do not get reservation keys and the host
    /// identifiers of registrants.
    Readers,
    /// All other clients, which do not get data that identifies a host.
    Public,
}

/// The routes for clients that connect through `door`.
pub(super) fn router(shared: &Arc<ControlState>, door: Entrance) -> Router {
    Router::new()
        .route("/", get(dashboard::page))
        .route("/dashboard/{*name}", get(dashboard::file))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .route("/api/v1/status", get(status))
        .route("/api/v1/history", get(history))
        .route("/api/v1/heatmap", get(heatmap))
        .route("/api/v1/events", get(events))
        .route("/api/v1/trace", get(trace))
        .route("/api/v1/openapi.json", get(openapi))
        .route(APPLY, post(apply))
        .route(REOPEN, post(reopen))
        .route("/api/v1/reservations", get(reservations::list))
        .route(CLEAR, post(reservations::clear))
        .route(EVICT, post(reservations::evict))
        .route("/api/v1/clients", get(clients::list))
        .route(EVICT_CLIENT, post(clients::evict))
        .route("/api/v1/ana", get(ana::list))
        .route(SET_ANA, post(ana::set))
        .route(UPGRADE, post(upgrade))
        .route(REVOKE, post(revoke))
        .route(START_COPY, post(copies::start))
        .route(ABORT_COPY, post(copies::abort))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(shared), keep_apart))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn(bounded))
        .layer(from_fn_with_state(Arc::new(door), guard))
        .layer(from_fn_with_state(Arc::clone(shared), audited::record))
        .with_state(Arc::clone(shared))
}

/// Refuses requests without permission, and passes the others on with their client's permission.
async fn guard(State(door): State<Arc<Entrance>>, mut request: Request, next: Next) -> Response {
    let admitted = match &*door {
        Entrance::Socket => Ok(Audience::Operators),
        Entrance::Http(credentials) => admit(&credentials.current().tokens, &request),
    };
    match admitted {
        Ok(audience) => {
            request.extensions_mut().insert(audience);
            next.run(request).await
        }
        Err(denial) => denial.into_response(),
    }
}

/// Why a request over HTTP is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Denial {
    /// It has no token, or a wrong one.
    Token,
    /// Its token only reads.
    ReadToken,
    /// It has no token, and its `Host` header is a name: a page of another site may resolve its own
    /// name to this address.
    HostName,
    /// It is a change, and there is no token to permit it.
    Change,
}

impl Denial {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::Token => (
                StatusCode::UNAUTHORIZED,
                "the token is missing or wrong: send `Authorization: Bearer …` with what the \
                 token_file or the read_token_file of [control] holds",
            ),
            Self::ReadToken => (
                StatusCode::FORBIDDEN,
                "this token only reads: changes need the token that the token_file of [control] \
                 holds, or the control socket",
            ),
            Self::HostName => (
                StatusCode::FORBIDDEN,
                "without a token, ask by address or as `localhost`",
            ),
            Self::Change => (
                StatusCode::FORBIDDEN,
                "without a token, HTTP only reads: use the control socket, or set token_file in \
                 [control]",
            ),
        };
        let mut refused = refusal(status, text.to_owned());
        if self == Self::Token {
            let scheme = HeaderValue::from_static("Bearer");
            let headers = refused.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        refused
    }
}

/// The permission of a request over HTTP.
fn admit(tokens: &Tokens, request: &Request) -> Result<Audience, Denial> {
    let header = |name| request.headers().get(name).map(HeaderValue::as_bytes);
    // Liveness probes have no token, and the dashboard's page asks for it.
    let path = request.uri().path();
    let is_open = matches!(path, "/healthz" | "/") || path.starts_with(dashboard::PREFIX);
    let only_reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if tokens.are_needed() {
        return match tokens.role(header(header::AUTHORIZATION)) {
            Some(Role::Operate) => Ok(Audience::Operators),
            Some(Role::Read) if only_reads => Ok(Audience::Readers),
            Some(Role::Read) => Err(Denial::ReadToken),
            None if is_open => Ok(Audience::Public),
            None => Err(Denial::Token),
        };
    }
    if !is_open && !header(header::HOST).is_some_and(is_address) {
        return Err(Denial::HostName);
    }
    match only_reads {
        true => Ok(Audience::Public),
        false => Err(Denial::Change),
    }
}

/// Whether a `Host` header is an address or `localhost`.
fn is_address(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else {
        return false;
    };
    if let Ok(address) = host.parse::<std::net::SocketAddr>() {
        return address.port() != 0;
    }
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.parse::<u16>().is_ok() {
            name
        } else {
            host
        }
    });
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost") || bare.unwrap_or(name).parse::<IpAddr>().is_ok()
}

/// Bounds a request's body and its time. A body whose announced length is too large is refused
/// immediately; one that turns out to be too large is refused while it is read.
async fn bounded(request: Request, next: Next) -> Response {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > BODY_BYTES_MAX as u64) {
        let text = format!("a body has at most {BODY_BYTES_MAX} bytes");
        return refusal(StatusCode::PAYLOAD_TOO_LARGE, text);
    }
    let within = match request.uri().path() {
        APPLY | UPGRADE => APPLY_TIME_MAX,
        REOPEN => REOPEN_TIME_MAX,
        CLEAR | EVICT | SET_ANA | REVOKE => FENCE_TIME_MAX,
        _ => REQUEST_TIME_MAX,
    };
    match timeout(within, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let text = format!("the request took longer than {within:?}");
            refusal(StatusCode::REQUEST_TIMEOUT, text)
        }
    }
}

/// Refuses changes that a hand-over to a new process would lose. The control thread does so for
/// those that it executes.
async fn keep_apart(
    State(shared): State<Arc<ControlState>>,
    request: Request,
    next: Next,
) -> Response {
    if !matches!(
        request.uri().path(),
        REOPEN | CLEAR | EVICT | EVICT_CLIENT | SET_ANA | START_COPY | ABORT_COPY
    ) {
        return next.run(request).await;
    }
    let gate = shared.observatory().running().change_gate;
    match gate.begin_change() {
        Ok(permit) => {
            let response = next.run(request).await;
            drop(permit);
            response
        }
        Err(error) => refusal(StatusCode::CONFLICT, error.to_string()),
    }
}

async fn healthz(State(shared): State<Arc<ControlState>>) -> Response {
    let seen = shared.observatory().observe();
    let outage = seen.outage().or_else(|| seen.damage());
    match (outage, seen.degradation().or_else(|| seen.lost_rdma())) {
        (None, None) => "ok".into_response(),
        (None, Some(text)) => format!("degraded: {text}").into_response(),
        (Some(outage), _) => (StatusCode::SERVICE_UNAVAILABLE, outage).into_response(),
    }
}

async fn metrics(
    State(shared): State<Arc<ControlState>>,
    Extension(audience): Extension<Audience>,
) -> Response {
    let seen = shared.observatory().observe();
    match metrics::text(&seen, shared.pseudonyms(audience)) {
        Ok(text) => shared.room.bytes(text.into_bytes(), metrics::MEDIA_TYPE),
        Err(error) => {
            let text = format!("the metrics cannot be written: {error}");
            refusal(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

async fn status(
    State(shared): State<Arc<ControlState>>,
    Extension(audience): Extension<Audience>,
) -> Response {
    let seen = shared.observatory().observe();
    let mut status = seen.status();
    if let Some(pseudonyms) = shared.pseudonyms(audience) {
        pseudonyms.apply_to_status(&mut status);
    }
    shared.room.json(&status)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryQuery {
    seconds: Option<usize>,
    kind: Option<HistoryKind>,
}

async fn history(
    State(shared): State<Arc<ControlState>>,
    Extension(audience): Extension<Audience>,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Response {
    let query = match query {
        Ok(Query(query)) => query,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, error.body_text()),
    };
    let seconds = match within_an_hour(query.seconds) {
        Ok(seconds) => seconds,
        Err(text) => return refusal(StatusCode::BAD_REQUEST, text),
    };
    let found = shared.observatory().recorder().history(seconds, query.kind);
    match found {
        Ok(mut history) => {
            if let Some(pseudonyms) = shared.pseudonyms(audience) {
                pseudonyms.apply_to_history(&mut history);
            }
            shared.room.json(&history)
        }
        Err(error) => refusal(StatusCode::BAD_REQUEST, error.to_string()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeatmapQuery {
    seconds: Option<usize>,
    export: Option<String>,
}

async fn heatmap(
    State(shared): State<Arc<ControlState>>,
    query: Result<Query<HeatmapQuery>, QueryRejection>,
) -> Response {
    let HeatmapQuery { seconds, export } = match query {
        Ok(Query(query)) => query,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, error.body_text()),
    };
    let seconds = match within_an_hour(seconds) {
        Ok(seconds) => seconds,
        Err(text) => return refusal(StatusCode::BAD_REQUEST, text),
    };
    let found = shared
        .observatory()
        .heatmaps()
        .last(seconds, export.as_deref());
    match found {
        Ok(heatmap) => shared.room.json(&heatmap),
        Err(error) => refusal(StatusCode::NOT_FOUND, error.to_string()),
    }
}

/// The number of seconds in a query; the default is a minute.
fn within_an_hour(seconds: Option<usize>) -> Result<usize, String> {
    let seconds = seconds.unwrap_or(60);
    if (1..=STEPS).contains(&seconds) {
        return Ok(seconds);
    }
    Err(format!("seconds is 1 to {STEPS}"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceQuery {
    seconds: Option<usize>,
}

async fn trace(
    State(shared): State<Arc<ControlState>>,
    Extension(audience): Extension<Audience>,
    query: Result<Query<TraceQuery>, QueryRejection>,
) -> Response {
    let seconds = match query {
        Ok(Query(TraceQuery { seconds })) => within_an_hour(seconds),
        Err(error) => return refusal(StatusCode::BAD_REQUEST, error.body_text()),
    };
    let seconds = match seconds {
        Ok(seconds) => seconds as u64,
        Err(text) => return refusal(StatusCode::BAD_REQUEST, text),
    };
    let Ok(_turn) = shared.traces.try_acquire() else {
        let text = "another trace is being written: try again";
        return refusal(StatusCode::SERVICE_UNAVAILABLE, text.to_owned());
    };
    let pseudonyms = shared.pseudonyms(audience);
    let material = shared.observatory().material(pseudonyms);
    // Formatting hundreds of thousands of events takes too long for the control plane's only
    // thread.
    let written = spawn_blocking(move || serde_json::to_vec(&material.trace(seconds)));
    match written.await {
        Ok(Ok(bytes)) => shared.room.bytes(bytes, "application/json"),
        Ok(Err(error)) => {
            let text = format!("the trace cannot be written: {error}");
            refusal(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
        Err(error) => {
            let text = format!("the trace was aborted: {error}");
            refusal(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    after: Option<u64>,
}

async fn events(
    State(shared): State<Arc<ControlState>>,
    Extension(audience): Extension<Audience>,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Response {
    match query {
        Ok(Query(query)) => {
            let (after, pseudonyms) = (query.after.unwrap_or(0), shared.pseudonyms(audience));
            let found = shared.observatory().events().after(after, pseudonyms);
            shared.room.json(&found)
        }
        Err(error) => refusal(StatusCode::BAD_REQUEST, error.body_text()),
    }
}

async fn openapi(State(shared): State<Arc<ControlState>>) -> Response {
    shared.room.bytes(OPENAPI.into(), "application/json")
}

async fn unknown() -> Response {
    let text = "unknown path: /api/v1/openapi.json lists the paths";
    refusal(StatusCode::NOT_FOUND, text.to_owned())
}

async fn wrong_method() -> Response {
    let text = "method not allowed for this path: see /api/v1/openapi.json";
    refusal(StatusCode::METHOD_NOT_ALLOWED, text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_header_must_be_an_address_or_localhost() {
        for name in [
            "",
            "example.org",
            "example.org:9808",
            "localhost.evil:1",
            ":9808",
            "127.0.0.1.nip.io",
            "[::1",
        ] {
            assert!(!is_address(name.as_bytes()), "{name}");
        }
        assert!(!is_address(b"\xff"));
        for address in [
            "localhost",
            "LocalHost:9808",
            "127.0.0.1",
            "127.0.0.1:9808",
            "[::1]",
            "[::1]:9808",
        ] {
            assert!(is_address(address.as_bytes()), "{address}");
        }
    }

    #[test]
    fn openapi_lists_exactly_the_served_paths() {
        let document: serde_json::Value = serde_json::from_str(OPENAPI).expect("JSON");
        let mut listed = Vec::new();
        for (path, methods) in document["paths"].as_object().expect("paths") {
            for method in methods.as_object().expect("methods").keys() {
                listed.push((method.clone(), path.clone()));
            }
        }
        let mut known: Vec<_> = PATHS
            .map(|(method, path)| (method.to_owned(), path.to_owned()))
            .into();
        listed.sort();
        known.sort();
        assert_eq!(listed, known);
    }
}
