//! The fabric's memory protection (keys, bounds, rights, windows) and data copies.
#![expect(
    unsafe_code,
    reason = "the fabric is a device: it accesses what is posted to it"
)]

use std::fmt::{Debug, Formatter};
use std::sync::{Arc, Weak};

use hugemem::{DmaView, Region};
use rustix::fs::fstat;

use crate::fake::table::Key;
use rdma::{Access, DeviceRange, Error, MemoryRange, RemoteAddress, SGES_MAX, SgeList};

/// A registration.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) domain: Key,
    pub(super) address: u64,
    pub(super) len: u64,
    pub(super) access: Access,
    view: Arc<DmaView>,
    view_offset: usize,
    of_device: Option<OfDevice>,
}

/// Mapped memory of another device. Its descriptor stays open as long as a dma-buf is in use.
#[derive(Debug)]
pub(super) struct OfDevice {
    view: Arc<DmaView>,
    _file: Region,
    /// The slot of the device, and its insertion when the memory was mapped.
    slot: Option<(Slot, Option<u64>)>,
}

impl OfDevice {
    /// Maps the file of a range, which contains the whole range.
    pub(super) fn map(range: &DeviceRange<'_>, slots: &[Slot]) -> Result<Self, Error> {
        let failed = |source| Error::System {
            step: "mapping memory of a device",
            source,
        };
        let (descriptor, offset) = range.descriptor();
        let status = fstat(descriptor).map_err(|errno| failed(errno.into()))?;
        let bytes = u64::try_from(status.st_size).unwrap_or(0);
        let is_within = offset
            .checked_add(range.bytes())
            .is_some_and(|end| end <= bytes);
        if !is_within {
            return Err(Error::Misuse("the memory exceeds its dma-buf"));
        }
        let owned = descriptor.try_clone_to_owned().map_err(failed)?;
        let file = Region::adopt(owned, bytes as usize);
        let file = file.map_err(|error| failed(std::io::Error::other(error)))?;
        // SAFETY: the program does not refer to memory of devices; software devices access theirs
        // by views.
        let view = unsafe { DmaView::of(&file) };
        let name = (status.st_dev, status.st_ino);
        let slot = slots.iter().find(|it| it.file == name).cloned();
        Ok(Self {
            view: Arc::new(view.map_err(failed)?),
            _file: file,
            slot: slot.map(|slot| {
                let insertion = (slot.insertion)();
                (slot, insertion)
            }),
        })
    }

    /// Whether the device is in its slot, and was there since the memory was mapped.
    fn responds(&self) -> bool {
        self.slot
            .as_ref()
            .is_none_or(|(slot, mapped)| mapped.is_some() && (slot.insertion)() == *mapped)
    }
}

/// The slot of a device whose memory is a file.
#[derive(Clone)]
pub(super) struct Slot {
    /// Device and inode.
    file: (u64, u64),
    /// The number of the device's insertion, `None` while it is not in its slot.
    insertion: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
}

impl Slot {
    pub(super) fn new(
        file: (u64, u64),
        insertion: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        let insertion = Arc::new(insertion);
        Self { file, insertion }
    }
}

impl Debug for Slot {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Slot").field(&self.file).finish()
    }
}

/// The binding of a window.
#[derive(Debug)]
pub(super) struct Bound {
    /// The queue pair that bound it: only the peer of that queue pair may use the key.
    pub(super) queue_pair: Key,
    pub(super) lkey: u32,
    pub(super) address: u64,
    pub(super) len: u64,
    pub(super) remote_read: bool,
    pub(super) remote_write: bool,
}

#[derive(Debug)]
struct Window {
    domain: Key,
    bound: Option<Bound>,
}

#[derive(Debug)]
enum Kind {
    Free,
    Memory(Memory),
    Window(Window),
}

#[derive(Debug)]
struct Entry {
    /// Changes with every reuse of the entry, and is part of the low byte of its keys.
    generation: u8,
    kind: Kind,
}

/// All keys. Local and remote keys of a registration differ, so that confusing them is detected.
#[derive(Debug, Default)]
pub(super) struct Keys {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Slots of devices whose memory may be registered.
    pub(super) slots: Vec<Slot>,
}

/// A piece of memory that passed the checks.
#[derive(Clone, Copy)]
pub(super) struct Segment<'a> {
    view: &'a DmaView,
    offset: usize,
    len: usize,
}

/// The pieces of one message.
#[derive(Clone, Copy, Default)]
pub(super) struct Segments<'a> {
    pieces: [Option<Segment<'a>>; SGES_MAX],
}

/// Access was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AccessDenied;

