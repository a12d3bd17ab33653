//! Durable volumes before a client can use them: formats, checks and opens them on a device.
//!
//! For the control path: each function returns when the [`Disk`] has carried out everything. That is
//! a queue of its own ([`OwnQueue`]) before the reactors start and without an appliance, and requests
//! that the reactor of the volumes makes ([`crate::Access`]) while it serves.

use std::time::{Duration, Instant};

use block::{CompletionBatch, Device, DeviceQueue, Geometry, Operation, QueueOptions, Request};
use files_server::{Part, PartOptions, VolumeIndex};
use files_store::limits::BLOCK_BYTES;
use files_store::{
    DiskCompletion, DiskRequest, FormatOptions, Formatter, OpenError, Opener, Opening,
    Operation as DiskOperation, RequestId, Time, Volume, VolumeIdentity,
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
    /// The reactor that serves the device does not make the request.
    #[error("the reactor that serves the device accepts no request: it has ended or is stuck")]
    NoReactor,
    /// All memory is in use.
    #[error("there is no memory for a request")]
    NoMemory,
    /// What a start writes did not become durable.
    #[error("the device failed to write or sync the log: nothing can be changed")]
    NotDurable,
    /// The directory of a share cannot be made.
    #[error(transparent)]
    Part(files_store::Error),
}

/// A device to which one request after the other is made, each complete when its function returns.
pub trait Disk {
    /// Size of the device in bytes.
    fn bytes(&self) -> u64;

    /// Limit of one request in bytes: a multiple of the volume's blocks.
    fn piece_bytes(&self) -> usize;

    /// Reads whole blocks. Returns `None` if the device fails.
    ///
    /// # Errors
    /// The device does not complete the request.
    fn read_piece(&mut self, at: u64, length: usize) -> Result<Option<Vec<u8>>, StoredError>;

    /// Writes whole blocks. Returns false if the device fails.
    ///
    /// # Errors
    /// The device does not complete the request.
    fn write_piece(&mut self, at: u64, piece: &[u8]) -> Result<bool, StoredError>;

    /// Makes completed writes durable. Returns false if the device fails.
    ///
    /// # Errors
    /// The device does not complete the request.
    fn flush(&mut self) -> Result<bool, StoredError>;
}

/// Reads the superblock of a volume.
///
/// # Errors
/// The device has none that this version can open, or it fails.
pub fn identify(disk: &mut dyn Disk) -> Result<VolumeIdentity, StoredError> {
    let block = beginning(disk, BLOCK_BYTES as usize)?;
    Ok(VolumeIdentity::decode(&block, disk.bytes())?)
}

/// Whether a device has only zeroes where volumes, file systems, partition tables and volume
/// managers have their first structures.
///
/// # Errors
/// The device fails.
pub fn is_blank(disk: &mut dyn Disk) -> Result<bool, StoredError> {
    let size = disk.bytes() / BLOCK_BYTES * BLOCK_BYTES;
    let probed = beginning(disk, PROBED_BYTES.min(size) as usize)?;
    Ok(probed.iter().all(|it| *it == 0))
}

/// Writes an empty volume, whatever the device has.
///
/// # Errors
/// The device is too small or fails.
pub fn format(disk: &mut dyn Disk, options: &FormatOptions) -> Result<(), StoredError> {
    let mut formatter = Formatter::new(options)?;
    while let Some(request) = formatter.poll() {
        let completion = perform(disk, request)?;
        formatter.complete(&completion)?;
    }
    Ok(())
}

/// Reads a volume and replays its log in memory. Writes nothing.
///
/// # Errors
/// The device has no volume, another version or a damaged one, or it fails.
pub fn read(disk: &mut dyn Disk) -> Result<Opening, StoredError> {
    let mut opener = Opener::new(disk.bytes());
    loop {
        let Some(request) = opener.poll() else {
            return Err(OpenError::Damaged("it cannot be read").into());
        };
        let completion = perform(disk, request)?;
        if let Some(opening) = opener.complete(&completion)? {
            return Ok(opening);
        }
    }
}

/// Opens a volume for use. When it returns, the start is durable.
///
/// # Errors
/// As [`read`], and if the device cannot be written.
pub fn open(disk: &mut dyn Disk) -> Result<Volume, StoredError> {
    let mut volume = read(disk)?.start();
    make_durable(disk, &mut volume)?;
    Ok(volume)
}

