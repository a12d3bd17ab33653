//! Pointers to the libraries' objects.
#![expect(
    unsafe_code,
    reason = "says that pointers to objects of rdma-core may go between threads"
)]

use std::fmt;

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