impl Keys {
    fn insert(&mut self, kind: Kind) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                generation: 0,
                kind: Kind::Free,
            });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1) & 0x7f;
        entry.kind = kind;
        // The first index is 1, so that no key is 0.
        (index + 1) << 8 | u32::from(entry.generation) << 1
    }

    fn entry(&self, lkey: u32) -> Option<&Entry> {
        let entry = self.entries.get((lkey >> 8).checked_sub(1)? as usize)?;
        (u32::from(entry.generation) << 1 == lkey & 0xff).then_some(entry)
    }

    fn entry_mut(&mut self, lkey: u32) -> Option<&mut Entry> {
        let entry = self.entries.get_mut((lkey >> 8).checked_sub(1)? as usize)?;
        (u32::from(entry.generation) << 1 == lkey & 0xff).then_some(entry)
    }

    /// Adds a registration; returns its local key.
    pub(super) fn register(
        &mut self,
        domain: Key,
        range: &MemoryRange<'_>,
        access: Access,
        view: Arc<DmaView>,
    ) -> u32 {
        let view_offset = range.address() - view.base_address();
        self.insert(Kind::Memory(Memory {
            domain,
            address: range.address() as u64,
            len: range.len() as u64,
            access,
            view,
            view_offset,
            of_device: None,
        }))
    }

    /// Adds a registration of memory of another device; returns its local key.
    pub(super) fn register_of_device(
        &mut self,
        domain: Key,
        range: &DeviceRange<'_>,
        access: Access,
        memory: OfDevice,
    ) -> u32 {
        let (_, offset) = range.descriptor();
        self.insert(Kind::Memory(Memory {
            domain,
            address: range.address(),
            len: range.bytes(),
            access,
            view: Arc::clone(&memory.view),
            view_offset: offset as usize,
            of_device: Some(memory),
        }))
    }

    /// Adds a window; returns its first key, which is not bound.
    pub(super) fn create_window(&mut self, domain: Key) -> u32 {
        self.insert(Kind::Window(Window {
            domain,
            bound: None,
        })) | 1
    }

    /// Removes a registration or a window, by either key.
    pub(super) fn remove(&mut self, key: u32) {
        let Some(index) = (key >> 8).checked_sub(1) else {
            return;
        };
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.kind = Kind::Free;
            self.free.push(index);
        }
    }

    pub(super) fn memory(&self, lkey: u32) -> Option<&Memory> {
        match &self.entry(lkey)?.kind {
            Kind::Memory(memory) => Some(memory),
            Kind::Free | Kind::Window(_) => None,
        }
    }

    /// The local memory of a work request.
    pub(super) fn local(
        &self,
        domain: Key,
        list: &SgeList,
        write: bool,
    ) -> Result<Segments<'_>, AccessDenied> {
        let mut segments = Segments::default();
        for (piece, sge) in segments.pieces.iter_mut().zip(list.as_slice()) {
            if sge.length() == 0 {
                continue;
            }
            let memory = self.memory(sge.lkey()).ok_or(AccessDenied)?;
            if memory.domain != domain || (write && !memory.access.local_write) {
                return Err(AccessDenied);
            }
            *piece = Some(memory.segment(sge.address(), u64::from(sge.length()))?);
        }
        Ok(segments)
    }

    /// The memory that `remote` names for the peer of `queue_pair`, which belongs to `domain`.
    pub(super) fn remote(
        &self,
        domain: Key,
        queue_pair: Key,
        remote: RemoteAddress,
        len: u64,
        write: bool,
    ) -> Result<Segments<'_>, AccessDenied> {
        let mut segments = Segments::default();
        if len == 0 {
            return Ok(segments);
        }
        let RemoteAddress { address, rkey } = remote;
        if rkey & 1 == 0 {
            return Err(AccessDenied);
        }
        let segment = match &self.entry(rkey & !1).ok_or(AccessDenied)?.kind {
            Kind::Free => return Err(AccessDenied),
            Kind::Memory(memory) => {
                let Access {
                    remote_read,
                    remote_write,
                    ..
                } = memory.access;
                let allowed = if write { remote_write } else { remote_read };
                if memory.domain != domain || !allowed {
                    return Err(AccessDenied);
                }
                memory.segment(address, len)?
            }
            Kind::Window(window) => {
                let bound = window.bound.as_ref().ok_or(AccessDenied)?;
                let allowed = if write {
                    bound.remote_write
                } else {
                    bound.remote_read
                };
                let inside = within(address, len, bound.address, bound.len);
                if bound.queue_pair != queue_pair || !allowed || !inside {
                    return Err(AccessDenied);
                }
                let memory = self.memory(bound.lkey).ok_or(AccessDenied)?;
                memory.segment(address, len)?
            }
        };
        segments.pieces[0] = Some(segment);
        Ok(segments)
    }

    /// The key that a window gets with its next binding.
    pub(super) fn next_window_key(rkey: u32) -> u32 {
        rkey & !0xff | (rkey & 0xff).wrapping_add(2) & 0xff
    }

    /// Binds the window whose current key precedes `rkey`.
    pub(super) fn bind(
        &mut self,
        domain: Key,
        rkey: u32,
        bound: Bound,
    ) -> Result<(), AccessDenied> {
        let memory = self.memory(bound.lkey).ok_or(AccessDenied)?;
        let Access {
            local_write,
            bind_window,
            ..
        } = memory.access;
        let inside = within(bound.address, bound.len, memory.address, memory.len);
        let writable = local_write || !bound.remote_write;
        if memory.domain != domain || !bind_window || !inside || !writable {
            return Err(AccessDenied);
        }
        let index = (rkey >> 8).checked_sub(1).ok_or(AccessDenied)? as usize;
        let entry = self.entries.get_mut(index).ok_or(AccessDenied)?;
        let Kind::Window(window) = &mut entry.kind else {
            return Err(AccessDenied);
        };
        if window.domain != domain || window.bound.is_some() {
            return Err(AccessDenied);
        }
        entry.generation = (rkey as u8) >> 1;
        window.bound = Some(bound);
        Ok(())
    }

    /// Invalidates a window's key. Registrations cannot be invalidated.
    pub(super) fn invalidate(&mut self, domain: Key, rkey: u32) -> Result<(), AccessDenied> {
        if rkey & 1 == 0 {
            return Err(AccessDenied);
        }
        match &mut self.entry_mut(rkey & !1).ok_or(AccessDenied)?.kind {
            Kind::Window(window) if window.domain == domain => {
                window.bound.take().map(|_| ()).ok_or(AccessDenied)
            }
            Kind::Window(_) | Kind::Memory(_) | Kind::Free => Err(AccessDenied),
        }
    }

    /// Number of registrations and windows.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

