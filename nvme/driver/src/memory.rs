//! Memory shared with a drive while it is open: queues, PRP lists, shadow doorbells.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugemem::{Arena, DmaBuffer};

use crate::data_pages::DATA_PAGES_BYTES;
use crate::error::DriveError;
use crate::identity::{Limits, PART_BYTES_MAX_PRP};

/// Bytes of a memory page (CC.MPS = 0).
pub(crate) const PAGE_BYTES: usize = 4096;

/// Bytes of a submission queue entry.
pub(crate) const SQE_BYTES: usize = size_of::<nvme_spec::Sqe>();
/// Bytes of a completion queue entry.
pub(crate) const CQE_BYTES: usize = size_of::<nvme_spec::Cqe>();

/// Maximum bytes of one slot's PRP list.
const LIST_BYTES_MAX: usize = PART_BYTES_MAX_PRP as usize / PAGE_BYTES * size_of::<u64>();
/// Maximum bytes of one allocation for lists, so that a small arena can provide it.
const LIST_PIECE_BYTES: usize = 64 << 10;

/// The memory of one queue pair.
pub(crate) struct PairMemory {
    /// The submission queue. Unused if the queue is in the controller memory buffer.
    pub(crate) sq: DmaBuffer,
    pub(crate) cq: DmaBuffer,
    /// Memory per slot, for its PRP list or the range of a Deallocate.
    lists: Box<[DmaBuffer]>,
    lists_per_piece: usize,
    list_bytes: usize,
}

impl PairMemory {
    fn new(arena: &Arc<Arena>, limits: &Limits) -> Result<Self, DriveError> {
        let entries = usize::from(limits.slots) + 1;
        let piece = LIST_PIECE_BYTES.min(arena.max_transfer());
        let lists_per_piece = piece / limits.list_bytes;
        let pieces = usize::from(limits.slots).div_ceil(lists_per_piece);
        let slots = usize::from(limits.slots).min(lists_per_piece);
        let lists = (0..pieces).map(|_| take(arena, slots * limits.list_bytes));
        Ok(Self {
            sq: take(arena, entries * SQE_BYTES)?,
            cq: take(arena, entries * CQE_BYTES)?,
            lists: lists.collect::<Result<_, _>>()?,
            lists_per_piece,
            list_bytes: limits.list_bytes,
        })
    }

    /// The memory of a slot: its buffer and the offset in it.
    pub(crate) fn list(&self, slot: u16) -> (&DmaBuffer, usize) {
        let slot = usize::from(slot);
        let piece = &self.lists[slot / self.lists_per_piece];
        (piece, slot % self.lists_per_piece * self.list_bytes)
    }

    /// Size of a slot's memory in bytes.
    pub(crate) fn list_bytes(&self) -> usize {
        self.list_bytes
    }

    /// Clears the queues, as a controller expects new ones (Base 2.1 §4.2.4: phase tags of 0).
    pub(crate) fn clear_queues(&self) {
        self.sq.zero();
        self.cq.zero();
    }
}

/// The admin queues and the data pages of admin commands.
pub(crate) struct AdminMemory {
    buffer: DmaBuffer,
}

/// Entries of each admin queue: within every CAP.MQES (Base 2.1 §3.1.4.8: at least 2), and enough
/// for events, one step of the start sequence, and aborts of all reactors one after another.
pub(crate) const ADMIN_ENTRIES: u16 = 32;

/// A data page of admin commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminPage {
    /// For the commands of the start sequence, which run one after another.
    Step,
    /// SMART / Health.
    Health,
    /// Error Information.
    Errors,
    /// Changed Namespace List.
    Changes,
    /// Host Behavior Support, which the drive reads.
    Behavior,
}

impl AdminPage {
    fn offset(self) -> usize {
        let page = match self {
            Self::Step => 2,
            Self::Health => 3,
            Self::Errors => 4,
            Self::Changes => 5,
            Self::Behavior => 6,
        };
        page * PAGE_BYTES
    }
}

const ADMIN_BYTES: usize = 7 * PAGE_BYTES;

impl AdminMemory {
    pub(crate) fn new(arena: &Arc<Arena>) -> Result<Self, DriveError> {
        take(arena, ADMIN_BYTES).map(|buffer| Self { buffer })
    }

    /// The submission queue is at offset 0, the completion queue one page later.
    pub(crate) fn buffer(&self) -> &DmaBuffer {
        &self.buffer
    }

