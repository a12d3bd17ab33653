//! Chooses the reactor of a new connection: the least loaded one. Counts all connections, so that a
//! limit on them is exact over all reactors and transports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::shared::ReactorHandle;
use crate::time::Nanos;

/// Weight of one connection relative to the busy share in permille: 20 connections count as one
/// busy core, so that a burst of new connections is distributed before any of them has caused load.
const CONNECTION_WEIGHT: u32 = 50;

/// The load of every reactor, shared by the listeners that accept connections.
#[derive(Debug, Clone)]
pub struct Placement {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    reactors: Box<[Load]>,
    /// Connections of all reactors, including those not yet received by their reactor.
    connections: AtomicU32,
    connections_max: u32,
    /// Maximum number of connections per reactor.
    per_reactor_max: u32,
}

/// The connections of one reactor.
#[derive(Debug, Default)]
struct Load {
    connections: AtomicU32,
    /// Those of them that may be closed to make room.
    evictable: AtomicU32,
}

/// The placement of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementResult {
    /// Served by this reactor.
    Available(usize),
    /// Served by this reactor, which has to close another connection first.
    Replacing(usize),
    /// Refused: the limit is reached, and no connection can be closed.
    Full,
}

impl Placement {
    /// Creates a placement for `reactors` reactors without connections and without a limit.
    #[must_use]
    pub fn new(reactors: usize) -> Self {
        Self::with_limit(reactors, usize::MAX, usize::MAX)
    }

