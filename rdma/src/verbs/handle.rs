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

/// A pointer to an object of libibverbs or librdmacm, owned by its creator.
pub(super) struct Handle<T>(*mut T);

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// SAFETY: the objects of libibverbs and librdmacm are not bound to a thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: a handle only returns its address; each call of the libraries with it justifies that it
// may run concurrently with others.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> Handle<T> {
    /// The result of a function that returns a null pointer on failure.
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

/// Whether an object that a device accesses exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectState {
    Alive,
    Destroyed,
    /// The device refused to destroy it, with this error number, and may still access it.
    Refused(c_int),
}

impl ObjectState {
    /// The state after a verb that destroys an object of `device`.
    pub(super) fn after_destruction(result: c_int, device: &VerbsDevice) -> Self {
        let errno = io::Error::last_os_error().raw_os_error();
        match checked_code("destruction", result) {
            Ok(()) => Self::Destroyed,
            // The device was removed: the kernel has destroyed all its objects, and no call reaches
            // it any more.
            Err(Error::DeviceGone) if device.port_is_up(1).is_err() => Self::Destroyed,
            Err(_) if result == -1 => Self::Refused(errno.unwrap_or(libc::EIO)),
            Err(_) => Self::Refused(result.saturating_abs()),
        }
    }

    /// The state as a result.
    pub(super) fn outcome(self, step: &'static str) -> Result<(), Error> {
        match self {
            Self::Alive | Self::Destroyed => Ok(()),
            Self::Refused(code) => {
                let source = io::Error::from_raw_os_error(code);
                Err(match error_of(step, source) {
                    // The object still exists; only this call failed.
                    Error::DeviceGone => Error::Misuse("the device did not destroy its object"),
                    other => other,
                })
            }
        }
    }
}
