//! Deterministic simulation of the appliance: the production target, transports and reactors run on
//! one thread in virtual time, with simulated hosts, networks and disks that fail.
//!
//! One seed determines the whole run: which faults are on ([`swarm`]) and what happens when
//! ([`world`]). The same seed replays the run exactly. A model of every block ([`history`],
//! [`judge`]) decides which data a read may return. Hosts check every response, close and delay
//! against the rules ([`host`]).

#![forbid(unsafe_code)]

pub mod addresses;
pub mod ana;
pub mod anonymous;
pub mod appliance;
pub mod authentication;
pub mod content;
pub mod defects;
pub mod disk;
pub mod drive;
pub mod environment;
pub mod fabric;
pub mod fairness;
pub mod faults;
pub mod figures;
pub mod file_disk;
pub mod files;
pub mod history;
pub mod host;
pub mod identity;
pub mod judge;
pub mod limits;
pub mod memory;
pub mod network;
pub mod oracle;
pub mod paces;
pub mod plan;
pub mod ram;
pub mod random;
pub mod reservations;
pub mod run;
pub mod storage;
pub mod store;
pub mod swarm;
pub mod time;
pub mod trace;
pub mod unknown_hosts;
pub mod world;
