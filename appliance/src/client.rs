//! How commands ask a running appliance: HTTP/1.1 over its control socket, one connection for each
//! request.
//!
//! It finds the socket, bounds times and sizes, and turns everything that can be in the way into
//! an error that says what to do next. It refuses to guess: of several sockets it takes the first
//! that somebody answers at.

mod error;
mod exchange;
pub(crate) mod look;
mod socket;
pub(crate) mod views;

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::Method;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use error::ClientError;

/// How long an answer may take where the request needs no waiting for hosts.
pub(crate) const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of one answer at most: the largest are histories of an hour and traces.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Which appliance a command is for.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SocketArguments {
    /// The control socket of the appliance, where it is not the usual one of this user or of the
    /// service: what `socket` of `[control]` names.
    #[arg(long, value_name = "PATH", env = "WINDLASS_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
}

/// Asks one appliance.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    answer_time_max: Duration,
}

impl Client {
    /// For the appliance that `arguments` name, else for the first of the usual ones that answers.
    ///
    /// # Errors
    /// Nobody answers, or this user may not ask.
    pub(crate) fn find(arguments: &SocketArguments) -> Result<Self, ClientError> {
        let socket = socket::find(arguments.socket.as_deref())?;
        Ok(Self {
            socket,
            answer_time_max: ANSWER_TIME_MAX,
        })
    }

    /// The same with so much time for each answer.
    pub(crate) fn with_answer_time_max(self, answer_time_max: Duration) -> Self {
        Self {
            answer_time_max,
            ..self
        }
    }

    /// The path of the socket.
    #[cfg_attr(not(test), expect(dead_code, reason = "apply, trace and top ask so"))]
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// What `path`, with its query, answers.
    ///
    /// # Errors
    /// Every reason why there is no such answer; [`ClientError::Refused`] has the appliance's own.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let answer = self.exchange(Method::GET, path, Vec::new())?;
        self.decode(path, &answer)
    }

    /// What `path`, with its query, answers, as it stands.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub(crate) fn get_bytes(&self, path: &str) -> Result<Vec<u8>, ClientError> {
        self.exchange(Method::GET, path, Vec::new())
    }

    /// What `path` answers to `body`.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|cause| ClientError::Request { cause })?;
        let answer = self.exchange(Method::POST, path, body)?;
        self.decode(path, &answer)
    }

    fn exchange(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Vec<u8>, ClientError> {
        exchange::exchange(&self.socket, self.answer_time_max, method, path, body)
    }

    fn decode<T: DeserializeOwned>(&self, path: &str, answer: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(answer).map_err(|cause| ClientError::OtherVersion {
            socket: self.socket.clone(),
            what: format!("its answer at {path} is not what this version knows ({cause})"),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
