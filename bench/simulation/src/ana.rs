//! The ANA states that operators have set, as hosts may see them (Base 2.1 §8.1.1).
//!
//! The target applies a change to all reactors at once, so each command has met the states from its
//! submission to its completion, and no others.

use std::collections::{BTreeMap, BTreeSet};

use nvme_spec::Status;
use nvme_target::AnaState;
use reactors::Nanos;

/// The ANA groups of simulated namespaces.
pub const ANA_GROUPS: [u32; 3] = [1, 2, 3];
/// An ANA group that never has namespaces. Its states have no effect.
pub const EMPTY_GROUP: u32 = 4;

/// An ANA group of a subsystem at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupPath {
    /// The subsystem.
    pub subsystem: usize,
    /// The listener.
    pub listener: usize,
    /// The group's identifier.
    pub group: u32,
}

/// The status of commands for namespaces in a state; `None` for a state with access.
#[must_use]
pub fn refusal(state: AnaState) -> Option<Status> {
    match state {
        AnaState::Optimized | AnaState::NonOptimized => None,
        AnaState::Inaccessible => Some(Status::ANA_INACCESSIBLE),
        AnaState::PersistentLoss => Some(Status::ANA_PERSISTENT_LOSS),
        AnaState::Change => Some(Status::ANA_TRANSITION),
    }
}

/// The states of all groups at all listeners, the groups of the disks, and the senders of writes.
#[derive(Debug, Default)]
pub struct AnaJudge {
    /// The changes of each path, oldest first; it begins as optimized.
    changes: BTreeMap<GroupPath, Vec<(Nanos, AnaState)>>,
    /// By disk: the groups that it may be in from a time on, oldest first. There are several during
    /// a change.
    places: BTreeMap<usize, Vec<(Nanos, BTreeSet<u32>)>>,
    /// The hosts of writes, by version.
    senders: BTreeMap<u64, usize>,
}

impl AnaJudge {
    /// The present state of a path.
    #[must_use]
    pub fn state(&self, path: GroupPath) -> AnaState {
        let changes = self.changes.get(&path);
        let last = changes.and_then(|it| it.last());
        last.map_or(AnaState::Optimized, |(_, state)| *state)
    }

    /// The paths that were ever changed, with their present states.
    pub fn known(&self) -> Vec<(GroupPath, AnaState)> {
        let paths = self.changes.keys();
        paths.map(|path| (*path, self.state(*path))).collect()
    }

    /// Notes the state of a path. Returns whether it is another one.
    pub fn set(&mut self, now: Nanos, path: GroupPath, state: AnaState) -> bool {
        let is_other = self.state(path) != state;
        if is_other {
            self.changes.entry(path).or_default().push((now, state));
        }
        is_other
    }

    /// Notes the end of the appliance, which forgets what operators set.
    pub fn restart(&mut self, now: Nanos) {
        for (path, _) in self.known() {
            self.set(now, path, AnaState::Optimized);
        }
        self.senders.clear();
    }

    /// The time of the last change of a path.
    #[must_use]
    pub fn changed_at(&self, path: GroupPath) -> Option<Nanos> {
        let (at, _) = self.changes.get(&path)?.last()?;
        Some(*at)
    }

    /// Whether a path that lost access at `lost_at` never had access again.
    #[must_use]
    pub fn lacks_access_since(&self, path: GroupPath, lost_at: Nanos) -> bool {
        let all = self.changes.get(&path).into_iter().flatten();
        let mut since = all.filter(|(at, _)| *at >= lost_at);
        since.all(|(_, state)| !state.is_accessible())
    }

