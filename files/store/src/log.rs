//! The redo log and the checkpoints of a durable volume: which request the device gets next.
//!
//! Records are collected in a batch while the previous one is written. A batch is durable after a
//! flush. If it has records of data, a flush precedes it, so that no file refers to blocks whose
//! data are lost. When half of an area of the log is used, a checkpoint with the next number begins
//! in the other area for checkpoints; later batches go to the other area of the log. The older
//! checkpoint with its log stays valid until the newer one is durable.
//!
//! A volume that is opened begins with a checkpoint, and has no batch before that is durable. What was
//! read may be nowhere but in a cache: a flush of it has failed, and the next one says nothing about
//! what the failed one has lost.

use crate::codec::Stored;
use crate::layout::{BATCH_HEADER_BYTES, BatchHeader, CheckpointHeader, Layout};
use crate::limits::{BLOCK_BYTES, REQUEST_BYTES_MAX};

/// Identifies a request to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u64);

/// What the device does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read `length` bytes.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: usize,
    },
    /// Write bytes. The buffer returns in the completion.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Make completed writes durable.
    Flush,
}

/// A request to the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskRequest {
    /// Its identifier, which the completion repeats.
    pub id: RequestId,
    /// What the device does.
    pub operation: Operation,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCompletion {
    /// The identifier of the request.
    pub id: RequestId,
    /// Whether it succeeded.
    pub is_ok: bool,
    /// The bytes that were read, or the buffer of a write.
    pub data: Vec<u8>,
}

/// What happens to the batch that is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The first checkpoint is not durable. Woken by its last completion.
    Opening,
    /// No batch is sealed. Woken by a record.
    Idle,
    /// Data must be flushed before the batch. Woken by [`Log::poll`].
    MustFlushData,
    /// Woken by the completion of the flush.
    FlushingData,
    /// The batch must be written. Woken by [`Log::poll`].
    MustWrite,
    /// Woken by the completion of the write.
    Writing,
    /// The batch must be flushed. Woken by [`Log::poll`].
    MustFlush,
    /// Woken by the completion of the flush.
    Flushing,
    /// A request failed: nothing is written any more.
    Failed,
}

impl Stage {
    /// The stage after a request of this one ended.
    fn after(self, is_ok: bool) -> Self {
        match self {
            _ if !is_ok => Self::Failed,
            Self::FlushingData => Self::MustWrite,
            Self::Writing => Self::MustFlush,
            Self::Flushing => Self::Idle,
            other => other,
        }
    }
}

/// The next part of a checkpoint to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Body { at: usize },
    FlushBody,
    Header,
    FlushHeader,
}

#[derive(Debug)]
struct Checkpoint {
    header: CheckpointHeader,
    body: Vec<u8>,
    step: Step,
}

/// The log of a volume.
#[derive(Debug)]
pub(crate) struct Log {
    layout: Layout,
    epoch: u64,
    /// Where the next batch begins in the area of the log.
    position: u64,
    pending: Vec<u8>,
    pending_has_data: bool,
    /// The number of the batch that is collected.
    next_batch: u64,
    durable: u64,
    stage: Stage,
    sealed: Vec<u8>,
    sealed_at: u64,
    checkpoint: Option<Checkpoint>,
    log_request: Option<RequestId>,
    checkpoint_request: Option<RequestId>,
    next_request: u64,
}

impl Log {
    /// The log after the checkpoint with the number `epoch`, whose body has all records up to `batch`.
    pub(crate) fn new(layout: Layout, epoch: u64, batch: u64, body: Vec<u8>) -> Self {
        let mut log = Self {
            layout,
            epoch,
            position: 0,
            pending: Vec::with_capacity(layout.batch_bytes_max()),
            pending_has_data: false,
            next_batch: batch + 1,
            durable: batch,
            stage: Stage::Opening,
            sealed: Vec::new(),
            sealed_at: 0,
            checkpoint: None,
            log_request: None,
            checkpoint_request: None,
            next_request: 0,
        };
        log.begin_checkpoint(epoch, batch, body);
        log
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The batch that the next record becomes part of.
    pub(crate) fn next_batch(&self) -> u64 {
        self.next_batch
    }

    /// The batch that contains every record so far.
    pub(crate) fn last_batch(&self) -> u64 {
        self.next_batch - u64::from(self.pending.is_empty())
    }

    /// The last durable batch.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Used bytes of the current area, and its size.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (self.position, self.layout.log_bytes)
    }

    /// Makes no further request.
    pub(crate) fn fail(&mut self) {
        self.stage = Stage::Failed;
        self.pending = Vec::new();
        self.sealed = Vec::new();
        self.checkpoint = None;
        (self.log_request, self.checkpoint_request) = (None, None);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.stage == Stage::Failed
    }

