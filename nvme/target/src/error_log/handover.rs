//! Hand-over of the Error Information log.

use nvme_handover::{Bytes, ErrorLogRecord, ImportedErrors};
use nvme_spec::U64;
use nvme_spec::log::ErrorEntry;
use zerocopy::{FromBytes, IntoBytes};

use super::{ERROR_LOG_ENTRIES, ErrorLog, slot};

impl ErrorLog {
    /// The log; `name_of` returns the name of a device, if it still exists.
    pub(crate) fn export(&self, name_of: impl Fn(usize) -> Option<String>) -> ErrorLogRecord {
        let ring = self.ring();
        let oldest = ring.count.saturating_sub(ERROR_LOG_ENTRIES as u64);
        let entries = (oldest + 1..=ring.count)
            .map(|number| Bytes(ring.entries[slot(number)].as_bytes().to_vec()));
        let imported = ring.imported.iter().filter_map(|(device, newest)| {
            Some(ImportedErrors {
                device: name_of(*device)?,
                newest: *newest,
            })
        });
        ErrorLogRecord {
            count: ring.count,
            entries: entries.collect(),
            imported: imported.collect(),
        }
    }

    /// Checks whether [`restore`](Self::restore) accepts a record.
    ///
    /// # Errors
    /// The first problem of the record.
    pub(crate) fn check(record: &ErrorLogRecord) -> Result<(), &'static str> {
        let expected = record.count.min(ERROR_LOG_ENTRIES as u64);
        if record.entries.len() as u64 != expected {
            return Err("an error log whose count does not match its entries");
        }
        let is_entry = |it: &Bytes| it.0.len() == size_of::<ErrorEntry>();
        if !record.entries.iter().all(is_entry) {
            return Err("an error log entry of a wrong size");
        }
        Ok(())
    }

    /// Replaces the log. `place_of` returns the index of a device by its name.
    ///
    /// # Errors
    /// The first problem of the record; nothing changes then.
    pub(crate) fn restore(
        &self,
        record: &ErrorLogRecord,
        place_of: impl Fn(&str) -> Option<usize>,
    ) -> Result<(), &'static str> {
        Self::check(record)?;
        let mut ring = self.ring();
        ring.count = record.count;
        let oldest = record.count - record.entries.len() as u64;
        for (number, Bytes(entry)) in (oldest + 1..).zip(&record.entries) {
            let entry = ErrorEntry::read_from_bytes(entry);
            let mut entry = entry.map_err(|_| "an error log entry of a wrong size")?;
            entry.error_count = U64::new(number);
            ring.entries[slot(number)] = entry;
        }
        ring.imported = record
            .imported
            .iter()
            .filter_map(|it| Some((place_of(&it.device)?, it.newest)))
            .collect();
        Ok(())
    }
}
