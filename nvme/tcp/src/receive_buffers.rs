//! The receive buffers of a reactor, which its connections use in turn.
//!
//! A connection has a buffer while it receives. It returns the buffer when at most the beginning of
//! a header is left in it, so an idle connection occupies no buffer. Only in-capsule data that
//! waits for a lease stays in the buffer; spare buffers exist for this. If no spare buffer is left,
//! connections receive at most as many bytes as they can keep themselves ([`REST_BYTES_MAX`]), so
//! there is always a buffer to receive into. The same applies to the connections of a host that
//! keeps [`KEPT_BUFFERS_PER_HOST_MAX`] of the buffers.

use arrayvec::ArrayVec;
use hugemem::Account;

use crate::config::{KEPT_BUFFERS_PER_HOST_MAX, RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS};
use crate::receive::{REST_BYTES_MAX, Receiver};

const _: () = assert!(RECEIVE_BUFFERS > 1 && RECEIVE_BUFFER_BYTES >= 2 * REST_BYTES_MAX);

/// The buffers that no connection uses.
#[derive(Debug)]
pub(crate) struct ReceiveBuffers {
    /// The buffer to receive into; empty while a connection has it.
    current: Box<[u8]>,
    spare: ArrayVec<Box<[u8]>, { RECEIVE_BUFFERS - 1 }>,
    /// The accounts whose connections keep the other buffers.
    kept_by: ArrayVec<Account, { RECEIVE_BUFFERS - 1 }>,
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
            kept_by: ArrayVec::new(),
        }
    }

    /// Gives a buffer to a connection, unless it kept one.
    #[inline]
    pub(crate) fn lend(&mut self, receiver: &mut Receiver) {
        if !receiver.has_buffer() {
            receiver.attach(&mut self.current);
        }
        debug_assert!(receiver.has_buffer(), "there is always one to lend");
    }

    /// Takes a connection's buffer back, unless it contains more bytes than the connection can keep
    /// outside of it. A buffer that the connection keeps is charged to `account`.
    #[inline]
    pub(crate) fn take_back(&mut self, receiver: &mut Receiver, account: Account) {
        if !receiver.has_buffer() {
            return;
        }
        if receiver.keep_rest() {
            self.release(receiver, account);
        } else if self.current.is_empty() {
            // There is a spare buffer, since connections respect `room_max`.
            self.current = self.spare.pop().unwrap_or_default();
            self.kept_by.push(account);
        }
    }

    /// Takes a connection's buffer back and discards its contents.
    #[inline]
    pub(crate) fn release(&mut self, receiver: &mut Receiver, account: Account) {
        if self.current.is_empty() {
            receiver.release(&mut self.current);
        } else if receiver.has_buffer() {
            let mut kept = Box::default();
            receiver.release(&mut kept);
            self.spare.push(kept);
            let kept = self.kept_by.iter().position(|by| *by == account);
            debug_assert!(kept.is_some(), "{account:?} keeps no buffer");
            if let Some(kept) = kept {
                self.kept_by.swap_remove(kept);
            }
        }
    }

    /// Bytes that a connection of `account` may receive, if its buffer contains `buffered` bytes.
    #[inline]
    pub(crate) fn room_max(&self, buffered: usize, account: Account) -> usize {
        if self.kept_by.is_empty() {
            usize::MAX
        } else {
            self.room_beside_kept(buffered, account)
        }
    }

    #[cold]
    fn room_beside_kept(&self, buffered: usize, account: Account) -> usize {
        let kept = self.kept_by.iter().filter(|by| **by == account).count();
        if self.spare.is_empty() || kept >= KEPT_BUFFERS_PER_HOST_MAX {
            REST_BYTES_MAX - buffered.min(REST_BYTES_MAX)
        } else {
            usize::MAX
        }
    }
}
