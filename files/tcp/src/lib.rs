//! NFSv4.1 and 4.2 over TCP on one reactor: connections with record marking.
//!
//! Owns the connections; `files_service` executes the requests and moves their data. It is a client
//! of the reactor's devices and a poller; neither blocks. Payload of WRITE is received with its
//! record; payload of READ is sent from leases or from memory of the device.

#![forbid(unsafe_code)]

mod connection;
pub mod limits;
mod network;
mod poller;
mod receiver;
mod service;

pub use files_service::{
    DeviceOfVolume, FileMessage, ListenerChange, NewRecords, RecordStore, ServiceCounters,
    VolumeLevels, stored, system_time,
};
pub use network::{Interest, Network, Ready, Sockets};
pub use poller::FilePoller;
pub use service::{FileService, FileServiceOptions};
