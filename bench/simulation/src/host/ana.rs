//! A host and the ANA states at its listener: statuses of its commands, the log page and its event
//! (Base 2.1 §8.1.1, §5.1.12.1.13).

use std::collections::{BTreeMap, BTreeSet};

use nvme_spec::command::{LogPageId, LogPageSelect};
use nvme_spec::log::{AnaGroups, AnaHeader, AnaState as Code};
use nvme_spec::{NSID_BROADCAST, Sqe, Status, U32};
use nvme_target::AnaState;
use reactors::Nanos;
use zerocopy::FromBytes;

use super::connection::{Outstanding, Transfer};
use super::events::{EVENT_MAX, EventLog, LOG_BYTES};
use super::{Command, Host, HostEnv, Io, IoKind};
use crate::ana::{ANA_GROUPS, GroupPath};
use crate::faults::Fault;
use crate::history::WriteEnd;
use crate::judge::Violation;
use crate::plan::{SPARE_GROUP, SPARE_NSID};

/// What a host knows about the log and its event.
#[derive(Default)]
pub(super) struct AnaHostState {
    /// An event was reported, but its log page was not read yet.
    is_reported: bool,
    /// Outstanding reads that clear the event.
    clearing: u32,
    /// When an event must have been reported, if a request was outstanding.
    due: Option<Nanos>,
    /// Reported events are of changes from this time on.
    cleared_from: Nanos,
    /// The last change count.
    count: u64,
    /// It may lack changes from this time on.
    may_lack_from: Nanos,
    /// It lacks all changes from this time on; `None` before the controller is ready.
    lacks_from: Option<Nanos>,
}

/// The code of a state in the log.
fn code(state: AnaState) -> Code {
    match state {
        AnaState::Optimized => Code::OPTIMIZED,
        AnaState::NonOptimized => Code::NON_OPTIMIZED,
        AnaState::Inaccessible => Code::INACCESSIBLE,
        AnaState::PersistentLoss => Code::PERSISTENT_LOSS,
        AnaState::Change => Code::CHANGE,
    }
}

impl Host {
    /// A group at its listener.
    fn group_path(&self, group: u32) -> GroupPath {
        GroupPath {
            subsystem: self.shape.subsystem,
            listener: self.shape.listener(),
            group,
        }
    }

    /// The groups with namespaces at its listener.
    fn group_paths(&self, env: &HostEnv<'_>) -> Vec<GroupPath> {
        let groups = env.serving.groups_of(env.swarm, self.shape.subsystem);
        groups.into_iter().map(|it| self.group_path(it)).collect()
    }

    /// The groups at its listener that a disk may have been in since `from`.
    fn disk_paths(
        &self,
        env: &HostEnv<'_>,
        disk: usize,
        from: Nanos,
    ) -> impl Iterator<Item = GroupPath> {
        let groups = env.judge.ana.groups_since(disk, from).into_iter();
        groups.map(|it| self.group_path(it))
    }

    /// Whether an ANA state of a disk explains the status of a command that was sent at
    /// `issued_at`.
    pub(super) fn may_lack_access(
        &self,
        env: &HostEnv<'_>,
        disk: usize,
        status: Status,
        issued_at: Nanos,
    ) -> bool {
        let mut paths = self.disk_paths(env, disk, issued_at);
        paths.any(|path| env.judge.ana.may_refuse(path, issued_at, status))
    }

    /// Whether the ANA state of the namespace of an export without disks explains the status of a
    /// Flush of all namespaces.
    fn may_lack_spare(&self, env: &HostEnv<'_>, status: Status, issued_at: Nanos) -> bool {
        let mut disks = env.swarm.disks_of(self.shape.subsystem);
        let may_be_there = disks
            .all(|disk| !env.serving.namespaces[disk] || env.namespace_changed[disk] >= issued_at);
        let path = self.group_path(SPARE_GROUP);
        may_be_there && env.judge.ana.may_refuse(path, issued_at, status)
    }

    /// Whether ANA states may have allowed a command for a disk that was sent at `issued_at`.
    fn may_have_access(&self, env: &HostEnv<'_>, disk: usize, issued_at: Nanos) -> bool {
        let mut paths = self.disk_paths(env, disk, issued_at);
        paths.any(|path| env.judge.ana.may_allow(path, issued_at))
    }

