//! Files with one key in its interchange format: reads them within limits, and creates them for
//! their owner only.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nvme_keys::{AnySecret, FormatError, INTERCHANGE_LEN_MAX};

use crate::secret_file::{self, SecretFileError};
use crate::terminal::quoted;

/// The mode of a created file.
const MODE: u32 = 0o600;
/// Permissions that a key file may not have: any of group and others.
const REFUSED_MODE: u32 = 0o077;
/// Permissions that a credential of systemd may not have. Its group may read it: systemd makes the
/// service's user a reader by an access control list, whose mask the mode shows as that of the
/// group.
const REFUSED_CREDENTIAL_MODE: u32 = 0o037;
/// Longest key file in bytes: a key and a line break.
const FILE_LEN_MAX: usize = INTERCHANGE_LEN_MAX + 1;

/// Why a key file cannot be read or created. No error contains a part of the key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyFileError {
    #[error("key file {}", .0.display())]
    Io(PathBuf, #[source] io::Error),
    #[error("key file {}: it is {kind}: name a file with a key", path.display())]
    NotAFile { path: PathBuf, kind: &'static str },
    #[error(
        "key file {}: other users may use it (mode {mode:04o}): run chmod 600 {}",
        path.display(),
        quoted(&path.display().to_string())
    )]
    Shared { path: PathBuf, mode: u32 },
    #[error(
        "credential {}: other users may use it (mode {mode:04o}): let systemd provide it \
         (LoadCredential=)",
        path.display()
    )]
    SharedCredential { path: PathBuf, mode: u32 },
    #[error(
        "key file {}: it has more than {FILE_LEN_MAX} bytes, so it is not a key: name a file with \
         only a key",
        .0.display()
    )]
    TooLong(PathBuf),
    #[error("key file {}: it is not text: name a file with only a key", .0.display())]
    NotText(PathBuf),
    #[error("key file {}", .0.display())]
    Format(PathBuf, #[source] FormatError),
    #[error("key file {}: it exists, and is not overwritten: name another file", .0.display())]
    Exists(PathBuf),
}

/// Reads the key in a file. One line break may follow it.
pub(crate) fn read(path: &Path) -> Result<AnySecret, KeyFileError> {
    read_without(path, REFUSED_MODE, |path, mode| KeyFileError::Shared {
        path,
        mode,
    })
}

/// Reads the key in a credential of systemd.
pub(crate) fn read_credential(path: &Path) -> Result<AnySecret, KeyFileError> {
    read_without(path, REFUSED_CREDENTIAL_MODE, |path, mode| {
        KeyFileError::SharedCredential { path, mode }
    })
}

fn read_without(
    path: &Path,
    refused_mode: u32,
    shared: impl Fn(PathBuf, u32) -> KeyFileError,
) -> Result<AnySecret, KeyFileError> {
    let read = secret_file::read(path, refused_mode, FILE_LEN_MAX);
    let bytes = read.map_err(|error| {
        let path = path.to_owned();
        match error {
            SecretFileError::Io(cause) => KeyFileError::Io(path, cause),
            SecretFileError::NotAFile(kind) => KeyFileError::NotAFile { path, kind },
            SecretFileError::Shared(mode) => shared(path, mode),
            SecretFileError::TooLong => KeyFileError::TooLong(path),
        }
    })?;
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    let text = std::str::from_utf8(bytes)
        .ok()
        .filter(|text| text.bytes().all(|byte| is_text(&byte)))
        .ok_or_else(|| KeyFileError::NotText(path.to_owned()))?;
    AnySecret::parse(text).map_err(|error| KeyFileError::Format(path.to_owned(), error))
}

/// Creates a file with a line of text that only its owner may read. A file that cannot be written
/// completely is removed.
pub(crate) fn create(path: &Path, line: &str) -> Result<(), KeyFileError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(path)
        .map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => KeyFileError::Exists(path.to_owned()),
            _ => KeyFileError::Io(path.to_owned(), error),
        })?;
    let written = file
        // A umask may have taken away permissions of the owner.
        .set_permissions(Permissions::from_mode(MODE))
        .and_then(|()| file.write_all(line.as_bytes()))
        .and_then(|()| file.write_all(b"\n"))
        .and_then(|()| file.sync_all());
    written.map_err(|error| {
        // The error that is reported is the first one.
        let _ = fs::remove_file(path);
        KeyFileError::Io(path.to_owned(), error)
    })
}

#[cfg(test)]
mod tests;
