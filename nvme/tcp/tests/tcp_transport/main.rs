//! NVMe/TCP over in-memory streams and real sockets, with hosts that violate the protocol.

mod chopped;
mod copy;
mod data_path;
mod direct_placement;
mod fairness;
mod fused;
mod handover;
mod harness;
mod hostile;
mod protected;
