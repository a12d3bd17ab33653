//! The secrets with which simulated hosts authenticate themselves, and their files.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use nvme_keys::{ChapSecret, Hash};
use tempfile::TempDir;

/// Number of secrets of a host name that the configuration can have. A host has no other after the
/// last one.
pub const VERSIONS: u32 = 12;

/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// The secret of hosts with a name, by its number.
///
/// # Panics
/// Never: the length is a valid one.
#[must_use]
pub fn secret(identity: usize, version: u32) -> ChapSecret {
    let bytes = [identity as u8 + 1, version as u8 + 1].repeat(SECRET_BYTES / 2);
    ChapSecret::new(Hash::None, &bytes).expect("a valid length")
}

/// The name of a key in the configuration.
#[must_use]
pub fn key_name(identity: usize, version: u32) -> String {
    format!("host{identity}-{version}")
}

/// The files with the secrets of a run; they are removed at its end.
#[derive(Debug)]
pub struct KeyFiles(TempDir);

impl KeyFiles {
    /// Writes the secrets of this number of host names.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn create(identities: usize) -> io::Result<Self> {
        let files = Self(TempDir::with_prefix("windlass-simulation-")?);
        for identity in 0..identities {
            for version in 0..VERSIONS {
                let mut options = fs::OpenOptions::new();
                options.write(true).create_new(true).mode(0o600);
                let mut file = options.open(files.path(identity, version))?;
                let line = secret(identity, version).expose_interchange();
                file.write_all(line.as_bytes())?;
            }
        }
        Ok(files)
    }

    /// The file with a secret.
    #[must_use]
    pub fn path(&self, identity: usize, version: u32) -> PathBuf {
        self.0.path().join(key_name(identity, version))
    }
}
