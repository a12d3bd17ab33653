//! Reservation notifications of a host: the notifications that it must get, those that it may get,
//! its masks, and the log page with its event (Base 2.1 §8.1.22.2, §5.1.12.1.32, §5.1.25.1.29).
//!
//! The host compares numbers of notifications by disk and type, because it is not always known which
//! of several commands caused one. It begins to count again when the log is empty and no reservation
//! command is outstanding.

use std::collections::BTreeMap;

use nvme_spec::command::{FeatureId, FeatureSelect, LogPageId};
use nvme_spec::features::ReservationNotificationMask;
use nvme_spec::log::{ReservationNotification, ReservationNotificationType};
use nvme_spec::{Cqe, NSID_BROADCAST, Sqe};
use reactors::Nanos;
use zerocopy::FromBytes;

use super::admin::AdminStep;
use super::connection::Outstanding;
use super::events::{EVENT_MAX, EventLog};
use super::{Command, Host, HostEnv};
use crate::judge::Violation;
use crate::reservations::model::Notice;
use crate::reservations::notices::DueNotice;

/// Notifications that every controller keeps for its host. A controller may drop others, as long as
/// it counts them.
const KEPT_MIN: usize = 32;
/// Maximum time from the completion of a command until its notifications are in the logs.
const LOGGED_WITHIN: Nanos = Nanos::from_millis(1);

/// A notification by its disk and its type.
type NoticeKey = (usize, Notice);

/// A value of a disk's Reservation Notification Mask.
#[derive(Clone, Copy, Debug)]
struct Mask {
    bits: u32,
    sent_at: Nanos,
    /// When it certainly was in force; `None` if that is not known.
    set_at: Option<Nanos>,
}

/// What a host knows about the notifications of its controller.
#[derive(Default)]
pub(super) struct NoticeState {
    /// The log has notifications of this time at the earliest.
    since: Nanos,
    /// It has all notifications from this time on; `None` before the controller is ready.
    attached_at: Option<Nanos>,
    /// By disk: the values of its mask, which is 0 at first.
    masks: BTreeMap<usize, Vec<Mask>>,
    /// Required notifications, with the time at which they were in the log.
    required: BTreeMap<NoticeKey, Vec<Nanos>>,
    /// Notifications that the host has read and removed.
    received: BTreeMap<NoticeKey, usize>,
    /// Log Page Count of the last notification; 0 before the first.
    count: u64,
    /// The controller may have dropped notifications.
    may_lack: bool,
    /// When an event was reported whose page was not read yet.
    reported_at: Option<Nanos>,
    /// Outstanding reads that remove a notification.
    removing: u32,
    /// When an event must have been reported, if a request was outstanding.
    due: Option<Nanos>,
    /// When the read was sent that last found the log empty.
    empty_at: Nanos,
    /// Until when it does not read the log because of an event.
    leaves_until: Nanos,
    /// When it reads the log because of an event that it left.
    read_at: Option<Nanos>,
}

/// A step of a host that has to do with notifications.
#[derive(Clone, Copy, Debug)]
pub(super) enum NoticeStep {
    /// Sets the masks of a disk, or of all.
    SetMask { disk: Option<usize>, bits: u32 },
    /// Gets the mask of a disk.
    GetMask { disk: usize },
}

/// The bit of a notification in the mask (Base 2.1 §5.1.25.1.29).
fn mask_bit(notice: Notice) -> u32 {
    let mask = ReservationNotificationMask::new();
    let mask = match notice {
        Notice::RegistrationPreempted => mask.with_regpre(true),
        Notice::ReservationReleased => mask.with_resrel(true),
        Notice::ReservationPreempted => mask.with_respre(true),
    };
    mask.into_bits()
}

fn notice_of(kind: ReservationNotificationType) -> Option<Notice> {
    match kind {
        ReservationNotificationType::REGISTRATION_PREEMPTED => Some(Notice::RegistrationPreempted),
        ReservationNotificationType::RESERVATION_RELEASED => Some(Notice::ReservationReleased),
        ReservationNotificationType::RESERVATION_PREEMPTED => Some(Notice::ReservationPreempted),
        _ => None,
    }
}

