//! `POST /api/v1/device/reopen`: returns a damaged device to service.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::Response;
use block::{Device, ReopenError};
use tokio::task::spawn_blocking;

use super::answers::refusal;
use super::routes::Shared;
use crate::command_line::with_causes;
use crate::observe::model::{ReopenAnswer, ReopenRequest, Severity};

pub(super) async fn reopen(
    State(shared): State<Arc<Shared>>,
    request: Result<Json<ReopenRequest>, JsonRejection>,
) -> Response {
    let name = match request {
        Ok(Json(request)) => request.device,
        Err(error) => return refusal(error.status(), error.body_text()),
    };
    let found = shared.observatory().device(&name);
    let Some(device) = found else {
        let text = format!(
            "there is no device {name} that is open: `windlass status --devices` lists the devices"
        );
        return refusal(StatusCode::NOT_FOUND, text);
    };
    // It asks the file system, which may take its time.
    let reopened = spawn_blocking(move || try_to_reopen(&*device)).await;
    let observatory = shared.observatory();
    match reopened {
        Ok(Ok(text)) => {
            let event = "was reopened by an operator";
            let events = observatory.events();
            events.add(Severity::Warning, "device", &name, event);
            drop(observatory);
            tracing::warn!("device {name} {event}: {text}");
            shared.room.json(&ReopenAnswer { device: name, text })
        }
        Ok(Err(error)) => {
            let status = match error {
                ReopenError::NotDamaged | ReopenError::Unsupported => StatusCode::CONFLICT,
                _ => StatusCode::UNPROCESSABLE_ENTITY,
            };
            let text = format!("device {name} is as it was: {}", with_causes(&error));
            refusal(status, text)
        }
        Err(error) => {
            let text = format!("device {name}: reopening was given up: {error}");
            refusal(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

/// Returns a device to service; what the operator has to know then.
fn try_to_reopen(device: &dyn Device) -> Result<String, ReopenError> {
    let damage = device.health().damage;
    device.reopen()?;
    let cause = damage.map_or_else(|| "an unknown cause".to_owned(), |it| it.cause.to_string());
    Ok(format!(
        "it takes writes and flushes again. It was damaged ({cause}): writes that hosts were \
         answered before the damage, and had not flushed successfully, may be lost. Check the file \
         systems and databases on it before they are used"
    ))
}
