//! Pins the calling thread to one core, so that both ends of a measurement keep their cores.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The reason why a thread could not be pinned.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The process may not run on this core, or the machine does not have it.
    #[error("core {core} is not available to this process (available: {available})")]
    NotAvailable {
        /// The requested core.
        core: usize,
        /// The cores that the process may use, as a list.
        available: String,
    },
    /// The kernel refused.
    #[error("cannot pin to core {core}: {source}")]
    Refused {
        /// The requested core.
        core: usize,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// The cores that this process may run on, in ascending order.
#[must_use]
pub fn available_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..CpuSet::MAX_CPU)
        .filter(|&core| set.is_set(core))
        .collect()
}

/// Pins the calling thread to `core`.
///
/// # Errors
/// [`PinError`] if the process may not use the core.
pub fn pin_to_core(core: usize) -> Result<(), PinError> {
    let available = available_cores();
    if !available.is_empty() && !available.contains(&core) {
        let list: Vec<String> = available.iter().map(ToString::to_string).collect();
        return Err(PinError::NotAvailable {
            core,
            available: list.join(", "),
        });
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|errno| PinError::Refused {
        core,
        source: errno.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_is_pinned_to_the_given_core() {
        let cores = available_cores();
        let last = *cores.last().expect("at least one core");
        let seen = std::thread::spawn(move || pin_to_core(last).map(|()| available_cores()))
            .join()
            .expect("the thread ends");
        assert_eq!(seen.expect("pinned"), vec![last]);
    }

    #[test]
    fn missing_core_is_named() {
        let error = pin_to_core(CpuSet::MAX_CPU - 1).expect_err("no such core");
        assert!(error.to_string().contains("is not available"), "{error}");
    }
}
