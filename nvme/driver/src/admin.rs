//! The admin queue pair: commands in flight, each with a purpose and a deadline. Owned by the
//! drive's owner alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugemem::DmaBuffer;
use nvme_spec::command::AdminOpcode;
use nvme_spec::{Cqe, Sqe};
use reactors::Nanos;
use zerocopy::transmute;

use crate::backing::DeviceBacking;
use crate::doorbell::Doorbell;
use crate::drive_access::doorbells;
use crate::error::DriveError;
use crate::memory::{ADMIN_ENTRIES, AdminMemory, AdminPage, CQE_BYTES, SQE_BYTES};
use nvme_spec::registers::Cap;

/// The purpose of an admin command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A step of the start sequence.
    Step,
    /// An Asynchronous Event Request, which has no deadline.
    Event,
    /// Abort of an I/O command.
    Abort,
    /// Read of the SMART / Health Information log page.
    Health,
    /// Read of the Error Information log page.
    Errors,
    /// Read of the changed namespace list.
    Changes,
    /// Identify of a namespace that the changed namespace list names.
    Recheck {
        /// The namespace.
        nsid: u32,
    },
}

/// A command in flight.
#[derive(Clone, Copy)]
struct Pending {
    purpose: Purpose,
    opcode: AdminOpcode,
    deadline: Option<Nanos>,
}

/// One slot of the table of commands.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Identifier of the current or last command: the slot's index in the low byte.
    cid: u16,
    pending: Option<Pending>,
}

/// Maximum number of commands in flight: one queue entry stays free.
const SLOTS: usize = ADMIN_ENTRIES as usize - 1;
/// Added to an identifier for each use of its slot.
const GENERATION: u16 = 1 << 8;
const _: () = assert!(SLOTS < GENERATION as usize);

/// An event that polling found.
#[derive(Debug)]
pub(crate) enum AdminEvent {
    /// A command completed.
    Done(Purpose, AdminOpcode, Cqe),
    /// A completion with an identifier that no command in flight has.
    Unknown(u16),
}

/// The admin queue pair of an enabled controller.
pub(crate) struct AdminQueue {
    memory: Arc<AdminMemory>,
    backing: Arc<dyn DeviceBacking>,
    dma_base: u64,
    sq_doorbell: Doorbell,
    cq_doorbell: Doorbell,
    /// Shadow doorbells, once they are configured in the controller.
    shadow: Option<Arc<DmaBuffer>>,
    slots: Box<[Slot]>,
    tail: u16,
    head: u16,
    phase: bool,
}

impl AdminQueue {
    /// Prepares the queues of a controller that is about to be enabled: clears their memory.
    pub(crate) fn new(memory: Arc<AdminMemory>, backing: Arc<dyn DeviceBacking>, cap: Cap) -> Self {
        for word in 0..2 * AdminMemory::CQ_OFFSET / 8 {
            memory.buffer().store_u64(word * 8, 0, Ordering::Relaxed);
        }
        let (sq, cq) = doorbells(cap, 0);
        let mut slots = vec![Slot::default(); SLOTS].into_boxed_slice();
        for (index, slot) in slots.iter_mut().enumerate() {
            slot.cid = index as u16;
        }
        Self {
            dma_base: backing.dma_address(0),
            memory,
            backing,
            sq_doorbell: Doorbell::at(sq),
            cq_doorbell: Doorbell::at(cq),
            shadow: None,
            slots,
            tail: 0,
            head: 0,
            phase: true,
        }
    }

    /// Addresses for ASQ and ACQ.
    pub(crate) fn addresses(&self) -> (u64, u64) {
        let base = self.dma_base + self.memory.buffer().region_offset() as u64;
        (base, base + AdminMemory::CQ_OFFSET as u64)
    }

    pub(crate) fn memory(&self) -> &AdminMemory {
        &self.memory
    }

    pub(crate) fn dma_base(&self) -> u64 {
        self.dma_base
    }

    /// Updates the shadow doorbells from now on, because the controller may read them.
    pub(crate) fn follow_shadow(&mut self, shadow: Arc<DmaBuffer>) {
        self.sq_doorbell.follow(&shadow, self.tail);
        self.cq_doorbell.follow(&shadow, self.head);
        self.shadow = Some(shadow);
    }

