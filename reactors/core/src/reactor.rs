//! A reactor: its turn, its pollers, its timers, and its shutdown.

mod idle;

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::clock::Clock;
use crate::config::ReactorConfig;
use crate::poller::{Poller, Progress, StopState};
use crate::reactors::Outstanding;
use crate::recorder::{Recorder, TraceRecord};
use crate::shared::{Group, ReactorHandle, Shared};
use crate::stats::{SLOT_INBOX, SLOT_TIMERS, TimeAccounting};
use crate::time::Nanos;
use crate::timer::{TimerId, TimerWheel};

/// Maximum number of pollers of a reactor, which limits the descriptors of a sleep. All connections
/// of a listener, or all requests of a device queue, belong to one poller.
pub const POLLERS_MAX: usize = 256;

const _: () = assert!(
    POLLERS_MAX < 0xFF00,
    "poller slots share 16 bits with reserved numbers"
);

/// Minimum interval between two stall warnings of a reactor.
const WARN_EVERY: Nanos = Nanos::from_secs(1);

/// A timer job. It runs on the thread that scheduled it, so it need not be `Send`.
pub type TimerJob = Box<dyn FnOnce(&mut Reactor)>;

/// Identifies a registered poller. Stale after the poller was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PollerId {
    slot: u16,
    generation: u32,
}

/// The reactor has [`POLLERS_MAX`] pollers already; the new poller was dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for the poller {name}: a reactor has at most {POLLERS_MAX}")]
pub struct RegisterError {
    /// The new poller's name.
    pub name: Box<str>,
}

struct Slot {
    poller: Option<Box<dyn Poller>>,
    generation: u32,
}

/// The pollers of one thread. Started by [`Reactors`](crate::Reactors), or created directly and run
/// turn by turn in tests and simulations, possibly several on one thread.
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
    accounts: TimeAccounting,
    recorder: Recorder,
    longest: Nanos,
    /// Start of the current period without progress.
    idle_since: Option<Nanos>,
    next_warning: Nanos,
    warnings_suppressed: u64,
    /// Whether the group counts this reactor as quiet.
    quiet: bool,
    finished: bool,
}

