//! A polled driver for NVMe drives that belong to this program.
#![forbid(unsafe_code)]

pub mod backing;
#[cfg(any(test, feature = "emulated"))]
pub mod emulated;
