//! HTTP responses: JSON and text, with a limit on their total size.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::audited::{Outcome, with_outcome};
use super::limits::LARGE_ANSWERS_MAX;
use crate::observe::model::Refusal;

/// A response with more bytes is large.
const LARGE_BYTES: usize = 256 * 1024;

/// Limits the number of large responses, so that slow clients do not exhaust memory.
pub(super) struct LargeResponses(Arc<Semaphore>);

/// The bytes of a large response, with their permit until the last one is sent.
struct BoundedBody {
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for BoundedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl LargeResponses {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(LARGE_ANSWERS_MAX)))
    }

    /// A response with `value` as JSON.
    pub(super) fn json(&self, value: &impl Serialize) -> Response {
        match serde_json::to_vec(value) {
            Ok(bytes) => self.bytes(bytes, "application/json"),
            Err(error) => {
                let text = format!("the response cannot be encoded: {error}");
                refusal(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        }
    }

    /// A response with `bytes` of that media type.
    pub(super) fn bytes(&self, bytes: Vec<u8>, media_type: &'static str) -> Response {
        let body = if bytes.len() <= LARGE_BYTES {
            Bytes::from(bytes)
        } else {
            let Ok(permit) = Arc::clone(&self.0).try_acquire_owned() else {
                let text = "the limit of large responses in progress is reached: try again";
                return refusal(StatusCode::SERVICE_UNAVAILABLE, text.to_owned());
            };
            Bytes::from_owner(BoundedBody {
                bytes,
                _permit: permit,
            })
        };
        let mut response = Response::new(Body::from(body));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// A refusal: its status, and its text.
pub(super) type Refused = (StatusCode, String);

/// A refusal with its reason and remedy.
pub(super) fn refusal(status: StatusCode, error: String) -> Response {
    let outcome = Outcome::Refused(error.clone());
    let response = (status, axum::Json(Refusal { error })).into_response();
    with_outcome(response, outcome)
}
