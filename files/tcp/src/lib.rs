//! NFSv4.1 over TCP on one reactor: connections with record marking, and the movement of data
//! between requests and the devices of the reactor.
//!
//! Owns the connections, the requests in flight and a [`files_server::Server`]. It is a client of
//! the reactor's devices and a poller; neither blocks. Payload of WRITE is received with its record
//! and copied into leases; payload of READ is sent from leases. [`stored`] formats, checks and opens
//! volumes on devices before reactors serve them.

#![forbid(unsafe_code)]

mod connection;
mod job;
pub mod limits;
mod network;
mod observed;
mod poller;
mod receiver;
mod service;
pub mod stored;
mod transfer;
mod volume_requests;

pub use network::{Interest, Network, Ready, Sockets};
pub use observed::{FileMessage, ServiceCounters, VolumeLevels};
pub use poller::FilePoller;
pub use service::{DeviceOfVolume, FileService, FileServiceOptions, RecordStore, system_time};
