//! The service on a memory device, with clients over loopback: invalid streams and clients that do
//! not read first.

#![forbid(unsafe_code)]

mod client;
mod data;
mod hostile;
mod reactor;
