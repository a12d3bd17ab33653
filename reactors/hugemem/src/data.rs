//! The data of a completed read: an owned slice or a borrowed range.

use std::ops::Deref;

use crate::{Borrow, Lease};

/// The bytes of a completed read, accessible as a slice in both cases.
#[derive(Debug)]
pub enum Data {
    /// Bytes in an owned slice of the arena.
    Lease(Lease),
    /// Bytes of a RAM device, borrowed until dropped.
    Borrow(Borrow),
}

impl Deref for Data {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Data::Lease(lease) => lease,
            Data::Borrow(borrow) => borrow,
        }
    }
}

impl From<Lease> for Data {
    fn from(lease: Lease) -> Data {
        Data::Lease(lease)
    }
}

impl From<Borrow> for Data {
    fn from(borrow: Borrow) -> Data {
        Data::Borrow(borrow)
    }
}
