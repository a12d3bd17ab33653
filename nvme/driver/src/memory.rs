//! The memory that a drive shares with us for as long as it is open: queues, lists, shadow
//! doorbells.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugemem::{Arena, DmaBuffer};

use crate::error::DriveError;
use crate::identity::{Limits, PART_BYTES_MAX_PRP};

/// Bytes of a memory page, as CC.MPS = 0 says.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Bytes of a submission queue entry.
pub(crate) const SQE_BYTES: usize = size_of::<nvme_spec::Sqe>();
/// Bytes of a completion queue entry.
pub(crate) const CQE_BYTES: usize = size_of::<nvme_spec::Cqe>();

/// The list of one slot at most.
const LIST_BYTES_MAX: usize = PART_BYTES_MAX_PRP as usize / PAGE_BYTES * size_of::<u64>();
/// Lists are taken in pieces of this size at most, so that a small arena has them.
const LIST_PIECE_BYTES: usize = 64 << 10;

/// One queue pair's memory.
pub(crate) struct PairMemory {
    /// The submission queue, used unless it lies on the drive.
    pub(crate) sq: DmaBuffer,
    pub(crate) cq: DmaBuffer,
    /// A piece of memory per slot, for its PRP list or its range to deallocate.
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

    /// The piece of memory of a slot: its buffer and the offset in it.
    pub(crate) fn list(&self, slot: u16) -> (&DmaBuffer, usize) {
        let slot = usize::from(slot);
        let piece = &self.lists[slot / self.lists_per_piece];
        (piece, slot % self.lists_per_piece * self.list_bytes)
    }

    /// Makes the queues as a controller expects new ones (Base 2.1 §4.2.4: phase tags of 0).
    pub(crate) fn clear_queues(&self) {
        self.sq.zero();
        self.cq.zero();
    }
}

/// The admin queues and the pages that admin commands read into.
pub(crate) struct AdminMemory {
    buffer: DmaBuffer,
}

/// Entries of the admin queues: within every CAP.MQES (Base 2.1 §3.1.4.8: at least 2), and enough
/// for events, one step and one abort of every reactor in turn.
pub(crate) const ADMIN_ENTRIES: u16 = 32;

/// A page that an admin command reads into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminPage {
    /// For the commands of the start, which run one after another.
    Step,
    /// SMART / Health.
    Health,
    /// Error Information.
    Errors,
    /// Changed Namespace List.
    Changes,
}

impl AdminPage {
    fn offset(self) -> usize {
        let page = match self {
            Self::Step => 2,
            Self::Health => 3,
            Self::Errors => 4,
            Self::Changes => 5,
        };
        page * PAGE_BYTES
    }
}

const ADMIN_BYTES: usize = 6 * PAGE_BYTES;

impl AdminMemory {
    pub(crate) fn new(arena: &Arc<Arena>) -> Result<Self, DriveError> {
        take(arena, ADMIN_BYTES).map(|buffer| Self { buffer })
    }

    /// The submission queue begins here, the completion queue one page further.
    pub(crate) fn buffer(&self) -> &DmaBuffer {
        &self.buffer
    }

    pub(crate) const CQ_OFFSET: usize = PAGE_BYTES;

    /// Where in the region a page lies.
    pub(crate) fn page_offset(&self, page: AdminPage) -> usize {
        self.buffer.region_offset() + page.offset()
    }

    pub(crate) fn clear(&self, page: AdminPage) {
        for word in 0..PAGE_BYTES / 8 {
            self.buffer
                .store_u64(page.offset() + word * 8, 0, Ordering::Relaxed);
        }
    }

    /// Copies a page out: the device has written it, and may go on writing it.
    pub(crate) fn read(&self, page: AdminPage) -> Box<[u8; PAGE_BYTES]> {
        let mut bytes = Box::new([0; PAGE_BYTES]);
        self.buffer.read(page.offset(), &mut bytes[..]);
        bytes
    }
}

/// All that a drive reads and writes of its own accord.
pub(crate) struct DriveMemory {
    pub(crate) pairs: Box<[Arc<PairMemory>]>,
    /// Shadow doorbells, then EventIdx: one page each (Base 2.1 §5.2.5).
    pub(crate) shadow: Option<Arc<DmaBuffer>>,
    /// Zeroes to write, for a drive that has no Write Zeroes.
    pub(crate) zeroes: Option<Arc<DmaBuffer>>,
}

/// Zeroes that one write takes, bytes.
pub(crate) const ZEROES_BYTES_MAX: usize = 64 << 10;

/// Bytes of each piece of the arena that a drive takes for itself, whatever the drive offers: queues
/// and lists of pages for each of `reactors`, admin pages, shadow doorbells, zeroes.
#[must_use]
pub fn arena_pieces(reactors: usize, queue_depth: u16) -> Vec<usize> {
    let slots = usize::from(queue_depth);
    let entries = slots + 1;
    let lists = (slots * LIST_BYTES_MAX).div_ceil(LIST_PIECE_BYTES);
    let mut pieces = vec![ADMIN_BYTES, 2 * PAGE_BYTES, ZEROES_BYTES_MAX];
    for _ in 0..reactors {
        pieces.extend([entries * SQE_BYTES, entries * CQE_BYTES]);
        pieces.extend(std::iter::repeat_n(LIST_PIECE_BYTES, lists));
    }
    pieces
}

impl DriveMemory {
    /// Takes what a drive of these limits needs.
    pub(crate) fn new(
        arena: &Arc<Arena>,
        reactors: usize,
        limits: &Limits,
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
        })
    }

    /// Makes everything as new, for a controller that begins anew.
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
