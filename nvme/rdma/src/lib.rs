//! NVMe over RDMA, the controller's side: listeners, connections and the movement of data.
//!
//! Owns queue pairs, shared receive queues, completion queues and request slots of one reactor,
//! over any [`rdma::Provider`]. Refuses to decide what a command means: that is the target core's.
//! Follows the NVM Express RDMA Transport Specification, revision 1.1 ("RDMA 1.1"), and NVM Express
//! Base, revision 2.1 ("Base 2.1").
//!
//! What moves, by whom: command capsules arrive in one shared receive queue per device and reactor,
//! their data straight in the buffer that the command is executed from. All other data the target
//! moves itself: RDMA reads of the host's memory into a lease before a command is executed, RDMA
//! writes to it from where the data lies (a lease, or memory that a RAM device lends) with the
//! response behind them in the same post. This program copies none of it, save in-capsule data that
//! does not begin at offset 0.
//!
//! What the outside world gets that is wrong: private data are answered with the reject that RDMA
//! 1.1 names, descriptors with their NVMe status, and what leaves no way to answer (a capsule that
//! is too short or too long, more commands than entries, a key that the host's device refuses) ends
//! the connection, counted, with the others unharmed.
//!
//! Differs from the life of a request in `ARCHITECTURE.md` §4: data and response are posted
//! together, and with that the request's slot is free, since the host may reuse the command's place
//! as soon as it has the response; what the device still reads is kept with what is posted. Serves
//! the devices that were there at the start and that have shared receive queues: one that comes or
//! returns later is served after a restart.

#![forbid(unsafe_code)]

mod config;
mod connection;
mod connections;
mod counters;
mod domains;
mod listeners;
mod plan;
mod posted;
mod private_data;
mod queue_pairs;
mod receives;
mod share;
mod slot;
mod token;
mod transport;

pub use config::{
    CONNECTIONS_PER_REACTOR_MAX, DEVICES_MAX, IN_CAPSULE_BYTES_MAX, PortSettings, RECEIVES_MAX,
    RdmaConfig,
};
pub use connections::{ConnectionSet, Handoff, SetParts};
pub use counters::RdmaCounters;
pub use domains::{DeviceError, Domains, Registered};
pub use listeners::Listeners;
pub use plan::{Unfit, queue_depth_max};
pub use transport::{Message, Order, RdmaTransport};
