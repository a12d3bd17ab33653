//! An RDMA provider for tests: machines, devices and a wire in this process, and the suite that every
//! provider runs.
//!
//! [`fake`] implements [`rdma::Provider`] without hardware and injects faults. [`conformance`] states
//! the provider's contract as tests; the in-process fabric and real verbs both run it.

pub mod conformance;
pub mod fake;
