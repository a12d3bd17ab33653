//! Copies in flight on one path.

use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{
    CompletionBatch, Device, DeviceError, DeviceQueue, Operation, QueueOptions, Refusal, Request,
    SharedQueues,
};
use hugemem::{Arena, Data, DeviceLease, DeviceMemory, Lease, Pool};

use super::{DeviceMemoryError, PIECE_BYTES};
use crate::drive::{DriveError, OpenDrive, STALL_LIMIT};

/// The way of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    Host,
    DriveMemory,
}

/// The memory of a copy in flight.
enum Memory {
    /// The device has the lease while a request is in flight.
    Arena(Option<Lease>),
    Drive(DeviceLease),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Read,
    Write,
}

struct Copy {
    piece: u64,
    step: Step,
    memory: Memory,
}

/// Both queues, and the copies in flight.
pub(super) struct Copies {
    source: Box<dyn DeviceQueue>,
    destination: Box<dyn DeviceQueue>,
    pool: Pool,
    memory: Arc<DeviceMemory>,
    /// Blocks of a piece.
    blocks: u32,
    /// Pieces of a namespace.
    pieces: u64,
    /// Number of pieces that were begun.
    begun: u64,
    /// Number of pieces that were written.
    written: u64,
    in_flight: Vec<Option<Copy>>,
}

impl Copies {
    pub(super) fn new(
        arena: &Arc<Arena>,
        (source, destination): (&dyn Device, &dyn Device),
        pieces: u64,
        depth: usize,
    ) -> Result<Self, DeviceMemoryError> {
        let pool = arena.pool(0);
        let shared = SharedQueues::default();
        let open = |device: &dyn Device| {
            let mut options = QueueOptions::new(0, depth, pool.clone());
            options.shared = shared.clone();
            device.open_queue(options).map_err(DriveError::Queue)
        };
        let source_queue = open(source)?;
        let memory = source_queue.device_memory();
        let memory = memory.ok_or(copy_failed("read", DeviceError::Interrupted))?;
        Ok(Self {
            destination: open(destination)?,
            source: source_queue,
            memory,
            blocks: PIECE_BYTES as u32 / source.geometry().block_size,
            pool,
            pieces,
            begun: 0,
            written: 0,
            in_flight: (0..depth).map(|_| None).collect(),
        })
    }

    /// Copies for the given time. Nothing is in flight before and afterwards. Returns bytes per second.
    pub(super) fn run(
        &mut self,
        path: Path,
        limit: Duration,
        taken: &mut OpenDrive,
    ) -> Result<f64, DeviceMemoryError> {
        let begun = Instant::now();
        let before = self.written;
        let mut last_completed_at = begun;
        loop {
            if begun.elapsed() < limit {
                self.begin(path)?;
            } else if self.in_flight.iter().all(Option::is_none) {
                break;
            }
            self.source.flush();
            self.destination.flush();
            taken.tend();
            if self.collect()? > 0 {
                last_completed_at = Instant::now();
            } else if last_completed_at.elapsed() > STALL_LIMIT {
                return Err(DriveError::Hangs(STALL_LIMIT).into());
            }
        }
        let bytes = (self.written - before) * PIECE_BYTES as u64;
        Ok(bytes as f64 / begun.elapsed().as_secs_f64())
    }

    /// Begins as many copies as may be in flight.
    fn begin(&mut self, path: Path) -> Result<(), DeviceMemoryError> {
        for place in 0..self.in_flight.len() {
            if self.in_flight[place].is_some() {
                continue;
            }
            let memory = match path {
                Path::Host => (self.pool.take(PIECE_BYTES)).map(|it| Memory::Arena(Some(it))),
                Path::DriveMemory => self.memory.take().map(Memory::Drive),
            };
            let Some(memory) = memory else {
                return Ok(());
            };
            let copy = Copy {
                piece: self.begun % self.pieces,
                step: Step::Read,
                memory,
            };
            self.begun += 1;
            self.submit(place, copy)?;
        }
        Ok(())
    }

