//! SIGTERM and SIGINT: the first asks for an orderly stop, the second for a stop now.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::service;

/// Tells when the process has been asked to end.
pub(crate) struct Termination {
    requests: Receiver<i32>,
}

impl Termination {
    /// Takes the signals over from here on.
    pub(crate) fn install() -> io::Result<Self> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let (send, requests) = channel();
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for signal in signals.forever() {
                    if signal == SIGHUP {
                        service::reload(|| {
                            Err(
                                "SIGHUP: reloading the configuration is not in this build yet"
                                    .into(),
                            )
                        });
                    } else if send.send(signal).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { requests })
    }

    /// Waits for a request to end, at most `within`; returns whether one has come.
    pub(crate) fn wait(&mut self, within: Duration) -> bool {
        match self.requests.recv_timeout(within) {
            Ok(_) | Err(RecvTimeoutError::Disconnected) => true,
            Err(RecvTimeoutError::Timeout) => false,
        }
    }
}
