//! Pings the service manager's watchdog only while every reactor makes turns.
//!
//! A sleeping reactor is woken for one turn at every other check, so that a lost wake-up is
//! detected too. If a reactor is stuck in a call or does not respond to a wake-up, the pings stop,
//! and the service manager restarts the process when the watchdog's time expires.

use std::time::Duration;

use reactors::{Nanos, ReactorHandle};
use sd_notify::NotifyState;

/// The state of one reactor at a check.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// It accepts jobs, so it has not ended.
    is_running: bool,
    /// It has been in one call for too long.
    is_stuck: bool,
    turns: u64,
}

/// The state of one reactor between checks.
#[derive(Clone, Copy, Debug, Default)]
struct ReactorActivity {
    turns: u64,
    /// It was woken at the last check, so a turn is due.
    turn_is_due: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It has made turns since the last check.
    Active,
    /// It sleeps; it is woken so that the next check can see a turn.
    Asleep,
    /// It did not make a turn that was due, is stuck, or has ended.
    Unresponsive,
}

impl ReactorActivity {
    fn assess(&mut self, seen: Seen) -> Verdict {
        let has_turned = seen.turns != self.turns;
        self.turns = seen.turns;
        if !seen.is_running || seen.is_stuck {
            return Verdict::Unresponsive;
        }
        if has_turned {
            self.turn_is_due = false;
            return Verdict::Active;
        }
        if std::mem::replace(&mut self.turn_is_due, true) {
            return Verdict::Unresponsive;
        }
        Verdict::Asleep
    }
}

/// Pings the service manager's watchdog, if there is one.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    /// The watchdog's timeout.
    within: Option<Duration>,
    activities: Vec<ReactorActivity>,
    /// The status text of `systemctl status` while all reactors are alive.
    status: String,
    is_well: bool,
}

impl Heartbeat {
    /// Configured by the process's environment (sd_watchdog_enabled(3)).
    pub(crate) fn from_environment(reactors: usize, status: String) -> Self {
        Self::new(sd_notify::watchdog_enabled(), reactors, status)
    }

    fn new(within: Option<Duration>, reactors: usize, status: String) -> Self {
        Self {
            within,
            activities: vec![ReactorActivity::default(); reactors],
            status,
            is_well: true,
        }
    }

    /// Sets the status text for the time in which all reactors are alive.
    pub(crate) fn set_status(&mut self, status: String) {
        if status != self.status && self.is_well {
            super::status(&status);
        }
        self.status = status;
    }

    /// How long the caller may sleep between two checks, at most `most`: a third of the watchdog's
    /// timeout, because one check may be late and one may find a reactor asleep.
    pub(crate) fn pause(&self, most: Duration) -> Duration {
        self.within.map_or(most, |within| most.min(within / 3))
    }

    /// Checks every reactor and pings the watchdog if all of them are alive.
    pub(crate) fn check_reactors(
        &mut self,
        reactors: &[ReactorHandle],
        now: Nanos,
        stuck_after: Nanos,
    ) {
        if self.within.is_none() {
            return;
        }
        let mut silent = None;
        for (handle, activity) in reactors.iter().zip(&mut self.activities) {
            let stuck = handle.stuck_in(now, stuck_after);
            let seen = Seen {
                is_running: handle.is_running(),
                is_stuck: stuck.is_some(),
                turns: handle.stats().turns(),
            };
            match activity.assess(seen) {
                Verdict::Active => {}
                Verdict::Asleep => handle.wake(),
                Verdict::Unresponsive => {
                    // Two checks without a turn may precede `stuck_after`.
                    let place = handle
                        .stuck_in(now, Nanos(0))
                        .map_or_else(String::new, |stuck| format!(" in {}", stuck.name));
                    silent.get_or_insert(format!("reactor {} is stuck{place}", handle.index()));
                }
            }
        }
        self.ping_unless(silent);
    }

    fn ping_unless(&mut self, silent: Option<String>) {
        let was_well = std::mem::replace(&mut self.is_well, silent.is_none());
        match silent {
            None => {
                super::tell(&[NotifyState::Watchdog]);
                if !was_well {
                    tracing::info!("every reactor is running again");
                    super::status(&self.status);
                }
            }
            Some(silent) => {
                if was_well {
                    tracing::error!("{silent}: the watchdog is no longer pinged");
                    super::status(&format!("{silent}: a restart follows unless it resumes"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESTING: Seen = Seen {
        is_running: true,
        is_stuck: false,
        turns: 7,
    };

    fn turned(turns: u64) -> Seen {
        Seen { turns, ..RESTING }
    }

    #[test]
    fn turning_reactor_is_active() {
        let mut activity = ReactorActivity::default();
        for turns in 1..10 {
            assert_eq!(activity.assess(turned(turns)), Verdict::Active);
        }
    }

    #[test]
    fn sleeping_reactor_that_responds_to_wakeups_is_alive() {
        let mut activity = ReactorActivity::default();
        let mut turns = 1;
        assert_eq!(activity.assess(turned(turns)), Verdict::Active);
        for _ in 0..10 {
            assert_eq!(activity.assess(turned(turns)), Verdict::Asleep);
            turns += 1;
            assert_eq!(activity.assess(turned(turns)), Verdict::Active);
        }
    }

    #[test]
    fn sleeping_reactor_that_ignores_a_wakeup_is_unresponsive() {
        let mut activity = ReactorActivity::default();
        assert_eq!(activity.assess(RESTING), Verdict::Active);
        assert_eq!(activity.assess(RESTING), Verdict::Asleep);
        for _ in 0..3 {
            assert_eq!(activity.assess(RESTING), Verdict::Unresponsive);
        }
        assert_eq!(activity.assess(turned(8)), Verdict::Active);
    }

    #[test]
    fn stuck_and_ended_reactors_are_unresponsive() {
        let mut activity = ReactorActivity::default();
        let stuck = Seen {
            is_stuck: true,
            ..RESTING
        };
        let ended = Seen {
            is_running: false,
            ..turned(9)
        };
        assert_eq!(activity.assess(stuck), Verdict::Unresponsive);
        assert_eq!(activity.assess(ended), Verdict::Unresponsive);
        assert_eq!(activity.assess(turned(10)), Verdict::Active);
    }

    #[test]
    fn heartbeat_interval_is_at_most_a_third_of_the_watchdog() {
        let pause = |within| Heartbeat::new(within, 1, String::new()).pause(Duration::from_secs(1));
        assert_eq!(pause(None), Duration::from_secs(1));
        assert_eq!(pause(Some(Duration::from_secs(60))), Duration::from_secs(1));
        assert_eq!(
            pause(Some(Duration::from_millis(1500))),
            Duration::from_millis(500)
        );
    }
}
