//! Reads files with secrets: regular files of limited size that only permitted users may use.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use zeroize::Zeroizing;

/// Why a file is not read. The caller names the file.
#[derive(Debug)]
pub(crate) enum SecretFileError {
    Io(io::Error),
    /// It is of this kind.
    NotAFile(&'static str),
    /// Its mode, which has a refused permission.
    Shared(u32),
    TooLong,
}

impl From<io::Error> for SecretFileError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The content of a file of at most `bytes_max` bytes that has no permission of `refused_mode`.
///
/// # Errors
/// The first reason why it is not read.
pub(crate) fn read(
    path: &Path,
    refused_mode: u32,
    bytes_max: usize,
) -> Result<Zeroizing<Vec<u8>>, SecretFileError> {
    // Without NONBLOCK, opening a pipe waits for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(SecretFileError::NotAFile(match metadata.is_dir() {
            true => "a directory",
            false => "not a regular file",
        }));
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & refused_mode != 0 {
        return Err(SecretFileError::Shared(mode));
    }
    // With room for all, so that the vector does not move a secret and leave a copy behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(bytes_max + 1));
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        return Err(SecretFileError::TooLong);
    }
    Ok(bytes)
}
