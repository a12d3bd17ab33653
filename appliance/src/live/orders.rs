//! The control thread's way to something that every reactor has a part of: one ring to each, and
//! answers that come back over a channel.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use reactors::ReactorHandle;
use reactors::ring::{self, Receiver, Sender};

/// Orders that may be on their way to one reactor.
const ORDERS_MAX: usize = 256;
/// A reactor that has not answered an order after this long is stuck: its turns take microseconds,
/// and opening a device's queue milliseconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// A reactor does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    #[error("reactor {reactor} takes no more orders: it has ended or is stuck")]
    Full { reactor: usize },
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
    pub(crate) fn tell(&self, reactor: usize, order: T) -> Result<(), Unanswered> {
        let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = senders.get_mut(reactor).map(|sender| sender.send(order));
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(Unanswered::Full { reactor }),
        }
    }

    /// Gives every reactor an order that `make` makes for the sender of its answer.
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
    pub(crate) fn ask_all<A>(
        &self,
        make: impl Fn(mpsc::Sender<A>) -> T,
    ) -> Result<Vec<A>, Unanswered> {
        self.tell_all(make)?.wait()
    }

    /// Gives one reactor an order and waits for its answer.
    pub(crate) fn ask<A>(
        &self,
        reactor: usize,
        make: impl FnOnce(mpsc::Sender<A>) -> T,
    ) -> Result<A, Unanswered> {
        let (sender, receiver) = mpsc::channel();
        self.tell(reactor, make(sender))?;
        receiver
            .recv_timeout(ANSWER_WITHIN)
            .map_err(|_| Unanswered::TooSlow)
    }
}

/// Answers that are on their way.
pub(crate) struct Answers<A> {
    receiver: mpsc::Receiver<A>,
    missing: usize,
    given: Vec<A>,
}

impl<A> Answers<A> {
    /// Waits for the rest, at most `within`; whether all are there.
    pub(crate) fn gather(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while self.missing > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.receiver.recv_timeout(left) {
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
    pub(crate) fn wait(mut self) -> Result<Vec<A>, Unanswered> {
        if self.gather(ANSWER_WITHIN) && self.missing == 0 {
            Ok(self.given)
        } else {
            Err(Unanswered::TooSlow)
        }
    }
}
