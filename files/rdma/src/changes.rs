//! What the control thread asks the transport for. A response is dropped if its receiver is gone.

use std::net::SocketAddr;
use std::sync::mpsc::Sender;

/// A change of the listeners or of the devices.
#[derive(Debug)]
pub enum RdmaChange {
    /// Listen on an address. Connections are rejected until the listener is opened.
    Listen {
        /// A number that no other listener has.
        number: u32,
        /// The address.
        address: SocketAddr,
        /// The receiver of the response: the address with the assigned port.
        reply: Sender<Result<SocketAddr, rdma::Error>>,
    },
    /// Accept the connections of a listener.
    Open {
        /// Its number.
        number: u32,
        /// Answers when they are accepted.
        reply: Sender<()>,
    },
    /// Close a listener and its connections. Their requests continue.
    Close {
        /// Its number.
        number: u32,
        /// Answers when they are closed.
        reply: Sender<()>,
    },
    /// Release devices that were removed from the [`Domains`](rdma::Domains), with their connections,
    /// and watch those that were added.
    UpdateDevices {
        /// Answers when they are released.
        reply: Sender<()>,
    },
}
