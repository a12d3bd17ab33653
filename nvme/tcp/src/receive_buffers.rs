//! The receive buffers of a reactor, which its connections use in turn.
//!
//! A connection has a buffer while it receives. It returns the buffer when at most the beginning of
//! a header is left in it, so an idle connection occupies no buffer. Only in-capsule data that
//! waits for a lease stays in the buffer; spare buffers exist for this. If no spare buffer is left,
//! connections receive at most as many bytes as they can keep themselves
//! ([`PARTIAL_HEADER_BYTES_MAX`]), so there is always a buffer to receive into. The same applies to
//! the connections of a host that keeps [`HELD_BUFFERS_PER_HOST_MAX`] of the buffers.

use arrayvec::ArrayVec;
use hugemem::Account;

use crate::config::{HELD_BUFFERS_PER_HOST_MAX, RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS};
use crate::receive::{PARTIAL_HEADER_BYTES_MAX, Receiver};

const _: () = assert!(RECEIVE_BUFFERS > 1 && RECEIVE_BUFFER_BYTES >= 2 * PARTIAL_HEADER_BYTES_MAX);

/// The buffers that no connection uses.
#[derive(Debug)]
pub(crate) struct ReceiveBuffers {
    /// The buffer to receive into; empty while a connection has it.
    current: Box<[u8]>,
    spare: ArrayVec<Box<[u8]>, { RECEIVE_BUFFERS - 1 }>,
    /// The accounts whose connections keep the other buffers.
    held_by: ArrayVec<Account, { RECEIVE_BUFFERS - 1 }>,
}

impl ReceiveBuffers {
    /// All buffers of a reactor. Memory that is never received into is not touched.
    pub(crate) fn new() -> Self {
        let buffer = || vec![0; RECEIVE_BUFFER_BYTES].into_boxed_slice();
        Self {
            current: buffer(),
            spare: std::iter::repeat_with(buffer)
                .take(RECEIVE_BUFFERS - 1)
                .collect(),
            held_by: ArrayVec::new(),
        }
    }

    /// Gives a buffer to a connection, unless it kept one.
    #[inline]
    pub(crate) fn attach_buffer(&mut self, receiver: &mut Receiver) {
        if !receiver.has_buffer() {
            receiver.attach(&mut self.current);
        }
        debug_assert!(receiver.has_buffer(), "there is always one to lend");
    }

    /// Takes a connection's buffer back, unless it contains more bytes than the connection can keep
    /// outside of it. A buffer that the connection keeps is charged to `account`.
    #[inline]
    pub(crate) fn detach_buffer(&mut self, receiver: &mut Receiver, account: Account) {
        if !receiver.has_buffer() {
            return;
        }
        if receiver.save_partial_header() {
            self.release(receiver, account);
        } else if self.current.is_empty() {
            // There is a spare buffer, since connections respect `room_max`.
            self.current = self.spare.pop().unwrap_or_default();
            self.held_by.push(account);
        }
    }

    /// Takes a connection's buffer back and discards its contents.
    #[inline]
    pub(crate) fn release(&mut self, receiver: &mut Receiver, account: Account) {
        if self.current.is_empty() {
            receiver.release(&mut self.current);
        } else if receiver.has_buffer() {
            let mut held = Box::default();
            receiver.release(&mut held);
            self.spare.push(held);
            let held = self.held_by.iter().position(|by| *by == account);
            debug_assert!(held.is_some(), "{account:?} keeps no buffer");
            if let Some(held) = held {
                self.held_by.swap_remove(held);
            }
        }
    }

    /// Bytes that a connection of `account` may receive, if its buffer contains `buffered` bytes.
    #[inline]
    pub(crate) fn room_max(&self, buffered: usize, account: Account) -> usize {
        if self.held_by.is_empty() {
            usize::MAX
        } else {
            self.room_beside_held(buffered, account)
        }
    }

    #[cold]
    fn room_beside_held(&self, buffered: usize, account: Account) -> usize {
        let held = self.held_by.iter().filter(|by| **by == account).count();
        if self.spare.is_empty() || held >= HELD_BUFFERS_PER_HOST_MAX {
            PARTIAL_HEADER_BYTES_MAX - buffered.min(PARTIAL_HEADER_BYTES_MAX)
        } else {
            usize::MAX
        }
    }
}
