//! Runs several reactors on one thread and in virtual time, deterministic by seed.

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
pub use seeded::{Seeded, mix, random_bit};

/// Time advance per round of turns, so that even reactors that are always busy reach their
/// deadlines.
const ROUND: Nanos = Nanos::from_micros(1);

/// Runs reactors turn by turn, each round in a random order drawn from a seed. When no reactor has
/// work and no message is in flight between them, time advances to the earliest deadline. The same
/// seed and the same pollers produce the same run.
#[derive(Debug)]
pub struct Simulation {
    clock: VirtualClock,
    reactors: Vec<Reactor>,
    order: Vec<usize>,
    random: Seeded,
    /// Number of rounds since the last progress.
    idle_rounds: usize,
}

impl Simulation {
    /// Creates reactors with these configurations at time zero (cores and idle policies are
    /// ignored).
    ///
    /// # Errors
    /// The kernel provides no eventfd.
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

    /// Requests every reactor to stop by `deadline`; they end together.
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

    /// Runs one turn of every reactor that has not ended, in a random order.
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

    /// Whether no message is in flight between the reactors, so that time may advance: since the
    /// last progress each reactor has had at least as many turns as it has rings from others, and
    /// [`recv_in_turn`](crate::mesh::Port::recv_in_turn) checks one ring per turn.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.idle_rounds >= self.reactors.len()
    }

    /// The earliest time at which a reactor needs a turn without another event.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let deadlines = self.reactors.iter().filter_map(Reactor::next_deadline);
        deadlines.min()
    }

    /// Runs rounds until `done` returns true, `until` is reached or every reactor has ended;
    /// returns whether `done` returned true. `done` is called before every round.
    pub fn run_until(&mut self, until: Nanos, mut done: impl FnMut() -> bool) -> bool {
        while !done() {
            if self.clock.now() >= until || self.is_finished() {
                return false;
            }
            if !self.round().is_busy() && self.is_idle() {
                self.clock
                    .advance_to(self.next_deadline().unwrap_or(until).min(until));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
