//! The embedded default, which `windlass run` serves without a file.

use std::fs;
use std::path::{Path, PathBuf};

use appliance_config::Config;

use crate::error::Failure;

/// The name of the file namespace in its directory.
const FILE_NAME: &str = "demo.img";

#[derive(Debug, thiserror::Error)]
enum EmbeddedError {
    #[error("no place for the file namespace: set HOME or give --data-dir")]
    NoPlace,
    #[error("cannot create {path}")]
    Directory {
        path: String,
        #[source]
        cause: std::io::Error,
    },
}

/// The embedded default with its file below `directory`, or below this user's data directory.
pub(crate) fn configuration(directory: Option<&Path>) -> Result<Config, Failure> {
    let directory = match directory {
        Some(directory) => std::path::absolute(directory)?,
        None => data_directory().ok_or(EmbeddedError::NoPlace)?,
    };
    fs::create_dir_all(&directory).map_err(|cause| EmbeddedError::Directory {
        path: directory.display().to_string(),
        cause,
    })?;
    Ok(Config::default_embedded(&directory.join(FILE_NAME))?)
}

/// `/var/lib/windlass` for root; for others according to the XDG Base Directory Specification.
pub(crate) fn data_directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/windlass"));
    }
    let set = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")))?;
    Some(data.join("windlass"))
}
