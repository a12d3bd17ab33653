//! NVMe/RDMA over the in-process fabric: hosts, devices and reactors that fail or violate the protocol.

mod copy;
mod data_path;
mod harness;
mod hostile;
mod in_device;
mod memory;
mod random;
mod reactors;
mod removal;
mod stalls;
mod wedged;
