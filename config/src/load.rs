//! Reads a configuration from a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::limits::FILE_BYTES_MAX;
use crate::model::Config;
use crate::problem::Problems;

/// Why a configuration could not be loaded from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file could not be read.
    #[error("{path}: {cause}")]
    Read {
        /// The file's path.
        path: String,
        /// The error of the operating system.
        #[source]
        cause: io::Error,
    },
    /// The file was read, and its content is wrong.
    #[error(transparent)]
    Problems(#[from] Problems),
}

impl Config {
    /// Reads the file at `path`, of at most [`FILE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// If the file cannot be read, and as [`Config::parse_bytes`].
    pub fn load(path: &Path) -> Result<Config, LoadError> {
        let name = path.display().to_string();
        match read(path) {
            Ok(bytes) => Ok(Config::parse_bytes(&name, &bytes)?),
            Err(cause) => Err(LoadError::Read { path: name, cause }),
        }
    }
}

/// The file's content, up to one byte more than the limit: a pipe or a device may have no end.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}
