//! The server on volumes in memory: the requests of clients, invalid ones first.

#![forbid(unsafe_code)]

mod client;
mod conformance;
mod data;
mod device;
mod durable;
mod grace;
mod locks;
mod losses;
mod names;
mod opens;
mod operator;
mod overlap;
mod quotas;
mod random;
mod read_at_once;
mod sessions;
mod shortage;
mod version_2;
