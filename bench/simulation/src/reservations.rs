//! The judge of reservations: for each disk, the states that are possible after the commands so far.
//!
//! A command takes effect at some moment between its submission and its completion. The judge keeps
//! a state for each order in which the outstanding commands may have taken effect; a completion
//! removes the states in which its command would have had another result. A command whose
//! association ended may still take effect until a later command of the same disk is completed,
//! because the commands of a disk take effect one after another.
//!
//! After a change of the configuration that failed, any state is possible, until a report tells.

pub mod model;
pub mod notices;
pub mod possible;

use std::collections::BTreeMap;

use nvme_spec::Status;
use reactors::Nanos;

use model::{Effects, ReservationCommand, Reservations};
use notices::NoticeLog;
use possible::{Possible, PossibleLog};

/// Commands without a result that a disk may have; further ones are not sent.
const LOST_MAX: usize = 3;

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A status that is not success.
    Failed(Status),
    /// Success; of a report, with what it says.
    Done(Option<Box<Reservations>>),
    /// A failure before it was executed.
    NotExecuted,
    /// A failure that tells nothing.
    Unknown,
}

/// The commands that a host may send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sendable {
    /// None.
    Nothing,
    /// All.
    Anything,
    /// A command that changes nothing, so that lost commands before it are over.
    Barrier,
    /// A report, because the state is not known.
    Report,
}

/// An outstanding command, or one whose association ended.
#[derive(Clone, Debug)]
struct Pending {
    id: u64,
    host: usize,
    /// The identity and the controller of its sender.
    sender: (usize, u16),
    command: ReservationCommand,
    is_lost: bool,
    /// The first command that was submitted after the target had detected its loss.
    lost_before: Option<u64>,
    /// Every result is correct.
    is_free: bool,
}

/// What a command did in a possible state.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Applied {
    result: Result<Effects, Status>,
    /// The state that a report saw.
    seen: Option<Reservations>,
}

/// A possible state, and the outstanding commands that have taken effect in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PossibleState {
    state: Reservations,
    applied: BTreeMap<u64, Applied>,
}

#[derive(Debug)]
struct DiskReservations {
    /// Empty if the state is not known.
    states: Vec<PossibleState>,
    pending: Vec<Pending>,
    log: PossibleLog,
    can_persist: bool,
    /// The state before a change of the configuration in progress, if it was certain.
    suspended: Option<Reservations>,
    /// A change of the configuration is in progress.
    is_changing: bool,
    /// It is not known whether the device was closed, and so whether what was stored is its.
    is_vague: bool,
}

impl DiskReservations {
    fn new(can_persist: bool) -> Self {
        let state = Reservations::new(can_persist);
        Self {
            log: PossibleLog::new(&state),
            states: Vec::new(),
            pending: Vec::new(),
            can_persist,
            suspended: None,
            is_changing: false,
            is_vague: false,
        }
        .with_state(state)
    }

    fn with_state(mut self, state: Reservations) -> Self {
        self.set_state(state);
        self
    }

    fn set_state(&mut self, state: Reservations) {
        let applied = BTreeMap::new();
        self.states = vec![PossibleState { state, applied }];
    }

    /// Adds the states in which commands that are outstanding have taken effect.
    fn expand(&mut self) {
        let mut next = 0;
        while next < self.states.len() {
            for pending in self.pending.iter().filter(|it| !it.is_free) {
                let from = &self.states[next];
                if from.applied.contains_key(&pending.id) {
                    continue;
                }
                let mut to = from.clone();
                let seen =
                    (pending.command == ReservationCommand::Report).then(|| to.state.clone());
                let result = to.state.apply(pending.host, pending.command);
                to.applied.insert(pending.id, Applied { result, seen });
                if !self.states.contains(&to) {
                    self.states.push(to);
                }
            }
            next += 1;
        }
    }

    /// Notes the notifications that the outstanding commands may cause.
    fn allow_notices(&self, notices: &mut NoticeLog) {
        for pending in &self.pending {
            if pending.is_free {
                notices.allow_any(pending.id);
                continue;
            }
            for state in &self.states {
                if let Some(Ok(effects)) = state.applied.get(&pending.id).map(|it| &it.result) {
                    notices.allow(pending.id, &effects.notified);
                }
            }
        }
    }