    /// Whether a command for `purpose` is in flight.
    pub(crate) fn has(&self, purpose: Purpose) -> bool {
        self.pending().any(|pending| pending.purpose == purpose)
    }

    /// Commands in flight for `purpose`.
    pub(crate) fn count(&self, purpose: Purpose) -> usize {
        self.pending()
            .filter(|pending| pending.purpose == purpose)
            .count()
    }

    fn pending(&self) -> impl Iterator<Item = &Pending> {
        self.slots.iter().filter_map(|slot| slot.pending.as_ref())
    }

    /// Submits a command. If it returns data, the data goes to `page`. Returns false if the queue
    /// is full.
    pub(crate) fn submit(
        &mut self,
        sqe: Sqe,
        page: Option<AdminPage>,
        purpose: Purpose,
        deadline: Option<Nanos>,
    ) -> bool {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.pending.is_none()) else {
            return false;
        };
        slot.cid = slot.cid.wrapping_add(GENERATION);
        slot.pending = Some(Pending {
            purpose,
            opcode: sqe.admin_opcode(),
            deadline,
        });
        let mut sqe = sqe.with_cid(slot.cid);
        if let Some(page) = page {
            self.memory.clear(page);
            let address = self.dma_base + self.memory.page_offset(page) as u64;
            sqe = sqe.with_prp(address, 0);
        }
        let words: [u64; SQE_BYTES / 8] = transmute!(sqe);
        let offset = usize::from(self.tail) * SQE_BYTES;
        for (index, word) in words.into_iter().enumerate() {
            self.memory
                .buffer()
                .store_u64(offset + index * 8, word, Ordering::Relaxed);
        }
        let old = self.tail;
        self.tail = next(self.tail);
        if let Some(shadow) = &self.shadow {
            self.sq_doorbell.follow(shadow, self.tail);
        }
        self.sq_doorbell.ring(&*self.backing, None, old, self.tail);
        true
    }

    /// Whether a completion is ready.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        self.entry_word().is_some()
    }

    /// The second half of the next completion, which contains the phase tag, if it has been posted.
    #[inline]
    fn entry_word(&self) -> Option<u64> {
        let offset = AdminMemory::CQ_OFFSET + usize::from(self.head) * CQE_BYTES + 8;
        // Acquire: the command's data is in memory before its completion is.
        let word = self.memory.buffer().load_u64(offset, Ordering::Acquire);
        let cqe: Cqe = transmute!([0, word]);
        (cqe.status.phase() == self.phase).then_some(word)
    }

    /// Takes the next completion.
    pub(crate) fn poll(&mut self) -> Option<AdminEvent> {
        let second = self.entry_word()?;
        let offset = AdminMemory::CQ_OFFSET + usize::from(self.head) * CQE_BYTES;
        let first = self.memory.buffer().load_u64(offset, Ordering::Relaxed);
        let cqe: Cqe = transmute!([first, second]);
        let old = self.head;
        self.head = next(self.head);
        self.phase ^= self.head == 0;
        if let Some(shadow) = &self.shadow {
            self.cq_doorbell.follow(shadow, self.head);
        }
        self.cq_doorbell.ring(&*self.backing, None, old, self.head);
        let cid = cqe.cid.get();
        let slot = self.slots.get_mut(usize::from(cid % GENERATION));
        let pending = slot
            .filter(|slot| slot.cid == cid)
            .and_then(|slot| slot.pending.take());
        Some(match pending {
            Some(pending) => AdminEvent::Done(pending.purpose, pending.opcode, cqe),
            None => AdminEvent::Unknown(cid),
        })
    }

    /// The error for a command that exceeded its deadline, if any.
    pub(crate) fn overdue(&self, now: Nanos) -> Option<DriveError> {
        let late = |pending: &&Pending| pending.deadline.is_some_and(|deadline| deadline <= now);
        self.pending()
            .find(late)
            .map(|pending| DriveError::CommandTimeout {
                opcode: pending.opcode,
            })
    }
}

fn next(index: u16) -> u16 {
    if index + 1 == ADMIN_ENTRIES {
        0
    } else {
        index + 1
    }
}
