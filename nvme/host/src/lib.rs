//! The NVMe over Fabrics initiator, over TCP and RDMA: the base of measurements, of end-to-end
//! tests, and of a later client library.
//!
//! Owns connections, the commands in flight on them and their data. Polled: nothing here starts a
//! thread, and only the control path ([`Controller`], [`discover`]) waits. The I/O path
//! ([`IoQueue`]) allocates nothing. Which [`Transport`] carries it is one of [`ConnectOptions`];
//! everything else is the same. Over TCP, everything that is ready leaves in one system call, and
//! data is received straight into the reader's memory as far as it can; over RDMA, generic over
//! [`rdma::Provider`](::rdma::Provider), everything leaves with one doorbell, and the target moves
//! data to and from the reader's memory itself.
//!
//! The target is part of the outside world: whatever it sends, the answer is a [`HostError`] that
//! says what was wrong. Hosts without these manners, for tests that are hostile to a target, are in
//! `nvme_host_testing`; they share the rules of [`pdu`] and the [`RdmaManager`].
//!
//! Sources: NVM Express Base Specification 2.1 ("Base 2.1"), NVM Command Set 1.1 ("NVM 1.1"),
//! NVMe/TCP Transport 1.1 ("TCP 1.1"), NVMe/RDMA Transport 1.1 ("RDMA 1.1").

#![forbid(unsafe_code)]

mod admin;
mod controller;
mod deadline;
mod discovery;
mod error;
mod link;
mod options;
mod queue;
mod rdma;
mod slots;
mod tcp;
mod transport;

pub use crate::rdma::{Accepted, KeyUse, Manager as RdmaManager, RdmaOptions};
pub use controller::{Controller, NamespaceInfo};
pub use discovery::{discover, read_log};
pub use error::{CommandStatus, HostError, ProtocolError, Rejection};
pub use link::{
    COMPLETIONS_MAX, Completion, Completions, ConnectionCounters, Refusal, Refused, Transfer,
};
pub use options::{ConnectOptions, HostIdentity};
pub use queue::{HostCompletion, HostCompletions, IoQueue, IoQueuePlan};
pub use tcp::pdu;
pub use tcp::stream::{ByteStream, Moved, Socket};
pub use transport::Transport;
