//! `GET /api/v1/ana` and `POST /api/v1/ana/set`.
//!
//! A request is checked completely before anything is changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use appliance_config::{AnaState, Config, Export, Name};
use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::Response;
use nvme_target::{AnaPath, Target};
use tokio::time::{Instant, sleep};

use super::audited::{Outcome, with_outcome};
use super::limits::{COMMANDS_POLL_INTERVAL, HOST_COMMANDS_TIME_MAX};
use super::responses::{Refused, refusal};
use super::routes::ControlState;
use crate::exports;
use crate::observe::model::{AnaAnswer, AnaChange, AnaRequest, Severity};
use crate::observe::status;
use crate::running::Running;

pub(super) async fn list(State(shared): State<Arc<ControlState>>) -> Response {
    let running = shared.observatory().running();
    let states = running.operator_states.lock().clone();
    let config = running.config.load_full();
    shared.room.json(&status::ana(&config, &states))
}

pub(super) async fn set(
    State(shared): State<Arc<ControlState>>,
    request: Result<Json<AnaRequest>, JsonRejection>,
) -> Response {
    let request = match request {
        Ok(Json(request)) => request,
        Err(error) => return refusal(error.status(), error.body_text()),
    };
    let (running, target) = {
        let observatory = shared.observatory();
        (observatory.running(), observatory.target())
    };
    let Setting { changes, done } = match change(&request, &running, &target) {
        Ok(setting) => setting,
        Err((status, text)) => return refusal(status, text),
    };
    let export = request.export.clone();
    let event = event(&request);
    if !changes.is_empty() {
        let observatory = shared.observatory();
        let events = observatory.events();
        events.add(Severity::Warning, "export", &export, &event);
        drop(observatory);
        tracing::warn!("export {export}: {event}");
    }
    let deadline = Instant::now() + HOST_COMMANDS_TIME_MAX;
    if !have_ended(done, deadline).await {
        let text = format!(
            "export {export}: the states are set, but commands that hosts sent before have not \
             left the devices within {HOST_COMMANDS_TIME_MAX:?}: check the devices with `windlass \
             status`, and repeat the command to wait again"
        );
        return refusal(StatusCode::REQUEST_TIMEOUT, text);
    }
    let count = match changes.len() {
        0 => "no state changed".to_owned(),
        count => format!("{count} state(s) changed"),
    };
    let ended = match request.state.is_accessible() {
        true => "",
        false => ", and commands that hosts sent before have ended",
    };
    let text = format!(
        "{count}{ended}. The state holds until the appliance restarts or the configured state \
         changes: to keep it, change the configuration"
    );
    let what = if changes.is_empty() { &text } else { &event };
    let outcome = Outcome::Changed(format!("export {export}: {what}"));
    let answer = AnaAnswer {
        export,
        changes,
        text,
    };
    with_outcome(shared.room.json(&answer), outcome)
}

/// Changed states.
pub(crate) struct Setting {
    changes: Vec<AnaChange>,
    /// Disconnected when the earlier commands of hosts that lost access have ended.
    pub(crate) done: Receiver<()>,
}

/// Checks the request, and sets the states.
pub(crate) fn change(
    request: &AnaRequest,
    running: &Running,
    target: &Target,
) -> Result<Setting, Refused> {
    let mut states = running.operator_states.lock();
    let config = running.config.load_full();
    let ports = running.ports.load();
    let (export, paths) = selected(request, &config)?;
    let state = AnaState::from(request.state);
    let mut wanted = BTreeMap::new();
    for (listener, group) in &paths {
        let port = ports.get(listener).ok_or_else(|| {
            let text = format!(
                "listener {listener} is not bound, so nothing is changed: `windlass status` lists \
                 the listeners"
            );
            (StatusCode::CONFLICT, text)
        })?;
        let path = AnaPath {
            port: port.id,
            group: *group,
        };
        wanted.insert(path, exports::ana_state(state));
    }
    let done = target.set_ana_states(export.nqn.as_str(), &wanted);
    let done = done.map_err(|error| {
        let text = format!("export {}: nothing is changed: {error}", export.nqn);
        (StatusCode::CONFLICT, text)
    })?;
    let mut changes = Vec::new();
    for (listener, group) in paths {
        let from = states.state(export, &listener, group);
        states.set(export, &listener, group, state);
        if from != state {
            changes.push(AnaChange {
                group,
                listener: listener.to_string(),
                from: from.into(),
                to: request.state,
            });
        }
    }
    Ok(Setting { changes, done })
}

/// The listeners and groups of an export.
type Paths = Vec<(Name, u32)>;

/// The export that the request names, and the paths that it selects.
fn selected<'c>(request: &AnaRequest, config: &'c Config) -> Result<(&'c Export, Paths), Refused> {
    let missing = |text: String| (StatusCode::NOT_FOUND, text);
    let nqn = &request.export;
    let mut exports = config.exports.iter();
    let export = exports.find(|it| it.nqn.as_str() == nqn).ok_or_else(|| {
        missing(format!(
            "export {nqn} does not exist: `windlass ana` lists the exports"
        ))
    })?;
    let is_wanted = |listener: &&Name| {
        let wanted = request.listener.as_deref();
        wanted.is_none_or(|wanted| listener.as_str() == wanted)
    };
    let listeners: Vec<&Name> = export.listeners.iter().filter(is_wanted).collect();
    if let (Some(listener), []) = (&request.listener, &listeners[..]) {
        return Err(missing(format!(
            "export {nqn} is not offered at listener {listener}: `windlass ana` lists its listeners"
        )));
    }
    let mut groups = export.ana_groups();
    if let Some(group) = request.group {
        groups.retain(|it| *it == group);
        if groups.is_empty() {
            return Err(missing(format!(
                "export {nqn} has no namespace in group {group}: `windlass ana` lists its groups"
            )));
        }
    }
    let of_listener = |listener: &'c Name| groups.iter().map(|group| (listener.clone(), *group));
    let paths = listeners.into_iter().flat_map(of_listener).collect();
    Ok((export, paths))
}

/// The event for people. It has a bounded length.
fn event(request: &AnaRequest) -> String {
    let groups = match request.group {
        Some(group) => format!("group {group}"),
        None => "all ANA groups".to_owned(),
    };
    let listeners = match &request.listener {
        Some(listener) => format!("listener {listener}"),
        None => "all its listeners".to_owned(),
    };
    let state = request.state.word();
    format!("{groups} at {listeners} set to {state} by an operator")
}

/// Waits until the earlier commands have ended. Returns false at the deadline.
async fn have_ended(done: Receiver<()>, deadline: Instant) -> bool {
    while done.try_recv() != Err(TryRecvError::Disconnected) {
        if Instant::now() >= deadline {
            return false;
        }
        sleep(COMMANDS_POLL_INTERVAL).await;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_commands_or_at_the_deadline() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        let wait = |done| runtime.block_on(async { have_ended(done, Instant::now()).await });
        let (sender, done) = std::sync::mpsc::channel();
        assert!(!wait(done));
        drop(sender);
        let (sender, done) = std::sync::mpsc::channel();
        drop(sender);
        assert!(wait(done));
    }
}
