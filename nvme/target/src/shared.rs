//! The part of a controller that all cores share: a gate that every I/O command passes, and flags.
//!
//! The controller's state belongs to the core of its admin queue. The other cores read the gate,
//! set the traffic flag, and are notified when a queue has to end.

mod handover;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvme_spec::log::ReservationNotificationType;
use reactors::Nanos;

use crate::ana::AnaRestrictions;
use crate::authentication::QueueAuthentication;
use crate::config::PortId;
use crate::counters::IoTotals;
use crate::error_log::ErrorLog;
use crate::interface::CloseReason;
use crate::reservations::notices::ReservationNotices;
use crate::reservations::restrictions::{DeviceAccess, Restrictions};
use crate::secure_channel::QueueChannel;

/// Subsystem slot of discovery controllers.
pub(crate) const DISCOVERY_SLOT: u32 = u32::MAX;

/// The gate of a controller: the number of its resets, whether I/O may pass, whether a fence holds
/// back commands that change data, and whether a reservation may refuse commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate(u64);

impl Gate {
    const OPEN: u64 = 1;
    /// Devices may still have requests of an ended association of the same host.
    const FENCED: u64 = 1 << 1;
    /// The restrictions of the controller have to be checked.
    const RESTRICTED: u64 = 1 << 2;
    /// Only in the gate of a queue whose host has to authenticate itself first: it then never equals
    /// that of the controller.
    const UNAUTHENTICATED: u64 = 1 << 3;
    /// The bits that do not depend on resets.
    const CONDITIONS: u64 = Self::FENCED | Self::RESTRICTED;
    const RESETS_SHIFT: u32 = 4;

    fn closed(resets: u64) -> Self {
        Self(resets << Self::RESETS_SHIFT)
    }

    /// The same gate without a fence and restrictions.
    pub(crate) fn unconditional(self) -> Self {
        Self(self.0 & !Self::CONDITIONS)
    }

    /// The gate of a queue that executes no commands before its host is authenticated.
    pub(crate) fn unauthenticated(self) -> Self {
        Self(self.0 | Self::UNAUTHENTICATED)
    }

    /// The same gate for a queue whose host is authenticated.
    pub(crate) fn authenticated(self) -> Self {
        Self(self.0 & !Self::UNAUTHENTICATED)
    }

    /// Whether the host has to authenticate itself first.
    pub(crate) fn is_unauthenticated(self) -> bool {
        self.0 & Self::UNAUTHENTICATED != 0
    }

    /// Whether reservations may refuse commands.
    pub(crate) fn is_restricted(self) -> bool {
        self.0 & Self::RESTRICTED != 0
    }

    /// Whether restrictions are the only difference to `other`, which has none.
    #[inline(always)]
    pub(crate) fn differs_by_restrictions(self, other: Self) -> bool {
        self.0 ^ other.0 == Self::RESTRICTED
    }

    /// Whether commands that change data have to wait.
    pub(crate) fn is_fenced(self) -> bool {
        self.0 & Self::FENCED != 0
    }

    /// Whether I/O may pass.
    pub(crate) fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    /// Number of resets of the controller.
    pub(crate) fn resets(self) -> u64 {
        self.0 >> Self::RESETS_SHIFT
    }
}

/// The identity of a controller and its host.
#[derive(Clone, Debug)]
pub(crate) struct ControllerIdentity {
    pub(crate) cntlid: u16,
    /// Slot of the subsystem, or [`DISCOVERY_SLOT`].
    pub(crate) subsystem: u32,
    pub(crate) subsystem_nqn: String,
    pub(crate) host_nqn: String,
    pub(crate) host_id: [u8; 16],
    /// Number of the host's accounts in the arena.
    pub(crate) host_account: u16,
    pub(crate) admin_reactor: usize,
    /// The port at which the host connected its admin queue.
    pub(crate) port: PortId,
    /// Most entries of an I/O queue, as reported to the host when it connected; for a discovery
    /// controller, of its admin queue.
    pub(crate) queue_depth_max: u16,
    /// The Keep Alive Timeout of the Connect, milliseconds; it also limits authentications.
    pub(crate) keep_alive_ms: u32,
    /// Whether its queues use secure channels.
    pub(crate) is_secure: bool,
}