impl Memory {
    fn segment(&self, address: u64, len: u64) -> Result<Segment<'_>, AccessDenied> {
        // A read of a function that is not there ends with an error on the bus, and so does the request.
        let responds = self.of_device.as_ref().is_none_or(OfDevice::responds);
        if !responds || !within(address, len, self.address, self.len) {
            return Err(AccessDenied);
        }
        Ok(Segment {
            view: &self.view,
            offset: self.view_offset + (address - self.address) as usize,
            len: len as usize,
        })
    }
}

/// Whether a range, which is untrusted, lies in another, which is valid.
fn within(address: u64, len: u64, start: u64, bytes: u64) -> bool {
    address
        .checked_sub(start)
        .is_some_and(|offset| offset <= bytes && len <= bytes - offset)
}

impl<'a> Segments<'a> {
    pub(super) fn bytes(&self) -> usize {
        self.iter().map(|segment| segment.len).sum()
    }

    fn iter(&self) -> impl Iterator<Item = Segment<'a>> {
        self.pieces.iter().flatten().copied()
    }

    /// Copies all bytes to the front of `to`, which has room for them.
    pub(super) fn copy_to(&self, to: &Segments<'_>) {
        let mut targets = to.iter();
        let mut target = targets.next();
        for mut source in self.iter() {
            while source.len > 0 {
                let Some(place) = &mut target else { return };
                let bytes = source.len.min(place.len);
                let (view, at) = (place.view, place.offset);
                source.view.copy_to(source.offset, view, at, bytes);
                source.offset += bytes;
                source.len -= bytes;
                place.offset += bytes;
                place.len -= bytes;
                if place.len == 0 {
                    target = targets.next();
                }
            }
        }
    }

    /// Writes `bytes` to the front of the pieces, which have room for them.
    pub(super) fn fill(&self, mut bytes: &[u8]) {
        for segment in self.iter() {
            let (here, rest) = bytes.split_at(bytes.len().min(segment.len));
            segment.view.write(segment.offset, here);
            bytes = rest;
        }
    }
}

/// Views of the regions that are currently registered, and of foreign memory that tests registered
/// by address.
#[derive(Debug, Default)]
pub(super) struct Views {
    /// By the device and inode of the region's file, which are unique while the view lives. Two
    /// appliances of one process, of which one has handed over to the other, map it twice.
    regions: Vec<((u64, u64, usize), Weak<DmaView>)>,
    foreign: Vec<Arc<DmaView>>,
}

