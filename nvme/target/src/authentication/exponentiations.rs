//! The exponentiations of all queues, which a thread of their own computes.
//!
//! A queue has at most one here, so their number is limited by that of the queues. The origins of
//! hosts take turns: a flood from one delays another by one exponentiation for each of its own.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvme_authentication::{Computed, Exponentiation, Random as _, SystemRandom};

use crate::interface::QueueId;
use crate::network::network_of;

/// Where a host is. Unlike its name, it cannot be chosen freely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Its network.
    Network(IpAddr),
    /// The host's name, if the transport knows no address.
    Host(String),
}

impl Origin {
    /// The origin of a host.
    pub(crate) fn new(address: Option<IpAddr>, host_nqn: &str) -> Self {
        match address {
            Some(address) => Self::Network(network_of(address)),
            None => Self::Host(host_nqn.to_owned()),
        }
    }
}

/// An exponentiation, and the queue that waits for it.
pub(crate) struct Job {
    pub(crate) reactor: usize,
    pub(crate) queue: QueueId,
    pub(crate) exponentiation: Exponentiation,
}

/// The exponentiations of a target.
pub struct Exponentiations {
    state: Mutex<State>,
    added: Condvar,
}

struct State {
    /// By origin, in the order of their turns. No list is empty.
    waiting: VecDeque<(Origin, VecDeque<Job>)>,
    /// By reactor.
    results: Vec<Vec<(QueueId, Computed)>>,
    is_closed: bool,
}

impl Exponentiations {
    pub(crate) fn new(reactors: usize) -> Self {
        Self {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                results: (0..reactors).map(|_| Vec::new()).collect(),
                is_closed: false,
            }),
            added: Condvar::new(),
        }
    }

    /// Adds the exponentiation of a queue that has none.
    pub(crate) fn add(&self, origin: Origin, job: Job) {
        let mut state = self.lock();
        match state.waiting.iter_mut().find(|(it, _)| *it == origin) {
            Some((_, jobs)) => jobs.push_back(job),
            None => state.waiting.push_back((origin, VecDeque::from([job]))),
        }
        drop(state);
        self.added.notify_one();
    }

    /// Removes the exponentiation of a queue that ends. One that is being computed continues; its
    /// result is then ignored.
    pub(crate) fn cancel(&self, reactor: usize, queue: QueueId) {
        let mut state = self.lock();
        for (_, jobs) in &mut state.waiting {
            jobs.retain(|job| (job.reactor, job.queue) != (reactor, queue));
        }
        state.waiting.retain(|(_, jobs)| !jobs.is_empty());
    }

    /// Takes the results for the queues of a reactor.
    pub(crate) fn take_results(&self, reactor: usize) -> Vec<(QueueId, Computed)> {
        let mut state = self.lock();
        state
            .results
            .get_mut(reactor)
            .map_or_else(Vec::new, std::mem::take)
    }

    /// Computes the next exponentiation, which takes up to 60 ms, and returns the reactor that waits
    /// for it; `None` if there is none.
    pub(crate) fn run_next(&self) -> Option<usize> {
        let job = {
            let mut state = self.lock();
            let (origin, mut jobs) = state.waiting.pop_front()?;
            let job = jobs.pop_front();
            if !jobs.is_empty() {
                state.waiting.push_back((origin, jobs));
            }
            job?
        };
        let computed = job.exponentiation.run();
        let mut state = self.lock();
        if let Some(results) = state.results.get_mut(job.reactor) {
            results.push((job.queue, computed));
        }
        Some(job.reactor)
    }

    /// Draws random bytes: the first draw of a process takes 50 ms, which a reactor would wait for in
    /// the first authentication.
    pub fn prepare(&self) {
        let mut bytes = [0; 16];
        if SystemRandom.fill(&mut bytes).is_err() {
            tracing::error!("no random bytes: hosts cannot authenticate themselves");
        }
    }

    /// Waits for an exponentiation, at most for `limit`. Returns false after
    /// [`close`](Self::close).
    pub fn wait(&self, limit: Duration) -> bool {
        let state = self.lock();
        let is_idle = |state: &mut State| state.waiting.is_empty() && !state.is_closed;
        let waited = self.added.wait_timeout_while(state, limit, is_idle);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.is_closed
    }

    /// Ends [`wait`](Self::wait) for good.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.added.notify_all();
    }

    /// Number of exponentiations that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().waiting.iter().map(|(_, jobs)| jobs.len()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn the_name_of_a_host_does_not_choose_its_origin() {
        let one = Origin::new(address("192.0.2.1"), "nqn.a");
        assert_eq!(one, Origin::new(address("192.0.2.1"), "nqn.b"));
        assert_eq!(one, Origin::new(address("::ffff:192.0.2.1"), "nqn.b"));
        assert_ne!(one, Origin::new(address("192.0.2.2"), "nqn.a"));
        let network = Origin::new(address("2001:db8::1"), "nqn.a");
        assert_eq!(network, Origin::new(address("2001:db8::2"), "nqn.a"));
        assert_ne!(network, Origin::new(address("2001:db8:0:1::1"), "nqn.a"));
        assert_ne!(Origin::new(None, "nqn.a"), Origin::new(None, "nqn.b"));
    }
}
