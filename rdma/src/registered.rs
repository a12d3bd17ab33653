//! The program's own memory in a protection domain: each region is registered once, and its keys
//! are looked up by address.
//!
//! If a device limits the size of a registration, a region gets several, which overlap by
//! [`OVERLAP_BYTES`]. So a lease always lies in one registration, and needs one piece and one
//! remote key.
#![expect(
    unsafe_code,
    reason = "declares the promise that memory is named under"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugemem::{
    DeviceLease, DmaBorrow, DmaBuffer, DmaData, DmaLease, DmaMap, DmaMapError, DmaView, ExportUser,
    NotExported, Region, SharedRegion,
};

use crate::error::Error;
use crate::memory::{Access, DeviceRange, MemoryRange};
use crate::provider::{Device, Domain, Provider, Registration};
use crate::request::{RemoteAddress, Sge, SgeList};

/// Overlap of the registrations of one region, in bytes: the size of the largest lease.
pub const OVERLAP_BYTES: usize = 1 << 20;

/// The smallest registration limit for which a region is split, in bytes.
const SPLIT_BYTES_MIN: usize = 2 * OVERLAP_BYTES;

/// The regions registered with one protection domain. Shared between threads.
///
/// Reactors look up addresses in the current [`MemoryMap`]. They keep it while work posted from it
/// is outstanding, and take a new one when [`version`](Self::version) differs from
/// [`MemoryMap::version`].
#[derive(Debug)]
pub struct DomainMemory<P: Provider> {
    domain: P::Domain,
    access: Access,
    published: Mutex<Arc<MemoryMap<P>>>,
    version: AtomicU64,
}

impl<P: Provider> DomainMemory<P> {
    /// Creates an empty set; regions will be registered with `access`.
    #[must_use]
    pub fn new(domain: P::Domain, access: Access) -> Self {
        Self {
            domain,
            access,
            published: Mutex::new(Arc::new(MemoryMap {
                version: 0,
                pieces: Vec::new(),
                registrations: Vec::new(),
                of_devices: Vec::new(),
            })),
            version: AtomicU64::new(0),
        }
    }

    /// The protection domain.
    #[must_use]
    pub fn domain(&self) -> &P::Domain {
        &self.domain
    }

    /// Registers the whole region, in overlapping pieces if the device limits the size.
    ///
    /// # Errors
    /// The error of [`Domain::register`]; no part of the region stays registered.
    pub fn attach_region(&self, region: &Region) -> Result<(), Error> {
        let limit = self.domain.device().limits().registration_bytes;
        let mut added = Vec::new();
        for range in pieces_of(region.len(), limit)? {
            let range = MemoryRange::of_region(region, range);
            added.push(Arc::new(self.domain.register(range, self.access)?));
        }
        self.publish(|registrations, _| registrations.append(&mut added));
        Ok(())
    }

    /// Whether the region is registered.
    #[must_use]
    pub fn has_region(&self, region: &Region) -> bool {
        let map = self.map();
        let mut registrations = map.registrations.iter();
        registrations.any(|it| it.address() == region.base_address())
    }

    /// Registers memory of another device, until it [ends](hugemem::DeviceMemory::revoke_exports).
    /// Does nothing if it is registered already.
    ///
    /// # Errors
    /// Why it is not registered.
    pub fn attach_device_memory(
        &self,
        memory: &hugemem::DeviceMemory,
    ) -> Result<(), NotExported<Error>> {
        if self.map().device_key(memory).is_some() {
            return Ok(());
        }
        let mut added = None;
        memory.export_to(|buffer| {
            let range = DeviceRange::of(memory, buffer);
            let registration = self.domain.register_device_memory(range, self.access)?;
            let of_device = Arc::new(OfDevice::<P> {
                memory: memory.number(),
                lkey: registration.lkey(),
                registration: Mutex::new(Some(registration)),
            });
            added = Some(Arc::clone(&of_device));
            Ok(of_device as Arc<dyn ExportUser>)
        })?;
        self.publish(|_, of_devices| of_devices.extend(added));
        Ok(())
    }

    /// Removes the registrations of all memory of devices whose number `is_kept` does not select.
    pub fn retain_device_memory(&self, is_kept: impl Fn(u64) -> bool) {
        let map = self.map();
        if map.of_devices.iter().all(|it| is_kept(it.memory)) {
            return;
        }
        self.publish(|_, of_devices| of_devices.retain(|it| is_kept(it.memory)));
        for removed in map.of_devices.iter().filter(|it| !is_kept(it.memory)) {
            // Maps of reactors may still have it.
            removed.end_access();
        }
    }

