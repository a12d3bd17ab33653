//! An operator who changes ANA states (Base 2.1 §8.1.1), often while hosts have writes in flight.
//!
//! When the target reports that the earlier commands of a path without access have ended, no disk
//! has a write of its hosts, until the path has access again.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError};

use nvme_target::AnaState;
use reactors::Nanos;

use super::World;
use crate::ana::{ANA_GROUPS, EMPTY_GROUP, GroupPath};
use crate::faults::Fault;
use crate::host::LATENCY_MAX;
use crate::judge::Violation;
use crate::plan::ServedConfig;
use crate::random::Random;

/// Share of events with a change of a state, per thousand.
const CHANGES_PERMILLE: u32 = 30;
/// Share of changes that concern a path with writes in flight, per thousand.
const BUSY_PERMILLE: u32 = 700;
/// Share of changes of the group without namespaces, per thousand.
const EMPTY_PERMILLE: u32 = 50;
/// Share of events in which a disk moves to another group, per thousand.
const MOVES_PERMILLE: u32 = 5;
/// Share of changes of any group, with namespaces or without, per thousand.
const ANY_GROUP_PERMILLE: u32 = 100;
/// Share of writes before a change that may go to a disk of any group, per thousand.
const OTHER_GROUP_PERMILLE: u32 = 250;
/// Share of paths whose hosts lose a connection before, per thousand.
const CUT_PERMILLE: u32 = 300;
/// Share of changes after which a host reads the log, although no event was reported, per thousand.
const READS_PERMILLE: u32 = 200;
/// Writes of a host before the change.
const WRITES_MAX: u64 = 6;
/// Longest delay of a disk.
const HOLD_MAX: Nanos = Nanos::from_millis(100);

/// A change whose end the target has not reported.
struct AwaitedChange {
    path: GroupPath,
    at: Nanos,
    done: Receiver<()>,
}

/// The operator.
pub(super) struct Operator {
    random: Random,
    /// Random stream for ANA groups.
    group_random: Random,
    /// Paths that are to have access again, and when.
    returns: Vec<(Nanos, GroupPath)>,
    awaited: Vec<AwaitedChange>,
    /// Paths without access whose earlier commands have ended, and when they lost it.
    quiet: BTreeMap<GroupPath, Nanos>,
    /// The states that were set for groups with namespaces. They outlive changes of the
    /// configuration that keep the path.
    set: BTreeMap<GroupPath, AnaState>,
}

impl Operator {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed, 0xB1),
            group_random: Random::new(seed, 0xB4),
            returns: Vec::new(),
            awaited: Vec::new(),
            quiet: BTreeMap::new(),
            set: BTreeMap::new(),
        }
    }

    /// Forgets what belongs to the appliance, after its end.
    pub(super) fn reset(&mut self) {
        self.returns.clear();
        self.awaited.clear();
        self.quiet.clear();
        self.set.clear();
    }
}

impl World {
    /// Sometimes changes the state of a path.
    pub(super) fn operate(&mut self) -> Result<(), Violation> {
        // An upgrade refuses changes by operators.
        if !self.env.swarm.faults.has(Fault::Ana) || self.is_handing_over {
            return Ok(());
        }
        self.return_access(self.env.time.now())?;
        if self.operator.group_random.permille(MOVES_PERMILLE) {
            self.move_disk()?;
        }
        let random = &mut self.operator.random;
        if !random.permille(CHANGES_PERMILLE) {
            return Ok(());
        }
        let host = random.below(self.hosts.len() as u64) as usize;
        let is_empty = random.permille(EMPTY_PERMILLE);
        let is_busy = random.permille(BUSY_PERMILLE);
        let shape = self.env.swarm.hosts[host];
        let path = GroupPath {
            subsystem: shape.subsystem,
            listener: shape.listener(),
            group: if is_empty {
                EMPTY_GROUP
            } else {
                self.choose_group(shape.subsystem)
            },
        };
        if is_busy {
            self.write_at(path)?;
        }
        let random = &mut self.operator.random;
        let state = random.pick(&[
            AnaState::Inaccessible,
            AnaState::Inaccessible,
            AnaState::PersistentLoss,
            AnaState::Change,
            AnaState::NonOptimized,
        ]);
        let longest = random.pick(&[
            Nanos::from_micros(100),
            Nanos::from_millis(2),
            Nanos::from_millis(50),
        ]);
        let returns_at = self.env.time.now() + Nanos(random.below(longest.as_nanos()));
        let reads = random.permille(READS_PERMILLE).then(|| random.coin());
        if !self.set_ana_state(path, state)? {
            return Ok(());
        }
        self.env.figures.fault(Fault::Ana);
        self.operator.returns.push((returns_at, path));
        if let Some(retains) = reads.filter(|_| self.hosts[host].can_reach_disks()) {
            self.hosts[host].read_ana_log(&mut self.env.for_hosts(), retains);
        }
        Ok(())
    }

