//! One reactor: the turn, the registry of pollers, the reactor's own timers, stopping.

mod rest;

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::clock::Clock;
use crate::config::ReactorConfig;
use crate::poller::{Poller, Progress, StopState};
use crate::reactors::Outstanding;
use crate::recorder::{Note, Recorder};
use crate::shared::{Group, ReactorHandle, Shared};
use crate::stats::{Accounts, SLOT_INBOX, SLOT_TIMERS};
use crate::time::Nanos;
use crate::timer::{TimerId, TimerWheel};

/// Pollers that one reactor can have: bounds the descriptors of a sleep. A listener's or a device
/// queue's many connections or requests are one poller.
pub const POLLERS_MAX: usize = 256;

const _: () = assert!(
    POLLERS_MAX < 0xFF00,
    "poller slots share 16 bits with reserved numbers"
);

/// At most one warning per reactor in this time.
const WARN_EVERY: Nanos = Nanos::from_secs(1);

/// Work for a reactor timer; it runs on the thread that scheduled it, so it need not be `Send`.
pub type TimerJob = Box<dyn FnOnce(&mut Reactor)>;

/// A registered poller. Goes stale when the poller is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PollerId {
    slot: u16,
    generation: u32,
}

/// The reactor has [`POLLERS_MAX`] pollers already; the refused one was dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for the poller {name}: a reactor has at most {POLLERS_MAX}")]
pub struct RegisterError {
    /// The refused poller's name.
    pub name: Box<str>,
}

struct Slot {
    poller: Option<Box<dyn Poller>>,
    generation: u32,
}

/// One thread's worth of pollers. Started by [`Reactors`](crate::Reactors), or made directly and
/// turned by hand in tests and simulations, several on one thread if need be.
///
/// It stays on its thread:
///
/// ```compile_fail
/// fn send<T: Send>() {}
/// send::<reactors::Reactor>();
/// ```
pub struct Reactor {
    clock: Rc<dyn Clock>,
    config: ReactorConfig,
    shared: Arc<Shared>,
    slots: Vec<Slot>,
    timers: TimerWheel<TimerJob>,
    accounts: Accounts,
    recorder: Recorder,
    longest: Nanos,
    /// Since when there has been no progress, while that lasts.
    idle_since: Option<Nanos>,
    next_warning: Nanos,
    warnings_withheld: u64,
    /// Whether this reactor counts as quiet in its group.
    quiet: bool,
    finished: bool,
}

impl Reactor {
    /// A reactor on the calling thread, on its own. `config.core` is not applied: that is for
    /// threads.
    ///
    /// # Errors
    /// The kernel refused an eventfd.
    pub fn new(index: usize, config: ReactorConfig, clock: Rc<dyn Clock>) -> io::Result<Reactor> {
        let shared = Shared::new(index, config.inbox_capacity, Group::new(1))?;
        Ok(Reactor::with_shared(config, clock, shared))
    }

    pub(crate) fn with_shared(
        config: ReactorConfig,
        clock: Rc<dyn Clock>,
        shared: Arc<Shared>,
    ) -> Reactor {
        let now = clock.now();
        Reactor {
            timers: TimerWheel::new(config.timers_max, config.timer_tick, now),
            clock,
            config,
            // The only one of this ring: clones stay on this thread.
            recorder: shared.recording.recorder(),
            shared,
            slots: Vec::with_capacity(POLLERS_MAX),
            accounts: Accounts::new(now),
            longest: Nanos::ZERO,
            idle_since: None,
            next_warning: Nanos::ZERO,
            warnings_withheld: 0,
            quiet: false,
            finished: false,
        }
    }

    /// The reactor's number.
    #[must_use]
    pub fn index(&self) -> usize {
        self.shared.index
    }

    /// How it was set up.
    #[must_use]
    pub fn config(&self) -> &ReactorConfig {
        &self.config
    }

    /// The clock that all its times belong to.
    #[must_use]
    pub fn clock(&self) -> Rc<dyn Clock> {
        Rc::clone(&self.clock)
    }