impl Reactor {
    /// Creates a reactor of its own group on the calling thread. `config.core` is ignored; it
    /// applies to threads only.
    ///
    /// # Errors
    /// The kernel provides no eventfd.
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
            // The only recorder of this ring: clones stay on this thread.
            recorder: shared.recording.recorder(),
            shared,
            slots: Vec::with_capacity(POLLERS_MAX),
            accounts: TimeAccounting::new(now),
            longest: Nanos::ZERO,
            idle_since: None,
            next_warning: Nanos::ZERO,
            warnings_suppressed: 0,
            quiet: false,
            finished: false,
        }
    }

    /// The reactor's number.
    #[must_use]
    pub fn index(&self) -> usize {
        self.shared.index
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &ReactorConfig {
        &self.config
    }

    /// The clock of all its times.
    #[must_use]
    pub fn clock(&self) -> Rc<dyn Clock> {
        Rc::clone(&self.clock)
    }

    /// The recorder for its pollers' events.
    #[must_use]
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// A handle for other threads.
    #[must_use]
    pub fn handle(&self) -> ReactorHandle {
        ReactorHandle {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Adds a poller, which is polled from the next turn on (from this turn, if called by a
    /// message).
    ///
    /// # Errors
    /// There are [`POLLERS_MAX`] pollers already; the new one is dropped.
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
        // `POLLERS_MAX` fits in 16 bits.
        let number = index as u16;
        self.shared.stats.set_name(number, poller.name());
        let slot = &mut self.slots[index];
        slot.poller = Some(poller);
        Ok(PollerId {
            slot: number,
            generation: slot.generation,
        })
    }

    /// Removes a poller and returns it; `None` if it was removed before.
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

    /// Number of registered pollers.
    #[must_use]
    pub fn pollers(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.poller.is_some())
            .count()
    }

    /// Runs `job` in the first turn at or after `deadline`, up to a timer tick late. For the
    /// control path: pollers have their own timer wheels.
    ///
    /// # Errors
    /// The job comes back when `timers_max` timers are armed.
    pub fn schedule(&mut self, deadline: Nanos, job: TimerJob) -> Result<TimerId, TimerJob> {
        self.timers.insert(deadline, job)
    }

    /// Disarms a timer and returns its job; `None` if it has fired or was cancelled.
    pub fn cancel(&mut self, timer: TimerId) -> Option<TimerJob> {
        self.timers.cancel(timer)
    }

    /// The earliest time at which a timer or a poller needs a turn without another event.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let pollers = self
            .slots
            .iter()
            .filter_map(|slot| slot.poller.as_ref()?.next_deadline());
        pollers.chain(self.timers.next_deadline()).min()
    }

    /// One iteration: messages, pollers, timers, flush, and the stop if one was requested. Never
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
            .add_turn(start, end, progress.is_busy(), &self.shared.stats);
        if progress.is_busy() {
            self.idle_since = None;
        } else if self.idle_since.is_none() {
            self.idle_since = Some(start);
        }
        progress
    }

    /// Takes turns, and rests as the idle policy says, until the reactor has stopped.
    pub fn run(&mut self) {
        while !self.finished {
            self.turn();
            if self.idle_since.is_some() && !self.finished {
                self.idle_step();
            }
        }
    }

    /// Whether a requested stop is complete or its deadline has passed. Further turns have no
    /// effect.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Calls [`Poller::stop`] of every poller again and returns those that have not stopped.
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

    /// Runs the messages that are in the inbox now, but not those that they send.
    fn run_inbox(&mut self, start: Nanos) -> (Progress, Nanos) {
        // `len` costs two loads if the inbox is empty, `pop` a fence.
        let waiting = self.shared.inbox.len();
        let mut now = start;
        for _ in 0..waiting {
            let Some(job) = self.shared.inbox.pop() else {
                break;
            };
            self.shared.stats.enter(SLOT_INBOX, now);
            job(self);
            now = self.record_leave(SLOT_INBOX, now);
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
            now = self.record_leave(index as u16, now);
        }
        (progress, now)
    }

    /// Runs the timers that are due. Limited to the capacity, because a job may arm another timer
    /// that is due immediately.
    fn run_timers(&mut self, start: Nanos) -> (Progress, Nanos) {
        let mut fired = 0;
        let mut now = start;
        while let Some((_, job)) = self.timers.pop_due(start) {
            self.shared.stats.enter(SLOT_TIMERS, now);
            job(self);
            now = self.record_leave(SLOT_TIMERS, now);
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
            now = self.record_leave(index as u16, now);
        }
        now
    }

    /// The counterpart of `stats.enter`: reads the clock and records the duration since `entered`.
    #[inline]
    fn record_leave(&mut self, slot: u16, entered: Nanos) -> Nanos {
        let now = self.clock.now();
        self.shared.stats.leave();
        let lasted = now - entered;
        if lasted > self.longest {
            self.longest = lasted;
            self.shared.stats.record_longest(slot, lasted);
        }
        if lasted > self.config.stall_threshold {
            self.record_stall(slot, now, lasted);
        }
        now
    }

    #[cold]
    fn record_stall(&mut self, slot: u16, now: Nanos, lasted: Nanos) {
        self.shared.stats.record_stall(slot, lasted);
        self.recorder.record(now, TraceRecord::stall(slot, lasted));
        if now < self.next_warning {
            self.warnings_suppressed += 1;
            return;
        }
        self.next_warning = now + WARN_EVERY;
        let name = self.shared.stats.name(slot);
        tracing::warn!(
            reactor = self.index(),
            poller = name.as_deref().unwrap_or("removed"),
            lasted_us = lasted.as_micros(),
            threshold_us = self.config.stall_threshold.as_micros(),
            withheld = self.warnings_suppressed,
            "a poller stalled its reactor"
        );
        self.warnings_suppressed = 0;
    }

    /// Stops the pollers; finishes when the whole group is quiet or the deadline has passed.
    fn stop_all(&mut self, start: Nanos, deadline: Nanos) -> Nanos {
        let mut quiet = self.shared.inbox.is_empty();
        let mut now = start;
        for index in 0..self.slots.len() {
            let Some(poller) = &mut self.slots[index].poller else {
                continue;
            };
            self.shared.stats.enter(index as u16, now);
            quiet &= poller.stop(now) == StopState::Stopped;
            now = self.record_leave(index as u16, now);
        }
        let all_quiet = self.update_quiet_count(quiet);
        self.finished |= all_quiet || now >= deadline;
        now
    }

    /// Updates the group's count of quiet reactors. Returns true if this one is quiet and all were
    /// quiet at the same time.
    fn update_quiet_count(&mut self, quiet: bool) -> bool {
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
    /// Ends the reactor for its handles and for its group, also after a panic of a poller.
    fn drop(&mut self) {
        self.update_quiet_count(true);
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
