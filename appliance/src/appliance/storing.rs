//! The stop of a service that systemd may restart (`ARCHITECTURE.md` §9.1): the state and the
//! descriptors go to systemd's descriptor store, from which the next process continues.
//!
//! Only systemd knows whether a stop is the first half of a restart. It keeps the store for a
//! restart. After any other stop it closes the descriptors, by which the connections end.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use nvme_handover_channel::{Left, store, take};

use super::{Appliance, with_watchdog};
use crate::error::{Failure, with_causes};
use crate::event_loop::{EventLoop, aside};
use crate::service;
use crate::watchdog_loop::WatchdogLoop;

/// Time in which aborted copies have to end.
const COPIES_TIME_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[error("not every file could be flushed: the log has the reason")]
struct NotFlushed;

impl Appliance {
    /// Leaves the state to the next process, if the service manager stores descriptors. Returns
    /// whether this process must end without releasing anything; otherwise it serves on.
    pub(super) fn store(&self, watchdog_loop: &mut WatchdogLoop) -> bool {
        if !service::stores_descriptors() {
            return false;
        }
        service::stopping(self.shutdown_deadline());
        match self.try_to_store(watchdog_loop) {
            Ok(connections) => {
                tracing::info!(
                    "stopped; the state and {connections} connection(s) are in the descriptor \
                     store, from which a restart continues"
                );
                true
            }
            Err(error) => {
                let reason = with_causes(error.as_ref());
                tracing::warn!(
                    "a restart will not continue the connections and the content of RAM devices: \
                     {reason}"
                );
                false
            }
        }
    }

    fn try_to_store(&self, watchdog_loop: &mut WatchdogLoop) -> Result<usize, Failure> {
        let mut event_loop = with_watchdog(&self.drives, &self.reactors, watchdog_loop);
        self.end_copies(&mut event_loop);
        self.check_upgrade()?;
        let gate = self.close_change_gate(&mut event_loop)?;
        let left = self
            .close_to_hosts(&mut event_loop)
            .and_then(|()| self.leave_state(&mut event_loop));
        match left {
            Ok(connections) => {
                gate.stay_closed();
                Ok(connections)
            }
            Err(error) => {
                // RDMA hosts are disconnected already, and the stop goes on.
                self.drives.take_back(&mut event_loop);
                self.tcp.resume(&mut event_loop)?;
                self.tcp.set_paused(false);
                Err(error)
            }
        }
    }

    /// Aborts the copies of devices. One that does not end in time prevents that the state is stored.
    fn end_copies(&self, event_loop: &mut dyn EventLoop) {
        self.copies.abort_all();
        let deadline = event_loop.now() + COPIES_TIME_MAX;
        while self.copies.running().is_some() && event_loop.now() < deadline {
            event_loop.rest();
        }
        self.copies.report_ended(self.reconciler.devices());
    }

    /// Completes the requests in flight, and stores the state. Returns the number of connections.
    fn leave_state(&self, event_loop: &mut dyn EventLoop) -> Result<usize, Failure> {
        let (offer, offered) = self.offer()?;
        let (state, sockets) = self.export_when_quiet(event_loop)?;
        // The stop may precede the end of power.
        let devices = self.reconciler.devices();
        if !aside(event_loop, || Ok(devices.flush_files()))? {
            return Err(NotFlushed.into());
        }
        self.drives.release(event_loop)?;
        let stored = store(&Left {
            offer,
            offered: offered.iter().map(|it| it.as_fd()).collect(),
            state,
            passed: sockets
                .iter()
                .map(|it| it.as_fd())
                .collect::<Vec<BorrowedFd<'_>>>(),
        })?;
        if let Err(error) = service::store_descriptor(stored.as_fd()) {
            // This process uses the connections again, so no other one may.
            let _ = take(stored.into());
            return Err(error.into());
        }
        Ok(sockets.len())
    }
}