    fn submit(&mut self, place: usize, mut copy: Copy) -> Result<(), DeviceMemoryError> {
        let (queue, operation, verb) = match copy.step {
            Step::Read => (&mut self.source, Operation::Read, "read"),
            Step::Write => {
                let write = Operation::Write { fua: false };
                (&mut self.destination, write, "write")
            }
        };
        let mut request = Request {
            tag: place as u64,
            operation,
            lba: copy.piece * u64::from(self.blocks),
            blocks: self.blocks,
            data: None,
        };
        let submitted = match &mut copy.memory {
            Memory::Arena(lease) => {
                request.data = lease.take();
                queue.submit(request)
            }
            Memory::Drive(lease) => queue.submit_in_device(request, lease, 0),
        };
        match submitted {
            Ok(()) => {
                self.in_flight[place] = Some(copy);
                Ok(())
            }
            // There are no more copies than commands.
            Err(Refusal::Later(_)) => Err(copy_failed(verb, DeviceError::Internal)),
            Err(Refusal::Never(_, error)) => Err(copy_failed(verb, error)),
        }
    }

    /// Continues the copies whose requests have completed.
    fn collect(&mut self) -> Result<usize, DeviceMemoryError> {
        let mut batch = CompletionBatch::new();
        let mut ended = self.source.poll(&mut batch);
        let mut written = CompletionBatch::new();
        ended += self.destination.poll(&mut written);
        for completion in batch.into_iter().chain(written) {
            let place = completion.tag as usize;
            let Some(mut copy) = self.in_flight.get_mut(place).and_then(Option::take) else {
                return Err(copy_failed("completion", DeviceError::Internal));
            };
            match (&mut copy.memory, completion.data) {
                (Memory::Arena(lease), Some(Data::Lease(data))) => *lease = Some(data),
                (Memory::Drive(lease), None) => lease.complete(),
                _ => return Err(copy_failed("completion", DeviceError::Internal)),
            }
            match (copy.step, completion.result) {
                (Step::Read, Ok(())) => {
                    copy.step = Step::Write;
                    self.submit(place, copy)?;
                }
                (Step::Write, Ok(())) => self.written += 1,
                (Step::Read, Err(error)) => return Err(copy_failed("read", error)),
                (Step::Write, Err(error)) => return Err(copy_failed("write", error)),
            }
        }
        Ok(ended)
    }

    /// Reads all that was copied, and compares it with its source. Returns the number of pieces.
    pub(super) fn compare(&mut self, taken: &mut OpenDrive) -> Result<u64, DeviceMemoryError> {
        let pieces = self.pieces.min(self.begun);
        let mut differing = 0;
        for piece in 0..pieces {
            let source = self.read(Step::Read, piece, taken)?;
            let copy = self.read(Step::Write, piece, taken)?;
            differing += u64::from(source[..] != copy[..]);
        }
        match differing {
            0 => Ok(pieces),
            _ => Err(DeviceMemoryError::Differs(differing, pieces)),
        }
    }

    /// Reads a piece of the namespace that a step accesses.
    fn read(
        &mut self,
        step: Step,
        piece: u64,
        taken: &mut OpenDrive,
    ) -> Result<Lease, DeviceMemoryError> {
        let lease = self.pool.take(PIECE_BYTES);
        let request = Request {
            tag: 0,
            operation: Operation::Read,
            lba: piece * u64::from(self.blocks),
            blocks: self.blocks,
            data: Some(lease.ok_or(copy_failed("read", DeviceError::Interrupted))?),
        };
        let queue = match step {
            Step::Read => &mut self.source,
            Step::Write => &mut self.destination,
        };
        match queue.submit(request) {
            Ok(()) => {}
            Err(Refusal::Later(_)) => return Err(copy_failed("read", DeviceError::Internal)),
            Err(Refusal::Never(_, error)) => return Err(copy_failed("read", error)),
        }
        let begun = Instant::now();
        let mut batch = CompletionBatch::new();
        queue.flush();
        while queue.poll(&mut batch) == 0 {
            taken.tend();
            if begun.elapsed() > STALL_LIMIT {
                return Err(DriveError::Hangs(STALL_LIMIT).into());
            }
        }
        match batch.pop().map(|it| (it.result, it.data)) {
            Some((Ok(()), Some(Data::Lease(lease)))) => Ok(lease),
            Some((Err(error), _)) => Err(copy_failed("read", error)),
            _ => Err(copy_failed("read", DeviceError::Internal)),
        }
    }
}

fn copy_failed(what: &'static str, error: DeviceError) -> DeviceMemoryError {
    DeviceMemoryError::Copy(what, error)
}
