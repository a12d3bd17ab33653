//! Connects every reactor to every reactor: N × N rings, one [`Port`] per reactor.

use std::fmt;

use crate::ring::{self, Receiver, Sender};
use crate::wake::Waker;

/// Creates one port per reactor; port `i` belongs to reactor `i`. Each ordered pair, including a
/// reactor with itself, has its own ring of `capacity` values, so a slow reactor cannot use the
/// capacity of another.
///
/// # Panics
/// If `capacity` is 0 or above 2^30.
#[must_use]
pub fn mesh<T: Send>(reactors: usize, capacity: usize) -> Vec<Port<T>> {
    let mut senders: Vec<Vec<Sender<T>>> = Vec::new();
    let mut receivers: Vec<Vec<Receiver<T>>> = Vec::new();
    senders.resize_with(reactors, || Vec::with_capacity(reactors));
    receivers.resize_with(reactors, || Vec::with_capacity(reactors));
    for row in &mut senders {
        for column in &mut receivers {
            let (sender, receiver) = ring::channel(capacity);
            row.push(sender);
            column.push(receiver);
        }
    }
    (senders.into_iter().zip(receivers).enumerate())
        .map(|(index, (senders, receivers))| Port {
            index,
            next: 0,
            senders,
            receivers,
        })
        .collect()
}

/// One reactor's end of the mesh.
pub struct Port<T> {
    index: usize,
    next: usize,
    senders: Vec<Sender<T>>,
    receivers: Vec<Receiver<T>>,
}

impl<T: Send> Port<T> {
    /// The reactor this port belongs to.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of reactors in the mesh.
    #[must_use]
    pub fn reactors(&self) -> usize {
        self.senders.len()
    }

    /// From now on, a send to reactor `to` wakes it if it sleeps.
    ///
    /// # Panics
    /// If `to` is not a reactor of this mesh.
    pub fn attach(&mut self, to: usize, waker: Waker) {
        self.senders[to].attach(waker);
    }

    /// Attaches one waker per reactor, in index order.
    ///
    /// # Panics
    /// If there are not exactly as many wakers as reactors.
    pub fn attach_all(&mut self, wakers: &[Waker]) {
        assert_eq!(wakers.len(), self.senders.len(), "one waker per reactor");
        for (sender, waker) in self.senders.iter_mut().zip(wakers) {
            sender.attach(waker.clone());
        }
    }

    /// Sends to reactor `to`.
    ///
    /// # Errors
    /// The value itself, if the ring to that reactor is full.
    ///
    /// # Panics
    /// If `to` is not a reactor of this mesh.
    #[inline]
    pub fn send(&mut self, to: usize, value: T) -> Result<(), T> {
        self.senders[to].send(value)
    }

    /// At least this many sends to reactor `to` will succeed.
    ///
    /// # Panics
    /// If `to` is not a reactor of this mesh.
    pub fn vacant(&mut self, to: usize) -> usize {
        self.senders[to].vacant()
    }

    /// Receives a value and the index of its sender, or `None` if every ring is empty. Serves the
    /// senders round robin, so that none starves.
    #[inline]
    pub fn recv(&mut self) -> Option<(usize, T)> {
        let count = self.receivers.len();
        for _ in 0..count {
            let from = self.next;
            self.next = if from + 1 == count { 0 } else { from + 1 };
            if let Some(value) = self.receivers[from].recv() {
                return Some((from, value));
            }
        }
        None
    }

    /// Receives a value and the index of its sender from the current ring. Returns `None` if that
    /// ring is empty, and advances to the next one. A poller that calls this in every turn until it
    /// returns `None` visits each ring once in as many turns as there are reactors, and the cost of
    /// a turn does not depend on the number of reactors.
    #[inline]
    pub fn recv_in_turn(&mut self) -> Option<(usize, T)> {
        let from = self.next;
        let value = self.receivers[from].recv();
        if value.is_none() {
            self.next = if from + 1 == self.receivers.len() {
                0
            } else {
                from + 1
            };
        }
        Some((from, value?))
    }

    /// Whether all rings are empty now. A poller that owns a port returns this from
    /// [`Poller::prepare_sleep`](crate::Poller::prepare_sleep).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.receivers.iter().all(Receiver::is_empty)
    }
}

impl<T> fmt::Debug for Port<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Port")
            .field("index", &self.index)
            .field("reactors", &self.senders.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_checks_one_ring() {
        let mut ports = mesh(3, 2);
        for from in [0, 2] {
            for number in [1, 2] {
                assert_eq!(ports[from].send(1, (from, number)), Ok(()));
            }
        }
        let receiver = &mut ports[1];
        let mut turn = || -> Vec<(usize, i32)> {
            std::iter::from_fn(|| receiver.recv_in_turn().map(|(_, value)| value)).collect()
        };
        assert_eq!(turn(), [(0, 1), (0, 2)]);
        assert_eq!(turn(), []);
        assert_eq!(turn(), [(2, 1), (2, 2)]);
        assert_eq!(turn(), []);
        assert!(ports[1].is_empty());
    }

    #[test]
    fn every_pair_has_its_own_ring() {
        let mut ports = mesh(3, 2);
        for (from, port) in ports.iter_mut().enumerate() {
            assert_eq!((port.index(), port.reactors()), (from, 3));
            for to in 0..3 {
                assert_eq!(port.send(to, (from, to)), Ok(()));
                assert_eq!(port.vacant(to), 1);
            }
        }
        for (to, port) in ports.iter_mut().enumerate() {
            assert!(!port.is_empty());
            let mut senders = Vec::new();
            while let Some((from, value)) = port.recv() {
                assert_eq!(value, (from, to));
                senders.push(from);
            }
            assert_eq!(senders, [0, 1, 2]);
            assert!(port.is_empty());
        }
    }

    #[test]
    fn full_ring_returns_the_value_and_does_not_affect_others() {
        let mut ports = mesh(2, 1);
        assert_eq!(ports[0].send(1, 'a'), Ok(()));
        assert_eq!(ports[0].send(1, 'b'), Err('b'));
        assert_eq!(ports[1].send(1, 'c'), Ok(()));
        assert_eq!(ports[0].send(0, 'd'), Ok(()));
    }

    #[test]
    fn no_sender_starves_another() {
        let mut ports = mesh(2, 8);
        let (left, right) = ports.split_at_mut(1);
        for _ in 0..8 {
            left[0].send(1, ()).expect("there is room");
            right[0].send(1, ()).expect("there is room");
        }
        let order: Vec<usize> = (0..4)
            .filter_map(|_| right[0].recv())
            .map(|(from, ())| from)
            .collect();
        assert_eq!(order, [0, 1, 0, 1]);
    }
}