    /// Removes a region. Its registrations end when the last map that contains them is dropped.
    pub fn detach_region(&self, region: &Region) {
        let start = region.base_address();
        let inside = start..start + region.len();
        self.publish(|registrations, _| {
            registrations.retain(|registration| !inside.contains(&registration.address()));
        });
    }

    /// The current map.
    #[must_use]
    pub fn map(&self) -> Arc<MemoryMap<P>> {
        Arc::clone(&self.published())
    }

    /// Counts the changes of the map. Cheap enough to read every turn.
    #[inline]
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn published(&self) -> MutexGuard<'_, Arc<MemoryMap<P>>> {
        // The map is replaced as a whole, so it is consistent even if another thread panicked.
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(
        &self,
        change: impl FnOnce(&mut Vec<Arc<P::Registration>>, &mut Vec<Arc<OfDevice<P>>>),
    ) {
        let mut published = self.published();
        let mut registrations = published.registrations.clone();
        let mut of_devices = published.of_devices.clone();
        change(&mut registrations, &mut of_devices);
        registrations.sort_by_key(|registration| registration.address());
        let version = published.version + 1;
        *published = Arc::new(MemoryMap {
            version,
            pieces: registrations.iter().map(|one| Piece::of(&**one)).collect(),
            registrations,
            of_devices,
        });
        self.version.store(version, Ordering::Release);
    }
}

impl<P: Provider> DmaMap for DomainMemory<P> {
    fn attach(&self, region: &Region) -> Result<(), DmaMapError> {
        self.attach_region(region).map_err(|error| match error {
            Error::Limit { wanted, limit, .. } => DmaMapError::LimitReached {
                wanted: wanted as usize,
                limit: limit as usize,
            },
            Error::System { source, .. } => DmaMapError::Refused(source),
            other => DmaMapError::Refused(std::io::Error::other(other)),
        })
    }
}

/// The ranges in which a region of `len` bytes is registered, as offsets.
fn pieces_of(len: usize, limit: u64) -> Result<Vec<std::ops::Range<usize>>, Error> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if len <= limit {
        return Ok(std::iter::once(0..len).collect());
    }
    if limit < SPLIT_BYTES_MIN {
        return Err(Error::Limit {
            what: "bytes of one memory registration",
            wanted: SPLIT_BYTES_MIN as u64,
            limit: limit as u64,
        });
    }
    let step = (limit - OVERLAP_BYTES) / hugemem::UNIT_BYTES * hugemem::UNIT_BYTES;
    let mut pieces = Vec::new();
    let mut start = 0;
    loop {
        let end = len.min(start + step + OVERLAP_BYTES);
        pieces.push(start..end);
        if end == len {
            return Ok(pieces);
        }
        start += step;
    }
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    start: usize,
    end: usize,
    lkey: u32,
    rkey: u32,
}

impl Piece {
    fn of(registration: &impl Registration) -> Self {
        Self {
            start: registration.address(),
            end: registration.address() + registration.bytes(),
            lkey: registration.lkey(),
            rkey: registration.rkey(),
        }
    }

    /// Whether the whole range lies in this piece.
    #[inline]
    fn has(&self, address: usize, len: usize) -> bool {
        address >= self.start && address <= self.end && len <= self.end - address
    }
}

/// The registration of a memory of another device. It ends with the memory, whatever maps have it.
#[derive(Debug)]
struct OfDevice<P: Provider> {
    /// The memory's number.
    memory: u64,
    lkey: u32,
    registration: Mutex<Option<P::Registration>>,
}

