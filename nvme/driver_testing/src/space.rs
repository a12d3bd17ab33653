//! An address space of several drives, in place of an IOMMU container: which addresses are reserved
//! for memory of drives, and which of it is mapped for all of them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugemem::AddressSpace;

use super::bus::Memory;

/// The first address for memory of drives, and the distance between those of two drives.
const FIRST: u64 = 0x70_0000_0000;
const STRIDE: u64 = 1 << 30;

struct Mapped {
    owner: u64,
    address: u64,
    bytes: usize,
    memory: Arc<Memory>,
    offset: usize,
}

#[derive(Default)]
struct Addresses {
    /// The drive, the first address and the number of addresses.
    reserved: Vec<(u64, u64, u64)>,
    next: u64,
    mapped: Vec<Mapped>,
}

/// An address space that emulated drives share.
pub struct EmulatedSpace {
    space: AddressSpace,
    next_drive: AtomicU64,
    refuses: AtomicBool,
    accesses: AtomicU64,
    addresses: Mutex<Addresses>,
}

impl std::fmt::Debug for EmulatedSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("EmulatedSpace").field(&self.space).finish()
    }
}

impl Default for EmulatedSpace {
    fn default() -> Self {
        Self {
            space: AddressSpace::unique(),
            next_drive: AtomicU64::new(0),
            refuses: AtomicBool::new(false),
            accesses: AtomicU64::new(0),
            addresses: Mutex::default(),
        }
    }
}

impl EmulatedSpace {
    fn lock(&self) -> MutexGuard<'_, Addresses> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it refuses to map memory from now on.
    pub fn set_refuses(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Release);
    }

    /// Unmaps everything, as the kernel does when the process that has the IOMMU container ends.
    pub fn close(&self) {
        let mut addresses = self.lock();
        addresses.mapped.clear();
        addresses.reserved.clear();
    }

    /// Bytes of drives that are mapped for their neighbours.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.lock().mapped.iter().map(|it| it.bytes).sum()
    }

    /// Number of accesses of drives to memory of a neighbour so far.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses.load(Ordering::Relaxed)
    }

    pub(super) fn id(&self) -> AddressSpace {
        self.space
    }

    /// A number for another drive.
    pub(super) fn join(&self) -> u64 {
        self.next_drive.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn reserve(&self, owner: u64, len: u64, at: Option<u64>) -> Option<u64> {
        let mut addresses = self.lock();
        let own = addresses.reserved.iter().find(|it| it.0 == owner);
        if let Some((_, first, _)) = own.filter(|it| it.2 == len) {
            return Some(*first);
        }
        let first = at.unwrap_or(FIRST + addresses.next * STRIDE);
        let overlaps = |it: &&(u64, u64, u64)| first < it.1 + it.2 && it.1 < first + len;
        if len > STRIDE || addresses.reserved.iter().any(|it| overlaps(&it)) {
            return None;
        }
        addresses.next += 1;
        addresses.reserved.push((owner, first, len));
        Some(first)
    }

    pub(super) fn map(
        &self,
        owner: u64,
        memory: &Arc<Memory>,
        (offset, bytes): (usize, usize),
        address: u64,
    ) -> io::Result<()> {
        let mut addresses = self.lock();
        if self.refuses.load(Ordering::Acquire) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let is_mapped = addresses.mapped.iter().any(|it| it.owner == owner);
        assert!(!is_mapped, "mapped twice");
        let last = address + bytes as u64;
        let mut reserved = addresses.reserved.iter();
        let is_reserved =
            reserved.any(|it| it.0 == owner && it.1 <= address && last <= it.1 + it.2);
        assert!(
            is_reserved,
            "{bytes} bytes at {address:#x} are not reserved"
        );
        addresses.mapped.push(Mapped {
            owner,
            address,
            bytes,
            memory: Arc::clone(memory),
            offset,
        });
        Ok(())
    }

    pub(super) fn unmap(&self, owner: u64, is_unused: bool) {
        let mut addresses = self.lock();
        let before = addresses.mapped.len();
        addresses.mapped.retain(|it| it.owner != owner);
        if addresses.mapped.len() < before && !is_unused {
            // They belong to no drive any more.
            let mut reserved = addresses.reserved.iter_mut();
            if let Some(own) = reserved.find(|it| it.0 == owner) {
                own.0 = u64::MAX;
            }
        }
    }

    pub(super) fn is_mapped(&self, owner: u64) -> bool {
        self.lock().mapped.iter().any(|it| it.owner == owner)
    }

    /// Calls `act` with the memory that is mapped at `address`, and the offset there, if all bytes
    /// are.
    pub(super) fn access(
        &self,
        address: u64,
        len: usize,
        act: impl FnOnce(&Memory, usize),
    ) -> Option<()> {
        let addresses = self.lock();
        let (mapped, within) = addresses.mapped.iter().find_map(|it| {
            let within = usize::try_from(address.checked_sub(it.address)?).ok()?;
            (within <= it.bytes && len <= it.bytes - within).then_some((it, within))
        })?;
        mapped.memory.insertion()?;
        act(&mapped.memory, mapped.offset + within);
        Some(())
    }

    pub(super) fn count_access(&self) {
        self.accesses.fetch_add(1, Ordering::Relaxed);
    }
}
