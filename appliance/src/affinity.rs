//! The cores of threads that are no reactors.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Moves the calling thread away from the reactors' cores, if there are others.
pub(crate) fn avoid_reactor_cores(cores: &[usize]) {
    let Ok(mut allowed) = sched_getaffinity(None) else {
        return;
    };
    for core in cores {
        allowed.unset(*core);
    }
    let is_free = (0..CpuSet::MAX_CPU).any(|core| allowed.is_set(core));
    if is_free && let Err(error) = sched_setaffinity(None, &allowed) {
        tracing::debug!(%error, "a thread stays on all cores");
    }
}
