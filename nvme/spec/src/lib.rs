//! Structures that NVM Express defines for the wire, for registers and for data pages, for both
//! ends.
//!
//! Owns layouts, field positions, code values and their names, as plain little-endian types that
//! can be viewed in place (`zerocopy`). Contains no behaviour, does not allocate, and does not
//! panic on bytes of a peer.
//!
//! Conventions:
//! - Multi-byte fields are `zerocopy::little_endian` integers (alignment 1), so every type may be
//!   at any address of a buffer, and no byte order is converted by hand.
//! - Zero-based fields end in `_z`; the method without the suffix returns the count.
//! - Code values are open: a newtype over the integer with named constants, so unknown values are
//!   representable.
//! - `with_…`/`set_…` of a bit field assert that the value fits. Values of a peer are only read,
//!   never set.
//!
//! Sources: NVM Express Base Specification 2.1 ("Base 2.1"), NVM Command Set 1.1 ("NVM 1.1"), NVMe
//! over PCIe Transport 1.1 ("PCIe 1.1"), NVMe/TCP Transport 1.1 ("TCP 1.1"), NVMe/RDMA Transport
//! 1.1 ("RDMA 1.1").

#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
mod open_enum;

pub mod ascii;
pub mod authentication;
pub mod citations;
pub mod command;
pub mod completion;
pub mod event;
pub mod fabrics;
pub mod features;
pub mod identify;
pub mod log;
pub mod nqn;
pub mod prp;
pub mod rdma;
pub mod registers;
pub mod sgl;
pub mod status;
pub mod tcp;

pub use zerocopy::little_endian::{U16, U32, U64, U128};

pub use command::Sqe;
pub use completion::Cqe;
pub use status::Status;

/// A namespace identifier that addresses every namespace (Base 2.1 §3.2.1).
pub const NSID_BROADCAST: u32 = 0xffff_ffff;

/// Converts a count (1-based) to its zero-based field; `None` if it is zero or does not fit.
pub const fn zero_based_u16(count: u32) -> Option<u16> {
    match count {
        1..=0x1_0000 => Some((count - 1) as u16),
        _ => None,
    }
}
