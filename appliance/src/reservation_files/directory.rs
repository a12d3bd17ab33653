//! The files of a directory: reading, and atomic replacement.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use appliance_config::Uuid;
use nvme_reservations::{ENCODED_BYTES_MAX, NamespaceIdentity, Reservations, RestoreError, decode};

use crate::state_directory;

/// Most bytes that are read: one more than a valid file has, so that longer ones are recognized.
const READ_BYTES_MAX: u64 = ENCODED_BYTES_MAX as u64 + 1;
const DIRECTORY_MODE: u32 = 0o700;

/// Why stored reservations cannot be restored.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    /// The file cannot be read.
    #[error("{path} cannot be read: {cause}")]
    Unreadable { path: PathBuf, cause: io::Error },
    /// The file's content is not a state of this device.
    #[error("{path} cannot be restored: {cause}")]
    Damaged { path: PathBuf, cause: RestoreError },
    /// An earlier state is still being written.
    #[error("an earlier state was not written within {0:?}")]
    Busy(Duration),
}

/// The file of a state.
pub(super) fn path_of(directory: &Path, identity: NamespaceIdentity) -> PathBuf {
    directory.join(Uuid::from_bytes(identity.0).to_string())
}

/// The file in which a new state is written before it replaces the previous one.
fn temporary_path_of(directory: &Path, identity: NamespaceIdentity) -> PathBuf {
    let mut path = path_of(directory, identity);
    path.set_extension("tmp");
    path
}

/// Creates the directory if it does not exist, and checks that files can be created in it.
pub(super) fn prepare(directory: &Path) -> io::Result<()> {
    let existed = directory.is_dir();
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(directory)?;
    if !existed && let Some(parent) = directory.parent() {
        File::open(parent)?.sync_all()?;
    }
    // Other appliances may use the same directory.
    let probe = directory.join(format!("probe.{}", std::process::id()));
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(state_directory::FILE_MODE)
        .open(&probe)?;
    fs::remove_file(&probe)
}

/// Reads the state after a loss of power; `None` if there is none. Removes a temporary file that
/// was left by an appliance that was killed.
pub(super) fn load(
    directory: &Path,
    identity: NamespaceIdentity,
) -> Result<Option<Reservations>, LoadError> {
    // Only the device's own: other appliances may use the same directory. A file that cannot be
    // removed is overwritten later.
    let _ = fs::remove_file(temporary_path_of(directory, identity));
    let path = path_of(directory, identity);
    let bytes = match state_directory::read(&path, READ_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(LoadError::Unreadable { path, cause }),
    };
    match decode(&bytes, identity) {
        Ok(mut state) => {
            state.apply_power_loss();
            Ok(Some(state))
        }
        Err(cause) => Err(LoadError::Damaged { path, cause }),
    }
}

/// Replaces the state atomically. When it returns, the new state survives a loss of power.
pub(super) fn replace(
    directory: &Path,
    identity: NamespaceIdentity,
    bytes: &[u8],
) -> io::Result<()> {
    let (path, temporary) = (
        path_of(directory, identity),
        temporary_path_of(directory, identity),
    );
    state_directory::replace(&path, &temporary, bytes)
}
