//! Reservation notifications of one controller, from the change until the host reads them (Base 2.1
//! §8.1.22.2).

mod handover;

use std::collections::VecDeque;

use nvme_spec::log::{ReservationNotification, ReservationNotificationType};

/// Notifications that a controller keeps for its host. Further ones are only counted: the host finds
/// the current state with Reservation Report.
pub(crate) const NOTICES_MAX: usize = 64;

/// One notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReservationNotice {
    pub(crate) nsid: u32,
    pub(crate) kind: ReservationNotificationType,
}

/// Notifications that the admin queue's core has not received yet.
#[derive(Debug, Default)]
pub(crate) struct ReservationNotices(VecDeque<ReservationNotice>);

impl ReservationNotices {
    pub(crate) fn push(&mut self, nsid: u32, kind: ReservationNotificationType) {
        if self.0.len() < NOTICES_MAX {
            self.0.push_back(ReservationNotice { nsid, kind });
        }
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = ReservationNotice> {
        self.0.into_iter()
    }
}

/// The Reservation Notification log of one controller (Base 2.1 §5.1.12.1.32).
#[derive(Debug, Default)]
pub(crate) struct ReservationLog {
    waiting: VecDeque<(u64, ReservationNotice)>,
    /// Number of notifications so far; wraps from the largest value to 1.
    count: u64,
}

impl ReservationLog {
    /// Adds a notification.
    pub(crate) fn push(&mut self, notice: ReservationNotice) {
        self.count = self.count.checked_add(1).unwrap_or(1);
        if self.waiting.len() < NOTICES_MAX {
            self.waiting.push_back((self.count, notice));
        }
    }

    /// The page with the oldest notification; an empty page if there is none.
    pub(crate) fn page(&self) -> ReservationNotification {
        let Some((count, notice)) = self.waiting.front() else {
            return ReservationNotification::default();
        };
        // At most `NOTICES_MAX`.
        let further = (self.waiting.len() - 1) as u8;
        ReservationNotification::new(*count, notice.kind, further, notice.nsid)
    }

    /// Removes the oldest notification, which the host has read. Returns whether others wait.
    pub(crate) fn pop(&mut self) -> bool {
        self.waiting.pop_front();
        !self.waiting.is_empty()
    }

    /// Removes all notifications, for a controller level reset.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

const _: () = assert!(NOTICES_MAX <= u8::MAX as usize, "NALP has 8 bits");

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(nsid: u32) -> ReservationNotice {
        let kind = ReservationNotificationType::RESERVATION_RELEASED;
        ReservationNotice { nsid, kind }
    }

    /// Base 2.1 §5.1.12.1.32: pages are read oldest first, and an empty page has the count 0.
    #[test]
    fn notifications_are_read_in_order() {
        let mut log = ReservationLog::default();
        assert_eq!(log.page(), ReservationNotification::default());
        for nsid in 1..=3 {
            log.push(notice(nsid));
        }
        for nsid in 1..=3_u32 {
            let page = log.page();
            assert_eq!((page.lpc.get(), page.nsid.get()), (u64::from(nsid), nsid));
            assert_eq!(u32::from(page.nalp), 3 - nsid);
            assert_eq!(log.pop(), nsid < 3);
        }
        assert_eq!(log.page().lpc.get(), 0);
        log.push(notice(9));
        assert_eq!(log.page().lpc.get(), 4);
    }

    #[test]
    fn excess_notifications_are_counted() {
        let mut log = ReservationLog::default();
        for _ in 0..2 * NOTICES_MAX {
            log.push(notice(1));
        }
        let mut read = 1;
        while log.pop() {
            read += 1;
        }
        assert_eq!(read, NOTICES_MAX);
        log.push(notice(1));
        assert_eq!(log.page().lpc.get(), 2 * NOTICES_MAX as u64 + 1);
    }
}
