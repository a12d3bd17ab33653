//! Requests that the control thread executes, one at a time.

use axum::http::StatusCode;
use tokio::sync::oneshot;

use super::responses::Refused;
use super::routes::ControlState;
use crate::requests::{ApplyPermit, Request};

/// Sends the request that `make` makes of a permit and a sender for the response, and waits for
/// the response. `busy` is the refusal while another request is executed.
pub(super) async fn execute<T>(
    shared: &ControlState,
    busy: &str,
    make: impl FnOnce(oneshot::Sender<T>, ApplyPermit) -> Request,
) -> Result<T, Refused> {
    let stopping = || {
        let text = "the appliance is starting or stopping: try again";
        (StatusCode::SERVICE_UNAVAILABLE, text.to_owned())
    };
    let request_sender = shared.request_sender.as_ref().ok_or_else(stopping)?;
    let permit = request_sender
        .try_acquire_permit()
        .ok_or_else(|| (StatusCode::CONFLICT, busy.to_owned()))?;
    let (reply, response) = oneshot::channel();
    if !request_sender.ask(make(reply, permit)) {
        return Err(stopping());
    }
    response.await.map_err(|_| stopping())
}
