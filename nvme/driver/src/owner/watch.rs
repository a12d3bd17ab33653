//! Monitoring while the drive runs: its status at every tick, and the faults that pairs report.

use std::sync::atomic::Ordering;

use nvme_spec::Sqe;
use reactors::Nanos;

use super::{AfterStop, DriveOwner, State};
use crate::admin::Purpose;
use crate::drive_access::queue_id;
use crate::error::GoneReason;
use crate::shared::{Fault, FaultKind, count};

impl DriveOwner {
    /// Checks the drive's status and all deadlines, once per tick.
    pub(super) fn watch(&mut self, now: Nanos) {
        let Some(csts) = self.status() else { return };
        if csts.cfs() {
            tracing::warn!(
                drive = self.shared.options.name,
                "the controller reports a fatal error"
            );
            return self.begin_reset(now);
        }
        if !csts.rdy() {
            tracing::warn!(
                drive = self.shared.options.name,
                "the controller was reset or lost power unexpectedly"
            );
            return self.begin_reset(now);
        }
        let late = self.admin.as_ref().and_then(|admin| admin.overdue(now));
        if let Some(error) = late {
            count(&self.shared.counters.timeouts, 1);
            tracing::warn!(drive = self.shared.options.name, "{error}");
            return self.begin_reset(now);
        }
        let wanted_back = self
            .backing
            .as_ref()
            .is_some_and(|backing| backing.removal_requested());
        if wanted_back && matches!(self.state, State::Running) {
            tracing::warn!(
                drive = self.shared.options.name,
                "the system requests removal of the drive"
            );
            return self.drain(now, AfterStop::Gone(GoneReason::RemovalRequested));
        }
        self.wake_sleepers();
        if now >= self.health_due {
            self.health_due = now + self.shared.options.health_interval;
            self.fetch_health(now);
            self.fetch_errors(now);
        }
    }

    /// Wakes reactors that sleep while a command is overdue, so that they check it.
    fn wake_sleepers(&self) {
        let deadlines = self.shared.options.deadlines;
        let overdue = deadlines.ticks(deadlines.command);
        for (reactor, pair) in self.shared.pairs.iter().enumerate() {
            let asleep = pair.asleep.load(Ordering::Acquire);
            let Some(oldest) = asleep.checked_sub(1) else {
                continue;
            };
            // The word contains a tick, which has 32 bits.
            if self.state_word.tick().wrapping_sub(oldest as u32) >= overdue {
                self.shared.wake(reactor);
            }
        }
    }

    /// Handles the faults that pairs reported.
    pub(super) fn take_faults(&mut self, now: Nanos) -> u32 {
        let mut moved = 0;
        for reactor in 0..self.shared.pairs.len() {
            let Some(fault) = self.shared.pairs[reactor].take_fault() else {
                continue;
            };
            moved += 1;
            if fault.epoch() == self.state_word.epoch() {
                self.fault(reactor, fault, now);
            }
        }
        moved
    }

    fn fault(&mut self, reactor: usize, fault: Fault, now: Nanos) {
        let counters = &self.shared.counters;
        let (counter, what) = match fault.kind() {
            FaultKind::None => return,
            FaultKind::Overdue => return self.abort(reactor, fault, now),
            FaultKind::Stuck => (&counters.timeouts, "an abort did not end a command"),
            FaultKind::UnknownIdentifier => (
                &counters.unknown_identifiers,
                "a completion has an unknown command identifier",
            ),
            FaultKind::StaleIdentifier => (
                &counters.stale_identifiers,
                "a completion has the identifier of a completed command",
            ),
            FaultKind::BadHead => (
                &counters.bad_heads,
                "a completion has a wrong queue identifier or queue head",
            ),
        };
        count(counter, 1);
        tracing::warn!(
            drive = self.shared.options.name,
            reactor,
            cid = fault.cid(),
            "{what}"
        );
        self.begin_reset(now);
    }

    /// Sends an Abort for an overdue command. If that does not help, the pair reports the command
    /// as stuck.
    fn abort(&mut self, reactor: usize, fault: Fault, now: Nanos) {
        count(&self.shared.counters.timeouts, 1);
        tracing::warn!(
            drive = self.shared.options.name,
            reactor,
            cid = fault.cid(),
            "a command exceeded its deadline: aborting it"
        );
        let limit = self
            .shared
            .identity
            .get()
            .map_or(1, |identity| usize::from(identity.limits.aborts));
        let deadline = now + self.shared.options.deadlines.abort;
        let Some(admin) = &mut self.admin else { return };
        if admin.count(Purpose::Abort) >= limit {
            return;
        }
        let sqe = Sqe::abort_command(queue_id(reactor), fault.cid());
        if admin.submit(sqe, None, Purpose::Abort, Some(deadline)) {
            count(&self.shared.counters.aborts, 1);
        }
    }
}
