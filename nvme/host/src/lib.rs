//! The NVMe over Fabrics initiator, over TCP and RDMA: the basis of measurements, of end-to-end
//! tests, and of a later client library.
//!
//! It owns connections, the commands in flight on them and their data. It polls and starts no
//! threads; only the control path ([`Controller`], [`discover`]) waits. The I/O path ([`IoQueue`])
//! does not allocate. The [`Transport`] is one of [`ConnectOptions`]; everything else is the same
//! for all. Over TCP, one system call sends everything that is ready, and data is received directly
//! into the reader's memory where possible. Over RDMA, generic over
//! [`rdma::Provider`](::rdma::Provider), one doorbell sends everything, and the target transfers
//! data to and from the reader's memory itself.
//!
//! The target is untrusted: invalid input from it results in a [`HostError`] that describes it.
//! Misbehaving hosts, for tests of a target, are in `nvme_host_testing`; they share the rules of
//! [`pdu`] and the [`RdmaManager`].
//!
//! Sources: NVM Express Base Specification 2.1 ("Base 2.1"), NVM Command Set 1.1 ("NVM 1.1"),
//! NVMe/TCP Transport 1.1 ("TCP 1.1"), NVMe/RDMA Transport 1.1 ("RDMA 1.1").

#![forbid(unsafe_code)]

mod admin;
mod authentication;
mod concatenation;
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

pub use crate::rdma::{Accepted, KeyMode, Manager as RdmaManager, RdmaOptions};
pub use authentication::ChapOptions;
pub use controller::{Controller, NamespaceInfo};
pub use discovery::{discover, read_log};
pub use error::{CommandStatus, HostError, ProtocolError, Rejection};
pub use link::{
    COMPLETIONS_MAX, Completion, Completions, ConnectionCounters, Refusal, Refused, Transfer,
};
pub use options::{ConnectOptions, HostIdentity};
pub use queue::{HostCompletion, HostCompletions, IoQueue, IoQueuePlan};
pub use tcp::pdu;
pub use tcp::protected::{HostKey, ProtectedSocket, TlsOptions};
pub use tcp::stream::{ByteStream, Socket, StreamResult};
pub use transport::Transport;
