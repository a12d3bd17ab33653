//! The core of an NFSv4.1 and 4.2 server (RFC 8881): clients, sessions, opens, locks, and the
//! execution of COMPOUND requests on volumes.
//!
//! Owns the state of the protocol and the metadata of the volumes. It performs no I/O and reads no
//! clock: the user passes records and the time, sends replies, and moves data between its memory and
//! the devices as each [`Step`] says. Meanwhile an [`Execution`] is suspended and others continue.
//! Every execution that has begun must be continued to its reply, also if its connection has
//! ended: the reply belongs to the replay cache of the session.

#![forbid(unsafe_code)]

mod attributes;
mod caller;
mod clients;
mod counters;
mod execution;
mod grace;
pub mod limits;
mod locks;
mod operations;
mod place;
mod read_at_once;
mod records;
mod refusal;
mod report;
mod server;
mod sessions;
mod states;
mod table;
mod user;
mod volumes;

pub use caller::Caller;
pub use counters::{OperationCounters, ServerCounters, ShareCounters};
pub use execution::{Execution, Resumption, Step};
pub use place::{Clients, Network, Part, PartOptions, Share, ShareNumber, VolumeIndex};
pub use read_at_once::Lender;
pub use report::ClientReport;
pub use server::{Now, Record, Server, ServerOptions};
pub use user::{NOBODY, Squash};
