//! Commands with the identifier of an outstanding command on the same queue.
//!
//! A target that checks for this reports Command Identifier Conflict; the number of commands that
//! it checks is implementation specific (Base 2.1 §4.2.3.1). This target does not check, because it
//! identifies commands by its own slots. Both are executed as if their identifiers differed: each
//! is completed once, and neither transfers the other's data.
//!
//! If a completion alone does not identify its command, the host checks it when both are complete.

use std::collections::BTreeMap;

use nvme_spec::command::{Cns, WriteZeroesControl};
use nvme_spec::identify::IDENTIFY_BYTES;
use nvme_spec::{Cqe, Sqe, Status};

use super::connection::{Connection, Incoming, Outstanding, Queue, Sending, Transfer};
use super::invalid::Refusal;
use super::{Command, Host, HostEnv, Io, IoKind};
use crate::judge::Extent;

/// Maximum number of consecutive pairs that a host sends.
const PAIRS_MAX: u64 = 3;
/// An opcode that is no I/O command.
const NO_OPCODE: u8 = 0x7E;

/// One of the two commands with the same identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    First,
    Second,
}

/// The command of a completion whose identifier two commands may have.
pub(super) enum CompletionOwner {
    /// At most one command has the identifier.
    Alone,
    /// It belongs to this command.
    Of(Which),
    /// It may belong to either command.
    Either,
}

/// Values of commands, by identifier.
pub(super) struct ByIdentifier<T> {
    first: BTreeMap<u16, T>,
    second: BTreeMap<u16, T>,
}

impl<T> Default for ByIdentifier<T> {
    fn default() -> Self {
        Self {
            first: BTreeMap::new(),
            second: BTreeMap::new(),
        }
    }
}

impl<T> ByIdentifier<T> {
    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.first.len() + self.second.len()
    }

    /// Adds the value of a command, which may be the second one with its identifier.
    pub(super) fn insert(&mut self, cid: u16, value: T) {
        match self.first.contains_key(&cid) {
            true => self.second.insert(cid, value),
            false => self.first.insert(cid, value),
        };
    }

    /// The identifier of the command whose value is the wanted one.
    pub(super) fn find(&self, is_it: impl Fn(&T) -> bool) -> Option<(u16, Which)> {
        let first = self.first.iter().map(|(cid, it)| (cid, Which::First, it));
        let second = self.second.iter().map(|(cid, it)| (cid, Which::Second, it));
        let mut all = first.chain(second);
        all.find_map(|(cid, which, it)| is_it(it).then_some((*cid, which)))
    }

    /// Removes the value of a command. The other command is then the only one.
    pub(super) fn take(&mut self, cid: u16, which: Which) -> Option<T> {
        if which == Which::Second {
            return self.second.remove(&cid);
        }
        let first = self.first.remove(&cid);
        if let Some(second) = self.second.remove(&cid) {
            self.first.insert(cid, second);
        }
        first
    }
}

impl Queue {
    /// The command of a completion.
    pub(super) fn owner_of(&self, cqe: &Cqe) -> CompletionOwner {
        let cid = cqe.cid.get();
        let (Some(first), Some(second)) = (self.outstanding.get(&cid), self.twins.get(&cid)) else {
            return CompletionOwner::Alone;
        };
        let status = cqe.status();
        match (&first.command, &second.command) {
            (Command::EventRequest, Command::EventRequest) => CompletionOwner::Of(Which::First),
            // Every event has a log page, so dword 0 of its completion is not 0; other completions
            // have 0.
            (Command::EventRequest, _) => {
                let is_event = status.is_success() && cqe.dw0.get() != 0;
                let of_events = [
                    Status::ABORT_REQUESTED,
                    Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED,
                ];
                let is_its = is_event || of_events.iter().any(|it| status.is(*it));
                CompletionOwner::Of(if is_its { Which::First } else { Which::Second })
            }
            (_, Command::Invalid(refusal)) if status.is(refusal.status) => {
                CompletionOwner::Of(Which::Second)
            }
            (_, Command::Invalid(_)) if status.is_success() => CompletionOwner::Of(Which::First),
            _ => CompletionOwner::Either,
        }
    }

    /// The command of an identifier that `fits`: the second one only if the first does not fit.
    pub(super) fn which(&self, cid: u16, fits: impl Fn(&Outstanding) -> bool) -> Which {
        let second = self.twins.get(&cid).is_some_and(&fits);
        let first = self.outstanding.get(&cid).is_some_and(&fits);
        match second && !first {
            true => Which::Second,
            false => Which::First,
        }
    }

