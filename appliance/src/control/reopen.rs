//! `POST /api/v1/device/reopen`: returns a damaged device to service.

use std::sync::Arc;

use appliance_config::{Backing, Config};
use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::Response;
use block::{Device, ReopenError};
use tokio::task::spawn_blocking;

use super::audited::{Outcome, with_outcome};
use super::responses::refusal;
use super::routes::ControlState;
use crate::error::with_causes;
use crate::observe::model::{ReopenAnswer, ReopenRequest, Severity};
use crate::reconciler::directory_of;

pub(super) async fn reopen(
    State(shared): State<Arc<ControlState>>,
    request: Result<Json<ReopenRequest>, JsonRejection>,
) -> Response {
    let name = match request {
        Ok(Json(request)) => request.device,
        Err(error) => return refusal(error.status(), error.body_text()),
    };
    let found = shared.observatory().device(&name);
    let Some(device) = found else {
        let text = format!("device {name} is not open: `windlass status` lists the devices");
        return refusal(StatusCode::NOT_FOUND, text);
    };
    let config = shared.observatory().config();
    if let Err(error) = may_change(&config, &name) {
        return refusal(StatusCode::FORBIDDEN, error);
    }
    // Calls the file system, which may be slow.
    let reopened = spawn_blocking(move || try_to_reopen(&*device)).await;
    let observatory = shared.observatory();
    match reopened {
        Ok(Ok(text)) => {
            let event = "was reopened by an operator";
            let events = observatory.events();
            events.add(Severity::Warning, "device", &name, event);
            drop(observatory);
            tracing::warn!("device {name} {event}: {text}");
            let outcome = Outcome::Changed(format!("device {name}: {text}"));
            let answer = ReopenAnswer { device: name, text };
            with_outcome(shared.room.json(&answer), outcome)
        }
        Ok(Err(error)) => {
            let status = match error {
                ReopenError::NotDamaged | ReopenError::Unsupported => StatusCode::CONFLICT,
                _ => StatusCode::UNPROCESSABLE_ENTITY,
            };
            let text = format!("device {name} is unchanged: {}", with_causes(&error));
            refusal(status, text)
        }
        Err(error) => {
            let text = format!("device {name}: reopening was aborted: {error}");
            refusal(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

/// Whether a request may change the device's file: reopen or overwrite it. If requests may not name
/// the file, that is left to the owner of the configuration.
pub(super) fn may_change(config: &Config, name: &str) -> Result<(), String> {
    let mut devices = config.devices.iter();
    let device = devices.find(|device| device.name.as_str() == name);
    let Some(Backing::File { path, .. }) = device.map(|device| &device.backing) else {
        return Ok(());
    };
    let Some(allowed) = &config.control.allowed_paths else {
        return Ok(());
    };
    let found = directory_of(path, allowed).map(drop);
    found.map_err(|error| format!("device {name} is unchanged: {error}"))
}

/// Returns a device to service. The result is the information that the operator needs.
fn try_to_reopen(device: &dyn Device) -> Result<String, ReopenError> {
    let damage = device.health().damage;
    device.reopen()?;
    let cause = damage.map_or_else(|| "an unknown cause".to_owned(), |it| it.cause.to_string());
    Ok(format!(
        "it accepts writes and flushes again. It was damaged ({cause}): writes completed before \
         the damage and not flushed successfully may be lost. Check the file \
         systems and databases on it before they are used"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reopen_by_request_is_limited_to_allowed_paths() {
        let config = |control: &str| {
            let text = format!(
                "[control]\n{control}\n\
                 [[device]]\nname = \"in\"\ntype = \"file\"\npath = \"/srv/disks/in\"\n\
                 [[device]]\nname = \"out\"\ntype = \"file\"\npath = \"/srv/secret/out\"\n\
                 [[device]]\nname = \"up\"\ntype = \"file\"\npath = \"/srv/disks/../up\"\n\
                 [[device]]\nname = \"ram\"\ntype = \"memory\"\nsize = \"1MiB\"\n\
                 [[listener]]\nname = \"a\"\ntransport = \"tcp\"\naddress = \"127.0.0.1:0\"\n\
                 [[export]]\nnqn = \"nqn.2026-11.org.windlass:a\"\n\
                 devices = [\"in\", \"out\", \"up\", \"ram\"]\nlisteners = [\"a\"]\n\
                 allow_any_host = true\n"
            );
            Config::parse("test", &text).expect("a right configuration")
        };
        let anywhere = config("");
        let restricted = config("allowed_paths = [\"/srv/disks\"]");
        for (name, allowed) in [("in", true), ("out", false), ("up", false), ("ram", true)] {
            assert_eq!(may_change(&anywhere, name), Ok(()), "{name}");
            let verdict = may_change(&restricted, name);
            assert_eq!(verdict.is_ok(), allowed, "{name}: {verdict:?}");
        }
        let refused = may_change(&restricted, "out").expect_err("it is elsewhere");
        assert!(refused.contains("`allowed_paths`"), "{refused}");
    }
}
