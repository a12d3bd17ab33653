//! A polled driver for NVMe drives that belong to this program.
#![forbid(unsafe_code)]

pub mod backing;