    /// Checks that ANA states allowed a command that was executed.
    pub(super) fn check_accessible(
        &self,
        env: &mut HostEnv<'_>,
        disks: impl IntoIterator<Item = usize>,
        issued_at: Nanos,
    ) -> Result<(), Violation> {
        // A Flush of all namespaces covers those that exist.
        let mut disks = disks.into_iter();
        let is_wrong = |disk: &usize| {
            env.serving.namespaces[*disk]
                && !env.disk_gone[*disk]
                && env.namespace_changed[*disk] < issued_at
                && !self.may_have_access(env, *disk, issued_at)
        };
        let Some(disk) = disks.find(is_wrong) else {
            return Ok(());
        };
        let path = self.group_path(env.serving.ana_groups[disk]);
        let state = env.judge.ana.state(path);
        let what = format!("a command for disk {disk} was executed, whose ANA state is {state}");
        Err(self.violation(env, &what))
    }

    /// Checks the group in Identify data of a disk, and whether it hides the allocated blocks of
    /// disks without access: the number of blocks and of allocated blocks, if the data has them.
    pub(super) fn check_identified_group(
        &self,
        env: &mut HostEnv<'_>,
        disk: usize,
        group: u32,
        blocks: Option<(u64, u64)>,
        issued_at: Nanos,
    ) -> Result<(), Violation> {
        let is_there = env.serving.namespaces[disk] && !env.disk_gone[disk];
        if !is_there || env.namespace_changed[disk] >= issued_at {
            return Ok(());
        }
        let wanted = env.serving.ana_groups[disk];
        if group != wanted {
            let what = format!("disk {disk} is reported in ANA group {group}, and is in {wanted}");
            return Err(self.violation(env, &what));
        }
        let (path, ana) = (self.group_path(wanted), &env.judge.ana);
        let mut states = ana.states_since(path, issued_at);
        let is_wrong = match blocks {
            Some((_, 0)) => states.all(AnaState::is_accessible),
            Some((all, allocated)) => allocated != all || !states.any(AnaState::is_accessible),
            None => false,
        };
        drop(states);
        if !is_wrong {
            return Ok(());
        }
        let state = ana.state(path);
        let what = format!("disk {disk} has NSZE and NUSE {blocks:?} in the ANA state {state}");
        Err(self.violation(env, &what))
    }

    /// Checks that an ANA state allowed an I/O command that was executed.
    pub(super) fn check_io_access(
        &self,
        env: &mut HostEnv<'_>,
        io: &Io,
        issued_at: Nanos,
    ) -> Result<(), Violation> {
        // It is not known which of two commands was executed.
        let disks = io.disks().filter(|_| !io.ambiguous);
        self.check_accessible(env, disks, issued_at)
    }

    /// The result of a command that an ANA state refused; `None` if none may have.
    pub(super) fn ana_refusal(
        &self,
        env: &mut HostEnv<'_>,
        io: &Io,
        status: Status,
        issued_at: Nanos,
    ) -> Option<WriteEnd> {
        let mut disks = io.disks();
        let lacks_spare = io.kind == IoKind::Flush && self.may_lack_spare(env, status, issued_at);
        let lacks_access = disks.any(|disk| self.may_lack_access(env, disk, status, issued_at));
        if !lacks_spare && !lacks_access {
            return None;
        }
        env.figures.ana_refusals += 1;
        // A RAM device may have received the first blocks before.
        let mut disks = io.disks();
        let may_have_begun =
            disks.any(|disk| env.swarm.ram[disk] && self.may_have_access(env, disk, issued_at));
        Some(match may_have_begun {
            true => WriteEnd::Undecided,
            false => WriteEnd::Refused,
        })
    }

    /// Reads the log. `retains`: its event stays masked.
    pub fn read_ana_log(&mut self, env: &mut HostEnv<'_>, retains: bool) {
        let page = LogPageId::ANA;
        let log = EventLog { page, retains };
        let select = LogPageSelect::new()
            .with_lid(page)
            .with_rae(retains)
            .with_numd_z((LOG_BYTES / 4 - 1) as u32);
        let sqe = Sqe::log_page(NSID_BROADCAST, select, 0);
        let command = Command::ReadLog(log);
        let is_sent = self.send_admin_moving(env, sqe, command, Transfer::In(LOG_BYTES));
        if is_sent && !retains {
            self.note_ana_read();
        }
    }

    /// Notes that a read is sent which clears the event.
    pub(super) fn note_ana_read(&mut self) {
        self.unmask(LogPageId::ANA);
        self.ana.clearing += 1;
        self.ana.due = None;
    }

