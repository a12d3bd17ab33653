//! Handles SIGTERM and SIGINT: the first requests an orderly stop, the second an immediate stop.
//! SIGHUP requests a reload of the configuration.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::requests::{Request, RequestSender};

/// The receiver of requests to the process.
pub(crate) struct RequestReceiver {
    request_sender: RequestSender,
    requests: Receiver<Request>,
}

impl RequestReceiver {
    /// Installs the signal handlers.
    pub(crate) fn install() -> io::Result<Self> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let (request_sender, requests) = RequestSender::new();
        let sender = request_sender.clone();
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for signal in signals.forever() {
                    let request = match signal {
                        SIGHUP => Request::Reload,
                        _ => Request::End,
                    };
                    if !sender.ask(request) {
                        return;
                    }
                }
            })?;
        Ok(Self {
            request_sender,
            requests,
        })
    }

    /// The sender of requests, for other threads.
    pub(crate) fn request_sender(&self) -> RequestSender {
        self.request_sender.clone()
    }

    /// Waits for a request, at most `within`.
    pub(crate) fn next(&mut self, within: Duration) -> Option<Request> {
        match self.requests.recv_timeout(within) {
            Ok(request) => Some(request),
            Err(RecvTimeoutError::Disconnected) => Some(Request::End),
            Err(RecvTimeoutError::Timeout) => None,
        }
    }

    /// Waits for a request to end, at most `within`; returns whether one was received. Other
    /// requests are not executed any more.
    pub(crate) fn wait(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while let Some(request) = self.next(deadline.saturating_duration_since(Instant::now())) {
            match request {
                Request::End => return true,
                Request::Reload => tracing::warn!("stopping: the configuration is not read again"),
                // The requester is notified when the order is dropped.
                Request::Apply(_) | Request::Upgrade(_) | Request::Revoke(_) | Request::Copy(_) => {
                }
            }
        }
        false
    }
}
