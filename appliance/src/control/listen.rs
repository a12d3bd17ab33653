//! Binds the sockets of the control plane. A part that is not available is only a notice.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use appliance_config::Control;

use super::HttpEnd;
use super::credentials::{Files, Watch};
use super::socket::Socket;
use crate::error::with_causes;

/// The HTTP side.
pub(super) struct Http {
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
    /// The tokens and the certificate.
    pub(super) watch: Watch,
}

/// The available parts.
pub(super) struct Sockets {
    pub(super) socket: Option<Socket>,
    pub(super) http: Option<Http>,
}

impl Sockets {
    /// Binds the sockets that `control` configures, and logs those that are not available.
    pub(super) fn bind(control: &Control) -> Self {
        let socket = Socket::bind(control).unwrap_or_else(|error| {
            tracing::warn!("no control socket: {}", with_causes(&error));
            None
        });
        Self {
            socket,
            http: bind_http(control),
        }
    }

    pub(super) fn socket_path(&self) -> Option<PathBuf> {
        self.socket.as_ref().map(|socket| socket.path.clone())
    }

    pub(super) fn http_end(&self) -> Option<HttpEnd> {
        self.http.as_ref().map(|http| HttpEnd {
            address: http.address,
            is_encrypted: http.watch.credentials().current().tls.is_some(),
        })
    }
}

fn bind_http(control: &Control) -> Option<Http> {
    let wanted = control.http.address()?.socket_addr();
    // If a configured file is not valid, HTTP is not served.
    let watch = match Watch::start(Files::of(control)) {
        Ok(watch) => watch,
        Err(error) => {
            tracing::warn!("no HTTP: {}", with_causes(&error));
            return None;
        }
    };
    let bound = TcpListener::bind(wanted).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Http {
            listener,
            address,
            watch,
        })
    });
    match bound {
        Ok(http) => Some(http),
        Err(error) => {
            tracing::warn!(
                "no HTTP at {wanted}: {error}: give `http` in [control] another address or \"off\""
            );
            None
        }
    }
}
