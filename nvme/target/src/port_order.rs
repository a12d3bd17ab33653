//! Control messages that change the listeners of a transport at run time.

use std::sync::mpsc::Sender;

use crate::PortId;

/// A control message to one reactor's part of a transport. The transport reports completion to the
/// sender, which may have stopped listening.
///
/// `L` is a listener of the transport, `S` its settings for the hosts of a port, and `A` the result
/// of listening.
#[derive(Debug)]
pub enum PortOrder<L, S, A> {
    /// Accept connections on a port.
    Listen {
        /// The listener.
        listener: L,
        /// The port.
        port: PortId,
        /// Receives the result.
        answer: Sender<A>,
    },
    /// Apply these settings to the hosts of these ports, and the defaults to hosts of other ports.
    Settings {
        /// The settings for the hosts of each port.
        ports: Vec<(PortId, S)>,
        /// Receives the confirmation.
        answer: Sender<()>,
    },
    /// Accept no more connections on a port, and close the existing ones.
    Close {
        /// The port.
        port: PortId,
        /// Receives the confirmation that no connection is left.
        answer: Sender<()>,
    },
}
