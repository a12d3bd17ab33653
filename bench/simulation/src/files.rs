//! The simulation of the file service: the production server, volume and transport core on a
//! simulated network and device, with clients that break connections, repeat requests, disappear and
//! start again, while the server is killed and its power fails.
//!
//! It is a scenario of its own beside that of NVMe over Fabrics, with seeds of its own. The judge
//! ([`model`], [`judge`], [`content`], [`audit`], [`sharing`]) has every name, every byte, every open file and every lock.

mod action;
mod audit;
mod client;
mod content;
mod faults;
mod holdings;
mod judge;
mod leases;
mod model;
mod network;
mod quotas;
mod rdma;
mod server;
mod sharing;
mod swarm;
mod workload;
mod world;

pub use client::Repetitions;
pub use quotas::Quota;
pub use swarm::{Backing, FileFaults, FileSwarm, RdmaSwarm};
pub use world::FileWorld;
