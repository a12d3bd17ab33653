//! The gate: decides whether a checked command may go to its device now.
//!
//! Every command passes it before it reaches a device: a read or write that completes inline, data
//! that is placed directly in a device's memory, a command that waited for a lease or its data, and
//! a command that the gate held back before. Admission also checks it, so that no data is fetched
//! for a command that will be refused.
//!
//! A rule about who may do what, and when (access, reservations, rate limits, quiescing), is a bit
//! of the controller's gate word, so that an open gate costs one comparison, and a case of
//! `examine`; no other code decides this. A rule that can be checked with the command belongs in
//! [`check`](crate::io::check); the configuration's epoch shows whether its result may have changed
//! since.

use nvme_spec::{NSID_BROADCAST, Status};

use super::authentication::AUTHENTICATION_REQUIRED;
use super::queue::{Queue, QueueState};
use crate::io::{IoWork, recheck};
use crate::reservations::restrictions::AccessKind;
use crate::status::{Fault, LOCATION_NONE, byte};
use crate::view::{NamespaceView, SubsystemView, TargetView};

/// The gate's decision about an admitted command.
#[derive(Clone, Copy, Debug)]
pub(super) enum GateDecision {
    /// It may go to its device.
    Open,
    /// It has to wait until its host's fence is lifted, which notifies the core.
    Held,
    /// It is refused: with [`CLOSED`], or because the configuration no longer allows it.
    Refused(Fault),
}

/// The refusal of a command whose queue or controller no longer executes commands, because of a
/// reset, a shutdown, or the end of the association or its connection.
pub(super) const CLOSED: Fault = Fault::retry(Status::ABORTED_SQ_DELETION);

/// Whether the gate is fully open, as when the queue was created. This is the only check for a
/// command that is checked and submitted in the same call.
#[inline(always)]
pub(super) fn is_open(queue: &Queue) -> bool {
    queue.shared.gate() == queue.gate
}

/// Whether a command for one device may complete inline although the gate is not fully open. Calls
/// no function, because a call would cost the caller registers even if it is not made.
#[inline(always)]
pub(super) fn permits(queue: &Queue, device: u8, access: AccessKind) -> bool {
    let shared = &queue.shared;
    shared.gate().differs_by_restrictions(queue.gate) && shared.restrictions.allows(device, access)
}

/// The refusal of a command that is invalid, if the gate is not closed.
#[cold]
#[inline(never)]
pub(super) fn refusal(queue: &Queue, invalid: Fault) -> Fault {
    admit(queue).err().unwrap_or(invalid)
}

/// Whether a received command is admitted. A command that the fence will hold is admitted, so that
/// its data is fetched meanwhile.
pub(super) fn admit(queue: &Queue) -> Result<(), Fault> {
    if !is_open(queue) && is_closed(queue) {
        if queue.gate.is_unauthenticated() {
            return Err(AUTHENTICATION_REQUIRED);
        }
        // Base 2.1 §3.5.2, §3.6.2: the controller is not ready, or no longer ready. The host may
        // retry on another path.
        return Err(Fault::retry(Status::COMMAND_SEQUENCE_ERROR).at(byte::OPCODE));
    }
    Ok(())
}

/// Whether a valid command is admitted, if the gate is not fully open. Reservations and ANA states
/// refuse it before its data is fetched.
#[cold]
#[inline(never)]
pub(super) fn admit_restricted(
    queue: &Queue,
    subsystem: &SubsystemView,
    nsid: u32,
    access: Option<AccessKind>,
) -> Result<(), Fault> {
    admit(queue)?;
    check_access(queue, subsystem, nsid, access)
}

/// Refuses a command for a namespace without access or that conflicts with its reservation; for
/// FFFFFFFFh, with that of any namespace.
fn check_access(
    queue: &Queue,
    subsystem: &SubsystemView,
    nsid: u32,
    access: Option<AccessKind>,
) -> Result<(), Fault> {
    let restrictions = &queue.shared.restrictions;
    let check = |device: u8| match access {
        Some(access) => restrictions.check(device, access),
        None => restrictions.check_ready(device),
    };
    if nsid == NSID_BROADCAST {
        let mut namespaces = subsystem.namespaces.iter().flatten();
        return namespaces.try_for_each(|it| check(it.device));
    }
    subsystem
        .namespace(nsid)
        .map_or(Ok(()), |it| check(it.device))
}

