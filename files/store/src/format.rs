//! Formatting of a device as an empty volume.

use std::collections::VecDeque;

use crate::error::OpenError;
use crate::layout::{CheckpointHeader, Layout, MEMORY_BYTES_MIN, Uuid, device_bytes_min};
use crate::limits::{BLOCK_BYTES, LOG_BYTES_MAX, LOG_BYTES_MIN};
use crate::log::{DiskCompletion, DiskRequest, Operation, RequestId};
use crate::state::State;

/// What a volume is formatted with.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Identifier of the volume, drawn at random.
    pub uuid: Uuid,
    /// A random number, which is kept secret.
    pub salt: u64,
    /// Size of the device in bytes.
    pub device_bytes: u64,
    /// Limit of the memory for metadata in bytes, at least [`MEMORY_BYTES_MIN`].
    pub memory_bytes: u64,
    /// Size of each of the two areas of the log in bytes; within its limits.
    pub log_bytes: u64,
}

/// Writes an empty volume. The superblock is written last, so that an interrupted format leaves no
/// volume, or the one that was there before with damage that is found.
#[derive(Debug)]
pub struct Formatter {
    requests: VecDeque<DiskRequest>,
    in_flight: Option<DiskRequest>,
}

impl Formatter {
    /// Plans the requests.
    ///
    /// # Errors
    /// Returns [`OpenError::NoRoom`] if the device is too small for the options.
    pub fn new(options: &FormatOptions) -> Result<Self, OpenError> {
        let memory_bytes = options.memory_bytes.max(MEMORY_BYTES_MIN);
        let memory_bytes = memory_bytes.next_multiple_of(BLOCK_BYTES);
        let log_bytes = options.log_bytes.clamp(LOG_BYTES_MIN, LOG_BYTES_MAX);
        let log_bytes = log_bytes.next_multiple_of(BLOCK_BYTES);
        let needed = device_bytes_min(memory_bytes, log_bytes);
        if options.device_bytes < needed {
            let device = options.device_bytes;
            return Err(OpenError::NoRoom { device, needed });
        }
        let layout = Layout {
            uuid: options.uuid,
            salt: options.salt,
            blocks: options.device_bytes / BLOCK_BYTES,
            memory_bytes,
            log_bytes,
        };
        let mut body = Vec::new();
        State::new(layout.uuid, layout.data()).put(&mut body);
        let header = CheckpointHeader::new(&layout, 0, 0, &body);
        body.resize(body.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        let write = |offset, data| Operation::Write { offset, data };
        let operations = [
            // The volume that was there before ends first.
            write(0, vec![0; BLOCK_BYTES as usize]),
            Operation::Flush,
            write(layout.checkpoint(0) + BLOCK_BYTES, body),
            write(layout.checkpoint(0), header.encode(&layout)),
            Operation::Flush,
            write(0, layout.encode()),
            Operation::Flush,
        ];
        let requests = operations
            .into_iter()
            .zip(1..)
            .map(|(operation, id)| DiskRequest {
                id: RequestId(id),
                operation,
            });
        Ok(Self {
            requests: requests.collect(),
            in_flight: None,
        })
    }

    /// The next request; one is in flight at a time.
    pub fn poll(&mut self) -> Option<DiskRequest> {
        if self.in_flight.is_some() {
            return None;
        }
        self.in_flight = self.requests.pop_front();
        self.in_flight.clone()
    }

    /// Takes the end of the request. Returns true when the volume is formatted.
    ///
    /// # Errors
    /// Returns [`OpenError::Io`] if the request failed.
    pub fn complete(&mut self, completion: &DiskCompletion) -> Result<bool, OpenError> {
        let Some(request) = self.in_flight.take_if(|it| it.id == completion.id) else {
            return Ok(false);
        };
        if !completion.is_ok {
            self.requests.clear();
            let (offset, length) = match &request.operation {
                Operation::Write { offset, data } => (*offset, data.len()),
                Operation::Read { .. } | Operation::Flush => (0, 0),
            };
            return Err(OpenError::Io { offset, length });
        }
        Ok(self.requests.is_empty())
    }
}
