//! Finds the control socket of an appliance.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::ClientError;
use crate::control;

/// The given socket, or else the first usual one that accepts a connection from this user.
///
/// # Errors
/// The most specific reason why none does.
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf, ClientError> {
    let places = match given {
        Some(path) => vec![path.to_owned()],
        None => control::default_sockets(),
    };
    first_reachable(places)
}

pub(super) fn first_reachable(places: Vec<PathBuf>) -> Result<PathBuf, ClientError> {
    let mut reason = None;
    for path in &places {
        match UnixStream::connect(path) {
            Ok(_) => return Ok(path.clone()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            // An error at an existing path is more specific than a missing path.
            Err(error) => reason = reason.or(Some(explain(path, error))),
        }
    }
    Err(reason.unwrap_or(ClientError::NoAppliance { looked_at: places }))
}

/// Why no connection is possible at an existing path.
pub(super) fn explain(path: &Path, error: io::Error) -> ClientError {
    let socket = path.to_owned();
    match error.kind() {
        ErrorKind::NotFound => ClientError::NoAppliance {
            looked_at: vec![socket],
        },
        ErrorKind::PermissionDenied => ClientError::NotPermitted {
            remedy: remedy(path),
            socket,
        },
        ErrorKind::ConnectionRefused if !is_socket(path) => ClientError::NotASocket { socket },
        ErrorKind::ConnectionRefused => ClientError::StaleSocket { socket },
        _ => ClientError::System {
            socket,
            cause: error,
        },
    }
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// How this user gets access: through the socket's group, if the group may use it.
fn remedy(path: &Path) -> String {
    const AS_ROOT: &str = "use sudo, or name a `group` in [control] and join it";
    let Ok(found) = fs::metadata(path) else {
        return AS_ROOT.to_owned();
    };
    if found.permissions().mode() & 0o060 != 0o060 {
        return AS_ROOT.to_owned();
    }
    let group = control::group_name(found.gid());
    format!("use sudo, or join its group with `sudo usermod -aG {group} $USER` and log in again")
}
