//! The control plane: one ordinary thread that serves a Unix socket and HTTP(S), not on the reactors'
//! cores if there are others.
//!
//! It owns the observatory, its sockets and all limits of their clients. It does not touch the data
//! path: it reads counters. A part that is not available is a notice and does not prevent the
//! start.
//!
//! | client | response |
//! |---|---|
//! | more connections than [`limits`] allow | 503 and the end of the connection |
//! | headers, a body or a response that take too long | the end of the connection, or 408 |
//! | headers or a body that are too large | 431 or 413 |
//! | another user at the socket | no connection: the kernel refuses it by the socket's mode |
//! | a configuration to apply while another is applied | 409 |
//! | an invalid configuration to apply | 422 with all its problems; nothing is changed |
//! | no token or a wrong one over HTTP | 401 |
//! | a token for reading, and a change | 403 |
//! | HTTP without encryption where HTTPS is configured | 400 |
//! | a TLS handshake that is not finished in time | the end of the connection |
//! | no token, and the configuration requires none | data that identifies no host |
//! | a name in `Host` that is not an address, without a token | 403: a page of another site asks |

pub(crate) mod ana;
mod apply;
mod audited;
mod certificate;
mod clients;
mod copies;
mod credentials;
mod dashboard;
mod jobs;
mod limits;
mod listen;
mod metrics;
#[cfg(feature = "probe")]
pub(crate) mod probe;
mod reopen;
mod reservations;
mod responses;
mod revoke;
mod routes;
mod serve;
mod socket;
mod token;
mod upgrade;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use appliance_config::Control;
use tokio::sync::oneshot;

use crate::observe::Observatory;
use crate::observe::events::Events;
use crate::observe::model::Severity;
use crate::observe::sources::Sources;
use crate::requests::RequestSender;
use listen::Sockets;
pub(crate) use socket::{default_sockets, group_name, group_number};

/// Where HTTP is served. Its `Display` is the URL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpEnd {
    pub(crate) address: SocketAddr,
    pub(crate) is_encrypted: bool,
}

impl fmt::Display for HttpEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.address)
    }
}

/// The running control plane. Dropping it stops it.
pub(crate) struct ControlPlane {
    socket: Option<PathBuf>,
    http: Option<HttpEnd>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlPlane {
    /// Binds the sockets that `control` configures and serves data from `sources`. Configurations
    /// to apply are sent to `request_sender`; without one none is applied.
    pub(crate) fn start(
        control: &Control,
        sources: Sources,
        request_sender: Option<RequestSender>,
    ) -> Self {
        let sockets = Sockets::bind(control);
        let events = Arc::new(Events::default());
        events.add(Severity::Info, "control", "", "the appliance has started");
        let (socket, http) = (sockets.socket_path(), sockets.http_end());
        let cores = sources.cores.clone();
        // Before readiness is reported, so that everything later is a change.
        let observatory = Observatory::new(sources, events);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || serve::run(sockets, observatory, request_sender, &cores, stopped));
        let thread = match thread {
            Ok(thread) => Some(thread),
            Err(error) => {
                tracing::warn!(%error, "no control plane: cannot create its thread");
                None
            }
        };
        Self {
            socket: socket.filter(|_| thread.is_some()),
            http: http.filter(|_| thread.is_some()),
            stop: Some(stop),
            thread,
        }
    }

    /// The path of the socket, if there is one.
    pub(crate) fn socket(&self) -> Option<&PathBuf> {
        self.socket.as_ref()
    }

    /// Where HTTP is served, if it is.
    pub(crate) fn http(&self) -> Option<HttpEnd> {
        self.http
    }
}

impl Drop for ControlPlane {
    /// Closes the connections, the thread and the socket.
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The thread may have ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
