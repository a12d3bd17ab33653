//! Memory of a device, such as the controller memory buffer of an NVMe drive: slices that the device
//! accesses by a bus address.
//!
//! It is a second kind of memory beside the arena. The processor does not access it: a
//! [`DeviceLease`] has an address, and neither a pointer nor bytes. Its content is lost when the
//! device is reset, so a memory *ends* before a reset: it gives no more leases, and the holder of
//! one asks [`DeviceLease::is_valid`] before it relies on what is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Maximum number of slices of one memory: the bits of a word.
pub const DEVICE_SLICES_MAX: u32 = u64::BITS;

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
    /// A bit for each free slice.
    free: AtomicU64,
    has_ended: AtomicBool,
    leases: AtomicU64,
    exhausted: AtomicU64,
    lost: AtomicU64,
}

impl DeviceMemory {
    /// Divides `bytes` bytes from the bus address `address` on into slices. `None` if not even one
    /// fits.
    #[must_use]
    pub fn new(address: u64, bytes: u64, slice_bytes: usize) -> Option<Arc<Self>> {
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
            free: AtomicU64::new(free),
            has_ended: AtomicBool::new(false),
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
                        is_in_flight: false,
                    });
                }
                Err(now) => free = now,
            }
        }
        self.exhausted.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Ends the memory, because the device is about to lose its content. Leases stay, and are not
    /// valid any more.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
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

/// A slice of a device's memory. Dropping it returns the slice, unless a request is in flight: then
/// the slice is lost on purpose, because the device may still access it.
#[derive(Debug)]
pub struct DeviceLease {
    memory: Arc<DeviceMemory>,
    slice: u32,
    is_in_flight: bool,
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

    /// Begins a request of a device on the slice. Returns the slice's bus address.
    ///
    /// # Panics
    /// If one is in flight already.
    pub fn begin(&mut self) -> u64 {
        assert!(!self.is_in_flight, "a request is in flight");
        self.is_in_flight = true;
        let offset = u64::from(self.slice) * self.memory.slice_bytes as u64;
        self.memory.address + offset
    }

    /// Ends the request in flight: the device has completed it, or has not taken it.
    pub fn complete(&mut self) {
        self.is_in_flight = false;
    }
}

impl Drop for DeviceLease {
    fn drop(&mut self) {
        if self.is_in_flight {
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

    #[test]
    fn memory_without_room_for_a_slice_does_not_exist() {
        for (address, bytes, slice_bytes) in [
            (0, 0, SLICE),
            (0, SLICE as u64 - 1, SLICE),
            (0, 4096, 0),
            (u64::MAX - 4096, 8192, SLICE),
        ] {
            assert!(DeviceMemory::new(address, bytes, slice_bytes).is_none());
        }
    }

    #[test]
    fn slices_are_given_once_and_return() {
        let memory = DeviceMemory::new(1 << 30, 3 * SLICE as u64 + 1, SLICE).expect("three");
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
        let memory = DeviceMemory::new(0, 1 << 40, SLICE).expect("room");
        assert_eq!(memory.counters().slices, DEVICE_SLICES_MAX);
        let leases: Vec<_> = std::iter::from_fn(|| memory.take()).collect();
        assert_eq!(leases.len(), 64);
    }

    #[test]
    fn slice_with_a_request_in_flight_is_lost() {
        let memory = DeviceMemory::new(0, 2 * SLICE as u64, SLICE).expect("room");
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
        let memory = DeviceMemory::new(0, 2 * SLICE as u64, SLICE).expect("room");
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
        let memory = DeviceMemory::new(0, SLICE as u64, SLICE).expect("room");
        let mut lease = memory.take().expect("free");
        lease.begin();
        lease.begin();
    }
}
