//! Load on a server of files, by NFSv4.1 or 4.2 over TCP: reads and writes of one file, which the
//! load generator of this crate drives like the blocks of a namespace, and rates of operations on
//! names.
//!
//! Each connection is a client of its own, with a session and one slot for each request in flight.

mod connection;
mod directory;
mod error;
pub mod metadata;
mod queue;
mod run;
#[cfg(test)]
mod tests;

pub use error::FilesError;
pub use run::{FilesPlan, run_files};

use std::fmt;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

/// A directory of a server, and the client that uses it.
#[derive(Debug, Clone)]
pub struct FilesTarget {
    /// The server.
    pub address: SocketAddr,
    /// The path of a directory from the server's root; its first part is often a share.
    pub path: String,
    /// The minor version of NFSv4: 1 or 2.
    pub minor_version: u32,
    /// The user of all requests, who is also the group.
    pub uid: u32,
}

impl fmt::Display for FilesTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:/{}", self.address, self.path.trim_matches('/'))
    }
}

/// A number that no other run has, for the names of its files and clients.
fn unique() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos() as u64;
    reactors::sim::mix(now ^ u64::from(std::process::id()).rotate_left(32))
}