    /// Moves a disk to another group, sometimes with writes in flight.
    fn move_disk(&mut self) -> Result<(), Violation> {
        let random = &mut self.operator.group_random;
        let host = random.below(self.hosts.len() as u64) as usize;
        let (group, is_busy) = (random.pick(&ANA_GROUPS), random.coin());
        let shape = self.env.swarm.hosts[host];
        let disks: Vec<usize> = self.env.swarm.disks_of(shape.subsystem).collect();
        let disk = random.pick(&disks);
        if is_busy {
            self.write_at(GroupPath {
                subsystem: shape.subsystem,
                listener: shape.listener(),
                group: self.env.serving.ana_groups[disk],
            })?;
        }
        self.move_to_group(disk, group)
    }

    /// A group of a subsystem, which mostly has namespaces.
    fn choose_group(&mut self, subsystem: usize) -> u32 {
        let random = &mut self.operator.group_random;
        if random.permille(ANY_GROUP_PERMILLE) {
            return random.pick(&ANA_GROUPS);
        }
        let groups = self.env.serving.groups_of(&self.env.swarm, subsystem);
        let groups: Vec<u32> = groups.into_iter().collect();
        random.pick(&groups)
    }

    /// Has the hosts of a path write, often to a disk that delays its requests. Sometimes one of
    /// them loses its connection.
    fn write_at(&mut self, path: GroupPath) -> Result<(), Violation> {
        let shapes = self.env.swarm.hosts.iter().enumerate();
        let its = shapes.filter(|(_, shape)| {
            shape.subsystem == path.subsystem && shape.listener() == path.listener
        });
        let its: Vec<usize> = its.map(|(host, _)| host).collect();
        let disks = self.env.swarm.disks_of(path.subsystem);
        let disks: Vec<usize> = disks
            .filter(|it| !self.env.serving.read_only[*it] && self.env.serving.namespaces[*it])
            .collect();
        // Hosts write to disks of other groups, too, which the change must not affect.
        let of_group = disks.iter().copied();
        let of_group = of_group.filter(|it| self.env.serving.ana_groups[*it] == path.group);
        let of_group: Vec<usize> = of_group.collect();
        let is_other = self.operator.group_random.permille(OTHER_GROUP_PERMILLE);
        let disks = match of_group.is_empty() || is_other {
            true => disks,
            false => of_group,
        };
        if disks.is_empty() {
            return Ok(());
        }
        let now = self.env.time.now();
        let random = &mut self.operator.random;
        let disk = random.pick(&disks);
        let until = now + Nanos(random.below(HOLD_MAX.as_nanos()));
        let later = self.env.swarm.faults.has(Fault::Later);
        let is_free = self.env.disk_disturbed[disk] < until;
        if !later && is_free && random.coin() && self.env.disks[disk].hold(until) {
            self.env.disk_disturbed[disk] = until;
            self.env.disturb_memory(until);
        }
        for host in &its {
            for _ in 0..random.between(1, WRITES_MAX) {
                if self.hosts[*host].can_reach_disks() {
                    self.hosts[*host].write_to(&mut self.env.for_hosts(), disk);
                }
            }
        }
        // Shortly after, the data of writes is on its way; later, disks have it.
        let longest = random.pick(&[Nanos::from_micros(20), Nanos::from_micros(400)]);
        let pause = Nanos(random.below(longest.as_nanos()));
        let cut = random.permille(CUT_PERMILLE).then(|| random.pick(&its));
        self.pass(pause)?;
        if let Some(host) = cut {
            let faults = [Fault::Cut, Fault::Reset, Fault::Vanish].into_iter();
            let faults: Vec<Fault> = faults.filter(|it| self.env.swarm.faults.has(*it)).collect();
            if !faults.is_empty() {
                let fault = self.operator.random.pick(&faults);
                let aftermath = self.hosts[host].misbehave(&mut self.env.for_hosts(), fault);
                self.clean_up(host, aftermath);
                let pause = Nanos(self.operator.random.below(longest.as_nanos()));
                self.pass(pause)?;
            }
        }
        Ok(())
    }