    /// Forgets a command that has had its effect, or never will.
    fn settle(&mut self, id: u64) {
        self.pending.retain(|it| it.id != id);
        let mut settled: Vec<PossibleState> = Vec::new();
        for mut possible in std::mem::take(&mut self.states) {
            possible.applied.remove(&id);
            if !settled.contains(&possible) {
                settled.push(possible);
            }
        }
        self.states = settled;
    }

    fn note(&mut self, now: Nanos) {
        let mut possible = Possible::default();
        if self.states.is_empty() || self.is_changing {
            possible = Possible::ANYTHING;
        }
        for it in &self.states {
            possible.add(&it.state);
        }
        for pending in &self.pending {
            if let ReservationCommand::Acquire { action: 2, .. } = pending.command {
                let hosts = 0..possible::HOSTS_MAX;
                let others = hosts.filter(|it| *it != pending.host);
                others.for_each(|host| possible.add_abort(host));
            }
        }
        self.log.push(now, possible);
    }

    /// Whether no further result of a command can be told from another.
    fn is_unknown(&self) -> bool {
        self.states.is_empty()
    }

    fn forget_state(&mut self) {
        self.states.clear();
        for pending in &mut self.pending {
            pending.is_free = true;
        }
    }
}

/// A host whose writes to a disk are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The disk.
    pub disk: usize,
    /// The preempted host.
    pub fenced: usize,
    /// The host whose Preempt and Abort is completed.
    pub by: usize,
}

/// The judge of the reservations of all disks.
#[derive(Debug, Default)]
pub struct ReservationJudge {
    disks: Vec<DiskReservations>,
    next_id: u64,
    /// Fences that have to be told to the judge of data.
    fences: Vec<Fence>,
    /// The notifications that hosts may or must get.
    pub notices: NoticeLog,
}

impl ReservationJudge {
    /// A judge of disks without registrants.
    #[must_use]
    pub fn new(disks: usize) -> Self {
        Self {
            disks: (0..disks).map(|_| DiskReservations::new(false)).collect(),
            next_id: 0,
            fences: Vec::new(),
            notices: NoticeLog::default(),
        }
    }

    /// What may be sent for a disk. `races`: two hosts may send commands at the same time.
    #[must_use]
    pub fn sendable(&self, disk: usize, races: bool) -> Sendable {
        let reservations = &self.disks[disk];
        let (lost, live): (Vec<_>, Vec<_>) = reservations.pending.iter().partition(|it| it.is_lost);
        let knows_loss = lost.iter().all(|it| it.lost_before.is_some());
        let has_room = live.is_empty() || (races && live.len() < 2);
        if !has_room || reservations.is_changing {
            return Sendable::Nothing;
        }
        match (reservations.is_unknown(), lost.is_empty()) {
            (true, _) if !live.is_empty() => Sendable::Nothing,
            (true, true) => Sendable::Report,
            (true, false) if knows_loss => Sendable::Barrier,
            (false, _) if lost.len() < LOST_MAX || knows_loss => Sendable::Anything,
            _ => Sendable::Nothing,
        }
    }

    /// A possible state of a disk, if the state is known.
    #[must_use]
    pub fn state(&self, disk: usize) -> Option<&Reservations> {
        self.disks[disk].states.first().map(|it| &it.state)
    }

    /// The state of a disk, if only one is possible.
    #[must_use]
    pub fn certain(&self, disk: usize) -> Option<&Reservations> {
        match self.disks[disk].states.as_slice() {
            [only] => Some(&only.state),
            _ => None,
        }
    }

    /// Whether a disk certainly has neither registrants nor a reservation. It is not known whether its
    /// state persists, while the command that says so is outstanding.
    #[must_use]
    pub fn is_clear(&self, disk: usize) -> bool {
        let mut states = self.disks[disk].states.iter().map(|it| &it.state);
        states.all(|it| it.keys.is_empty() && it.held.is_none())
    }

    /// Whether the state of a disk can persist, if that is known.
    #[must_use]
    pub fn can_persist(&self, disk: usize) -> Option<bool> {
        let reservations = &self.disks[disk];
        (!reservations.is_vague).then_some(reservations.can_persist)
    }

    /// What was possible at some time since `from`.
    #[must_use]
    pub fn possible_since(&self, disk: usize, from: Nanos) -> Possible {
        self.disks[disk].log.since(from)
    }

