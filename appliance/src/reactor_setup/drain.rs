//! Drains a reactor's devices: after its services have ended, the devices' volatile caches are
//! flushed and their queues emptied. When all reactors have done so, drives are shut down
//! (`appliance/src/nvme`).

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use block::{DevicePoller, DeviceSet, ReactorDevices};
use reactors::{Nanos, Poller, Progress, StopState};

/// The poller of a reactor's devices, which runs after those of its services. It reports when the
/// devices are drained.
pub(crate) struct DrainedDevices {
    poller: DevicePoller,
    set: Rc<DeviceSet>,
    /// Number of reactors whose devices are not drained, including this one until they are.
    undrained: Arc<AtomicUsize>,
    is_drained: bool,
}

impl DrainedDevices {
    /// Creates the poller of these devices.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn new(devices: ReactorDevices, undrained: Arc<AtomicUsize>) -> io::Result<Self> {
        Ok(Self {
            set: Rc::clone(devices.set()),
            poller: DevicePoller::new(devices)?,
            undrained,
            is_drained: false,
        })
    }
}

impl Poller for DrainedDevices {
    fn name(&self) -> &str {
        self.poller.name()
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        self.poller.poll(now)
    }

    fn flush(&mut self, now: Nanos) {
        self.poller.flush(now);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.poller.next_deadline()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        self.poller.wake_source()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.poller.prepare_sleep()
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        let state = self.poller.stop(now);
        if state == StopState::Stopped && !std::mem::replace(&mut self.is_drained, true) {
            // No host waits for the flush of a shutdown, so a failure is logged.
            if self.set.has_failed_to_flush() {
                tracing::error!(
                    "a device could not be flushed before the stop: writes may be lost"
                );
            }
            self.undrained.fetch_sub(1, Ordering::AcqRel);
        }
        state
    }
}
