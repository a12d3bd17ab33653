//! Pointers to the libraries' objects.
#![expect(
    unsafe_code,
    reason = "says that pointers to objects of rdma-core may go between threads"
)]

use std::ffi::c_int;
use std::fmt;
use std::io;

use super::device::VerbsDevice;
use super::system::{checked_code, error_of};
use crate::error::Error;
use crate::provider::Device;

/// A pointer to an object of libibverbs or librdmacm, owned by whoever made it.
pub(super) struct Handle<T>(*mut T);

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// SAFETY: the objects of libibverbs and librdmacm belong to no thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: a handle only gives its address away; whoever calls the libraries with it argues there
// that the call may run beside others.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> Handle<T> {
    /// What a function that answers a null pointer on failure has made.
    pub(super) fn new(pointer: *mut T) -> Option<Self> {
        (!pointer.is_null()).then_some(Self(pointer))
    }

    #[inline]
    pub(super) fn get(self) -> *mut T {
        self.0
    }
}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// Whether an object that a device works with is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Alive,
    Destroyed,
    /// It was not destroyed, for this error number, and the device may still work with it.
    Refused(c_int),
}

impl Life {
    /// What a verb that destroys an object of `device` has left.
    pub(super) fn after_destruction(result: c_int, device: &VerbsDevice) -> Self {
        let errno = io::Error::last_os_error().raw_os_error();
        match checked_code("destruction", result) {
            Ok(()) => Self::Destroyed,
            // The device was removed: the kernel has destroyed everything on it, and no call
            // reaches it any more.
            Err(Error::DeviceGone) if device.port_is_up(1).is_err() => Self::Destroyed,
            Err(_) if result == -1 => Self::Refused(errno.unwrap_or(libc::EIO)),
            Err(_) => Self::Refused(result.saturating_abs()),
        }
    }

    /// The same as a result.
    pub(super) fn outcome(self, step: &'static str) -> Result<(), Error> {
        match self {
            Self::Alive | Self::Destroyed => Ok(()),
            Self::Refused(code) => {
                let source = io::Error::from_raw_os_error(code);
                Err(match error_of(step, source) {
                    // It is there: it is only that this call failed.
                    Error::DeviceGone => Error::Misuse("the device did not destroy its object"),
                    other => other,
                })
            }
        }
    }
}
