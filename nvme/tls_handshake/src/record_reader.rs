//! Receives the records of a handshake one at a time.

use nvme_tls::{Failure, HEADER_BYTES, handshake_body_bytes};

use crate::HANDSHAKE_BYTES_MAX;
use crate::error::HandshakeError;

/// Collects one record after the other, and counts their bytes.
#[derive(Debug, Default)]
pub(crate) struct RecordReader {
    record: Vec<u8>,
    /// Bytes of the record behind its header, when that is complete.
    body: Option<usize>,
    total: usize,
}

impl RecordReader {
    /// The bytes that are missing: of the header, and then of the record.
    pub(crate) fn wanted(&self) -> usize {
        HEADER_BYTES + self.body.unwrap_or(0) - self.record.len()
    }

    /// Takes bytes, at most as many as wanted. Returns a record when it is complete.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, HandshakeError> {
        assert!(
            bytes.len() <= self.wanted(),
            "bytes of the next record were received"
        );
        self.total += bytes.len();
        if self.total > HANDSHAKE_BYTES_MAX {
            return Err(HandshakeError::TooLong);
        }
        self.record.extend_from_slice(bytes);
        if self.body.is_none()
            && let Some(header) = self.record.first_chunk::<HEADER_BYTES>()
        {
            let body = handshake_body_bytes(*header).map_err(Failure::Violation)?;
            self.body = Some(body);
        }
        if self.wanted() > 0 || self.body.is_none() {
            return Ok(None);
        }
        self.body = None;
        Ok(Some(std::mem::take(&mut self.record)))
    }
}
