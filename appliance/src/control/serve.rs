//! The control plane's thread: its loop, its connections, and their limits of time and number.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, timeout};
use tokio_rustls::TlsAcceptor;

use super::audited::Client;
use super::credentials::{Refreshed, Watch};
use super::limits::{
    CONNECTION_TIME_MAX, CREDENTIALS_INTERVAL, HANDSHAKE_TIME_MAX, HEADER_BYTES_MAX,
    HEADER_TIME_MAX, HEADERS_MAX, HTTP_CONNECTIONS_MAX, LINGER_TIME_MAX, REFUSALS_MAX,
    SOCKET_CONNECTIONS_MAX,
};
use super::listen::{Http, Sockets};
use super::routes::{self, ControlState, Entrance};
use super::socket::Socket;
use crate::affinity::avoid_reactor_cores;
use crate::error::with_causes;
use crate::observe::model::Severity;
use crate::observe::{Observatory, STEP};
use crate::requests::RequestSender;

/// Time limit for writing a refusal, which fits into any socket's buffer.
const REFUSAL_TIME_MAX: Duration = Duration::from_millis(50);
/// Delay after a failed accept.
const ACCEPT_REST: Duration = Duration::from_millis(100);

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
Content-Type: application/json\r\nContent-Length: 64\r\n\r\n\
{\"error\":\"the limit of connections is reached: try again later\"}";

const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\
Content-Type: application/json\r\nContent-Length: 57\r\n\r\n\
{\"error\":\"this address answers HTTPS only: use https://\"}";

/// The first byte of a TLS connection: the type of a handshake record (RFC 8446 §5.1).
const TLS_HANDSHAKE: u8 = 22;

/// Serves until `stopped` completes or its sender is dropped.
pub(super) fn run(
    sockets: Sockets,
    observatory: Observatory,
    request_sender: Option<RequestSender>,
    cores: &[usize],
    stopped: oneshot::Receiver<()>,
) {
    avoid_reactor_cores(cores);
    reactors::lower_priority();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::warn!(%error, "no control plane");
            return;
        }
    };
    let shared = Arc::new(ControlState::new(Mutex::new(observatory), request_sender));
    runtime.block_on(async {
        tokio::select! {
            _ = stopped => {}
            () = sample(&shared) => {}
            () = serve_socket(sockets.socket, &shared) => {}
            () = serve_http(sockets.http, &shared) => {}
        }
    });
    // Closes every connection immediately.
    drop(runtime);
}

async fn sample(shared: &ControlState) {
    let mut ticks = tokio::time::interval(STEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // The first tick is immediate, and there is nothing to record yet.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        shared.observatory().tick();
    }
}

async fn serve_socket(socket: Option<Socket>, shared: &Arc<ControlState>) {
    let Some(socket) = socket else {
        return std::future::pending().await;
    };
    let listener = socket.listener.try_clone();
    let listener = listener.and_then(tokio::net::UnixListener::from_std);
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%error, "no control socket");
            return std::future::pending().await;
        }
    };
    let router = routes::router(shared, Entrance::Socket);
    let door = Door::new(SOCKET_CONNECTIONS_MAX);
    loop {
        // The kernel enforces the socket's mode.
        let Some((stream, _)) = accepted(listener.accept()).await else {
            continue;
        };
        let Some(permit) = door.permit() else {
            refuse(stream, FULL, &door.lingering).await;
            continue;
        };
        let router = match stream.peer_cred() {
            Ok(peer) => router.clone().layer(Extension(Client::Local {
                user: peer.uid(),
                process: peer.pid(),
            })),
            Err(_) => router.clone(),
        };
        tokio::spawn(async move {
            run_connection(stream, router).await;
            drop(permit);
        });
    }
}

async fn serve_http(http: Option<Http>, shared: &Arc<ControlState>) {
    let Some(Http {
        listener, watch, ..
    }) = http
    else {
        return std::future::pending().await;
    };
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%error, "no HTTP");
            return std::future::pending().await;
        }
    };
    let credentials = watch.credentials();
    if watch.has_files() {
        tokio::spawn(refresh_credentials(watch, Arc::clone(shared)));
    }
    let router = routes::router(shared, Entrance::Http(Arc::clone(&credentials)));
    let door = Door::new(HTTP_CONNECTIONS_MAX);
    loop {
        let Some((stream, address)) = accepted(listener.accept()).await else {
            continue;
        };
        let tls = credentials.current().tls.clone();
        let Some(permit) = door.permit() else {
            // A client of HTTPS could not read a refusal.
            let refusal = if tls.is_some() { b"" } else { FULL };
            refuse(stream, refusal, &door.lingering).await;
            continue;
        };
        let router = router.clone().layer(Extension(Client::Remote(address)));
        let lingering = Arc::clone(&door.lingering);
        tokio::spawn(async move {
            match tls {
                Some(tls) => run_encrypted(stream, tls, router, &lingering).await,
                None => run_connection(stream, router).await,
            }
            drop(permit);
        });
    }
}