/// Makes directories for shares before clients can see them, and sets their quotas
/// ([`PartOptions::prepare_all`]). When it returns, the directories are durable: a client that has one
/// as a file handle has it after a power failure, too.
///
/// # Errors
/// The index of the first one that cannot be made or stored, and why.
pub fn prepare_parts<D: Disk>(
    parts: &[PartOptions],
    volumes: &mut [Volume],
    now: Time,
    mut disk_of: impl FnMut(VolumeIndex) -> Result<D, StoredError>,
) -> Result<Vec<Part>, (usize, StoredError)> {
    let prepared = PartOptions::prepare_all(parts, volumes, now);
    let prepared = prepared.map_err(|(index, error)| (index, StoredError::Part(error)))?;
    for (index, options) in parts.iter().enumerate() {
        let volume = &mut volumes[options.volume.0];
        if !volume.is_idle() {
            let disk = disk_of(options.volume);
            let stored = disk.and_then(|mut it| make_durable(&mut it, volume));
            stored.map_err(|error| (index, error))?;
        }
    }
    Ok(prepared)
}

/// Carries out what a volume has to write.
fn make_durable(disk: &mut dyn Disk, volume: &mut Volume) -> Result<(), StoredError> {
    while !volume.is_idle() {
        let request = volume.poll().ok_or(StoredError::NotDurable)?;
        volume.complete(perform(disk, request)?);
    }
    match volume.has_failed() {
        true => Err(StoredError::NotDurable),
        false => Ok(()),
    }
}

/// The first bytes of the device.
fn beginning(disk: &mut dyn Disk, length: usize) -> Result<Vec<u8>, StoredError> {
    let (id, offset) = (RequestId(0), 0);
    let operation = DiskOperation::Read { offset, length };
    let read = perform(disk, DiskRequest { id, operation })?;
    match read.is_ok {
        true => Ok(read.data),
        false => Err(OpenError::Io { offset, length }.into()),
    }
}

/// Carries out a request of a volume in pieces.
fn perform(disk: &mut dyn Disk, request: DiskRequest) -> Result<DiskCompletion, StoredError> {
    let DiskRequest { id, operation } = request;
    let (is_ok, data) = match operation {
        DiskOperation::Flush => (disk.flush()?, Vec::new()),
        DiskOperation::Write { offset, data } => {
            let piece_bytes = disk.piece_bytes();
            let mut is_ok = true;
            for (index, piece) in data.chunks(piece_bytes).enumerate() {
                let at = offset + (index * piece_bytes) as u64;
                is_ok = is_ok && disk.write_piece(at, piece)?;
            }
            (is_ok, data)
        }
        DiskOperation::Read { offset, length } => {
            let (mut is_ok, mut data) = (true, Vec::with_capacity(length));
            while is_ok && data.len() < length {
                let piece = (length - data.len()).min(disk.piece_bytes());
                let found = disk.read_piece(offset + data.len() as u64, piece)?;
                is_ok = found.as_ref().is_some_and(|it| it.len() == piece);
                data.extend(found.unwrap_or_default());
            }
            (is_ok, data)
        }
    };
    Ok(DiskCompletion { id, is_ok, data })
}

/// A queue of a device that no reactor serves.
pub struct OwnQueue {
    queue: Box<dyn DeviceQueue>,
    pool: Pool,
    bytes: u64,
    block_bytes: u64,
    piece_bytes: usize,
}

impl OwnQueue {
    /// Opens a queue of the first reactor.
    ///
    /// # Errors
    /// The device provides none.
    pub fn new(device: &dyn Device, pool: &Pool) -> Result<Self, StoredError> {
        let geometry = device.geometry();
        Ok(Self {
            queue: device.open_queue(QueueOptions::new(0, DEPTH, pool.clone()))?,
            pool: pool.clone(),
            bytes: geometry.bytes(),
            block_bytes: u64::from(geometry.block_size),
            piece_bytes: piece_bytes(&geometry, pool.max_transfer()),
        })
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

/// Limit of one request of the control path to a device in bytes: a multiple of the volume's blocks.
#[must_use]
pub fn piece_bytes(geometry: &Geometry, transfer_max: usize) -> usize {
    let transfer = u64::from(geometry.max_transfer_blocks) * u64::from(geometry.block_size);
    let most = PIECE_BYTES_MAX.min(transfer_max) as u64;
    let pieces = transfer.min(most) / BLOCK_BYTES;
    (pieces.max(1) * BLOCK_BYTES) as usize
}

impl Disk for OwnQueue {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    fn read_piece(&mut self, at: u64, length: usize) -> Result<Option<Vec<u8>>, StoredError> {
        let lease = self.memory(length)?;
        let (is_ok, found) = self.request(Operation::Read, at, Some(lease))?;
        Ok(found.filter(|_| is_ok).map(|it| it.to_vec()))
    }

    fn write_piece(&mut self, at: u64, piece: &[u8]) -> Result<bool, StoredError> {
        let mut lease = self.memory(piece.len())?;
        lease.copy_from_slice(piece);
        let write = Operation::Write { fua: false };
        Ok(self.request(write, at, Some(lease))?.0)
    }

    fn flush(&mut self) -> Result<bool, StoredError> {
        Ok(self.request(Operation::Flush, 0, None)?.0)
    }
}