    /// Whether a host may be allowed to write to a disk now.
    #[must_use]
    pub fn may_be_written(&self, disk: usize, host: usize) -> bool {
        self.disks[disk].log.now().allows(host, true)
    }

    /// Submits a command of `sender`: its identity and its controller. Returns its number.
    pub fn submit(
        &mut self,
        now: Nanos,
        disk: usize,
        sender: (usize, u16),
        command: ReservationCommand,
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let reservations = &mut self.disks[disk];
        reservations.pending.push(Pending {
            id,
            host: sender.0,
            sender,
            command,
            is_lost: false,
            lost_before: None,
            is_free: reservations.is_unknown(),
        });
        reservations.expand();
        reservations.note(now);
        self.notices.submit(now, disk, id, sender.0);
        reservations.allow_notices(&mut self.notices);
        id
    }

    /// Completes a command.
    ///
    /// # Errors
    /// The results that were possible, if its result is another one.
    pub fn complete(
        &mut self,
        now: Nanos,
        disk: usize,
        id: u64,
        answer: &Answer,
    ) -> Result<Effects, String> {
        let next_id = self.next_id;
        let reservations = &mut self.disks[disk];
        let mut pending = reservations.pending.iter_mut();
        let Some(pending) = pending.find(|it| it.id == id) else {
            return Ok(Effects::default());
        };
        if *answer == Answer::Unknown {
            pending.is_lost = true;
            pending.lost_before = Some(next_id);
            return Ok(Effects::default());
        }
        let Pending {
            host,
            command,
            is_free,
            ..
        } = *pending;
        let mut effects = Effects::default();
        if is_free {
            reservations.settle(id);
            if let Answer::Done(Some(state)) = answer
                && reservations.pending.is_empty()
                && !reservations.is_changing
                && reservations.is_unknown()
            {
                let can_persist = reservations.can_persist;
                reservations.set_state(Reservations {
                    can_persist,
                    ..(**state).clone()
                });
            }
        } else {
            effects = Self::judge(reservations, id, answer)?;
            reservations.settle(id);
        }
        let is_executed = matches!(answer, Answer::Failed(_) | Answer::Done(None));
        let is_ordered = !matches!(
            command,
            ReservationCommand::Report | ReservationCommand::Persist { .. }
        );
        if is_executed && is_ordered {
            // The commands of a disk take effect one after another.
            let over = reservations.pending.iter();
            let over = over.filter(|it| it.lost_before.is_some_and(|lost| lost <= id));
            let over: Vec<u64> = over.map(|it| it.id).collect();
            for id in over {
                reservations.settle(id);
                self.notices.end(now, id);
            }
        }
        self.notices.require(id, &effects.notified);
        self.notices.end(now, id);
        reservations.note(now);
        for &fenced in &effects.aborted {
            self.fences.push(Fence {
                disk,
                fenced,
                by: host,
            });
        }
        Ok(effects)
    }

    /// Removes the states in which a command would have had another result. Returns the effects
    /// that it certainly had.
    fn judge(
        reservations: &mut DiskReservations,
        id: u64,
        answer: &Answer,
    ) -> Result<Effects, String> {
        let agrees = |it: &PossibleState| match (answer, it.applied.get(&id)) {
            (Answer::NotExecuted, applied) => applied.is_none(),
            (Answer::Failed(status), Some(applied)) => {
                applied.result.as_ref().is_err_and(|it| it.is(*status))
            }
            (Answer::Done(report), Some(applied)) => {
                let seen = applied.seen.as_ref();
                let is_right = report.as_deref().is_none_or(|report| {
                    seen.is_some_and(|seen| {
                        *report
                            == Reservations {
                                can_persist: report.can_persist,
                                ..seen.clone()
                            }
                    })
                });
                applied.result.is_ok() && is_right
            }
            (_, None) | (Answer::Unknown, _) => false,
        };
        if !reservations.states.iter().any(agrees) {
            let applied = reservations.states.iter();
            let applied: Vec<String> = applied
                .filter_map(|it| it.applied.get(&id))
                .map(|it| format!("{it:?}"))
                .collect();
            return Err(applied.join(" or "));
        }
        reservations.states.retain(agrees);
        let mut results = reservations.states.iter();
        let mut results = results
            .by_ref()
            .filter_map(|it| it.applied.get(&id)?.result.as_ref().ok());
        let mut effects = results.next().cloned().unwrap_or_default();
        for other in results {
            effects.aborted = &effects.aborted & &other.aborted;
            effects.notified = &effects.notified & &other.notified;
            effects.is_stored &= other.is_stored;
        }
        Ok(effects)
    }

