//! The system calls of TLS in the kernel.

#![expect(
    unsafe_code,
    reason = "socket options and control messages of TLS, which no library here has"
)]

use std::ffi::{c_int, c_void};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::{mem, ptr};

use rustix::io::Errno;

/// The direction of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Send,
    Receive,
}

/// A control message with the type of a record: its content follows the header, whose size is a
/// multiple of the alignment of control messages.
#[repr(C)]
struct RecordType {
    header: libc::cmsghdr,
    code: u8,
}

/// The length of such a message, without the padding behind it.
const RECORD_TYPE_LEN: usize = mem::offset_of!(RecordType, code) + 1;

const _: () = assert!(mem::offset_of!(RecordType, code) == mem::size_of::<libc::cmsghdr>());
const _: () = assert!(mem::size_of::<libc::cmsghdr>().is_multiple_of(mem::size_of::<usize>()));

impl RecordType {
    fn new(kind: c_int, code: u8) -> Self {
        let header = libc::cmsghdr {
            cmsg_len: RECORD_TYPE_LEN,
            cmsg_level: libc::SOL_TLS,
            cmsg_type: kind,
        };
        Self { header, code }
    }

    /// The type in it after a receive that has filled `len` bytes of it.
    fn received(&self, len: usize) -> Option<u8> {
        let is_type = self.header.cmsg_level == libc::SOL_TLS
            && self.header.cmsg_type == libc::TLS_GET_RECORD_TYPE;
        let is_whole = len >= RECORD_TYPE_LEN && self.header.cmsg_len >= RECORD_TYPE_LEN;
        (is_type && is_whole).then_some(self.code)
    }
}

fn check(result: c_int) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

fn last_error() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Puts TLS above the socket's TCP.
pub(crate) fn enable(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    set_option(socket, libc::SOL_TCP, libc::TCP_ULP, b"tls")
}

/// Sets the key of a direction. The kernel checks the length against the cipher.
pub(crate) fn set_crypto_info(
    socket: BorrowedFd<'_>,
    direction: Direction,
    info: &[u8],
) -> Result<(), Errno> {
    let name = match direction {
        Direction::Send => libc::TLS_TX,
        Direction::Receive => libc::TLS_RX,
    };
    set_option(socket, libc::SOL_TLS, name, info)
}

fn set_option(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(value.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: the descriptor is open, and the kernel reads `length` bytes of `value` during the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast::<c_void>(),
            length,
        )
    })
}

/// Receives into `buffers`. Returns the number of bytes, and the type of the record, if the kernel
/// tells it.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffers: &mut [IoSliceMut<'_>],
) -> Result<(usize, Option<u8>), Errno> {
    let mut control = RecordType::new(0, 0);
    let mut message = empty_message();
    // An IoSliceMut has the layout of an iovec.
    message.msg_iov = buffers.as_mut_ptr().cast::<libc::iovec>();
    message.msg_iovlen = buffers.len();
    message.msg_control = ptr::from_mut(&mut control).cast::<c_void>();
    message.msg_controllen = mem::size_of::<RecordType>();
    let bytes = loop {
        // SAFETY: the descriptor is open; the message refers to `buffers` and `control`, which are
        // borrowed mutably and outlive the call.
        let received =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        match usize::try_from(received) {
            Ok(bytes) => break bytes,
            Err(_) => match last_error() {
                Errno::INTR => {}
                errno => return Err(errno),
            },
        }
    };
    Ok((bytes, control.received(message.msg_controllen)))
}

/// Sends `bytes` as a record of a type. Returns the number of bytes.
pub(crate) fn send_record(
    socket: BorrowedFd<'_>,
    record_type: u8,
    bytes: &[u8],
) -> Result<usize, Errno> {
    let mut control = RecordType::new(libc::TLS_SET_RECORD_TYPE, record_type);
    let mut piece = libc::iovec {
        // The kernel only reads it.
        iov_base: bytes.as_ptr().cast_mut().cast::<c_void>(),
        iov_len: bytes.len(),
    };
    let mut message = empty_message();
    message.msg_iov = &mut piece;
    message.msg_iovlen = 1;
    message.msg_control = ptr::from_mut(&mut control).cast::<c_void>();
    message.msg_controllen = mem::size_of::<RecordType>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: the descriptor is open; the message refers to `piece`, `bytes` and `control`, which
        // outlive the call, and the kernel writes to none of them.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) };
        match usize::try_from(sent) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => match last_error() {
                Errno::INTR => {}
                errno => return Err(errno),
            },
        }
    }
}

fn empty_message() -> libc::msghdr {
    // SAFETY: a message header of zeroes is valid and refers to nothing.
    unsafe { mem::zeroed() }
}