    pub(crate) const CQ_OFFSET: usize = PAGE_BYTES;

    /// Offset of a page in the arena's region.
    pub(crate) fn page_offset(&self, page: AdminPage) -> usize {
        self.buffer.region_offset() + page.offset()
    }

    pub(crate) fn clear(&self, page: AdminPage) {
        for word in 0..PAGE_BYTES / 8 {
            self.buffer
                .store_u64(page.offset() + word * 8, 0, Ordering::Relaxed);
        }
    }

    /// Writes the beginning of a page that the device reads; the rest of it is zero.
    pub(crate) fn write(&self, page: AdminPage, words: &[u64]) {
        self.clear(page);
        for (index, word) in words.iter().enumerate() {
            let offset = page.offset() + index * 8;
            self.buffer.store_u64(offset, *word, Ordering::Relaxed);
        }
    }

    /// Copies a page, which the device may still write.
    pub(crate) fn read(&self, page: AdminPage) -> Box<[u8; PAGE_BYTES]> {
        let mut bytes = Box::new([0; PAGE_BYTES]);
        self.buffer.read(page.offset(), &mut bytes[..]);
        bytes
    }
}

/// All memory that a drive accesses, other than leases.
pub(crate) struct DriveMemory {
    pub(crate) pairs: Box<[Arc<PairMemory>]>,
    /// Shadow doorbells and EventIdx: one page each (Base 2.1 §5.2.5).
    pub(crate) shadow: Option<Arc<DmaBuffer>>,
    /// Zeroes to write, for a drive without Write Zeroes.
    pub(crate) zeroes: Option<Arc<DmaBuffer>>,
    /// PRP entries of the drive's own memory for data, if it has such memory.
    pub(crate) data_pages: Option<Arc<DmaBuffer>>,
}

/// Maximum bytes of one write of zeroes.
pub(crate) const ZEROES_BYTES_MAX: usize = 64 << 10;

/// Sizes in bytes of the contiguous pieces of the arena that a drive allocates at most: queues and
/// PRP lists for each of `reactors`, admin pages, shadow doorbells, zeroes, entries of its own memory.
#[must_use]
pub fn arena_pieces(reactors: usize, queue_depth: u16) -> Vec<usize> {
    let slots = usize::from(queue_depth);
    let entries = slots + 1;
    let lists = (slots * LIST_BYTES_MAX).div_ceil(LIST_PIECE_BYTES);
    let mut pieces = vec![
        ADMIN_BYTES,
        2 * PAGE_BYTES,
        ZEROES_BYTES_MAX,
        DATA_PAGES_BYTES,
    ];
    for _ in 0..reactors {
        pieces.extend([entries * SQE_BYTES, entries * CQE_BYTES]);
        pieces.extend(std::iter::repeat_n(LIST_PIECE_BYTES, lists));
    }
    pieces
}

impl DriveMemory {
    /// Allocates the memory for a drive with these limits.
    pub(crate) fn new(
        arena: &Arc<Arena>,
        reactors: usize,
        limits: &Limits,
        has_data_memory: bool,
    ) -> Result<Self, DriveError> {
        let pairs = (0..reactors).map(|_| PairMemory::new(arena, limits).map(Arc::new));
        let zeroes = limits.zeroes_bytes();
        Ok(Self {
            pairs: pairs.collect::<Result<_, _>>()?,
            shadow: limits
                .shadow
                .then(|| take(arena, 2 * PAGE_BYTES).map(Arc::new))
                .transpose()?,
            zeroes: zeroes
                .map(|bytes| take(arena, bytes).map(Arc::new))
                .transpose()?,
            // Lists are written for each command without it.
            data_pages: (has_data_memory && !limits.sgl)
                .then(|| take(arena, DATA_PAGES_BYTES).ok().map(Arc::new))
                .flatten(),
        })
    }

    /// Clears all queues and shadow doorbells, for a controller that is started again.
    pub(crate) fn clear(&self) {
        for pair in &self.pairs {
            pair.clear_queues();
        }
        if let Some(shadow) = &self.shadow {
            shadow.zero();
        }
    }
}

fn take(arena: &Arc<Arena>, bytes: usize) -> Result<DmaBuffer, DriveError> {
    if bytes > arena.max_transfer() {
        return Err(DriveError::NoMemory { bytes });
    }
    arena
        .dma_buffer(bytes)
        .ok_or(DriveError::NoMemory { bytes })
}
