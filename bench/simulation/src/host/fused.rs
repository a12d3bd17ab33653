//! Compare and Write of a host (Base 2.1 §3.4.2): both commands follow each other in a queue, and
//! either both succeed or none does.

use nvme_spec::command::Fuse;
use nvme_spec::{Sqe, Status};

use super::connection::Transfer;
use super::{Host, HostEnv, Io, IoKind};
use crate::content::Stamp;
use crate::history::{Moment, WriteEnd};
use crate::judge::{Extent, Violation};

/// The part of a command in a fused operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FusedPart {
    /// The Compare before the Write of this version.
    Compare(u64),
    /// The Write of this version.
    Write(u64),
    /// The other command is missing.
    Alone,
}

/// A Compare and Write in flight.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    extent: Extent,
    /// The version that the Write replaces.
    expected: u64,
    began: Moment,
    compare: Option<Status>,
    write: Option<Status>,
}

impl Io {
    /// The version of the Write that follows a Compare.
    pub(super) fn own_version(&self) -> Option<u64> {
        match self.fused {
            Some(FusedPart::Compare(version)) => Some(version),
            Some(FusedPart::Write(_) | FusedPart::Alone) | None => None,
        }
    }
}

/// The result of a write that was not executed because of its partner; `None` for other reasons.
pub(super) fn fused_refusal(io: &Io, status: Status) -> Option<WriteEnd> {
    let refused = match io.fused? {
        FusedPart::Compare(_) | FusedPart::Write(_) => Status::ABORTED_FAILED_FUSED,
        FusedPart::Alone => Status::ABORTED_MISSING_FUSED,
    };
    (status.is(refused) && !status.dnr()).then_some(WriteEnd::Refused)
}

impl Host {
    /// Replaces the version `expected` of a block by a new one. Returns whether a queue had room.
    pub fn replace(&mut self, env: &mut HostEnv<'_>, extent: Extent, expected: u64) -> bool {
        let Some(index) = self.queue_for_two() else {
            return false;
        };
        let (mut compare, sqe, transfer) = self.fused_compare(env, extent, expected);
        let mut write = self.writing(env, IoKind::Write, extent, false);
        let (version, began) = (write.version, compare.began);
        compare.fused = Some(FusedPart::Compare(version));
        write.fused = Some(FusedPart::Write(version));
        let pair = Pair {
            extent,
            expected,
            began,
            compare: None,
            write: None,
        };
        self.pairs.insert(version, pair);
        self.submit_io(env, index, compare, sqe, transfer);
        let data = self.stamped(env, extent, version);
        let sqe = Sqe::write(self.nsid(env, extent.disk), extent.lba, 0, false);
        let sqe = sqe.with_fuse(Fuse::SECOND);
        self.submit_io(env, index, write, sqe, Transfer::Out(data));
        true
    }

    /// Sends one part of a Compare and Write, and then another command. Returns whether a queue had
    /// room.
    pub fn send_part(&mut self, env: &mut HostEnv<'_>, extent: Extent, expected: u64) -> bool {
        let Some(index) = self.queue_for_two() else {
            return false;
        };
        let alone = Some(FusedPart::Alone);
        if self.random.coin() {
            let (io, sqe, transfer) = self.fused_compare(env, extent, expected);
            let io = Io { fused: alone, ..io };
            self.submit_io(env, index, io, sqe, transfer);
        } else {
            let write = self.writing(env, IoKind::Write, extent, false);
            let write = Io {
                fused: alone,
                ..write
            };
            let data = self.stamped(env, extent, write.version);
            let sqe = Sqe::write(self.nsid(env, extent.disk), extent.lba, 0, false);
            let sqe = sqe.with_fuse(Fuse::SECOND);
            self.submit_io(env, index, write, sqe, Transfer::Out(data));
        }
        let io = Io::reading(env, IoKind::Read, vec![extent], false);
        let bytes = self.block_size(env, extent);
        let sqe = Sqe::read(self.nsid(env, extent.disk), extent.lba, 0);
        self.submit_io(env, index, io, sqe, Transfer::In(bytes));
        true
    }

    fn queue_for_two(&self) -> Option<usize> {
        let has_room = self.io.iter().position(|it| it.room() > 1 && !it.closing);
        has_room.filter(|_| self.can_reach_disks())
    }

    fn fused_compare(
        &self,
        env: &mut HostEnv<'_>,
        extent: Extent,
        expected: u64,
    ) -> (Io, Sqe, Transfer) {
        let mut data = vec![0; self.block_size(env, extent)];
        Stamp {
            device: extent.disk as u32,
            lba: extent.lba,
            version: expected,
        }
        .write(&mut data);
        let mut io = Io::reading(env, IoKind::Compare, vec![extent], false);
        io.expected = vec![Some(expected)];
        let sqe = Sqe::compare(self.nsid(env, extent.disk), extent.lba, 0);
        (io, sqe.with_fuse(Fuse::FIRST), Transfer::Out(data))
    }

    /// Checks that a part alone was not executed, and that two parts have results that fit.
    pub(super) fn part_completed(
        &mut self,
        env: &mut HostEnv<'_>,
        io: &Io,
        status: Status,
    ) -> Result<(), Violation> {
        let version = match io.fused {
            None => return Ok(()),
            Some(FusedPart::Alone) => {
                let is_executed = status.is_success() || status.is(Status::COMPARE_FAILURE);
                return match is_executed {
                    true => Err(self.violation(env, "a part of a fused operation was executed")),
                    false => Ok(()),
                };
            }
            Some(FusedPart::Compare(version) | FusedPart::Write(version)) => version,
        };
        // It is not known which of two commands was completed.
        if io.ambiguous {
            self.pairs.remove(&version);
        }
        let Some(pair) = self.pairs.get_mut(&version) else {
            return Ok(());
        };
        match io.fused {
            Some(FusedPart::Compare(_)) => pair.compare = Some(status),
            _ => pair.write = Some(status),
        }
        let (Some(compare), Some(write)) = (pair.compare, pair.write) else {
            return Ok(());
        };
        let pair = self.pairs.remove(&version);
        let partner_failed = Status::ABORTED_FAILED_FUSED;
        let fits = match (compare.is_success(), write.is_success()) {
            (true, true) => true,
            (true, false) => !write.is(partner_failed),
            (false, true) => false,
            (false, false) => !(write.is(partner_failed) && compare.is(partner_failed)),
        };
        if !fits {
            let what = format!("the Compare of a pair completed with {compare}, the Write {write}");
            return Err(self.violation(env, &what));
        }
        let Some(pair) = pair.filter(|_| write.is_success()) else {
            return Ok(());
        };
        env.figures.replacements += 1;
        let Pair {
            extent,
            expected,
            began,
            ..
        } = pair;
        let judged = (env.judge).judge_replacement(extent, began, expected, version);
        judged.inspect_err(|violation| {
            env.trace
                .note(env.now, format_args!("VIOLATION {violation}"));
        })
    }
}