    /// A command of an identifier.
    pub(super) fn command_mut(&mut self, cid: u16, which: Which) -> Option<&mut Outstanding> {
        match which {
            Which::First => self.outstanding.get_mut(&cid),
            Which::Second => self.twins.get_mut(&cid),
        }
    }

    /// Puts a command back.
    pub(super) fn put_back(&mut self, cid: u16, which: Which, outstanding: Outstanding) {
        match which {
            Which::First => self.outstanding.insert(cid, outstanding),
            Which::Second => self.twins.insert(cid, outstanding),
        };
    }

    /// Removes a command of an identifier. The other one is then the only one.
    pub(super) fn take_command(&mut self, cid: u16, which: Which) -> Option<Outstanding> {
        match which {
            Which::Second => self.twins.remove(&cid),
            Which::First => {
                let first = self.outstanding.remove(&cid);
                if let Some(second) = self.twins.remove(&cid) {
                    self.outstanding.insert(cid, second);
                }
                first
            }
        }
    }

    /// Handles the completion of one command of a pair: an earlier ambiguous completion belongs to
    /// the other one.
    ///
    /// # Errors
    /// That completion does not fit the other command.
    pub(super) fn resolve_pair(
        &mut self,
        cid: u16,
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), String> {
        let Some(cqe) = self.ambiguous_completions.remove(&cid) else {
            return Ok(());
        };
        if let Some(outstanding) = self.take_command(cid, Which::First) {
            self.check_completion(&outstanding, &cqe)?;
            incoming.push(Incoming::Completed { outstanding, cqe });
        }
        Ok(())
    }

    /// Handles a completion that may belong to either command. `Some`: it is the second one, so
    /// both commands are complete.
    ///
    /// # Errors
    /// The completions do not fit the commands.
    pub(super) fn second_completion(
        &mut self,
        cqe: Cqe,
    ) -> Result<Option<[(Outstanding, Cqe); 2]>, String> {
        let cid = cqe.cid.get();
        let Some(before) = self.ambiguous_completions.remove(&cid) else {
            self.ambiguous_completions.insert(cid, cqe);
            return Ok(None);
        };
        let second = self.take_command(cid, Which::Second);
        let first = self.take_command(cid, Which::First);
        match (first, second) {
            (Some(first), Some(second)) => {
                assign_completions([first, second], [before, cqe]).map(Some)
            }
            _ => Err(format!(
                "a completion for command {cid}, which is not outstanding"
            )),
        }
    }
}

/// Assigns two completions to the two commands of one identifier.
fn assign_completions(
    [mut first, mut second]: [Outstanding; 2],
    [one, other]: [Cqe; 2],
) -> Result<[(Outstanding, Cqe); 2], String> {
    if one.status().code() == other.status().code() {
        return Ok([(first, one), (second, other)]);
    }
    if let Command::Invalid(refusal) = &second.command {
        let is_its = one.status().is(refusal.status) || other.status().is_success();
        return Ok(match is_its {
            true => [(first, other), (second, one)],
            false => [(first, one), (second, other)],
        });
    }
    let (success, failure) = match (one.status().is_success(), other.status().is_success()) {
        (true, _) => (Some(one), other),
        (false, true) => (Some(other), one),
        (false, false) => (None, one),
    };
    let is_read = |it: &Outstanding| it.expected > 0;
    let is_done = |it: &Outstanding| is_read(it) && it.data.len() == it.expected;
    if let Some(success) = success {
        if is_done(&first) && is_done(&second) {
            return Err("a command failed after its data was received".to_owned());
        }
        let reads = is_read(&first) || is_read(&second);
        let firsts = is_done(&first) || (is_read(&second) && !is_done(&second));
        if reads {
            return Ok(match firsts {
                true => [(first, success), (second, failure)],
                false => [(first, failure), (second, success)],
            });
        }
    }
    // One of the two was executed, or a part of either.
    for outstanding in [&mut first, &mut second] {
        if let Command::Io(io) = &mut outstanding.command {
            io.ambiguous = true;
        }
    }
    let last = if success.is_some() { failure } else { other };
    Ok([(first, failure), (second, last)])
}

impl Host {
    /// Sends commands with identifiers that are in use.
    pub(super) fn send_twins(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        if self.random.permille(300) {
            return self.send_admin_twin(env);
        }
        let mut sent = None;
        for _ in 0..self.random.between(1, PAIRS_MAX) {
            sent = self.send_pair(env).or(sent);
        }
        sent
    }

