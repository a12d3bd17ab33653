//! Where a volume has its parts on the device: the superblock, two areas for checkpoints, two for
//! the log, and the data.

use crate::checksum::checksum;
use crate::codec::{Malformed, Reader, Stored};
use crate::error::OpenError;
use crate::limits::{BATCH_BYTES_MAX, BATCHES_MIN, BLOCK_BYTES};
use crate::space::Run;

/// The identifier of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

/// Least memory for metadata in bytes.
pub const MEMORY_BYTES_MIN: u64 = 256 << 10;

const MAGIC: [u8; 8] = *b"WNDLFILE";
const VERSION: u32 = 1;
/// Parts of a checkpoint outside the account of memory: counters, and the quotas of shares.
const CHECKPOINT_EXTRA_BYTES: u64 = 64 << 10;
/// Limit of the shares of a volume.
pub(crate) const SHARES_MAX: usize = 1024;

const _: () = assert!(SHARES_MAX as u64 * 32 + 1024 <= CHECKPOINT_EXTRA_BYTES);
const _: () = assert!(MEMORY_BYTES_MIN.is_multiple_of(BLOCK_BYTES));

/// What the superblock of a volume tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeIdentity {
    /// The identifier of the volume.
    pub uuid: Uuid,
    /// Limit of the memory for metadata in bytes.
    pub memory_bytes: u64,
}

impl VolumeIdentity {
    /// Decodes the first block of a device of `device_bytes` bytes.
    ///
    /// # Errors
    /// It is no superblock of a volume that can be opened.
    pub fn decode(block: &[u8], device_bytes: u64) -> Result<Self, OpenError> {
        let layout = Layout::decode(block, device_bytes)?;
        Ok(Self {
            uuid: layout.uuid,
            memory_bytes: layout.memory_bytes,
        })
    }
}

/// The superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) uuid: Uuid,
    pub(crate) salt: u64,
    /// Blocks of the volume.
    pub(crate) blocks: u64,
    /// Limit of the account of metadata.
    pub(crate) memory_bytes: u64,
    /// Size of each area of the log.
    pub(crate) log_bytes: u64,
}

/// Least size of a device for a durable volume with one block of data.
#[must_use]
pub const fn device_bytes_min(memory_bytes: u64, log_bytes: u64) -> u64 {
    (data_start(memory_bytes, log_bytes) + 1) * BLOCK_BYTES
}

const fn checkpoint_blocks(memory_bytes: u64) -> u64 {
    // A block for the header.
    1 + (memory_bytes + CHECKPOINT_EXTRA_BYTES).div_ceil(BLOCK_BYTES)
}

const fn data_start(memory_bytes: u64, log_bytes: u64) -> u64 {
    1 + 2 * checkpoint_blocks(memory_bytes) + 2 * (log_bytes / BLOCK_BYTES)
}

impl Layout {
    /// First byte of the checkpoint with this number.
    pub(crate) const fn checkpoint(&self, epoch: u64) -> u64 {
        (1 + epoch % 2 * checkpoint_blocks(self.memory_bytes)) * BLOCK_BYTES
    }

    /// Limit of the body of a checkpoint in bytes.
    pub(crate) const fn checkpoint_body_max(&self) -> u64 {
        (checkpoint_blocks(self.memory_bytes) - 1) * BLOCK_BYTES
    }

    /// First byte of the log that follows the checkpoint with this number.
    pub(crate) const fn log(&self, epoch: u64) -> u64 {
        (1 + 2 * checkpoint_blocks(self.memory_bytes)) * BLOCK_BYTES + epoch % 2 * self.log_bytes
    }

    /// Limit of the records of a batch in bytes.
    pub(crate) const fn batch_bytes_max(&self) -> usize {
        let most = (self.log_bytes / BATCHES_MIN - BLOCK_BYTES) as usize;
        if most < BATCH_BYTES_MAX {
            most
        } else {
            BATCH_BYTES_MAX
        }
    }

    /// The blocks for data.
    pub(crate) const fn data(&self) -> Run {
        let start = data_start(self.memory_bytes, self.log_bytes);
        Run {
            start,
            count: self.blocks.saturating_sub(start),
        }
    }