impl<P: Provider> ExportUser for OfDevice<P> {
    fn end_access(&self) {
        let mut registration = self
            .registration
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        drop(registration.take());
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Memory that work requests may name; see [`Sge`] for the reason why only these types qualify.
pub trait DeviceMemory: sealed::Sealed {
    /// Virtual address of the first byte.
    fn address(&self) -> usize;

    /// Length in bytes.
    fn bytes(&self) -> usize;
}

macro_rules! device_memory {
    ([$($driver:ident)?] $memory:ty) => {
        impl $(<$driver>)? sealed::Sealed for $memory {}

        impl $(<$driver: hugemem::DmaDriver>)? DeviceMemory for $memory {
            #[inline(always)]
            fn address(&self) -> usize {
                <$memory>::address(self)
            }

            #[inline(always)]
            fn bytes(&self) -> usize {
                <$memory>::len(self)
            }
        }
    };
}

device_memory!([D] DmaLease<D>);
device_memory!([D] DmaBorrow<D>);
device_memory!([D] DmaData<D>);
device_memory!([] DmaBuffer);

/// A region that the program and the device share permanently. The program accesses it atomically
/// and only through its view, so any part of it may be posted at any time.
#[derive(Debug)]
pub struct SharedMemory<P: Provider> {
    // Dropped first: the device then rejects the keys.
    registration: P::Registration,
    region: SharedRegion,
}

impl<P: Provider> SharedMemory<P> {
    /// Registers a region.
    ///
    /// # Errors
    /// The error of [`Domain::register`].
    pub fn register(
        domain: &P::Domain,
        region: SharedRegion,
        access: Access,
    ) -> Result<Self, Error> {
        let whole = MemoryRange::of_region(region.region(), 0..region.region().len());
        let registration = domain.register(whole, access)?;
        Ok(Self {
            registration,
            region,
        })
    }

    /// Its registration.
    #[must_use]
    pub fn registration(&self) -> &P::Registration {
        &self.registration
    }

    /// The view for accessing its bytes.
    #[must_use]
    pub fn view(&self) -> &DmaView {
        self.region.view()
    }

    /// A part of the region for a local work request.
    ///
    /// # Panics
    /// Panics if the part exceeds the region, or is 4 GiB or longer.
    #[must_use]
    pub fn piece(&self, offset: usize, len: usize) -> Sge {
        let length = u32::try_from(len);
        let bytes = self.registration.bytes();
        assert!(
            length.is_ok() && offset <= bytes && len <= bytes - offset,
            "{len} bytes at {offset} of {bytes}"
        );
        Sge {
            address: (self.registration.address() + offset) as u64,
            length: length.unwrap_or(0),
            lkey: self.registration.lkey(),
        }
    }
}

/// An immutable map from addresses to registered memory, which keeps it registered.
#[derive(Debug)]
pub struct MemoryMap<P: Provider> {
    /// Sorted by start, ascending.
    pieces: Vec<Piece>,
    version: u64,
    registrations: Vec<Arc<P::Registration>>,
    of_devices: Vec<Arc<OfDevice<P>>>,
}

impl<P: Provider> MemoryMap<P> {
    /// The local key of a memory of another device, if it was registered. It is valid until that
    /// memory ends.
    #[inline]
    #[must_use]
    pub fn device_key(&self, memory: &hugemem::DeviceMemory) -> Option<u32> {
        let mut all = self.of_devices.iter();
        let found = all.find(|it| it.memory == memory.number())?;
        Some(found.lkey)
    }

    /// A part of memory of another device for a local work request: of at most `bytes` bytes from
    /// `offset` on, as many as are in the same slice. `None` unless a request of a neighbour is in
    /// flight there, which has to last as long as the work request.
    #[inline]
    #[must_use]
    pub fn piece_in_device(
        &self,
        key: u32,
        lease: &DeviceLease,
        offset: usize,
        bytes: u32,
    ) -> Option<Sge> {
        let (address, behind) = lease.address_for_neighbour(offset)?;
        Some(Sge {
            address,
            length: bytes.min(u32::try_from(behind).unwrap_or(u32::MAX)),
            lkey: key,
        })
    }

    /// The version of [`DomainMemory`] that this map is of.
    #[inline]
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Number of registrations.
    #[must_use]
    pub fn registrations(&self) -> usize {
        self.registrations.len()
    }

    /// Registered bytes; overlapping bytes count for each registration.
    #[must_use]
    pub fn registered_bytes(&self) -> u64 {
        let pieces = self.pieces.iter();
        pieces.map(|piece| (piece.end - piece.start) as u64).sum()
    }

    /// The pieces of registered memory that make up a part of `memory`; one piece for a lease.
    /// `None` if the part exceeds the memory, is not fully registered, or takes more than
    /// [`SGES_MAX`](crate::SGES_MAX) pieces.
    #[inline]
    #[must_use]
    pub fn gather(&self, memory: &impl DeviceMemory, offset: usize, len: usize) -> Option<SgeList> {
        let within = offset <= memory.bytes() && len <= memory.bytes() - offset;
        if !within {
            return None;
        }
        self.gather_range(memory.address() + offset, len)
    }

    /// The pieces that make up a range of addresses; see [`gather`](Self::gather).
    ///
    /// # Safety
    /// As for [`Sge::new`].
    #[must_use]
    pub unsafe fn gather_at(&self, address: usize, len: usize) -> Option<SgeList> {
        self.gather_range(address, len)
    }

    #[inline]
    fn gather_range(&self, address: usize, len: usize) -> Option<SgeList> {
        let piece = self.piece_at(address)?;
        if len <= piece.end - address {
            return Some(SgeList::one(Sge {
                address: address as u64,
                length: u32::try_from(len).ok()?,
                lkey: piece.lkey,
            }));
        }
        self.gather_several(address, len)
    }

    /// A part of `memory` as one piece of one registration. `hint` caches the index of the last
    /// registration found, so that further ranges of it need no search; start with 0. Returns
    /// `None` if no single registration contains the part; [`gather`](Self::gather) may then
    /// succeed.
    #[inline(always)]
    #[must_use]
    pub fn piece(
        &self,
        hint: &mut usize,
        memory: &impl DeviceMemory,
        offset: usize,
        length: u32,
    ) -> Option<Sge> {
        let len = length as usize;
        if offset > memory.bytes() || len > memory.bytes() - offset {
            return None;
        }
        let address = memory.address() + offset;
        let lkey = self.local_key(hint, address, len)?;
        Some(Sge {
            address: address as u64,
            length,
            lkey,
        })
    }

    /// The local key of the registration that contains a range; `hint` as for
    /// [`piece`](Self::piece).
    #[inline(always)]
    #[must_use]
    pub fn local_key(&self, hint: &mut usize, address: usize, len: usize) -> Option<u32> {
        match self.pieces.get(*hint) {
            Some(piece) if piece.has(address, len) => Some(piece.lkey),
            _ => self.search_key(hint, address, len),
        }
    }

    #[inline(never)]
    fn search_key(&self, hint: &mut usize, address: usize, len: usize) -> Option<u32> {
        let after = self.pieces.partition_point(|piece| piece.start <= address);
        let at = after.checked_sub(1)?;
        let piece = self.pieces[at];
        if !piece.has(address, len) {
            return None;
        }
        *hint = at;
        Some(piece.lkey)
    }

    /// The remote address of a range that lies in one registration.
    #[inline]
    #[must_use]
    pub fn remote(&self, address: usize, len: usize) -> Option<RemoteAddress> {
        let piece = self.piece_at(address)?;
        (len <= piece.end - address).then_some(RemoteAddress {
            address: address as u64,
            rkey: piece.rkey,
        })
    }

    /// The last registration that begins at or before `address`, if it contains `address`: it
    /// extends at least [`OVERLAP_BYTES`] further, or to the end of the region.
    #[inline]
    fn piece_at(&self, address: usize) -> Option<&Piece> {
        let after = self.pieces.partition_point(|piece| piece.start <= address);
        let piece = self.pieces.get(after.checked_sub(1)?)?;
        (address < piece.end).then_some(piece)
    }

    #[cold]
    fn gather_several(&self, mut address: usize, mut len: usize) -> Option<SgeList> {
        let mut list = SgeList::EMPTY;
        while len > 0 {
            let piece = self.piece_at(address)?;
            let here = len.min(piece.end - address).min(u32::MAX as usize);
            let sge = Sge {
                address: address as u64,
                length: here as u32,
                lkey: piece.lkey,
            };
            list.push(sge).ok()?;
            address += here;
            len -= here;
        }
        Some(list)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn region_within_the_limit_is_one_piece() {
        assert_eq!(pieces_of(4096, 4096).unwrap(), vec![0..4096]);
        assert_eq!(pieces_of(4096, u64::MAX).unwrap(), vec![0..4096]);
    }

    #[test]
    fn registration_limit_below_two_leases_is_an_error() {
        let limit = SPLIT_BYTES_MIN as u64 - 1;
        assert!(matches!(
            pieces_of(64 << 20, limit),
            Err(Error::Limit { .. })
        ));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn every_lease_lies_within_one_piece(
            len in 1usize..1 << 30,
            limit in SPLIT_BYTES_MIN..1 << 28,
            at in 0usize..1 << 30,
            lease in 1usize..=OVERLAP_BYTES,
        ) {
            let pieces = pieces_of(len, limit as u64).unwrap();
            prop_assert_eq!(pieces[0].start, 0);
            prop_assert_eq!(pieces.last().unwrap().end, len);
            for piece in &pieces {
                prop_assert!(!piece.is_empty() && piece.len() <= limit);
            }
            let start = at % len;
            let end = len.min(start + lease);
            let piece = pieces.iter().rfind(|piece| piece.start <= start).unwrap();
            prop_assert!(end <= piece.end, "{start}..{end} in {pieces:?}");
        }
    }
}