    /// Where this reactor's pollers note down what they do.
    #[must_use]
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// The present time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Another thread's way to this reactor.
    #[must_use]
    pub fn handle(&self) -> ReactorHandle {
        ReactorHandle {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Takes a poller in; it is polled from the next turn on (from this one, if called by a
    /// message).
    ///
    /// # Errors
    /// There are [`POLLERS_MAX`] already; the poller is dropped.
    pub fn register(&mut self, poller: Box<dyn Poller>) -> Result<PollerId, RegisterError> {
        let index = match self.slots.iter().position(|slot| slot.poller.is_none()) {
            Some(index) => index,
            None if self.slots.len() < POLLERS_MAX => {
                self.slots.push(Slot {
                    poller: None,
                    generation: 0,
                });
                self.slots.len() - 1
            }
            None => {
                return Err(RegisterError {
                    name: Box::from(poller.name()),
                });
            }
        };
        // POLLERS_MAX fits in 16 bits.
        let number = index as u16;
        self.shared.stats.set_name(number, poller.name());
        let slot = &mut self.slots[index];
        slot.poller = Some(poller);
        Ok(PollerId {
            slot: number,
            generation: slot.generation,
        })
    }

    /// Takes a poller out and returns it; `None` when it is gone already.
    pub fn remove(&mut self, id: PollerId) -> Option<Box<dyn Poller>> {
        let slot = self.slots.get_mut(usize::from(id.slot))?;
        if slot.generation != id.generation {
            return None;
        }
        let poller = slot.poller.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.shared.stats.retire_name(id.slot);
        Some(poller)
    }

    /// How many pollers are registered.
    #[must_use]
    pub fn pollers(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.poller.is_some())
            .count()
    }

    /// Runs `job` in the first turn at or after `deadline`, up to a timer tick late. For the
    /// control path: pollers own their timer wheels.
    ///
    /// # Errors
    /// The job comes back when `timers_max` timers are armed.
    pub fn schedule(&mut self, deadline: Nanos, job: TimerJob) -> Result<TimerId, TimerJob> {
        self.timers.insert(deadline, job)
    }

    /// Disarms a timer and returns its job; `None` when it has fired or was cancelled.
    pub fn cancel(&mut self, timer: TimerId) -> Option<TimerJob> {
        self.timers.cancel(timer)
    }

    /// The earliest time at which a timer or a poller wants a turn without anything else happening.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let pollers = self
            .slots
            .iter()
            .filter_map(|slot| slot.poller.as_ref()?.next_deadline());
        pollers.chain(self.timers.next_deadline()).min()
    }

    /// One iteration: messages, pollers, timers, flush, and stopping once it was asked for. Never
    /// blocks.
    pub fn turn(&mut self) -> Progress {
        let start = self.clock.now();
        let (jobs, now) = self.run_inbox(start);
        let (polled, now) = self.poll_all(now);
        let (fired, now) = self.run_timers(now);
        let now = self.flush_all(now);
        let progress = jobs.and(polled).and(fired);
        let end = match self.shared.stop_deadline() {
            Some(deadline) => self.stop_all(now, deadline),
            None => now,
        };
        self.accounts
            .book(start, end, progress.is_busy(), &self.shared.stats);
        if progress.is_busy() {
            self.idle_since = None;
        } else if self.idle_since.is_none() {
            self.idle_since = Some(start);
        }
        progress
    }

    /// Takes turns and rests by policy until it has stopped.
    pub fn run(&mut self) {
        while !self.finished {
            self.turn();
            if self.idle_since.is_some() && !self.finished {
                self.rest();
            }
        }
    }

    /// Whether a requested stop is complete or its deadline has passed: there is no use in further
    /// turns.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Asks every poller once more and names those that are not done.
    pub fn outstanding(&mut self) -> Vec<Outstanding> {
        let now = self.clock.now();
        let index = self.index();
        let mut outstanding = Vec::new();
        for slot in &mut self.slots {
            let Some(poller) = &mut slot.poller else {
                continue;
            };
            if let StopState::Outstanding(items) = poller.stop(now) {
                let poller = poller.name().to_owned();
                outstanding.push(Outstanding {
                    reactor: index,
                    poller,
                    items,
                });
            }
        }
        outstanding
    }

    /// Runs the messages that are in the inbox now, not those that they cause.
    fn run_inbox(&mut self, start: Nanos) -> (Progress, Nanos) {
        // `len` costs two loads when there is nothing, `pop` a fence.
        let waiting = self.shared.inbox.len();
        let mut now = start;
        for _ in 0..waiting {
            let Some(job) = self.shared.inbox.pop() else {
                break;
            };
            self.shared.stats.enter(SLOT_INBOX, now);
            job(self);
            now = self.left(SLOT_INBOX, now);
        }
        (Progress::from_count(waiting), now)
    }

    fn poll_all(&mut self, start: Nanos) -> (Progress, Nanos) {
        let mut progress = Progress::Idle;
        let mut now = start;
        for index in 0..self.slots.len() {
            let Some(poller) = &mut self.slots[index].poller else {
                continue;
            };
            self.shared.stats.enter(index as u16, now);
            progress = progress.and(poller.poll(now));
            now = self.left(index as u16, now);
        }
        (progress, now)
    }

    /// Runs the timers that are due; at most as many as fit, since a job may arm another that is
    /// due at once.
    fn run_timers(&mut self, start: Nanos) -> (Progress, Nanos) {
        let mut fired = 0;
        let mut now = start;
        while let Some((_, job)) = self.timers.pop_due(start) {
            self.shared.stats.enter(SLOT_TIMERS, now);
            job(self);
            now = self.left(SLOT_TIMERS, now);
            fired += 1;
            if fired == self.timers.capacity() {
                break;
            }
        }
        (Progress::from_count(fired), now)
    }

    fn flush_all(&mut self, start: Nanos) -> Nanos {
        let mut now = start;
        for index in 0..self.slots.len() {
            let Some(poller) = &mut self.slots[index].poller else {
                continue;
            };
            self.shared.stats.enter(index as u16, now);
            poller.flush(now);
            now = self.left(index as u16, now);
        }
        now
    }

    /// The other half of `stats.enter`: reads the clock and judges how long it took since
    /// `entered`.
    #[inline]
    fn left(&mut self, slot: u16, entered: Nanos) -> Nanos {
        let now = self.clock.now();
        self.shared.stats.leave();
        let lasted = now - entered;
        if lasted > self.longest {
            self.longest = lasted;
            self.shared.stats.note_longest(slot, lasted);
        }
        if lasted > self.config.stall_threshold {
            self.note_stall(slot, now, lasted);
        }
        now
    }

    #[cold]
    fn note_stall(&mut self, slot: u16, now: Nanos, lasted: Nanos) {
        self.shared.stats.note_stall(slot, lasted);
        self.recorder.note(now, Note::stall(slot, lasted));
        if now < self.next_warning {
            self.warnings_withheld += 1;
            return;
        }
        self.next_warning = now + WARN_EVERY;
        let name = self.shared.stats.name(slot);
        tracing::warn!(
            reactor = self.index(),
            poller = name.as_deref().unwrap_or("removed"),
            lasted_us = lasted.as_micros(),
            threshold_us = self.config.stall_threshold.as_micros(),
            withheld = self.warnings_withheld,
            "a poller held up its reactor"
        );
        self.warnings_withheld = 0;
    }

    /// Asks the pollers to stop; ends when all of the group are quiet or the deadline has passed.
    fn stop_all(&mut self, start: Nanos, deadline: Nanos) -> Nanos {
        let mut quiet = self.shared.inbox.is_empty();
        let mut now = start;
        for index in 0..self.slots.len() {
            let Some(poller) = &mut self.slots[index].poller else {
                continue;
            };
            self.shared.stats.enter(index as u16, now);
            quiet &= poller.stop(now) == StopState::Stopped;
            now = self.left(index as u16, now);
        }
        let all_quiet = self.count_quiet(quiet);
        self.finished |= all_quiet || now >= deadline;
        now
    }

    /// Keeps the group's count of quiet reactors; true when this one is quiet and all were quiet at
    /// once.
    fn count_quiet(&mut self, quiet: bool) -> bool {
        use std::sync::atomic::Ordering::SeqCst;
        let group = &self.shared.group;
        if quiet != self.quiet {
            self.quiet = quiet;
            if quiet {
                group.quiet.fetch_add(1, SeqCst);
            } else {
                group.quiet.fetch_sub(1, SeqCst);
            }
        }
        if quiet && group.quiet.load(SeqCst) >= group.members {
            group.finish.store(true, SeqCst);
        }
        quiet && group.finish.load(SeqCst)
    }
}

impl Drop for Reactor {
    /// Ends the reactor for its handles and for its group, even when a poller panicked.
    fn drop(&mut self) {
        self.count_quiet(true);
        self.shared.close();
        self.shared.stats.leave();
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Reactor")
            .field("index", &self.index())
            .field("pollers", &self.pollers())
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
