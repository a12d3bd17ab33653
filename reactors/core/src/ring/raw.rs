//! The cells of the single-producer, single-consumer ring; `tests/loom.rs` explores it.
//!
//! `head` (next slot to read) is written by the consumer only, `tail` (next slot to write) by the
//! producer only. Both only grow; a slot is `index & mask`. Slots in `head..tail` hold a value and
//! belong to the consumer; all others are vacant and belong to the producer. Each side caches the
//! other's index and reads the shared one only if the cached one implies a full or empty ring.
#![expect(unsafe_code, reason = "slots move between two threads by index alone")]

use std::mem::MaybeUninit;

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Arc, UnsafeCell};

struct Cells<T> {
    head: CachePadded<AtomicUsize>,
    tail: CachePadded<AtomicUsize>,
    /// Set when one end is dropped; the other end reads it.
    producer_gone: AtomicBool,
    consumer_gone: AtomicBool,
    mask: usize,
    capacity: usize,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: the cells pass values of `T` from one thread to another, which `T: Send` permits. A slot
// is never accessed by both sides at once: the producer writes it before it publishes `tail` past
// it (release) and the consumer reads it only after seeing that (acquire); vice versa for `head`.
unsafe impl<T: Send> Send for Cells<T> {}
// SAFETY: as above; there is one `Producer` and one `Consumer`, both need `&mut self` for slot
// access, and neither can be cloned, so sharing the cells between the two threads gives each slot
// one accessor at a time.
unsafe impl<T: Send> Sync for Cells<T> {}

impl<T> Drop for Cells<T> {
    fn drop(&mut self) {
        let mut head = self.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        while head != tail {
            self.slots[head & self.mask].with_mut(|slot| {
                // SAFETY: both ends are gone (`&mut self`), so slots in `head..tail` hold a value
                // that no other code drops, and each is visited once.
                unsafe { slot.cast::<T>().drop_in_place() }
            });
            head = head.wrapping_add(1);
        }
    }
}

/// The writing end.
pub(crate) struct Producer<T> {
    tail: usize,
    head_seen: usize,
    cells: Arc<Cells<T>>,
}

/// The reading end.
pub(crate) struct Consumer<T> {
    head: usize,
    tail_seen: usize,
    cells: Arc<Cells<T>>,
}

/// Creates a ring for exactly `capacity` values.
pub(crate) fn ring<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity > 0, "a ring needs at least one slot");
    assert!(
        capacity <= 1 << 30,
        "a ring has at most 2^30 slots, not {capacity}"
    );
    let slots = capacity.next_power_of_two();
    let cells = Arc::new(Cells {
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
        producer_gone: AtomicBool::new(false),
        consumer_gone: AtomicBool::new(false),
        mask: slots - 1,
        capacity,
        slots: (0..slots)
            .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
            .collect(),
    });
    let consumer = Consumer {
        head: 0,
        tail_seen: 0,
        cells: Arc::clone(&cells),
    };
    (
        Producer {
            tail: 0,
            head_seen: 0,
            cells,
        },
        consumer,
    )
}

impl<T> Producer<T> {
    /// Publishes `value`, or returns it if the ring is full.
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        if self.vacant() == 0 {
            return Err(value);
        }
        self.cells.slots[self.tail & self.cells.mask].with_mut(|slot| {
            // SAFETY: `tail - head_seen < capacity <= slots`, and the acquire load of `head` that
            // gave `head_seen` happened after the consumer's last access to this slot, so the slot
            // is vacant and belongs to the producer.
            unsafe { slot.cast::<T>().write(value) }
        });
        self.tail = self.tail.wrapping_add(1);
        self.cells.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Number of pushes that will at least succeed; zero only if the ring is full now.
    pub(crate) fn vacant(&mut self) -> usize {
        let used = self.tail.wrapping_sub(self.head_seen);
        if used < self.cells.capacity {
            return self.cells.capacity - used;
        }
        self.head_seen = self.cells.head.load(Ordering::Acquire);
        self.cells.capacity - self.tail.wrapping_sub(self.head_seen)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.cells.capacity
    }

    /// Whether the consumer was dropped.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.cells.consumer_gone.load(Ordering::Acquire)
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // Release: a thread that sees this also sees the last push.
        self.cells.producer_gone.store(true, Ordering::Release);
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest value, or `None` if the ring is empty.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.head == self.tail_seen {
            self.tail_seen = self.cells.tail.load(Ordering::Acquire);
            if self.head == self.tail_seen {
                return None;
            }
        }
        let value = self.cells.slots[self.head & self.cells.mask].with(|slot| {
            // SAFETY: `head != tail_seen`, and the acquire load of `tail` that gave `tail_seen`
            // happened after the producer wrote this slot; advancing `head` below makes sure that
            // the value is read out only once.
            unsafe { slot.cast::<T>().read() }
        });
        self.head = self.head.wrapping_add(1);
        self.cells.head.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Number of values in the ring now.
    pub(crate) fn len(&self) -> usize {
        self.cells
            .tail
            .load(Ordering::Acquire)
            .wrapping_sub(self.head)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.cells.capacity
    }

    /// Whether the producer was dropped. [`Consumer::len`] is then the number of all values that
    /// can still be received.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.cells.producer_gone.load(Ordering::Acquire)
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.cells.consumer_gone.store(true, Ordering::Release);
    }
}
