//! An NVMe controller in software with planned faults, behind the same [`DeviceBacking`] as a real
//! one. For tests of the driver and of the layers above it.
//!
//! It implements the registers with their side effects, the admin and NVM command sets, PRPs and
//! SGLs with the exact status for invalid ones, queues with phase tags, shadow doorbells,
//! submission queues in a controller memory buffer, namespaces on a medium behind a volatile write
//! cache, and faults selected by pattern and seed ([`FaultRule`]). It has no clock of its own (its
//! time is that of the last [`tick`](EmulatedController::tick)) and no threads, and does not
//! allocate after creation, so that a driver's own allocations and instructions can be counted.
//!
//! A command executes inside the doorbell write that submits it, unless the drive has a
//! [`latency`](EmulatedOptions::latency) or a fault delays it; a delayed command executes in
//! `tick`. Data is transferred when a command executes, not when it is fetched, so a lease that is
//! freed too early is overwritten. Between CC.EN = 0 and CSTS.RDY = 0 the controller continues to
//! write to memory. In debug builds an access to memory that is not posted for DMA is recorded
//! ([`take_dma_violation`](hugemem::Arena::take_dma_violation)).
//!
//! Sources: NVM Express Base Specification 2.1 ("Base 2.1"), NVM Command Set 1.1 ("NVM 1.1"), NVMe
//! over PCIe Transport 1.1 ("PCIe 1.1"). Not emulated: fused operations, metadata, protection
//! information, weighted arbitration, the host memory buffer, sanitize, format, firmware update.
#![forbid(unsafe_code)]

mod admin;
mod bus;
mod commands;
mod control;
mod counters;
mod events;
mod fault;
mod features;
mod identify;
mod logs;
mod medium;
mod namespaces;
mod options;
mod queues;
mod registers;
mod space;
mod state;
mod transfer;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugemem::{AddressSpace, DmaBuf, DmaView, Region};
use reactors::Nanos;

pub use block_testing::When;
pub use control::{EmulatorControl, MemoryFile};
pub use counters::EmulatorCounters;
pub use fault::{FAULT_RULES_MAX, Fault, FaultId, FaultMatch, FaultRule, Queues};
pub use options::{
    ControllerMemoryOptions, CopyAcross, EmulatedCopy, EmulatedNamespace, EmulatedOptions,
    SglRules, ShadowDoorbells,
};

pub use space::EmulatedSpace;

use bus::{Bus, Memory};
use nvme_driver::backing::{ControllerMemory, DeviceBacking};
use registers::{CONTROLLER_MEMORY_BAR, CONTROLLER_MEMORY_OFFSET};
use state::State;

/// State shared by the controller and its control handles.
struct Shared {
    bus: Bus,
    name: String,
    registers_len: usize,
    state: Mutex<State>,
    removal_requested: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An emulated NVMe controller whose host memory is one region.
pub struct EmulatedController {
    shared: Arc<Shared>,
}

impl EmulatedController {
    /// Creates a drive that has `memory` as its host's memory, and inserts it into its slot.
    ///
    /// # Errors
    /// The kernel's error for another mapping of the region, or for an event descriptor.
    ///
    /// # Panics
    /// The options are invalid: a count of 0, more than 1024 queue pairs, a block size that is not
    /// a power of two of at least 512, a namespace larger than its maximum.
    pub fn new(memory: &Region, options: EmulatedOptions) -> io::Result<Self> {
        check(&options);
        let buffer = options.controller_memory;
        let buffer = buffer.map(|it| Memory::new(it.bytes)).transpose()?;
        let view = DmaView::of_arena(memory)?;
        let holds_data = options.controller_memory.is_some_and(|it| it.holds_data);
        let buffer = (buffer, holds_data);
        let (vectors, space) = (options.interrupt_vectors, options.space.clone());
        let bus = Bus::new(view, options.dma_base, buffer, vectors, space)?;
        let stride = 4_usize << options.doorbell_stride;
        let doorbells = 2 * (usize::from(options.io_queues_max) + 1) * stride;
        let registers_len = 4096 + doorbells.next_multiple_of(4096);
        let name = options.name.clone();
        let mut state = State::new(options);
        state.place_memory_at_power_on(&bus);
        Ok(Self {
            shared: Arc::new(Shared {
                bus,
                name,
                registers_len,
                state: Mutex::new(state),
                removal_requested: AtomicBool::new(false),
            }),
        })
    }

    /// A handle that controls the drive.
    #[must_use]
    pub fn control(&self) -> EmulatorControl {
        EmulatorControl::new(Arc::clone(&self.shared))
    }

    /// Advances the time, which never moves backwards, and executes everything that is due. With
    /// [`ShadowDoorbells::Poll`] this also fetches new commands.
    pub fn tick(&self, now: Nanos) {
        self.shared.lock().tick(&self.shared.bus, now);
    }

