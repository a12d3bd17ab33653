//! Memory of a device, such as the controller memory buffer of an NVMe drive: slices that the device
//! accesses by a bus address.
//!
//! It is a second kind of memory beside the arena. The processor does not access it: a
//! [`DeviceLease`] has an address, and neither a pointer nor bytes. Its content is lost when the
//! device is reset, so a memory *ends* before a reset: it gives no more leases, and the holder of
//! one asks [`DeviceLease::is_valid`] before it relies on what is there.
//!
//! Neighbours of the device, other devices in its address space, may use the memory too, and so may
//! devices that have [exported](DeviceMemory::export_to) it, such as RDMA devices. No request
//! of theirs begins once it has ended, and the owner waits for those in flight
//! ([`DeviceMemory::neighbours_in_flight`]) before it takes the addresses away and
//! [revokes](DeviceMemory::revoke_exports) what was exported.

mod export;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use export::Exports;
pub use export::{DmaBuf, Export, ExportUser, NotExported};

/// Maximum number of slices of one memory: the bits of a word.
pub const DEVICE_SLICES_MAX: u32 = u64::BITS;

/// The bit of [`DeviceMemory::uses`] that ends the memory. Those below it count requests, of which a
/// slice has one at most.
const ENDED: u64 = 1 << 63;

static NEXT_ADDRESS_SPACE: AtomicU64 = AtomicU64::new(1);
static NEXT_MEMORY: AtomicU64 = AtomicU64::new(1);

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
    number: u64,
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
    exports: Exports,
}

impl DeviceMemory {
    /// Divides `bytes` bytes from the bus address `address` on into slices. `None` if not even one
    /// fits. It is not exported.
    #[must_use]
    pub fn new(
        address: u64,
        bytes: u64,
        slice_bytes: usize,
        sharing: Sharing,
    ) -> Option<Arc<Self>> {
        let why = "its device does not export it".to_owned();
        Self::with_export(address, bytes, slice_bytes, sharing, Export::Refused(why))
    }

    /// The same for memory that devices outside of the address space may use by a descriptor.
    #[must_use]
    pub fn with_export(
        address: u64,
        bytes: u64,
        slice_bytes: usize,
        sharing: Sharing,
        export: Export,
    ) -> Option<Arc<Self>> {
        let fit = bytes.checked_div(slice_bytes as u64)?;
        address.checked_add(bytes)?;
        let slices = u32::try_from(fit)
            .unwrap_or(u32::MAX)
            .min(DEVICE_SLICES_MAX);
        let free = u64::MAX.checked_shr(DEVICE_SLICES_MAX - slices)?;
        Some(Arc::new(Self {
            number: NEXT_MEMORY.fetch_add(1, Ordering::Relaxed),
            address,
            slice_bytes,
            slices,
            sharing,
            free: AtomicU64::new(free),
            uses: AtomicU64::new(0),
            leases: AtomicU64::new(0),
            exhausted: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            exports: Exports::new(export),
        }))
    }