    /// Creates a placement for `reactors` reactors, which together serve at most `connections_max`
    /// connections, and each at most `per_reactor_max`.
    #[must_use]
    pub fn with_limit(reactors: usize, connections_max: usize, per_reactor_max: usize) -> Self {
        let limit = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            shared: Arc::new(Shared {
                reactors: (0..reactors).map(|_| Load::default()).collect(),
                connections: AtomicU32::new(0),
                connections_max: limit(connections_max),
                per_reactor_max: limit(per_reactor_max),
            }),
        }
    }

    /// Chooses the least loaded reactor with room and counts the connection there until
    /// [`release`](Self::release). `None`: the limit on connections is reached.
    #[must_use]
    pub fn choose(&self, reactors: &[ReactorHandle], now: Nanos) -> Option<usize> {
        self.choose_by(busy_permille(reactors, now))
    }

    /// Like [`choose`](Self::choose), but if no room is left, the connection goes to a reactor that
    /// can close another one, and is counted there too.
    #[must_use]
    pub fn choose_or_replace(&self, reactors: &[ReactorHandle], now: Nanos) -> PlacementResult {
        if let Some(chosen) = self.choose_by(busy_permille(reactors, now)) {
            return PlacementResult::Available(chosen);
        }
        let loads = self.shared.reactors.iter().enumerate();
        let evictable = loads.map(|(index, it)| (it.evictable.load(Ordering::Relaxed), index));
        match evictable.max() {
            Some((1.., chosen)) => {
                self.shared.connections.fetch_add(1, Ordering::Relaxed);
                self.count(chosen);
                PlacementResult::Replacing(chosen)
            }
            _ => PlacementResult::Full,
        }
    }

    fn choose_by(&self, busy_permille: impl Fn(usize) -> u32) -> Option<usize> {
        let Shared {
            reactors,
            connections_max,
            per_reactor_max,
            ..
        } = &*self.shared;
        let room = |count: u32| (count < *connections_max).then_some(count + 1);
        let (order, total) = (Ordering::Relaxed, &self.shared.connections);
        total.fetch_update(order, order, room).ok()?;
        let connections = |index: usize| reactors[index].connections.load(Ordering::Relaxed);
        let load = |index: usize| {
            let weight = connections(index).saturating_mul(CONNECTION_WEIGHT);
            weight.saturating_add(busy_permille(index))
        };
        let chosen = (0..reactors.len())
            .filter(|index| connections(*index) < *per_reactor_max)
            .min_by_key(|index| load(*index));
        match chosen {
            Some(chosen) => self.count(chosen),
            None => {
                total.fetch_sub(1, order);
            }
        }
        chosen
    }

    fn count(&self, reactor: usize) {
        let load = &self.shared.reactors[reactor];
        load.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that an earlier process placed on `reactor`, whatever the limits are.
    pub fn add(&self, reactor: usize) {
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        self.count(reactor);
    }

    /// Counts the end of a connection of `reactor`.
    pub fn release(&self, reactor: usize) {
        let load = &self.shared.reactors[reactor];
        load.connections.fetch_sub(1, Ordering::Relaxed);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts another connection of `reactor` that may be closed to make room.
    pub fn add_evictable(&self, reactor: usize) {
        let load = &self.shared.reactors[reactor];
        load.evictable.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes one such connection of `reactor` from the count.
    pub fn remove_evictable(&self, reactor: usize) {
        let load = &self.shared.reactors[reactor];
        load.evictable.fetch_sub(1, Ordering::Relaxed);
    }

    /// Connections that `reactor` serves or is about to receive.
    #[must_use]
    pub fn connections(&self, reactor: usize) -> u32 {
        let load = &self.shared.reactors[reactor];
        load.connections.load(Ordering::Relaxed)
    }
}

fn busy_permille(reactors: &[ReactorHandle], now: Nanos) -> impl Fn(usize) -> u32 {
    move |index| {
        let reactor = reactors.get(index);
        reactor.map_or(0, |reactor| reactor.stats().busy_permille(now))
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
    fn busy_reactor_is_skipped_despite_fewer_connections() {
        let placement = Placement::new(2);
        for _ in 0..6 {
            let _ = placement.choose_by(|index| if index == 0 { 900 } else { 0 });
        }
        assert_eq!((placement.connections(0), placement.connections(1)), (0, 6));
    }

    #[test]
    fn released_connections_free_their_reactor() {
        let placement = Placement::new(2);
        let first = placement.choose_by(|_| 0);
        let second = placement.choose_by(|_| 0);
        assert_ne!(first, second);
        placement.release(first.expect("no limit"));
        assert_eq!(placement.choose_by(|_| 0), first);
    }

    /// The limit applies to all reactors together, regardless of the distribution.
    #[test]
    fn connection_limit_is_exact() {
        for reactors in 1..5 {
            let placement = Placement::with_limit(reactors, 64, 64);
            // All reactors but one are busy, so that one gets the connections.
            let busy = |index: usize| if index == 0 { 0 } else { 1_000_000 };
            let placed = (0..200).filter_map(|_| placement.choose_by(busy)).count();
            assert_eq!(placed, 64, "{reactors} reactors");
            assert_eq!(
                placement.choose_or_replace(&[], Nanos::ZERO),
                PlacementResult::Full
            );
            placement.release(0);
            assert_eq!(placement.choose_by(busy), Some(0));
            assert_eq!(placement.choose_by(busy), None);
        }
    }

    #[test]
    fn full_reactor_is_skipped() {
        let placement = Placement::with_limit(2, 64, 3);
        let busy = |index: usize| if index == 0 { 0 } else { 1_000_000 };
        let placed: Vec<_> = (0..8).map(|_| placement.choose_by(busy)).collect();
        let (first, second) = (Some(0), Some(1));
        let all = [first, first, first, second, second, second, None, None];
        assert_eq!(placed, all);
        // A refused connection is not counted.
        placement.release(1);
        assert_eq!(placement.choose_by(busy), Some(1));
    }

    #[test]
    fn at_the_limit_a_reactor_with_an_evictable_connection_is_chosen() {
        let placement = Placement::with_limit(2, 2, 2);
        let choose = || placement.choose_or_replace(&[], Nanos::ZERO);
        assert!(matches!(
            (choose(), choose()),
            (PlacementResult::Available(_), PlacementResult::Available(_))
        ));
        assert_eq!(choose(), PlacementResult::Full);
        placement.add_evictable(1);
        assert_eq!(choose(), PlacementResult::Replacing(1));
        placement.remove_evictable(1);
        placement.release(1);
        assert_eq!(choose(), PlacementResult::Full);
        placement.release(1);
        assert_eq!(choose(), PlacementResult::Available(1));
    }
}