    /// Begins to count the changes of a new association.
    pub(super) fn begin_ana(&mut self, now: Nanos) {
        self.ana.cleared_from = now;
        self.reset_ana(now);
    }

    /// Begins to count the changes of a controller that is reset. An event may be on its way.
    pub(super) fn reset_ana(&mut self, now: Nanos) {
        self.ana = AnaHostState {
            cleared_from: self.ana.cleared_from,
            may_lack_from: now,
            ..AnaHostState::default()
        };
    }

    /// Notes that the controller is ready: it counts all further changes. Reads the log.
    pub(super) fn attach_to_groups(&mut self, env: &mut HostEnv<'_>) {
        if env.swarm.faults.has(Fault::Ana) {
            self.ana.lacks_from = Some(env.now);
            self.read_ana_log(env, false);
        }
    }

    /// Forgets the expected event.
    pub(super) fn forget_due_ana_event(&mut self) {
        self.ana.due = None;
    }

    /// Expects an event: the state of a path has changed, whose group has namespaces.
    pub fn expect_ana_event(&mut self, path: GroupPath, now: Nanos) {
        if path != self.group_path(path.group) || !self.is_serving() {
            return;
        }
        let admin = self.admin.as_ref();
        let is_calm = admin.is_some_and(|admin| admin.queue.disturbed_until == Nanos::ZERO);
        if is_calm && !self.ana.is_reported && self.ana.clearing == 0 {
            self.ana.due.get_or_insert(now + EVENT_MAX);
        }
    }

    /// Expects no event of the changes of this moment, which end where they began.
    pub fn withdraw_ana_event(&mut self, path: GroupPath, now: Nanos) {
        if path == self.group_path(path.group) && self.ana.due == Some(now + EVENT_MAX) {
            self.ana.due = None;
        }
    }

    /// Whether an event is overdue.
    pub(super) fn lacks_ana_event(&self, now: Nanos) -> bool {
        self.ana.due.is_some_and(|due| due < now)
    }

    /// Handles a reported event.
    pub(super) fn ana_event(&mut self, env: &mut HostEnv<'_>) -> Result<(), Violation> {
        self.ana.due = None;
        self.ana.is_reported = true;
        let from = self.ana.cleared_from;
        let ana = &env.judge.ana;
        let mut paths = self.group_paths(env).into_iter();
        let has_changed = paths.any(|path| ana.changes_from(path, from).next().is_some());
        if has_changed || !self.are_namespaces_settled(env, from) {
            return Ok(());
        }
        Err(self.violation(env, "an ANA event without a change"))
    }

    /// Whether no namespace of its subsystem has changed since `from`.
    fn are_namespaces_settled(&self, env: &HostEnv<'_>, from: Nanos) -> bool {
        // The target may know earlier about a device that was pulled out.
        let faults = env.swarm.faults;
        let may_be_gone = faults.has(Fault::Removal) || faults.has(Fault::Drive);
        let mut disks = env.swarm.disks_of(self.shape.subsystem);
        !may_be_gone && disks.all(|disk| env.namespace_changed[disk] < from)
    }

    /// Handles the log.
    pub(super) fn ana_log_read(
        &mut self,
        env: &mut HostEnv<'_>,
        log: EventLog,
        outstanding: &Outstanding,
    ) -> Result<(), Violation> {
        self.check_ana_groups(env, outstanding)?;
        self.check_ana_count(env, outstanding)?;
        if !log.retains {
            // The event may have been reported after the read was sent.
            self.unmask(LogPageId::ANA);
            self.ana.is_reported = false;
            self.ana.clearing = self.ana.clearing.saturating_sub(1);
            self.ana.cleared_from = outstanding.issued_at;
        }
        // The allocated blocks of its disks, which depend on the state, are read in turns.
        let disks: Vec<usize> = env.swarm.disks_of(self.shape.subsystem).collect();
        let turn = self.ana.count as usize % disks.len().max(1);
        if let Some(disk) = disks.get(turn) {
            self.ask_size(env, *disk);
        }
        Ok(())
    }

