//! One arena of memory, taken and pinned at start, lent in slices for as long as the process runs.
//!
//! Owns: the memory mapping ([`Region`]), the arena carved from it ([`Arena`]), each reactor's
//! share of it ([`Pool`]), single owned slices ([`Lease`]), what devices use at the same time
//! ([`DmaBuffer`]), and the memory of RAM devices ([`Store`]), whose ranges are lent for reading
//! without a copy ([`Loan`]).
//!
//! Refuses: to allocate, to lock or to block after start. When a pool is empty, or the host of a
//! request holds its share ([`Account`]), the request waits in a queue of fixed size that is served
//! host by host, and a counter says so.
//!
//! Everything that a reactor touches per request ([`Pool`], [`Lease`], [`StoreHandle`], [`Loan`])
//! is bound to its thread; [`Arena`], [`Region`] and [`Store`] are shared between threads.

mod account;
pub mod allocation_counter;
mod arena;
mod cache;
mod class;
mod data;
mod depot;
mod dma;
mod dma_check;
mod dma_lease;
mod exchange;
mod holds;
mod lease;
mod pool;
mod prefetch;
mod region;
mod share;
mod slices;
mod store;
mod streaming;
mod sync;
mod waiters;

pub use account::{ACCOUNT_HOSTS_MAX, Account};
pub use arena::{Arena, ArenaConfig, ArenaCounters, ArenaError, ArenaRest, ClassCounters};
pub use data::Data;
pub use dma::{DmaBuffer, DmaView, SharedRegion};
pub use dma_check::DmaViolation;
pub use dma_lease::{DmaData, DmaDriver, DmaLease, DmaLoan, leaked_dma};
pub use lease::Lease;
pub use pool::{Pool, SlicePromise, WaiterToken};
pub use prefetch::prefetch;
pub use region::{DmaMap, DmaMapError, Notice, PagePolicy, PageSize, Region, RegionError};
pub use slices::Slices;
pub use store::{Loan, LoanClaim, STORE_BYTES_MAX, Store, StoreHandle};

/// Alignment of every lease, size of the smallest one, and unit of a [`Store`]'s holds, in bytes.
pub const UNIT_BYTES: usize = 4096;
