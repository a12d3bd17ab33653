//! Real verbs: rdma-core's libibverbs and librdmacm behind [`Provider`].
//!
//! The libraries are loaded when [`Verbs::open`] is called, so a program with this module in it
//! starts without them. Devices are those of the connection manager: queues are made in the very
//! contexts that its connections use. A device that is removed is told by the events of connections
//! on it and by [`Device::next_event`](crate::Device::next_event), though not every driver makes
//! the descriptor readable for it. Whoever then drops all that is on it, and asks for
//! [`Provider::devices`] now and then, lets the removal finish, and finds it when it returns.
//!
//! Who may touch what at once: the libraries guard their objects against use from several threads,
//! with one gap, which is a connection manager's identifier whose event is being fetched. Fetching
//! may move its queue pair to another state. So each channel has a lock, which is held while an
//! event is fetched, taken apart and acknowledged, and by every call that names one of the
//! channel's identifiers. No event is ever left unacknowledged outside of that lock, which is what
//! lets an identifier be destroyed without waiting.
//!
//! What differs from the in-process fabric:
//! - The side that disconnects is told so when the peer has answered, which a peer that hangs does
//!   not do for about a minute. Its work is flushed at once; it need not wait to drop everything.
//! - A memory window can be bound once in a batch
//!   ([`PostError::NotPossible`](crate::PostError::NotPossible) beyond that).
//! - A registration that is dropped with a window still bound to it ends when the window is
//!   invalidated and another registration or window goes, or when the window goes.
//! - A request that the peer gave up is noticed when it is accepted.

mod address;
mod channel;
mod completion_queue;
mod connect_request;
mod connection;
mod device;
mod domain;
mod handle;
mod identifier;
mod layout;
mod library;
mod listener;
mod queue_pair;
mod receive_list;
mod registration;
mod send_list;
mod shared_receive_queue;
mod system;
mod table;
mod window;

use std::sync::Arc;

pub use channel::VerbsEventChannel;
pub use completion_queue::VerbsCompletionQueue;
pub use connect_request::VerbsConnectRequest;
pub use connection::VerbsConnection;
pub use device::VerbsDevice;
pub use domain::VerbsDomain;
pub use listener::VerbsListener;
pub use queue_pair::VerbsQueuePair;
pub use registration::VerbsRegistration;
pub use shared_receive_queue::VerbsSharedReceiveQueue;
pub use window::VerbsWindow;

use crate::error::{Error, Unavailable};
use crate::provider::Provider;
use table::DeviceTable;

/// Real verbs. Clones share their devices.
#[derive(Clone, Debug)]
pub struct Verbs {
    devices: Arc<DeviceTable>,
}

impl Verbs {
    /// Loads the libraries. Devices are looked for by [`Provider::devices`] and by the connection
    /// manager, so ones that are plugged in later are found too.
    ///
    /// # Errors
    /// [`Unavailable::LibraryMissing`] and [`Unavailable::LibraryTooOld`].
    pub fn open() -> Result<Self, Unavailable> {
        Ok(Self {
            devices: Arc::new(DeviceTable::new(library::functions()?)),
        })
    }
}

impl Provider for Verbs {
    type Device = VerbsDevice;
    type Domain = VerbsDomain;
    type Registration = VerbsRegistration;
    type Window = VerbsWindow;
    type CompletionQueue = VerbsCompletionQueue;
    type SharedReceiveQueue = VerbsSharedReceiveQueue;
    type QueuePair = VerbsQueuePair;
    type EventChannel = VerbsEventChannel;
    type Listener = VerbsListener;
    type ConnectRequest = VerbsConnectRequest;
    type Connection = VerbsConnection;

    fn devices(&self) -> Result<Vec<VerbsDevice>, Error> {
        self.devices.refresh()
    }

    fn event_channel(&self) -> Result<VerbsEventChannel, Error> {
        VerbsEventChannel::new(Arc::clone(&self.devices))
    }
}