/// One controller as all cores access it.
#[repr(align(64))]
pub(crate) struct ControllerShared {
    gate: AtomicU64,
    traffic: AtomicBool,
    write_through: AtomicBool,
    copies_namespaces: AtomicBool,
    /// Whether the host has shut the controller down.
    host_shutdown: AtomicBool,
    ending: AtomicU8,
    drain_requested: AtomicU8,
    state: AtomicU8,
    io_queues_granted: AtomicU16,
    internal_errors: AtomicU32,
    /// When the last admin command was received, in nanoseconds.
    last_command: AtomicU64,
    awaits_event: AtomicBool,
    pub(crate) restrictions: Restrictions,
    notices: Mutex<ReservationNotices>,
    has_notices: AtomicBool,
    pub(crate) identity: ControllerIdentity,
    pub(crate) errors: ErrorLog,
    closed_queues: Mutex<IoTotals>,
    authentications: Mutex<BTreeMap<u16, QueueAuthentication>>,
    channels: Mutex<BTreeMap<u16, QueueChannel>>,
}

impl ControllerShared {
    /// A controller that is not enabled.
    pub(crate) fn new(identity: ControllerIdentity, io_queues_granted: u16) -> Self {
        Self {
            gate: AtomicU64::new(Gate::closed(0).0),
            traffic: AtomicBool::new(false),
            write_through: AtomicBool::new(false),
            copies_namespaces: AtomicBool::new(false),
            host_shutdown: AtomicBool::new(false),
            ending: AtomicU8::new(0),
            drain_requested: AtomicU8::new(0),
            state: AtomicU8::new(0),
            io_queues_granted: AtomicU16::new(io_queues_granted),
            internal_errors: AtomicU32::new(0),
            last_command: AtomicU64::new(0),
            awaits_event: AtomicBool::new(false),
            restrictions: Restrictions::default(),
            notices: Mutex::default(),
            has_notices: AtomicBool::new(false),
            identity,
            errors: ErrorLog::new(),
            closed_queues: Mutex::new(IoTotals::default()),
            authentications: Mutex::default(),
            channels: Mutex::default(),
        }
    }

    /// The current gate. Acquire: a core that reads the open gate also sees all changes made before
    /// it was opened.
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

