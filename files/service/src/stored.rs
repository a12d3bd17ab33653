//! Durable volumes before a reactor serves them: formats, checks and opens them on a device.
//!
//! For the control path: each function uses a queue of its own and returns when the device has
//! carried out everything.

use std::time::{Duration, Instant};

use block::{CompletionBatch, Device, DeviceQueue, Operation, QueueOptions, Request};
use files_store::limits::BLOCK_BYTES;
use files_store::{
    DiskCompletion, DiskRequest, FormatOptions, Formatter, OpenError, Opener, Opening,
    Operation as DiskOperation, RequestId, Volume, VolumeIdentity,
};
use hugemem::{Data, Lease, Pool};

use crate::limits::PIECE_BYTES_MAX;

/// Limit of the time for one request to the device.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);
/// Interval at which the device is asked for completions.
const POLL_INTERVAL: Duration = Duration::from_micros(20);
/// Depth of the queue: requests follow one another.
const DEPTH: usize = 2;
/// The part of a device that [`is_blank`] reads, in bytes.
const PROBED_BYTES: u64 = 1 << 20;

/// Why a volume cannot be formatted, checked or opened.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// The volume or the device is not as expected.
    #[error(transparent)]
    Volume(#[from] OpenError),
    /// The device provides no queue.
    #[error("the device provides no queue")]
    Queue(#[from] block::OpenError),
    /// The device does not complete a request.
    #[error("the device does not complete a request within {} s", REQUEST_TIME_MAX.as_secs())]
    Timeout,
    /// All memory is in use.
    #[error("there is no memory for a request")]
    NoMemory,
    /// What a start writes did not become durable.
    #[error("the device failed to write or sync the log: nothing can be changed")]
    NotDurable,
}

/// Reads the superblock of a volume.
///
/// # Errors
/// The device has none that this version can open, or it fails.
pub fn identify(device: &dyn Device, pool: &Pool) -> Result<VolumeIdentity, StoredError> {
    let block = Disk::new(device, pool)?.beginning(BLOCK_BYTES as usize)?;
    Ok(VolumeIdentity::decode(&block, device.geometry().bytes())?)
}

/// Whether a device has only zeroes where volumes, file systems, partition tables and volume
/// managers have their first structures.
///
/// # Errors
/// The device fails.
pub fn is_blank(device: &dyn Device, pool: &Pool) -> Result<bool, StoredError> {
    let size = device.geometry().bytes() / BLOCK_BYTES * BLOCK_BYTES;
    let probed = Disk::new(device, pool)?.beginning(PROBED_BYTES.min(size) as usize)?;
    Ok(probed.iter().all(|it| *it == 0))
}

/// Writes an empty volume, whatever the device has.
///
/// # Errors
/// The device is too small or fails.
pub fn format(
    device: &dyn Device,
    pool: &Pool,
    options: &FormatOptions,
) -> Result<(), StoredError> {
    let mut formatter = Formatter::new(options)?;
    let mut disk = Disk::new(device, pool)?;
    while let Some(request) = formatter.poll() {
        let completion = disk.perform(request)?;
        formatter.complete(&completion)?;
    }
    Ok(())
}

/// Reads a volume and replays its log in memory. Writes nothing.
///
/// # Errors
/// The device has no volume, another version or a damaged one, or it fails.
pub fn read(device: &dyn Device, pool: &Pool) -> Result<Opening, StoredError> {
    Disk::new(device, pool)?.read(device.geometry().bytes())
}

/// Opens a volume for use. When it returns, the start is durable.
///
/// # Errors
/// As [`read`], and if the device cannot be written.
pub fn open(device: &dyn Device, pool: &Pool) -> Result<Volume, StoredError> {
    let mut disk = Disk::new(device, pool)?;
    let mut volume = disk.read(device.geometry().bytes())?.start();
    while !volume.is_idle() {
        let Some(request) = volume.poll() else {
            return Err(StoredError::NotDurable);
        };
        volume.complete(disk.perform(request)?);
    }
    Ok(volume)
}

/// A queue of the device.
struct Disk {
    queue: Box<dyn DeviceQueue>,
    pool: Pool,
    block_bytes: u64,
    piece_bytes: usize,
}

impl Disk {
    fn new(device: &dyn Device, pool: &Pool) -> Result<Self, StoredError> {
        let geometry = device.geometry();
        let block_bytes = u64::from(geometry.block_size);
        let transfer = u64::from(geometry.max_transfer_blocks) * block_bytes;
        let most = PIECE_BYTES_MAX.min(pool.max_transfer()) as u64;
        let pieces = transfer.min(most) / BLOCK_BYTES;
        Ok(Self {
            queue: device.open_queue(QueueOptions::new(0, DEPTH, pool.clone()))?,
            pool: pool.clone(),
            block_bytes,
            piece_bytes: (pieces.max(1) * BLOCK_BYTES) as usize,
        })
    }

    /// The first bytes of the device.
    fn beginning(&mut self, length: usize) -> Result<Vec<u8>, StoredError> {
        let (id, offset) = (RequestId(0), 0);
        let operation = DiskOperation::Read { offset, length };
        let read = self.perform(DiskRequest { id, operation })?;
        match read.is_ok {
            true => Ok(read.data),
            false => Err(OpenError::Io { offset, length }.into()),
        }
    }

    fn read(&mut self, device_bytes: u64) -> Result<Opening, StoredError> {
        let mut opener = Opener::new(device_bytes);
        loop {
            let Some(request) = opener.poll() else {
                return Err(OpenError::Damaged("it cannot be read").into());
            };
            let completion = self.perform(request)?;
            if let Some(opening) = opener.complete(&completion)? {
                return Ok(opening);
            }
        }
    }

    /// Carries out a request of a volume in pieces.
    fn perform(&mut self, request: DiskRequest) -> Result<DiskCompletion, StoredError> {
        let DiskRequest { id, operation } = request;
        let (is_ok, data) = match operation {
            DiskOperation::Flush => {
                let (is_ok, _) = self.request(Operation::Flush, 0, None)?;
                (is_ok, Vec::new())
            }
            DiskOperation::Write { offset, data } => {
                let mut is_ok = true;
                for (index, piece) in data.chunks(self.piece_bytes).enumerate() {
                    let mut lease = self.memory(piece.len())?;
                    lease.copy_from_slice(piece);
                    let at = offset + (index * self.piece_bytes) as u64;
                    let write = Operation::Write { fua: false };
                    is_ok = is_ok && self.request(write, at, Some(lease))?.0;
                }
                (is_ok, data)
            }
            DiskOperation::Read { offset, length } => {
                let (mut is_ok, mut data) = (true, Vec::with_capacity(length));
                while is_ok && data.len() < length {
                    let piece = (length - data.len()).min(self.piece_bytes);
                    let lease = self.memory(piece)?;
                    let at = offset + data.len() as u64;
                    let (is_read, found) = self.request(Operation::Read, at, Some(lease))?;
                    is_ok = is_read && found.is_some();
                    data.extend_from_slice(found.as_deref().unwrap_or_default());
                }
                (is_ok, data)
            }
        };
        Ok(DiskCompletion { id, is_ok, data })
    }

    fn memory(&self, bytes: usize) -> Result<Lease, StoredError> {
        self.pool.take(bytes).ok_or(StoredError::NoMemory)
    }

    /// Carries out one request to the device: whether it succeeded, and its data.
    fn request(
        &mut self,
        operation: Operation,
        at: u64,
        data: Option<Lease>,
    ) -> Result<(bool, Option<Data>), StoredError> {
        let bytes = data.as_ref().map_or(0, |it| it.len() as u64);
        let mut request = Request {
            tag: 0,
            operation,
            lba: at / self.block_bytes,
            blocks: (bytes / self.block_bytes) as u32,
            data,
        };
        let deadline = Instant::now() + REQUEST_TIME_MAX;
        while let Err(refusal) = self.queue.submit(request) {
            match refusal {
                block::Refusal::Never(..) => return Ok((false, None)),
                block::Refusal::Later(again) => request = again,
            }
            self.pause(deadline)?;
        }
        let mut completions = CompletionBatch::new();
        loop {
            self.queue.flush();
            self.queue.poll(&mut completions);
            if let Some(completion) = completions.pop() {
                return Ok((completion.result.is_ok(), completion.data));
            }
            self.pause(deadline)?;
        }
    }

    fn pause(&self, deadline: Instant) -> Result<(), StoredError> {
        if Instant::now() > deadline {
            return Err(StoredError::Timeout);
        }
        std::thread::sleep(POLL_INTERVAL);
        Ok(())
    }
}
