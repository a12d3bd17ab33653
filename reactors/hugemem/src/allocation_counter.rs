//! A counting global allocator, for tests that verify a steady state without heap allocation, or
//! limit the memory of an object.
//!
//! ```
//! use hugemem::allocation_counter::{CountingAllocator, allocations_on_this_thread};
//!
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator;
//!
//! let before = allocations_on_this_thread();
//! let boxed = std::hint::black_box(Box::new(7));
//! assert_eq!(allocations_on_this_thread() - before, 1);
//! drop(boxed);
//! ```
#![expect(
    unsafe_code,
    reason = "a global allocator is an unsafe trait by definition"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // A const-initialised cell without a destructor: reading it never allocates, which would
    // recurse into the allocator.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

/// The system allocator with a per-thread count of allocation calls.
#[derive(Debug, Default, Clone, Copy)]
pub struct CountingAllocator;

/// Number of allocations and reallocations of this thread since it started.
///
/// Stays 0 unless [`CountingAllocator`] is the program's `#[global_allocator]`.
#[must_use]
pub fn allocations_on_this_thread() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// Bytes that this thread has allocated minus those it has freed: the memory of a thread that
/// shares nothing with others. Excludes the allocator's overhead.
///
/// Stays 0 unless [`CountingAllocator`] is the program's `#[global_allocator]`.
#[must_use]
pub fn bytes_allocated_on_this_thread() -> i64 {
    BYTES.with(Cell::get)
}

fn count() {
    // A terminating thread may allocate after its locals were dropped; that is not counted.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

/// Counts a change of an allocation's size; the size of a missing allocation is 0.
fn resized(from: usize, to: usize) {
    // A size fits `isize`, as `Layout` guarantees.
    let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() + (to as i64 - from as i64)));
}

// SAFETY: every call is passed to `System` unchanged, which fulfils the contract of the trait;
// counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        resized(0, layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is that of `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        resized(0, layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is that of `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        resized(layout.size(), 0);
        // SAFETY: the pointer came from `System` by one of the other methods, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        resized(layout.size(), new_size);
        // SAFETY: the pointer came from `System` by one of the other methods, with this layout,
        // and the caller keeps the contract on `new_size`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
