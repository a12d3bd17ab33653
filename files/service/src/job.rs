//! Requests in flight: the execution of a record, its data, and its reply until it is sent.

use std::net::{IpAddr, Ipv4Addr};

use files_server::Execution;
use files_spec::xdr::Placement;
use hugemem::Pool;

use crate::connections::ConnectionKey;
use crate::limits::{RECORD_KEPT_BYTES, REQUESTS_MAX};
use crate::payloads::{PayloadPart, Payloads};
use crate::transfer::{Piece, Transfer};

/// Bits of a device request's tag: the piece, the place of the job, its generation, and one that
/// only requests of volumes have.
const PIECE_BITS: u32 = 16;
const INDEX_BITS: u32 = 16;
const GENERATION_BITS: u32 = block::CLIENT_TAG_BITS - PIECE_BITS - INDEX_BITS - 1;
/// The bit of requests of volumes ([`crate::volume_requests`]).
pub(crate) const VOLUME_TAG: u64 = 1 << (block::CLIENT_TAG_BITS - 1);

/// Identifies a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobKey {
    index: u16,
    generation: u32,
}

impl JobKey {
    /// The tag of a request for a piece.
    pub(crate) fn tag(self, piece: usize) -> u64 {
        let generation = u64::from(self.generation) << (PIECE_BITS + INDEX_BITS);
        generation | u64::from(self.index) << PIECE_BITS | piece as u64
    }

    /// The job and piece of a tag.
    pub(crate) fn of_tag(tag: u64) -> (Self, usize) {
        let piece = tag & ((1 << PIECE_BITS) - 1);
        let key = Self {
            index: (tag >> PIECE_BITS) as u16,
            generation: (tag >> (PIECE_BITS + INDEX_BITS)) as u32 & ((1 << GENERATION_BITS) - 1),
        };
        (key, piece as usize)
    }
}

/// A request in flight.
#[derive(Debug)]
pub struct Job {
    /// The connection that it came over.
    pub connection: ConnectionKey,
    /// The address of the client.
    pub(crate) client: IpAddr,
    /// Its execution, with the reply.
    pub execution: Execution,
    /// Its record.
    pub record: Vec<u8>,
    /// Where in the record data are missing that its client has in its memory.
    pub placement: Option<Placement>,
    /// A number of its transport.
    pub transport_slot: u32,
    /// The data that move now.
    pub(crate) transfer: Option<Transfer>,
    /// The data of the reply's holes.
    pub(crate) payloads: Payloads,
    /// Bytes of memory that its reads hold.
    pub held_bytes: usize,
    /// Whether its movement has memory.
    pub(crate) is_reserved: bool,
    /// Memory of transfers that have ended.
    pub(crate) unused_pieces: Vec<Vec<Piece>>,
}

impl Job {
    fn new() -> Self {
        Self {
            connection: ConnectionKey::NONE,
            client: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            execution: Execution::new(),
            record: Vec::new(),
            placement: None,
            transport_slot: 0,
            transfer: None,
            payloads: Payloads::default(),
            held_bytes: 0,
            is_reserved: false,
            unused_pieces: Vec::new(),
        }
    }

    /// Copies the data that devices lend, and counts the bytes. Returns false if memory is missing.
    pub fn copy_borrowed(&mut self, pool: &Pool, copied: &mut u64) -> bool {
        self.payloads.copy_borrowed(pool, copied)
    }

    /// Frees the data of a transfer, and keeps its memory for the next one.
    pub(crate) fn drop_transfer(&mut self, transfer: Transfer) {
        self.unused_pieces.push(transfer.into_unused());
    }

    /// The data of a hole of the reply.
    #[inline]
    #[must_use]
    pub fn payload(&self, hole: usize) -> &[PayloadPart] {
        self.payloads.of(hole)
    }

