//! Which reactor serves a new connection: the one that is least loaded at that moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::shared::ReactorHandle;
use crate::time::Nanos;

/// What one connection weighs against the busy share in permille: 20 connections count as one busy
/// core, so that a burst of new connections spreads although none of them has caused load yet.
const CONNECTION_WEIGHT: u32 = 50;

/// The load of every reactor, as seen by who accepts connections.
#[derive(Debug, Clone)]
pub struct Placement {
    connections: Arc<[AtomicU32]>,
}

impl Placement {
    /// For this many reactors, without any connections.
    #[must_use]
    pub fn new(reactors: usize) -> Self {
        Self {
            connections: (0..reactors).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Chooses the least loaded reactor and counts the connection there until
    /// [`release`](Self::release).
    #[must_use]
    pub fn choose(&self, reactors: &[ReactorHandle], now: Nanos) -> usize {
        self.choose_by(|index| {
            reactors
                .get(index)
                .map_or(0, |reactor| reactor.stats().busy_permille(now))
        })
    }

    fn choose_by(&self, busy_permille: impl Fn(usize) -> u32) -> usize {
        let load = |index: usize| {
            let connections = self.connections[index].load(Ordering::Relaxed);
            connections
                .saturating_mul(CONNECTION_WEIGHT)
                .saturating_add(busy_permille(index))
        };
        let chosen = (0..self.connections.len())
            .min_by_key(|index| load(*index))
            .unwrap_or(0);
        self.connections[chosen].fetch_add(1, Ordering::Relaxed);
        chosen
    }

    /// A connection of `reactor` has ended.
    pub fn release(&self, reactor: usize) {
        self.connections[reactor].fetch_sub(1, Ordering::Relaxed);
    }

    /// Connections that `reactor` has or is about to get.
    #[must_use]
    pub fn connections(&self, reactor: usize) -> u32 {
        self.connections[reactor].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_spreads_evenly_over_idle_reactors() {
        let placement = Placement::new(4);
        for _ in 0..40 {
            let _ = placement.choose_by(|_| 0);
        }
        let spread: Vec<u32> = (0..4)
            .map(|reactor| placement.connections(reactor))
            .collect();
        assert_eq!(spread, [10; 4]);
    }

    #[test]
    fn a_busy_reactor_is_passed_over_although_it_has_fewer_connections() {
        let placement = Placement::new(2);
        for _ in 0..6 {
            let _ = placement.choose_by(|index| if index == 0 { 900 } else { 0 });
        }
        assert_eq!((placement.connections(0), placement.connections(1)), (0, 6));
    }

    #[test]
    fn connections_that_end_make_room() {
        let placement = Placement::new(2);
        let first = placement.choose_by(|_| 0);
        let second = placement.choose_by(|_| 0);
        assert_ne!(first, second);
        placement.release(first);
        assert_eq!(placement.choose_by(|_| 0), first);
    }
}