/// Reads the files with credentials again when they have changed.
async fn refresh_credentials(mut watch: Watch, shared: Arc<ControlState>) {
    loop {
        tokio::time::sleep(CREDENTIALS_INTERVAL).await;
        // Calls the file system, which may be slow.
        let refreshed = spawn_blocking(move || {
            let refreshed = watch.refresh();
            (watch, refreshed)
        });
        let Ok((same, refreshed)) = refreshed.await else {
            return;
        };
        watch = same;
        let (severity, text) = match refreshed {
            Refreshed::Unchanged => continue,
            Refreshed::Replaced => {
                let text = "tokens and certificate are read again, because a file has changed";
                tracing::info!("HTTP: {text}");
                (Severity::Info, text.to_owned())
            }
            Refreshed::Refused(error) => {
                let text = format!(
                    "a changed file of tokens or certificate is not used, and the previous ones \
                     stay: {}",
                    with_causes(&error)
                );
                tracing::warn!("HTTP: {text}");
                (Severity::Warning, text)
            }
        };
        let observatory = shared.observatory();
        observatory.events().add(severity, "control", "", &text);
    }
}

/// Serves one connection over TLS. A client without TLS gets the reason.
async fn run_encrypted(
    stream: TcpStream,
    tls: Arc<ServerConfig>,
    router: Router,
    lingering: &Arc<Semaphore>,
) {
    let mut first = [0];
    match timeout(HANDSHAKE_TIME_MAX, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first[0] != TLS_HANDSHAKE => return refuse(stream, PLAIN, lingering).await,
        Ok(Ok(1)) => {}
        _ => return,
    }
    let handshake = TlsAcceptor::from(tls).accept(stream);
    match timeout(HANDSHAKE_TIME_MAX, handshake).await {
        Ok(Ok(stream)) => run_connection(stream, router).await,
        Ok(Err(error)) => tracing::debug!(%error, "an HTTPS connection was not established"),
        Err(_) => tracing::debug!("an HTTPS client did not finish its handshake in time"),
    }
}

/// The limits of one entrance.
struct Door {
    room: Arc<Semaphore>,
    /// Permits of refused connections.
    lingering: Arc<Semaphore>,
}

impl Door {
    fn new(connections_max: usize) -> Self {
        Self {
            room: Arc::new(Semaphore::new(connections_max)),
            lingering: Arc::new(Semaphore::new(REFUSALS_MAX)),
        }
    }

    /// The permit for a connection, unless the limit is reached.
    fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).try_acquire_owned().ok()
    }
}

/// A connection; none after a failure and a short delay.
async fn accepted<C>(accept: impl Future<Output = std::io::Result<C>>) -> Option<C> {
    match accept.await {
        Ok(connection) => Some(connection),
        Err(error) => {
            tracing::debug!(%error, "a control connection was not accepted");
            tokio::time::sleep(ACCEPT_REST).await;
            None
        }
    }
}

/// Sends a refusal, and waits briefly until the client has received it: closing a socket with
/// unread data would discard the response. Beyond the limit of `lingering` the connection is closed
/// immediately.
async fn refuse<S>(mut stream: S, response: &[u8], lingering: &Arc<Semaphore>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let written = async {
        stream.write_all(response).await?;
        stream.shutdown().await
    };
    let written = timeout(REFUSAL_TIME_MAX, written).await;
    let permit = Arc::clone(lingering).try_acquire_owned();
    let (Ok(Ok(())), Ok(permit)) = (written, permit) else {
        return;
    };
    tokio::spawn(async move {
        let mut bytes = [0; 1024];
        let until_its_end = async { while stream.read(&mut bytes).await.is_ok_and(|n| n > 0) {} };
        // A client that stays longer is disconnected.
        let _ = timeout(LINGER_TIME_MAX, until_its_end).await;
        drop(permit);
    });
}

/// Responds to the requests on `stream` until it ends, or for the lifetime of a connection.
pub(super) async fn run_connection<S>(stream: S, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = TowerToHyperService::new(router);
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME_MAX)
        .max_buf_size(HEADER_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    if timeout(CONNECTION_TIME_MAX, connection.as_mut())
        .await
        .is_err()
    {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(CONNECTION_TIME_MAX, connection).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_content_length_matches_its_body() {
        for response in [FULL, PLAIN] {
            let text = std::str::from_utf8(response).expect("ASCII");
            let (head, body) = text.split_once("\r\n\r\n").expect("a head");
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "));
            assert_eq!(length, Some(body.len().to_string().as_str()), "{body}");
            let refusal: crate::observe::model::Refusal =
                serde_json::from_str(body).expect("a refusal");
            assert!(!refusal.error.is_empty());
        }
    }
}