impl NoticeState {
    /// The values that a disk's mask may have had between two times.
    fn masks_between(
        &self,
        disk: usize,
        (from, until): (Nanos, Nanos),
    ) -> impl Iterator<Item = u32> {
        let first = Mask {
            bits: 0,
            sent_at: Nanos::ZERO,
            set_at: None,
        };
        let masks = self.masks.get(&disk).into_iter().flatten().copied();
        let masks: Vec<Mask> = std::iter::once(first).chain(masks).collect();
        let is_over = |next: &[Mask]| {
            let mut times = next.iter().filter_map(|it| it.set_at);
            times.any(|at| at < from)
        };
        let count = masks.len();
        let possible =
            (0..count).filter(|it| masks[*it].sent_at <= until && !is_over(&masks[it + 1..]));
        let possible: Vec<u32> = possible.map(|it| masks[it].bits).collect();
        possible.into_iter()
    }

    /// Whether a notification was certainly masked, or certainly not; `None` if that is not known.
    fn is_masked(&self, (disk, notice): NoticeKey, period: (Nanos, Nanos)) -> Option<bool> {
        let bit = mask_bit(notice);
        let mut masked = self.masks_between(disk, period).map(|it| it & bit != 0);
        let first = masked.next()?;
        masked.all(|it| it == first).then_some(first)
    }

    /// Required notifications that were in the log at `by`, but not read yet.
    fn missing(&self, by: Nanos) -> usize {
        let keys = self.required.iter().map(|(key, times)| {
            let required = times.iter().filter(|at| **at <= by).count();
            let received = self.received.get(key).copied().unwrap_or_default();
            required.saturating_sub(received)
        });
        keys.sum()
    }

    fn expect_event(&mut self, now: Nanos) {
        if self.reported_at.is_none() && self.removing == 0 {
            self.due.get_or_insert(now + EVENT_MAX);
        }
    }
}

impl Host {
    /// Begins to count the notifications of a new controller, or of one that is reset.
    pub(super) fn reset_notices(&mut self, now: Nanos) {
        self.notices = NoticeState {
            since: now,
            ..NoticeState::default()
        };
    }

    /// Notes that the controller is ready: it gets all further notifications.
    pub(super) fn attach_to_notices(&mut self, now: Nanos) {
        self.notices.attached_at = Some(now);
    }

    /// Forgets the expected event.
    pub(super) fn forget_due_notice(&mut self) {
        self.notices.due = None;
    }

    /// Notes a notification that it must get, unless it is masked.
    pub fn expect_notice(&mut self, env: &HostEnv<'_>, due: DueNotice) {
        let key = (due.disk, due.notice);
        let logged_at = env.now + LOGGED_WITHIN;
        let state = &mut self.notices;
        let is_attached = state.attached_at.is_some_and(|it| it <= due.sent_at);
        let is_open = state.is_masked(key, (due.sent_at, logged_at)) == Some(false);
        if self.shape.identity != due.identity || !is_attached || !is_open {
            return;
        }
        state.required.entry(key).or_default().push(logged_at);
        let missing = state.missing(logged_at);
        state.may_lack |= missing > KEPT_MIN;
        if missing > 0 && self.is_calm() && self.is_serving() {
            self.notices.expect_event(env.now);
        }
    }

    /// Whether its admin queue was never disturbed.
    fn is_calm(&self) -> bool {
        let admin = self.admin.as_ref();
        admin.is_some_and(|admin| admin.queue.disturbed_until == Nanos::ZERO)
    }

    /// Reads the log. `removes`: the notification is removed, and its event cleared.
    pub fn read_notice(&mut self, env: &mut HostEnv<'_>, removes: bool) {
        let log = EventLog {
            page: LogPageId::RESERVATION_NOTIFICATION,
            retains: !removes,
        };
        if self.has_admin_room() {
            self.read_event_log(env, log);
        }
    }

    /// Notes that a read is sent which removes a notification.
    pub(super) fn note_notice_read(&mut self) {
        self.notices.removing += 1;
        self.notices.due = None;
    }

    /// Notes that such a read has failed: the controller was not ready, for example.
    pub(super) fn note_failed_notice_read(&mut self, issued_at: Nanos) {
        if issued_at >= self.configured_at {
            self.notices.removing = self.notices.removing.saturating_sub(1);
        }
    }

    /// Notes that an event was reported. Returns whether the host reads its log now.
    pub(super) fn note_notice_event(&mut self, now: Nanos) -> bool {
        let state = &mut self.notices;
        state.reported_at = Some(now);
        state.due = None;
        let leaves = now < state.leaves_until;
        state.read_at = leaves.then_some(state.leaves_until);
        !leaves
    }

