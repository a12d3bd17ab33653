//! The service on a device, with clients over loopback: invalid streams and clients that do
//! not read first.

#![forbid(unsafe_code)]

mod data;
mod durable;
mod hostile;
mod reactor;
