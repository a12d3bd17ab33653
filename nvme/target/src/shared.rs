//! What the cores share of one controller: a gate that every I/O command passes, and flags.
//!
//! The controller's state belongs to the core of its admin queue. The other cores read the gate,
//! set the traffic flag, and are called to attention when something has to end.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::counters::IoTotals;
use crate::error_log::ErrorLog;
use crate::interface::CloseReason;

/// Subsystem slot of discovery controllers.
pub(crate) const DISCOVERY_SLOT: u32 = u32::MAX;

/// What the gate of a controller says: how often it was reset, and whether I/O may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate(u64);

impl Gate {
    const OPEN: u64 = 1;

    fn closed(resets: u64) -> Self {
        Self(resets << 1)
    }

    /// Whether I/O may pass.
    pub(crate) fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    /// How often the controller was reset.
    pub(crate) fn resets(self) -> u64 {
        self.0 >> 1
    }
}

/// Who a controller is, and for whom.
#[derive(Clone, Debug)]
pub(crate) struct ControllerIdentity {
    pub(crate) cntlid: u16,
    /// Slot of the subsystem, or [`DISCOVERY_SLOT`].
    pub(crate) subsystem: u32,
    pub(crate) subsystem_nqn: String,
    pub(crate) host_nqn: String,
    pub(crate) host_id: [u8; 16],
    pub(crate) admin_reactor: usize,
}

/// One controller, as all cores see it.
#[repr(align(64))]
pub(crate) struct ControllerShared {
    gate: AtomicU64,
    traffic: AtomicBool,
    write_through: AtomicBool,
    /// Whether the host has shut the controller down.
    parted: AtomicBool,
    ending: AtomicU8,
    leaves: AtomicU8,
    state: AtomicU8,
    io_queues_granted: AtomicU16,
    internal_errors: AtomicU32,
    pub(crate) identity: ControllerIdentity,
    pub(crate) errors: ErrorLog,
    closed_queues: Mutex<IoTotals>,
}

impl ControllerShared {
    /// A controller that is not enabled.
    pub(crate) fn new(identity: ControllerIdentity, io_queues_granted: u16) -> Self {
        Self {
            gate: AtomicU64::new(Gate::closed(0).0),
            traffic: AtomicBool::new(false),
            write_through: AtomicBool::new(false),
            parted: AtomicBool::new(false),
            ending: AtomicU8::new(0),
            leaves: AtomicU8::new(0),
            state: AtomicU8::new(0),
            io_queues_granted: AtomicU16::new(io_queues_granted),
            internal_errors: AtomicU32::new(0),
            identity,
            errors: ErrorLog::new(),
            closed_queues: Mutex::new(IoTotals::default()),
        }
    }

    /// The gate now. Acquire: whoever sees it open sees all that was done before it was opened.
    #[inline]
    pub(crate) fn gate(&self) -> Gate {
        Gate(self.gate.load(Ordering::Acquire))
    }

    /// Lets I/O pass.
    pub(crate) fn open_gate(&self) {
        self.gate.fetch_or(Gate::OPEN, Ordering::Release);
    }

    /// Stops I/O; the queues stay.
    pub(crate) fn close_gate(&self) {
        self.gate.fetch_and(!Gate::OPEN, Ordering::Release);
    }

    /// Stops I/O for good on all queues that there are: they belong to the time before a reset.
    pub(crate) fn reset_gate(&self) {
        let resets = self.gate().resets() + 1;
        self.gate.store(Gate::closed(resets).0, Ordering::Release);
    }

