//! `GET /api/v1/clients` and `POST /api/v1/clients/evict`: asks the reactor of the file service for
//! its clients, and has it evict some.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::Response;
use files_server::ClientReport;
use tokio::task::spawn_blocking;

use super::audited::{Outcome, with_outcome};
use super::limits::FILE_SERVICE_TIME_MAX;
use super::responses::{Refused, refusal};
use super::routes::{Audience, ControlState};
use crate::files::Files;
use crate::messages::NoResponse;
use crate::observe::model::{EvictClientAnswer, EvictClientRequest, FileClientStatus, Severity};

pub(super) async fn list(
    State(shared): State<Arc<ControlState>>,
    Extension(audience): Extension<Audience>,
) -> Response {
    let listed = match service(&shared) {
        Ok(files) => answer(files.clients()).await,
        Err(refused) => Err(refused),
    };
    match listed {
        Ok(clients) => {
            let is_named = audience != Audience::Public;
            let clients = clients.iter().map(|it| status(it, is_named));
            shared.room.json(&clients.collect::<Vec<_>>())
        }
        Err((status, text)) => refusal(status, text),
    }
}

pub(super) async fn evict(
    State(shared): State<Arc<ControlState>>,
    request: Result<Json<EvictClientRequest>, JsonRejection>,
) -> Response {
    let wanted = match request {
        Ok(Json(request)) => request.client,
        Err(error) => return refusal(error.status(), error.body_text()),
    };
    match evicted(&shared, &wanted).await {
        Ok(clients) => {
            let event = format!("{clients} client(s) evicted by an operator");
            let observatory = shared.observatory();
            // The name or address identifies a host, which not every reader of events may see.
            let events = observatory.events();
            events.add_of_host(Severity::Warning, &wanted, &event, "");
            drop(observatory);
            tracing::warn!("clients of files {wanted:?}: {event}");
            let text = format!(
                "{clients} client(s) evicted: they have no sessions, opens and locks, and may begin \
                 anew"
            );
            let outcome = Outcome::Changed(format!("client {wanted}: {event}"));
            let answer = EvictClientAnswer {
                client: wanted,
                clients,
                text,
            };
            with_outcome(shared.room.json(&answer), outcome)
        }
        Err((status, text)) => refusal(status, text),
    }
}

/// Evicts the clients that an operator names. Returns their number.
async fn evicted(shared: &ControlState, wanted: &str) -> Result<usize, Refused> {
    let files = service(shared)?;
    let clients = answer(files.clients()).await?;
    let named = clients.iter().filter(|it| is_named(it, wanted));
    let mut count = 0;
    for client in named {
        count += usize::from(answer(files.evict(client.number)).await?);
    }
    match count {
        0 => {
            let text = format!(
                "no client of files has the number, name or address {wanted}: `windlass clients` \
                 lists them"
            );
            Err((StatusCode::NOT_FOUND, text))
        }
        count => Ok(count),
    }
}

fn service(shared: &ControlState) -> Result<Arc<Files>, Refused> {
    let files = shared.observatory().files();
    if files.is_used() {
        return Ok(files);
    }
    let text = "no files are served: the configuration has no file_listener";
    Err((StatusCode::NOT_FOUND, text.to_owned()))
}

/// The response of the reactor.
async fn answer<A: Send + 'static>(asked: Result<Receiver<A>, NoResponse>) -> Result<A, Refused> {
    let unavailable = |text: String| (StatusCode::SERVICE_UNAVAILABLE, text);
    let response = asked.map_err(|error| unavailable(error.to_string()))?;
    let received = spawn_blocking(move || response.recv_timeout(FILE_SERVICE_TIME_MAX)).await;
    received.ok().and_then(Result::ok).ok_or_else(|| {
        let text = "the reactor of the file service does not answer: it has ended or is stuck";
        unavailable(text.to_owned())
    })
}

fn number(client: &ClientReport) -> String {
    format!("{:016x}", client.number)
}

/// The name, of which clients choose the bytes.
fn name(client: &ClientReport) -> String {
    client.owner.escape_ascii().to_string()
}

fn is_named(client: &ClientReport, wanted: &str) -> bool {
    let address = wanted.parse::<IpAddr>();
    number(client) == wanted
        || name(client) == wanted
        || address.is_ok_and(|it| it.to_canonical() == client.address.to_canonical())
}

fn status(client: &ClientReport, is_named: bool) -> FileClientStatus {
    FileClientStatus {
        id: is_named.then(|| number(client)),
        name: is_named.then(|| name(client)),
        address: is_named.then(|| client.address.to_canonical().to_string()),
        silent_ms: client.silent_ms,
        expired: client.is_expired,
        sessions: client.sessions as u64,
        opens: client.opens as u64,
        locks: client.locks as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_named_by_number_name_or_address() {
        let client = ClientReport {
            number: 0x1234_0000_0001,
            owner: Box::from(&b"Linux NFSv4.2 host\xff\n"[..]),
            address: "::ffff:192.0.2.7".parse().expect("an address"),
            silent_ms: 0,
            is_expired: false,
            sessions: 1,
            opens: 2,
            locks: 3,
        };
        for wanted in [
            "0000123400000001",
            "Linux NFSv4.2 host\\xff\\n",
            "192.0.2.7",
            "::ffff:192.0.2.7",
        ] {
            assert!(is_named(&client, wanted), "{wanted}");
        }
        for wanted in ["", "123400000001", "Linux NFSv4.2 host", "192.0.2.8", "::"] {
            assert!(!is_named(&client, wanted), "{wanted}");
        }
        let public = status(&client, false);
        assert_eq!((public.id, public.name, public.address), (None, None, None));
        assert_eq!(status(&client, true).address.as_deref(), Some("192.0.2.7"));
    }
}
