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
    /// The last obstacle, and whether it was logged.
    last_obstacle: String,
    is_logged: bool,
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
        let absence = self
            .history
            .absence
            .get_or_insert_with(|| Absence::new(now));
        if !self.drive.wants_reopen() {
            return;
        }
        if let Err(problem) = bus.check(self.address) {
            absence.seen = true;
            // The next obstacle or attempt starts fresh.
            (absence.attempts, absence.retry_at) = (0, now);
            let is_removed = matches!(problem, Problem::NoSuchFunction { .. });
            if absence.note(problem.to_string(), false) && !is_removed {
                tracing::warn!("{} not served: {problem}", self.names);
            }
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
        let obstacle = match bus.open(self.address) {
            Ok(backing) => {
                tracing::info!("{}: {} is available again", self.names, self.address);
                let reattached = self.drive.reattach(backing);
                reattached.err().map(|error| error.to_string())
            }
            Err(error) => Some(with_causes(error.as_ref())),
        };
        if let Some(obstacle) = obstacle
            && absence.note(obstacle.clone(), true)
        {
            tracing::warn!("{} not served: {obstacle}", self.names);
        }
    }
}

impl Absence {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            seen: false,
            last_obstacle: String::new(),
            is_logged: false,
            attempts: 0,
            retry_at: now,
        }
    }

    /// Notes an obstacle. Returns whether it is to be logged: once, and unless `at_once` only if two
    /// checks in a row have found it. The kernel removes a function in steps, and a check between them
    /// finds one without driver or IOMMU group.
    fn note(&mut self, obstacle: String, at_once: bool) -> bool {
        let is_known = obstacle == self.last_obstacle;
        if !is_known {
            self.last_obstacle = obstacle;
            self.is_logged = false;
        }
        (is_known || at_once) && !std::mem::replace(&mut self.is_logged, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obstacle_between_two_steps_of_a_removal_is_not_logged() {
        let now = Instant::now();
        let mut absence = Absence::new(now);
        for (obstacle, at_once, is_logged) in [
            ("no IOMMU", false, false),
            ("no function", false, false),
            ("no function", false, true),
            ("no function", false, false),
            ("no driver", false, false),
            ("no driver", false, true),
            ("no driver", false, false),
            ("cannot be opened", true, true),
            ("cannot be opened", true, false),
            ("no driver", false, false),
            ("no driver", false, true),
        ] {
            let found = absence.note(obstacle.to_owned(), at_once);
            assert_eq!(found, is_logged, "{obstacle}");
        }
    }
}
