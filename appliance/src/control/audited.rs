//! Writes an audit record for each request that changes the appliance, or tries to.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use reactors::{LogLimit, Nanos};

use super::limits::REFUSED_RECORDS_MAX;
use super::routes::ControlState;
use super::socket::user_name;
use crate::audit;

/// The time in which [`REFUSED_RECORDS_MAX`] refusals are recorded.
const PERIOD: Nanos = Nanos::from_secs(60);

/// The sender of a request.
#[derive(Clone, Debug)]
pub(super) enum Client {
    /// A process of this machine, over the control socket, as the kernel reports it.
    Local { user: u32, process: Option<i32> },
    /// A client over HTTP.
    Remote(SocketAddr),
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { user, process } => {
                write!(f, "user {}", user_name(*user))?;
                match process {
                    Some(process) => write!(f, " (process {process})"),
                    None => Ok(()),
                }
            }
            Self::Remote(address) => write!(f, "{address} with HTTP"),
        }
    }
}

/// What a response says of a request to change something. Handlers attach it to their response.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// The change, for people.
    Changed(String),
    /// The reason why nothing was changed.
    Refused(String),
    /// The request only asked what would change.
    Compared,
}

/// Attaches an outcome to a response.
pub(super) fn with_outcome(mut response: Response, outcome: Outcome) -> Response {
    response.extensions_mut().insert(outcome);
    response
}

/// The limit of records of refusals: clients without permission must not fill the journal.
pub(super) fn refusal_limit() -> LogLimit {
    LogLimit::new(REFUSED_RECORDS_MAX, PERIOD)
}

/// A request in progress. If its client disconnects before the response, its change may be made
/// nevertheless, so that is recorded, too.
struct Pending {
    client: Option<Client>,
    action: String,
    has_ended: bool,
}

impl Pending {
    fn record(&self, is_done: bool, outcome: &str) {
        match &self.client {
            Some(client) => audit::record(client, &self.action, is_done, outcome),
            None => audit::record(&"an unknown client", &self.action, is_done, outcome),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.has_ended {
            let outcome = "the client disconnected before the response: the events tell the result";
            self.record(true, outcome);
        }
    }
}

/// Records a request that is no GET or HEAD, with its outcome.
pub(super) async fn record(
    State(shared): State<Arc<ControlState>>,
    request: Request,
    next: Next,
) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let path = request.uri().path();
    let mut pending = Pending {
        client: request.extensions().get::<Client>().cloned(),
        action: path.trim_start_matches("/api/v1/").to_owned(),
        has_ended: false,
    };
    let response = next.run(request).await;
    pending.has_ended = true;
    let status = response.status();
    match response.extensions().get::<Outcome>() {
        Some(Outcome::Compared) => {}
        Some(Outcome::Changed(text)) => pending.record(true, text),
        None if status.is_success() => pending.record(true, "no details"),
        refused => {
            let Some(omitted) = shared.admit_refusal_record() else {
                return response;
            };
            if omitted > 0 {
                tracing::info!(
                    target: audit::TARGET,
                    omitted,
                    "audit: {omitted} more refused request(s) were not recorded"
                );
            }
            let text = match refused {
                Some(Outcome::Refused(text)) if status.is_success() => text.clone(),
                Some(Outcome::Refused(text)) => format!("{status}: {text}"),
                _ => status.to_string(),
            };
            pending.record(false, &text);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_refusals_are_limited_and_counted() {
        let start = Nanos::from_secs(5);
        let records = refusal_limit();
        for _ in 0..REFUSED_RECORDS_MAX {
            assert_eq!(records.admit(start), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(records.admit(start + Nanos::from_secs(30)), None);
        }
        assert_eq!(records.admit(start + PERIOD), Some(5));
        assert_eq!(records.admit(start + PERIOD + PERIOD), Some(0));
    }

    #[test]
    fn clients_are_named_by_user_and_address() {
        let local = |process| Client::Local { user: 0, process };
        assert_eq!(local(Some(7)).to_string(), "user root (process 7)");
        assert_eq!(local(None).to_string(), "user root");
        let remote = Client::Remote(([192, 0, 2, 1], 77).into());
        assert_eq!(remote.to_string(), "192.0.2.1:77 with HTTP");
    }
}
