//! The NVMe/TCP initiator: the base of measurements, of end-to-end tests, and of a later client
//! library.
//!
//! Owns connections, the commands in flight on them and their data. Polled: nothing here starts a
//! thread, and only the control path ([`Controller`], [`discover`]) waits. The I/O path
//! ([`IoQueue`]) allocates nothing, sends everything that is ready in one system call and receives
//! straight into the reader's memory as far as it can.
//!
//! The target is part of the outside world: whatever it sends, the answer is a [`HostError`] that
//! says what was wrong. [`raw`] is a client without these manners, for tests that are hostile to a
//! target.
//!
//! Sources: NVM Express Base Specification 2.1 ("Base 2.1"), NVM Command Set 1.1 ("NVM 1.1"),
//! NVMe/TCP Transport 1.1 ("TCP 1.1").

#![forbid(unsafe_code)]

mod admin;
mod connection;
mod controller;
mod digest;
mod discovery;
mod error;
mod handshake;
mod inbox;
mod options;
mod queue;
pub mod raw;
mod receive;
mod sender;
mod slots;
mod stream;

pub use connection::{
    COMPLETIONS_MAX, Completion, Completions, ConnectionCounters, Refusal, Refused, Transfer,
};
pub use controller::{Controller, NamespaceInfo};
pub use discovery::{discover, read_log};
pub use error::{CommandStatus, HostError, ProtocolError};
pub use options::{ConnectOptions, HostIdentity};
pub use queue::{HostCompletion, HostCompletions, IoQueue, IoQueuePlan};
