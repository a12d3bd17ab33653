//! Everything that the controller accesses: the arena through its second mapping, its own memory
//! buffer, interrupts.
//!
//! It accesses memory of other drives as far as it is mapped. Rejects other addresses, and all accesses while bus mastering is off.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugemem::{DmaView, PagePolicy, Region, SharedRegion};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FlockOperation, flock, fstat};

use nvme_driver::backing::ControllerMemory;

use super::space::EmulatedSpace;

/// Bus address of the controller memory buffer: the value of its BAR.
const CONTROLLER_MEMORY_BUS_ADDRESS: u64 = 0x40_0000_0000;

/// What is in a buffer that has lost its content.
const LOST: [u8; 4096] = [0xdb; 4096];

/// The controller memory buffer. The host writes it without the controller's lock, like posted
/// writes. It is a file, which others may map.
pub(super) struct Memory {
    content: SharedRegion,
    len: usize,
    /// Insertions of the drive and removals: an odd number while it is in its slot.
    moves: AtomicU64,
    /// What the controller still sees of lost content, until it has stopped.
    kept: Mutex<Option<Box<[u8]>>>,
}

impl Memory {
    pub(super) fn new(bytes: usize) -> io::Result<Arc<Self>> {
        let region = Region::map(bytes, PagePolicy::Ordinary).map_err(io::Error::other)?;
        Ok(Arc::new(Self {
            content: SharedRegion::new(region)?,
            len: bytes,
            moves: AtomicU64::new(1),
            kept: Mutex::new(None),
        }))
    }

    /// Another descriptor of the file, with a lock that shows whether it is still open.
    pub(super) fn export(&self) -> io::Result<OwnedFd> {
        let own = self.content.region().as_fd().as_raw_fd();
        let path = format!("/proc/self/fd/{own}");
        let file = std::fs::File::options().read(true).write(true).open(path)?;
        flock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(file.into())
    }

    /// Whether an exported descriptor is open, or a mapping that was made of it has kept it.
    pub(super) fn is_exported(&self) -> bool {
        let own = self.content.region();
        let is_locked = flock(own, FlockOperation::NonBlockingLockExclusive).is_err();
        // It has no lock if that failed.
        let _ = flock(own, FlockOperation::Unlock);
        is_locked
    }

    /// Writes bytes, which is done by the controller only.
    fn write(&self, offset: usize, from: &[u8]) {
        self.content.view().write(offset, from);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.content.view().read(offset, into);
    }
}

impl Memory {
    /// The number of the drive's insertion, `None` while it is not in its slot.
    pub(super) fn insertion(&self) -> Option<u64> {
        let moves = self.moves.load(Ordering::Acquire);
        (!moves.is_multiple_of(2)).then_some(moves)
    }

    /// Device and inode of its file.
    pub(super) fn file(&self) -> io::Result<(u64, u64)> {
        let status = fstat(self.content.region().as_fd())?;
        Ok((status.st_dev, status.st_ino))
    }

    /// Overwrites everything, except for commands of a controller that is about to stop: it does not
    /// execute any from lost content.
    pub(super) fn lose_when_stopped(&self) {
        let mut content = vec![0; self.len].into_boxed_slice();
        self.read(0, &mut content);
        *self.kept() = Some(content);
        self.lose();
    }

    /// The controller has stopped.
    pub(super) fn stop(&self) {
        *self.kept() = None;
    }