    /// Has it leave its notifications unread until `until`.
    pub fn leave_notices(&mut self, until: Nanos) {
        self.notices.leaves_until = until;
    }

    /// When it reads notifications that it left.
    pub(super) fn next_notice_step(&self) -> Option<Nanos> {
        self.notices.read_at
    }

    /// Reads notifications that it left, if that is due.
    pub(super) fn run_notice_step(&mut self, env: &mut HostEnv<'_>) {
        if self.notices.read_at.is_some_and(|at| at <= env.now) {
            self.notices.read_at = None;
            self.read_notice(env, true);
        }
    }

    /// Whether an event is overdue.
    pub(super) fn lacks_notice_event(&self, now: Nanos) -> bool {
        self.notices.due.is_some_and(|due| due < now)
    }

    /// Reads the log until it is empty. Returns whether it was at `since` or later.
    pub fn empty_notices(&mut self, env: &mut HostEnv<'_>, since: Nanos) -> bool {
        let was_empty = self.notices.empty_at >= since;
        if !was_empty && self.notices.removing == 0 {
            self.read_notice(env, true);
        }
        was_empty
    }

    /// Handles the log page.
    pub(super) fn notice_read(
        &mut self,
        env: &mut HostEnv<'_>,
        log: EventLog,
        outstanding: &Outstanding,
    ) -> Result<(), Violation> {
        // A reset clears the log.
        let issued_at = outstanding.issued_at;
        if issued_at < self.configured_at || self.notices.attached_at.is_none() {
            return Ok(());
        }
        if !log.retains {
            // The event may have been reported after the read was sent.
            self.unmask(log.page);
            let state = &mut self.notices;
            state.removing = state.removing.saturating_sub(1);
            state.reported_at = state.reported_at.filter(|it| *it >= issued_at);
        }
        let Ok((page, _)) = ReservationNotification::read_from_prefix(&outstanding.data) else {
            return Err(self.violation(env, "a log page is shorter than requested"));
        };
        let waiting = match page.lpc.get() {
            0 => {
                self.check_empty_page(env, &page)?;
                0
            }
            _ => {
                self.check_notice(env, &page, !log.retains)?;
                usize::from(page.nalp) + usize::from(log.retains)
            }
        };
        let state = &mut self.notices;
        state.may_lack |= waiting >= KEPT_MIN;
        let missing = state.missing(issued_at);
        if missing > waiting && !state.may_lack && !self.is_leaving(env) {
            let what = format!(
                "the reservation log has {waiting} further notifications, {missing} are missing"
            );
            return Err(self.violation(env, &what));
        }
        let from = issued_at.saturating_sub(LOGGED_WITHIN);
        let is_quiet = !env.judge.reservations.notices.is_busy(from);
        let state = &mut self.notices;
        if page.lpc.get() == 0 {
            state.empty_at = issued_at;
            if is_quiet {
                state.required.clear();
                state.received.clear();
                state.may_lack = false;
                state.since = issued_at;
            }
        }
        let is_left = waiting > 0 || state.missing(env.now) > 0;
        if !log.retains && is_left && self.is_calm() && self.is_serving() {
            self.notices.expect_event(env.now);
        }
        Ok(())
    }

    fn check_empty_page(
        &self,
        env: &mut HostEnv<'_>,
        page: &ReservationNotification,
    ) -> Result<(), Violation> {
        if *page == ReservationNotification::default() {
            return Ok(());
        }
        let what = format!("a notification has the count 0: {page:?}");
        Err(self.violation(env, &what))
    }

