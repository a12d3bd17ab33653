//! The priority of threads that compute for hosts beside the reactors.

/// The niceness of a thread that shares a core with reactors or with programs of users: on a busy
/// core it has a tenth of the time of one that is not nice.
const NICENESS: i32 = 10;

/// Lowers the priority of the calling thread, so that its work delays neither reactors nor other
/// programs on cores that it shares with them.
pub fn lower_priority() {
    // On Linux this affects only the calling thread (setpriority(2)).
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "a thread keeps its priority");
    }
}
