//! Checks completions against the commands and the state of the environment.

use nvme_spec::registers::Csts;
use nvme_spec::{Cqe, Status};
use reactors::Nanos;

use super::admin::AdminStep;
use super::connection::{Connection, Outstanding};
use super::invalid::{Refusal, retry_is_pointless};
use super::{Command, Ground, Host, Io, IoKind, Phase, READY_POLL};
use crate::history::WriteEnd;
use crate::judge::{Extent, Violation};
use crate::swarm::Fault;

impl Host {
    pub(super) fn answered(
        &mut self,
        ground: &mut Ground<'_>,
        qid: u16,
        outstanding: &Outstanding,
        cqe: &Cqe,
    ) -> Result<(), Violation> {
        let status = cqe.status();
        let (number, cid) = (self.number, cqe.cid.get());
        ground.trace.note(
            ground.now,
            format_args!("host {number} queue {qid} command {cid}: {status}"),
        );
        let opened_at = self.connections().find(|it| it.qid() == qid);
        if let Some(opened_at) = opened_at.map(|it| it.opened_at) {
            self.note_answer(ground, (qid, opened_at, outstanding.place), status)?;
        }
        if !status.is_success() {
            let refusal = match &outstanding.command {
                Command::Invalid(refusal) if status.is(refusal.status) => Some(*refusal),
                _ => None,
            };
            self.note_failure(ground.now, (qid, cid), refusal);
        }
        match &outstanding.command {
            Command::Io(io) => {
                self.check_wait(ground, qid, outstanding)?;
                return self.io_answered(ground, qid, io, outstanding, cqe);
            }
            Command::Connect => return self.connected(ground, qid, outstanding.issued_at, cqe),
            Command::Invalid(refusal) => {
                let (refusal, issued_at) = (*refusal, outstanding.issued_at);
                return self.refused(ground, qid, refusal, issued_at, status);
            }
            Command::Ignored => return Ok(()),
            Command::Damaged => {
                return Err(self.violation(ground, "a damaged header was taken for a command"));
            }
            Command::Hopeless(why) => {
                if !status.is_success() {
                    return Ok(());
                }
                let what = format!("a command succeeded {why}");
                return Err(self.violation(ground, &what));
            }
            Command::Disconnect if status.is_success() && self.awaits_io(qid) => {
                let what = "Disconnect was answered before the commands in front of it";
                return Err(self.violation(ground, what));
            }
            Command::EventRequest => return self.event(ground, outstanding, cqe),
            Command::Admin(step) => return self.administered(ground, *step, outstanding, cqe),
            Command::Abort(key) if status.is_success() => {
                return self.abort_answered(ground, *key, cqe);
            }
            Command::Abort(_)
                if status.is(Status::ABORT_LIMIT_EXCEEDED) && self.exceeds_abort_limit() =>
            {
                return Ok(());
            }
            // Dword 0 tells whether the command was found and aborted.
            Command::Enable
            | Command::Disable
            | Command::Status
            | Command::Queues
            | Command::EventMask
            | Command::ReadLog(_)
            | Command::DiscoveryLog
            | Command::KeepAlive
            | Command::Abort(_)
            | Command::Disconnect => {}
        }
        if !status.is_success() {
            // Base 2.1 §3.5: a controller that is not ready rejects such commands.
            let unready = self.phase != Phase::Serving
                && self.phase != Phase::Opening
                && status.is(Status::COMMAND_SEQUENCE_ERROR);
            if unready || self.is_excused(ground, qid) {
                return Ok(());
            }
            let what = format!("{:?} was answered {status}", outstanding.command);
            return Err(self.violation(ground, &what));
        }
        match outstanding.command {
            Command::Enable => {
                self.phase = Phase::AwaitingReady { ready: true };
                self.ask_for_status(ground);
            }
            Command::Disable => {
                self.phase = Phase::AwaitingReady { ready: false };
                self.poll_status_at = Some(ground.now + READY_POLL);
            }
            Command::Status => {
                return self.status_read(ground, Csts::from_bits(cqe.dw0.get()));
            }
            Command::Queues if self.phase == (Phase::AwaitingReady { ready: true }) => {
                self.open_queues(ground);
            }
            Command::ReadLog(log) => return self.log_read(ground, log, outstanding),
            _ => {}
        }
        Ok(())
    }

    /// Handles the completion of a command that must be refused.
    fn refused(
        &mut self,
        ground: &mut Ground<'_>,
        qid: u16,
        refusal: Refusal,
        issued_at: Nanos,
        status: Status,
    ) -> Result<(), Violation> {
        let absent = is_absence(status)
            && refusal.disk.is_some_and(|disk| {
                ground.namespace_changed[disk] >= issued_at || ground.disk_gone[disk]
            });
        let right = status.is(refusal.status) && status.dnr();
        if let (Some(disk), Some(lba)) = (refusal.disk, refusal.untouched) {
            let blocks = 1;
            self.read(ground, Extent { disk, lba, blocks });
        }
        if right || absent || (!status.is_success() && self.is_excused(ground, qid)) {
            return Ok(());
        }
        let expected = refusal.status;
        let what = format!(
            "a command was answered {status} (DNR {}), not {expected} with DNR",
            status.dnr()
        );
        Err(self.violation(ground, &what))
    }

