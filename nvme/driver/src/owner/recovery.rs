//! Recovery from a fault, removal and stop: a sequence of states, each with a time limit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugemem::DeviceMemory;
use nvme_spec::registers::{Csts, ShutdownStatus};
use reactors::Nanos;

use super::{AfterStop, DriveOwner, IDLE_BEFORE_CLOSE, State};
use crate::backing::DeviceBacking;
use crate::error::{DriveError, GoneReason};
use crate::registers::Registers;
use crate::shared::{FunctionReset, Phase, count};
use crate::startup::{Startup, StartupState};

/// Interval at which registers are read while only they show progress.
const REGISTER_POLL_INTERVAL: Nanos = Nanos::from_millis(1);

/// Maximum wait for CSTS.RDY = 0, regardless of CAP.TO; after it the function is reset. Abandoned
/// requests end by then.
const DISABLE_MAX: Nanos = Nanos::from_secs(25);

/// Additional time for reactors to notice.
const ACKNOWLEDGE_MAX: Nanos = Nanos::from_secs(3);

const _: () = assert!(DISABLE_MAX.0 + ACKNOWLEDGE_MAX.0 <= block::ABANDONED_MAX.0);

impl DriveOwner {
    /// Time at which a sleeping reactor reads the registers again.
    pub(super) fn next_register_poll(&self) -> Nanos {
        self.polled_at + REGISTER_POLL_INTERVAL
    }

    /// Handles a fault: stops the drive and starts it again.
    pub(super) fn begin_reset(&mut self, now: Nanos) {
        if !matches!(self.state, State::Running | State::Draining { .. }) {
            return;
        }
        count(&self.shared.counters.resets, 1);
        tracing::warn!(drive = self.shared.options.name, "resetting the controller");
        let then = match self.state {
            // The system requested the drive back, so do not start it again.
            State::Draining { then, .. } => then,
            _ => AfterStop::Restart,
        };
        self.set_reset_deadline(now);
        self.quiesce(now, then);
    }

    fn set_reset_deadline(&mut self, now: Nanos) {
        let ready = self.backing.as_ref().map_or(Nanos::ZERO, |backing| {
            let registers = Registers::new(&**backing);
            registers
                .cap()
                .map_or(Nanos::ZERO, |cap| registers.ready_timeout(cap))
        });
        self.reset_deadline = now + self.shared.options.deadlines.reset + ready + ready;
    }

    /// The drive's memory for data, which its neighbours may use.
    fn memory(&self) -> Option<Arc<DeviceMemory>> {
        let control = self.shared.control();
        control.drive_access.as_ref()?.data_memory.clone()
    }

    /// Ends the drive's memory: no request of a neighbour begins on it any more.
    fn end_memory(&self) {
        if let Some(memory) = self.memory() {
            memory.end();
        }
    }

    /// Whether no request of a neighbour has data in the drive's memory.
    fn neighbours_are_done(&self) -> bool {
        let memory = self.memory();
        memory.is_none_or(|it| it.neighbours_in_flight() == 0)
    }

    /// Ends the access of the neighbours, and of devices outside of the address space, to the drive's
    /// memory. Every stop of the controller does it first, because its memory loses the content.
    /// Requests that still use it fail in their device.
    pub(super) fn unshare_memory(&self) {
        if let Some(memory) = self.memory() {
            memory.end();
            memory.revoke_exports();
        }
        if let Some(backing) = &self.backing {
            backing.unshare_memory(self.neighbours_are_done());
        }
    }

    fn quiesce(&mut self, now: Nanos, then: AfterStop) {
        self.end_memory();
        let deadline = now + self.shared.options.deadlines.quiesce;
        self.state = State::Quiescing { deadline, then };
        self.publish(Phase::Quiesce);
    }

    /// Lets requests in flight complete, refuses new ones, and then stops the drive.
    pub(super) fn drain(&mut self, now: Nanos, then: AfterStop) {
        self.end_memory();
        let deadline = now + self.shared.options.deadlines.quiesce;
        self.state = State::Draining { deadline, then };
        self.set_reset_deadline(now);
        self.publish(Phase::Draining);
    }