    /// Notes that a command came. Read before written, so that the line stays shared between cores.
    #[inline]
    pub(crate) fn note_traffic(&self) {
        if !self.traffic.load(Ordering::Relaxed) {
            self.traffic.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a command came since this was last asked.
    pub(crate) fn take_traffic(&self) -> bool {
        self.traffic.swap(false, Ordering::Relaxed)
    }

    /// Whether the host switched the volatile write cache off: each write is then durable.
    #[inline]
    pub(crate) fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    pub(crate) fn set_write_through(&self, on: bool) {
        self.write_through.store(on, Ordering::Relaxed);
    }

    /// The host shuts the controller down: it parts in order.
    pub(crate) fn part(&self) {
        self.parted.store(true, Ordering::Relaxed);
    }

    /// Whether the host has shut the controller down.
    pub(crate) fn has_parted(&self) -> bool {
        self.parted.load(Ordering::Relaxed)
    }

    /// Why the whole association ends, once it does.
    pub(crate) fn ending(&self) -> Option<CloseReason> {
        reason_of(self.ending.load(Ordering::Acquire))
    }

    /// Ends the association; the first reason stays.
    pub(crate) fn end(&self, reason: CloseReason) {
        let code = code_of(reason);
        let _ = self
            .ending
            .compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
        self.close_gate();
    }

    /// Why the association ends once its commands are answered, if it is to.
    pub(crate) fn leaves(&self) -> Option<CloseReason> {
        reason_of(self.leaves.load(Ordering::Acquire))
    }

    /// Has the association end once its commands are answered; the first reason stays.
    pub(crate) fn leave(&self, reason: CloseReason) {
        let code = code_of(reason);
        let _ = self
            .leaves
            .compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
    }

    /// I/O queues that the host may create.
    pub(crate) fn io_queues_granted(&self) -> u16 {
        self.io_queues_granted.load(Ordering::Acquire)
    }

    pub(crate) fn grant_io_queues(&self, queues: u16) {
        self.io_queues_granted.store(queues, Ordering::Release);
    }

    /// Notes an internal error that happened on some core.
    pub(crate) fn note_internal_error(&self) {
        self.internal_errors.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether there were internal errors since this was last asked.
    pub(crate) fn take_internal_errors(&self) -> bool {
        self.internal_errors.load(Ordering::Acquire) != 0
            && self.internal_errors.swap(0, Ordering::AcqRel) != 0
    }

    /// The state's code, for snapshots.
    pub(crate) fn state_code(&self) -> u8 {
        self.state.load(Ordering::Relaxed)
    }

    pub(crate) fn set_state_code(&self, code: u8) {
        self.state.store(code, Ordering::Relaxed);
    }

    /// What went over queues that are closed by now.
    pub(crate) fn closed_queues(&self) -> MutexGuard<'_, IoTotals> {
        self.closed_queues
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

const REASONS: [CloseReason; 8] = [
    CloseReason::Disconnected,
    CloseReason::ControllerReset,
    CloseReason::AssociationLost,
    CloseReason::KeepAliveExpired,
    CloseReason::Inactive,
    CloseReason::Revoked,
    CloseReason::TargetShutdown,
    CloseReason::Reconfigured,
];

/// The code of a reason: its place in [`REASONS`], counted from 1.
const fn code_of(reason: CloseReason) -> u8 {
    match reason {
        CloseReason::Disconnected => 1,
        CloseReason::ControllerReset => 2,
        CloseReason::AssociationLost => 3,
        CloseReason::KeepAliveExpired => 4,
        CloseReason::Inactive => 5,
        CloseReason::Revoked => 6,
        CloseReason::TargetShutdown => 7,
        CloseReason::Reconfigured => 8,
    }
}

fn reason_of(code: u8) -> Option<CloseReason> {
    REASONS.get(usize::from(code).wrapping_sub(1)).copied()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn controller() -> ControllerShared {
        let identity = ControllerIdentity {
            cntlid: 1,
            subsystem: 0,
            subsystem_nqn: "nqn.2026-11.org.windlass:test".to_owned(),
            host_nqn: "nqn.2014-08.org.nvmexpress:uuid:host".to_owned(),
            host_id: [7; 16],
            admin_reactor: 0,
        };
        ControllerShared::new(identity, 4)
    }

    #[test]
    fn a_reset_shuts_out_the_queues_of_before() {
        let controller = controller();
        assert!(!controller.gate().is_open());
        controller.open_gate();
        let before = controller.gate();
        assert!(before.is_open());
        controller.close_gate();
        assert_ne!(controller.gate(), before);
        assert_eq!(controller.gate().resets(), before.resets());
        controller.open_gate();
        assert_eq!(controller.gate(), before);
        controller.reset_gate();
        controller.open_gate();
        assert!(controller.gate().is_open());
        assert_ne!(controller.gate(), before);
        assert_ne!(controller.gate().resets(), before.resets());
    }

    #[test]
    fn the_first_reason_to_end_stays() {
        let controller = controller();
        controller.open_gate();
        assert_eq!(controller.ending(), None);
        controller.end(CloseReason::KeepAliveExpired);
        controller.end(CloseReason::AssociationLost);
        assert_eq!(controller.ending(), Some(CloseReason::KeepAliveExpired));
        assert!(!controller.gate().is_open());
    }

    #[test]
    fn every_reason_survives_its_code() {
        for reason in REASONS {
            assert_eq!(reason_of(code_of(reason)), Some(reason));
        }
        assert_eq!(reason_of(0), None);
        assert_eq!(reason_of(9), None);
    }

    #[test]
    fn traffic_and_errors_are_told_once() {
        let controller = controller();
        assert!(!controller.take_traffic());
        controller.note_traffic();
        controller.note_traffic();
        assert!(controller.take_traffic());
        assert!(!controller.take_traffic());
        controller.note_internal_error();
        assert!(controller.take_internal_errors());
        assert!(!controller.take_internal_errors());
    }
}
