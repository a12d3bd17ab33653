//! What the NVMe over Fabrics transports share: the table of a reactor's connections, the slots and
//! states of their requests, and the ports that they listen on.
//!
//! A transport owns its wire protocol: framing and byte streams (`nvme_tcp`), or queue pairs and
//! work requests (`nvme_rdma`). This crate performs no I/O and does not interpret commands; the
//! target core does. It takes its memory when a reactor starts and when a host connects.

#![forbid(unsafe_code)]

mod connection_table;
mod counters;
mod ports;
mod requests;
mod slots;
mod token;

pub use connection_table::{CONNECTIONS_MAX, Connection, ConnectionTable, Entry, earliest};
pub use ports::{
    ControlOf, ListenerMessage, ListenerTable, MessageOf, NoHandover, PortControl, Ports,
    settings_of,
};
pub use requests::{Event, RequestContext, Requests};
pub use slots::{SlotState, SlotTable};
pub use token::RequestToken;