    /// Starts the stop once no request has been in flight for a while.
    pub(super) fn close_when_idle(&mut self, now: Nanos) {
        if self.shared.in_flight() > 0 {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert(now);
        if now >= since + IDLE_BEFORE_CLOSE {
            self.drain(now, AfterStop::Close);
        }
    }

    /// The drive's status. If the drive is gone, starts its removal and returns `None`.
    pub(super) fn status(&mut self) -> Option<Csts> {
        let csts = self
            .backing
            .as_ref()
            .and_then(|backing| Registers::new(&**backing).csts());
        if csts.is_none() {
            self.handle_not_responding();
        }
        csts
    }

    /// Handles registers of all ones: the function is off the bus, without power or in reset, and
    /// accesses no memory.
    fn handle_not_responding(&mut self) {
        tracing::error!(
            drive = self.shared.options.name,
            "the drive does not respond"
        );
        self.unshare_memory();
        if let Some(backing) = &self.backing {
            // The function may return soon. An error can be ignored, because no function responds.
            let _ = backing.set_bus_master(false);
        }
        let then = match self.closing() {
            Some(AfterStop::Close) => AfterStop::Close,
            _ => AfterStop::Gone(GoneReason::NotResponding),
        };
        self.return_leases(then);
    }

    /// The state that follows a stop in progress.
    fn closing(&self) -> Option<AfterStop> {
        match self.state {
            State::Draining { then, .. }
            | State::Quiescing { then, .. }
            | State::ShuttingDown { then, .. }
            | State::Disabling { then, .. }
            | State::FunctionReset { then, .. }
            | State::ReturningLeases { then } => Some(then),
            State::Running | State::Restarting(_) | State::Gone | State::Closed => None,
        }
    }

    /// Ends all requests in flight, because the drive no longer accesses memory.
    fn return_leases(&mut self, then: AfterStop) {
        self.unshare_memory();
        self.shared.dma_running.store(false, Ordering::Release);
        self.admin = None;
        {
            let mut control = self.shared.control();
            control.drive_access = None;
            control.function_reset = FunctionReset::NotNeeded;
            match then {
                AfterStop::Restart => {}
                AfterStop::Gone(reason) => control.gone = Some(reason),
                AfterStop::Close => control.shut_down = true,
            }
        }
        self.state = State::ReturningLeases { then };
        self.publish(match then {
            AfterStop::Restart => Phase::Stopped,
            AfterStop::Gone(_) | AfterStop::Close => Phase::Gone,
        });
    }

    /// Performs the next state transition if its condition holds. Returns the amount of work done.
    pub(super) fn recover(&mut self, now: Nanos) -> u32 {
        match self.state {
            State::Draining { deadline, then } => {
                let idle = self.shared.all_acknowledged() && self.shared.in_flight() == 0;
                if !(idle && self.neighbours_are_done()) && now < deadline {
                    return 0;
                }
                self.quiesce(now, then);
            }
            State::Quiescing { deadline, then } => {
                let quiet = self.shared.all_acknowledged() && self.neighbours_are_done();
                if !quiet && now < deadline {
                    return 0;
                }
                self.quiesced(now, then);
            }
            State::ShuttingDown { deadline, then } => {
                let Some(csts) = self.status() else { return 1 };
                if csts.shst() != ShutdownStatus::COMPLETE {
                    if now < deadline {
                        return 0;
                    }
                    tracing::error!(
                        drive = self.shared.options.name,
                        "the drive does not complete its shutdown (CSTS.SHST): writes in its cache \
                         may be lost"
                    );
                }
                self.disable(now, then);
            }
            State::Disabling { deadline, then } => return self.disabling(now, deadline, then),
            State::FunctionReset { deadline, then } => {
                return self.await_function_reset(now, deadline, then);
            }
            State::ReturningLeases { then } => return self.returning_leases(now, then),
            State::Restarting(_) => return self.restarting(now),
            State::Running | State::Gone | State::Closed => return 0,
        }
        1
    }

    /// Stops the drive, after no pair rings a doorbell any more.
    fn quiesced(&mut self, now: Nanos, then: AfterStop) {
        self.unshare_memory();
        let Some(csts) = self.status() else { return };
        let backing = self.backing.clone();
        let Some(backing) = backing.filter(|_| then.shuts_down() && !csts.cfs()) else {
            return self.disable(now, then);
        };
        Registers::new(&*backing).notify_shutdown();
        let limits = self.shared.identity.get().map(|identity| identity.limits);
        let advertised_us = limits.map_or(0, |limits| u64::from(limits.shutdown_us));
        let deadlines = &self.shared.options.deadlines;
        let deadline = now + Nanos::from_micros(advertised_us).max(deadlines.shutdown);
        self.state = State::ShuttingDown { deadline, then };
    }

    fn disable(&mut self, now: Nanos, then: AfterStop) {
        let Some(backing) = self.backing.clone() else {
            return;
        };
        let registers = Registers::new(&*backing);
        if let Some(cc) = registers.cc() {
            registers.set_cc(
                cc.with_en(false)
                    .with_shn(nvme_spec::registers::ShutdownNotification::NONE),
            );
        }
        let timeout = registers
            .cap()
            .map_or(REGISTER_POLL_INTERVAL, |cap| registers.ready_timeout(cap));
        let deadline = now + timeout.min(DISABLE_MAX);
        self.state = State::Disabling { deadline, then };
    }

    fn disabling(&mut self, now: Nanos, deadline: Nanos, then: AfterStop) -> u32 {
        let Some(csts) = self.status() else { return 1 };
        if !csts.rdy() {
            if then != AfterStop::Restart
                && let Some(backing) = &self.backing
            {
                // As a precaution; a disabled controller transfers nothing.
                let _ = backing.set_bus_master(false);
            }
            self.return_leases(then);
            return 1;
        }
        if now < deadline {
            return 0;
        }
        tracing::error!(
            drive = self.shared.options.name,
            "the controller does not become disabled (CSTS.RDY)"
        );
        self.need_function_reset(now, then);
        1
    }

    /// Handles a drive that does not disable itself: turns its bus mastering off, and requests a
    /// function reset from the control thread.
    fn need_function_reset(&mut self, now: Nanos, then: AfterStop) {
        self.unshare_memory();
        let stopped = self
            .backing
            .as_ref()
            .is_some_and(|backing| backing.set_bus_master(false).is_ok());
        let may_retry = then == AfterStop::Restart && !self.function_reset_tried;
        if stopped && !may_retry {
            let then = match then {
                AfterStop::Restart => AfterStop::Gone(GoneReason::ResetFailed),
                other => other,
            };
            return self.return_leases(then);
        }
        self.function_reset_tried = true;
        self.shared.control().function_reset = FunctionReset::Needed;
        if stopped {
            // Requests in flight do not have to wait for the reset.
            self.shared.dma_running.store(false, Ordering::Release);
            self.publish(Phase::Stopped);
        }
        let deadline = self.reset_deadline.max(now);
        self.state = State::FunctionReset { deadline, then };
    }

    fn await_function_reset(&mut self, now: Nanos, deadline: Nanos, then: AfterStop) -> u32 {
        let outcome = self.shared.control().function_reset;
        let stopped = !self.shared.dma_running.load(Ordering::Acquire);
        let late = now >= deadline;
        match outcome {
            FunctionReset::Done => self.return_leases(then),
            FunctionReset::Failed if stopped => self.give_up(then),
            _ if late && stopped => self.give_up(then),
            // Without a reset and with access to host memory the drive keeps its buffers: no
            // request in flight may end. The control thread may try again.
            FunctionReset::Failed if !late => {
                self.shared.control().function_reset = FunctionReset::Needed;
            }
            // Do not read the registers: a function in reset returns all ones.
            FunctionReset::Failed | FunctionReset::Needed | FunctionReset::NotNeeded => return 0,
        }
        1
    }

    fn give_up(&mut self, then: AfterStop) {
        self.return_leases(match then {
            AfterStop::Restart => AfterStop::Gone(GoneReason::ResetFailed),
            other => other,
        });
    }

    fn returning_leases(&mut self, now: Nanos, then: AfterStop) -> u32 {
        // A stop does not wait for acknowledgements: each pair returns its leases at its next poll.
        if then != AfterStop::Close && !self.shared.all_acknowledged() {
            if then == AfterStop::Restart && now >= self.reset_deadline {
                self.return_leases(AfterStop::Gone(GoneReason::ReactorUnresponsive));
                return 1;
            }
            return 0;
        }
        match then {
            AfterStop::Restart => {
                if let Some(backing) = self.backing.clone() {
                    let startup = Startup::new(Arc::clone(&self.shared), backing);
                    self.state = State::Restarting(Box::new(startup));
                }
            }
            AfterStop::Gone(reason) => {
                let drive = self.shared.options.name.as_str();
                match reason {
                    GoneReason::Released => tracing::info!(drive, "{reason}"),
                    _ => tracing::error!(drive, "the drive is gone: {reason}"),
                }
                self.release();
                self.state = State::Gone;
            }
            AfterStop::Close => {
                self.release();
                self.state = State::Closed;
            }
        }
        1
    }

    /// Closes a drive that is gone.
    pub(super) fn close_gone(&mut self) {
        let reattached = {
            let mut control = self.shared.control();
            control.shut_down = true;
            control.reattached.take()
        };
        drop(reattached);
        self.state = State::Closed;
    }

    /// Drops the backing, so that the drive can be closed.
    fn release(&mut self) {
        self.backing = None;
        self.shared.control().backing = None;
    }

    fn restarting(&mut self, now: Nanos) -> u32 {
        let State::Restarting(startup) = &mut self.state else {
            return 0;
        };
        match startup.poll(now) {
            StartupState::Pending if now < self.reset_deadline => 0,
            StartupState::Pending => {
                self.restart_failed(now, None);
                1
            }
            StartupState::Ready(started) => {
                let first = self.state_word.phase() == Phase::Gone;
                self.install(*started, now);
                let counters = &self.shared.counters;
                let counter = if first {
                    &counters.reattachments
                } else {
                    &counters.recoveries
                };
                count(counter, 1);
                tracing::info!(drive = self.shared.options.name, "the drive is ready again");
                1
            }
            StartupState::Failed(error) => {
                self.restart_failed(now, Some(&error));
                1
            }
        }
    }

    fn restart_failed(&mut self, now: Nanos, error: Option<&DriveError>) {
        if let Some(error) = error {
            tracing::error!(
                drive = self.shared.options.name,
                error = error as &dyn std::error::Error,
                "the drive did not start"
            );
        }
        let came_back = self.state_word.phase() == Phase::Gone;
        let changed = matches!(error, Some(DriveError::DifferentDrive(_)));
        let then = if changed {
            AfterStop::Gone(GoneReason::Changed)
        } else if came_back {
            AfterStop::Gone(GoneReason::ResetFailed)
        } else {
            AfterStop::Restart
        };
        if self.status().is_none() {
            return;
        }
        if let Some(backing) = &self.backing {
            let registers = Registers::new(&**backing);
            if let Some(cc) = registers.cc() {
                registers.set_cc(cc.with_en(false));
            }
        }
        self.need_function_reset(now, then);
    }

    /// Starts a reattached drive. Returns true if there was one.
    pub(super) fn start_reattached(&mut self, now: Nanos) -> bool {
        let Some(backing) = self.shared.control().reattached.take() else {
            return false;
        };
        self.set_backing(Arc::clone(&backing));
        self.set_reset_deadline(now);
        self.function_reset_tried = false;
        let startup = Startup::new(Arc::clone(&self.shared), backing);
        self.state = State::Restarting(Box::new(startup));
        true
    }

    fn set_backing(&mut self, backing: Arc<dyn DeviceBacking>) {
        self.shared.control().backing = Some(Arc::clone(&backing));
        self.backing = Some(backing);
    }
}
