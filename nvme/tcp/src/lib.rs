//! NVMe over TCP, the controller's side: listeners, connections and the movement of data.
//!
//! Owns sockets, receive buffers and request slots of one reactor. Refuses to decide what a command
//! means: that is the target core's. Follows the NVM Express NVMe/TCP Transport Specification,
//! revision 1.1.

#![forbid(unsafe_code)]

mod config;
mod connection;
mod connections;
mod counters;
mod digest;
mod network;
mod receive;
mod receive_buffers;
mod slot;
mod stream;
mod termination;
mod transmit;
mod transport;

pub use config::{
    CONNECTIONS_PER_REACTOR_MAX, DigestPolicy, IN_CAPSULE_BYTES_MAX, PortSettings, TcpConfig,
};
pub use connection::ConnectionAudit;
pub use connections::ConnectionSet;
pub use counters::TcpCounters;
pub use network::{Interest, Network, Ready, Sockets, Source};
pub use stream::{ByteStream, TcpSocket, Transferred};
pub use transport::{Handoff, Order, TcpTransport};
