//! `POST /api/v1/upgrade`: asks the control thread to hand over to a new process, and returns the
//! result.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::Response;

use super::audited::{Outcome, with_outcome};
use super::jobs::execute;
use super::responses::refusal;
use super::routes::ControlState;
use crate::observe::model::{Severity, UpgradeRequest};
use crate::requests::{Request, UpgradeJob};

pub(super) async fn upgrade(
    State(shared): State<Arc<ControlState>>,
    request: Result<Json<UpgradeRequest>, JsonRejection>,
) -> Response {
    let UpgradeRequest { program, dry_run } = match request {
        Ok(Json(request)) => request,
        Err(error) => return refusal(error.status(), error.body_text()),
    };
    let config = shared.observatory().config();
    if program.is_some() && config.control.allowed_paths.is_some() {
        let text = "`allowed_paths` of [control] is set, so requests may not name a program: \
                    replace the file of the running one, and leave it out";
        return refusal(StatusCode::FORBIDDEN, text.to_owned());
    }
    let busy = "a configuration is being applied, or a new process started: try again when that \
                is over";
    let done = execute(&shared, busy, |reply, permit| {
        Request::Upgrade(UpgradeJob {
            program: program.map(PathBuf::from),
            dry_run,
            reply,
            permit,
        })
    });
    match done.await {
        Ok(Ok(answer)) => {
            let outcome = match answer.pid {
                Some(pid) => Outcome::Changed(format!("process {pid} ({})", answer.program)),
                None => Outcome::Compared,
            };
            with_outcome(shared.room.json(&answer), outcome)
        }
        Ok(Err(reason)) => {
            let text = format!("this process serves on: {reason}");
            let observatory = shared.observatory();
            let events = observatory.events();
            events.add(
                Severity::Warning,
                "control",
                "",
                &format!("no upgrade: {reason}"),
            );
            drop(observatory);
            refusal(StatusCode::UNPROCESSABLE_ENTITY, text)
        }
        Err((status, text)) => refusal(status, text),
    }
}
