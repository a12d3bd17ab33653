//! NFSv4.1 and 4.2 over RDMA on one reactor: RPC-over-RDMA version 1 (RFC 8166, RFC 8267).
//!
//! Owns the connections with their queue pairs; `files_service` executes the requests and moves
//! their data between memory and devices. The server issues all RDMA: it writes the data of a READ
//! from leases, or from the memory of a RAM device, into memory that the client has offered, and
//! reads the data of a WRITE from memory of the client into the lease from which a device takes
//! them. Only headers, requests and replies, and data of messages without chunks, are copied.
//!
//! A client that violates the protocol, offers a wrong key or does not take its replies loses its
//! connection; its requests continue, because their replies belong to its session.

#![forbid(unsafe_code)]

mod changes;
mod connection;
mod context;
mod counters;
mod endpoint;
pub mod limits;
mod messages;
mod poller;
mod posted;
mod remote;
mod reply;
mod service;

pub use changes::RdmaChange;
pub use counters::RdmaCounters;
pub use endpoint::Endpoint;
pub use poller::RdmaFilePoller;
pub use service::{RdmaFileOptions, RdmaFileService};
