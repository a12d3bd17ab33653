//! Idle behaviour between turns without progress: spin, pause, block (`ARCHITECTURE.md` §3).

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::{POLLERS_MAX, Reactor, WARN_EVERY};
use crate::config::IdlePolicy;
use crate::recorder::{TraceRecord, TraceRecordKind};
use crate::time::Nanos;

/// Pause instructions between two turns of the pausing step: about a microsecond, so that the
/// sibling hyper-thread gets the core's units while latency stays far below that of a wake-up.
const PAUSES: u32 = 32;
/// Interval of the turns of a stopping reactor, because pollers are asked in every turn whether
/// they have stopped.
const STOPPING_TURN: Nanos = Nanos::from_millis(1);

impl Reactor {
    /// Performs one idle step after a turn without progress.
    pub(super) fn idle_step(&mut self) {
        match self.config.idle {
            IdlePolicy::Poll => std::hint::spin_loop(),
            IdlePolicy::Sleep => self.sleep(),
            IdlePolicy::Adaptive { spin, pause } => {
                let now = self.clock.now();
                let idle = now - self.idle_since.unwrap_or(now);
                if idle < spin {
                    std::hint::spin_loop();
                } else if idle < spin + pause {
                    for _ in 0..PAUSES {
                        std::hint::spin_loop();
                    }
                } else {
                    self.sleep();
                }
            }
        }
    }

    /// Blocks until there is work, unless there is some already.
    fn sleep(&mut self) {
        self.shared.waker.announce_sleep();
        // From here on every sender wakes this reactor; earlier messages are visible now.
        if self.can_sleep() {
            self.block();
        } else {
            // Poll at full speed again: the poller's work has no descriptor to wait on.
            self.idle_since = None;
        }
        self.shared.waker.retract_sleep();
    }

    /// Checks every queue once more.
    fn can_sleep(&mut self) -> bool {
        if !self.shared.inbox.is_empty() {
            return false;
        }
        let mut pollers = self
            .slots
            .iter_mut()
            .filter_map(|slot| slot.poller.as_mut());
        pollers.all(|poller| poller.prepare_sleep())
    }

    fn block(&mut self) {
        let now = self.clock.now();
        let Some(span) = self.sleep_span(now) else {
            return;
        };
        let timeout = match span {
            Nanos::MAX => None,
            // A span that ppoll cannot express exceeds any uptime.
            span => Timespec::try_from(std::time::Duration::from(span)).ok(),
        };
        self.accounts.sleep(now, &self.shared.stats);
        self.recorder
            .record(now, TraceRecord::new(TraceRecordKind::SLEEP, 0, 0, 0));
        let mut fds = ArrayVec::<PollFd<'_>, { POLLERS_MAX + 1 }>::new();
        fds.push(PollFd::new(&self.shared.waker, PollFlags::IN));
        let sources = self
            .slots
            .iter()
            .filter_map(|slot| slot.poller.as_ref()?.wake_source());
        fds.extend(sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)));
        let ready = poll(&mut fds, timeout.as_ref());
        if !fds[0].revents().is_empty() {
            self.shared.waker.drain();
        }
        drop(fds);
        let now = self.clock.now();
        self.accounts.wake(now, &self.shared.stats);
        let woken = u32::from(matches!(ready, Ok(1..)));
        self.recorder
            .record(now, TraceRecord::new(TraceRecordKind::WAKE, woken, 0, 0));
        match ready {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => self.shared.stats.record_wakeup(),
            Err(error) => self.warn_failed_sleep(now, error),
        }
    }

    /// Logs a failed sleep. The reactor continues to poll, which costs a core but loses nothing.
    #[cold]
    fn warn_failed_sleep(&mut self, now: Nanos, error: Errno) {
        if now >= self.next_warning {
            self.next_warning = now + WARN_EVERY;
            tracing::warn!(reactor = self.index(), %error, "a reactor cannot sleep");
        }
    }

    /// Maximum duration of the sleep; `None` if work is due already.
    fn sleep_span(&self, now: Nanos) -> Option<Nanos> {
        let mut span = Nanos::MAX;
        if let Some(deadline) = self.next_deadline() {
            if deadline <= now {
                return None;
            }
            span = deadline - now;
        }
        if self.shared.stop_deadline().is_some() {
            span = span.min(STOPPING_TURN);
        }
        Some(span)
    }
}
