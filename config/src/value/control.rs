//! Where the control plane is reached: its socket, the group that may use it, its HTTP address.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{AddressError, Hint, ListenAddress};
use crate::limits::{GROUP_CHARS_MAX, SOCKET_PATH_BYTES_MAX};

/// The port of the control plane's HTTP where the file says nothing.
const HTTP_PORT_DEFAULT: u16 = 9808;

/// Where the control plane's Unix socket is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ControlSocket {
    /// Where the appliance finds a directory for it.
    #[default]
    Auto,
    /// There is none.
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

/// Why a text is no place for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlSocketError {
    /// It is neither one of the words nor an absolute path.
    #[error("the socket is no absolute path")]
    NotAbsolute,
    /// It ends as a directory does.
    #[error("the path is that of a directory")]
    Directory,
    /// It has a character that no path should have.
    #[error("the path has {0:?} in it")]
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

/// The name or number of a group of users: 1 to 32 letters, digits, `_`, `.` and `-`. Whether the
/// machine has it is the appliance's question at start.
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

/// Why a text names no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupNameError {
    /// It is empty.
    #[error("the name is empty")]
    Empty,
    /// It has a character that no such name has, or begins with `-`.
    #[error("the name has {0:?} in it")]
    Character(char),
    /// It is longer than [`GROUP_CHARS_MAX`].
    #[error("the name has more than {GROUP_CHARS_MAX} characters")]
    TooLong,
}

impl Hint for GroupNameError {
    fn hint(&self) -> Option<String> {
        Some("`getent group` lists the groups there are; a group's number does too".to_owned())
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

/// Where the control plane answers HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpAddress {
    /// Nowhere.
    Off,
    /// At this address and port. Port 0 lets the system choose one at start.
    At(ListenAddress),
}

impl HttpAddress {
    /// The address and port, unless it is off.
    pub const fn address(self) -> Option<ListenAddress> {
        match self {
            HttpAddress::Off => None,
            HttpAddress::At(address) => Some(address),
        }
    }

    /// Whether other machines may reach it.
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

/// Why a text is no address for HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpAddressError {
    /// It is no address to listen on.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// There is no port.
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
        // A listener's port may be left out and is then that of NVMe.
        if text.parse::<SocketAddr>().is_err() {
            return Err(HttpAddressError::NoPort);
        }
        Ok(HttpAddress::At(address))
    }
}
