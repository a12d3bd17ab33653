//! Compare and Write, the fused operation (Base 2.1 §3.4.2, NVM 1.1 §2.1.3 and §3.3.1).
//!
//! Its two commands are a *pair*. Each is admitted, and its data is fetched, like any command; then
//! they wait as executions without a device request until both are there. The pair excludes its
//! block on all reactors (`nvme/target/src/exclusions.rs`), compares, and writes if the comparison
//! succeeds:
//!
//! ```text
//! Gathering ──▶ Excluding ─▶ Comparing ─▶ Writing ─▶ over
//!    │  ▲          │ ▲           │ miscompare
//!    │  └ Fenced ◀─┘ │           └────────────────▶ over
//!    │       └───────┘
//!    └─ a command fails or is missing ─▶ Failed ─▶ over
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;

use hugemem::{Data, Lease};
use nvme_spec::command::{Fuse, IoOpcode};
use nvme_spec::{Sqe, Status};
use reactors::Nanos;

use super::admission::context;
use super::executions::{Command, DeviceTag, Execution, ExecutionEvent, Owner};
use super::gate::{self, GateDecision};
use super::queue::Queue;
use super::throttle::charge_started;
use super::{FailedCommand, TargetCore};
use crate::exclusions::Block;
use crate::interface::{Admission, Completed, WorkKind};
use crate::io::{FusedPart, FusedWork, IoOperation, IoWork, Plan, check_fused};
use crate::rates::Charge;
use crate::status::{Fault, byte};

/// The number of a pair on its reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PairId(NonZeroU64);

impl PairId {
    #[cfg(test)]
    pub(crate) fn new(number: u64) -> Self {
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
    }
}

/// One command of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// It was not received yet.
    Expected,
    /// Its data is being fetched.
    Fetching,
    /// It is in the table of executions.
    Here(DeviceTag),
    /// It was completed.
    Over,
}

/// The progress of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A command or its data is missing.
    Gathering,
    /// The host's fence holds the pair back.
    Fenced,
    /// Waits until it has its block for itself: the exclusion with this number.
    Excluding(u64),
    /// The Compare is in a device.
    Comparing(u64),
    /// The Write is in a device.
    Writing(u64),
    /// A command that is not completed yet fails with this fault.
    Failed(Fault),
}

/// The two commands of a Compare and Write.
#[derive(Debug)]
struct Pair {
    /// Slot of their queue.
    queue: u32,
    /// The Compare, if it was valid.
    compared: Option<IoWork>,
    compare: Part,
    write: Part,
    stage: Stage,
}

impl Pair {
    fn part(&mut self, part: FusedPart) -> &mut Part {
        match part {
            FusedPart::Compare => &mut self.compare,
            FusedPart::Write { .. } => &mut self.write,
        }
    }

    fn is_over(&self) -> bool {
        self.compare == Part::Over && self.write == Part::Over
    }

    /// The exclusion that it requested.
    fn exclusion(&self) -> Option<(Block, u64)> {
        let (Stage::Excluding(number) | Stage::Comparing(number) | Stage::Writing(number)) =
            self.stage
        else {
            return None;
        };
        let IoWork { device, lba, .. } = self.compared?;
        Some((Block { device, lba }, number))
    }
}

/// The pairs of one core. At most one for each outstanding command.
#[derive(Default)]
pub(super) struct Pairs {
    all: BTreeMap<PairId, Pair>,
    /// By slot of an execution.
    of_executions: BTreeMap<u32, PairId>,
    /// Pairs that the end of the turn's receive phase continues or ends. Not before, because
    /// responses that are made while commands are received would follow those of later commands
    /// (Base 2.1 §4.2.1, SQHD).
    changed: VecDeque<PairId>,
    count: u64,
}

impl Pairs {
    fn add(&mut self, pair: Pair) -> PairId {
        self.count += 1;
        let id = PairId(NonZeroU64::new(self.count).unwrap_or(NonZeroU64::MIN));
        self.all.insert(id, pair);
        id
    }

