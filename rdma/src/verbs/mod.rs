//! Real verbs: rdma-core's libibverbs and librdmacm behind [`Provider`].
//!
//! [`Verbs::open`] loads the libraries, so a program that contains this module starts without them.
//! Devices are those of the connection manager: queues are created in the same contexts that its
//! connections use. The removal of a device is reported by events of its connections and by
//! [`Device::next_event`](crate::Device::next_event), but not every driver makes the descriptor
//! readable for it. To let the removal finish, and to find the device when it returns, drop all its
//! objects and call [`Provider::devices`] from time to time.
//!
//! Thread safety: the libraries protect their objects against use from several threads, with one
//! gap, a connection manager's identifier whose event is being fetched. Fetching may change the
//! state of its queue pair. So each channel has a lock, which is held while an event is fetched,
//! converted and acknowledged, and during every call that names one of the channel's identifiers.
//! No event is ever left unacknowledged outside of that lock, so destroying an identifier does not
//! wait.
//!
//! Differences from the in-process fabric:
//! - The side that disconnects is notified when the peer has replied; a peer that hangs delays that
//!   by about a minute. The side's work is flushed immediately, and it may drop everything without
//!   waiting.
//! - A memory window can be bound once per batch
//!   ([`PostError::NotPossible`](crate::PostError::NotPossible) beyond that).
//! - A registration that is dropped with a window still bound to it ends when the window is
//!   dropped, or when the window is invalidated and another registration or window is dropped.
//! - A request that the peer abandoned is detected only when it is accepted.

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

use std::sync::{Arc, Mutex, PoisonError, Weak};

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

/// The devices of the process, as long as they are used.
static SHARED: Mutex<Weak<DeviceTable>> = Mutex::new(Weak::new());

/// Real verbs. Clones share their devices.
#[derive(Clone, Debug)]
pub struct Verbs {
    devices: Arc<DeviceTable>,
}

impl Verbs {
    /// Loads the libraries. All that are open in a process share their devices, as librdmacm shares
    /// its contexts: a removal that one notices is known to the others. [`Provider::devices`] and the connection manager look for devices
    /// later, so devices that are added later are found too.
    ///
    /// # Errors
    /// [`Unavailable::LibraryMissing`] and [`Unavailable::LibraryTooOld`].
    pub fn open() -> Result<Self, Unavailable> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(devices) = shared.upgrade() {
            return Ok(Self { devices });
        }
        let devices = Arc::new(DeviceTable::new(library::functions()?));
        *shared = Arc::downgrade(&devices);
        Ok(Self { devices })
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
