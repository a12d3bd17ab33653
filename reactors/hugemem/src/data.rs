//! What a completed read carries: a slice that is owned, or one that is lent.

use std::ops::Deref;

use crate::{Lease, Loan};

/// The bytes of a completed read, readable as a slice in either case.
#[derive(Debug)]
pub enum Data {
    /// Bytes in a slice of the arena that the holder owns.
    Lease(Lease),
    /// Bytes of a RAM device, lent until they are dropped.
    Loan(Loan),
}

impl Deref for Data {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Data::Lease(lease) => lease,
            Data::Loan(loan) => loan,
        }
    }
}

impl From<Lease> for Data {
    fn from(lease: Lease) -> Data {
        Data::Lease(lease)
    }
}

impl From<Loan> for Data {
    fn from(loan: Loan) -> Data {
        Data::Loan(loan)
    }
}