    /// Number of pairs.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

/// The fault of a command whose partner failed.
const PARTNER_FAILED: Fault = Fault::retry(Status::ABORTED_FAILED_FUSED);
/// The fault of a command without a partner.
const PARTNER_MISSING: Fault = Fault::retry(Status::ABORTED_MISSING_FUSED);

impl TargetCore {
    /// Admits a part of a fused operation on a live I/O queue.
    #[cold]
    pub(super) fn admit_fused(
        &mut self,
        slot: u32,
        sqe: &Sqe,
        now: Nanos,
    ) -> Result<Admission, Fault> {
        match (sqe.flags.fuse(), sqe.io_opcode()) {
            (Fuse::FIRST, opcode) => self.admit_first(slot, sqe, opcode, now),
            (Fuse::SECOND, opcode) => self.admit_second(slot, sqe, opcode, now),
            _ => Err(Fault::field(byte::FLAGS)),
        }
    }

    /// The next command belongs to the first one even if that is refused.
    fn admit_first(
        &mut self,
        slot: u32,
        sqe: &Sqe,
        opcode: IoOpcode,
        now: Nanos,
    ) -> Result<Admission, Fault> {
        let planned = match opcode {
            IoOpcode::COMPARE => self.plan_fused(slot, sqe),
            // Base 2.1 §3.4.2: no other operation is supported.
            _ => Err(Fault::field(byte::FLAGS)),
        };
        let pair = self.pairs.add(Pair {
            queue: slot,
            compared: planned.as_ref().ok().map(|plan| plan.work),
            compare: planned.as_ref().map_or(Part::Over, |_| Part::Fetching),
            write: Part::Expected,
            stage: planned
                .as_ref()
                .map_or(Stage::Failed(PARTNER_FAILED), |_| Stage::Gathering),
        });
        if let Some(queue) = self.queues.at_mut(slot) {
            queue.expect_second(pair);
        }
        planned.map(|plan| self.admit_part(slot, sqe, plan, pair, now))
    }

    fn admit_second(
        &mut self,
        slot: u32,
        sqe: &Sqe,
        opcode: IoOpcode,
        now: Nanos,
    ) -> Result<Admission, Fault> {
        let expected = self.queues.at_mut(slot).and_then(Queue::take_expected);
        let id = expected.ok_or(PARTNER_MISSING)?;
        let planned = match opcode {
            IoOpcode::WRITE => self.plan_fused(slot, sqe),
            _ => Err(Fault::field(byte::FLAGS)),
        };
        let Some(pair) = self.pairs.all.get_mut(&id) else {
            return Err(PARTNER_FAILED);
        };
        pair.write = Part::Over;
        if let Stage::Failed(fault) = pair.stage {
            self.remove_if_over(id);
            return Err(fault);
        }
        let extent = |work: &IoWork| (work.nsid, work.lba, work.blocks);
        let (compared, written) = (pair.compared, planned.as_ref().map(|plan| plan.work));
        match (compared, written) {
            (Some(compared), Ok(written)) if extent(&compared) != extent(&written) => {
                // NVM 1.1 §2.1.3: both commands have the same range.
                let fault = Fault::field(byte::CDW10);
                self.end_pair(id, fault);
                return Err(fault);
            }
            (_, Ok(_)) => {}
            (_, Err(_)) => self.end_pair(id, PARTNER_FAILED),
        }
        let plan = planned?;
        if let Some(pair) = self.pairs.all.get_mut(&id) {
            pair.write = Part::Fetching;
        }
        Ok(self.admit_part(slot, sqe, plan, id, now))
    }

    fn plan_fused(&self, slot: u32, sqe: &Sqe) -> Result<Plan, Fault> {
        let queue = self.queues.at(slot).ok_or(gate::CLOSED)?;
        gate::admit(queue)?;
        let context = context(queue, &self.view)?;
        let plan = check_fused(sqe, &context)?;
        if !gate::is_open(queue) {
            let (nsid, access) = (plan.work.nsid, plan.work.operation.access());
            gate::admit_restricted(queue, context.subsystem, nsid, access)?;
        }
        Ok(plan)
    }

