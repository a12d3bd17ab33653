//! NVMe over TCP, controller side: listeners, connections and data transfer.
//!
//! Owns the sockets, receive buffers and streams of one reactor. The target core interprets
//! commands; `nvme_fabrics` has the connection table and the request slots. Implements the NVM
//! Express NVMe/TCP Transport Specification, revision 1.1.

#![forbid(unsafe_code)]

mod acceptor;
mod config;
mod connection;
mod connections;
mod counters;
mod digest;
mod handshakes;
mod initialisation;
mod kernel_protected;
mod listeners;
mod network;
mod protected;
mod receive;
mod receive_buffers;
mod slot;
mod socket_stream;
mod stream;
mod termination;
mod tls;
mod transmit;
mod transport;

pub use acceptor::{Acceptor, AcceptorPort, AcceptorTls};
pub use config::{
    CONNECTIONS_PER_REACTOR_MAX, DigestPolicy, IN_CAPSULE_BYTES_MAX, PortSettings, TcpConfig,
};
pub use connection::{ConnectionAudit, RestoreError};
pub use connections::{Arrivals, BusyConnections, ConnectionSet};
pub use counters::TcpCounters;
pub use initialisation::InitialisationTerms;
pub use network::{Accepted, Interest, Network, Ready, Sockets};
pub use protected::Protected;
pub use socket_stream::SocketStream;
pub use stream::{ByteStream, TcpSocket, Transferred};
pub use tls::{GeneratedTlsKeys, SharedTlsKeys, TlsCounters, TlsKeys, TlsPolicy, TlsRecords};
pub use transport::{
    Exported, Handoff, HandoverMessage, NotReady, PassedConnection, PortMessage, RestoreFailure,
    TcpTransport,
};
