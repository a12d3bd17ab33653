//! Many reactors on one thread and on virtual time: one seed, one run.

mod planted;
mod seeded;

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::clock::{Clock, VirtualClock};
use crate::config::ReactorConfig;
use crate::poller::Progress;
use crate::reactor::Reactor;
use crate::shared::{Group, Shared};
use crate::time::Nanos;
#[cfg(planted)]
pub use planted::plant;
pub use planted::planted;
pub use seeded::Seeded;

/// How far time moves in a round of turns, so that even reactors that are always busy come to an
/// end.
const ROUND: Nanos = Nanos::from_micros(1);

/// Turns reactors by hand, in an order drawn from a seed for every round. When none has anything to
/// do and nothing is on its way between them, time leaps to the earliest deadline. The same seed and
/// the same pollers give the same run.
#[derive(Debug)]
pub struct Simulation {
    clock: VirtualClock,
    reactors: Vec<Reactor>,
    order: Vec<usize>,
    random: Seeded,
    /// Rounds without progress since the last one with some.
    idle_rounds: usize,
}

impl Simulation {
    /// Reactors with these configurations (cores and idle policies play no part), at time zero.
    ///
    /// # Errors
    /// The kernel refused an eventfd.
    pub fn new(seed: u64, configs: Vec<ReactorConfig>) -> io::Result<Simulation> {
        let clock = VirtualClock::new();
        let group = Group::new(configs.len());
        let mut reactors = Vec::with_capacity(configs.len());
        for (index, config) in configs.into_iter().enumerate() {
            let shared = Shared::new(index, config.inbox_capacity, Arc::clone(&group))?;
            reactors.push(Reactor::with_shared(config, Rc::new(clock.clone()), shared));
        }
        let order = (0..reactors.len()).collect();
        Ok(Simulation {
            clock,
            reactors,
            order,
            random: Seeded::new(seed, 0),
            idle_rounds: 0,
        })
    }

    /// Asks every reactor to stop, to be done by `deadline` at the latest; they end together.
    pub fn request_stop(&self, deadline: Nanos) {
        for reactor in &self.reactors {
            reactor.handle().request_stop(deadline);
        }
    }

    /// Whether every reactor has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.reactors.iter().all(Reactor::is_finished)
    }

    /// The clock that all reactors share.
    #[must_use]
    pub fn clock(&self) -> VirtualClock {
        self.clock.clone()
    }

    /// Reactor `index`.
    ///
    /// # Panics
    /// If there is no such reactor.
    pub fn reactor(&mut self, index: usize) -> &mut Reactor {
        &mut self.reactors[index]
    }

    /// One turn of every reactor that has not ended, in an order of the seed's choice.
    pub fn round(&mut self) -> Progress {
        for last in (1..self.order.len()).rev() {
            let other = self.random.below(last as u64 + 1);
            self.order.swap(last, other as usize);
        }
        let mut progress = Progress::Idle;
        for &index in &self.order {
            let reactor = &mut self.reactors[index];
            if !reactor.is_finished() {
                progress = progress.and(reactor.turn());
            }
        }
        self.clock.advance(ROUND);
        self.idle_rounds = if progress.is_busy() {
            0
        } else {
            self.idle_rounds.saturating_add(1)
        };
        progress
    }

    /// Whether nothing is on its way between the reactors, so that time may leap: since the last
    /// progress each has had as many turns as it has rings from others, and
    /// [`recv_in_turn`](crate::mesh::Port::recv_in_turn) looks at one ring in a turn.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.idle_rounds >= self.reactors.len()
    }

    /// The earliest time at which a reactor wants a turn without anything else happening.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let deadlines = self.reactors.iter().filter_map(Reactor::next_deadline);
        deadlines.min()
    }

    /// Takes rounds until `done` says so or `until` is reached or every reactor has ended; returns
    /// whether it was done. `done` is asked before every round.
    pub fn run_until(&mut self, until: Nanos, mut done: impl FnMut() -> bool) -> bool {
        while !done() {
            if self.clock.now() >= until || self.is_finished() {
                return false;
            }
            if !self.round().is_busy() && self.is_at_rest() {
                self.clock
                    .advance_to(self.next_deadline().unwrap_or(until).min(until));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