    /// Takes the data of a hole of the reply, part by part.
    pub fn take_payload(&mut self, hole: usize) -> impl Iterator<Item = PayloadPart> {
        self.payloads.take(hole)
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    job: Option<Box<Job>>,
}

/// Requests of one connection that have ended.
#[derive(Debug)]
pub struct Ended {
    pub(crate) connection: ConnectionKey,
    pub(crate) requests: usize,
    /// Bytes of memory that their reads held.
    pub(crate) held_bytes: usize,
}

impl Ended {
    #[inline]
    pub(crate) fn add(&mut self, job: &Job) {
        self.connection = job.connection;
        self.requests += 1;
        self.held_bytes += job.held_bytes;
    }
}

impl Default for Ended {
    fn default() -> Self {
        Self {
            connection: ConnectionKey::NONE,
            requests: 0,
            held_bytes: 0,
        }
    }
}

/// The requests in flight. A job is taken out while it is worked on.
#[derive(Debug, Default)]
pub struct Jobs {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Jobs that have ended, with their memory.
    #[expect(
        clippy::vec_box,
        reason = "jobs move between the tables by their addresses"
    )]
    unused: Vec<Box<Job>>,
    /// Length of all records in bytes.
    pub(crate) record_bytes: usize,
}

impl Jobs {
    /// Number of requests in flight.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// An unused job, to be given to [`Self::admit`]; `None` if the limit is reached.
    #[inline]
    pub fn unused(&mut self) -> Option<Box<Job>> {
        if self.len() >= REQUESTS_MAX {
            return None;
        }
        Some(self.unused.pop().unwrap_or_else(|| Box::new(Job::new())))
    }

    /// Returns a job that was not admitted.
    #[inline]
    pub fn give_back(&mut self, job: Box<Job>) {
        self.unused.push(job);
    }

    /// Gives a job its key.
    #[inline]
    pub(crate) fn admit(&mut self, job: &Job) -> JobKey {
        self.record_bytes += job.record.len();
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                job: None,
            });
            // The number of jobs is bounded.
            (self.slots.len() - 1) as u16
        });
        JobKey {
            index,
            generation: self.slots[usize::from(index)].generation,
        }
    }

    /// Keeps the record of a job, which is not where it was received any more.
    pub(crate) fn keep_record(&mut self, job: &mut Job, record: &[u8]) {
        job.record.extend_from_slice(record);
        self.record_bytes += record.len();
    }

    /// A job; `None` for a stale key.
    #[inline]
    #[must_use]
    pub fn get(&self, key: JobKey) -> Option<&Job> {
        let slot = self.slots.get(usize::from(key.index))?;
        slot.job
            .as_deref()
            .filter(|_| slot.generation == key.generation)
    }

    /// A job; `None` for a stale key.
    #[inline]
    pub fn get_mut(&mut self, key: JobKey) -> Option<&mut Job> {
        let slot = self.slots.get_mut(usize::from(key.index))?;
        match slot.generation == key.generation {
            true => slot.job.as_deref_mut(),
            false => None,
        }
    }

    /// Takes a job to work on it; `None` for a stale key.
    #[inline]
    pub fn take(&mut self, key: JobKey) -> Option<Box<Job>> {
        let slot = self.slots.get_mut(usize::from(key.index))?;
        match slot.generation == key.generation {
            true => slot.job.take(),
            false => None,
        }
    }

    /// Puts a job back.
    #[inline]
    pub fn put(&mut self, key: JobKey, job: Box<Job>) {
        self.slots[usize::from(key.index)].job = Some(job);
    }

    /// Ends the job of a reply that is sent.
    #[inline]
    pub fn end_sent(&mut self, key: JobKey, ended: &mut Ended) {
        if let Some(job) = self.take(key) {
            ended.add(&job);
            self.end(key, job);
        }
    }

    /// Ends a job that was taken.
    #[inline]
    pub(crate) fn end(&mut self, key: JobKey, mut job: Box<Job>) {
        self.record_bytes -= job.record.len();
        if let Some(transfer) = job.transfer.take() {
            job.drop_transfer(transfer);
        }
        job.payloads.truncate(0);
        job.held_bytes = 0;
        job.placement = None;
        job.is_reserved = false;
        match job.record.capacity() > RECORD_KEPT_BYTES {
            true => job.record = Vec::new(),
            false => job.record.clear(),
        }
        let slot = &mut self.slots[usize::from(key.index)];
        slot.generation = (slot.generation + 1) & ((1 << GENERATION_BITS) - 1);
        self.free.push(key.index);
        self.unused.push(job);
    }

    /// The keys of the jobs that are not taken.
    pub(crate) fn keys(&self) -> Vec<JobKey> {
        let slots = self.slots.iter().enumerate();
        let used = slots.filter(|(_, slot)| slot.job.is_some());
        let key = |(index, slot): (usize, &Slot)| JobKey {
            index: index as u16,
            generation: slot.generation,
        };
        used.map(key).collect()
    }
}
