//! The file service on one reactor without its transports: requests in flight, and the movement of
//! their data and of the volumes' logs between memory and the devices of the reactor.
//!
//! Owns a [`files_server::Server`], the requests, and what is known of each connection. It is a
//! client of the reactor's devices and does not block. Transports pass requests to a
//! [`FileCore`], take the replies, and read the data of a WRITE from memory of its client if they
//! are not in the request. [`stored`] formats, checks and opens volumes on devices before reactors
//! serve them.

#![forbid(unsafe_code)]

mod accesses;
mod connections;
mod core;
mod job;
pub mod limits;
mod observed;
mod payloads;
pub mod stored;
mod transfer;
mod volume_requests;

pub use accesses::{Access, AccessOperation, Accessed};
pub use connections::{ConnectionKey, Connections, Link, TransportIndex};
pub use core::{CoreOptions, DeviceOfVolume, Fetch, FileCore, RecordStore, system_time};
pub use job::{Ended, Job, JobKey, Jobs};
pub use observed::{
    FileMessage, ListenerChange, NewRecords, PreparedReplacement, ServiceCounters, VolumeLevels,
};
pub use payloads::PayloadPart;