    fn admit_part(
        &mut self,
        slot: u32,
        sqe: &Sqe,
        plan: Plan,
        pair: PairId,
        now: Nanos,
    ) -> Admission {
        if let Some(queue) = self.queues.at_mut(slot) {
            queue.outstanding_commands += 1;
            // The parts are next to each other, so the second one does not wait, nor does the first.
            if let Some(charge) = Charge::of(&plan.work) {
                charge_started(queue, charge, false, now);
            }
        }
        let io = plan.work;
        let mut work = plan.admit(sqe.cid.get(), false, now);
        work.kind = WorkKind::Fused(FusedWork { io, pair });
        Admission::Work(work)
    }

    /// Ends the wait of a first command for its second one, because another command or the end of
    /// the queue follows (Base 2.1 §3.4.2).
    #[cold]
    pub(super) fn end_expectation(&mut self, slot: u32) {
        let expected = self.queues.at_mut(slot).and_then(Queue::take_expected);
        let Some(id) = expected else { return };
        if let Some(pair) = self.pairs.all.get_mut(&id) {
            pair.write = Part::Over;
        }
        self.end_pair(id, PARTNER_MISSING);
    }

    /// Adds a command whose data is there.
    #[cold]
    pub(super) fn execute_fused(
        &mut self,
        command: Command,
        work: &FusedWork,
        data: Lease,
        received_at: Nanos,
        now: Nanos,
    ) -> Option<Completed> {
        let FusedWork { io, pair: id } = *work;
        let IoOperation::Fused(part) = io.operation else {
            return Some(self.fail_part(command, &io, PARTNER_FAILED));
        };
        let pair = self.pairs.all.get_mut(&id);
        let failed = match pair.as_ref().map(|pair| pair.stage) {
            Some(Stage::Failed(fault)) => Some(fault),
            None => Some(PARTNER_FAILED),
            Some(_) => None,
        };
        if let Some(fault) = failed {
            self.part_over(id, part);
            return Some(self.fail_part(command, &io, fault));
        }
        let execution = Execution::paired(Owner::Command(command), io, received_at, now);
        let Some(tag) = self.executions.insert(execution) else {
            self.reject_part(work);
            let fault = Fault::retry(Status::COMMAND_INTERRUPTED);
            return Some(self.fail_part(command, &io, fault));
        };
        self.executions.extra(tag.slot).data = Some(Data::Lease(data));
        if let Some(queue) = self.queues.at_mut(command.queue) {
            queue.executing += 1;
        }
        self.pairs.of_executions.insert(tag.slot, id);
        if let Some(pair) = self.pairs.all.get_mut(&id) {
            *pair.part(part) = Part::Here(tag);
        }
        self.pairs.changed.push_back(id);
        None
    }

    fn fail_part(&mut self, command: Command, io: &IoWork, fault: Fault) -> Completed {
        self.fail_command(command, &FailedCommand::of_work(io, command.id), fault)
    }

    /// A command failed before its data was there.
    pub(super) fn reject_part(&mut self, work: &FusedWork) {
        let IoOperation::Fused(part) = work.io.operation else {
            return;
        };
        if let Some(pair) = self.pairs.all.get_mut(&work.pair) {
            *pair.part(part) = Part::Over;
        }
        self.end_pair(work.pair, PARTNER_FAILED);
    }

    /// An execution of a pair was aborted or has ended as an orphan.
    #[cold]
    pub(super) fn part_aborted(&mut self, execution: u32, part: FusedPart) {
        let Some(id) = self.pairs.of_executions.remove(&execution) else {
            return;
        };
        if let Some(pair) = self.pairs.all.get_mut(&id) {
            *pair.part(part) = Part::Over;
        }
        self.end_pair(id, PARTNER_FAILED);
    }

    /// Removes the pairs of a closed queue, except those of which a device has a command.
    pub(super) fn abandon_pairs(&mut self, slot: u32) {
        if self.pairs.all.is_empty() {
            return;
        }
        let of_queue = self.pairs.all.iter().filter(|(_, pair)| pair.queue == slot);
        let ids: Vec<PairId> = of_queue.map(|(id, _)| *id).collect();
        for id in ids {
            let Some(pair) = self.pairs.all.get_mut(&id) else {
                continue;
            };
            let (executions, of_executions) = (&self.executions, &mut self.pairs.of_executions);
            for part in [&mut pair.compare, &mut pair.write] {
                match *part {
                    // An orphan, which `part_aborted` removes.
                    Part::Here(tag) if executions.get(tag).is_some() => {}
                    Part::Here(tag) => {
                        of_executions.remove(&tag.slot);
                        *part = Part::Over;
                    }
                    Part::Expected | Part::Fetching | Part::Over => *part = Part::Over,
                }
            }
            if pair.is_over() {
                self.end_exclusion(id);
                self.pairs.all.remove(&id);
            }
        }
    }

