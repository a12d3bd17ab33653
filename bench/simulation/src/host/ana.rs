//! A host and the ANA states at its listener: statuses of its commands, the log page and its event
//! (Base 2.1 §8.1.1, §5.1.12.1.13).

use nvme_spec::command::{LogPageId, LogPageSelect};
use nvme_spec::log::{AnaGroups, AnaHeader};
use nvme_spec::{NSID_BROADCAST, Sqe, Status};
use nvme_target::AnaState;
use reactors::Nanos;
use zerocopy::FromBytes;

use super::connection::{Outstanding, Transfer};
use super::events::{EVENT_MAX, EventLog, LOG_BYTES};
use super::{Command, Host, HostEnv, Io};
use crate::ana::{GROUP, GroupPath};
use crate::faults::Fault;
use crate::history::WriteEnd;
use crate::judge::Violation;

/// Lowest namespace identifier that belongs to no disk.
const SPARE_NSID: u32 = 9;

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
fn code(state: AnaState) -> nvme_spec::log::AnaState {
    use nvme_spec::log::AnaState as Code;
    match state {
        AnaState::Optimized => Code::OPTIMIZED,
        AnaState::NonOptimized => Code::NON_OPTIMIZED,
        AnaState::Inaccessible => Code::INACCESSIBLE,
        AnaState::PersistentLoss => Code::PERSISTENT_LOSS,
        AnaState::Change => Code::CHANGE,
    }
}

impl Host {
    /// The group of all namespaces at its listener.
    pub(super) fn group_path(&self) -> GroupPath {
        GroupPath {
            subsystem: self.shape.subsystem,
            listener: self.shape.listener(),
            group: GROUP,
        }
    }

    /// Whether an ANA state explains the status of a command that was sent at `issued_at`.
    pub(super) fn may_lack_access(
        &self,
        env: &HostEnv<'_>,
        status: Status,
        issued_at: Nanos,
    ) -> bool {
        (env.judge.ana).may_refuse(self.group_path(), issued_at, status)
    }

    /// Checks that an ANA state allowed a command that was executed.
    pub(super) fn check_accessible(
        &self,
        env: &mut HostEnv<'_>,
        disks: impl IntoIterator<Item = usize>,
        issued_at: Nanos,
    ) -> Result<(), Violation> {
        let path = self.group_path();
        if env.judge.ana.may_allow(path, issued_at) {
            return Ok(());
        }
        // A Flush of all namespaces covers those that exist.
        let mut disks = disks.into_iter();
        let is_there = |disk: &usize| {
            env.serving.namespaces[*disk]
                && !env.disk_gone[*disk]
                && env.namespace_changed[*disk] < issued_at
        };
        let Some(disk) = disks.find(is_there) else {
            return Ok(());
        };
        let state = env.judge.ana.state(path);
        let what = format!("a command for disk {disk} was executed, whose ANA state is {state}");
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
        let extents = io.extents.iter().filter(|_| !io.ambiguous);
        self.check_accessible(env, extents.map(|it| it.disk), issued_at)
    }

    /// The result of a command that an ANA state refused; `None` if none may have.
    pub(super) fn ana_refusal(
        &self,
        env: &mut HostEnv<'_>,
        io: &Io,
        status: Status,
        issued_at: Nanos,
    ) -> Option<WriteEnd> {
        if !self.may_lack_access(env, status, issued_at) {
            return None;
        }
        env.figures.ana_refusals += 1;
        // A RAM device may have received the first blocks before.
        let is_ram = io.extents.iter().any(|it| env.swarm.ram[it.disk]);
        let may_have_begun = is_ram && env.judge.ana.may_allow(self.group_path(), issued_at);
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

    /// Expects an event: the state of a path has changed.
    pub fn expect_ana_event(&mut self, path: GroupPath, now: Nanos) {
        if path != self.group_path() || !self.is_serving() {
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
        if path == self.group_path() && self.ana.due == Some(now + EVENT_MAX) {
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
        let mut changes = env.judge.ana.changes_from(self.group_path(), from);
        let has_changed = changes.next().is_some() || !self.are_namespaces_settled(env, from);
        drop(changes);
        if has_changed {
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
        let groups: Vec<_> = groups.collect();
        let (group, nsids) = match groups.as_slice() {
            [] if !self.are_namespaces_settled(env, issued_at) => return Ok(()),
            [(group, nsids)] if group.grpid.get() == GROUP => (group, nsids),
            _ => {
                let what = format!("the ANA log has the groups {groups:?}");
                return Err(self.violation(env, &what));
            }
        };
        let nsids: Vec<u32> = nsids.iter().map(|it| it.get()).collect();
        let found = group.state.state();
        let mut states = env.judge.ana.states_since(self.group_path(), issued_at);
        let is_possible = states.any(|it| code(it) == found);
        drop(states);
        if !is_possible {
            let state = env.judge.ana.state(self.group_path());
            let what = format!("the ANA log has the state {found:?}, the operator set {state}");
            return Err(self.violation(env, &what));
        }
        let mut disks = env.swarm.disks_of(self.shape.subsystem);
        let is_wrong = |disk: &usize| {
            let is_there = env.serving.namespaces[*disk];
            nsids.contains(&self.nsid(env, *disk)) != is_there
        };
        let is_settled = self.are_namespaces_settled(env, issued_at) && self.knows_disks();
        let wrong = disks.find(|disk| is_settled && is_wrong(disk));
        drop(disks);
        let disks = env.swarm.disks.len() as u32;
        let is_unknown = |nsid: &u32| *nsid > disks && *nsid != SPARE_NSID;
        if wrong.is_none()
            && nsids.is_sorted_by(|one, next| one < next)
            && !nsids.iter().any(is_unknown)
        {
            return Ok(());
        }
        let what = format!("the ANA log has the namespaces {nsids:?}");
        Err(self.violation(env, &what))
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
        let (path, from) = (self.group_path(), self.ana.may_lack_from);
        let certain = env.judge.ana.certain_changes_from(path, lacks_from);
        let certain = certain.filter(|at| *at < issued_at).count() as u64;
        let possible = env.judge.ana.changes_from(path, from).count() as u64;
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