    /// Sets the state of a path. Returns whether its subsystem is offered there.
    fn set_ana_state(&mut self, path: GroupPath, state: AnaState) -> Result<bool, Violation> {
        let now = self.env.time.now();
        // Hosts cannot tell the order of two changes at the same time.
        if self.env.judge.ana.changed_at(path) == Some(now) {
            return Ok(false);
        }
        let has_namespaces = self.is_configured(path);
        // During a change, the running configuration may have the path or not.
        if self.changing && !has_namespaces && path.group != EMPTY_GROUP {
            return Ok(false);
        }
        let set = self
            .appliance
            .as_ref()
            .map(|it| it.set_ana_state(path, state, has_namespaces));
        let done = match set {
            Some(Ok(Some(done))) => done,
            Some(Err(what)) if !self.changing => return Err(Violation::Rule(what)),
            Some(Err(_) | Ok(None)) | None => return Ok(false),
        };
        if has_namespaces {
            self.operator.set.insert(path, state);
        }
        self.env
            .note(format_args!("the operator sets {path:?} to {state}"));
        self.note_ana_state(path, state);
        if !state.is_accessible() {
            let at = now;
            let awaited = AwaitedChange { path, at, done };
            self.operator.awaited.push(awaited);
        }
        Ok(true)
    }

    /// Notes a new state of a path.
    fn note_ana_state(&mut self, path: GroupPath, state: AnaState) {
        let now = self.env.time.now();
        if !self.env.judge.ana.set(now, path, state) {
            return;
        }
        if state.is_accessible() {
            self.operator.quiet.remove(&path);
        }
        // The log has no group without namespaces.
        let mut disks = self.env.swarm.disks_of(path.subsystem);
        let is_seen = disks.any(|disk| {
            let is_there = self.env.serving.namespaces[disk] && !self.env.disk_gone[disk];
            let is_its = self.env.serving.ana_groups[disk] == path.group;
            is_there && is_its && self.env.namespace_changed[disk] < now
        });
        drop(disks);
        let ana = &self.env.judge.ana;
        let has_changed = |path| ana.certain_changes_from(path, now).next().is_some();
        let is_certain = has_changed(path);
        let mut others = ANA_GROUPS.into_iter();
        // The event may be that of another group.
        if !is_certain && others.any(|group| has_changed(GroupPath { group, ..path })) {
            return;
        }
        for host in self.hosts.iter_mut().filter(|_| is_seen) {
            match is_certain {
                true => host.expect_ana_event(path, now),
                false => host.withdraw_ana_event(path, now),
            }
        }
    }

    /// Gives the paths whose time has come access again.
    fn return_access(&mut self, by: Nanos) -> Result<(), Violation> {
        let returns = std::mem::take(&mut self.operator.returns).into_iter();
        let (due, left): (Vec<_>, Vec<_>) = returns.partition(|(at, _)| *at <= by);
        self.operator.returns = left;
        for (_, path) in due {
            let states = [AnaState::Optimized, AnaState::NonOptimized];
            let state = self.operator.random.pick(&states);
            if !self.env.judge.ana.state(path).is_accessible()
                && !self.set_ana_state(path, state)?
            {
                self.operator.returns.push((by, path));
            }
        }
        Ok(())
    }

    /// Gives all paths access.
    pub(super) fn return_all_access(&mut self) -> Result<(), Violation> {
        self.operator.returns.clear();
        for (path, state) in self.env.judge.ana.known() {
            if state != AnaState::Optimized {
                // The last change may have been now.
                self.pass(Nanos(1))?;
                self.set_ana_state(path, AnaState::Optimized)?;
            }
        }
        Ok(())
    }

    /// Whether the configuration has the path, and namespaces in its group.
    fn is_configured(&self, path: GroupPath) -> bool {
        let serving = &self.env.serving;
        serving.subsystems[path.subsystem]
            && serving.listeners[path.listener]
            && (serving.groups_of(&self.env.swarm, path.subsystem)).contains(&path.group)
    }

    /// Checks after a change of the configuration that the paths that it keeps have the states that
    /// were set.
    pub(super) fn settle_ana_states(&mut self) -> Result<(), Violation> {
        let set = std::mem::take(&mut self.operator.set).into_iter();
        let kept: BTreeMap<_, _> = set.filter(|(path, _)| self.is_configured(*path)).collect();
        let found = |path| self.env.judge.ana.state(path);
        let lost = kept.iter().find(|(path, state)| found(**path) != **state);
        if let Some((path, state)) = lost {
            let found = found(*path);
            let what = format!("a change turns {path:?} from {state} to {found}");
            return Err(Violation::Rule(what));
        }
        self.operator.set = kept;
        Ok(())
    }

