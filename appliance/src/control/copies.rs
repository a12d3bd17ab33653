//! `POST /api/v1/copies/start` and `/abort`: asks the control thread to copy a device to another, and
//! aborts such a copy.

use std::sync::Arc;

use appliance_config::{Backing, Config};
use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::Response;

use super::audited::{Outcome, with_outcome};
use super::jobs::execute;
use super::reopen::may_change;
use super::responses::refusal;
use super::routes::ControlState;
use crate::copies::{AbortRefusal, CopyRefusal, CopyWanted};
use crate::observe::model::{
    AbortCopyAnswer, AbortCopyRequest, CopyRequest, Severity, StartCopyAnswer,
};
use crate::requests::{CopyJob, Request};

pub(super) async fn start(
    State(shared): State<Arc<ControlState>>,
    request: Result<Json<CopyRequest>, JsonRejection>,
) -> Response {
    let wanted = match request {
        Ok(Json(request)) => wanted(request),
        Err(error) => return refusal(error.status(), error.body_text()),
    };
    let config = shared.observatory().config();
    if let Err(error) = may_overwrite(&config, &wanted.destination) {
        return refusal(StatusCode::FORBIDDEN, error);
    }
    let what = format!("device {} to {}", wanted.source, wanted.destination);
    let busy = "a configuration is being applied, or a new process started: try again when that \
                is over";
    let done = execute(&shared, busy, |reply, permit| {
        Request::Copy(CopyJob {
            wanted,
            reply,
            permit,
        })
    });
    match done.await {
        Ok(Ok(number)) => {
            let mut observatory = shared.observatory();
            observatory.renew();
            let text = format!("copy {number} has begun: {what}");
            observatory
                .events()
                .add(Severity::Info, "copy", &number.to_string(), &text);
            drop(observatory);
            let outcome = Outcome::Changed(text);
            with_outcome(shared.room.json(&StartCopyAnswer { number }), outcome)
        }
        Ok(Err(refused)) => refusal(status(&refused), refused.to_string()),
        Err((status, text)) => refusal(status, text),
    }
}

pub(super) async fn abort(
    State(shared): State<Arc<ControlState>>,
    request: Result<Json<AbortCopyRequest>, JsonRejection>,
) -> Response {
    let number = match request {
        Ok(Json(request)) => request.number,
        Err(error) => return refusal(error.status(), error.body_text()),
    };
    let copies = shared.observatory().copies();
    match copies.abort(number) {
        Ok(()) => {
            let text = "it ends when its requests in flight have".to_owned();
            let outcome = Outcome::Changed(format!("copy {number} is aborted"));
            with_outcome(shared.room.json(&AbortCopyAnswer { number, text }), outcome)
        }
        Err(refused) => {
            let status = match refused {
                AbortRefusal::Unknown(_) => StatusCode::NOT_FOUND,
                AbortRefusal::Ended(_) => StatusCode::CONFLICT,
                AbortRefusal::NoReactor => StatusCode::SERVICE_UNAVAILABLE,
            };
            refusal(status, refused.to_string())
        }
    }
}

fn wanted(request: CopyRequest) -> CopyWanted {
    let CopyRequest {
        source,
        destination,
        offset,
        length,
        live,
        overwrite_exported,
        drive_memory,
        by_drive,
    } = request;
    CopyWanted {
        source,
        destination,
        offset,
        length,
        live,
        overwrite_exported,
        drive_memory,
        by_drive,
    }
}

/// Whether a request may overwrite the device: `allowed_paths` permits files and no drives.
fn may_overwrite(config: &Config, name: &str) -> Result<(), String> {
    let mut devices = config.devices.iter();
    let device = devices.find(|device| device.name.as_str() == name);
    let is_drive = device.is_some_and(|it| matches!(it.backing, Backing::Nvme(_)));
    if is_drive && config.control.allowed_paths.is_some() {
        return Err(format!(
            "device {name} is unchanged: `allowed_paths` of [control] permits files and no drives"
        ));
    }
    may_change(config, name)
}

fn status(refused: &CopyRefusal) -> StatusCode {
    match refused {
        CopyRefusal::Unknown(_) => StatusCode::NOT_FOUND,
        CopyRefusal::NoReactor => StatusCode::SERVICE_UNAVAILABLE,
        CopyRefusal::NotReady { .. }
        | CopyRefusal::Volume(_)
        | CopyRefusal::Exported { .. }
        | CopyRefusal::Shared(_)
        | CopyRefusal::Live { .. }
        | CopyRefusal::Busy(_)
        | CopyRefusal::TooMany => StatusCode::CONFLICT,
        CopyRefusal::Same(_)
        | CopyRefusal::BlockSize { .. }
        | CopyRefusal::OutOfRange { .. }
        | CopyRefusal::Unaligned(_)
        | CopyRefusal::Unreachable { .. }
        | CopyRefusal::NoDriveMemory(..)
        | CopyRefusal::NotOneDrive(..)
        | CopyRefusal::NoOwnCopy(..)
        | CopyRefusal::ReadOnly(_) => StatusCode::UNPROCESSABLE_ENTITY,
    }
}
