//! Opening of a volume: the newest checkpoint, and the log after it.
//!
//! A batch that is not intact ends the log, because a power cut may have torn it. If an intact batch
//! follows it, it was durable before, and the volume is damaged.

use crate::change::Change;
use crate::check;
use crate::codec::{Reader, Stored};
use crate::error::OpenError;
use crate::layout::{BatchHeader, CheckpointHeader, Layout, Uuid};
use crate::limits::{BLOCK_BYTES, REQUEST_BYTES_MAX};
use crate::log::{DiskCompletion, DiskRequest, Log, Operation, RequestId};
use crate::state::State;
use crate::volume::{Volume, VolumeUse};

/// The part of the volume that is read.
#[derive(Debug)]
enum Stage {
    Superblock,
    Header {
        layout: Layout,
        found: Vec<CheckpointHeader>,
        epoch: u64,
    },
    Body {
        layout: Layout,
        header: CheckpointHeader,
    },
    Log {
        layout: Layout,
        replay: Box<Replay>,
        epoch: u64,
    },
    Ended,
}

/// Reads a volume and replays its log. It writes nothing.
#[derive(Debug)]
pub struct Opener {
    device_bytes: u64,
    stage: Stage,
    /// The range that is read, and what has arrived.
    offset: u64,
    wanted: usize,
    arrived: Vec<u8>,
    in_flight: Option<RequestId>,
    next_request: u64,
}

/// A volume that was read.
#[derive(Debug)]
pub struct Opening {
    layout: Layout,
    replay: Box<Replay>,
}

impl Opening {
    /// The inconsistencies of the metadata; none in a volume that works.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        check::problems(&self.replay.state, self.layout.data(), 0)
    }

    /// The identifier of the volume.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.layout.uuid
    }

    /// Use and limits of the volume.
    #[must_use]
    pub fn usage(&self) -> VolumeUse {
        VolumeUse::of(
            &self.replay.state,
            self.layout.data(),
            self.layout.memory_bytes,
        )
    }

    /// Begins to use the volume. Its first ticket must be durable before clients are served.
    #[must_use]
    pub fn start(self) -> Volume {
        let Replay {
            state,
            epoch,
            batch,
            has_checkpoint,
        } = *self.replay;
        // The checkpoint before this log may be missing, but not another one.
        let epoch = epoch + u64::from(has_checkpoint);
        let mut body = Vec::new();
        state.put(&mut body);
        let log = Log::new(self.layout, epoch, batch, body);
        Volume::durable(state, log)
    }
}

/// The state that the log is applied to.
#[derive(Debug)]
struct Replay {
    state: State,
    /// The last epoch of its log, and the last batch.
    epoch: u64,
    batch: u64,
    /// Whether the checkpoint of this epoch exists.
    has_checkpoint: bool,
}

const BLOCK: usize = BLOCK_BYTES as usize;

impl Opener {
    /// Begins to read a device of this size.
    #[must_use]
    pub fn new(device_bytes: u64) -> Self {
        Self {
            device_bytes,
            stage: Stage::Superblock,
            offset: 0,
            wanted: BLOCK,
            arrived: Vec::new(),
            in_flight: None,
            next_request: 0,
        }
    }

    /// The next request; one is in flight at a time.
    pub fn poll(&mut self) -> Option<DiskRequest> {
        let length = (self.wanted - self.arrived.len()).min(REQUEST_BYTES_MAX);
        if self.in_flight.is_some() || length == 0 {
            return None;
        }
        self.next_request += 1;
        let id = RequestId(self.next_request);
        self.in_flight = Some(id);
        let offset = self.offset + self.arrived.len() as u64;
        let operation = Operation::Read { offset, length };
        Some(DiskRequest { id, operation })
    }

    /// Takes the end of the request. Returns the volume when it is read.
    ///
    /// # Errors
    /// Returns why the volume cannot be opened.
    pub fn complete(&mut self, completion: &DiskCompletion) -> Result<Option<Opening>, OpenError> {
        if self.in_flight != Some(completion.id) {
            return Ok(None);
        }
        self.in_flight = None;
        let length = (self.wanted - self.arrived.len()).min(REQUEST_BYTES_MAX);
        if !completion.is_ok || completion.data.len() != length {
            let offset = self.offset + self.arrived.len() as u64;
            return Err(OpenError::Io { offset, length });
        }
        self.arrived.extend_from_slice(&completion.data);
        if self.arrived.len() < self.wanted {
            return Ok(None);
        }
        let bytes = std::mem::take(&mut self.arrived);
        self.wanted = 0;
        self.advance(&bytes)
    }