    /// Checks a notification: its count, and that a command explains it.
    fn check_notice(
        &mut self,
        env: &mut HostEnv<'_>,
        page: &ReservationNotification,
        removes: bool,
    ) -> Result<(), Violation> {
        let state = &mut self.notices;
        let count = page.lpc.get();
        let is_next = match state.may_lack {
            true => count > state.count,
            false => count == state.count + 1,
        };
        if !is_next {
            let what = format!(
                "a reservation notification has the count {count} after {}",
                state.count
            );
            return Err(self.violation(env, &what));
        }
        let mut disks = env.swarm.disks_of(self.shape.subsystem);
        let disk = disks.find(|disk| self.nsid(env, *disk) == page.nsid.get());
        drop(disks);
        let (Some(disk), Some(notice)) = (disk, notice_of(page.kind)) else {
            let what = format!("a reservation notification of nothing: {page:?}");
            return Err(self.violation(env, &what));
        };
        let key = (disk, notice);
        let received = self.notices.received.get(&key).copied();
        let received = received.unwrap_or_default() + 1;
        let possible = self.count_possible(env, key);
        if received > possible {
            let what = format!(
                "notification {count}, {notice:?} of disk {disk}, has no cause: {received} since \
                 {} where {possible} may be",
                self.notices.since
            );
            return Err(self.violation(env, &what));
        }
        if removes {
            self.notices.received.insert(key, received);
            self.notices.count = count;
            env.figures.notices += 1;
        }
        Ok(())
    }

    /// How many notifications commands may have caused.
    fn count_possible(&self, env: &HostEnv<'_>, key: NoticeKey) -> usize {
        let (disk, notice) = key;
        let state = &self.notices;
        let log = &env.judge.reservations.notices;
        let since = state.since.saturating_sub(LOGGED_WITHIN);
        let periods = log.periods((disk, self.shape.identity, notice), since);
        let open = periods.filter(|(from, until)| {
            let until = until.unwrap_or(env.now) + LOGGED_WITHIN;
            state.is_masked(key, (*from, until)) != Some(true)
        });
        open.count()
    }

    /// Masks notifications of a disk, or of all.
    pub fn mask_notices(&mut self, env: &mut HostEnv<'_>, disk: Option<usize>, bits: u32) {
        if !self.has_admin_room() || !self.knows_disks() {
            return;
        }
        let nsid = disk.map_or(NSID_BROADCAST, |disk| self.nsid(env, disk));
        let sqe = Sqe::set_feature(FeatureId::RESERVATION_NOTIFICATION_MASK, nsid, bits);
        let step = AdminStep::Notices(NoticeStep::SetMask { disk, bits });
        if !self.send_admin(env, sqe, Command::Admin(step)) {
            return;
        }
        let disks: Vec<usize> = match disk {
            Some(disk) => vec![disk],
            None => env.swarm.disks_of(self.shape.subsystem).collect(),
        };
        for disk in disks {
            self.notices.masks.entry(disk).or_default().push(Mask {
                bits,
                sent_at: env.now,
                set_at: None,
            });
            // Notifications that are on their way may be masked.
            let required = self.notices.required.iter_mut();
            for (_, times) in required.filter(|(key, _)| key.0 == disk) {
                times.retain(|at| *at < env.now);
            }
        }
    }

    /// Gets the mask of a disk.
    pub fn ask_notice_mask(&mut self, env: &mut HostEnv<'_>, disk: usize) {
        if self.has_admin_room() && self.knows_disks() {
            let nsid = self.nsid(env, disk);
            let feature = FeatureId::RESERVATION_NOTIFICATION_MASK;
            let sqe = Sqe::get_feature(feature, FeatureSelect::CURRENT, nsid, 0);
            let step = AdminStep::Notices(NoticeStep::GetMask { disk });
            self.send_admin(env, sqe, Command::Admin(step));
        }
    }

    /// Handles the completion of a step.
    pub(super) fn notice_step_completed(
        &mut self,
        env: &mut HostEnv<'_>,
        step: NoticeStep,
        outstanding: &Outstanding,
        cqe: &Cqe,
    ) -> Result<(), Violation> {
        let issued_at = outstanding.issued_at;
        if issued_at < self.configured_at {
            return Ok(());
        }
        match step {
            NoticeStep::SetMask { disk, bits } => {
                let masks = self.notices.masks.iter_mut();
                let masks = masks.filter(|(it, _)| disk.is_none_or(|disk| disk == **it));
                for mask in masks.flat_map(|(_, masks)| masks) {
                    if (mask.sent_at, mask.bits) == (issued_at, bits) {
                        mask.set_at = Some(env.now);
                    }
                }
                Ok(())
            }
            NoticeStep::GetMask { disk } => {
                let found = cqe.dw0.get();
                let mut masks = self.notices.masks_between(disk, (issued_at, env.now));
                if masks.any(|it| it == found) {
                    return Ok(());
                }
                let what = format!("the notification mask of disk {disk} is {found:#x}");
                Err(self.violation(env, &what))
            }
        }
    }
}