    /// Sends a command with the identifier of an event request.
    fn send_admin_twin(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        if !self.has_admin_room() {
            return None;
        }
        let admin = self.admin.as_mut()?;
        let mut requests = admin.queue.outstanding.iter();
        let cid = requests.find(|(cid, it)| {
            let is_alone = !admin.queue.twins.contains_key(cid);
            is_alone && matches!(it.command, Command::EventRequest)
        });
        let cid = *cid?.0;
        let (sqe, command, transfer) = match self.random.coin() {
            true => (Sqe::keep_alive(), Command::KeepAlive, Transfer::None),
            false => {
                let sqe = Sqe::identify_structure(Cns::CONTROLLER, 0);
                (sqe, Command::Ignored, Transfer::In(IDENTIFY_BYTES))
            }
        };
        let sending = Sending {
            transfer,
            ..Sending::plain(sqe, command)
        };
        admin.submit_twin(sending, env.now, cid);
        let number = self.number;
        env.trace.note(
            env.now,
            format_args!("host {number} sends another command {cid} to its admin queue"),
        );
        Some(())
    }

    /// Sends two I/O commands with one identifier to one disk.
    fn send_pair(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        let disk = self.choose_disk(env);
        let identity = self.shape.identity;
        let recently = env.changed_at(identity, disk) + super::SETTLING_TIME > env.now;
        if !env.sees(identity, disk) || env.disk_gone[disk] || recently {
            return None;
        }
        let mut open = self.io.iter();
        let index = open.position(|it: &Connection| it.room() > 1 && !it.closing)?;
        let has_keys = self.shape.rdma && self.shape.windows;
        if has_keys && env.is_protected(identity, disk) {
            return None;
        }
        // Over TCP, R2Ts and data PDUs contain only the identifier: different lengths distinguish
        // them.
        let shape = env.swarm.disks[disk];
        let first = self.choose_extent(env, disk, shape);
        let mut second = self.choose_extent(env, disk, shape);
        if first.blocks == second.blocks {
            second.blocks = match first.blocks {
                1 if second.lba + 1 < shape.block_count => 2,
                1 => return None,
                blocks => blocks - 1,
            };
        }
        let (io, sqe, transfer) = self.one_of_pair(env, first);
        let cid = {
            let sending = Sending {
                transfer,
                ..Sending::plain(sqe, Command::Io(io))
            };
            self.io[index].submit(sending, env.now)
        };
        let sending = if self.shape.rdma || self.random.permille(300) {
            let sqe = Sqe::new(NO_OPCODE, self.nsid(env, disk));
            let refusal = Refusal::of(&sqe, Some(disk), Status::INVALID_OPCODE);
            Sending::plain(sqe, Command::Invalid(refusal))
        } else {
            let (io, sqe, transfer) = self.one_of_pair(env, second);
            Sending {
                transfer,
                ..Sending::plain(sqe, Command::Io(io))
            }
        };
        let (number, qid) = (self.number, self.io[index].qid());
        env.trace.note(
            env.now,
            format_args!(
                "host {number} queue {qid} sends command {cid} twice: {first:?}, {:?}",
                sending.command
            ),
        );
        self.io[index].submit_twin(sending, env.now, cid);
        Some(())
    }

    /// A read or a write of an extent.
    fn one_of_pair(&mut self, env: &mut HostEnv<'_>, extent: Extent) -> (Io, Sqe, Transfer) {
        let nsid = self.nsid(env, extent.disk);
        let nlb_z = (extent.blocks - 1) as u16;
        // Over RDMA, a key of its own could not be distinguished from that of the other command.
        let kind = match self.shape.rdma && self.shape.windows {
            true => 2,
            false => self.random.below(8),
        };
        if env.serving.read_only[extent.disk] || kind < 2 {
            let bytes = extent.blocks as usize * self.block_size(env, extent);
            let io = Io::reading(env, IoKind::Read, vec![extent], false);
            return (io, Sqe::read(nsid, extent.lba, nlb_z), Transfer::In(bytes));
        }
        if kind == 2 {
            let control = WriteZeroesControl::new().with_nlb_z(nlb_z);
            let io = self.writing(env, IoKind::WriteZeroes, extent, false);
            let sqe = Sqe::write_zeroes_range(nsid, extent.lba, control);
            return (io, sqe, Transfer::None);
        }
        let io = self.writing(env, IoKind::Write, extent, false);
        let data = self.stamped(env, extent, io.version);
        let sqe = Sqe::write(nsid, extent.lba, nlb_z, false);
        (io, sqe, Transfer::Out(data))
    }
}
