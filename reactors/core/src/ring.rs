//! Bounded single-producer, single-consumer rings between two reactors.
//!
//! A full ring gives the value back: the sender decides whether to keep it for later. Sending to a
//! reactor that sleeps wakes it once a [`Waker`] is attached.

mod raw;

use std::fmt;

use crate::wake::Waker;

/// A ring that holds exactly `capacity` values of `T`. Allocates here and never again.
///
/// Only what may change threads goes through a ring:
///
/// ```compile_fail
/// let _ = reactors::ring::channel::<std::rc::Rc<u8>>(8);
/// ```
///
/// # Panics
/// If `capacity` is 0 or above 2^30.
#[must_use]
pub fn channel<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (producer, consumer) = raw::ring(capacity);
    (
        Sender {
            producer,
            waker: None,
        },
        Receiver { consumer },
    )
}

/// The writing end of a ring.
pub struct Sender<T> {
    producer: raw::Producer<T>,
    waker: Option<Waker>,
}

impl<T: Send> Sender<T> {
    /// Puts `value` in the ring and wakes the attached reactor if it sleeps.
    ///
    /// # Errors
    /// The value itself, when the ring is full.
    #[inline]
    pub fn send(&mut self, value: T) -> Result<(), T> {
        self.producer.push(value)?;
        if let Some(waker) = &self.waker {
            waker.wake();
        }
        Ok(())
    }

    /// From now on, sending wakes this reactor. Wakes it once, for what was sent before.
    pub fn attach(&mut self, waker: Waker) {
        waker.wake();
        self.waker = Some(waker);
    }

    /// At least this many sends will succeed; zero only when the ring is full right now.
    pub fn vacant(&mut self) -> usize {
        self.producer.vacant()
    }

    /// How many values fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.producer.capacity()
    }

    /// Whether the receiver was dropped: what is sent will not be read.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.producer.is_abandoned()
    }
}

/// The reading end of a ring.
pub struct Receiver<T> {
    consumer: raw::Consumer<T>,
}

impl<T: Send> Receiver<T> {
    /// The oldest value, or `None` when the ring is empty.
    #[inline]
    pub fn recv(&mut self) -> Option<T> {
        self.consumer.pop()
    }

    /// How many values wait right now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.consumer.len()
    }

    /// Whether nothing waits right now. A poller that owns a receiver returns this from
    /// [`Poller::prepare_sleep`](crate::Poller::prepare_sleep).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.consumer.len() == 0
    }

    /// How many values fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.consumer.capacity()
    }

    /// Whether the sender was dropped; when it was, nothing will come beyond what
    /// [`Receiver::recv`] still gives.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.consumer.is_abandoned()
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Sender")
            .field("capacity", &self.producer.capacity())
            .finish()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Receiver")
            .field("len", &self.consumer.len())
            .finish()
    }
}

#[cfg(test)]
mod tests;