    /// Reads the states that the appliance has during or after a change of its configuration, which
    /// resets states of paths that it removes.
    pub(super) fn follow_ana_states(&mut self) -> Result<(), Violation> {
        if !self.env.swarm.faults.has(Fault::Ana) {
            return Ok(());
        }
        let known = self.env.judge.ana.known();
        let Some(states) = (self.appliance.as_ref()).map(|it| it.ana_states(&known)) else {
            return Ok(());
        };
        for ((path, before), state) in known.into_iter().zip(states) {
            // A path that is removed and added again by a change that is undone keeps its state.
            let is_possible =
                state == AnaState::Optimized || self.operator.set.get(&path) == Some(&state);
            if state != before && !is_possible {
                let what = format!("a change turns {path:?} from {before} to {state}");
                return Err(Violation::Rule(what));
            }
            self.note_ana_state(path, state);
        }
        Ok(())
    }

    /// Checks that changes end in time, and that disks have no write of a path whose change is over.
    pub(super) fn check_ana(&mut self) -> Result<(), Violation> {
        let Operator { awaited, quiet, .. } = &mut self.operator;
        if awaited.is_empty() && quiet.is_empty() {
            return Ok(());
        }
        let now = self.env.time.now();
        let ana = &self.env.judge.ana;
        let mut late = None;
        awaited.retain(|it| {
            let is_over = it.done.try_recv() == Err(TryRecvError::Disconnected);
            // A change reports the end only of commands from before it. Hosts may have sent others
            // since, if the path had access again in the meantime.
            if is_over && ana.lacks_access_since(it.path, it.at) {
                quiet.entry(it.path).or_insert(it.at);
            }
            let mut calm = it.at.max(self.env.memory_disturbed);
            let mut is_stuck = false;
            for disk in self.env.swarm.disks_of(it.path.subsystem) {
                calm = calm.max(self.env.disk_disturbed[disk]);
                is_stuck |= self.env.judge.is_maybe_stuck(disk);
            }
            if !is_over && !is_stuck && !self.env.stopping && calm + LATENCY_MAX < now {
                late = Some(it.path);
            }
            !is_over
        });
        if let Some(path) = late {
            let what = format!("earlier commands at {path:?} do not end");
            return Err(Violation::Rule(what));
        }
        for (path, lost_at) in quiet.iter() {
            let disks = self.env.swarm.disks_of(path.subsystem);
            // The change does not wait for namespaces that are being removed or enter the group.
            let disks = disks.filter(|disk| {
                self.env.serving.namespaces[*disk]
                    && self.env.serving.ana_groups[*disk] == path.group
                    && self.env.namespace_changed[*disk] < *lost_at
            });
            for disk in disks {
                let sender = |version: &u64| {
                    let host = self.env.judge.ana.sender(*version)?;
                    let shape = self.env.swarm.hosts.get(host)?;
                    let is_its = shape.subsystem == path.subsystem;
                    (is_its && shape.listener() == path.listener).then_some(host)
                };
                let versions = self.env.disks[disk].writing();
                let left = versions.iter().find_map(|it| Some((it, sender(it)?)));
                if let Some((version, host)) = left {
                    let what = format!(
                        "disk {disk} has write {version} of host {host}, whose path lost access and \
                         whose earlier commands have ended"
                    );
                    return Err(Violation::Rule(what));
                }
            }
        }
        Ok(())
    }

    /// Notes the groups of the disks: those of `wanted` too, while a change is in progress.
    pub(super) fn note_ana_groups(&mut self, wanted: Option<&ServedConfig>) {
        let now = self.env.time.now();
        let serving = &self.env.serving;
        for (disk, group) in serving.ana_groups.iter().enumerate() {
            let wanted = wanted.map(|it| it.ana_groups[disk]);
            let groups = wanted.into_iter().chain([*group]).collect();
            self.env.judge.ana.place(now, disk, groups);
        }
    }

    /// Handles the end of the appliance: the next start finds the states of the configuration.
    pub(super) fn reset_ana(&mut self) {
        self.operator.reset();
        let now = self.env.time.now();
        self.env.judge.ana.restart(now);
    }
}
