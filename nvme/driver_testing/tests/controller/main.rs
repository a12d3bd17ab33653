//! Tests of the emulated controller with hand-written commands, most of them invalid.

mod commands;
mod faults;
mod harness;
mod identity;
mod pointers;
mod power;
mod queues;
mod registers;
mod shadow;

#[global_allocator]
static ALLOCATOR: hugemem::allocation_counter::CountingAllocator =
    hugemem::allocation_counter::CountingAllocator;
