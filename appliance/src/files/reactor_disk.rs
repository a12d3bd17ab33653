//! A device that the reactor of the volumes serves, for the control path.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use block::{DeviceError, Geometry};
use files_service::stored::{Disk, StoredError, piece_bytes};
use files_service::{Access, AccessOperation, FileMessage};

use super::REACTOR;
use crate::messages::MessageRings;

/// Limit of the time for one request. A drive that is being reset executes it afterwards.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);
/// Limit of one request in bytes: more would keep the reactor from its clients.
const TRANSFER_BYTES_MAX: usize = 128 << 10;

/// A device, to which the reactor makes one request after the other.
pub(super) struct ReactorDisk<'m> {
    messages: &'m MessageRings<FileMessage>,
    place: usize,
    geometry: Geometry,
    /// How often the device was gone at the first request. After that, what was written before may be
    /// lost, and nothing succeeds any more.
    absences: Option<u32>,
}

impl<'m> ReactorDisk<'m> {
    /// The device at a place of the reactor's devices.
    pub(super) fn new(
        messages: &'m MessageRings<FileMessage>,
        place: usize,
        geometry: Geometry,
    ) -> Self {
        Self {
            messages,
            place,
            geometry,
            absences: None,
        }
    }

    fn access(
        &mut self,
        at: u64,
        operation: AccessOperation,
    ) -> Result<Result<Vec<u8>, DeviceError>, StoredError> {
        let block_bytes = u64::from(self.geometry.block_size);
        let (reply, response) = mpsc::channel();
        let access = Access {
            place: self.place,
            lba: at / block_bytes,
            block_bytes,
            operation,
            reply,
        };
        let sent = self.messages.send(REACTOR, FileMessage::Access(access));
        sent.map_err(|_| StoredError::NoReactor)?;
        let accessed = match response.recv_timeout(REQUEST_TIME_MAX) {
            Ok(accessed) => accessed,
            Err(RecvTimeoutError::Timeout) => return Err(StoredError::Timeout),
            Err(RecvTimeoutError::Disconnected) => return Err(StoredError::NoReactor),
        };
        let absences = *self.absences.get_or_insert(accessed.absences);
        Ok(match absences == accessed.absences {
            true => accessed.result,
            false => Err(DeviceError::Removed),
        })
    }
}

impl Disk for ReactorDisk<'_> {
    fn bytes(&self) -> u64 {
        self.geometry.bytes()
    }

    fn piece_bytes(&self) -> usize {
        piece_bytes(&self.geometry, TRANSFER_BYTES_MAX)
    }

    fn read_piece(&mut self, at: u64, length: usize) -> Result<Option<Vec<u8>>, StoredError> {
        Ok(self.access(at, AccessOperation::Read(length))?.ok())
    }

    fn write_piece(&mut self, at: u64, piece: &[u8]) -> Result<bool, StoredError> {
        let write = AccessOperation::Write(piece.to_vec());
        Ok(self.access(at, write)?.is_ok())
    }

    fn flush(&mut self) -> Result<bool, StoredError> {
        Ok(self.access(0, AccessOperation::Flush)?.is_ok())
    }
}
