//! The Unix socket: its location, its permissions, and the removal of a stale one.
//!
//! The kernel decides who may connect, by the owner, the group and the mode of the socket's file
//! (unix(7), "Pathname socket ownership and permissions"). They are set before the socket listens,
//! so other users can never connect. Credentials of peers are not used: in a user namespace, such
//! as systemd's `PrivateUsers=`, all users and groups of the machine appear as 65534.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use appliance_config::{Control, ControlSocket, GroupName};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

const FILE_NAME: &str = "control.sock";
/// Most connections that wait to be accepted: more than are served concurrently.
const BACKLOG: i32 = 128;
/// The directory for root's appliance and for the service.
const SYSTEM_DIRECTORY: &str = "/run/windlass";

/// The bound socket. Dropping it removes its file.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    pub(super) path: PathBuf,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum SocketError {
    #[error("no directory for it: set XDG_RUNTIME_DIR, or `socket` of [control]")]
    NoDirectory,
    #[error("{0} is in use by another appliance: set another `socket` in [control] of one of them")]
    Taken(PathBuf),
    #[error("{0} exists and is not a socket")]
    NotASocket(PathBuf),
    #[error("{path}")]
    System {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

impl Socket {
    /// Binds the socket that `control` configures; `None` if it is off.
    ///
    /// # Errors
    /// The socket is not available.
    pub(super) fn bind(control: &Control) -> Result<Option<Self>, SocketError> {
        let path = match &control.socket {
            ControlSocket::Off => return Ok(None),
            ControlSocket::At(path) => path.clone(),
            ControlSocket::Auto => {
                automatic(variable, geteuid().is_root()).ok_or(SocketError::NoDirectory)?
            }
        };
        let system = |cause| SocketError::System {
            path: path.clone(),
            cause,
        };
        make_directory(&path).map_err(system)?;
        remove_stale_socket(&path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.map_err(|error| system(error.into()))?;
        SocketAddrUnix::new(&path)
            .and_then(|address| rustix::net::bind(&socket, &address))
            .map_err(|error| system(error.into()))?;
        let bound = Self {
            listener: UnixListener::from(socket),
            path: path.clone(),
        };
        let is_open = open_to_group(control.group.as_ref(), &path);
        let mode = if is_open { 0o660 } else { 0o600 };
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(system)?;
        rustix::net::listen(&bound.listener, BACKLOG).map_err(|error| system(error.into()))?;
        Ok(Some(bound))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The file may have been removed already.
        let _ = fs::remove_file(&self.path);
    }
}

/// The default location of the socket. systemd.exec(5) lists the runtime directories of a service
/// in RUNTIME_DIRECTORY, separated by colons.
fn automatic(variable: impl Fn(&str) -> Option<PathBuf>, is_root: bool) -> Option<PathBuf> {
    let absolute = |path: PathBuf| Some(path).filter(|path| path.is_absolute());
    if let Some(given) = variable("RUNTIME_DIRECTORY") {
        let given = given.to_string_lossy().into_owned();
        let first = given.split(':').next().map(PathBuf::from);
        if let Some(first) = first.and_then(absolute) {
            return Some(first.join(FILE_NAME));
        }
    }
    if is_root {
        return Some(Path::new(SYSTEM_DIRECTORY).join(FILE_NAME));
    }
    let runtime = variable("XDG_RUNTIME_DIR").and_then(absolute)?;
    Some(runtime.join("windlass").join(FILE_NAME))
}

/// The default locations of sockets: one of this user, and the service's.
pub(crate) fn default_sockets() -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = automatic(variable, geteuid().is_root())
        .into_iter()
        .collect();
    let service = Path::new(SYSTEM_DIRECTORY).join(FILE_NAME);
    if !places.contains(&service) {
        places.push(service);
    }
    places
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

/// Creates the socket's directory, accessible to all; its parent must exist.
fn make_directory(path: &Path) -> io::Result<()> {
    let Some(directory) = path.parent() else {
        return Ok(());
    };
    match DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Removes a socket on which no process listens, left by a killed appliance.
fn remove_stale_socket(path: &Path) -> Result<(), SocketError> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|cause| SocketError::System {
                path: path.to_owned(),
                cause,
            }),
        _ => Err(SocketError::Taken(path.to_owned())),
    }
}

/// Gives the socket to a group; returns whether that succeeded.
fn open_to_group(group: Option<&GroupName>, path: &Path) -> bool {
    let Some(name) = group.map(GroupName::as_str) else {
        return false;
    };
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let Some(number) = group_number(name, &groups) else {
        tracing::warn!(
            "control socket: group {name} does not exist: only root and this user have access"
        );
        return false;
    };
    let given = std::os::unix::fs::chown(path, None, Some(number));
    if let Err(error) = &given {
        tracing::warn!(
            %error,
            "control socket: it cannot be given to group {name}, so only root and this user have \
             access: make this user a member of the group; with PrivateUsers=yes in the unit, \
             only the service's own group is possible"
        );
    }
    given.is_ok()
}

