//! RDMA verbs behind one safe trait: devices, memory, queues and connections.
//!
//! The NVMe transports are generic over [`Provider`]. It has two implementations: real verbs with
//! the connection manager, and an in-process fabric that copies bytes between protection domains
//! and injects faults (crate `rdma_testing`, which also has the conformance suite that both run).
//!
//! This crate owns devices, protection domains, memory registrations, completion queues, shared
//! receive queues, queue pairs and the objects of the connection manager. An object keeps the
//! objects that it was created from alive. The crate does not know NVMe, does not wait and does not
//! own data buffers: the poster of a work request keeps its memory until it has received the
//! completion.
//!
//! # Memory
//!
//! A work request can access registered memory only: the device checks key, bounds and rights of
//! every access. Parts of a [`hugemem::Region`] can be registered by safe code; any other memory
//! needs an `unsafe` promise, [`MemoryRange::foreign`]. Types limit the memory that a work request
//! may name: a [`Sge`] is made of memory that the program does not refer to while it is posted.
//!
//! # Order of calls on one connection
//!
//! Passive side: [`EventChannel::listen`], [`Event::ConnectRequest`],
//! [`ConnectRequest::into_connection`] on the channel of the reactor that serves the connection,
//! [`Connection::create_queue_pair`], post receives, [`Connection::accept`],
//! [`ConnectionEvent::Established`].
//!
//! Active side: [`EventChannel::connection`], [`Connection::resolve_address`],
//! [`Connection::resolve_route`], [`Connection::create_queue_pair`], post receives,
//! [`Connection::connect`], `Established`.
//!
//! Either side: [`Connection::disconnect`], [`ConnectionEvent::Disconnected`] on both sides; the
//! work of the queue pair is flushed, and all objects are dropped.

mod cache;
mod completion;
mod connection;
mod device;
mod device_events;
mod domains;
mod error;
mod memory;
mod provider;
mod registered;
mod request;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use cache::{CacheConfig, CacheCounters, RegisteredRange, RegistrationCache};
pub use completion::{CompletionFlags, CompletionOpcode, CompletionStatus, WorkCompletion};
pub use connection::{
    ACCEPT_PRIVATE_DATA_MAX, CONNECT_PRIVATE_DATA_MAX, ConnectParameters, ConnectionEvent, Event,
    PRIVATE_DATA_MAX, PrivateData, REJECT_PRIVATE_DATA_MAX, RNR_RETRY_FOREVER, RejectReason, Token,
};
pub use device::{
    DeviceEvent, DeviceIndex, DeviceLimits, QueuePairCapacity, QueuePairFault, QueuePairState,
    Transport,
};
pub use device_events::{DeviceEvents, DeviceUser};
pub use domains::{DeviceError, Domains, FitnessCheck, Registered, Unfit};
pub use error::{Error, FlushError, PostError, Unavailable};
pub use memory::{Access, DeviceRange, MemoryRange};
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
