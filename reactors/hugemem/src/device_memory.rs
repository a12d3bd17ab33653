//! Memory of a device, such as the controller memory buffer of an NVMe drive: slices that the device
//! accesses by a bus address.
//!
//! It is a second kind of memory beside the arena. The processor does not access it: a
//! [`DeviceLease`] has an address, and neither a pointer nor bytes. Its content is lost when the
//! device is reset, so a memory *ends* before a reset: it gives no more leases, and the holder of
//! one asks [`DeviceLease::is_valid`] before it relies on what is there.
//!
//! Neighbours of the device, other devices in its address space, may use the memory too. No request
//! of theirs begins once it has ended, and the owner waits for those in flight
//! ([`DeviceMemory::neighbours_in_flight`]) before it takes the addresses away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of slices of one memory: the bits of a word.
pub const DEVICE_SLICES_MAX: u32 = u64::BITS;

/// The bit of [`DeviceMemory::uses`] that ends the memory. Those below it count requests, of which a
/// slice has one at most.
const ENDED: u64 = 1 << 63;

static NEXT_ADDRESS_SPACE: AtomicU64 = AtomicU64::new(1);

/// An address space of devices, such as an IOMMU container: an address in it has the same meaning
/// for every device that is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressSpace(u64);

impl AddressSpace {
    /// Another one than all that exist.
    #[must_use]
    pub fn unique() -> Self {
        Self(NEXT_ADDRESS_SPACE.fetch_add(1, Ordering::Relaxed))
    }
}

/// Which devices may use a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The device whose memory it is and no other, for this reason.
    Own(String),
    /// Every device in this address space.
    Neighbours(AddressSpace),
}

/// Counters of a memory. They are not read atomically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemoryCounters {
    /// Slices in total.
    pub slices: u32,
    /// Slices that are not free.
    pub taken: u32,
    /// Leases that were given.
    pub leases: u64,
    /// Requests for a lease while none was free.
    pub exhausted: u64,
    /// Slices that are never used again, because the device may still access them.
    pub lost: u64,
}

/// Memory of a device. Shared by all reactors; takes no locks.
#[derive(Debug)]
pub struct DeviceMemory {
    address: u64,
    slice_bytes: usize,
    slices: u32,
    sharing: Sharing,
    /// A bit for each free slice.
    free: AtomicU64,
    /// Requests of neighbours in flight, and [`ENDED`]. One word, so that each request of a neighbour
    /// either is counted before the end, or does not begin.
    uses: AtomicU64,
    leases: AtomicU64,
    exhausted: AtomicU64,
    lost: AtomicU64,
}

impl DeviceMemory {
    /// Divides `bytes` bytes from the bus address `address` on into slices. `None` if not even one
    /// fits.
    #[must_use]
    pub fn new(
        address: u64,
        bytes: u64,
        slice_bytes: usize,
        sharing: Sharing,
    ) -> Option<Arc<Self>> {
        let fit = bytes.checked_div(slice_bytes as u64)?;
        address.checked_add(bytes)?;
        let slices = u32::try_from(fit)
            .unwrap_or(u32::MAX)
            .min(DEVICE_SLICES_MAX);
        let free = u64::MAX.checked_shr(DEVICE_SLICES_MAX - slices)?;
        Some(Arc::new(Self {
            address,
            slice_bytes,
            slices,
            sharing,
            free: AtomicU64::new(free),
            uses: AtomicU64::new(0),
            leases: AtomicU64::new(0),
            exhausted: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }))
    }

    /// Size of a slice in bytes.
    #[must_use]
    pub fn slice_bytes(&self) -> usize {
        self.slice_bytes
    }

    /// Which devices may use it.
    #[must_use]
    pub fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Whether a neighbour in this address space may use it.
    #[must_use]
    pub fn is_shared_with(&self, space: Option<AddressSpace>) -> bool {
        matches!(self.sharing, Sharing::Neighbours(own) if Some(own) == space)
    }

