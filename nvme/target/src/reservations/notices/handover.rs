//! Hand-over of the Reservation Notification log.

use nvme_handover::{NoticeRecord, ReservationLogRecord};
use nvme_spec::log::ReservationNotificationType;

use super::{NOTICES_MAX, ReservationLog, ReservationNotice};
use crate::config::NAMESPACE_ID_MAX;

impl ReservationLog {
    pub(crate) fn export(&self) -> ReservationLogRecord {
        let waiting = self.waiting.iter().map(|(number, notice)| NoticeRecord {
            number: *number,
            nsid: notice.nsid,
            kind: notice.kind.0,
        });
        ReservationLogRecord {
            count: self.count,
            waiting: waiting.collect(),
        }
    }

    /// # Errors
    /// The first problem of the record.
    pub(crate) fn restored(record: &ReservationLogRecord) -> Result<Self, &'static str> {
        if record.waiting.len() > NOTICES_MAX {
            return Err("too many reservation notifications");
        }
        let is_valid = |it: &NoticeRecord| (1..=NAMESPACE_ID_MAX).contains(&it.nsid);
        if !record.waiting.iter().all(is_valid) {
            return Err("a reservation notification of an invalid namespace");
        }
        let waiting = record.waiting.iter().map(|it| {
            let notice = ReservationNotice {
                nsid: it.nsid,
                kind: ReservationNotificationType(it.kind),
            };
            (it.number, notice)
        });
        Ok(Self {
            waiting: waiting.collect(),
            count: record.count,
        })
    }
}
