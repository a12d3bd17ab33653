//! An s2n-tls connection over buffers in memory.
//!
//! s2n-tls reads and writes by callbacks with a pointer to their context. The buffers behind that
//! pointer belong to [`Piped`] together with the connection, and are dropped after it.

#![expect(
    unsafe_code,
    reason = "s2n-tls has no interface for buffers in memory: its callbacks get raw pointers"
)]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use s2n_tls::connection::Connection;
use s2n_tls::error::Error;

/// The error number that tells s2n-tls to continue later. It is the same on all Linux platforms.
const WOULD_BLOCK: errno::Errno = errno::Errno(11);

/// Bytes to and from the peer. The mutex is only ever locked by the thread that drives the
/// connection, for a copy; it makes the connection movable to another thread.
#[derive(Debug, Default)]
struct Buffers {
    received: Vec<u8>,
    /// Bytes of `received` that s2n-tls has read.
    read: usize,
    sent: Vec<u8>,
}

/// A connection with its buffers.
#[derive(Debug)]
pub(crate) struct Piped {
    // The connection has a pointer to the buffers, so it is declared, and dropped, first.
    connection: Connection,
    buffers: Arc<Mutex<Buffers>>,
}

impl Piped {
    /// Connects `connection` with new buffers.
    pub(crate) fn new(mut connection: Connection) -> Result<Self, Error> {
        let buffers = Arc::<Mutex<Buffers>>::default();
        let context = Arc::as_ptr(&buffers).cast_mut().cast::<c_void>();
        connection.set_receive_callback(Some(receive))?;
        connection.set_send_callback(Some(send))?;
        // SAFETY: The context must live as long as the connection. `Self` owns a reference to it, and
        // is the only place where this connection is; fields are dropped in the order of their
        // declaration, so the connection is dropped before the reference.
        unsafe { connection.set_receive_context(context) }?;
        // SAFETY: As above.
        unsafe { connection.set_send_context(context) }?;
        Ok(Self {
            connection,
            buffers,
        })
    }

    /// The connection, for its results. It is never lent mutably, so that it cannot be exchanged for
    /// one that would outlive these buffers.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Continues the handshake.
    pub(crate) fn negotiate(&mut self) -> Poll<Result<(), Error>> {
        self.connection.poll_negotiate().map_ok(|_| ())
    }

    /// Writes the alert of an error.
    pub(crate) fn send_alert(&mut self) {
        // If s2n-tls cannot, the peer sees the end of the connection only.
        let _ = self.connection.poll_shutdown_send();
    }

    /// Gives the connection bytes to read.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        let mut buffers = lock(&self.buffers);
        let read = std::mem::take(&mut buffers.read);
        buffers.received.drain(..read);
        buffers.received.extend_from_slice(bytes);
    }

    /// Whether the connection has read everything.
    pub(crate) fn has_read_all(&self) -> bool {
        let buffers = lock(&self.buffers);
        buffers.read == buffers.received.len()
    }

    /// What the connection has written since the last call.
    pub(crate) fn take_sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.buffers).sent)
    }
}

fn lock(buffers: &Mutex<Buffers>) -> MutexGuard<'_, Buffers> {
    buffers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies received bytes to where s2n-tls wants them.
///
/// # Safety
///
/// `context` is that of [`Piped::new`], and `destination` is writable for `len` bytes.
unsafe extern "C" fn receive(context: *mut c_void, destination: *mut u8, len: u32) -> c_int {
    // SAFETY: The context points to the buffers of a `Piped`, which outlive its connection. They are
    // only accessed by shared references.
    let buffers = unsafe { &*context.cast_const().cast::<Mutex<Buffers>>() };
    let mut buffers = lock(buffers);
    let unread = &buffers.received[buffers.read..];
    let bytes = unread.len().min(len as usize);
    if bytes == 0 {
        errno::set_errno(WOULD_BLOCK);
        return -1;
    }
    // SAFETY: `bytes` is not longer than either side, and s2n-tls's buffer is not part of ours.
    unsafe { std::ptr::copy_nonoverlapping(unread.as_ptr(), destination, bytes) };
    buffers.read += bytes;
    bytes as c_int
}

/// Takes bytes from s2n-tls.
///
/// # Safety
///
/// `context` is that of [`Piped::new`], and `source` is readable for `len` bytes.
unsafe extern "C" fn send(context: *mut c_void, source: *const u8, len: u32) -> c_int {
    if len == 0 {
        return 0;
    }
    // SAFETY: As in `receive`.
    let buffers = unsafe { &*context.cast_const().cast::<Mutex<Buffers>>() };
    // SAFETY: s2n-tls passes `len` readable bytes, which it does not change during the call.
    let bytes = unsafe { std::slice::from_raw_parts(source, len as usize) };
    lock(buffers).sent.extend_from_slice(bytes);
    c_int::try_from(len).unwrap_or(c_int::MAX)
}