    /// Whether it has an outstanding command beyond the end of a disk.
    #[must_use]
    pub fn tries_beyond(&self, disk: usize) -> bool {
        let mut outstanding = self.io.iter().flat_map(Connection::outstanding);
        outstanding
            .any(|(_, it)| matches!(it.command, Command::Invalid(its) if its.disk == Some(disk)))
    }

    /// Whether a queue has outstanding I/O commands.
    fn awaits_io(&mut self, qid: u16) -> bool {
        let connection = self.connections().find(|it| it.qid() == qid);
        connection.is_some_and(|connection| {
            let mut outstanding = connection.outstanding();
            outstanding.any(|(_, it)| matches!(it.command, Command::Io(_)))
        })
    }

    fn io_answered(
        &mut self,
        ground: &mut Ground<'_>,
        qid: u16,
        io: &Io,
        outstanding: &Outstanding,
        cqe: &Cqe,
    ) -> Result<(), Violation> {
        ground.figures.ios += 1;
        let issued_at = outstanding.issued_at;
        let status = cqe.status();
        if status.is_success() {
            ground.figures.ios_succeeded += 1;
            let is_protected = io.extents.iter().any(|extent| {
                ground.serving.read_only[extent.disk]
                    && ground.namespace_changed[extent.disk] < issued_at
            });
            if io.version > 0 && is_protected {
                return Err(self.violation(ground, "a read-only namespace was written to"));
            }
            if io.damaged {
                return Err(self.violation(ground, "data that was damaged on its way was taken"));
            }
            if io.version > 0 {
                let disk = io.extents.first().map(|it| it.disk);
                let over = (ground.judge).overtaken(self.shape.identity, io.began, disk);
                self.check_over(ground, over, "a later write is done")?;
            }
            let judged = succeeded(ground, io, &outstanding.data, issued_at);
            return judged.inspect_err(|violation| {
                ground
                    .trace
                    .note(ground.now, format_args!("VIOLATION {violation}"));
            });
        }
        let mismatch = status.is(Status::COMPARE_FAILURE) && io.kind == IoKind::Compare;
        let refused = self.refusal(ground, io, status, issued_at);
        if !mismatch && refused.is_none() && !self.may_fail(ground, qid, io, status) {
            let what = format!("{:?} of {:?} was answered {status}", io.kind, io.extents);
            return Err(self.violation(ground, &what));
        }
        if retry_is_pointless(status).is_some_and(|pointless| pointless != status.dnr()) {
            let what = format!("{status} has Do Not Retry {}", status.dnr());
            return Err(self.violation(ground, &what));
        }
        if io.version > 0 {
            let end = match io.ambiguous {
                true => WriteEnd::Undecided,
                false => refused.unwrap_or(WriteEnd::Undecided),
            };
            ground
                .judge
                .end_write(&io.extents, io.version, io.began, end);
            return Ok(());
        }
        let judged = match io.extents.first() {
            Some(extent) if mismatch => {
                ground
                    .judge
                    .judge_comparison(*extent, io.began, &io.expected, false)
            }
            _ => Ok(()),
        };
        ground.judge.end_read(io.began);
        judged
    }

    /// The result of a refused write, which usually changed nothing; `None` if it failed for
    /// another reason.
    fn refusal(
        &self,
        ground: &Ground<'_>,
        io: &Io,
        status: Status,
        issued_at: Nanos,
    ) -> Option<WriteEnd> {
        let damaged = io.damaged && status.is(Status::TRANSIENT_TRANSPORT_ERROR);
        let absent = io.extents.iter().any(|extent| {
            !ground.serving.namespaces[extent.disk]
                || ground.disk_gone[extent.disk]
                || ground.namespace_changed[extent.disk] >= issued_at
        });
        let protected = status.is(Status::NAMESPACE_WRITE_PROTECTED)
            && io.extents.iter().any(|extent| {
                ground.serving.read_only[extent.disk]
                    || ground.namespace_changed[extent.disk] >= issued_at
            });
        let refused = damaged || protected || (is_absence(status) && absent);
        // A RAM device may have received the first blocks before its namespace changed.
        let may_have_begun = io.extents.iter().any(|extent| {
            ground.swarm.ram[extent.disk] && ground.namespace_changed[extent.disk] >= issued_at
        });
        let end = match may_have_begun {
            true => WriteEnd::Undecided,
            false => WriteEnd::Refused,
        };
        refused.then_some(end)
    }

