//! The receive buffers of a reactor, lent to one connection after the other.
//!
//! A connection has one while it receives and gives it back with nothing but the beginning of a
//! header left, so that one that is idle costs no buffer. Only in-capsule data that has to wait for
//! a lease stays in the buffer that it came in: a few more are kept for that. Where none of these is
//! left, connections take no more off their streams than they can keep themselves
//! ([`REST_BYTES_MAX`]), so there is always one to receive into.

use arrayvec::ArrayVec;

use crate::config::{RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS};
use crate::receive::REST_BYTES_MAX;

const _: () = assert!(RECEIVE_BUFFERS > 1 && RECEIVE_BUFFER_BYTES >= 2 * REST_BYTES_MAX);

/// The buffers that no connection has, the one used last in front.
#[derive(Debug)]
pub(crate) struct ReceiveBuffers {
    free: ArrayVec<Box<[u8]>, RECEIVE_BUFFERS>,
}

impl ReceiveBuffers {
    /// All of a reactor's. Memory that was never received into is not touched.
    pub(crate) fn new() -> Self {
        let buffer = || vec![0; RECEIVE_BUFFER_BYTES].into_boxed_slice();
        Self {
            free: std::iter::repeat_with(buffer)
                .take(RECEIVE_BUFFERS)
                .collect(),
        }
    }

    /// One buffer; there is one as long as those who keep theirs heeded
    /// [`room_max`](Self::room_max).
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Box<[u8]>> {
        self.free.pop()
    }

    #[inline]
    pub(crate) fn give_back(&mut self, buffer: Box<[u8]>) {
        self.free.push(buffer);
    }

    /// Bytes that a connection which has a buffer with `buffered` bytes in it may receive.
    #[inline]
    pub(crate) fn room_max(&self, buffered: usize) -> usize {
        if self.free.is_empty() {
            REST_BYTES_MAX - buffered.min(REST_BYTES_MAX)
        } else {
            usize::MAX
        }
    }
}