    /// Stops I/O permanently on all existing queues, which are from before the reset. Keeps fence
    /// and restrictions, which other reactors change.
    pub(crate) fn reset_gate(&self) {
        let reset = |gate: u64| {
            let closed = Gate::closed(Gate(gate).resets() + 1);
            Some(closed.0 | (gate & Gate::CONDITIONS))
        };
        let _ = self
            .gate
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, reset);
    }

    /// Raises or lifts the fence. Returns whether it changed. Called only under the registry's
    /// lock, so that its conditions do not change meanwhile. Release: a core that reads the lifted
    /// fence also sees the effects of the requests for which it was raised.
    pub(crate) fn set_fence(&self, raised: bool) -> bool {
        let before = if raised {
            self.gate.fetch_or(Gate::FENCED, Ordering::AcqRel)
        } else {
            self.gate.fetch_and(!Gate::FENCED, Ordering::AcqRel)
        };
        Gate(before).is_fenced() != raised
    }

    /// Sets the access to the device with the index `device`. Called only under the registry's lock.
    /// Release: a core that reads the gate afterwards also sees the restrictions.
    pub(crate) fn set_access(&self, device: u8, access: DeviceAccess) {
        self.restrictions.set(device, access);
        self.publish_restrictions();
    }

    /// Sets what the ANA states of the controller's port forbid. Called only under the registry's
    /// lock.
    pub(crate) fn set_ana(&self, ana: AnaRestrictions) {
        self.restrictions.set_ana(ana);
        self.publish_restrictions();
    }

    fn publish_restrictions(&self) {
        if self.restrictions.is_empty() {
            self.gate.fetch_and(!Gate::RESTRICTED, Ordering::AcqRel);
        } else {
            self.gate.fetch_or(Gate::RESTRICTED, Ordering::AcqRel);
        }
    }

    /// Records that a command was received. Reads before writing, so that the cache line stays
    /// shared between cores.
    #[inline]
    pub(crate) fn note_traffic(&self) {
        if !self.traffic.load(Ordering::Relaxed) {
            self.traffic.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a command was received since the last call.
    pub(crate) fn take_traffic(&self) -> bool {
        self.traffic.swap(false, Ordering::Relaxed)
    }

    /// Whether the host disabled the volatile write cache, so that each write has to be durable.
    #[inline]
    pub(crate) fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    pub(crate) fn set_write_through(&self, on: bool) {
        self.write_through.store(on, Ordering::Relaxed);
    }

    /// Whether the host enabled the format of Copy whose source ranges name their namespaces.
    pub(crate) fn copies_namespaces(&self) -> bool {
        self.copies_namespaces.load(Ordering::Relaxed)
    }

    pub(crate) fn set_copies_namespaces(&self, on: bool) {
        self.copies_namespaces.store(on, Ordering::Relaxed);
    }

    /// Records that the host has requested a shutdown.
    pub(crate) fn note_host_shutdown(&self) {
        self.host_shutdown.store(true, Ordering::Relaxed);
    }

    /// Whether the host has shut the controller down.
    pub(crate) fn is_shut_down_by_host(&self) -> bool {
        self.host_shutdown.load(Ordering::Relaxed)
    }

    /// The reason for which the association ends, if it does.
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

    /// The reason for which the association ends after its responses, if it does.
    pub(crate) fn drain_requested(&self) -> Option<CloseReason> {
        reason_of(self.drain_requested.load(Ordering::Acquire))
    }

    /// Ends the association after the responses to its commands; the first reason stays.
    pub(crate) fn drain_association(&self, reason: CloseReason) {
        let code = code_of(reason);
        let _ = self
            .drain_requested
            .compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
    }

    /// I/O queues that the host may create.
    pub(crate) fn io_queues_granted(&self) -> u16 {
        self.io_queues_granted.load(Ordering::Acquire)
    }

    pub(crate) fn grant_io_queues(&self, queues: u16) {
        self.io_queues_granted.store(queues, Ordering::Release);
    }

    /// Records an internal error on any core.
    pub(crate) fn note_internal_error(&self) {
        self.internal_errors.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether there were internal errors since the last call.
    pub(crate) fn take_internal_errors(&self) -> bool {
        self.internal_errors.load(Ordering::Acquire) != 0
            && self.internal_errors.swap(0, Ordering::AcqRel) != 0
    }

    /// When the last admin command was received.
    pub(crate) fn last_command(&self) -> Nanos {
        Nanos(self.last_command.load(Ordering::Relaxed))
    }

    /// Records the time of an admin command.
    pub(crate) fn note_command(&self, now: Nanos) {
        self.last_command.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Whether an Asynchronous Event Request is outstanding.
    pub(crate) fn awaits_event(&self) -> bool {
        self.awaits_event.load(Ordering::Relaxed)
    }

    pub(crate) fn set_awaits_event(&self, awaits: bool) {
        self.awaits_event.store(awaits, Ordering::Relaxed);
    }

    /// The state's code, for snapshots.
    pub(crate) fn state_code(&self) -> u8 {
        self.state.load(Ordering::Relaxed)
    }

    pub(crate) fn set_state_code(&self, code: u8) {
        self.state.store(code, Ordering::Relaxed);
    }

    /// Adds a reservation notification of the namespace `nsid` for the admin queue's core.
    pub(crate) fn add_notice(&self, nsid: u32, kind: ReservationNotificationType) {
        self.lock_notices().push(nsid, kind);
        self.has_notices.store(true, Ordering::Release);
    }

    /// The reservation notifications since the last call.
    pub(crate) fn take_notices(&self) -> ReservationNotices {
        match self.has_notices.swap(false, Ordering::AcqRel) {
            true => std::mem::take(&mut *self.lock_notices()),
            false => ReservationNotices::default(),
        }
    }

    fn lock_notices(&self) -> MutexGuard<'_, ReservationNotices> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the connected queues were authenticated, by queue identifier.
    pub(crate) fn authentications(&self) -> MutexGuard<'_, BTreeMap<u16, QueueAuthentication>> {
        let authentications = self.authentications.lock();
        authentications.unwrap_or_else(PoisonError::into_inner)
    }

    /// The secure channels of the connected queues, by queue identifier.
    pub(crate) fn channels(&self) -> MutexGuard<'_, BTreeMap<u16, QueueChannel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Totals of queues that are already closed.
    pub(crate) fn closed_queues(&self) -> MutexGuard<'_, IoTotals> {
        self.closed_queues
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

const REASONS: [CloseReason; 10] = [
    CloseReason::Disconnected,
    CloseReason::ControllerReset,
    CloseReason::AssociationLost,
    CloseReason::KeepAliveExpired,
    CloseReason::Inactive,
    CloseReason::Revoked,
    CloseReason::TargetShutdown,
    CloseReason::Reconfigured,
    CloseReason::Evicted,
    CloseReason::AuthenticationFailed,
];

/// The code of a reason: its position in [`REASONS`], counted from 1.
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
        CloseReason::Evicted => 9,
        CloseReason::AuthenticationFailed => 10,
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
            host_account: 1,
            admin_reactor: 0,
            port: PortId(0),
            queue_depth_max: 128,
            keep_alive_ms: 0,
            is_secure: false,
        };
        ControllerShared::new(identity, 4)
    }

    #[test]
    fn reset_invalidates_gates_of_earlier_queues() {
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
    fn fence_bit_is_independent_of_gate_state() {
        let controller = controller();
        controller.open_gate();
        let before = controller.gate();
        assert!(controller.set_fence(true) && !controller.set_fence(true));
        assert!(controller.gate().is_fenced() && controller.gate().is_open());
        assert_ne!(controller.gate(), before);
        assert_eq!(controller.gate().unconditional(), before);
        controller.reset_gate();
        assert!(controller.gate().is_fenced(), "a reset does not lift it");
        assert_eq!(controller.gate().resets(), before.resets() + 1);
        assert!(controller.set_fence(false) && !controller.set_fence(false));
        controller.open_gate();
        assert!(!controller.gate().is_fenced() && controller.gate().is_open());
    }

    /// Resets by the admin queue's core and fences by others change the same word.
    #[test]
    fn concurrent_resets_and_fences_are_not_lost() {
        const ROUNDS: u64 = 20_000;
        let controller = controller();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    controller.reset_gate();
                    controller.open_gate();
                    assert_eq!(controller.gate().resets(), round);
                }
            });
            for _ in 0..ROUNDS {
                assert!(controller.set_fence(true));
                assert!(controller.gate().is_fenced());
                assert!(controller.set_fence(false));
                assert!(!controller.gate().is_fenced());
            }
        });
        assert!(controller.gate().is_open() && !controller.gate().is_fenced());
        assert_eq!(controller.gate().resets(), ROUNDS);
    }

    #[test]
    fn first_close_reason_is_kept() {
        let controller = controller();
        controller.open_gate();
        assert_eq!(controller.ending(), None);
        controller.end(CloseReason::KeepAliveExpired);
        controller.end(CloseReason::AssociationLost);
        assert_eq!(controller.ending(), Some(CloseReason::KeepAliveExpired));
        assert!(!controller.gate().is_open());
    }

    #[test]
    fn close_reason_codes_round_trip() {
        for reason in REASONS {
            assert_eq!(reason_of(code_of(reason)), Some(reason));
        }
        assert_eq!(reason_of(0), None);
        assert_eq!(reason_of(11), None);
    }

    #[test]
    fn traffic_and_error_flags_are_cleared_when_taken() {
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