    /// Refuses the pairs whose commands the gate no longer passes, and continues those that a fence
    /// held back.
    pub(super) fn recheck_pairs(&mut self) {
        if self.pairs.all.is_empty() {
            return;
        }
        let is_waiting = |pair: &Pair| matches!(pair.stage, Stage::Gathering | Stage::Fenced);
        let waiting = self.pairs.all.iter().filter(|(_, pair)| is_waiting(pair));
        let ids: Vec<PairId> = waiting.map(|(id, _)| *id).collect();
        for id in ids {
            if self.pass_pair(id) == Some(PairDecision::Open) {
                self.request_block(id);
            }
        }
    }

    /// Asks the gate about the commands of a pair that are here. Fails the pair if one is refused.
    fn pass_pair(&mut self, id: PairId) -> Option<PairDecision> {
        let pair = self.pairs.all.get(&id)?;
        let mut decision = PairDecision::Open;
        for part in [pair.compare, pair.write] {
            let Part::Here(tag) = part else { continue };
            let work = self.executions.get(tag)?.work;
            match self.pass_admitted(pair.queue, &work) {
                GateDecision::Open => {}
                GateDecision::Held => decision = PairDecision::Held,
                GateDecision::Refused(fault) => {
                    self.finish_part(tag, Err(fault));
                    self.end_pair(id, PARTNER_FAILED);
                    return Some(PairDecision::Refused);
                }
            }
        }
        Some(decision)
    }

    /// Continues or ends the pairs that changed.
    pub(super) fn advance_pairs(&mut self) {
        while let Some(id) = self.pairs.changed.pop_front() {
            let Some(pair) = self.pairs.all.get(&id) else {
                continue;
            };
            match pair.stage {
                Stage::Gathering => self.request_block(id),
                Stage::Failed(fault) => {
                    for part in [pair.compare, pair.write] {
                        if let Part::Here(tag) = part
                            && self.executions.is_paired(tag)
                        {
                            self.finish_part(tag, Err(fault));
                        }
                    }
                    self.remove_if_over(id);
                }
                Stage::Fenced | Stage::Excluding(_) | Stage::Comparing(_) | Stage::Writing(_) => {}
            }
        }
    }

    /// Requests the block of a pair whose commands are both here, if the gate passes them.
    fn request_block(&mut self, id: PairId) {
        let both_here =
            |pair: &Pair| matches!((pair.compare, pair.write), (Part::Here(_), Part::Here(_)));
        if !self.pairs.all.get(&id).is_some_and(both_here) {
            return;
        }
        let decision = self.pass_pair(id);
        let Some(pair) = self.pairs.all.get_mut(&id) else {
            return;
        };
        match (decision, pair.compared) {
            (Some(PairDecision::Open), Some(IoWork { device, lba, .. })) => {
                let (reactor, block) = (self.reactor, Block { device, lba });
                let begin =
                    |table: &mut crate::exclusions::ExclusionTable| table.begin(block, reactor, id);
                pair.stage = Stage::Excluding(self.target.change_exclusions(begin));
            }
            (Some(PairDecision::Held), _) => pair.stage = Stage::Fenced,
            (Some(PairDecision::Refused | PairDecision::Open) | None, _) => {}
        }
    }

    /// A pair has its block for itself: starts the Compare.
    pub(super) fn block_granted(&mut self, id: PairId, now: Nanos) {
        let Some(pair) = self.pairs.all.get(&id) else {
            return;
        };
        let Stage::Excluding(number) = pair.stage else {
            return;
        };
        match self.pass_pair(id) {
            Some(PairDecision::Open) => self.start_part(id, FusedPart::Compare, number, now),
            // The exclusion would hold back others for as long as the fence lasts.
            Some(PairDecision::Held) => {
                self.end_exclusion(id);
                if let Some(pair) = self.pairs.all.get_mut(&id) {
                    pair.stage = Stage::Fenced;
                }
            }
            Some(PairDecision::Refused) | None => {}
        }
    }