    /// Whether something explains the failure of a command.
    fn may_fail(&mut self, ground: &Ground<'_>, qid: u16, io: &Io, status: Status) -> bool {
        let is = |statuses: &[Status]| statuses.iter().any(|it| status.is(*it));
        // With the write cache disabled, every write includes a flush.
        let writes_through = io.version > 0 && ground.swarm.faults.has(Fault::Administer);
        let is_durable = io.kind == IoKind::Flush || io.fua || writes_through;
        let flush_fails = ground.swarm.disk_temper.flush_error_permille > 0 && is_durable;
        let disk_fails = io.extents.iter().any(|it| ground.disk_fails[it.disk]) || flush_fails;
        let of_disks = is(&[
            Status::UNRECOVERED_READ_ERROR,
            Status::WRITE_FAULT,
            Status::CAPACITY_EXCEEDED,
            Status::INTERNAL_PATH_ERROR,
            Status::CONTROLLER_PATHING_ERROR,
            Status::ABORT_REQUESTED,
            Status::INTERNAL_ERROR,
        ]);
        let of_ends = is(&[Status::ABORTED_SQ_DELETION, Status::COMMAND_SEQUENCE_ERROR]);
        let aborted = io.aborted && is(&[Status::ABORT_REQUESTED]);
        aborted || (disk_fails && of_disks) || (of_ends && self.is_excused(ground, qid))
    }

    /// The time since which nothing has delayed a response; `None` while something does.
    pub(super) fn undisturbed_since(
        &self,
        ground: &Ground<'_>,
        connection: &Connection,
        outstanding: &Outstanding,
    ) -> Option<Nanos> {
        let mut since = outstanding.issued_at.max(connection.queue.disturbed_until);
        if ground.swarm.faults.has(Fault::Paths) {
            since = since.max(self.greedy_until);
        }
        match &outstanding.command {
            // It waits for an event.
            Command::EventRequest if !self.is_due(outstanding) => return None,
            Command::EventRequest => since = since.max(ground.memory_disturbed),
            Command::Io(io) => {
                for extent in &io.extents {
                    since = since.max(ground.disk_disturbed[extent.disk]);
                }
                since = since.max(ground.memory_disturbed);
                if io.version > 0 {
                    since = since.max(ground.fenced[self.number]);
                }
            }
            // These commands wait for requests in disks.
            Command::Disconnect
            | Command::Queues
            | Command::Hopeless(_)
            | Command::Ignored
            | Command::Admin(AdminStep::WriteCache { .. }) => {
                let latest = ground.disk_disturbed.iter().max();
                since = since.max(latest.copied().unwrap_or_default());
                since = since.max(ground.memory_disturbed);
                since = since.max(ground.fenced[self.number]);
            }
            Command::Connect
            | Command::Enable
            | Command::Disable
            | Command::Status
            | Command::EventMask
            | Command::ReadLog(_)
            | Command::KeepAlive
            | Command::Abort(_)
            | Command::Admin(_)
            | Command::DiscoveryLog
            | Command::Invalid(_)
            | Command::Damaged => since = since.max(ground.memory_disturbed),
        }
        if self.is_leaving(ground) {
            let left = ground.permission_changed[self.number];
            since = since.max(left).max(self.calm_since(ground));
        }
        let gone = self.silent_until.is_some() || ground.stopping;
        (!gone && since <= ground.now).then_some(since)
    }
}

/// Whether the status means that the namespace does not exist.
pub(super) fn is_absence(status: Status) -> bool {
    status.is(Status::INVALID_FIELD) || status.is(Status::INVALID_NAMESPACE_OR_FORMAT)
}

/// Checks the success of an I/O command, and updates the model.
fn succeeded(
    ground: &mut Ground<'_>,
    io: &Io,
    data: &[u8],
    issued_at: Nanos,
) -> Result<(), Violation> {
    let judge = &mut *ground.judge;
    let blocks: u64 = io.extents.iter().map(|it| u64::from(it.blocks)).sum();
    match (io.kind, io.extents.first()) {
        (IoKind::Deallocate, _) if io.version == 0 => {
            judge.end_read(io.began);
            Ok(())
        }
        (IoKind::Write | IoKind::WriteZeroes | IoKind::Deallocate, extent) => {
            let shape = extent.map(|extent| ground.swarm.disks[extent.disk]);
            let hint = shape.is_some_and(|it| it.deallocate == block::Deallocate::Unspecified);
            let end = if hint && io.kind == IoKind::Deallocate {
                WriteEnd::Undecided
            } else {
                WriteEnd::Done {
                    durable: io.durable,
                }
            };
            judge.end_write(&io.extents, io.version, io.began, end);
            Ok(())
        }
        (IoKind::Flush, _) => {
            for Extent { disk, .. } in &io.extents {
                // A Flush of all namespaces covers those that exist.
                let is_there = ground.serving.namespaces[*disk] && !ground.disk_gone[*disk];
                if is_there && ground.namespace_changed[*disk] < issued_at {
                    judge.flushed(*disk, io.began);
                }
            }
            judge.end_read(io.began);
            Ok(())
        }
        (IoKind::Read, Some(extent)) => {
            ground.figures.blocks_judged += blocks;
            let judged = judge.judge_read(*extent, io.began, data, io.fua);
            judge.end_read(io.began);
            judged
        }
        (IoKind::Compare, Some(extent)) => {
            ground.figures.blocks_judged += blocks;
            let judged = judge.judge_comparison(*extent, io.began, &io.expected, true);
            judge.end_read(io.began);
            judged
        }
        (IoKind::Read | IoKind::Compare, None) => Ok(()),
    }
}