impl Views {
    /// The view that contains `range`.
    pub(super) fn of(&mut self, range: &MemoryRange<'_>) -> Result<Arc<DmaView>, Error> {
        let Some(region) = range.region() else {
            return self.of_foreign(range);
        };
        let failed = |step| move |source| Error::System { step, source };
        let status = fstat(region).map_err(|errno| failed("fstat")(errno.into()))?;
        let name = (status.st_dev, status.st_ino, region.base_address());
        self.regions.retain(|(_, view)| view.strong_count() > 0);
        let known = self.regions.iter().find(|(other, _)| *other == name);
        if let Some(view) = known.and_then(|(_, view)| view.upgrade()) {
            return Ok(view);
        }
        // SAFETY: the fabric copies bytes as posted work requests say, to and from memory that the
        // posters do not access meanwhile (see `SharedReceiveQueue` and `QueuePair`).
        let view = unsafe { DmaView::of(region) };
        let view = Arc::new(view.map_err(failed("a second mapping"))?);
        self.regions.push((name, Arc::downgrade(&view)));
        Ok(view)
    }

    fn of_foreign(&self, range: &MemoryRange<'_>) -> Result<Arc<DmaView>, Error> {
        let (address, len) = (range.address() as u64, range.len() as u64);
        let shows = |view: &&Arc<DmaView>| {
            within(address, len, view.base_address() as u64, view.len() as u64)
        };
        let view = self.foreign.iter().find(shows);
        view.cloned().ok_or_else(|| Error::System {
            step: "registering memory that the fabric does not know",
            source: rustix::io::Errno::FAULT.into(),
        })
    }

    /// Allows registration of a region's memory by address.
    pub(super) fn add_foreign(&mut self, region: &Region) -> std::io::Result<()> {
        // SAFETY: as in `of`.
        self.foreign.push(Arc::new(unsafe { DmaView::of(region) }?));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hugemem::PagePolicy;

    use super::*;
    use crate::fake::table::Table;

    #[test]
    fn memory_window_is_valid_only_for_its_queue_pair() {
        let region = Region::map(8192, PagePolicy::Ordinary).expect("memory");
        let range = MemoryRange::of_region(&region, 0..8192);
        let mut names = Table::default();
        let (domain, other_domain) = (names.insert(()), names.insert(()));
        let (mine, other) = (names.insert(()), names.insert(()));
        let mut keys = Keys::default();
        let view = Views::default().of(&range).expect("a second mapping");
        let lkey = keys.register(domain, &range, Access::WINDOWS, view);
        let rkey = Keys::next_window_key(keys.create_window(domain));
        let start = range.address() as u64;
        let bound = || Bound {
            queue_pair: mine,
            lkey,
            address: start + 100,
            len: 1000,
            remote_read: true,
            remote_write: false,
        };
        assert_eq!(keys.bind(other_domain, rkey, bound()), Err(AccessDenied));
        let too_long = Bound {
            len: 8093,
            ..bound()
        };
        assert_eq!(keys.bind(domain, rkey, too_long), Err(AccessDenied));
        assert_eq!(keys.bind(domain, rkey, bound()), Ok(()));
        let next = Keys::next_window_key(rkey);
        assert_eq!(
            keys.bind(domain, next, bound()),
            Err(AccessDenied),
            "it is bound"
        );
        let allowed = |keys: &Keys, queue_pair, offset, len, write, rkey| {
            let address = start + offset;
            let remote = RemoteAddress { address, rkey };
            keys.remote(domain, queue_pair, remote, len, write).is_ok()
        };
        assert!(allowed(&keys, mine, 100, 1000, false, rkey));
        assert!(!allowed(&keys, other, 100, 1000, false, rkey));
        assert!(!allowed(&keys, mine, 100, 1000, true, rkey));
        assert!(!allowed(&keys, mine, 99, 1000, false, rkey));
        assert!(!allowed(&keys, mine, 101, 1000, false, rkey));
        assert!(!allowed(&keys, mine, 100, 1000, false, next));
        assert!(!allowed(&keys, mine, 100, 1000, false, lkey));
        assert_eq!(keys.invalidate(other_domain, rkey), Err(AccessDenied));
        assert_eq!(
            keys.invalidate(domain, lkey | 1),
            Err(AccessDenied),
            "no window"
        );
        assert_eq!(keys.invalidate(domain, rkey), Ok(()));
        assert_eq!(keys.invalidate(domain, rkey), Err(AccessDenied));
        assert!(!allowed(&keys, mine, 100, 1000, false, rkey));
        keys.remove(lkey);
        assert_eq!(keys.bind(domain, next, bound()), Err(AccessDenied));
        keys.remove(rkey);
        assert_eq!(keys.len(), 0);
    }
}
