//! Counts of commands by error status: a small table of each reactor for each subsystem.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use nvme_spec::Status;

use crate::counters::Counter;
use crate::target::Target;
use crate::trace_events::{status_key, status_of_key};

/// Most statuses that one table distinguishes, in the order of their occurrence. Others are counted
/// together.
pub const STATUSES_MAX: usize = 32;

/// Set in a key that is in use.
const USED: u32 = 1 << 16;

/// Counts of statuses with a single writer.
#[derive(Debug, Default)]
pub(crate) struct StatusTable {
    rows: [Row; STATUSES_MAX],
    others: Counter,
}

#[derive(Debug, Default)]
struct Row {
    key: AtomicU32,
    count: Counter,
}

impl StatusTable {
    /// Counts a command with the status `status`; only the owning reactor may call it.
    #[cold]
    pub(crate) fn count(&self, status: Status) {
        let key = USED | u32::from(status_key(status));
        for row in &self.rows {
            let found = row.key.load(Ordering::Relaxed);
            if found == 0 {
                row.key.store(key, Ordering::Relaxed);
            }
            if found == 0 || found == key {
                return row.count.add(1);
            }
        }
        self.others.add(1);
    }

    fn add_to(&self, counts: &mut StatusCounts) {
        for row in &self.rows {
            let key = row.key.load(Ordering::Relaxed);
            if key != 0 {
                let sum = counts.by_key.entry(key as u16).or_default();
                *sum = sum.wrapping_add(row.count.get());
            }
        }
        counts.others = counts.others.wrapping_add(self.others.get());
    }
}

/// Number of commands by error status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusCounts {
    by_key: BTreeMap<u16, u64>,
    /// Commands whose status did not fit into a reactor's table.
    pub others: u64,
}

impl StatusCounts {
    /// Statuses without their flags, ordered by type and code, with their counts.
    pub fn each(&self) -> impl Iterator<Item = (Status, u64)> {
        let counts = self.by_key.iter();
        counts.map(|(key, count)| (status_of_key(*key), *count))
    }

    /// The total.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let counts = self.by_key.values();
        counts.fold(self.others, |sum, count| sum.wrapping_add(*count))
    }
}

/// Counts of commands by error status since the start, over all reactors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetStatuses {
    /// By subsystem name: commands on queues of its controllers.
    pub subsystems: Vec<(String, StatusCounts)>,
    /// Of discovery controllers, of removed subsystems, and of Connect.
    pub elsewhere: StatusCounts,
}

impl TargetStatuses {
    pub(crate) fn take(target: &Target) -> Self {
        let mut elsewhere = StatusCounts::default();
        for core in target.cores().iter().flatten() {
            core.statuses.add_to(&mut elsewhere);
        }
        let published = target.published();
        let subsystems = published.subsystems.iter().flatten().map(|view| {
            let mut counts = StatusCounts::default();
            for measures in view.measures.each() {
                measures.statuses.add_to(&mut counts);
            }
            (view.config.nqn.clone(), counts)
        });
        Self {
            subsystems: subsystems.collect(),
            elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use nvme_spec::status::StatusCodeType;

    use super::*;

    fn counts(table: &StatusTable) -> StatusCounts {
        let mut counts = StatusCounts::default();
        table.add_to(&mut counts);
        counts
    }

    #[test]
    fn statuses_are_counted_by_type_and_code_without_flags() {
        let table = StatusTable::default();
        assert_eq!(counts(&table).each().count(), 0);
        table.count(Status::LBA_OUT_OF_RANGE);
        table.count(Status::LBA_OUT_OF_RANGE.with_dnr());
        table.count(Status::new(
            StatusCodeType::VENDOR,
            Status::LBA_OUT_OF_RANGE.sc(),
        ));
        // The key of success is zero, which is a valid key nonetheless.
        table.count(Status::SUCCESS);
        let seen: Vec<_> = counts(&table).each().collect();
        let vendor = Status::new(StatusCodeType::VENDOR, Status::LBA_OUT_OF_RANGE.sc());
        let wanted = [
            (Status::SUCCESS, 1),
            (Status::LBA_OUT_OF_RANGE, 2),
            (vendor, 1),
        ];
        assert_eq!(seen, wanted);
    }

    #[test]
    fn excess_statuses_are_counted_as_others() {
        let table = StatusTable::default();
        for code in 0..=255 {
            table.count(Status::new(StatusCodeType::MEDIA, code));
        }
        table.count(Status::new(StatusCodeType::MEDIA, 0));
        let seen = counts(&table);
        assert_eq!(seen.each().count(), STATUSES_MAX);
        assert_eq!(seen.others, 256 - STATUSES_MAX as u64);
        assert_eq!(seen.sum(), 257);
        assert!(
            seen.each()
                .any(|(status, count)| status.sc() == 0 && count == 2)
        );
    }
}
