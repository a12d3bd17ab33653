//! Hosts for tests of a target: they send any valid or invalid bytes and receive every PDU or
//! message of the target.
//!
//! - [`pdu`]: NVMe/TCP PDUs without I/O: builds PDUs as bytes that a test may damage, and splits
//!   and checks a stream of bytes. For hosts in simulations, fuzzing and tests that move bytes
//!   themselves.
//! - [`steps`]: Connect and enabling a controller, for any host that can execute a command.
//! - [`tcp`]: a blocking client over a socket.
//! - [`rdma`]: a blocking client over any [`Provider`](::rdma::Provider).
//!
//! The rules of PDUs are those of `nvme_host::pdu`, which are based on `nvme_spec`.

#![forbid(unsafe_code)]

pub mod pdu;
pub mod rdma;
pub mod steps;
pub mod tcp;

pub use steps::{HostSteps, Names};
