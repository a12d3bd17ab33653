//! Files with one key in its interchange format: reads them within limits, and creates them for
//! their owner only.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nvme_keys::{AnySecret, FormatError, INTERCHANGE_LEN_MAX};
use rustix::fs::{Mode, OFlags};
use zeroize::Zeroizing;

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
    read_checked(path, |mode| match mode & REFUSED_MODE {
        0 => Ok(()),
        _ => Err(KeyFileError::Shared {
            path: path.to_owned(),
            mode,
        }),
    })
}

/// Reads the key in a credential of systemd.
pub(crate) fn read_credential(path: &Path) -> Result<AnySecret, KeyFileError> {
    read_checked(path, |mode| match mode & REFUSED_CREDENTIAL_MODE {
        0 => Ok(()),
        _ => Err(KeyFileError::SharedCredential {
            path: path.to_owned(),
            mode,
        }),
    })
}

fn read_checked(
    path: &Path,
    check_mode: impl Fn(u32) -> Result<(), KeyFileError>,
) -> Result<AnySecret, KeyFileError> {
    let error = |error: io::Error| KeyFileError::Io(path.to_owned(), error);
    // Without NONBLOCK, opening a pipe waits for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| error(e.into()))?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(error)?;
    if !metadata.is_file() {
        let kind = if metadata.is_dir() {
            "a directory"
        } else {
            "not a regular file"
        };
        let path = path.to_owned();
        return Err(KeyFileError::NotAFile { path, kind });
    }
    let mode = metadata.permissions().mode() & 0o7777;
    check_mode(mode)?;
    let mut buffer = Zeroizing::new([0; FILE_LEN_MAX + 1]);
    let len = read_up_to(&file, &mut buffer[..]).map_err(error)?;
    if len > FILE_LEN_MAX {
        return Err(KeyFileError::TooLong(path.to_owned()));
    }
    let bytes = &buffer[..len];
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    let text = std::str::from_utf8(bytes)
        .ok()
        .filter(|text| text.bytes().all(|byte| is_text(&byte)))
        .ok_or_else(|| KeyFileError::NotText(path.to_owned()))?;
    AnySecret::parse(text).map_err(|error| KeyFileError::Format(path.to_owned(), error))
}

/// Fills the buffer as far as the file reaches, and returns the number of bytes.
fn read_up_to(mut file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
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