/// Decides about a command that was admitted before.
#[inline(always)]
pub(super) fn pass(queue: &Queue, view: &TargetView, work: &IoWork) -> GateDecision {
    let is_as_checked =
        matches!(queue.state, QueueState::Live) && work.epoch == view.epoch && is_open(queue);
    if is_as_checked {
        return GateDecision::Open;
    }
    examine(queue, view, work)
}

/// Decides after something has changed since the queue was created or the command was checked.
#[cold]
#[inline(never)]
fn examine(queue: &Queue, view: &TargetView, work: &IoWork) -> GateDecision {
    match queue.state {
        QueueState::Live | QueueState::Draining | QueueState::Disconnecting { .. } => {}
        QueueState::Ending | QueueState::Closed => return GateDecision::Refused(CLOSED),
    }
    // Base 2.1 §3.7.2: no command from before a reset may reach a device after it.
    if is_closed(queue) {
        return GateDecision::Refused(CLOSED);
    }
    let gate = queue.shared.gate();
    if gate.is_restricted()
        && let Some(subsystem) = queue.subsystem(view)
        && let Err(fault) = check_access(queue, subsystem, work.nsid, work.operation.access())
    {
        return GateDecision::Refused(fault);
    }
    let is_fenced = gate.is_fenced();
    if is_fenced && work.operation.changes_medium() {
        return GateDecision::Held;
    }
    if work.epoch != view.epoch
        && let Err(fault) = check_again(queue, view, work)
    {
        return GateDecision::Refused(fault);
    }
    GateDecision::Open
}

/// Decides about the read of a source of a Copy, whose namespace its host sees now. The decision of
/// [`pass`] is about the destination.
#[cold]
pub(super) fn check_source(
    queue: &Queue,
    view: &TargetView,
    work: &IoWork,
    source: &NamespaceView,
) -> Result<(), Fault> {
    let restrictions = &queue.shared.restrictions;
    // The field that names the namespace is not in the command.
    let of_list = |fault: Fault| Fault {
        location: LOCATION_NONE,
        ..fault
    };
    if queue.shared.gate().is_restricted() {
        let checked = restrictions.check(source.device, AccessKind::Read);
        checked.map_err(of_list)?;
    }
    if work.epoch == view.epoch {
        return Ok(());
    }
    // Base 2.1 §8.1.22.7, for the reservation of the source.
    if restrictions.is_aborted(source.device, work.epoch) {
        return Err(Fault::retry(Status::ABORTED_PREEMPT_AND_ABORT));
    }
    match view.had_device(source.device, work.epoch) {
        true => Ok(()),
        false => Err(Fault::new(Status::INVALID_NAMESPACE_OR_FORMAT)),
    }
}

/// Whether the controller was reset, was shut down or ended since the queue was created.
#[cold]
#[inline(never)]
fn is_closed(queue: &Queue) -> bool {
    queue.shared.gate().unconditional() != queue.gate
}

/// Checks a command again after the configuration changed.
fn check_again(queue: &Queue, view: &TargetView, work: &IoWork) -> Result<(), Fault> {
    // Base 2.1 §8.1.22.7: the host was preempted while the command's data was being fetched. Its
    // reservation commands are not aborted: the changed registration refuses them.
    let accesses_blocks = work.operation.access().is_some();
    let restrictions = &queue.shared.restrictions;
    if accesses_blocks && restrictions.is_aborted(work.device, work.epoch) {
        return Err(Fault::retry(Status::ABORTED_PREEMPT_AND_ABORT));
    }
    let names_one = work.nsid != NSID_BROADCAST;
    if names_one && !view.had_device(work.device, work.epoch) {
        let no_namespace = Fault::new(Status::INVALID_NAMESPACE_OR_FORMAT);
        return Err(no_namespace.at(byte::NSID));
    }
    recheck(work, queue.subsystem(view))
}
