//! The TLS 1.3 handshake of NVMe/TCP: with a pre-shared key and (EC)DHE, and never without.
//!
//! s2n-tls performs it, over buffers in memory. Before, [`nvme_tls::KeyTable`] finds the key that a
//! host proves with its ClientHello, so that s2n-tls knows exactly one key and a host without one
//! costs no key exchange. After it, this crate takes the traffic secrets out of s2n-tls, and
//! [`nvme_tls::Channel`] protects the records.
//!
//! A user moves bytes: it receives as many as a handshake asks for, which never extend beyond the
//! current record, so that nothing behind the last message is taken. Performs no I/O and keeps no
//! time; its user ends a handshake after [`HANDSHAKE_TIME_MAX`].
//!
//! Unsafe code is in the module `pipe` only, which passes the buffers to s2n-tls.

mod client;
mod engine;
mod error;
mod pipe;
mod record_reader;
mod server;

use std::time::Duration;

use nvme_keys::{Hash, Names, TlsKey};

pub use client::ClientHandshake;
pub use engine::{Group, Secrets};
pub use error::HandshakeError;
pub use server::{Established, Progress, ServerHandshake};

/// Time limit of a handshake, from the accepted connection to its last message. Linux has the same.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes that a peer may send before its Finished.
pub const HANDSHAKE_BYTES_MAX: usize = 64 << 10;

/// Prepares the library, so that the first handshake does not wait for it: its random numbers can
/// take up to a second to begin with.
///
/// # Errors
///
/// s2n-tls cannot be used.
///
/// # Panics
///
/// Never: the names and the key are valid.
pub fn prepare() -> Result<(), HandshakeError> {
    let key = TlsKey::new(Hash::Sha256, &[0; 32]).expect("a key of its length");
    let names = Names::new("nqn.host", "nqn.subsystem").expect("valid");
    // It draws random bytes and computes the key shares, and is not sent.
    ClientHandshake::new(&key.candidates(names)[0]).map(|_| ())
}
