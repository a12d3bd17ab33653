//! What a service manager hears from us: readiness, what goes on, signs of life, the end; and how
//! our lines and exit statuses reach it.
//!
//! Speaks sd_notify(3) of systemd. Without a manager every word is dropped, so nothing else asks
//! whether there is one. Refuses to decide anything: what runs is up to `appliance`.

mod answers;
mod hang_hook;
mod heartbeat;
mod journal;

use std::time::Duration;

use appliance_config::Config;
use sd_notify::NotifyState;

pub(crate) use answers::wait_until_answering;
pub(crate) use hang_hook::install_hang_hook;
pub(crate) use heartbeat::Heartbeat;
pub(crate) use journal::{journal, report_failure};

/// The exit status for a configuration that cannot be served: a restart would meet it again.
/// `EX_CONFIG` of sysexits.h, which the unit names in `RestartPreventExitStatus`.
pub(crate) const EXIT_CONFIGURATION: u8 = 78;

/// What a stop may take beyond the deadline of the requests in flight: devices are flushed, drives
/// shut down, memory is given back.
const STOP_MARGIN: Duration = Duration::from_secs(30);

/// Why a configuration cannot be served, as people are to see it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadConfiguration(pub(crate) String);

/// Says in one line what is going on.
pub(crate) fn status(text: &str) {
    tell(&[NotifyState::Status(&in_one_line(text))]);
}

/// Says that every export answers.
pub(crate) fn ready(text: &str) {
    tell(&[NotifyState::Status(&in_one_line(text)), NotifyState::Ready]);
}

/// Says that the end has begun, and that it may take as long as what is in flight may take.
pub(crate) fn stopping(deadline: Duration) {
    let within = deadline.saturating_add(STOP_MARGIN).as_micros();
    tell(&[
        NotifyState::Stopping,
        NotifyState::Status("stopping: finishing what is in flight"),
        NotifyState::ExtendTimeoutUsec(u32::try_from(within).unwrap_or(u32::MAX)),
    ]);
}

/// Surrounds `work` with the beginning and the end of a reload, and says how it ended.
///
/// systemd.service(5), `Type=notify-reload`: a reload begins with RELOADING and its time, and ends
/// with READY, whatever came of it.
pub(crate) fn reload(work: impl FnOnce() -> Result<String, String>) {
    match NotifyState::monotonic_usec_now() {
        Ok(began) => tell(&[NotifyState::Reloading, began]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
    match work() {
        Ok(done) => {
            tracing::info!("{done}");
            ready(&done);
        }
        Err(reason) => {
            tracing::warn!("{reason}");
            ready(&reason);
        }
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager did not hear it");
    }
}

/// The protocol has one variable on each line, so text must not have lines of its own.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is served, in a few words for one line.
pub(crate) fn status_line(config: &Config) -> String {
    let (exports, listeners) = (config.exports.len(), config.listeners.len());
    format!("serving {exports} export(s) on {listeners} listener(s)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_add_a_variable() {
        assert_eq!(in_one_line("a\nREADY=1\r\n  b "), "a READY=1 b");
    }
}
