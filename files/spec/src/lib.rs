//! The wire format of NFS versions 4.1 and 4.2 for servers and clients: XDR (RFC 4506), ONC RPC
//! (RFC 5531) on streams and over RDMA (RFC 8166), and the operations, attributes and callbacks of
//! RFC 8881, RFC 7862 and RFC 8276.
//!
//! Owns layouts, code values, limits of lengths, and the error of each malformed item. Contains no
//! behaviour of a server or client, performs no I/O, does not allocate, and does not panic on bytes
//! of a peer.
//!
//! Conventions:
//! - Decoding borrows: names, opaque data and arrays refer to the bytes of the record.
//! - Each type decodes and encodes itself ([`xdr::Xdr`]), so both ends share it.
//! - Payload of READ and WRITE is not copied: see [`xdr::Payload`].
//! - Code values are open: a newtype over the integer with named constants.
//! - Fields have the names of the XDR descriptions (RFC 5662, RFC 7863), without their prefixes.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

#[macro_use]
mod declare;

#[cfg(test)]
mod arbitrary;
pub mod attributes;
pub mod bitmap;
pub mod callback;
pub mod compound;
pub mod limits;
pub mod name;
pub mod operations;
pub mod rdma;
pub mod readdir;
pub mod rpc;
pub mod status;
pub mod types;
pub mod xdr;

pub use bitmap::Bitmap;
pub use name::Name;
pub use status::Status;
