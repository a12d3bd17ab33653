//! Conversion of error numbers to errors of this crate, and non-blocking descriptors.
#![expect(
    unsafe_code,
    reason = "borrows descriptors that structures of rdma-core name by number"
)]

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::error::Error;

/// The error of a function that sets `errno`.
pub(super) fn last_error(step: &'static str) -> Error {
    error_of(step, io::Error::last_os_error())
}

/// The result of a function that returns 0 or sets `errno`.
pub(super) fn checked(step: &'static str, result: c_int) -> Result<(), Error> {
    if result == 0 {
        return Ok(());
    }
    Err(last_error(step))
}

/// The result of a verb that returns 0, an error number, or its negative.
pub(super) fn checked_code(step: &'static str, result: c_int) -> Result<(), Error> {
    match result {
        0 => Ok(()),
        // Several drivers return -1 and set errno instead of returning an error number.
        -1 => Err(last_error(step)),
        code => {
            let code = code.saturating_abs();
            Err(error_of(step, io::Error::from_raw_os_error(code)))
        }
    }
}

/// Converts an error. A removed device fails every call with one of these two error numbers.
pub(super) fn error_of(step: &'static str, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::EIO | libc::ENODEV) => Error::DeviceGone,
        _ => Error::System { step, source },
    }
}

/// Whether this is the error of a non-blocking call that would have to wait.
pub(super) fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Makes a descriptor non-blocking.
pub(super) fn set_nonblocking(descriptor: BorrowedFd<'_>) -> Result<(), Error> {
    let set =
        fcntl_getfl(descriptor).and_then(|flags| fcntl_setfl(descriptor, flags | OFlags::NONBLOCK));
    set.map_err(|errno| Error::System {
        step: "fcntl(O_NONBLOCK)",
        source: errno.into(),
    })
}

/// The descriptor that an object of rdma-core names by number.
///
/// # Safety
/// The object, and with it the descriptor, stays open for `'a`.
pub(super) unsafe fn descriptor_of<'a>(number: c_int) -> BorrowedFd<'a> {
    // SAFETY: the caller's promise; the libraries never create an object with descriptor -1.
    unsafe { BorrowedFd::borrow_raw(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_of_either_sign_are_accepted() {
        assert!(checked_code("x", 0).is_ok());
        for code in [libc::EINVAL, -libc::EINVAL] {
            let Err(Error::System { step, source }) = checked_code("x", code) else {
                panic!("{code}");
            };
            assert_eq!((step, source.raw_os_error()), ("x", Some(libc::EINVAL)));
        }
    }

    #[test]
    fn removed_device_is_reported_as_gone() {
        for code in [libc::EIO, libc::ENODEV] {
            assert!(matches!(checked_code("x", code), Err(Error::DeviceGone)));
        }
    }
}