    /// A read by the controller itself.
    fn read_own(&self, offset: usize, into: &mut [u8]) {
        match &*self.kept() {
            Some(content) => into.copy_from_slice(&content[offset..offset + into.len()]),
            None => self.read(offset, into),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Option<Box<[u8]>>> {
        // Each change is complete before the next one.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Overwrites everything: a controller that stops loses the content.
    pub(super) fn lose(&self) {
        for offset in (0..self.len).step_by(LOST.len()) {
            let bytes = LOST.len().min(self.len - offset);
            self.content.view().write(offset, &LOST[..bytes]);
        }
    }
}

impl ControllerMemory for Memory {
    fn len(&self) -> usize {
        self.len
    }

    fn bus_address(&self) -> u64 {
        CONTROLLER_MEMORY_BUS_ADDRESS
    }

    fn write_u64(&self, offset: usize, value: u64) {
        assert!(
            offset.is_multiple_of(8),
            "8 bytes at {offset} of the buffer"
        );
        let words = self.content.view();
        words.store_words(offset, &[u64::from_le(value)]);
    }
}

struct Vector {
    event: OwnedFd,
    armed: AtomicBool,
}

/// The target of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// The arena, at this offset of its region.
    Arena(usize),
    /// The controller memory buffer, at this offset.
    Controller(usize),
    /// Memory of another drive.
    Neighbour,
}

pub(super) struct Bus {
    view: DmaView,
    base: u64,
    memory: Option<Arc<Memory>>,
    /// Whether data may be in the controller memory buffer.
    pub(super) holds_data: bool,
    /// Address of the controller memory buffer, set by the host or the BAR; [`UNPLACED`] if none.
    placed: AtomicU64,
    master: AtomicBool,
    vectors: Box<[Vector]>,
    /// The address space that it shares, and its number there.
    pub(super) space: Option<(Arc<EmulatedSpace>, u64)>,
}

const UNPLACED: u64 = u64::MAX;

impl Bus {
    pub(super) fn new(
        view: DmaView,
        base: u64,
        (memory, holds_data): (Option<Arc<Memory>>, bool),
        vectors: u16,
        space: Option<Arc<EmulatedSpace>>,
    ) -> io::Result<Self> {
        let vector = |_| {
            let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
            Ok(Vector {
                event: eventfd(0, flags)?,
                armed: AtomicBool::new(false),
            })
        };
        Ok(Self {
            view,
            base,
            memory,
            holds_data,
            placed: AtomicU64::new(UNPLACED),
            master: AtomicBool::new(false),
            vectors: (0..vectors).map(vector).collect::<io::Result<_>>()?,
            space: space.map(|space| {
                let number = space.join();
                (space, number)
            }),
        })
    }

    pub(super) fn address(&self, region_offset: usize) -> u64 {
        self.base + region_offset as u64
    }

    pub(super) fn memory(&self) -> Option<&Arc<Memory>> {
        self.memory.as_ref()
    }

    /// Sets the address of the controller memory buffer, or removes it with `None`.
    pub(super) fn place_memory(&self, address: Option<u64>) {
        self.placed
            .store(address.unwrap_or(UNPLACED), Ordering::Release);
    }

    pub(super) fn place_memory_by_bar(&self) {
        self.place_memory(Some(CONTROLLER_MEMORY_BUS_ADDRESS));
    }

    /// Inserts the drive or removes it, whose memory then has lost its content and does not respond.
    pub(super) fn set_present(&self, is_present: bool) {
        if let Some(memory) = &self.memory {
            if memory.insertion().is_some() != is_present {
                memory.moves.fetch_add(1, Ordering::AcqRel);
            }
            memory.stop();
            memory.lose();
        }
    }

    pub(super) fn set_master(&self, on: bool) {
        self.master.store(on, Ordering::Release);
    }

    pub(super) fn is_master(&self) -> bool {
        self.master.load(Ordering::Acquire)
    }

    /// Resolves `len` bytes from an address on. Returns `None` unless all of them are in the same
    /// memory.
    #[inline]
    pub(super) fn place(&self, address: u64, len: usize) -> Option<Location> {
        let within = |start: u64, size: usize| {
            let offset = usize::try_from(address.checked_sub(start)?).ok()?;
            (offset <= size && len <= size - offset).then_some(offset)
        };
        if let Some(offset) = within(self.base, self.view.len()) {
            return Some(Location::Arena(offset));
        }
        let placed = self.placed.load(Ordering::Acquire);
        if let Some(memory) = self.memory.as_ref().filter(|_| placed != UNPLACED)
            && let Some(offset) = within(placed, memory.len())
        {
            return Some(Location::Controller(offset));
        }
        let (space, _) = self.space.as_ref()?;
        space.access(address, len, |_, _| ())?;
        Some(Location::Neighbour)
    }

    /// Accesses memory of another drive.
    fn reach(&self, address: u64, len: usize, act: impl FnOnce(&Memory, usize)) -> Option<()> {
        let (space, _) = self.space.as_ref().filter(|_| self.is_master())?;
        space.count_access();
        space.access(address, len, act)
    }

    /// Whether other devices may access the memory.
    pub(super) fn is_shared(&self) -> bool {
        let space = self.space.as_ref();
        space.is_some_and(|(space, number)| space.is_mapped(*number))
            || self.memory.as_ref().is_some_and(|it| it.is_exported())
    }

    /// Reads memory. Returns `None` if there is none, or the controller may not access it.
    #[must_use]
    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        if !self.is_master() {
            return None;
        }
        match self.place(address, into.len())? {
            Location::Arena(offset) => self.view.read(offset, into),
            Location::Controller(offset) => self.memory.as_ref()?.read_own(offset, into),
            Location::Neighbour => {
                self.reach(address, into.len(), |memory, at| memory.read(at, into))?;
            }
        }
        Some(())
    }

    /// Writes host memory. Returns `None` if there is none, or the controller may not access it.
    #[must_use]
    pub(super) fn write(&self, address: u64, from: &[u8]) -> Option<()> {
        match self.place(address, from.len())? {
            Location::Arena(offset) if self.is_master() => {
                self.view.write(offset, from);
                Some(())
            }
            Location::Controller(offset) if self.holds_data => {
                self.memory.as_ref()?.write(offset, from);
                Some(())
            }
            Location::Neighbour => {
                self.reach(address, from.len(), |memory, at| memory.write(at, from))
            }
            Location::Arena(_) | Location::Controller(_) => None,
        }
    }

    /// Loads four aligned bytes, ordered before all later accesses.
    pub(super) fn load_u32(&self, address: u64) -> Option<u32> {
        match self.place(address, 4)? {
            Location::Arena(offset) if self.is_master() && offset.is_multiple_of(4) => {
                Some(u32::from_le(self.view.load_u32(offset, Ordering::Acquire)))
            }
            Location::Arena(_) | Location::Controller(_) | Location::Neighbour => None,
        }
    }

    /// Stores four aligned bytes, ordered after all earlier accesses.
    #[must_use]
    pub(super) fn store_u32(&self, address: u64, value: u32) -> Option<()> {
        match self.place(address, 4)? {
            Location::Arena(offset) if self.is_master() && offset.is_multiple_of(4) => {
                self.view
                    .store_u32(offset, value.to_le(), Ordering::Release);
                Some(())
            }
            Location::Arena(_) | Location::Controller(_) | Location::Neighbour => None,
        }
    }

    pub(super) fn vectors(&self) -> u16 {
        self.vectors.len() as u16
    }

    pub(super) fn event(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        Some(self.vectors.get(usize::from(vector))?.event.as_fd())
    }

    pub(super) fn arm(&self, vector: u16, armed: bool) -> io::Result<()> {
        let vector = self.vectors.get(usize::from(vector));
        let vector = vector.ok_or(io::ErrorKind::InvalidInput)?;
        vector.armed.store(armed, Ordering::SeqCst);
        Ok(())
    }

    pub(super) fn disarm_all(&self) {
        for vector in &self.vectors {
            vector.armed.store(false, Ordering::SeqCst);
        }
    }

    pub(super) fn clear(&self, vector: u16) {
        if let Some(vector) = self.vectors.get(usize::from(vector)) {
            let mut count = [0; 8];
            // If there is nothing to read, no interrupt fired.
            let _ = rustix::io::read(&vector.event, &mut count);
        }
    }

    /// Fires a vector. An interrupt of a vector that is not armed is lost. Returns whether it was
    /// armed.
    pub(super) fn fire(&self, vector: u16) -> bool {
        let Some(vector) = self.vectors.get(usize::from(vector)) else {
            return false;
        };
        let armed = vector.armed.load(Ordering::SeqCst);
        if armed {
            // If the counter is full, the descriptor is readable already.
            let _ = rustix::io::write(&vector.event, &1_u64.to_ne_bytes());
        }
        armed
    }
}
