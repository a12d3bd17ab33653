//! NVMe over RDMA, controller side: listeners, connections and data transfer.
//!
//! Owns the queue pairs, shared receive queues and completion queues of one reactor, over any
//! [`rdma::Provider`]. The target core interprets commands; `nvme_fabrics` has the connection table
//! and the request slots. Implements the NVM Express RDMA Transport Specification, revision 1.1
//! ("RDMA 1.1"), and NVM Express Base, revision 2.1 ("Base 2.1").
//!
//! Data transfer: command capsules are received into one shared receive queue per device and
//! reactor, and in-capsule data directly into the lease from which the command is executed. The
//! target transfers all other data: with RDMA reads of host memory into a lease before it executes
//! a command, and with RDMA writes to host memory from a lease or borrowed device memory, posted
//! together with the response. Data is never copied, except in-capsule data that does not begin at
//! offset 0.
//!
//! Errors of hosts: invalid private data is rejected with the reason that RDMA 1.1 defines, and an
//! invalid descriptor fails its command. An error that permits no response (a capsule that is too
//! short or too long, more commands than entries, a key that the host's device refuses) is counted
//! and ends that connection only.
//!
//! Difference from `ARCHITECTURE.md` §4: data and response are posted together, which frees the
//! slot, since the host may reuse the command's place as soon as it has the response. Memory that
//! the device still reads is kept with the posted work. Only devices in the [`rdma::Domains`] are served:
//! those that support shared receive queues, and with which the control thread has registered the
//! memory, at start or later.

#![forbid(unsafe_code)]

mod config;
mod connection;
mod connections;
mod counters;
mod listeners;
mod plan;
mod poll_group;
mod posted;
mod private_data;
mod queue_pairs;
mod receives;
mod slot;
mod token;
mod transport;

pub use config::{
    CONNECTIONS_PER_REACTOR_MAX, DEVICES_MAX, IN_CAPSULE_BYTES_MAX, PortSettings, RECEIVES_MAX,
    RdmaConfig,
};
pub use connection::ConnectionAudit;
pub use connections::{ConnectionSet, Handoff, SetParts};
pub use counters::RdmaCounters;
pub use listeners::{ListenAddress, Listeners};
pub use plan::{Unfit, check_fitness, queue_depth_max};
pub use transport::{Message, PortMessage, RdmaTransport};
