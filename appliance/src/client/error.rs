//! Errors of a command's request to the appliance, with their remedies.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A request without a usable response. Every text ends with the next step for the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// No socket accepts a connection.
    #[error(
        "no appliance runs here (looked for {}): start one with `windlass run FILE` or `systemctl \
         start windlass`; where its configuration names another `socket` in [control], give that \
         with --socket",
        list(looked_at)
    )]
    NoAppliance { looked_at: Vec<PathBuf> },
    /// There is a socket, but no process listens on it.
    #[error(
        "no appliance listens at {socket}: the one that created it has ended; start it again \
         with `windlass run FILE` or `systemctl start windlass`"
    )]
    StaleSocket { socket: PathBuf },
    /// The kernel or the appliance denies access to this user.
    #[error("this user may not use {socket}: {remedy}")]
    NotPermitted { socket: PathBuf, remedy: String },
    /// The path is not a socket.
    #[error(
        "{socket} is not a socket: give the path that `windlass run` prints after `control:`, or \
         that `socket` of [control] names"
    )]
    NotASocket { socket: PathBuf },
    /// The process that listens does not implement this protocol.
    #[error(
        "{socket} does not belong to Windlass ({reason}): give the path that `windlass run` \
         prints behind `control:`"
    )]
    NotWindlass { socket: PathBuf, reason: String },
    /// The appliance and this command have different versions.
    #[error(
        "the appliance at {socket} has a different version than this command ({ours}): {what}; \
         restart the appliance with `systemctl restart windlass`, or use the command of its \
         version",
        ours = env!("CARGO_PKG_VERSION")
    )]
    OtherVersion { socket: PathBuf, what: String },
    /// The response did not arrive in time.
    #[error(
        "the appliance at {socket} did not answer within {within:?}: it may be stopped or \
         overloaded; `systemctl status windlass` and its journal say more"
    )]
    TooSlow { socket: PathBuf, within: Duration },
    /// The appliance refuses the request; its message is shown.
    #[error("{error}")]
    Refused { status: u16, error: String },
    /// An error of the operating system without a specific remedy.
    #[error("asking the appliance at {socket}")]
    System {
        socket: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// The request cannot be encoded.
    #[error("the request cannot be written")]
    Request {
        #[source]
        cause: serde_json::Error,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(" and ")
}
