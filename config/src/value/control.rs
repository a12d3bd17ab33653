//! How the control plane is reached: its socket, the group that may use it, its HTTP address.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{AddressError, Hint, ListenAddress};
use crate::limits::{GROUP_CHARS_MAX, SOCKET_PATH_BYTES_MAX};

/// The default port of the control plane's HTTP.
const HTTP_PORT_DEFAULT: u16 = 9808;

/// The location of the control plane's Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ControlSocket {
    /// In a directory that the appliance chooses.
    #[default]
    Auto,
    /// No socket.
    Off,
    /// At this path.
    At(PathBuf),
}

impl fmt::Display for ControlSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlSocket::Auto => f.write_str("auto"),
            ControlSocket::Off => f.write_str("off"),
            ControlSocket::At(path) => path.display().fmt(f),
        }
    }
}

/// Why a text is not a socket's location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlSocketError {
    /// It is neither `auto`, `off` nor an absolute path.
    #[error("the socket is not an absolute path")]
    NotAbsolute,
    /// It ends like a directory.
    #[error("the path is that of a directory")]
    Directory,
    /// It has a control character.
    #[error("the path contains {0:?}")]
    Character(char),
    /// It is longer than [`SOCKET_PATH_BYTES_MAX`].
    #[error("the path has more than {SOCKET_PATH_BYTES_MAX} bytes")]
    TooLong,
}

impl Hint for ControlSocketError {
    fn hint(&self) -> Option<String> {
        Some("write \"auto\", \"off\" or a path like \"/run/windlass/control.sock\"".to_owned())
    }

    fn beyond_limit(&self) -> bool {
        matches!(self, ControlSocketError::TooLong)
    }
}

impl FromStr for ControlSocket {
    type Err = ControlSocketError;

    fn from_str(text: &str) -> Result<ControlSocket, ControlSocketError> {
        match text {
            "auto" => return Ok(ControlSocket::Auto),
            "off" => return Ok(ControlSocket::Off),
            _ => {}
        }
        if let Some(control) = text.chars().find(|c| c.is_control()) {
            return Err(ControlSocketError::Character(control));
        }
        if !Path::new(text).is_absolute() {
            return Err(ControlSocketError::NotAbsolute);
        }
        if text.ends_with('/') {
            return Err(ControlSocketError::Directory);
        }
        if text.len() > SOCKET_PATH_BYTES_MAX {
            return Err(ControlSocketError::TooLong);
        }
        Ok(ControlSocket::At(PathBuf::from(text)))
    }
}

/// The name or number of a group of users: 1 to 32 letters, digits, `_`, `.` and `-`. The appliance
/// checks at start whether the group exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupName(String);

impl GroupName {
    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is not the name of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupNameError {
    /// It is empty.
    #[error("the name is empty")]
    Empty,
    /// It has a character that is not allowed, or begins with `-`.
    #[error("the name contains {0:?}")]
    Character(char),
    /// It is longer than [`GROUP_CHARS_MAX`].
    #[error("the name has more than {GROUP_CHARS_MAX} characters")]
    TooLong,
}

impl Hint for GroupNameError {
    fn hint(&self) -> Option<String> {
        Some("`getent group` lists the groups; a group's number is accepted too".to_owned())
    }

    fn beyond_limit(&self) -> bool {
        matches!(self, GroupNameError::TooLong)
    }
}

impl FromStr for GroupName {
    type Err = GroupNameError;

    fn from_str(text: &str) -> Result<GroupName, GroupNameError> {
        if text.is_empty() {
            return Err(GroupNameError::Empty);
        }
        if text.starts_with('-') {
            return Err(GroupNameError::Character('-'));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if let Some(other) = text.chars().find(|c| !allowed(*c)) {
            return Err(GroupNameError::Character(other));
        }
        if text.len() > GROUP_CHARS_MAX {
            return Err(GroupNameError::TooLong);
        }
        Ok(GroupName(text.to_owned()))
    }
}

/// The HTTP address of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpAddress {
    /// No HTTP.
    Off,
    /// At this address and port. With port 0 the system chooses one at start.
    At(ListenAddress),
}

impl HttpAddress {
    /// The address and port, unless HTTP is off.
    pub const fn address(self) -> Option<ListenAddress> {
        match self {
            HttpAddress::Off => None,
            HttpAddress::At(address) => Some(address),
        }
    }

    /// Whether other machines can reach it.
    pub fn is_beyond_this_machine(self) -> bool {
        let address = self.address();
        address.is_some_and(|address| !address.socket_addr().ip().is_loopback())
    }
}

impl Default for HttpAddress {
    fn default() -> HttpAddress {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, HTTP_PORT_DEFAULT));
        HttpAddress::At(ListenAddress::from_unicast(loopback))
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpAddress::Off => f.write_str("off"),
            HttpAddress::At(address) => address.fmt(f),
        }
    }
}

/// Why a text is not an HTTP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpAddressError {
    /// It is not an address to listen on.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The port is missing.
    #[error("the port is missing")]
    NoPort,
}

impl Hint for HttpAddressError {
    fn hint(&self) -> Option<String> {
        Some(format!(
            "write an address and a port, like \"{}\", or \"off\"",
            HttpAddress::default()
        ))
    }
}

impl FromStr for HttpAddress {
    type Err = HttpAddressError;

    fn from_str(text: &str) -> Result<HttpAddress, HttpAddressError> {
        if text == "off" {
            return Ok(HttpAddress::Off);
        }
        let address: ListenAddress = text.parse()?;
        // `ListenAddress` accepts a missing port and takes that of NVMe over Fabrics.
        if text.parse::<SocketAddr>().is_err() {
            return Err(HttpAddressError::NoPort);
        }
        Ok(HttpAddress::At(address))
    }
}
