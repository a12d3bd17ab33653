//! `POST /api/v1/apply`: passes a configuration to the control thread, which applies it, and
//! returns the result.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequest as _, Request as HttpRequest, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use tokio::time::timeout;

use super::audited::{Outcome, with_outcome};
use super::jobs::execute;
use super::limits::REQUEST_TIME_MAX;
use super::responses::refusal;
use super::routes::ControlState;
use crate::observe::model::{
    ApplyAnswer, ApplyRequest, ConfigurationProblem, Severity, WrongConfiguration,
};
use crate::reconciler::{ApplyOptions, Origin};
use crate::requests::{ApplyJob, ApplyRefusal, Request};

pub(super) async fn apply(
    State(shared): State<Arc<ControlState>>,
    request: HttpRequest,
) -> Response {
    // The rest of the time limit is for applying it.
    let body = timeout(
        REQUEST_TIME_MAX,
        Json::<ApplyRequest>::from_request(request, &()),
    )
    .await;
    let ApplyRequest {
        dry_run,
        partial,
        text,
    } = match body {
        Ok(Ok(Json(request))) => request,
        Ok(Err(error)) => return refusal(error.status(), error.body_text()),
        Err(_) => {
            let text = format!("the request took longer than {REQUEST_TIME_MAX:?}");
            return refusal(StatusCode::REQUEST_TIMEOUT, text);
        }
    };
    let origin = match text {
        Some(_) => Origin::Request,
        None => Origin::File,
    };
    let options = ApplyOptions {
        dry_run,
        partial,
        origin,
    };
    let busy = "another configuration is being applied, or an upgrade is under way: try again when \
                that is over";
    let done = execute(&shared, busy, |reply, permit| {
        Request::Apply(ApplyJob {
            text,
            options,
            reply,
            permit,
        })
    });
    match done.await {
        Ok(Ok(response)) => {
            if !dry_run {
                let (severity, text) = match response.failure_reason() {
                    None => (
                        Severity::Info,
                        format!("{} step(s) applied", response.steps.len()),
                    ),
                    Some(failure_reason) => (Severity::Warning, failure_reason),
                };
                let mut observatory = shared.observatory();
                // The client may ask for the state at once.
                observatory.renew();
                observatory.events().add(severity, "control", "", &text);
                for step in &response.steps {
                    if let Some(warning) = &step.warning {
                        let text = format!("{}: {warning}", step.text);
                        observatory
                            .events()
                            .add(Severity::Error, "control", "", &text);
                    }
                }
            }
            let outcome = outcome_of(&response, dry_run);
            with_outcome(shared.room.json(&response), outcome)
        }
        Ok(Err(refused)) => refused.into_refusal(),
        Err((status, text)) => refusal(status, text),
    }
}

/// The outcome for the audit record, with the steps that were carried out.
fn outcome_of(answer: &ApplyAnswer, dry_run: bool) -> Outcome {
    if dry_run {
        return Outcome::Compared;
    }
    if let Some(refused) = &answer.refused {
        return Outcome::Refused(answer.failure_reason().unwrap_or_else(|| refused.clone()));
    }
    let done = answer.steps.iter().filter(|it| it.error.is_none());
    let done: Vec<&str> = done.map(|it| it.text.as_str()).collect();
    let mut text = match &done[..] {
        [] => "no step was carried out".to_owned(),
        steps => steps.join("; "),
    };
    if let Some(reason) = answer.failure_reason() {
        text.push_str("; failed: ");
        text.push_str(&reason);
    }
    Outcome::Changed(text)
}

impl ApplyRefusal {
    fn into_refusal(self) -> Response {
        let error = self.to_string();
        let Self::Wrong(problems) = self else {
            return refusal(StatusCode::UNPROCESSABLE_ENTITY, error);
        };
        let problems = problems.iter().map(|problem| ConfigurationProblem {
            line: problem.place().map(appliance_config::Place::line),
            column: problem.place().map(appliance_config::Place::column),
            message: problem.message().to_owned(),
            hint: problem.hint().map(str::to_owned),
        });
        let wrong = WrongConfiguration {
            problems: problems.collect(),
            error,
        };
        let outcome = Outcome::Refused("the configuration has problems".to_owned());
        let response = (StatusCode::UNPROCESSABLE_ENTITY, Json(wrong)).into_response();
        with_outcome(response, outcome)
    }
}
