//! An arena of memory, allocated and pinned at start, whose slices are leased while the process
//! runs.
//!
//! Owns: the memory mapping ([`Region`]), the arena carved from it ([`Arena`]), each reactor's part
//! of it ([`Pool`]), single owned slices ([`Lease`]), memory shared with devices ([`DmaBuffer`]),
//! and the memory of RAM devices ([`Store`]), whose ranges can be borrowed for reading without a
//! copy ([`Borrow`]); and memory of devices, which the processor does not access ([`DeviceMemory`]).
//!
//! It does not allocate, lock or block after start. When a pool is empty, or the host of a request
//! has reached its share ([`Account`]), the request waits in a queue of fixed size that is served
//! round robin by host, and a counter records the wait.
//!
//! The types used for each request ([`Pool`], [`Lease`], [`StoreHandle`], [`Borrow`]) are bound to
//! their thread; [`Arena`], [`Region`] and [`Store`] are shared between threads.

mod account;
pub mod allocation_counter;
mod arena;
mod cache;
mod class;
mod data;
mod depot;
mod device_memory;
mod dma;
mod dma_check;
mod dma_lease;
mod exchange;
mod lease;
mod pool;
mod prefetch;
mod range_locks;
mod region;
mod share;
mod slices;
mod store;
mod streaming;
mod sync;
mod waiters;

pub use account::{ACCOUNT_HOSTS_MAX, Account};
pub use arena::{Arena, ArenaConfig, ArenaCounters, ArenaError, ArenaPopulation, ClassCounters};
pub use data::Data;
pub use device_memory::{
    AddressSpace, DEVICE_SLICES_MAX, DeviceLease, DeviceMemory, DeviceMemoryCounters, DmaBuf,
    Export, ExportUser, NotExported, Sharing,
};
pub use dma::{DmaBuffer, DmaView, SharedRegion};
pub use dma_check::DmaViolation;
pub use dma_lease::{DmaBorrow, DmaData, DmaDriver, DmaLease, leaked_dma};
pub use lease::Lease;
pub use pool::{Pool, SlicePromise, WaiterToken};
pub use prefetch::prefetch;
pub use region::{DmaMap, DmaMapError, Notice, PagePolicy, PageSize, Region, RegionError};
pub use slices::Slices;
pub use store::{Borrow, STORE_BYTES_MAX, Store, StoreHandle, SuspendedBorrow};

/// Alignment of every lease, size of the smallest one, and unit of a [`Store`]'s range locks, in
/// bytes.
pub const UNIT_BYTES: usize = 4096;
