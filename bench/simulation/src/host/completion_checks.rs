//! Checks completions against the commands and the state of the environment.

use nvme_spec::command::LogPageId;
use nvme_spec::registers::Csts;
use nvme_spec::{Cqe, Status};
use reactors::Nanos;

use super::admin::AdminStep;
use super::connection::{Connection, Outstanding};
use super::fused::{FusedPart, fused_refusal};
use super::invalid::{Refusal, retry_is_pointless};
use super::{Command, Host, HostEnv, Io, IoKind, Phase, READY_POLL};
use crate::faults::Fault;
use crate::history::WriteEnd;
use crate::judge::{Extent, Violation};

impl Host {
    pub(super) fn completed(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        outstanding: &Outstanding,
        cqe: &Cqe,
    ) -> Result<(), Violation> {
        let status = cqe.status();
        let (number, cid) = (self.number, cqe.cid.get());
        env.trace.note(
            env.now,
            format_args!("host {number} queue {qid} command {cid}: {status}"),
        );
        let opened_at = self.connections().find(|it| it.qid() == qid);
        if let Some(opened_at) = opened_at.map(|it| it.opened_at) {
            self.note_completion(env, (qid, opened_at, outstanding.position), status)?;
        }
        if !status.is_success() {
            let refusal = match &outstanding.command {
                Command::Invalid(refusal) if status.is(refusal.status) => Some(*refusal),
                _ => None,
            };
            self.note_failure(env.now, (qid, cid), refusal);
        }
        match &outstanding.command {
            Command::Io(io) => {
                self.check_wait(env, qid, outstanding)?;
                return self.io_completed(env, qid, io, outstanding, cqe);
            }
            Command::Connect => return self.connected(env, qid, outstanding.issued_at, cqe),
            Command::Invalid(refusal) => {
                let (refusal, issued_at) = (*refusal, outstanding.issued_at);
                return self.refused(env, qid, refusal, issued_at, status);
            }
            Command::Reserve(step) => {
                return self.reservation_completed(env, qid, *step, outstanding, status);
            }
            Command::Authenticate(step) => {
                return self.authentication_completed(env, qid, *step, outstanding, status);
            }
            Command::Premature => return self.premature_completed(env, qid, status),
            Command::Ignored => return Ok(()),
            Command::Damaged => {
                return Err(self.violation(env, "a command with a damaged header was executed"));
            }
            Command::Hopeless(why) => {
                if !status.is_success() {
                    return Ok(());
                }
                let what = format!("a command succeeded {why}");
                return Err(self.violation(env, &what));
            }
            Command::Disconnect if status.is_success() && self.awaits_io(qid) => {
                let what = "Disconnect completed before earlier commands";
                return Err(self.violation(env, what));
            }
            Command::EventRequest => return self.event(env, outstanding, cqe),
            Command::Admin(step) => return self.admin_step_completed(env, *step, outstanding, cqe),
            Command::Abort(key) if status.is_success() => {
                return self.abort_completed(env, *key, cqe);
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
            if let Command::ReadLog(log) = &outstanding.command
                && log.page == LogPageId::RESERVATION_NOTIFICATION
                && !log.retains
            {
                self.note_failed_notice_read(outstanding.issued_at);
            }
            // Base 2.1 §3.5: a controller that is not ready rejects such commands.
            let unready = self.phase != Phase::ServedConfig
                && self.phase != Phase::Opening
                && status.is(Status::COMMAND_SEQUENCE_ERROR);
            if unready || self.is_excused(env, qid) {
                return Ok(());
            }
            let what = format!("{:?} completed with {status}", outstanding.command);
            return Err(self.violation(env, &what));
        }
        match outstanding.command {
            Command::Enable => {
                self.phase = Phase::AwaitingReady { ready: true };
                self.ask_for_status(env);
            }
            Command::Disable => {
                self.phase = Phase::AwaitingReady { ready: false };
                self.poll_status_at = Some(env.now + READY_POLL);
            }
            Command::Status => {
                return self.status_read(env, Csts::from_bits(cqe.dw0.get()));
            }
            Command::Queues if self.phase == (Phase::AwaitingReady { ready: true }) => {
                self.open_queues(env);
            }
            Command::ReadLog(log) => return self.log_read(env, log, outstanding),
            _ => {}
        }
        Ok(())
    }

    /// Handles the completion of a command that must be refused.
    fn refused(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        refusal: Refusal,
        issued_at: Nanos,
        status: Status,
    ) -> Result<(), Violation> {
        let absent = is_absence(status)
            && refusal.disk.is_some_and(|disk| {
                env.changed_at(self.shape.identity, disk) >= issued_at || env.disk_gone[disk]
            });
        let protected = status.is(Status::NAMESPACE_WRITE_PROTECTED)
            && (refusal.disk)
                .is_some_and(|disk| env.mask_changed[self.shape.identity][disk] >= issued_at);
        let conflicts = refusal.disk.is_some_and(|disk| {
            let conflict = status.is(Status::RESERVATION_CONFLICT) && status.dnr();
            conflict && self.may_conflict(env, disk, issued_at)
        });
        // A list of ranges is checked when it is there.
        let is_aborted = refusal
            .disk
            .is_some_and(|disk| self.may_be_preempted(env, disk, status, issued_at));
        let is_its = status.is(refusal.status) && status.dnr();
        let lacks_access = refusal
            .disk
            .is_some_and(|disk| self.may_lack_access(env, disk, status, issued_at));
        let right = is_its || conflicts || is_aborted || lacks_access;
        if let (Some(disk), Some(lba)) = (refusal.disk, refusal.untouched) {
            let blocks = 1;
            self.read(env, Extent { disk, lba, blocks });
        }
        if right || absent || protected || (!status.is_success() && self.is_excused(env, qid)) {
            return Ok(());
        }
        let expected = refusal.status;
        let what = format!(
            "a command completed with {status} (DNR {}), not {expected} with DNR",
            status.dnr()
        );
        Err(self.violation(env, &what))
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

    fn io_completed(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        io: &Io,
        outstanding: &Outstanding,
        cqe: &Cqe,
    ) -> Result<(), Violation> {
        self.judge_io(env, qid, io, outstanding, cqe)?;
        self.part_completed(env, io, cqe.status())
    }

    fn judge_io(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        io: &Io,
        outstanding: &Outstanding,
        cqe: &Cqe,
    ) -> Result<(), Violation> {
        env.figures.ios += 1;
        let issued_at = outstanding.issued_at;
        let status = cqe.status();
        // NVM 1.1 §3.3.2.5: a Copy that fails has written nothing, so that the lowest range that it
        // has not copied is the first.
        if io.kind == IoKind::Copy && !status.is_success() && cqe.dw0.get() != 0 {
            let what = format!("a Copy that failed reports range {}", cqe.dw0.get());
            return Err(self.violation(env, &what));
        }
        self.judge_rate(env, io, issued_at, status)?;
        if status.is_success() {
            env.figures.ios_succeeded += 1;
            let identity = self.shape.identity;
            let is_protected = io.extents.iter().any(|extent| {
                env.is_protected(identity, extent.disk)
                    && env.changed_at(identity, extent.disk) < issued_at
            });
            if io.version > 0 && is_protected {
                return Err(self.violation(env, "a read-only namespace was written to"));
            }
            if io.damaged {
                return Err(self.violation(env, "damaged data was accepted"));
            }
            self.check_visible(env, io, issued_at)?;
            self.check_reserved(env, io, issued_at)?;
            // A write cannot have been executed before its data was sent.
            let sent_at = match io.kind {
                IoKind::Write | IoKind::Copy => outstanding.data_sent_at,
                _ => issued_at,
            };
            self.check_io_access(env, io, sent_at)?;
            if io.version > 0 {
                let disk = io.extents.first().map(|it| it.disk);
                let over = (env.judge).overtaken(self.shape.identity, io.began, disk);
                self.check_over(env, over, "a later write is done")?;
            }
            let judged = succeeded(env, io, &outstanding.data, (self.shape.identity, issued_at));
            return judged.inspect_err(|violation| {
                env.trace
                    .note(env.now, format_args!("VIOLATION {violation}"));
            });
        }
        let mismatch = status.is(Status::COMPARE_FAILURE) && io.kind == IoKind::Compare;
        if mismatch {
            self.check_reserved(env, io, issued_at)?;
            self.check_io_access(env, io, issued_at)?;
        }
        let refused = self.refusal(env, io, status, issued_at);
        let refused = match self.reservation_refusal(env, io, status, issued_at) {
            Some(end) => Some(end),
            None => self.ana_refusal(env, io, status, issued_at).or(refused),
        };
        let refused = refused.or(fused_refusal(io, status));
        if !mismatch && refused.is_none() && !self.may_fail(env, qid, io, status) {
            let what = format!("{:?} of {:?} completed with {status}", io.kind, io.extents);
            return Err(self.violation(env, &what));
        }
        if retry_is_pointless(status).is_some_and(|pointless| pointless != status.dnr()) {
            let what = format!("{status} has Do Not Retry {}", status.dnr());
            return Err(self.violation(env, &what));
        }
        if io.version > 0 {
            let end = match io.ambiguous {
                true => WriteEnd::Undecided,
                false => refused.unwrap_or(WriteEnd::Undecided),
            };
            env.judge.end_write(&io.extents, io.version, io.began, end);
            return Ok(());
        }
        let judged = match io.extents.first() {
            Some(extent) if mismatch => {
                env.judge
                    .judge_comparison(*extent, io.began, &io.expected, false, io.own_version())
            }
            _ => Ok(()),
        };
        env.judge.end_read(io.began);
        judged
    }

    /// The result of a refused write, which usually changed nothing; `None` if it failed for
    /// another reason.
    fn refusal(
        &self,
        env: &HostEnv<'_>,
        io: &Io,
        status: Status,
        issued_at: Nanos,
    ) -> Option<WriteEnd> {
        let damaged = io.damaged && status.is(Status::TRANSIENT_TRANSPORT_ERROR);
        let identity = self.shape.identity;
        let has_changed = |disk: usize| env.changed_at(identity, disk) >= issued_at;
        let absent = io
            .disks()
            .any(|disk| !env.sees(identity, disk) || env.disk_gone[disk] || has_changed(disk));
        let protected = status.is(Status::NAMESPACE_WRITE_PROTECTED)
            && (io.extents.iter())
                .any(|it| env.is_protected(identity, it.disk) || has_changed(it.disk));
        let refused = damaged || protected || (is_absence(status) && absent);
        // A RAM device may have received the first blocks before its namespace changed.
        let may_have_begun = io
            .disks()
            .any(|disk| env.swarm.ram[disk] && has_changed(disk));
        let end = match may_have_begun {
            true => WriteEnd::Undecided,
            false => WriteEnd::Refused,
        };
        refused.then_some(end)
    }

    /// Whether something explains the failure of a command.
    fn may_fail(&mut self, env: &HostEnv<'_>, qid: u16, io: &Io, status: Status) -> bool {
        let is = |statuses: &[Status]| statuses.iter().any(|it| status.is(*it));
        // With the write cache disabled, every write includes a flush.
        let writes_through = io.version > 0 && env.swarm.faults.has(Fault::Administer);
        let is_durable = io.kind == IoKind::Flush || io.fua || writes_through;
        let flush_fails = env.swarm.disk_behaviour.flush_error_permille > 0 && is_durable;
        let disk_fails = io.disks().any(|disk| env.disk_fails[disk]) || flush_fails;
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
        // Nothing follows the Compare if its queue ends.
        let is_first = matches!(io.fused, Some(FusedPart::Compare(_)));
        let is_alone = is_first && is(&[Status::ABORTED_MISSING_FUSED]);
        let of_ends = of_ends || is_alone;
        let aborted = io.aborted && is(&[Status::ABORT_REQUESTED]);
        // A drive has executed a part of it by itself before the host lost access.
        let is_partial = io.kind == IoKind::Copy && env.swarm.faults.has(Fault::Drive);
        let aborted = aborted || (is_partial && is(&[Status::COMMAND_INTERRUPTED]));
        aborted || (disk_fails && of_disks) || (of_ends && self.is_excused(env, qid))
    }

    /// The time since which nothing has delayed a response; `None` while something does.
    pub(super) fn undisturbed_since(
        &self,
        env: &HostEnv<'_>,
        connection: &Connection,
        outstanding: &Outstanding,
    ) -> Option<Nanos> {
        let mut since = outstanding.issued_at.max(connection.queue.disturbed_until);
        since = since.max(env.held_until);
        if env.swarm.faults.has(Fault::Paths) {
            since = since.max(self.greedy_until);
        }
        match &outstanding.command {
            // It waits for an event.
            Command::EventRequest if !self.is_due(outstanding) => return None,
            Command::EventRequest => since = since.max(env.memory_disturbed),
            Command::Io(io) => {
                for disk in io.disks() {
                    since = since.max(env.disk_disturbed[disk]);
                }
                since = since.max(env.memory_disturbed);
                if io.version > 0 {
                    since = since.max(env.fenced[self.number]);
                }
            }
            // These commands wait for requests in disks.
            Command::Disconnect
            | Command::Queues
            | Command::Hopeless(_)
            | Command::Ignored
            | Command::Reserve(_)
            | Command::Admin(AdminStep::WriteCache { .. }) => {
                let latest = env.disk_disturbed.iter().max();
                since = since.max(latest.copied().unwrap_or_default());
                since = since.max(env.memory_disturbed);
                since = since.max(env.fenced[self.number]);
            }
            Command::Connect
            | Command::Authenticate(_)
            | Command::Premature
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
            | Command::Damaged => since = since.max(env.memory_disturbed),
        }
        if self.is_leaving(env) {
            let left = env.permission_changed[self.number];
            since = since.max(left).max(self.calm_since(env));
        }
        let gone = self.silent_until.is_some() || env.stopping;
        (!gone && since <= env.now).then_some(since)
    }
}

/// Whether the status means that the namespace does not exist.
pub(super) fn is_absence(status: Status) -> bool {
    status.is(Status::INVALID_FIELD) || status.is(Status::INVALID_NAMESPACE_OR_FORMAT)
}

/// Checks the success of an I/O command, and updates the model.
fn succeeded(
    env: &mut HostEnv<'_>,
    io: &Io,
    data: &[u8],
    (identity, issued_at): (usize, Nanos),
) -> Result<(), Violation> {
    let judge = &mut *env.judge;
    let blocks: u64 = io.extents.iter().map(|it| u64::from(it.blocks)).sum();
    match (io.kind, io.extents.first()) {
        (IoKind::Deallocate, _) if io.version == 0 => {
            judge.end_read(io.began);
            Ok(())
        }
        (IoKind::Write | IoKind::WriteZeroes | IoKind::Deallocate | IoKind::Copy, extent) => {
            if io.kind == IoKind::Copy {
                env.figures.copied_blocks += blocks;
            }
            let shape = extent.map(|extent| env.swarm.disks[extent.disk]);
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
                let is_there = env.sees(identity, *disk) && !env.disk_gone[*disk];
                if is_there && env.changed_at(identity, *disk) < issued_at {
                    env.judge.flushed(*disk, io.began);
                }
            }
            env.judge.end_read(io.began);
            Ok(())
        }
        (IoKind::Read, Some(extent)) => {
            env.figures.blocks_judged += blocks;
            let judged = judge.judge_read(*extent, io.began, data, io.fua);
            judge.end_read(io.began);
            judged
        }
        (IoKind::Compare, Some(extent)) => {
            env.figures.blocks_judged += blocks;
            let own = io.own_version();
            let judged = judge.judge_comparison(*extent, io.began, &io.expected, true, own);
            judge.end_read(io.began);
            judged
        }
        (IoKind::Read | IoKind::Compare, None) => Ok(()),
    }
}
