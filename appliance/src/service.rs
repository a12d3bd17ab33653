//! Messages to the service manager: readiness, status, watchdog pings, stop; and the format of log
//! lines and exit statuses for it.
//!
//! Implements sd_notify(3) of systemd. Without a manager the messages are dropped, so no caller
//! checks whether there is one.

mod descriptor_store;
mod hang_hook;
mod heartbeat;
mod journal;
mod readiness;

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use appliance_config::{Colour, Config, LoadError};
use sd_notify::NotifyState;

use crate::audit;
use crate::error::Failure;

pub(crate) use descriptor_store::{store_descriptor, stored_descriptor, stores_descriptors};
pub(crate) use hang_hook::install_hang_hook;
pub(crate) use heartbeat::Heartbeat;
pub(crate) use journal::{journal, report_failure};
pub(crate) use readiness::wait_until_ready;

/// The exit status for a configuration that cannot be served; a restart would fail the same way.
/// `EX_CONFIG` of sysexits.h, which the unit names in `RestartPreventExitStatus`.
pub(crate) const EXIT_CONFIGURATION: u8 = 78;

/// The sender of a reload, for audit records.
const SIGHUP: &str = "SIGHUP";

/// Time for a stop beyond the deadline of the requests in flight: devices are flushed, drives shut
/// down, memory is freed.
const STOP_MARGIN: Duration = Duration::from_secs(30);

/// Why a configuration cannot be served, as a message for people.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadConfiguration(pub(crate) String);

/// Loads the configuration FILE of a command.
///
/// # Errors
/// It cannot be read, or has problems, which are told with their places.
pub(crate) fn load_configuration(file: &Path) -> Result<Config, Failure> {
    Config::load(file).map_err(|error| match error {
        LoadError::Problems(problems) => {
            let colour = if std::io::stderr().is_terminal() {
                Colour::Always
            } else {
                Colour::Never
            };
            BadConfiguration(problems.display(colour).to_string()).into()
        }
        other => other.into(),
    })
}

/// Reports the current activity in one line.
pub(crate) fn status(text: &str) {
    tell(&[NotifyState::Status(&in_one_line(text))]);
}

/// Reports that every export is available.
pub(crate) fn ready(text: &str) {
    tell(&[NotifyState::Status(&in_one_line(text)), NotifyState::Ready]);
}

/// Reports that another process of this service serves instead of this one. It reports everything
/// else from then on.
pub(crate) fn handed_over(pid: u32) {
    tell(&[NotifyState::MainPid(pid)]);
}

/// Reports that the stop has begun, and extends its time limit by the deadline of the requests in
/// flight.
pub(crate) fn stopping(deadline: Duration) {
    let within = deadline.saturating_add(STOP_MARGIN).as_micros();
    tell(&[
        NotifyState::Stopping,
        NotifyState::Status("stopping: finishing what is in flight"),
        NotifyState::ExtendTimeoutUsec(u32::try_from(within).unwrap_or(u32::MAX)),
    ]);
}

/// Reports the beginning and the end of a reload around `work`, and its result.
///
/// systemd.service(5), `Type=notify-reload`: a reload begins with RELOADING and its time, and ends
/// with READY, whatever the result.
pub(crate) fn reload(work: impl FnOnce() -> Result<String, String>) {
    match NotifyState::monotonic_usec_now() {
        Ok(began) => tell(&[NotifyState::Reloading, began]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
    match work() {
        Ok(done) => {
            audit::record(&SIGHUP, "apply", true, &done);
            ready(&done);
        }
        Err(reason) => {
            tracing::warn!("{reason}");
            audit::record(&SIGHUP, "apply", false, &reason);
            ready(&reason);
        }
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager could not be notified");
    }
}

/// Joins lines: the protocol has one variable on each line.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A one-line summary of what is served.
pub(crate) fn status_line(config: &Config) -> String {
    let (exports, listeners) = (config.exports.len(), config.listeners.len());
    format!("serving {exports} export(s) on {listeners} listener(s)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_text_cannot_inject_notify_variables() {
        assert_eq!(in_one_line("a\nREADY=1\r\n  b "), "a READY=1 b");
    }
}