    /// Its number, which no other memory of this process has.
    #[inline]
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bus address of the first slice.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of all slices.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.slices) * self.slice_bytes as u64
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
        self.take_slices(1)
    }

    /// A lease of this number of slices; `None` if fewer are free, or the memory has ended.
    #[must_use]
    pub fn take_slices(self: &Arc<Self>, count: u32) -> Option<DeviceLease> {
        if self.has_ended() {
            return None;
        }
        let mut free = self.free.load(Ordering::Relaxed);
        // Most requests need one.
        let has = |free: u64| match count {
            0 => false,
            1 => free != 0,
            _ => free.count_ones() >= count,
        };
        while has(free) {
            let left = match count {
                1 => free & (free - 1),
                _ => (0..count).fold(free, |left, _| left & (left - 1)),
            };
            // Acquire: the leases before this one have ended.
            match self
                .free
                .compare_exchange_weak(free, left, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => {
                    self.leases.fetch_add(1, Ordering::Relaxed);
                    return Some(DeviceLease {
                        memory: Arc::clone(self),
                        slices: free & !left,
                        count,
                        own: 0,
                        neighbours: 0,
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

    /// Gives the memory to a device outside of the address space: `register` registers its descriptor
    /// there. Blocks as long as `register` does, which counts as a request of a neighbour meanwhile:
    /// for the control plane.
    ///
    /// # Errors
    /// [`NotExported`]: the memory has ended or has no descriptor, or `register` failed.
    pub fn export_to<E>(
        &self,
        register: impl FnOnce(&DmaBuf) -> Result<Arc<dyn ExportUser>, E>,
    ) -> Result<(), NotExported<E>> {
        if self.uses.fetch_add(1, Ordering::AcqRel) & ENDED != 0 {
            self.uses.fetch_sub(1, Ordering::Release);
            return Err(NotExported::Ended);
        }
        let exported = self.exports.add(register);
        self.uses.fetch_sub(1, Ordering::Release);
        exported
    }

    /// Why no other device can register the memory, if so.
    #[must_use]
    pub fn export_refusal(&self) -> Option<String> {
        self.exports.refusal()
    }

    /// Number of devices outside of the address space that have registered the memory.
    #[must_use]
    pub fn export_users(&self) -> usize {
        self.exports.users()
    }

    /// Sets why devices have not registered the memory, for reports.
    pub fn set_export_refusals(&self, refusals: Vec<String>) {
        self.exports.set_refusals(refusals);
    }

    /// Why devices have not registered the memory, one line each.
    #[must_use]
    pub fn export_refusals(&self) -> Vec<String> {
        self.exports.refusals()
    }

    /// Ends the access of devices outside of the address space: their registrations are destroyed when
    /// this returns, and requests that still have the memory fail there. The memory has ended. May
    /// take milliseconds.
    pub fn revoke_exports(&self) {
        debug_assert!(self.has_ended(), "requests may begin");
        self.exports.revoke();
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

/// One or several slices of a device's memory, whose bytes follow one another: offset 0 is the first
/// byte of the first slice, and a request of a device is within one of them. Dropping the lease
/// returns the slices, but those with a request in flight: they are lost on purpose, because a device
/// may still access them.
#[derive(Debug)]
pub struct DeviceLease {
    memory: Arc<DeviceMemory>,
    /// Its slices, a bit each, as in [`DeviceMemory::free`].
    slices: u64,
    /// Their number.
    count: u32,
    /// Those with a request in flight of the device whose memory it is.
    own: u64,
    /// Those with a request in flight of a neighbour, each counted in [`DeviceMemory::uses`].
    neighbours: u64,
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

    /// Its number of slices.
    #[must_use]
    pub fn slices(&self) -> usize {
        self.count as usize
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.count as usize * self.memory.slice_bytes
    }

    /// The bit of the slice at `offset`, and the address of that byte.
    ///
    /// # Panics
    /// If the lease has fewer bytes.
    #[inline]
    fn place(&self, offset: usize) -> (u64, u64) {
        let (rest, within) = match offset {
            0 => (self.slices, 0),
            _ => {
                let nth = offset / self.memory.slice_bytes;
                let rest = (0..nth).fold(self.slices, |rest, _| rest & rest.wrapping_sub(1));
                (rest, offset % self.memory.slice_bytes)
            }
        };
        assert!(rest != 0, "byte {offset} of {}", self.bytes());
        let slice = rest.trailing_zeros();
        let begin = u64::from(slice) * self.memory.slice_bytes as u64;
        (1 << slice, self.memory.address + begin + within as u64)
    }

    /// Begins a request of the device itself in the slice at `offset`. Returns the bus address of that
    /// byte.
    ///
    /// # Panics
    /// If one is in flight there already, or the lease has fewer bytes.
    #[inline]
    pub fn begin(&mut self, offset: usize) -> u64 {
        let (slice, address) = self.place(offset);
        self.assert_idle(slice);
        self.own |= slice;
        address
    }

    /// Begins a request of a neighbour in the slice at `offset`. Returns the bus address of that byte;
    /// `None` if the memory has ended.
    ///
    /// # Panics
    /// As [`begin`](Self::begin).
    pub fn begin_by_neighbour(&mut self, offset: usize) -> Option<u64> {
        let (slice, address) = self.place(offset);
        self.use_by_neighbour(slice, 1).then_some(address)
    }

    /// Begins a request of a neighbour in every slice. Returns false if the memory has ended.
    ///
    /// # Panics
    /// As [`begin`](Self::begin).
    #[must_use]
    pub fn begin_all_by_neighbour(&mut self) -> bool {
        self.use_by_neighbour(self.slices, self.count)
    }

    fn use_by_neighbour(&mut self, slices: u64, count: u32) -> bool {
        self.assert_idle(slices);
        let count = u64::from(count);
        // Acquire and Release: counted before any access, and after the end none begins.
        if self.memory.uses.fetch_add(count, Ordering::AcqRel) & ENDED != 0 {
            self.memory.uses.fetch_sub(count, Ordering::Release);
            return false;
        }
        self.neighbours |= slices;
        true
    }

    fn assert_idle(&self, slices: u64) {
        let busy = self.own | self.neighbours;
        assert!(busy & slices == 0, "a request is in flight");
    }

    /// Bus address of the byte at `offset` and the number of bytes behind it in its slice, while a
    /// request of a neighbour is in flight there; else `None`.
    #[must_use]
    #[inline]
    pub fn address_for_neighbour(&self, offset: usize) -> Option<(u64, usize)> {
        if offset >= self.bytes() {
            return None;
        }
        let (slice, address) = self.place(offset);
        let behind = match offset {
            0 => self.memory.slice_bytes,
            _ => self.memory.slice_bytes - offset % self.memory.slice_bytes,
        };
        (self.neighbours & slice != 0).then_some((address, behind))
    }

    /// Ends the request in flight in the slice at `offset`, which its device has not taken.
    ///
    /// # Panics
    /// If the lease has fewer bytes.
    pub fn complete_at(&mut self, offset: usize) {
        let (slice, _) = self.place(offset);
        self.own &= !slice;
        if self.neighbours & slice != 0 {
            self.neighbours &= !slice;
            self.memory.uses.fetch_sub(1, Ordering::Release);
        }
    }

    /// Ends all requests in flight: the devices have completed them, or have not taken them.
    #[inline]
    pub fn complete(&mut self) {
        self.own = 0;
        if self.neighbours != 0 {
            let count = match self.neighbours == self.slices {
                true => u64::from(self.count),
                false => u64::from(self.neighbours.count_ones()),
            };
            self.neighbours = 0;
            // Release: the accesses precede what the owner does when it sees the number.
            self.memory.uses.fetch_sub(count, Ordering::Release);
        }
    }
}

impl Drop for DeviceLease {
    fn drop(&mut self) {
        // A neighbour's request stays counted, so that its addresses are not used again.
        let lost = self.own | self.neighbours;
        if lost != 0 {
            let count = u64::from(lost.count_ones());
            self.memory.lost.fetch_add(count, Ordering::Relaxed);
        }
        // Release: what this lease did precedes the next one.
        let returned = self.slices & !lost;
        self.memory.free.fetch_or(returned, Ordering::Release);
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
        let mut addresses: Vec<_> = leases.iter_mut().map(|it| it.begin(0)).collect();
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
        lease.begin(0);
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
    fn several_slices_are_taken_all_or_none() {
        let bytes = 4 * SLICE as u64;
        let memory = DeviceMemory::new(1 << 30, bytes, SLICE, own()).expect("room");
        let single = memory.take().expect("free");
        assert!(memory.take_slices(0).is_none());
        assert!(memory.take_slices(4).is_none());
        assert_eq!(memory.counters().taken, 1);
        let mut lease = memory.take_slices(3).expect("free");
        assert_eq!((lease.bytes(), single.bytes()), (3 * SLICE, SLICE));
        drop(single);
        // The first slice is free again; the bytes of the lease follow one another in the others.
        let first = (1 << 30) + SLICE as u64;
        for offset in [0, SLICE, 2 * SLICE + 512] {
            assert_eq!(lease.begin(offset), first + offset as u64);
        }
        lease.complete();
        assert!(lease.begin_all_by_neighbour());
        assert_eq!(memory.neighbours_in_flight(), 3);
        let at = lease.address_for_neighbour(SLICE + 512);
        assert_eq!(at, Some((first + SLICE as u64 + 512, SLICE - 512)));
        assert_eq!(lease.address_for_neighbour(3 * SLICE), None);
        memory.end();
        lease.complete();
        assert_eq!(lease.address_for_neighbour(0), None);
        assert!(!lease.begin_all_by_neighbour());
        assert_eq!(memory.neighbours_in_flight(), 0);
        drop(lease);
        assert_eq!((memory.counters().taken, memory.counters().lost), (0, 0));
    }

    #[test]
    fn only_slices_with_a_request_in_flight_are_lost() {
        let memory = DeviceMemory::new(0, 4 * SLICE as u64, SLICE, own()).expect("room");
        let mut lease = memory.take_slices(4).expect("free");
        lease.begin(SLICE);
        lease.begin_by_neighbour(3 * SLICE).expect("not ended");
        drop(lease);
        let counters = memory.counters();
        assert_eq!((counters.taken, counters.lost), (2, 2));
        assert!(memory.take_slices(3).is_none());
        assert!(memory.take_slices(2).is_some());
    }

    #[test]
    #[should_panic(expected = "byte 4096 of 4096")]
    fn offset_behind_the_lease_is_a_bug() {
        let memory = DeviceMemory::new(0, 2 * SLICE as u64, SLICE, own()).expect("room");
        memory.take().expect("free").begin(SLICE);
    }

    #[test]
    #[should_panic(expected = "a request is in flight")]
    fn two_requests_on_one_slice_are_a_bug() {
        let memory = DeviceMemory::new(0, SLICE as u64, SLICE, own()).expect("room");
        let mut lease = memory.take().expect("free");
        lease.begin(0);
        lease.begin(0);
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
        assert_eq!(leases[1].begin_by_neighbour(0), Some((1 << 30) + 4096));
        leases[2].begin(0);
        assert_eq!(
            memory.neighbours_in_flight(),
            1,
            "the own one is not counted"
        );
        memory.end();
        assert_eq!(leases[0].begin_by_neighbour(0), None);
        assert_eq!(memory.neighbours_in_flight(), 1);
        leases.iter_mut().for_each(DeviceLease::complete);
        assert_eq!(memory.neighbours_in_flight(), 0);
        assert!(memory.has_ended());
        assert_eq!(leases[1].begin_by_neighbour(0), None);
        drop(leases);
        assert_eq!((memory.counters().taken, memory.counters().lost), (0, 0));
    }

    #[test]
    fn lost_request_of_a_neighbour_stays_in_flight() {
        let memory = DeviceMemory::new(0, SLICE as u64, SLICE, own()).expect("room");
        let mut lease = memory.take().expect("free");
        lease.begin_by_neighbour(0).expect("not ended");
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
                        while lease.begin_by_neighbour(0).is_some() {
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
