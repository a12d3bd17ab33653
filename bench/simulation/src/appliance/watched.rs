//! A poller that the simulation can inspect between two turns.

use std::cell::RefCell;
use std::rc::Rc;

use reactors::{Nanos, Poller, Progress, StopState};

/// A poller that a reactor and the simulation share.
pub(super) struct Watched<P> {
    name: String,
    poller: Rc<RefCell<P>>,
}

impl<P: Poller> Watched<P> {
    /// The poller to register with a reactor in place of `poller`.
    pub(super) fn new(poller: &Rc<RefCell<P>>) -> Self {
        let name = poller.borrow().name().to_owned();
        let poller = Rc::clone(poller);
        Self { name, poller }
    }
}

/// Simulated reactors do not sleep on descriptors, so there is no wake source.
impl<P: Poller> Poller for Watched<P> {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        self.poller.borrow_mut().poll(now)
    }

    fn flush(&mut self, now: Nanos) {
        self.poller.borrow_mut().flush(now);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.poller.borrow().next_deadline()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.poller.borrow_mut().prepare_sleep()
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        self.poller.borrow_mut().stop(now)
    }
}