/// The number of a group: found by name in `groups` (group(5)), or given as a number.
pub(crate) fn group_number(name: &str, groups: &str) -> Option<u32> {
    let named = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    });
    named.or_else(|| name.parse().ok())
}

/// The name of the group with this number in `/etc/group`, or the number itself.
pub(crate) fn group_name(number: u32) -> String {
    name_in("/etc/group", number)
}

/// The name of the user with this number in `/etc/passwd`, or the number itself.
pub(super) fn user_name(number: u32) -> String {
    name_in("/etc/passwd", number)
}

/// The name with this number in a file whose lines begin with `name:x:number:`, or the number.
fn name_in(file: &str, number: u32) -> String {
    let lines = fs::read_to_string(file).unwrap_or_default();
    let mut lines = lines.lines();
    let named = lines.find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(path: &Path) -> Control {
        Control {
            socket: ControlSocket::At(path.to_owned()),
            ..Control::default()
        }
    }

    #[test]
    fn bind_leaves_other_files_and_live_sockets_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        fs::write(&file, "precious").expect("writable");
        let refused = Socket::bind(&control(&file));
        assert!(
            matches!(refused, Err(SocketError::NotASocket(_))),
            "{refused:?}"
        );
        assert_eq!(fs::read_to_string(&file).expect("there"), "precious");
        let path = directory.path().join("control.sock");
        let first = Socket::bind(&control(&path))
            .expect("free")
            .expect("wanted");
        let refused = Socket::bind(&control(&path));
        assert!(matches!(refused, Err(SocketError::Taken(_))), "{refused:?}");
        drop(first);
        assert!(!path.exists());
        let nowhere = directory.path().join("a/b/control.sock");
        assert!(Socket::bind(&control(&nowhere)).is_err());
    }

    #[test]
    fn bind_replaces_a_stale_socket_with_mode_0600() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("new/control.sock");
        fs::create_dir(directory.path().join("new")).expect("writable");
        drop(UnixListener::bind(&path).expect("free"));
        assert!(path.exists());
        let bound = Socket::bind(&control(&path))
            .expect("stale")
            .expect("wanted");
        let mode = fs::metadata(&bound.path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    /// Uses this process's own group, because the kernel admits its members by the mode.
    #[test]
    fn configured_group_gets_access_by_socket_mode() {
        let directory = tempfile::tempdir().expect("a directory");
        let own = rustix::process::getegid().as_raw().to_string();
        for (group, expected) in [(own.as_str(), 0o660), ("no-such-group", 0o600)] {
            let path = directory.path().join("control.sock");
            let control = Control {
                group: Some(group.parse().expect("a group")),
                ..control(&path)
            };
            let bound = Socket::bind(&control).expect("free").expect("wanted");
            let found = fs::metadata(&path).expect("there");
            assert_eq!(found.permissions().mode() & 0o777, expected, "{group}");
            assert!(UnixStream::connect(&path).is_ok());
            drop(bound);
        }
    }

    #[test]
    fn default_socket_directory_order() {
        let none = |_: &str| None;
        assert_eq!(automatic(none, false), None);
        assert_eq!(
            automatic(none, true),
            Some("/run/windlass/control.sock".into())
        );
        let user = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| "/run/user/7".into());
        assert_eq!(
            automatic(user, false),
            Some("/run/user/7/windlass/control.sock".into())
        );
        let relative = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| "tmp".into());
        assert_eq!(automatic(relative, false), None);
        let service = |name: &str| (name == "RUNTIME_DIRECTORY").then(|| "/run/a:/run/b".into());
        assert_eq!(
            automatic(service, false),
            Some("/run/a/control.sock".into())
        );
    }

    #[test]
    fn groups_are_resolved_by_name_and_number() {
        let groups = "root:x:0:\nstorage:x:44:alice,bob\nbroken\n44x:x:7:\n";
        assert_eq!(group_number("storage", groups), Some(44));
        assert_eq!(group_number("stor", groups), None);
        assert_eq!(group_number("broken", groups), None);
        assert_eq!(group_number("1000", groups), Some(1000));
        assert_eq!(group_number("44x", groups), Some(7));
        assert_eq!(group_name(0), "root");
        assert_eq!(group_name(u32::MAX - 1), (u32::MAX - 1).to_string());
        assert_eq!(user_name(0), "root");
        assert_eq!(user_name(u32::MAX - 1), (u32::MAX - 1).to_string());
    }
}
