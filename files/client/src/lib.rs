//! A client of NFSv4.1 and 4.2 (RFC 8881, RFC 7862) without I/O: the bytes of requests come out, and
//! the bytes of replies go in.
//!
//! Owns the identity of a client, its session and the slots (RFC 8881 §2.10.6), requests until they
//! are answered, and the reassembly of records. The user owns connections and time: it sends what
//! [`Client`] has for it, tells which connections have ended, and decides when a request is repeated
//! that the server is executing. What an operation means is the user's concern.

#![forbid(unsafe_code)]

mod client;
mod message;
mod reply;
pub mod requests;
mod stream;

pub use client::{Client, ClientOptions, Event, Limits, SLOTS_MAX, Violation};
pub use message::{CompoundHeader, Message};
pub use reply::{Answer, ReplyError, xid_of};
pub use stream::ReplyStream;
