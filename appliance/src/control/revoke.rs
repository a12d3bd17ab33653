//! `POST /api/v1/keys/revoke`: has the control thread revoke the secret of a key, and waits until the
//! associations that are to end have ended.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::Response;
use tokio::time::Instant;

use super::audited::{Outcome, with_outcome};
use super::jobs::execute;
use super::limits::HOST_COMMANDS_TIME_MAX;
use super::reservations::await_end;
use super::responses::refusal;
use super::routes::ControlState;
use crate::observe::model::{RevokeAnswer, RevokeRequest, Severity};
use crate::requests::{Request, RevokeJob};

pub(super) async fn revoke(
    State(shared): State<Arc<ControlState>>,
    request: Result<Json<RevokeRequest>, JsonRejection>,
) -> Response {
    let RevokeRequest { key, disconnect } = match request {
        Ok(Json(request)) => request,
        Err(error) => return refusal(error.status(), error.body_text()),
    };
    let config = shared.observatory().config();
    let Some(known) = config.keys.iter().find(|it| it.name.as_str() == key) else {
        let text =
            format!("the configuration has no key {key}: `windlass status --json` lists them");
        return refusal(StatusCode::NOT_FOUND, text);
    };
    let busy = "a configuration is being applied: try again when that is over";
    let name = known.name.clone();
    let done = execute(&shared, busy, |reply, permit| {
        Request::Revoke(RevokeJob {
            key: name,
            disconnect,
            reply,
            permit,
        })
    });
    let ended = match done.await {
        Ok(Ok(ended)) => ended,
        Ok(Err(reason)) => return refusal(StatusCode::UNPROCESSABLE_ENTITY, reason),
        Err((status, text)) => return refusal(status, text),
    };
    let associations = ended.count();
    let done = match disconnect {
        true => format!("{associations} association(s) ended"),
        false => "connections go on".to_owned(),
    };
    let event = "was revoked by an operator";
    let target = {
        let observatory = shared.observatory();
        let events = observatory.events();
        events.add(Severity::Warning, "key", &key, &format!("{event} ({done})"));
        observatory.target()
    };
    tracing::warn!("key {key} {event}: {done}");
    let deadline = Instant::now() + HOST_COMMANDS_TIME_MAX;
    if let Err((status, error)) = await_end(&target, &[ended], deadline).await {
        let text = format!("key {key} is revoked, and {done}, but {error}");
        return refusal(status, text);
    }
    let text = format!(
        "its secret is not accepted any more, also after a restart; {done}. To use the key again, \
         place another secret in its file, and run windlass apply"
    );
    let outcome = Outcome::Changed(format!("key {key}: {done}"));
    let answer = RevokeAnswer {
        key,
        associations,
        text,
    };
    with_outcome(shared.room.json(&answer), outcome)
}
