//! Drives in a hand-over (`ARCHITECTURE.md` §9.1): they are shut down and released when no request is
//! left, so that the new process can open them, and opened again if it does not serve.

use std::sync::atomic::Ordering;
use std::time::Duration;

use vfio::PciAddress;

use super::Drives;
use crate::event_loop::EventLoop;

/// Time in which drives have to shut down. Hosts wait meanwhile.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(10);
/// Time in which drives have to be ready again. Hosts wait meanwhile.
const TAKE_BACK_TIME_MAX: Duration = Duration::from_secs(15);

/// A drive is not released.
#[derive(Debug, thiserror::Error)]
#[error("{names}: {address} is not released within {RELEASE_TIME_MAX:?}")]
pub(crate) struct NotReleased {
    names: String,
    address: PciAddress,
}

impl Drives {
    /// Shuts all drives down and releases them. No request is in flight, and none begins until they
    /// are [taken back](Self::take_back).
    ///
    /// # Errors
    /// The first drive that is not released in time. The drives are to be taken back then.
    pub(crate) fn release(&self, event_loop: &mut dyn EventLoop) -> Result<(), NotReleased> {
        self.is_released.store(true, Ordering::Relaxed);
        let used = || self.acquired();
        used().iter().for_each(|it| it.drive.release());
        let deadline = event_loop.now() + RELEASE_TIME_MAX;
        loop {
            // Some are stopped only by a reset of their function.
            self.reset_functions();
            self.bus.close_released();
            let waits_for = {
                let acquired = used();
                let mut kept = acquired.iter().filter(|it| !it.drive.wants_reopen());
                kept.next().map(|it| (it.names.clone(), it.address))
            };
            let Some((names, address)) = waits_for else {
                self.bus.close_released();
                return Ok(());
            };
            if event_loop.now() >= deadline {
                return Err(NotReleased { names, address });
            }
            event_loop.rest();
        }
    }

    /// Opens the drives again that are [released](Self::release), and waits until they are ready.
    /// Those that are not ready in time are tried again while hosts are served.
    pub(crate) fn take_back(&self, event_loop: &mut dyn EventLoop) {
        if !self.is_released.swap(false, Ordering::Relaxed) {
            return;
        }
        let deadline = event_loop.now() + TAKE_BACK_TIME_MAX;
        loop {
            self.poll(event_loop.now());
            let waits_for = {
                let acquired = self.acquired();
                let mut missing = acquired.iter().filter(|it| !it.drive.is_ready_everywhere());
                missing.next().map(|it| (it.names.clone(), it.address))
            };
            let Some((names, address)) = waits_for else {
                return;
            };
            if event_loop.now() >= deadline {
                tracing::error!("{names}: {address} is not ready again, it is tried further");
                return;
            }
            event_loop.rest();
        }
    }

    /// Number of drives with devices.
    pub(crate) fn used(&self) -> usize {
        self.acquired()
            .iter()
            .filter(|it| !it.users.is_empty())
            .count()
    }
}