    /// Whether neither a record nor a request waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.stage == Stage::Idle && self.pending.is_empty() && self.checkpoint.is_none()
    }

    /// Whether records of this length fit now.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        let batch = self.pending.len() + length;
        let blocks = (BATCH_HEADER_BYTES + batch).next_multiple_of(BLOCK_BYTES as usize);
        batch <= self.layout.batch_bytes_max()
            && self.position + blocks as u64 <= self.layout.log_bytes
    }

    /// Adds a record. `has_data` says that it refers to data that must be durable before it.
    pub(crate) fn push(&mut self, record: &[u8], has_data: bool) {
        let length = u32::try_from(record.len()).expect("a record is bounded");
        length.put(&mut self.pending);
        self.pending.extend_from_slice(record);
        self.pending_has_data |= has_data;
    }

    /// Begins a checkpoint with a number, whose body contains all records of batches up to `batch`.
    fn begin_checkpoint(&mut self, epoch: u64, batch: u64, body: Vec<u8>) {
        assert!(
            body.len() as u64 <= self.layout.checkpoint_body_max(),
            "the account bounds the metadata"
        );
        self.checkpoint = Some(Checkpoint {
            header: CheckpointHeader::new(&self.layout, epoch, batch, &body),
            body,
            step: Step::Body { at: 0 },
        });
    }

    /// The next request, if any. `snapshot` appends the metadata with every record.
    pub(crate) fn poll(&mut self, snapshot: impl FnOnce(&mut Vec<u8>)) -> Option<DiskRequest> {
        if self.has_failed() {
            return None;
        }
        if self.stage == Stage::Idle {
            self.seal();
            if self.position > self.layout.log_bytes / 2 && self.checkpoint.is_none() {
                let mut body = Vec::new();
                snapshot(&mut body);
                self.begin_checkpoint(self.epoch + 1, self.next_batch - 1, body);
                self.epoch += 1;
                self.position = 0;
            }
        }
        self.log_request().or_else(|| self.checkpoint_request())
    }

    /// Seals the collected records as a batch.
    fn seal(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.sealed.clear();
        let (epoch, batch) = (self.epoch, self.next_batch);
        BatchHeader::encode(&self.layout, epoch, batch, &self.pending, &mut self.sealed);
        self.sealed_at = self.layout.log(epoch) + self.position;
        self.position += self.sealed.len() as u64;
        self.next_batch += 1;
        self.pending.clear();
        self.stage = match std::mem::take(&mut self.pending_has_data) {
            true => Stage::MustFlushData,
            false => Stage::MustWrite,
        };
    }

    fn request(&mut self, operation: Operation) -> DiskRequest {
        self.next_request += 1;
        DiskRequest {
            id: RequestId(self.next_request),
            operation,
        }
    }

    fn log_request(&mut self) -> Option<DiskRequest> {
        let (stage, operation) = match self.stage {
            Stage::MustFlushData => (Stage::FlushingData, Operation::Flush),
            Stage::MustWrite => {
                let data = std::mem::take(&mut self.sealed);
                let offset = self.sealed_at;
                (Stage::Writing, Operation::Write { offset, data })
            }
            Stage::MustFlush => (Stage::Flushing, Operation::Flush),
            _ => return None,
        };
        self.stage = stage;
        let request = self.request(operation);
        self.log_request = Some(request.id);
        Some(request)
    }

    fn checkpoint_request(&mut self) -> Option<DiskRequest> {
        let checkpoint = self.checkpoint.as_ref()?;
        if self.checkpoint_request.is_some() {
            return None;
        }
        let begin = self.layout.checkpoint(checkpoint.header.epoch);
        let operation = match checkpoint.step {
            Step::Body { at } => {
                let end = checkpoint.body.len().min(at + REQUEST_BYTES_MAX);
                let mut data = checkpoint.body[at..end].to_vec();
                data.resize(data.len().next_multiple_of(BLOCK_BYTES as usize), 0);
                let offset = begin + BLOCK_BYTES + at as u64;
                Operation::Write { offset, data }
            }
            Step::Header => Operation::Write {
                offset: begin,
                data: checkpoint.header.encode(&self.layout),
            },
            Step::FlushBody | Step::FlushHeader => Operation::Flush,
        };
        let request = self.request(operation);
        self.checkpoint_request = Some(request.id);
        Some(request)
    }

    /// Takes the end of a request. Unknown ones are ignored.
    pub(crate) fn complete(&mut self, completion: DiskCompletion) {
        let DiskCompletion { id, is_ok, data } = completion;
        if self.log_request == Some(id) {
            self.log_request = None;
            if self.stage == Stage::Writing {
                self.sealed = data;
            }
            let is_durable = self.stage == Stage::Flushing && is_ok;
            self.stage = self.stage.after(is_ok);
            if is_durable {
                self.durable = self.next_batch - 1;
            }
        } else if self.checkpoint_request == Some(id) {
            self.checkpoint_request = None;
            if !is_ok {
                self.stage = Stage::Failed;
            }
            self.advance_checkpoint();
        }
    }

    fn advance_checkpoint(&mut self) {
        let Some(checkpoint) = &mut self.checkpoint else {
            return;
        };
        checkpoint.step = match checkpoint.step {
            Step::Body { at } if at + REQUEST_BYTES_MAX < checkpoint.body.len() => Step::Body {
                at: at + REQUEST_BYTES_MAX,
            },
            Step::Body { .. } => Step::FlushBody,
            Step::FlushBody => Step::Header,
            Step::Header => Step::FlushHeader,
            Step::FlushHeader => {
                self.checkpoint = None;
                if self.stage == Stage::Opening {
                    self.stage = Stage::Idle;
                }
                return;
            }
        };
    }
}
