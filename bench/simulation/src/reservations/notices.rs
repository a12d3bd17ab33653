//! The reservation notifications that commands may cause, and those that they must have caused (Base
//! 2.1 §8.1.22.2). A command notifies each host at most once, and never its own host.

use std::collections::BTreeSet;

use reactors::Nanos;

use super::model::Notice;

/// A notification that every controller of a host must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueNotice {
    /// The disk.
    pub disk: usize,
    /// The host, by its identity.
    pub identity: usize,
    /// The type.
    pub notice: Notice,
    /// When the command was submitted that caused it.
    pub sent_at: Nanos,
}

/// A command that may notify hosts.
#[derive(Clone, Debug)]
struct Cause {
    id: u64,
    disk: usize,
    /// The identity of its host.
    sender: usize,
    from: Nanos,
    /// The end of its effects; `None` while it is outstanding.
    until: Option<Nanos>,
    possible: BTreeSet<(usize, Notice)>,
    /// The state is not known, so that every notification is possible.
    is_any: bool,
}

/// The notifications of a run.
#[derive(Clone, Debug, Default)]
pub struct NoticeLog {
    /// In the order of the numbers of the commands.
    causes: Vec<Cause>,
    due: Vec<DueNotice>,
}

impl NoticeLog {
    fn cause(&mut self, id: u64) -> Option<&mut Cause> {
        let found = self.causes.binary_search_by_key(&id, |it| it.id).ok()?;
        self.causes.get_mut(found)
    }

    /// Notes that host `sender` submits command `id`. Numbers grow.
    pub fn submit(&mut self, now: Nanos, disk: usize, id: u64, sender: usize) {
        self.causes.push(Cause {
            id,
            disk,
            sender,
            from: now,
            until: None,
            possible: BTreeSet::new(),
            is_any: false,
        });
    }

    /// Adds notifications that a command may cause.
    pub fn allow<'a>(&mut self, id: u64, notices: impl IntoIterator<Item = &'a (usize, Notice)>) {
        if let Some(cause) = self.cause(id) {
            cause.possible.extend(notices);
        }
    }

    /// Notes that a command may cause every notification.
    pub fn allow_any(&mut self, id: u64) {
        if let Some(cause) = self.cause(id) {
            cause.is_any = true;
        }
    }

    /// Notes that a command has certainly caused notifications.
    pub fn require(&mut self, id: u64, notices: &BTreeSet<(usize, Notice)>) {
        let Some(cause) = self.cause(id) else {
            return;
        };
        let (disk, sent_at) = (cause.disk, cause.from);
        let due = notices.iter().map(|(identity, notice)| DueNotice {
            disk,
            identity: *identity,
            notice: *notice,
            sent_at,
        });
        self.due.extend(due);
    }

    /// Notes that a command has no further effects.
    pub fn end(&mut self, now: Nanos, id: u64) {
        if let Some(cause) = self.cause(id) {
            cause.until.get_or_insert(now);
        }
    }

    /// Notes that no command of a disk has further effects.
    pub fn end_all(&mut self, now: Nanos, disk: usize) {
        for cause in self.causes.iter_mut().filter(|it| it.disk == disk) {
            cause.until.get_or_insert(now);
        }
    }

    /// The required notifications since the last call.
    pub fn take_due(&mut self) -> Vec<DueNotice> {
        std::mem::take(&mut self.due)
    }

    /// The periods in which a host may have been notified, of those that end at `since` or later. A
    /// period without an end lasts.
    pub fn periods(
        &self,
        (disk, identity, notice): (usize, usize, Notice),
        since: Nanos,
    ) -> impl Iterator<Item = (Nanos, Option<Nanos>)> {
        let causes = self.causes.iter().filter(move |it| {
            let is_possible = it.is_any || it.possible.contains(&(identity, notice));
            it.disk == disk && it.sender != identity && is_possible
        });
        let causes = causes.map(|it| (it.from, it.until));
        causes.filter(move |(_, until)| until.is_none_or(|it| it >= since))
    }

    /// Whether some command had effects at `since` or later.
    #[must_use]
    pub fn is_busy(&self, since: Nanos) -> bool {
        let mut causes = self.causes.iter().rev();
        causes.any(|it| it.until.is_none_or(|it| it >= since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTICE: Notice = Notice::ReservationReleased;

    #[test]
    fn periods_are_those_of_possible_notifications() {
        let mut log = NoticeLog::default();
        log.submit(Nanos(10), 0, 1, 5);
        log.submit(Nanos(20), 0, 2, 6);
        log.allow(1, &[(6, NOTICE)]);
        log.allow_any(2);
        log.end(Nanos(30), 1);
        let periods = |identity, since| -> Vec<_> {
            log.periods((0, identity, NOTICE), Nanos(since)).collect()
        };
        assert_eq!(periods(6, 30), [(Nanos(10), Some(Nanos(30)))]);
        assert_eq!(periods(6, 31), []);
        assert_eq!(periods(5, 31), [(Nanos(20), None)]);
        assert!(log.is_busy(Nanos(100)));
        log.end_all(Nanos(40), 0);
        assert!(!log.is_busy(Nanos(41)));
    }
}
