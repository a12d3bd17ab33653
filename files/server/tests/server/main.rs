//! The server on volumes in memory: the requests of clients, invalid ones first.

#![forbid(unsafe_code)]

mod client;
mod data;
mod durable;
mod grace;
mod locks;
mod names;
mod opens;
mod random;
mod sessions;
mod version_2;