    /// A lease of a slice; `None` if none is free, or the memory has ended.
    #[must_use]
    pub fn take(self: &Arc<Self>) -> Option<DeviceLease> {
        if self.has_ended() {
            return None;
        }
        let mut free = self.free.load(Ordering::Relaxed);
        while free != 0 {
            let slice = free.trailing_zeros();
            let left = free & !(1 << slice);
            // Acquire: the lease before this one has ended.
            match self
                .free
                .compare_exchange_weak(free, left, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => {
                    self.leases.fetch_add(1, Ordering::Relaxed);
                    return Some(DeviceLease {
                        memory: Arc::clone(self),
                        slice,
                        request: LeaseRequest::None,
                    });
                }
                Err(now) => free = now,
            }
        }
        self.exhausted.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Ends the memory, because the device is about to lose its content. Leases stay, and are not
    /// valid any more. No request of a neighbour begins after this.
    pub fn end(&self) {
        self.uses.fetch_or(ENDED, Ordering::AcqRel);
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.uses.load(Ordering::Acquire) & ENDED != 0
    }

    /// Requests of neighbours that may access the memory. If it has ended, the number only falls, but
    /// for moments in which a request is about to be refused.
    #[must_use]
    pub fn neighbours_in_flight(&self) -> u64 {
        self.uses.load(Ordering::Acquire) & !ENDED
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> DeviceMemoryCounters {
        let free = self.free.load(Ordering::Relaxed).count_ones();
        DeviceMemoryCounters {
            slices: self.slices,
            taken: self.slices - free,
            leases: self.leases.load(Ordering::Relaxed),
            exhausted: self.exhausted.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }
}

/// The request in flight on a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseRequest {
    None,
    /// Of the device whose memory it is.
    Own,
    /// Of a neighbour, counted in [`DeviceMemory::uses`].
    Neighbour,
}

/// A slice of a device's memory. Dropping it returns the slice, unless a request is in flight: then
/// the slice is lost on purpose, because a device may still access it.
#[derive(Debug)]
pub struct DeviceLease {
    memory: Arc<DeviceMemory>,
    slice: u32,
    request: LeaseRequest,
}

impl DeviceLease {
    /// The memory that it is part of.
    #[must_use]
    pub fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    /// Whether what a device has written there is still there.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.memory.has_ended()
    }

    /// Begins a request of the device itself on the slice. Returns the slice's bus address.
    ///
    /// # Panics
    /// If one is in flight already.
    pub fn begin(&mut self) -> u64 {
        self.begin_as(LeaseRequest::Own)
    }

    /// Begins a request of a neighbour on the slice. Returns the slice's bus address; `None` if the
    /// memory has ended.
    ///
    /// # Panics
    /// If one is in flight already.
    pub fn begin_by_neighbour(&mut self) -> Option<u64> {
        // Acquire and Release: counted before any access, and after the end none begins.
        if self.memory.uses.fetch_add(1, Ordering::AcqRel) & ENDED != 0 {
            self.memory.uses.fetch_sub(1, Ordering::Release);
            return None;
        }
        Some(self.begin_as(LeaseRequest::Neighbour))
    }

    fn begin_as(&mut self, request: LeaseRequest) -> u64 {
        assert!(self.request == LeaseRequest::None, "a request is in flight");
        self.request = request;
        let offset = u64::from(self.slice) * self.memory.slice_bytes as u64;
        self.memory.address + offset
    }

    /// Ends the request in flight: the device has completed it, or has not taken it.
    pub fn complete(&mut self) {
        let ended = std::mem::replace(&mut self.request, LeaseRequest::None);
        if ended == LeaseRequest::Neighbour {
            // Release: the access precedes what the owner does when it sees the number.
            self.memory.uses.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Drop for DeviceLease {
    fn drop(&mut self) {
        if self.request != LeaseRequest::None {
            // A neighbour's request stays counted, so that its addresses are not used again.
            self.memory.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            // Release: what this lease did precedes the next one.
            self.memory
                .free
                .fetch_or(1 << self.slice, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: usize = 4096;

    fn own() -> Sharing {
        Sharing::Own("this is a test".to_owned())
    }

    #[test]
    fn memory_without_room_for_a_slice_does_not_exist() {
        for (address, bytes, slice_bytes) in [
            (0, 0, SLICE),
            (0, SLICE as u64 - 1, SLICE),
            (0, 4096, 0),
            (u64::MAX - 4096, 8192, SLICE),
        ] {
            assert!(DeviceMemory::new(address, bytes, slice_bytes, own()).is_none());
        }
    }

    #[test]
    fn slices_are_given_once_and_return() {
        let memory = DeviceMemory::new(1 << 30, 3 * SLICE as u64 + 1, SLICE, own()).expect("three");
        let mut leases: Vec<_> = std::iter::from_fn(|| memory.take()).collect();
        let mut addresses: Vec<_> = leases.iter_mut().map(DeviceLease::begin).collect();
        addresses.sort_unstable();
        let expected: Vec<_> = (0..3)
            .map(|slice| (1 << 30) + slice * SLICE as u64)
            .collect();
        assert_eq!(addresses, expected);
        leases.iter_mut().for_each(DeviceLease::complete);
        drop(leases);
        let counters = memory.counters();
        assert_eq!((counters.slices, counters.taken, counters.lost), (3, 0, 0));
        assert_eq!((counters.leases, counters.exhausted), (3, 1));
    }

    #[test]
    fn number_of_slices_is_limited() {
        let memory = DeviceMemory::new(0, 1 << 40, SLICE, own()).expect("room");
        assert_eq!(memory.counters().slices, DEVICE_SLICES_MAX);
        let leases: Vec<_> = std::iter::from_fn(|| memory.take()).collect();
        assert_eq!(leases.len(), 64);
    }

    #[test]
    fn slice_with_a_request_in_flight_is_lost() {
        let memory = DeviceMemory::new(0, 2 * SLICE as u64, SLICE, own()).expect("room");
        let mut lease = memory.take().expect("free");
        lease.begin();
        drop(lease);
        let counters = memory.counters();
        assert_eq!((counters.taken, counters.lost), (1, 1));
        let leases: Vec<_> = std::iter::from_fn(|| memory.take()).collect();
        assert_eq!(leases.len(), 1);
    }

    #[test]
    fn ended_memory_gives_no_leases_and_invalidates_its_own() {
        let memory = DeviceMemory::new(0, 2 * SLICE as u64, SLICE, own()).expect("room");
        let lease = memory.take().expect("free");
        assert!(lease.is_valid());
        memory.end();
        assert!(!lease.is_valid());
        assert!(memory.take().is_none());
        drop(lease);
        assert_eq!(memory.counters().taken, 0);
    }

    #[test]
    #[should_panic(expected = "a request is in flight")]
    fn two_requests_on_one_slice_are_a_bug() {
        let memory = DeviceMemory::new(0, SLICE as u64, SLICE, own()).expect("room");
        let mut lease = memory.take().expect("free");
        lease.begin();
        lease.begin();
    }

    #[test]
    fn memory_is_shared_within_its_address_space_only() {
        let (space, other) = (AddressSpace::unique(), AddressSpace::unique());
        assert_ne!(space, other);
        let private = DeviceMemory::new(0, SLICE as u64, SLICE, own()).expect("room");
        let sharing = Sharing::Neighbours(space);
        let shared = DeviceMemory::new(0, SLICE as u64, SLICE, sharing).expect("room");
        for (memory, space, expected) in [
            (&private, Some(space), false),
            (&private, None, false),
            (&shared, None, false),
            (&shared, Some(other), false),
            (&shared, Some(space), true),
        ] {
            assert_eq!(memory.is_shared_with(space), expected);
        }
    }

    #[test]
    fn no_request_of_a_neighbour_begins_after_the_end() {
        let memory = DeviceMemory::new(1 << 30, 3 * SLICE as u64, SLICE, own()).expect("room");
        let mut leases: Vec<_> = std::iter::from_fn(|| memory.take()).collect();
        assert_eq!(leases[1].begin_by_neighbour(), Some((1 << 30) + 4096));
        leases[2].begin();
        assert_eq!(
            memory.neighbours_in_flight(),
            1,
            "the own one is not counted"
        );
        memory.end();
        assert_eq!(leases[0].begin_by_neighbour(), None);
        assert_eq!(memory.neighbours_in_flight(), 1);
        leases.iter_mut().for_each(DeviceLease::complete);
        assert_eq!(memory.neighbours_in_flight(), 0);
        assert!(memory.has_ended());
        assert_eq!(leases[1].begin_by_neighbour(), None);
        drop(leases);
        assert_eq!((memory.counters().taken, memory.counters().lost), (0, 0));
    }

    #[test]
    fn lost_request_of_a_neighbour_stays_in_flight() {
        let memory = DeviceMemory::new(0, SLICE as u64, SLICE, own()).expect("room");
        let mut lease = memory.take().expect("free");
        lease.begin_by_neighbour().expect("not ended");
        memory.end();
        drop(lease);
        assert_eq!(memory.neighbours_in_flight(), 1);
        assert_eq!(memory.counters().lost, 1);
    }

    /// Whatever the order of an end and of requests that begin: once the owner has seen no request
    /// in flight, none accesses the memory.
    #[test]
    fn owner_that_sees_no_request_is_alone() {
        for _ in 0..200 {
            let memory = DeviceMemory::new(0, 4 * SLICE as u64, SLICE, own()).expect("room");
            let is_unmapped = Arc::new(AtomicU64::new(0));
            let neighbours: Vec<_> = (0..3)
                .map(|_| {
                    let mut lease = memory.take().expect("free");
                    let is_unmapped = Arc::clone(&is_unmapped);
                    std::thread::spawn(move || {
                        while lease.begin_by_neighbour().is_some() {
                            assert_eq!(is_unmapped.load(Ordering::SeqCst), 0);
                            lease.complete();
                        }
                    })
                })
                .collect();
            memory.end();
            while memory.neighbours_in_flight() > 0 {
                std::hint::spin_loop();
            }
            is_unmapped.store(1, Ordering::SeqCst);
            for neighbour in neighbours {
                neighbour.join().expect("no access after the end");
            }
        }
    }
}