    /// Checks the states and the namespaces of the groups.
    fn check_ana_groups(
        &self,
        env: &mut HostEnv<'_>,
        outstanding: &Outstanding,
    ) -> Result<(), Violation> {
        let Some(groups) = AnaGroups::new(&outstanding.data) else {
            return Err(self.violation(env, "a log page is shorter than requested"));
        };
        let issued_at = outstanding.issued_at;
        let nsids_of = |nsids: &[U32]| nsids.iter().map(|it| it.get()).collect();
        let groups: Vec<(u32, Code, Vec<u32>)> = groups
            .map(|(group, nsids)| (group.grpid.get(), group.state.state(), nsids_of(nsids)))
            .collect();
        for (group, found, _) in &groups {
            let path = self.group_path(*group);
            let mut states = env.judge.ana.states_since(path, issued_at);
            if !states.any(|it| code(it) == *found) {
                drop(states);
                let state = env.judge.ana.state(path);
                let what = format!(
                    "the ANA log has the state {found:?} of group {group}, the operator set {state}"
                );
                return Err(self.violation(env, &what));
            }
        }
        let found: Vec<(u32, &[u32])> = groups
            .iter()
            .map(|(group, _, nsids)| (*group, &nsids[..]))
            .collect();
        if self.may_have_groups(env, &found, issued_at) {
            return Ok(());
        }
        let what = format!("the ANA log has the groups and namespaces {found:?}");
        Err(self.violation(env, &what))
    }

    /// Whether groups with these namespaces are possible in a log that was requested at
    /// `issued_at`.
    fn may_have_groups(
        &self,
        env: &HostEnv<'_>,
        found: &[(u32, &[u32])],
        issued_at: Nanos,
    ) -> bool {
        let subsystem = self.shape.subsystem;
        let are_ascending = found.is_sorted_by(|one, next| one.0 < next.0)
            && (found.iter()).all(|(_, nsids)| nsids.is_sorted_by(|one, next| one < next));
        if !self.are_namespaces_settled(env, issued_at) {
            let disks = env.swarm.disks.len() as u32;
            let mut nsids: Vec<u32> = found.iter().flat_map(|it| it.1).copied().collect();
            nsids.sort_unstable();
            return are_ascending
                && (found.iter())
                    .all(|(group, nsids)| ANA_GROUPS.contains(group) && !nsids.is_empty())
                && nsids.is_sorted_by(|one, next| one < next)
                && (nsids.iter()).all(|nsid| *nsid <= disks || *nsid == SPARE_NSID);
        }
        let mut wanted: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for disk in env.swarm.disks_of(subsystem) {
            if env.serving.namespaces[disk] {
                let its = wanted.entry(env.serving.ana_groups[disk]).or_default();
                its.push(env.serving.nsids[disk]);
            }
        }
        wanted.values_mut().for_each(|it| it.sort_unstable());
        if wanted.is_empty() {
            wanted.insert(SPARE_GROUP, vec![SPARE_NSID]);
        }
        let wanted = wanted.iter().map(|(group, nsids)| (*group, &nsids[..]));
        wanted.eq(found.iter().copied())
    }

    /// Checks that the change count has grown by the changes since the last read.
    fn check_ana_count(
        &mut self,
        env: &mut HostEnv<'_>,
        outstanding: &Outstanding,
    ) -> Result<(), Violation> {
        let Ok((header, _)) = AnaHeader::read_from_prefix(&outstanding.data) else {
            return Err(self.violation(env, "a log page is shorter than requested"));
        };
        let issued_at = outstanding.issued_at;
        // A reset clears the count. The controller of a host that is being disconnected counts no
        // changes.
        let Some(lacks_from) = self.ana.lacks_from.filter(|it| *it <= issued_at) else {
            return Ok(());
        };
        if self.is_leaving(env) {
            return Ok(());
        }
        let (before, count) = (self.ana.count, header.chgcnt.get());
        let (paths, from) = (self.group_paths(env), self.ana.may_lack_from);
        let ana = &env.judge.ana;
        // Changes of several groups at one time may count as one.
        let certain: BTreeSet<Nanos> = (paths.iter())
            .flat_map(|path| ana.certain_changes_from(*path, lacks_from))
            .filter(|at| *at < issued_at)
            .collect();
        let certain = certain.len() as u64;
        let possible = paths
            .iter()
            .map(|path| ana.changes_from(*path, from).count());
        let possible = possible.sum::<usize>() as u64;
        let is_settled = self.are_namespaces_settled(env, from);
        let is_right = match is_settled {
            true => (before + certain..=before + possible).contains(&count),
            false => count >= before,
        };
        if !is_right {
            let what = format!(
                "the change count of the ANA log is {count}, and was {before} before {certain} to \
                 {possible} changes"
            );
            return Err(self.violation(env, &what));
        }
        self.ana.count = count;
        self.ana.may_lack_from = issued_at;
        self.ana.lacks_from = Some(env.now.max(lacks_from));
        Ok(())
    }
}
