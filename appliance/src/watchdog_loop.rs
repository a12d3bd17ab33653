//! The watchdog loop of the control thread: checks that the reactors make turns, and pings
//! systemd's watchdog.

use std::time::{Duration, Instant};

use reactors::{Clock as _, Nanos, Reactors};

use crate::service::Heartbeat;

/// Time between two iterations.
const INTERVAL: Duration = Duration::from_secs(1);
/// A reactor that stays in one call for this long is reported.
const STUCK_AFTER: Nanos = Nanos::from_secs(2);

/// The state between two iterations.
pub(crate) struct WatchdogLoop {
    heartbeat: Heartbeat,
    /// By reactor index: whether it was reported as stuck.
    reported: Vec<bool>,
    last_iteration: Instant,
}

impl WatchdogLoop {
    /// The first iteration is due one interval from now.
    pub(crate) fn new(heartbeat: Heartbeat) -> Self {
        Self {
            heartbeat,
            reported: Vec::new(),
            last_iteration: Instant::now(),
        }
    }

    /// How long the caller may sleep before the next iteration.
    pub(crate) fn pause(&self) -> Duration {
        self.heartbeat.pause(INTERVAL)
    }

    /// Whether the next iteration is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_iteration) >= self.pause()
    }

    /// The status line while all reactors make turns.
    pub(crate) fn set_status(&mut self, status: String) {
        self.heartbeat.set_status(status);
    }

    /// Checks every reactor and pings the watchdog. False when a reactor has ended unexpectedly.
    pub(crate) fn run_once(&mut self, reactors: &Reactors) -> bool {
        self.last_iteration = Instant::now();
        let now = reactors.clock().now();
        self.reported.resize(reactors.handles().len(), false);
        for handle in reactors.handles() {
            if !handle.is_running() {
                // Its connections are lost; a restart brings all of them back.
                tracing::error!(
                    "reactor {} has ended unexpectedly: stopping",
                    handle.index()
                );
                return false;
            }
            let stuck = handle.stuck_in(now, STUCK_AFTER);
            let reported = &mut self.reported[handle.index()];
            if let Some(stuck) = stuck.as_ref().filter(|_| !*reported) {
                let (name, seconds) = (&stuck.name, stuck.lasted.as_secs_f64());
                tracing::error!(
                    "reactor {} is stuck in {name}: {seconds:.1} s",
                    handle.index()
                );
            } else if *reported && stuck.is_none() {
                tracing::warn!("reactor {} is running again", handle.index());
            }
            *reported = stuck.is_some();
        }
        self.heartbeat
            .check_reactors(reactors.handles(), now, STUCK_AFTER);
        true
    }
}
