//! Control messages from the control thread to an object with a part on every reactor: one ring to
//! each reactor, and responses over a channel.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reactors::ReactorHandle;
use reactors::ring::{self, Receiver, Sender};

use crate::event_loop::EventLoop;

mod ports;

pub use ports::PortMessages;

/// Messages that may be in flight to one reactor.
const CONTROL_MESSAGES_MAX: usize = 256;
/// A reactor that has not responded within this time is stuck: its turns take microseconds, and
/// opening a device's queue takes milliseconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A reactor did not process a message.
#[derive(Debug, thiserror::Error)]
pub enum NoResponse {
    /// Its ring is full.
    #[error("reactor {reactor} accepts no more messages: it has ended or is stuck")]
    Full {
        /// The reactor's number.
        reactor: usize,
    },
    /// Not all reactors have responded in time.
    #[error("a reactor has not answered within {RESPONSE_TIMEOUT:?}: it has ended or is stuck")]
    TooSlow,
}

/// Rings for messages to all reactors. One thread at a time sends.
pub(crate) struct MessageRings<T>(Mutex<Vec<Sender<T>>>);

impl<T: Send> MessageRings<T> {
    /// Creates the rings. Returns the receiver of each reactor.
    pub(crate) fn new(reactors: usize) -> (Self, Vec<Receiver<T>>) {
        let rings = (0..reactors).map(|_| ring::channel(CONTROL_MESSAGES_MAX));
        let (senders, receivers) = rings.unzip();
        (Self(Mutex::new(senders)), receivers)
    }

    /// Makes every message wake its reactor from now on.
    pub(crate) fn set_wakers(&self, handles: &[ReactorHandle]) {
        let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (sender, handle) in senders.iter_mut().zip(handles) {
            sender.attach(handle.waker().clone());
        }
    }

    /// Sends a message to one reactor.
    ///
    /// # Errors
    /// [`NoResponse::Full`].
    pub(crate) fn send(&self, reactor: usize, message: T) -> Result<(), NoResponse> {
        let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = senders.get_mut(reactor).map(|sender| sender.send(message));
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(NoResponse::Full { reactor }),
        }
    }

    /// Sends every reactor a message, which `make` creates from the sender of its response.
    ///
    /// # Errors
    /// [`NoResponse::Full`]; earlier reactors have received their messages.
    pub(crate) fn send_all<A>(
        &self,
        make: impl Fn(mpsc::Sender<A>) -> T,
    ) -> Result<PendingResponses<A>, NoResponse> {
        self.send_each(|_, reply| make(reply))
    }

    /// Like [`send_all`](Self::send_all); `make` also gets the number of the reactor.
    fn send_each<A>(
        &self,
        mut make: impl FnMut(usize, mpsc::Sender<A>) -> T,
    ) -> Result<PendingResponses<A>, NoResponse> {
        let reactors = {
            let senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            senders.len()
        };
        let (sender, receiver) = mpsc::channel();
        for reactor in 0..reactors {
            self.send(reactor, make(reactor, sender.clone()))?;
        }
        Ok(PendingResponses {
            receiver,
            missing: reactors,
            received: Vec::new(),
        })
    }

    /// Like [`send_all`](Self::send_all), and waits for the responses.
    ///
    /// # Errors
    /// [`NoResponse`].
    pub(crate) fn request_all<A>(
        &self,
        event_loop: &mut dyn EventLoop,
        make: impl Fn(mpsc::Sender<A>) -> T,
    ) -> Result<Vec<A>, NoResponse> {
        self.send_all(make)?.wait(event_loop)
    }

    /// Sends every reactor a message of its own, and waits for the responses.
    ///
    /// # Errors
    /// [`NoResponse`].
    pub(crate) fn request_each<A>(
        &self,
        event_loop: &mut dyn EventLoop,
        make: impl FnMut(usize, mpsc::Sender<A>) -> T,
    ) -> Result<Vec<A>, NoResponse> {
        self.send_each(make)?.wait(event_loop)
    }

    /// Sends a message to one reactor and waits for its response.
    ///
    /// # Errors
    /// [`NoResponse`].
    pub(crate) fn ask<A>(
        &self,
        reactor: usize,
        event_loop: &mut dyn EventLoop,
        make: impl FnOnce(mpsc::Sender<A>) -> T,
    ) -> Result<A, NoResponse> {
        let (sender, receiver) = mpsc::channel();
        self.send(reactor, make(sender))?;
        let replies = PendingResponses {
            receiver,
            missing: 1,
            received: Vec::new(),
        };
        let received = replies.wait(event_loop)?.pop();
        received.ok_or(NoResponse::TooSlow)
    }
}

/// Pending responses.
pub struct PendingResponses<A> {
    receiver: mpsc::Receiver<A>,
    missing: usize,
    received: Vec<A>,
}

impl<A> PendingResponses<A> {
    /// No responses.
    #[must_use]
    pub fn none() -> Self {
        Self {
            receiver: mpsc::channel().1,
            missing: 0,
            received: Vec::new(),
        }
    }

    /// Receives the responses that are available or arrive within a pause. Returns whether no more
    /// will arrive.
    pub fn poll_responses(&mut self, event_loop: &dyn EventLoop) -> bool {
        while self.missing > 0 {
            match self.receiver.recv_timeout(event_loop.pause()) {
                Ok(reply) => {
                    self.received.push(reply);
                    self.missing -= 1;
                }
                Err(RecvTimeoutError::Timeout) => return false,
                // A reactor that ended has dropped its message: there is nothing to wait for.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        true
    }

    /// Waits for all responses.
    ///
    /// # Errors
    /// [`NoResponse::TooSlow`].
    pub fn wait(mut self, event_loop: &mut dyn EventLoop) -> Result<Vec<A>, NoResponse> {
        let deadline = event_loop.now() + RESPONSE_TIMEOUT;
        while !self.poll_responses(event_loop) {
            if event_loop.now() >= deadline {
                return Err(NoResponse::TooSlow);
            }
            event_loop.run_once();
        }
        if self.missing > 0 {
            return Err(NoResponse::TooSlow);
        }
        Ok(self.received)
    }
}
