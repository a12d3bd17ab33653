//! Which reactor serves a new connection: the one that is least loaded at that moment. Counts all
//! connections, so that a limit on them is exact over all reactors and transports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::shared::ReactorHandle;
use crate::sim::planted;
use crate::time::Nanos;

/// What one connection weighs against the busy share in permille: 20 connections count as one busy
/// core, so that a burst of new connections spreads although none of them has caused load yet.
const CONNECTION_WEIGHT: u32 = 50;

/// The load of every reactor, as seen by who accepts connections.
#[derive(Debug, Clone)]
pub struct Placement {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    reactors: Box<[Load]>,
    /// Connections of all reactors, those on their way included.
    connections: AtomicU32,
    connections_max: u32,
    /// Connections that one reactor has room for.
    per_reactor_max: u32,
}

/// What one reactor has.
#[derive(Debug, Default)]
struct Load {
    connections: AtomicU32,
    /// Of these, the ones that may end to make room.
    evictable: AtomicU32,
}

/// Where a new connection goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// To this reactor.
    Free(usize),
    /// To this reactor, which has to end a connection for it first.
    Replacing(usize),
    /// Nowhere: there are as many as may be, and none can end.
    Full,
}

impl Placement {
    /// For this many reactors, without any connections and without a limit.
    #[must_use]
    pub fn new(reactors: usize) -> Self {
        Self::with_limit(reactors, usize::MAX, usize::MAX)
    }

    /// For this many reactors, which together serve `connections_max` connections at once, and each
    /// of them `per_reactor_max`.
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
    /// [`release`](Self::release). `None`: there are as many connections as may be.
    #[must_use]
    pub fn choose(&self, reactors: &[ReactorHandle], now: Nanos) -> Option<usize> {
        self.choose_by(busy_permille(reactors, now))
    }

    /// The same; where all places are taken, the connection goes to a reactor that can end another
    /// one for it, and is counted there too.
    #[must_use]
    pub fn choose_or_replace(&self, reactors: &[ReactorHandle], now: Nanos) -> Placed {
        if let Some(chosen) = self.choose_by(busy_permille(reactors, now)) {
            return Placed::Free(chosen);
        }
        let loads = self.shared.reactors.iter().enumerate();
        let evictable = loads.map(|(index, it)| (it.evictable.load(Ordering::Relaxed), index));
        match evictable.max() {
            Some((1.., chosen)) => {
                self.shared.connections.fetch_add(1, Ordering::Relaxed);
                self.count(chosen);
                Placed::Replacing(chosen)
            }
            _ => Placed::Full,
        }
    }

    fn choose_by(&self, busy_permille: impl Fn(usize) -> u32) -> Option<usize> {
        let Shared {
            reactors,
            connections_max,
            per_reactor_max,
            ..
        } = &*self.shared;
        let max = if planted("connections-doubled") {
            connections_max.saturating_mul(2)
        } else {
            *connections_max
        };
        let room = |count: u32| (count < max).then_some(count + 1);
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

    /// A connection of `reactor` has ended.
    pub fn release(&self, reactor: usize) {
        let load = &self.shared.reactors[reactor];
        load.connections.fetch_sub(1, Ordering::Relaxed);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// `reactor` has one more connection that may end to make room.
    pub fn add_evictable(&self, reactor: usize) {
        let load = &self.shared.reactors[reactor];
        load.evictable.fetch_add(1, Ordering::Relaxed);
    }

    /// `reactor` has one less.
    pub fn remove_evictable(&self, reactor: usize) {
        let load = &self.shared.reactors[reactor];
        load.evictable.fetch_sub(1, Ordering::Relaxed);
    }

    /// Connections that `reactor` has or is about to get.
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
        placement.release(first.expect("no limit"));
        assert_eq!(placement.choose_by(|_| 0), first);
    }

    /// The limit is that of all reactors together, wherever the connections are.
    #[test]
    fn the_limit_on_connections_is_exact() {
        for reactors in 1..5 {
            let placement = Placement::with_limit(reactors, 64, 64);
            // All but one are busy, so the connections go to one.
            let busy = |index: usize| if index == 0 { 0 } else { 1_000_000 };
            let placed = (0..200).filter_map(|_| placement.choose_by(busy)).count();
            assert_eq!(placed, 64, "{reactors} reactors");
            assert_eq!(placement.choose_or_replace(&[], Nanos::ZERO), Placed::Full);
            placement.release(0);
            assert_eq!(placement.choose_by(busy), Some(0));
            assert_eq!(placement.choose_by(busy), None);
        }
    }

    #[test]
    fn a_full_reactor_is_passed_over() {
        let placement = Placement::with_limit(2, 64, 3);
        let busy = |index: usize| if index == 0 { 0 } else { 1_000_000 };
        let placed: Vec<_> = (0..8).map(|_| placement.choose_by(busy)).collect();
        let (first, second) = (Some(0), Some(1));
        let all = [first, first, first, second, second, second, None, None];
        assert_eq!(placed, all);
        // What was not placed is not counted.
        placement.release(1);
        assert_eq!(placement.choose_by(busy), Some(1));
    }

    #[test]
    fn where_all_is_taken_a_reactor_that_can_end_one_is_chosen() {
        let placement = Placement::with_limit(2, 2, 2);
        let choose = || placement.choose_or_replace(&[], Nanos::ZERO);
        assert!(matches!(
            (choose(), choose()),
            (Placed::Free(_), Placed::Free(_))
        ));
        assert_eq!(choose(), Placed::Full);
        placement.add_evictable(1);
        assert_eq!(choose(), Placed::Replacing(1));
        placement.remove_evictable(1);
        placement.release(1);
        assert_eq!(choose(), Placed::Full);
        placement.release(1);
        assert_eq!(choose(), Placed::Free(1));
    }
}
