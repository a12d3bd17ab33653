//! The control thread's way to something that every reactor has a part of: one ring to each, and
//! answers that come back over a channel.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reactors::ReactorHandle;
use reactors::ring::{self, Receiver, Sender};

use crate::event_loop::EventLoop;

mod ports;

pub use ports::PortOrders;

/// Orders that may be on their way to one reactor.
const ORDERS_MAX: usize = 256;
/// A reactor that has not answered an order after this long is stuck: its turns take microseconds,
/// and opening a device's queue milliseconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// A reactor does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// Its ring is full.
    #[error("reactor {reactor} takes no more orders: it has ended or is stuck")]
    Full {
        /// Its number.
        reactor: usize,
    },
    /// Not all have answered in time.
    #[error("a reactor has not answered within {ANSWER_WITHIN:?}: it has ended or is stuck")]
    TooSlow,
}

/// Rings of orders to all reactors. One thread at a time gives orders.
pub(crate) struct Orders<T>(Mutex<Vec<Sender<T>>>);

impl<T: Send> Orders<T> {
    /// The rings, and each reactor's end.
    pub(crate) fn new(reactors: usize) -> (Self, Vec<Receiver<T>>) {
        let rings = (0..reactors).map(|_| ring::channel(ORDERS_MAX));
        let (senders, receivers) = rings.unzip();
        (Self(Mutex::new(senders)), receivers)
    }

    /// From now on an order wakes its reactor.
    pub(crate) fn set_wakers(&self, handles: &[ReactorHandle]) {
        let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (sender, handle) in senders.iter_mut().zip(handles) {
            sender.attach(handle.waker().clone());
        }
    }

    /// Gives one reactor an order.
    ///
    /// # Errors
    /// [`Unanswered::Full`].
    pub(crate) fn tell(&self, reactor: usize, order: T) -> Result<(), Unanswered> {
        let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = senders.get_mut(reactor).map(|sender| sender.send(order));
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(Unanswered::Full { reactor }),
        }
    }

    /// Gives every reactor an order that `make` makes for the sender of its answer.
    ///
    /// # Errors
    /// [`Unanswered::Full`]; those before it have their orders.
    pub(crate) fn tell_all<A>(
        &self,
        make: impl Fn(mpsc::Sender<A>) -> T,
    ) -> Result<Answers<A>, Unanswered> {
        let reactors = {
            let senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            senders.len()
        };
        let (sender, receiver) = mpsc::channel();
        for reactor in 0..reactors {
            self.tell(reactor, make(sender.clone()))?;
        }
        Ok(Answers {
            receiver,
            missing: reactors,
            given: Vec::new(),
        })
    }

    /// The same, and waits for what they answer.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub(crate) fn ask_all<A>(
        &self,
        event_loop: &mut dyn EventLoop,
        make: impl Fn(mpsc::Sender<A>) -> T,
    ) -> Result<Vec<A>, Unanswered> {
        self.tell_all(make)?.wait(event_loop)
    }

    /// Gives one reactor an order and waits for its answer.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub(crate) fn ask<A>(
        &self,
        reactor: usize,
        event_loop: &mut dyn EventLoop,
        make: impl FnOnce(mpsc::Sender<A>) -> T,
    ) -> Result<A, Unanswered> {
        let (sender, receiver) = mpsc::channel();
        self.tell(reactor, make(sender))?;
        let answers = Answers {
            receiver,
            missing: 1,
            given: Vec::new(),
        };
        let given = answers.wait(event_loop)?.pop();
        given.ok_or(Unanswered::TooSlow)
    }
}

/// Answers that are on their way.
pub struct Answers<A> {
    receiver: mpsc::Receiver<A>,
    missing: usize,
    given: Vec<A>,
}

impl<A> Answers<A> {
    /// Takes in what is there, or comes within a pause; whether none is to come any more.
    pub fn gather(&mut self, event_loop: &dyn EventLoop) -> bool {
        while self.missing > 0 {
            match self.receiver.recv_timeout(event_loop.pause()) {
                Ok(answer) => {
                    self.given.push(answer);
                    self.missing -= 1;
                }
                Err(RecvTimeoutError::Timeout) => return false,
                // A reactor that ended took its order along: there is nothing to wait for.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        true
    }

    /// Waits for all.
    ///
    /// # Errors
    /// [`Unanswered::TooSlow`].
    pub fn wait(mut self, event_loop: &mut dyn EventLoop) -> Result<Vec<A>, Unanswered> {
        let deadline = event_loop.now() + ANSWER_WITHIN;
        while !self.gather(event_loop) {
            if event_loop.now() >= deadline {
                return Err(Unanswered::TooSlow);
            }
            event_loop.run_once();
        }
        if self.missing > 0 {
            return Err(Unanswered::TooSlow);
        }
        Ok(self.given)
    }
}