    fn check_access(&self, offset: usize, bytes: usize) {
        let len = self.shared.registers_len;
        assert!(
            offset.is_multiple_of(bytes) && offset + bytes <= len,
            "{bytes} bytes at {offset:#x} of {len:#x} bytes of registers"
        );
    }
}

fn check(options: &EmulatedOptions) {
    assert!((2..=1 << 16).contains(&options.queue_entries_max));
    assert!((1..=1024).contains(&options.io_queues_max));
    assert!((1..=256).contains(&options.event_requests_max));
    assert!(options.interrupt_vectors >= 1 && options.atomic_blocks >= 1);
    assert!(options.outstanding_max >= 1 && options.doorbell_stride <= 10);
    assert!(options.page_code_min <= options.page_code_max && options.page_code_max <= 15);
    assert!(options.dma_base != 0 && options.dma_base.is_multiple_of(4096));
    for namespace in &options.namespaces {
        let size = namespace.block_size;
        assert!(
            size >= 512 && size.is_power_of_two(),
            "a block of {size} bytes"
        );
        assert!(namespace.nsid >= 1 && namespace.block_count <= namespace.block_count_max);
    }
    let sorted = options
        .namespaces
        .is_sorted_by(|first, second| first.nsid < second.nsid);
    assert!(sorted, "namespaces come by ascending identifier");
}

impl DeviceBacking for EmulatedController {
    fn registers_len(&self) -> usize {
        self.shared.registers_len
    }

    fn read_u32(&self, offset: usize) -> u32 {
        self.check_access(offset, 4);
        self.shared.lock().read_register(&self.shared.bus, offset)
    }

    fn read_u64(&self, offset: usize) -> u64 {
        self.check_access(offset, 8);
        let mut state = self.shared.lock();
        let low = state.read_register(&self.shared.bus, offset);
        let high = state.read_register(&self.shared.bus, offset + 4);
        u64::from(high) << 32 | u64::from(low)
    }

    fn write_u32(&self, offset: usize, value: u32) {
        self.check_access(offset, 4);
        let mut state = self.shared.lock();
        state.write_register(&self.shared.bus, offset, value);
    }

    fn write_u64(&self, offset: usize, value: u64) {
        self.check_access(offset, 8);
        let mut state = self.shared.lock();
        state.write_register(&self.shared.bus, offset, value as u32);
        state.write_register(&self.shared.bus, offset + 4, (value >> 32) as u32);
    }

    fn dma_address(&self, region_offset: usize) -> u64 {
        self.shared.bus.address(region_offset)
    }

    fn controller_memory(
        &self,
        bar: u8,
        offset: u64,
        len: u64,
    ) -> Option<Arc<dyn ControllerMemory>> {
        let memory = self.shared.bus.memory()?;
        let whole = bar == CONTROLLER_MEMORY_BAR
            && offset == CONTROLLER_MEMORY_OFFSET
            && len == memory.len() as u64;
        whole.then(|| Arc::clone(memory) as Arc<dyn ControllerMemory>)
    }

    fn address_space(&self) -> Option<AddressSpace> {
        let (space, _) = self.shared.bus.space.as_ref()?;
        Some(space.id())
    }

    fn reserve_addresses(&self, len: u64, at: Option<u64>) -> Option<u64> {
        let (space, number) = self.shared.bus.space.as_ref()?;
        space.reserve(*number, len, at)
    }

    fn share_memory(&self, bar: u8, (offset, len): (u64, u64), address: u64) -> io::Result<()> {
        let (space, number) = self
            .shared
            .bus
            .space
            .as_ref()
            .ok_or(io::ErrorKind::NotFound)?;
        let memory = self.shared.bus.memory().ok_or(io::ErrorKind::NotFound)?;
        assert_eq!(bar, CONTROLLER_MEMORY_BAR);
        let offset = (offset - CONTROLLER_MEMORY_OFFSET) as usize;
        assert!(
            offset + len as usize <= memory.len(),
            "outside of the buffer"
        );
        space.map(*number, memory, (offset, len as usize), address)
    }

    fn unshare_memory(&self, is_unused: bool) {
        if let Some((space, number)) = &self.shared.bus.space {
            space.unmap(*number, is_unused);
        }
    }

    fn export_memory(&self, bar: u8, (offset, len): (u64, u64)) -> io::Result<DmaBuf> {
        let memory = self.shared.bus.memory().ok_or(io::ErrorKind::NotFound)?;
        assert_eq!(bar, CONTROLLER_MEMORY_BAR);
        let offset = offset - CONTROLLER_MEMORY_OFFSET;
        assert!(offset + len <= memory.len() as u64, "outside of the buffer");
        Ok(DmaBuf::new(memory.export()?, offset))
    }

    fn set_bus_master(&self, on: bool) -> io::Result<()> {
        let mut state = self.shared.lock();
        if !state.present {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.shared.bus.set_master(on);
        state.progress(&self.shared.bus);
        Ok(())
    }

    fn reset_function(&self) -> io::Result<()> {
        let mut state = self.shared.lock();
        if state.reset_function(&self.shared.bus) {
            Ok(())
        } else {
            Err(io::Error::other("the function does not reset"))
        }
    }

    fn interrupt_vectors(&self) -> u16 {
        self.shared.bus.vectors()
    }

    fn interrupt(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.shared.bus.event(vector)
    }

    fn arm_interrupt(&self, vector: u16, armed: bool) -> io::Result<()> {
        self.shared.bus.arm(vector, armed)
    }

    fn clear_interrupt(&self, vector: u16) {
        self.shared.bus.clear(vector);
    }

    fn removal_requested(&self) -> bool {
        self.shared.removal_requested.load(Ordering::Acquire)
    }

    fn describe(&self) -> String {
        self.shared.name.clone()
    }
}
