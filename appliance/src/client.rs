//! The commands' client of a running appliance: HTTP/1.1 over its control socket, one connection
//! per request.
//!
//! It finds the socket, bounds times and sizes, and returns errors that say what to do next. Of
//! several sockets it takes the first that accepts a connection.

pub(crate) mod delta;
mod error;
mod exchange;
mod socket;
pub(crate) mod views;

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::Method;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use error::ClientError;

/// Longest wait for a response to a request that does not wait for hosts.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest response in bytes; the largest are histories of an hour and traces.
const RESPONSE_BYTES_MAX: usize = 256 << 20;
/// The path that reopens a device.
pub(crate) const REOPEN_PATH: &str = "/api/v1/device/reopen";
/// The path that clears the reservations of a device.
pub(crate) const CLEAR_PATH: &str = "/api/v1/reservations/clear";
/// The path that revokes the secret of a key.
pub(crate) const REVOKE_PATH: &str = "/api/v1/keys/revoke";
/// The path that evicts a host.
pub(crate) const EVICT_PATH: &str = "/api/v1/hosts/evict";
/// The path that lists clients of files.
pub(crate) const CLIENTS_PATH: &str = "/api/v1/clients";
/// The path that evicts clients of files.
pub(crate) const EVICT_CLIENT_PATH: &str = "/api/v1/clients/evict";
/// The path that sets ANA states.
pub(crate) const ANA_SET_PATH: &str = "/api/v1/ana/set";
/// The path that begins a copy of a device.
pub(crate) const START_COPY_PATH: &str = "/api/v1/copies/start";
/// The path that aborts a copy of a device.
pub(crate) const ABORT_COPY_PATH: &str = "/api/v1/copies/abort";
/// The path that hands over to a new process.
pub(crate) const UPGRADE_PATH: &str = "/api/v1/upgrade";
/// Paths whose requests name an object that the appliance may not have.
const PATHS_OF_OBJECTS: [&str; 8] = [
    REOPEN_PATH,
    CLEAR_PATH,
    EVICT_PATH,
    CLIENTS_PATH,
    EVICT_CLIENT_PATH,
    ANA_SET_PATH,
    START_COPY_PATH,
    ABORT_COPY_PATH,
];

/// Which appliance a command is for.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SocketArguments {
    /// The control socket of the appliance, where it is not the usual one of this user or of the
    /// service: what `socket` of `[control]` names.
    #[arg(long, value_name = "PATH", env = "WINDLASS_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
}

/// A client of one appliance.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    response_timeout: Duration,
}

impl Client {
    /// A client of the appliance that `arguments` name, or else of the first usual socket that
    /// accepts a connection.
    ///
    /// # Errors
    /// No appliance answers, or this user may not use the socket.
    pub(crate) fn find(arguments: &SocketArguments) -> Result<Self, ClientError> {
        let socket = socket::find(arguments.socket.as_deref())?;
        Ok(Self {
            socket,
            response_timeout: RESPONSE_TIMEOUT,
        })
    }

    /// The same client with another time limit for each response.
    pub(crate) fn with_response_timeout(self, response_timeout: Duration) -> Self {
        Self {
            response_timeout,
            ..self
        }
    }

    /// The path of the socket.
    #[cfg_attr(not(test), expect(dead_code, reason = "apply, trace and top ask so"))]
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a GET request for `path`, which may have a query, and decodes the response.
    ///
    /// # Errors
    /// Any failure to get a response; [`ClientError::Refused`] has the appliance's own message.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let response = self.exchange(Method::GET, path, Vec::new())?;
        self.decode(path, &response)
    }

    /// Sends a GET request for `path`, which may have a query, and returns the undecoded response.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub(crate) fn get_bytes(&self, path: &str) -> Result<Vec<u8>, ClientError> {
        self.exchange(Method::GET, path, Vec::new())
    }

    /// Sends `body` in a POST request to `path`, and decodes the response.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|cause| ClientError::Request { cause })?;
        let response = self.exchange(Method::POST, path, body)?;
        self.decode(path, &response)
    }

    fn exchange(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Vec<u8>, ClientError> {
        exchange::exchange(&self.socket, self.response_timeout, method, path, body)
    }

    fn decode<T: DeserializeOwned>(&self, path: &str, response: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(response).map_err(|cause| ClientError::OtherVersion {
            socket: self.socket.clone(),
            what: format!("its response at {path} does not match this version ({cause})"),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