    fn read(&mut self, offset: u64, length: usize, stage: Stage) {
        (self.offset, self.wanted, self.stage) = (offset, length, stage);
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<Option<Opening>, OpenError> {
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Superblock => {
                let layout = Layout::decode(bytes, self.device_bytes)?;
                let (found, epoch) = (Vec::new(), 0);
                let stage = Stage::Header {
                    layout,
                    found,
                    epoch,
                };
                self.read(layout.checkpoint(0), BLOCK, stage);
            }
            Stage::Header {
                layout,
                mut found,
                epoch,
            } => {
                found.extend(CheckpointHeader::decode(bytes, &layout));
                if epoch == 0 {
                    let stage = Stage::Header {
                        layout,
                        found,
                        epoch: 1,
                    };
                    self.read(layout.checkpoint(1), BLOCK, stage);
                    return Ok(None);
                }
                let newest = found.into_iter().max_by_key(|header| header.epoch);
                let header = newest.ok_or(OpenError::Damaged("it has no checkpoint"))?;
                let length = (header.length as usize).next_multiple_of(BLOCK);
                let offset = layout.checkpoint(header.epoch) + BLOCK_BYTES;
                self.read(offset, length.max(BLOCK), Stage::Body { layout, header });
            }
            Stage::Body { layout, header } => {
                let replay = Box::new(Replay::new(&layout, &header, bytes)?);
                let epoch = header.epoch;
                self.read(
                    layout.log(epoch),
                    layout.log_bytes as usize,
                    Stage::Log {
                        layout,
                        replay,
                        epoch,
                    },
                );
            }
            Stage::Log {
                layout,
                mut replay,
                epoch,
            } => {
                let is_first = replay.has_checkpoint && epoch == replay.epoch;
                replay.replay(&layout, epoch, bytes)?;
                if is_first {
                    let epoch = epoch + 1;
                    self.read(
                        layout.log(epoch),
                        layout.log_bytes as usize,
                        Stage::Log {
                            layout,
                            replay,
                            epoch,
                        },
                    );
                    return Ok(None);
                }
                return Ok(Some(Opening { layout, replay }));
            }
            Stage::Ended => {}
        }
        Ok(None)
    }
}

impl Replay {
    fn new(layout: &Layout, header: &CheckpointHeader, bytes: &[u8]) -> Result<Self, OpenError> {
        let body = &bytes[..header.length as usize];
        if CheckpointHeader::new(layout, header.epoch, header.batch, body) != *header {
            return Err(OpenError::Damaged("its checkpoint has a wrong checksum"));
        }
        let state = State::get(layout.uuid, layout.data(), body)
            .map_err(|_| OpenError::Damaged("its checkpoint is inconsistent"))?;
        Ok(Self {
            state,
            epoch: header.epoch,
            batch: header.batch,
            has_checkpoint: true,
        })
    }

    /// Applies the log of an epoch: that of the checkpoint, or the next one.
    fn replay(&mut self, layout: &Layout, epoch: u64, log: &[u8]) -> Result<(), OpenError> {
        let mut position = 0;
        let mut previous = None;
        while let Some((header, records)) = batch_at(layout, log, position) {
            if header.epoch > epoch {
                return Err(OpenError::Damaged("a checkpoint before its log is missing"));
            }
            if header.epoch < epoch || previous.is_some_and(|it| header.batch != it + 1) {
                break;
            }
            // A checkpoint that was written later may contain the first batches.
            if header.batch > self.batch + 1 {
                return Err(OpenError::Damaged("a batch of its log is missing"));
            }
            if header.batch == self.batch + 1 {
                self.apply(records)?;
                self.batch = header.batch;
            }
            previous = Some(header.batch);
            let length = crate::layout::BATCH_HEADER_BYTES + records.len();
            position += length.next_multiple_of(BLOCK);
        }
        let rest = (position..log.len()).step_by(BLOCK);
        for at in rest {
            if let Some((header, _)) = batch_at(layout, log, at)
                && header.epoch >= epoch
                && header.batch > self.batch
            {
                return Err(OpenError::Damaged("a batch within its log is not intact"));
            }
        }
        if epoch != self.epoch && previous.is_some() {
            (self.epoch, self.has_checkpoint) = (epoch, false);
        }
        Ok(())
    }

    fn apply(&mut self, records: &[u8]) -> Result<(), OpenError> {
        let damaged = OpenError::Damaged("its log does not follow from its checkpoint");
        let mut from = Reader(records);
        while !from.0.is_empty() {
            let length = u32::get(&mut from).map_err(|_| damaged.clone())? as usize;
            let record = from.take(length).map_err(|_| damaged.clone())?;
            let mut record = Reader(record);
            let change = Change::get(&mut record).map_err(|_| damaged.clone())?;
            record.finish().map_err(|_| damaged.clone())?;
            let applied = self.state.apply(&change, None, false);
            applied.map_err(|_| damaged.clone())?;
        }
        Ok(())
    }
}

fn batch_at<'l>(layout: &Layout, log: &'l [u8], at: usize) -> Option<(BatchHeader, &'l [u8])> {
    BatchHeader::decode(log.get(at..)?, layout)
}
