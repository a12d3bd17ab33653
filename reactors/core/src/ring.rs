//! Bounded single-producer, single-consumer rings between two reactors.
//!
//! A full ring returns the value, so the sender decides whether to keep it for later. A send to a
//! sleeping reactor wakes it if a [`Waker`] is attached.

mod raw;

use std::fmt;

use crate::wake::Waker;

/// Creates a ring with a capacity of exactly `capacity` values of `T`. Later operations do not
/// allocate.
///
/// Only `Send` types can be sent through a ring:
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
    /// Adds `value` to the ring and wakes the attached reactor if it sleeps.
    ///
    /// # Errors
    /// The value itself, if the ring is full.
    #[inline]
    pub fn send(&mut self, value: T) -> Result<(), T> {
        self.producer.push(value)?;
        if let Some(waker) = &self.waker {
            waker.wake();
        }
        Ok(())
    }

    /// From now on, sends wake this reactor. Also wakes it once now, for earlier sends.
    pub fn attach(&mut self, waker: Waker) {
        waker.wake();
        self.waker = Some(waker);
    }

    /// Number of sends that will at least succeed; zero only if the ring is full now.
    pub fn vacant(&mut self) -> usize {
        self.producer.vacant()
    }

    /// Capacity in values.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.producer.capacity()
    }

    /// Whether the receiver was dropped: values sent now are never read.
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
    /// Receives the oldest value, or `None` if the ring is empty.
    #[inline]
    pub fn recv(&mut self) -> Option<T> {
        self.consumer.pop()
    }

    /// Number of values in the ring now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.consumer.len()
    }

    /// Whether the ring is empty now. A poller that owns a receiver returns this from
    /// [`Poller::prepare_sleep`](crate::Poller::prepare_sleep).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.consumer.len() == 0
    }

    /// Capacity in values.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.consumer.capacity()
    }

    /// Whether the sender was dropped. Only the values that are in the ring can still be received
    /// with [`Receiver::recv`] then.
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