    /// The changes of a path from `from` on.
    pub fn changes_from(&self, path: GroupPath, from: Nanos) -> impl Iterator<Item = Nanos> + '_ {
        let all = self.changes.get(&path).into_iter().flatten();
        let times = all.map(|(at, _)| *at);
        times.filter(move |at| *at >= from)
    }

    /// The times from `from` on at which the target has certainly seen a change. It need not see
    /// changes at the same time that end where they began.
    pub fn certain_changes_from(
        &self,
        path: GroupPath,
        from: Nanos,
    ) -> impl Iterator<Item = Nanos> + '_ {
        let all = self.changes.get(&path).map_or(&[][..], Vec::as_slice);
        let mut before = AnaState::Optimized;
        let times = all.chunk_by(|(one, _), (next, _)| one == next);
        let certain = times.filter_map(move |changes| {
            let (at, after) = *changes.last()?;
            let is_other = std::mem::replace(&mut before, after) != after;
            is_other.then_some(at)
        });
        certain.filter(move |at| *at >= from)
    }

    /// The states of a path since `from`. A change at the same time may be earlier or later.
    pub fn states_since(
        &self,
        path: GroupPath,
        from: Nanos,
    ) -> impl Iterator<Item = AnaState> + '_ {
        let all = self.changes.get(&path).map_or(&[][..], Vec::as_slice);
        let earlier = all.partition_point(|(at, _)| *at < from);
        let (before, since) = all.split_at(earlier);
        let first = before.last().map_or(AnaState::Optimized, |(_, it)| *it);
        std::iter::once(first).chain(since.iter().map(|(_, it)| *it))
    }

    /// Whether a command that was sent at `from` may have been executed.
    #[must_use]
    pub fn may_allow(&self, path: GroupPath, from: Nanos) -> bool {
        let mut states = self.states_since(path, from);
        states.any(AnaState::is_accessible)
    }

    /// Whether a command that was sent at `from` may have been refused with this status.
    #[must_use]
    pub fn may_refuse(&self, path: GroupPath, from: Nanos, status: Status) -> bool {
        let mut states = self.states_since(path, from);
        states.any(|it| refusal(it).is_some_and(|its| status.is(its))) && !status.dnr()
    }

    /// Notes the groups that a disk may be in from now on.
    pub fn place(&mut self, now: Nanos, disk: usize, groups: BTreeSet<u32>) {
        let places = self.places.entry(disk).or_default();
        if places.last().is_none_or(|(_, last)| *last != groups) {
            places.push((now, groups));
        }
    }

    /// The groups that a disk may have been in since `from`. A change at the same time may be
    /// earlier or later.
    #[must_use]
    pub fn groups_since(&self, disk: usize, from: Nanos) -> BTreeSet<u32> {
        let all = self.places.get(&disk).map_or(&[][..], Vec::as_slice);
        let earlier = all.partition_point(|(at, _)| *at < from);
        let since = &all[earlier.saturating_sub(1)..];
        since.iter().flat_map(|(_, it)| it).copied().collect()
    }

    /// Notes the host that sends a write.
    pub fn note_sender(&mut self, version: u64, host: usize) {
        self.senders.insert(version, host);
    }

    /// The host that sent a write.
    #[must_use]
    pub fn sender(&self, version: u64) -> Option<usize> {
        self.senders.get(&version).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: GroupPath = GroupPath {
        subsystem: 0,
        listener: 1,
        group: ANA_GROUPS[0],
    };

    #[test]
    fn commands_meet_the_states_since_they_were_sent() {
        let mut judge = AnaJudge::default();
        let (lost, back) = (Nanos(100), Nanos(200));
        assert!(judge.set(lost, PATH, AnaState::Inaccessible));
        assert!(!judge.set(lost, PATH, AnaState::Inaccessible));
        let refused = Status::ANA_INACCESSIBLE;
        for (sent, may_allow) in [(50, true), (100, true), (101, false)] {
            assert_eq!(judge.may_allow(PATH, Nanos(sent)), may_allow, "{sent}");
            assert!(judge.may_refuse(PATH, Nanos(sent), refused));
            assert!(!judge.may_refuse(PATH, Nanos(sent), Status::ANA_TRANSITION));
        }
        assert!(judge.set(back, PATH, AnaState::Optimized));
        assert!(judge.may_allow(PATH, Nanos(150)) && judge.may_allow(PATH, Nanos(201)));
        assert!(judge.may_refuse(PATH, Nanos(150), refused));
        assert!(!judge.may_refuse(PATH, Nanos(201), refused));
        assert_eq!(judge.changes_from(PATH, Nanos(101)).count(), 1);
    }

    #[test]
    fn access_that_returned_and_was_lost_again_is_noticed() {
        let mut judge = AnaJudge::default();
        judge.set(Nanos(100), PATH, AnaState::Change);
        judge.set(Nanos(200), PATH, AnaState::Inaccessible);
        assert!(judge.lacks_access_since(PATH, Nanos(100)));
        judge.set(Nanos(300), PATH, AnaState::Optimized);
        assert!(!judge.lacks_access_since(PATH, Nanos(100)));
        judge.set(Nanos(400), PATH, AnaState::Inaccessible);
        for (lost_at, lacks_access) in [(100, false), (200, false), (400, true)] {
            assert_eq!(judge.lacks_access_since(PATH, Nanos(lost_at)), lacks_access);
        }
    }

    #[test]
    fn a_disk_may_be_in_both_groups_during_a_change() {
        let mut judge = AnaJudge::default();
        judge.place(Nanos(0), 0, [1].into());
        judge.place(Nanos(100), 0, [1, 2].into());
        judge.place(Nanos(200), 0, [2].into());
        for (from, groups) in [
            (50, &[1, 2][..]),
            (100, &[1, 2]),
            (200, &[1, 2]),
            (201, &[2]),
        ] {
            let found: Vec<u32> = judge.groups_since(0, Nanos(from)).into_iter().collect();
            assert_eq!(found, groups, "{from}");
        }
    }

    #[test]
    fn changes_at_one_time_may_go_unseen_if_they_end_where_they_began() {
        let mut judge = AnaJudge::default();
        let certain = |judge: &AnaJudge| judge.certain_changes_from(PATH, Nanos(0)).count();
        judge.set(Nanos(5), PATH, AnaState::Change);
        assert_eq!(certain(&judge), 1);
        judge.set(Nanos(5), PATH, AnaState::Optimized);
        assert_eq!(
            (certain(&judge), judge.changes_from(PATH, Nanos(0)).count()),
            (0, 2)
        );
        judge.set(Nanos(7), PATH, AnaState::Change);
        judge.set(Nanos(7), PATH, AnaState::Inaccessible);
        judge.set(Nanos(8), PATH, AnaState::Optimized);
        assert_eq!(certain(&judge), 2);
        assert_eq!(judge.certain_changes_from(PATH, Nanos(8)).count(), 1);
    }
}