    /// Starts a command of a pair that has its block for itself.
    fn start_part(&mut self, id: PairId, part: FusedPart, number: u64, now: Nanos) {
        let Some(pair) = self.pairs.all.get_mut(&id) else {
            return;
        };
        pair.stage = match part {
            FusedPart::Compare => Stage::Comparing(number),
            FusedPart::Write { .. } => Stage::Writing(number),
        };
        let (queue, part) = (pair.queue, *pair.part(part));
        let Part::Here(tag) = part else {
            return self.end_pair(id, PARTNER_FAILED);
        };
        let Some(execution) = self.executions.get_mut(tag) else {
            return;
        };
        execution.apply(ExecutionEvent::Started);
        let work = execution.work;
        if let Owner::Command(command) = execution.owner {
            self.trace_start(queue, &work, command.id, now);
        }
        let data = match self.executions.extra(tag.slot).data.take() {
            Some(Data::Lease(lease)) => Some(lease),
            Some(Data::Borrow(_)) | None => None,
        };
        if let Some(result) = self.begin(tag, &work, data) {
            self.part_done(tag, result);
        }
    }

    /// Handles the end of a command of a pair in its device: the Write follows a successful Compare.
    #[cold]
    pub(super) fn part_done(&mut self, tag: DeviceTag, result: Result<(), Fault>) {
        let found = self.pairs.of_executions.get(&tag.slot).copied();
        let stage = found.and_then(|id| self.pairs.all.get(&id).map(|pair| (id, pair.stage)));
        self.finish_part(tag, result);
        let Some((id, stage)) = stage else { return };
        match (stage, result) {
            (Stage::Comparing(number), Ok(())) => self.start_write(id, number),
            // Its other command failed while the device had this one.
            (Stage::Failed(_), _) => self.remove_if_over(id),
            _ => self.end_pair(id, PARTNER_FAILED),
        }
    }

    /// Starts the Write after the Compare, unless the gate was closed meanwhile. A fence raised
    /// meanwhile concerns no request for this block: none is left.
    fn start_write(&mut self, id: PairId, number: u64) {
        let now = self.polled_at;
        match self.pass_pair(id) {
            Some(PairDecision::Open | PairDecision::Held) => {
                self.start_part(id, FusedPart::Write { fua: false }, number, now);
            }
            Some(PairDecision::Refused) | None => {}
        }
    }

    /// Completes a command of a pair.
    fn finish_part(&mut self, tag: DeviceTag, result: Result<(), Fault>) {
        let part = self.executions.get(tag).map(|it| it.work.operation);
        if let Some(id) = self.pairs.of_executions.remove(&tag.slot)
            && let Some(IoOperation::Fused(part)) = part
            && let Some(pair) = self.pairs.all.get_mut(&id)
        {
            *pair.part(part) = Part::Over;
        }
        self.finish_later(tag, result, None);
    }

    /// A command of a failed pair was completed.
    fn part_over(&mut self, id: PairId, part: FusedPart) {
        if let Some(pair) = self.pairs.all.get_mut(&id) {
            *pair.part(part) = Part::Over;
        }
        self.remove_if_over(id);
    }

    /// Ends a pair. Its commands that no device has fail with this fault: now, or when their data is
    /// there.
    fn end_pair(&mut self, id: PairId, fault: Fault) {
        self.end_exclusion(id);
        let Some(pair) = self.pairs.all.get_mut(&id) else {
            return;
        };
        pair.stage = Stage::Failed(fault);
        self.pairs.changed.push_back(id);
        self.remove_if_over(id);
    }

    fn remove_if_over(&mut self, id: PairId) {
        if self.pairs.all.get(&id).is_some_and(Pair::is_over) {
            self.pairs.all.remove(&id);
        }
    }

    fn end_exclusion(&mut self, id: PairId) {
        let exclusion = self.pairs.all.get(&id).and_then(Pair::exclusion);
        if let Some((block, number)) = exclusion {
            self.target
                .change_exclusions(|table| table.end(block, number));
        }
    }
}

/// The gate's decision about a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairDecision {
    Open,
    Held,
    /// The pair has failed.
    Refused,
}
