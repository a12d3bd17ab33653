//! One HTTP request and its response.

use std::io;
use std::path::Path;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode, header};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{ClientError, PATHS_OF_OBJECTS, RESPONSE_BYTES_MAX, socket};
use crate::observe::model::Refusal;

/// Sends a request to the appliance at `socket` and returns the body of the response, all within
/// `within`.
pub(super) fn exchange(
    socket: &Path,
    within: Duration,
    method: Method,
    path: &str,
    body: Vec<u8>,
) -> Result<Vec<u8>, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| system(socket, cause))?;
    let response = async {
        match timeout(within, ask(socket, method, path, body)).await {
            Ok(response) => response,
            Err(_) => Err(ClientError::TooSlow {
                socket: socket.to_owned(),
                within,
            }),
        }
    };
    let (status, body) = runtime.block_on(response)?;
    if status.is_success() {
        return Ok(body);
    }
    Err(refused(socket, path, status, &body))
}

async fn ask(
    at: &Path,
    method: Method,
    path: &str,
    body: Vec<u8>,
) -> Result<(StatusCode, Vec<u8>), ClientError> {
    let stream = UnixStream::connect(at)
        .await
        .map_err(|error| socket::explain(at, error))?;
    let other = |reason: &dyn std::fmt::Display| ClientError::NotWindlass {
        socket: at.to_owned(),
        reason: reason.to_string(),
    };
    let (mut sender, connection) = handshake(TokioIo::new(stream))
        .await
        .map_err(|error| other(&error))?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .map_err(|error| other(&error))?;
    let response = async move {
        let response = sender.send_request(request).await;
        let (head, body) = response.map_err(|error| other(&error))?.into_parts();
        let body = to_bytes(Body::new(body), RESPONSE_BYTES_MAX).await;
        let body = body.map_err(|cause| system(at, io::Error::other(cause)))?;
        Ok((head.status, body.to_vec()))
    };
    // The connection future moves the bytes of both directions; its result carries no information.
    tokio::pin!(response);
    tokio::select! {
        biased;
        response = &mut response => response,
        _ = connection => response.await,
    }
}

/// The error for a response that is not successful.
fn refused(socket: &Path, path: &str, status: StatusCode, body: &[u8]) -> ClientError {
    let socket = socket.to_owned();
    let Ok(Refusal { error }) = serde_json::from_slice(body) else {
        return ClientError::NotWindlass {
            socket,
            reason: format!("it says {status} at {path}"),
        };
    };
    match status {
        StatusCode::FORBIDDEN => ClientError::NotPermitted {
            socket,
            remedy: error,
        },
        // The path is known: the device, export or host that the request names is not.
        StatusCode::NOT_FOUND if PATHS_OF_OBJECTS.contains(&path) => ClientError::Refused {
            status: status.as_u16(),
            error,
        },
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => ClientError::OtherVersion {
            socket,
            what: format!("at {path} it says `{error}`"),
        },
        _ => ClientError::Refused {
            status: status.as_u16(),
            error,
        },
    }
}

fn system(socket: &Path, cause: io::Error) -> ClientError {
    ClientError::System {
        socket: socket.to_owned(),
        cause,
    }
}
