//! The directory of the appliance's persistent state, with a place for each kind of state.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use appliance_config::Name;
use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::embedded::data_directory;

/// Records of served contents.
const IDENTITIES: &str = "identities";
/// Reservations of devices.
const RESERVATIONS: &str = "reservations";
/// The file of revoked keys.
const REVOKED_KEYS: &str = "revoked-keys.json";
/// Clients of files, in a file for each appliance.
const FILE_CLIENTS: &str = "file-clients";

/// The files in the directory concern only the appliance.
pub(crate) const FILE_MODE: u32 = 0o600;

/// The state directory. Without a path, no state persists.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateDirectory(Option<PathBuf>);

impl StateDirectory {
    /// The directory of this user: the service's state directory (systemd.exec(5): STATE_DIRECTORY
    /// has colons between several), or else the data directory.
    pub(crate) fn of_user() -> Self {
        let given = std::env::var("STATE_DIRECTORY").ok();
        let given = given.and_then(|text| text.split(':').next().map(PathBuf::from));
        let state = given.filter(|path| path.is_absolute());
        Self(state.or_else(data_directory))
    }

    /// The state directory at `path`.
    #[cfg(test)]
    pub(crate) fn at(path: PathBuf) -> Self {
        Self(Some(path))
    }

    /// The directory of the records of served contents.
    pub(crate) fn identities(&self) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(IDENTITIES))
    }

    /// The directory of the reservations of devices.
    pub(crate) fn reservations(&self) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(RESERVATIONS))
    }

    /// The file of revoked keys.
    pub(crate) fn revoked_keys(&self) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(REVOKED_KEYS))
    }

    /// The file of the clients of files of the appliance with this name.
    pub(crate) fn file_clients(&self, appliance: &Name) -> Option<PathBuf> {
        let directory = self.0.as_ref()?.join(FILE_CLIENTS);
        Some(directory.join(format!("{appliance}.json")))
    }
}

/// A JSON document that one file has.
pub(crate) trait Document: Serialize + DeserializeOwned {
    /// The version of its format.
    const VERSION: u32;
    /// Largest file in bytes.
    const BYTES_MAX: u64;

    /// The version of its format according to the file.
    fn version(&self) -> u32;
}

/// Why a document cannot be read.
#[derive(Debug)]
pub(crate) enum DocumentError {
    Unreadable(io::Error),
    /// Its content is no document of this version.
    Damaged(String),
}

/// Reads the document at `path`; `None` if there is none.
pub(crate) fn read_document<D: Document>(path: &Path) -> Result<Option<D>, DocumentError> {
    let bytes = match read(path, D::BYTES_MAX + 1) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DocumentError::Unreadable(error)),
    };
    if bytes.len() as u64 > D::BYTES_MAX {
        let most = D::BYTES_MAX;
        return Err(DocumentError::Damaged(format!(
            "it has more than {most} bytes"
        )));
    }
    let document: D = serde_json::from_slice(&bytes)
        .map_err(|error| DocumentError::Damaged(error.to_string()))?;
    match document.version() {
        version if version == D::VERSION => Ok(Some(document)),
        version => Err(DocumentError::Damaged(format!("its version is {version}"))),
    }
}

/// Replaces the document at `path` atomically. When it returns, it survives a loss of power.
pub(crate) fn write_document<D: Document>(path: &Path, document: &D) -> io::Result<()> {
    let bytes = serde_json::to_vec_pretty(document)?;
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    replace(path, &path.with_extension("tmp"), &bytes)
}

/// The first bytes of the file at `path`, at most `bytes_max`.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    // Opening a FIFO does not wait.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = options.read(true).custom_flags(flags).open(path)?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces the file at `path` atomically, with the help of a file at `temporary` in the same
/// directory. When it returns, the new content survives a loss of power.
pub(crate) fn replace(path: &Path, temporary: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .open(temporary)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(temporary, path));
    if written.is_err() {
        // The file may not exist.
        let _ = fs::remove_file(temporary);
    }
    written?;
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}
