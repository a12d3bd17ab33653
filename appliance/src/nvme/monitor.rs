//! Monitors the drives on the control thread: blocking resets, and reopening drives that return.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nvme_driver::{DriveCounters, DriveState, GoneReason};
use vfio::Problem;

use super::{AcquiredDrive, Bus, Drives};
use crate::error::with_causes;

/// After the system requests a drive, the appliance does not reopen it for this long unless it was
/// absent in between: the requester needs time to take it.
const REOPEN_DELAY: Duration = Duration::from_secs(5);
/// Longest delay between two attempts to reopen a drive that does not come up.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(64);

/// The state of a drive between two checks.
#[derive(Default)]
pub(super) struct DriveHistory {
    counters: DriveCounters,
    absence: Option<Absence>,
}

/// The absence of a drive.
struct Absence {
    since: Instant,
    /// Whether it was absent, or bound to another driver.
    seen: bool,
    /// The last logged obstacle.
    last_obstacle: String,
    attempts: u32,
    /// Earliest time of the next attempt.
    retry_at: Instant,
}

impl Drives {
    /// Checks every drive once: logs what happened, resets functions, reopens drives that returned,
    /// closes drives without devices. Blocks while a function is reset, opened or closed.
    pub(crate) fn poll(&self, now: Instant) {
        self.close_unused();
        self.reset_functions();
        let is_released = self.is_released.load(Ordering::Relaxed);
        for taken in &mut *self.acquired() {
            taken.report();
            if taken.is_closing() {
                continue;
            }
            match taken.drive.state() {
                DriveState::Ready => taken.history.absence = None,
                DriveState::Gone(_) if is_released => {}
                DriveState::Gone(reason) => taken.try_reopen(&*self.bus, reason, now),
                DriveState::Starting
                | DriveState::Resetting
                | DriveState::Draining
                | DriveState::Closed => {}
            }
        }
    }

    /// Resets the functions of drives that cannot be stopped otherwise.
    pub(crate) fn reset_functions(&self) {
        for taken in &*self.acquired() {
            if !taken.drive.function_reset_needed() {
                continue;
            }
            let AcquiredDrive { address, names, .. } = taken;
            tracing::warn!("{names}: resetting the function {address}");
            if let Err(error) = taken.drive.function_reset() {
                tracing::error!("{names}: {address}: {}", with_causes(&error));
            }
        }
    }
}

impl AcquiredDrive {
    /// Logs the errors of the drive since the last check.
    fn report(&mut self) {
        let now = self.drive.counters();
        let before = std::mem::replace(&mut self.history.counters, now);
        let counts = [
            (now.timeouts - before.timeouts, "past the deadline"),
            (now.aborts - before.aborts, "aborted"),
            (
                now.unknown_identifiers - before.unknown_identifiers,
                "completed that were never sent",
            ),
            (
                now.stale_identifiers - before.stale_identifiers,
                "completed twice",
            ),
        ];
        let reported = counts.iter().filter(|(count, _)| *count > 0);
        let reported: Vec<String> = reported
            .map(|(count, what)| format!("{count} command(s) {what}"))
            .collect();
        if !reported.is_empty() {
            let (names, address) = (&self.names, self.address);
            tracing::warn!("{names}: {address}: {}", reported.join(", "));
        }
    }

    /// Reopens a drive that is gone as soon as it is present and available.
    fn try_reopen(&mut self, bus: &dyn Bus, reason: GoneReason, now: Instant) {
        let absence = self.history.absence.get_or_insert_with(|| Absence {
            since: now,
            seen: false,
            last_obstacle: String::new(),
            attempts: 0,
            retry_at: now,
        });
        if !self.drive.wants_reopen() {
            return;
        }
        if let Err(problem) = bus.check(self.address) {
            absence.seen = true;
            // The next obstacle or attempt starts fresh.
            (absence.attempts, absence.retry_at) = (0, now);
            let is_told = matches!(problem, Problem::NoSuchFunction { .. });
            absence.log_obstacle(&self.names, problem.to_string(), is_told);
            return;
        }
        let is_left = reason == GoneReason::RemovalRequested
            && !absence.seen
            && now < absence.since + REOPEN_DELAY;
        if is_left || now < absence.retry_at {
            return;
        }
        absence.attempts = absence.attempts.saturating_add(1);
        let rest = Duration::from_secs(1 << absence.attempts.min(6));
        absence.retry_at = now + rest.min(RETRY_DELAY_MAX);
        match bus.open(self.address) {
            Ok(backing) => {
                tracing::info!("{}: {} is available again", self.names, self.address);
                if let Err(error) = self.drive.reattach(backing) {
                    absence.log_obstacle(&self.names, error.to_string(), false);
                }
            }
            Err(error) => absence.log_obstacle(&self.names, with_causes(error.as_ref()), false),
        }
    }
}

impl Absence {
    /// Logs an obstacle once, unless it is already known.
    fn log_obstacle(&mut self, names: &str, last_obstacle: String, is_told: bool) {
        if last_obstacle != self.last_obstacle {
            if !is_told {
                tracing::warn!("{names} not served: {last_obstacle}");
            }
            self.last_obstacle = last_obstacle;
        }
    }
}
