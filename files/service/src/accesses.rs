//! Requests of the control path to a device that a reactor serves: it opens, formats and checks
//! volumes by them, one after the other, while the reactor goes on.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;

use block::{ClientId, DeviceError, DeviceSet, Operation, Request};
use hugemem::{Data, Pool};

use crate::job::VOLUME_TAG;

/// Limit of the requests in devices.
pub(crate) const ACCESSES_MAX: usize = 1;

/// The tag of the request in a device. No volume has this number.
pub(crate) const ACCESS_TAG: u64 = VOLUME_TAG | (VOLUME_TAG - 1);

/// What the device does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessOperation {
    /// Read this many bytes: whole blocks, within the limit of one request.
    Read(usize),
    /// Write bytes: whole blocks, within the limit of one request.
    Write(Vec<u8>),
    /// Make completed writes durable.
    Flush,
}

/// A request of the control path.
#[derive(Debug)]
pub struct Access {
    /// The device's place in the reactor's devices.
    pub place: usize,
    /// The first block.
    pub lba: u64,
    /// The size of a block in bytes.
    pub block_bytes: u64,
    /// What the device does.
    pub operation: AccessOperation,
    /// The receiver of the response.
    pub reply: Sender<Accessed>,
}

/// The end of an [`Access`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accessed {
    /// How often the device was gone. After a change, what was written and not flushed before may be
    /// lost.
    pub absences: u32,
    /// What was read, or why the request failed.
    pub result: Result<Vec<u8>, DeviceError>,
}

/// The requests that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Accesses {
    waiting: VecDeque<Access>,
    in_device: Option<Access>,
    ended: Option<Result<Vec<u8>, DeviceError>>,
}

impl Accesses {
    pub(crate) fn push(&mut self, access: Access) {
        self.waiting.push_back(access);
    }

    /// Whether a request waits for its turn or for memory, which no descriptor signals.
    pub(crate) fn is_waiting(&self) -> bool {
        self.ended.is_some() || self.in_device.is_none() && !self.waiting.is_empty()
    }

    /// Answers what has ended, and submits what follows. Returns whether a device has a further
    /// request.
    pub(crate) fn carry_out(&mut self, client: ClientId, set: &DeviceSet, pool: &Pool) -> bool {
        if let Some(result) = self.ended.take() {
            self.answer(set, result);
        }
        while self.in_device.is_none()
            && let Some(access) = self.waiting.front()
        {
            let (operation, bytes, data) = match &access.operation {
                AccessOperation::Read(bytes) => (Operation::Read, *bytes, None),
                AccessOperation::Write(data) => {
                    (Operation::Write { fua: false }, data.len(), Some(data))
                }
                AccessOperation::Flush => (Operation::Flush, 0, None),
            };
            let blocks = bytes as u64 / access.block_bytes;
            let lends = operation == Operation::Read
                && set.can_borrow_read(access.place, access.lba, blocks as u32);
            let lease = match bytes {
                0 => None,
                _ if lends => None,
                _ => {
                    let Some(mut lease) = pool.take(bytes) else {
                        return false;
                    };
                    if let Some(data) = data {
                        lease.copy_from_slice(data);
                    }
                    Some(lease)
                }
            };
            let request = Request {
                tag: ACCESS_TAG,
                operation,
                lba: access.lba,
                blocks: blocks as u32,
                data: lease,
            };
            let submitted = set.submit(client, access.place, request);
            self.in_device = self.waiting.pop_front();
            match submitted {
                Ok(_) => return true,
                Err(error) => self.answer(set, Err(error)),
            }
        }
        false
    }

    /// A device has completed the request.
    pub(crate) fn completed(&mut self, result: Result<(), DeviceError>, data: Option<Data>) {
        let is_read = |it: &Access| matches!(it.operation, AccessOperation::Read(_));
        let is_read = self.in_device.as_ref().is_some_and(is_read);
        let data = data.filter(|_| is_read);
        self.ended = Some(result.map(|()| data.map_or_else(Vec::new, |it| it.to_vec())));
    }

    /// The device at a place was removed: its requests do not complete.
    pub(crate) fn device_removed(&mut self, place: usize) {
        if self
            .in_device
            .as_ref()
            .is_some_and(|access| access.place == place)
        {
            self.ended = Some(Err(DeviceError::Removed));
        }
    }

    fn answer(&mut self, set: &DeviceSet, result: Result<Vec<u8>, DeviceError>) {
        if let Some(access) = self.in_device.take() {
            let absences = set.absences(access.place);
            // A response without a receiver is not needed.
            let _ = access.reply.send(Accessed { absences, result });
        }
    }
}
