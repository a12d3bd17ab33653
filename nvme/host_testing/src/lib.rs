//! Hosts for tests of a target: they send whatever they are told to, right or wrong, and see every
//! PDU or message that comes back.
//!
//! - [`pdu`]: NVMe/TCP PDUs without I/O: built as bytes that a test may damage, and split from a
//!   stream of bytes and checked. For hosts in simulations, fuzzing and tests that move bytes
//!   themselves.
//! - [`steps`]: Connect and enabling a controller, for any host that can run a command.
//! - [`tcp`]: a blocking client over a socket.
//! - [`rdma`]: a blocking client over any [`Provider`](::rdma::Provider).
//!
//! The rules of PDUs are `nvme_host`'s own (`nvme_host::pdu`), which in turn are those of
//! `nvme_spec`.

#![forbid(unsafe_code)]

pub mod pdu;
pub mod rdma;
pub mod steps;
pub mod tcp;

pub use steps::{Names, Steps};
