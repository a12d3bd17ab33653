//! Tests of the target core through its interface to transports: a whole target on one thread.
//!
//! Each test cites the section of its rule: Base 2.1 is the NVM Express Base Specification 2.1, NVM
//! 1.1 the NVM Command Set Specification 1.1.

mod admin;
mod allocations;
mod ana;
mod authentication;
mod borrowed;
mod changes;
mod channels;
mod config;
mod connect;
mod copy;
mod cores;
mod discovery;
mod drain;
mod drives;
mod events;
mod eviction;
mod features;
mod fused;
mod growth;
mod handover;
mod harness;
mod identifiers;
mod identify;
mod io;
mod keep_alive;
mod logs;
mod masks;
mod orphans;
mod paces;
mod probe;
mod properties;
mod random;
mod rates;
mod reservations;
mod rogue;
mod threads;
mod timing;
