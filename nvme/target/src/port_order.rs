//! What a transport is asked to change about its listeners while it runs.

use std::sync::mpsc::Sender;

use crate::PortId;

/// An order to one reactor's part of a transport. Whoever asks hears of the end; it may have gone by
/// then.
///
/// `L` is what the transport listens by, `S` what it settles for the hosts of a port, and `A` what
/// it answers when it is to listen.
#[derive(Debug)]
pub enum PortOrder<L, S, A> {
    /// Take in connections as those of a port.
    Listen {
        /// Where they come from.
        listener: L,
        /// The port.
        port: PortId,
        /// Hears whether they do.
        answer: Sender<A>,
    },
    /// From now on hosts of these ports get this, and those of others the default.
    Settings {
        /// What hosts of each port get.
        ports: Vec<(PortId, S)>,
        /// Hears that it is so.
        answer: Sender<()>,
    },
    /// Take in no more connections of a port, and end those that there are.
    Close {
        /// The port.
        port: PortId,
        /// Hears that there is none any more.
        answer: Sender<()>,
    },
}
