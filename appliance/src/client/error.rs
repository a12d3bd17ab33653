//! Why a command got no answer, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// No answer. Every text ends with the next thing to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// Nobody answers at any of the places.
    #[error(
        "no appliance runs here (looked for {}): start one with `windlass run FILE` or `systemctl \
         start windlass`; where its configuration names another `socket` in [control], give that \
         with --socket",
        list(looked_at)
    )]
    NotRunning { looked_at: Vec<PathBuf> },
    /// There is a socket, and nobody behind it.
    #[error(
        "nobody answers at {socket}: the appliance that it belonged to has ended; start it again \
         with `windlass run FILE` or `systemctl start windlass`"
    )]
    Abandoned { socket: PathBuf },
    /// The kernel or the appliance does not let this user in.
    #[error("this user may not use {socket}: {remedy}")]
    NotPermitted { socket: PathBuf, remedy: String },
    /// The path is that of something else.
    #[error(
        "{socket} is no socket: give the path that `windlass run` prints behind `control:`, or \
         that `socket` of [control] names"
    )]
    NotASocket { socket: PathBuf },
    /// What answers speaks something else.
    #[error(
        "what answers at {socket} is no Windlass ({reason}): give the path that `windlass run` \
         prints behind `control:`"
    )]
    NotWindlass { socket: PathBuf, reason: String },
    /// The appliance and this command do not know the same things.
    #[error(
        "the appliance at {socket} is of another version than this command ({ours}): {what}; \
         restart the appliance with `systemctl restart windlass`, or use the command that it came \
         with",
        ours = env!("CARGO_PKG_VERSION")
    )]
    OtherVersion { socket: PathBuf, what: String },
    /// The time for the answer is over.
    #[error(
        "the appliance at {socket} did not answer within {within:?}: it may be stopped or \
         overloaded; `systemctl status windlass` and its journal say more"
    )]
    TooSlow { socket: PathBuf, within: Duration },
    /// The appliance says no, in its own words.
    #[error("{error}")]
    Refused { status: u16, error: String },
    /// Nothing that has a remedy of its own.
    #[error("asking the appliance at {socket}")]
    System {
        socket: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// What is asked cannot be written down.
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