    /// Notes that a command will not be completed, because its association ended.
    pub fn lose(&mut self, disk: usize, id: u64) {
        let mut pending = self.disks[disk].pending.iter_mut();
        if let Some(pending) = pending.find(|it| it.id == id) {
            pending.is_lost = true;
        }
    }

    /// Identity and controller of lost commands that the target may not know to be lost.
    pub fn unnoticed(&self) -> impl Iterator<Item = (usize, u16)> + '_ {
        let pending = self.disks.iter().flat_map(|it| &it.pending);
        let unnoticed = pending.filter(|it| it.is_lost && it.lost_before.is_none());
        unnoticed.map(|it| it.sender)
    }

    /// Notes that the target has detected the end of an association, and executes no further
    /// command of it.
    pub fn noticed(&mut self, sender: (usize, u16)) {
        let next_id = self.next_id;
        let pending = self.disks.iter_mut().flat_map(|it| &mut it.pending);
        for pending in pending.filter(|it| it.is_lost && it.sender == sender) {
            pending.lost_before.get_or_insert(next_id);
        }
    }

    /// Notes that a change of the configuration begins that may close the device of a disk.
    pub fn change_begins(&mut self, now: Nanos, disk: usize) {
        let reservations = &mut self.disks[disk];
        if reservations.is_changing {
            return;
        }
        let is_certain = reservations.pending.is_empty() && reservations.states.len() == 1;
        let state = reservations.states.first().map(|it| it.state.clone());
        reservations.suspended = state.filter(|_| is_certain);
        reservations.is_changing = true;
        reservations.forget_state();
        reservations.allow_notices(&mut self.notices);
        reservations.note(now);
    }

    /// Notes the end of the change. `is_closed`: whether the device was closed; `None` if that is
    /// not certain.
    pub fn change_ends(&mut self, now: Nanos, disk: usize, is_closed: Option<bool>) {
        let reservations = &mut self.disks[disk];
        if !std::mem::take(&mut reservations.is_changing) {
            return;
        }
        let suspended = reservations.suspended.take();
        match is_closed {
            // What was stored belonged to the former device.
            Some(true) => {
                reservations.can_persist = false;
                reservations.is_vague = false;
            }
            Some(false) => {}
            None => reservations.is_vague = true,
        }
        let state = match is_closed {
            Some(true) => Some(Reservations::new(false)),
            Some(false) => suspended,
            None => None,
        };
        if let Some(state) = state.filter(|_| reservations.pending.is_empty()) {
            reservations.set_state(state);
        }
        reservations.note(now);
    }

    /// Notes that the appliance has ended: no command is in flight, and only states that persist are
    /// left. `can_persist`: by disk, whether its state can persist after the next start.
    pub fn restart(&mut self, now: Nanos, can_persist: &[bool]) {
        self.fences.clear();
        for (disk, (reservations, can_persist)) in
            self.disks.iter_mut().zip(can_persist).enumerate()
        {
            self.notices.end_all(now, disk);
            reservations.can_persist = *can_persist;
            reservations.pending.clear();
            reservations.is_changing = false;
            reservations.suspended = None;
            if std::mem::take(&mut reservations.is_vague) {
                reservations.states.clear();
            }
            let mut states: Vec<PossibleState> = Vec::new();
            for mut possible in std::mem::take(&mut reservations.states) {
                possible.applied.clear();
                possible.state.restart();
                possible.state.can_persist = *can_persist;
                if !states.contains(&possible) {
                    states.push(possible);
                }
            }
            reservations.states = states;
            if !can_persist {
                reservations.set_state(Reservations::new(false));
            }
            reservations.note(now);
        }
    }

    /// The fences since the last call.
    pub fn take_fences(&mut self) -> Vec<Fence> {
        std::mem::take(&mut self.fences)
    }
}

#[cfg(test)]
mod tests;