    /// The block of the superblock.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_BYTES as usize);
        MAGIC.put(&mut block);
        VERSION.put(&mut block);
        self.uuid.0.put(&mut block);
        for word in [self.salt, self.blocks, self.memory_bytes, self.log_bytes] {
            word.put(&mut block);
        }
        checksum(0, &[&block]).put(&mut block);
        block.resize(BLOCK_BYTES as usize, 0);
        block
    }

    /// The superblock of a device of `device_bytes` bytes.
    pub(crate) fn decode(block: &[u8], device_bytes: u64) -> Result<Self, OpenError> {
        let damaged = |_: Malformed| OpenError::Damaged("its superblock is too short");
        let mut from = Reader(block);
        if <[u8; 8]>::get(&mut from).map_err(damaged)? != MAGIC {
            return Err(OpenError::NoVolume);
        }
        let version = u32::get(&mut from).map_err(damaged)?;
        if version != VERSION {
            return Err(OpenError::Version(version));
        }
        let layout = Self {
            uuid: Uuid(Stored::get(&mut from).map_err(damaged)?),
            salt: Stored::get(&mut from).map_err(damaged)?,
            blocks: Stored::get(&mut from).map_err(damaged)?,
            memory_bytes: Stored::get(&mut from).map_err(damaged)?,
            log_bytes: Stored::get(&mut from).map_err(damaged)?,
        };
        let length = block.len() - from.0.len();
        let stored = u64::get(&mut from).map_err(damaged)?;
        if checksum(0, &[&block[..length]]) != stored {
            return Err(OpenError::Damaged("its superblock has a wrong checksum"));
        }
        let volume = layout.blocks.saturating_mul(BLOCK_BYTES);
        if volume > device_bytes {
            return Err(OpenError::DeviceTooSmall {
                device: device_bytes,
                volume,
            });
        }
        Ok(layout)
    }
}

const CHECKPOINT_MAGIC: [u8; 8] = *b"WNDLCKPT";

stored! {
    /// The header of a checkpoint.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct CheckpointHeader {
        magic: [u8; 8],
        pub(crate) uuid: [u8; 16],
        pub(crate) epoch: u64,
        /// The last batch of the log that the checkpoint contains.
        pub(crate) batch: u64,
        pub(crate) length: u64,
        pub(crate) body_checksum: u64,
    }
}

impl CheckpointHeader {
    pub(crate) fn new(layout: &Layout, epoch: u64, batch: u64, body: &[u8]) -> Self {
        Self {
            magic: CHECKPOINT_MAGIC,
            uuid: layout.uuid.0,
            epoch,
            batch,
            length: body.len() as u64,
            body_checksum: checksum(layout.salt, &[body]),
        }
    }

    /// The block of the header.
    pub(crate) fn encode(&self, layout: &Layout) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_BYTES as usize);
        self.put(&mut block);
        checksum(layout.salt, &[&block]).put(&mut block);
        block.resize(BLOCK_BYTES as usize, 0);
        block
    }

    /// The header in a block; `None` if there is none of this volume.
    pub(crate) fn decode(block: &[u8], layout: &Layout) -> Option<Self> {
        let mut from = Reader(block);
        let header = Self::get(&mut from).ok()?;
        let length = block.len() - from.0.len();
        let stored = u64::get(&mut from).ok()?;
        let is_ours = header.magic == CHECKPOINT_MAGIC && header.uuid == layout.uuid.0;
        let is_intact = checksum(layout.salt, &[&block[..length]]) == stored;
        (is_ours && is_intact && header.length <= layout.checkpoint_body_max()).then_some(header)
    }
}

const BATCH_MAGIC: [u8; 8] = *b"WNDLBTCH";

stored! {
    /// The header of a batch of the log, which begins at a block.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct BatchHeader {
        magic: [u8; 8],
        pub(crate) uuid: [u8; 16],
        pub(crate) epoch: u64,
        pub(crate) batch: u64,
        pub(crate) length: u32,
    }
}

/// Size of the header of a batch with its checksum in bytes.
pub(crate) const BATCH_HEADER_BYTES: usize = 52;

impl BatchHeader {
    /// Appends the bytes of a batch with these records.
    pub(crate) fn encode(
        layout: &Layout,
        epoch: u64,
        batch: u64,
        records: &[u8],
        to: &mut Vec<u8>,
    ) {
        let header = Self {
            magic: BATCH_MAGIC,
            uuid: layout.uuid.0,
            epoch,
            batch,
            length: u32::try_from(records.len()).expect("a batch is bounded"),
        };
        header.put(to);
        let sum = checksum(layout.salt, &[to, records]);
        sum.put(to);
        to.extend_from_slice(records);
        to.resize(to.len().next_multiple_of(BLOCK_BYTES as usize), 0);
    }

    /// The intact batch at the beginning of these bytes, with its records.
    pub(crate) fn decode<'b>(bytes: &'b [u8], layout: &Layout) -> Option<(Self, &'b [u8])> {
        let mut from = Reader(bytes);
        let header = Self::get(&mut from).ok()?;
        let head = &bytes[..bytes.len() - from.0.len()];
        let stored = u64::get(&mut from).ok()?;
        if header.magic != BATCH_MAGIC || header.uuid != layout.uuid.0 {
            return None;
        }
        let records = from.take(header.length as usize).ok()?;
        (checksum(layout.salt, &[head, records]) == stored).then_some((header, records))
    }
}
