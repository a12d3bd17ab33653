//! Hand-over of counters.

use nvme_handover::TotalsRecord;

use super::{CoreCounters, Counter, IoCounters, IoTotals};

impl From<IoTotals> for TotalsRecord {
    fn from(totals: IoTotals) -> Self {
        let IoTotals {
            reads,
            bytes_read,
            writes,
            bytes_written,
            others,
            errors,
        } = totals;
        Self {
            reads,
            bytes_read,
            writes,
            bytes_written,
            others,
            errors,
        }
    }
}

impl From<TotalsRecord> for IoTotals {
    fn from(record: TotalsRecord) -> Self {
        let TotalsRecord {
            reads,
            bytes_read,
            writes,
            bytes_written,
            others,
            errors,
        } = record;
        Self {
            reads,
            bytes_read,
            writes,
            bytes_written,
            others,
            errors,
        }
    }
}

impl IoCounters {
    /// Continues from these totals; only the owning reactor may call it.
    pub(crate) fn continue_from(&self, totals: IoTotals) {
        self.reads.set(totals.reads);
        self.bytes_read.set(totals.bytes_read);
        self.writes.set(totals.writes);
        self.bytes_written.set(totals.bytes_written);
        self.others.set(totals.others);
        self.errors.set(totals.errors);
    }
}

impl CoreCounters {
    /// The counters by name, without gauges and those of devices and queues.
    pub(crate) fn by_name(&self) -> [(&'static str, &Counter); 16] {
        [
            ("commands", &self.commands),
            ("admin_commands", &self.admin_commands),
            ("errors", &self.errors),
            ("errors_not_logged", &self.errors_not_logged),
            ("connects", &self.connects),
            ("connects_refused", &self.connects_refused),
            ("authentications", &self.authentications),
            ("authentications_failed", &self.authentications_failed),
            ("reconnects", &self.reconnects),
            ("controller_resets", &self.controller_resets),
            ("keep_alive_expired", &self.keep_alive_expired),
            ("events", &self.events),
            ("deferred", &self.deferred),
            ("orphaned", &self.orphaned),
            ("stale_completions", &self.stale_completions),
            ("stale_queues", &self.stale_queues),
        ]
    }
}
