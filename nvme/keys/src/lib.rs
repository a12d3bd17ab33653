//! The interchange formats of secrets: pre-shared keys for TLS and secrets for DH-HMAC-CHAP.
//!
//! This crate parses and prints them. It performs no I/O and derives no keys.

#![forbid(unsafe_code)]

mod interchange;

pub use interchange::{FormatError, Hash, INTERCHANGE_LEN_MAX, Kind, Secret};
