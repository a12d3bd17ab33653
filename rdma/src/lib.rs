//! Verbs made safe: RDMA devices, memory, queues and connections behind one trait.
//!
//! [`Provider`] is what the NVMe transports are generic over. It has two implementations: real
//! verbs over the connection manager, and an in-process fabric that moves bytes between protection
//! domains and injects faults (feature `fake`). One suite runs on both (feature `conformance`).
//!
//! Owns: devices, protection domains, memory registrations, completion queues, shared receive
//! queues, queue pairs, the connection manager's objects, and the rule that children keep their
//! parents alive. Refuses: to know NVMe, to wait, to keep anybody's buffers. Whoever posts a work
//! request keeps its memory until the completion was seen.
//!
//! # Memory
//!
//! A work request can access registered memory only: the device checks key, bounds and rights of
//! every access. Parts of a [`hugemem::Region`] may be registered by anybody; any other memory takes
//! an `unsafe` promise, [`MemoryRange::foreign`]. What a work request may name is a matter of types:
//! a [`Sge`] is made of memory that nothing in the program refers to while it is posted.
//!
//! # Order of things on one connection
//!
//! The passive side: [`EventChannel::listen`], [`Event::ConnectRequest`],
//! [`ConnectRequest::into_connection`] on the channel of the reactor that shall serve it,
//! [`Connection::create_queue_pair`], receives posted, [`Connection::accept`],
//! [`ConnectionEvent::Established`]. The active side: [`EventChannel::connection`],
//! [`Connection::resolve_address`], [`Connection::resolve_route`],
//! [`Connection::create_queue_pair`], receives posted, [`Connection::connect`], `Established`.
//! Either side: [`Connection::disconnect`], [`ConnectionEvent::Disconnected`] on both, the queue
//! pair's work flushed, everything dropped.

mod cache;
mod completion;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod connection;
mod device;
mod error;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod memory;
mod provider;
mod registered;
mod request;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use cache::{CacheConfig, CacheCounters, Held, RegistrationCache};
pub use completion::{CompletionFlags, CompletionOpcode, CompletionStatus, WorkCompletion};
pub use connection::{
    ACCEPT_PRIVATE_DATA_MAX, CONNECT_PRIVATE_DATA_MAX, ConnectParameters, ConnectionEvent, Event,
    PRIVATE_DATA_MAX, PrivateData, REJECT_PRIVATE_DATA_MAX, RNR_RETRY_FOREVER, RejectReason, Token,
};
pub use device::{
    DeviceEvent, DeviceIndex, DeviceLimits, QueuePairCapacity, QueuePairFault, QueuePairState,
    Transport,
};
pub use error::{Error, FlushError, PostError, Unavailable};
pub use memory::{Access, MemoryRange};
pub use provider::{
    CompletionQueue, ConnectRequest, Connection, Device, Domain, EventChannel, Listener,
    MemoryWindow, Provider, QueuePair, QueuePairOptions, Registration, SharedReceiveQueue,
};
pub use registered::{DeviceMemory, DomainMemory, MemoryMap, OVERLAP_BYTES, SharedMemory};
pub use request::{
    Payload, ReceiveRequest, RemoteAddress, SGES_MAX, SendOperation, SendRequest, Sge, SgeList,
    WindowBinding,
};
#[cfg(feature = "verbs")]
pub use verbs::Verbs;
