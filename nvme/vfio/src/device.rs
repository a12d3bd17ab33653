//! One PCI function that this program has opened.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugemem::AddressSpace;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{pread, pwrite};
use vfio_bindings::bindings::vfio::{self as abi, vfio_device_info};

use crate::bar::Bar;
use crate::capabilities::RegionInfo;
use crate::container::{BarMapping, Container, Membership};
use crate::{Error, PciAddress, ioctl};

/// Number of base address registers of a function.
const BARS: usize = 6;
/// The command register (PCI 3.0 §6.2.2) and the bits used here.
const COMMAND: u64 = 0x04;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
/// The first base address register, and the meaning of its low bits (PCI 3.0 §6.2.5.1).
const BASE_ADDRESSES: u64 = 0x10;
const BASE_IS_PORT: u32 = 1;
const BASE_IS_64_BITS: u32 = 1 << 2;
const BASE_FLAGS: u32 = 0xf;

/// A device's descriptor and its membership in the container. They are closed in this order, when
/// nothing of the device is mapped any more.
#[derive(Debug)]
pub(crate) struct Handle {
    file: OwnedFd,
    membership: Option<Membership>,
}

impl Handle {
    pub(crate) fn new(file: OwnedFd, membership: Option<Membership>) -> Arc<Handle> {
        Arc::new(Handle { file, membership })
    }

    fn container(&self) -> Option<&Arc<Container>> {
        Some(self.membership.as_ref()?.container())
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A function's interrupt vectors, each with an eventfd.
#[derive(Debug)]
struct Interrupts {
    /// Index of MSI-X, or of MSI for functions without MSI-X.
    index: u32,
    vectors: Vec<OwnedFd>,
}

/// Memory of a function that other functions may access.
#[derive(Debug, Default)]
struct SharedMemory {
    /// The first of its addresses, and their number.
    reserved: Option<(u64, u64)>,
    mapping: Option<BarMapping>,
}

/// An open PCI function: registers, configuration space, interrupts, reset. Shared by all threads.
///
/// When it and all its [`Bar`]s are dropped, the kernel stops the function, disconnects its
/// interrupts and resets it. Other functions cannot access its memory any more then, and neither
/// can they during a [`reset`](Self::reset).
#[derive(Debug)]
pub struct Device {
    shared: Mutex<SharedMemory>,
    registers: Arc<Bar>,
    regions: [RegionInfo; BARS],
    /// Offset of the configuration space in the descriptor, and its length.
    configuration: (u64, u64),
    interrupts: Interrupts,
    removal_event_fd: Option<OwnedFd>,
    removal_was_requested: AtomicBool,
    can_reset: bool,
    /// Protects the read-modify-write of the command register.
    command: Mutex<()>,
    address: PciAddress,
    handle: Arc<Handle>,
}

fn new_eventfd() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Empties an eventfd. Returns whether it had fired.
fn clear_eventfd(event: &OwnedFd) -> bool {
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).is_ok()
}

impl Device {
    pub(crate) fn new(
        handle: Arc<Handle>,
        address: PciAddress,
        vectors_max: u16,
    ) -> Result<Device, Error> {
        let failed = |step| {
            move |source| Error::System {
                address,
                step,
                source,
            }
        };
        let info = ioctl::device_info(handle.as_fd()).map_err(failed("VFIO_DEVICE_GET_INFO"))?;
        let flags = info.u32(std::mem::offset_of!(vfio_device_info, flags));
        if flags & abi::VFIO_DEVICE_FLAGS_PCI == 0 {
            let what = "VFIO reports that it is not a PCI function";
            return Err(Error::Unusable { address, what });
        }
        let region = |index: u32| match ioctl::region_info(handle.as_fd(), index) {
            Ok(info) => Ok(RegionInfo::of(&info)),
            // The kernel's error for a region that this function does not have.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(RegionInfo::default()),
            Err(error) => Err(failed("VFIO_DEVICE_GET_REGION_INFO")(error)),
        };
        let mut regions: [RegionInfo; BARS] = std::array::from_fn(|_| RegionInfo::default());
        for (index, entry) in regions.iter_mut().enumerate() {
            *entry = region(index as u32)?;
        }
        let configuration = region(abi::VFIO_PCI_CONFIG_REGION_INDEX)?;
        let configuration = (configuration.offset, configuration.size);
        if regions[0].size == 0 {
            let what = "it has no registers in BAR 0";
            return Err(Error::Unusable { address, what });
        }
        write_command(&handle, configuration, |command| {
            (command | COMMAND_MEMORY) & !COMMAND_BUS_MASTER
        })
        .map_err(failed("cannot write its command register"))?;
        let registers = Bar::map(&handle, &regions[0]).map_err(failed("cannot map BAR 0"))?;
        let interrupts = connect_vectors(handle.as_fd(), vectors_max)
            .map_err(failed("cannot prepare its interrupts"))?;
        let removal_event_fd = register_removal_event(handle.as_fd())
            .map_err(failed("cannot watch for its removal"))?;
        Ok(Device {
            shared: Mutex::default(),
            registers: Arc::new(registers),
            regions,
            configuration,
            interrupts,
            removal_event_fd,
            removal_was_requested: AtomicBool::new(false),
            can_reset: flags & abi::VFIO_DEVICE_FLAGS_RESET != 0,
            command: Mutex::new(()),
            address,
            handle,
        })
    }

    /// The function's address.
    #[must_use]
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// BAR 0: the registers and doorbells of an NVMe controller.
    #[inline]
    #[must_use]
    pub fn registers(&self) -> &Bar {
        &self.registers
    }

    /// Maps another BAR, for example the one with a controller memory buffer.
    ///
    /// # Errors
    /// `NotFound` if the function does not have this BAR, otherwise the kernel's error.
    pub fn bar(&self, index: u8) -> io::Result<Arc<Bar>> {
        let region = self.regions.get(usize::from(index));
        match region.filter(|region| region.size > 0) {
            Some(_) if index == 0 => Ok(Arc::clone(&self.registers)),
            Some(region) => Bar::map(&self.handle, region).map(Arc::new),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The bus address of a memory BAR, from the function's configuration space.
    ///
    /// # Errors
    /// `NotFound` if the function does not have this BAR, otherwise the kernel's error.
    pub fn bar_bus_address(&self, index: u8) -> io::Result<u64> {
        let region = self.regions.get(usize::from(index));
        if region.is_none_or(|region| region.size == 0) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let at = BASE_ADDRESSES + u64::from(index) * 4;
        let low = self.configuration_u32(at)?;
        if low & BASE_IS_PORT != 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        let high = if low & BASE_IS_64_BITS != 0 {
            self.configuration_u32(at + 4)?
        } else {
            0
        };
        Ok(u64::from(high) << 32 | u64::from(low & !BASE_FLAGS))
    }

    fn shared(&self) -> MutexGuard<'_, SharedMemory> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address space in which the function accesses memory.
    #[must_use]
    pub fn address_space(&self) -> Option<AddressSpace> {
        self.handle.container().map(|container| container.space())
    }

    /// Addresses of the container for `len` bytes of this function's memory, from `at` on if given:
    /// neither the arena nor memory of another function has them. The function keeps them until
    /// it is dropped. `None` if there are none.
    #[must_use]
    pub fn reserve_addresses(&self, len: u64, at: Option<u64>) -> Option<u64> {
        let container = self.handle.container()?;
        let mut shared = self.shared();
        if let Some((first, reserved)) = shared.reserved {
            if reserved == len && at.is_none_or(|at| at == first) {
                return Some(first);
            }
            if shared.mapping.is_some() {
                return None;
            }
            container.unreserve(first);
            shared.reserved = None;
        }
        let first = container.reserve(len, at)?;
        shared.reserved = Some((first, len));
        Some(first)
    }

    /// Maps `len` bytes at `offset` of a BAR for all functions in the container, at `address`, which
    /// is within the reserved addresses with all bytes.
    ///
    /// # Errors
    /// `InvalidInput` if they are not, or the kernel does not map this part of the BAR; `AlreadyExists`;
    /// `Unsupported` with iommufd; otherwise the kernel's error.
    pub fn map_for_neighbours(
        &self,
        bar: u8,
        (offset, len): (u64, u64),
        address: u64,
    ) -> io::Result<()> {
        let container = self.handle.container().ok_or(io::ErrorKind::NotFound)?;
        let bar = self.bar(bar)?;
        let mut shared = self.shared();
        if shared.mapping.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let is_reserved = shared.reserved.is_some_and(|(first, reserved)| {
            let begin = address.checked_sub(first);
            begin.is_some_and(|begin| begin <= reserved && len <= reserved - begin)
        });
        if !is_reserved || len == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        shared.mapping = Some(container.map_bar(&bar, (offset, len), address)?);
        Ok(())
    }

    /// Ends the mapping for other functions, if there is one. Unless `is_unused`, requests of others
    /// may still use the addresses, so they are never used again.
    pub fn unmap_for_neighbours(&self, is_unused: bool) {
        let mut shared = self.shared();
        if let Some(mapping) = shared.mapping.take() {
            let is_unmapped = mapping.unmap();
            if !is_unmapped || !is_unused {
                shared.reserved = None;
            }
        }
    }

    /// A descriptor of a part of a BAR, an offset and a length in bytes, for drivers of other devices: a
    /// dma-buf. The device stays in use until the descriptor and everything that was made of it is
    /// closed.
    ///
    /// # Errors
    /// `NotFound` if the function does not have this BAR, otherwise the kernel's error: `ENOTTY` before
    /// Linux 6.19.
    pub fn export_bar(&self, bar: u8, part: (u64, u64)) -> io::Result<OwnedFd> {
        let region = self.regions.get(usize::from(bar));
        if region.is_none_or(|region| region.size == 0) {
            return Err(io::ErrorKind::NotFound.into());
        }
        ioctl::export_region(self.handle.as_fd(), u32::from(bar), part)
    }

    fn configuration_u32(&self, offset: u64) -> io::Result<u32> {
        let mut bytes = [0; 4];
        read_configuration(&self.handle, self.configuration, offset, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Allows the function to access memory and send interrupts, or prevents it. After `Ok` for
    /// `false`, the function neither reads nor writes memory, and none of its accesses is in
    /// progress: the completion of the read that follows the write pushes them ahead of it.
    ///
    /// # Errors
    /// The configuration space does not respond, for example because the function was removed.
    pub fn set_bus_master(&self, on: bool) -> io::Result<()> {
        let _command = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        write_command(&self.handle, self.configuration, |command| {
            if on {
                command | COMMAND_MEMORY | COMMAND_BUS_MASTER
            } else {
                command & !COMMAND_BUS_MASTER
            }
        })
    }

    /// Resets the function, with bus mastering off before and after. May take 100 ms or more: never
    /// call it on a reactor.
    ///
    /// # Errors
    /// `Unsupported` if the function has no reset, otherwise the kernel's error.
    pub fn reset(&self) -> io::Result<()> {
        if !self.can_reset {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.unmap_for_neighbours(false);
        // Ignore errors: a reset may recover a function whose configuration space no longer
        // responds.
        let _ = self.set_bus_master(false);
        let _command = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        ioctl::reset(self.handle.as_fd())
    }

    /// Number of usable interrupt vectors; 0 if there are none.
    #[must_use]
    pub fn interrupt_vectors(&self) -> u16 {
        // At most the number requested, which was a u16.
        self.interrupts.vectors.len() as u16
    }

    /// The eventfd of a vector: readable from when it fires until it is cleared. `None` if the
    /// function has fewer vectors.
    #[must_use]
    pub fn interrupt(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        let event = self.interrupts.vectors.get(usize::from(vector))?;
        Some(event.as_fd())
    }

    /// Connects a vector to its eventfd, or disconnects it: one system call, which masks or unmasks
    /// the vector. An interrupt sent while it is disconnected may be lost.
    ///
    /// # Errors
    /// `NotFound` if the function has fewer vectors, otherwise the kernel's error.
    pub fn arm_interrupt(&self, vector: u16, armed: bool) -> io::Result<()> {
        let event = self.interrupt(vector).ok_or(io::ErrorKind::NotFound)?;
        let target = armed.then_some(event);
        let index = self.interrupts.index;
        ioctl::set_interrupts(self.handle.as_fd(), index, u32::from(vector), &[target]).map(drop)
    }

    /// Makes a vector's eventfd unreadable until it fires again: one system call.
    pub fn clear_interrupt(&self, vector: u16) {
        if let Some(event) = self.interrupts.vectors.get(usize::from(vector)) {
            clear_eventfd(event);
        }
    }

    /// Whether the system has requested the function back: it is about to be unplugged or unbound,
    /// and the system waits until this device is dropped. One system call until it has.
    #[must_use]
    pub fn removal_requested(&self) -> bool {
        if self.removal_was_requested.load(Ordering::Relaxed) {
            return true;
        }
        let requested = self.removal_event_fd.as_ref().is_some_and(clear_eventfd);
        if requested {
            self.removal_was_requested.store(true, Ordering::Relaxed);
        }
        requested
    }

    /// The eventfd of [`removal_requested`](Self::removal_requested), to wait on; `None` if the
    /// kernel does not support it.
    #[must_use]
    pub fn removal_event(&self) -> Option<BorrowedFd<'_>> {
        self.removal_event_fd.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.unmap_for_neighbours(false);
        if let Some(container) = self.handle.container()
            && let Some((first, _)) = self.shared().reserved
        {
            container.unreserve(first);
        }
    }
}

/// The offset in the descriptor of `bytes` bytes at `offset` of the configuration space.
fn within(configuration: (u64, u64), offset: u64, bytes: usize) -> io::Result<u64> {
    let (start, size) = configuration;
    if offset + bytes as u64 > size {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(start + offset)
}

fn read_configuration(
    handle: &Handle,
    configuration: (u64, u64),
    offset: u64,
    into: &mut [u8],
) -> io::Result<()> {
    let at = within(configuration, offset, into.len())?;
    let wanted = into.len();
    if pread(handle, into, at)? != wanted {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Changes the command register, and reads it again to make sure that the change has taken effect.
fn write_command(
    handle: &Handle,
    configuration: (u64, u64),
    change: impl Fn(u16) -> u16,
) -> io::Result<()> {
    let read = || {
        let mut bytes = [0; 2];
        read_configuration(handle, configuration, COMMAND, &mut bytes)?;
        match u16::from_le_bytes(bytes) {
            // No function has all of these bits set: the bus returned all ones.
            0xffff => Err(io::Error::from(io::ErrorKind::NotConnected)),
            command => Ok(command),
        }
    };
    let wanted = change(read()?);
    let at = within(configuration, COMMAND, 2)?;
    if pwrite(handle, &wanted.to_le_bytes(), at)? != 2 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let bits = COMMAND_MEMORY | COMMAND_BUS_MASTER;
    if read()? & bits != wanted & bits {
        return Err(io::Error::other(
            "the command register did not take the change",
        ));
    }
    Ok(())
}

/// Prepares at most `most` interrupt vectors, all disconnected.
fn connect_vectors(device: BorrowedFd<'_>, most: u16) -> io::Result<Interrupts> {
    for index in [abi::VFIO_PCI_MSIX_IRQ_INDEX, abi::VFIO_PCI_MSI_IRQ_INDEX] {
        let mut count = ioctl::interrupt_count(device, index)?.min(u32::from(most));
        while count > 0 {
            let nothing = vec![None; count as usize];
            match ioctl::set_interrupts(device, index, 0, &nothing)? {
                0 => {
                    let events = (0..count).map(|_| new_eventfd());
                    let vectors = events.collect::<io::Result<_>>()?;
                    return Ok(Interrupts { index, vectors });
                }
                // The machine has fewer vectors left. Always reduce the number, so that the loop
                // ends.
                available => count = available.min(count - 1),
            }
        }
    }
    let index = abi::VFIO_PCI_MSIX_IRQ_INDEX;
    Ok(Interrupts {
        index,
        vectors: Vec::new(),
    })
}

/// Registers an eventfd for the kernel's request to return the function.
fn register_removal_event(device: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let index = abi::VFIO_PCI_REQ_IRQ_INDEX;
    // Kernels without this event return an error.
    if !ioctl::interrupt_count(device, index).is_ok_and(|count| count > 0) {
        return Ok(None);
    }
    let event = new_eventfd()?;
    ioctl::set_interrupts(device, index, 0, &[Some(event.as_fd())])?;
    Ok(Some(event))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration space of 64 bytes at offset 4096 of a file.
    fn space(command: u16) -> (Arc<Handle>, (u64, u64)) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096 + 64).unwrap();
        let handle = Handle::new(file.into(), None);
        pwrite(&*handle, &command.to_le_bytes(), 4096 + COMMAND).unwrap();
        (handle, (4096, 64))
    }

    fn command(handle: &Handle) -> u16 {
        let mut bytes = [0; 2];
        pread(handle, &mut bytes, 4096 + COMMAND).unwrap();
        u16::from_le_bytes(bytes)
    }

    #[test]
    fn a_removed_function_ignores_commands() {
        let (handle, place) = space(0xffff);
        let error = write_command(&handle, place, |command| command & !4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        assert_eq!(command(&handle), 0xffff);
    }

    #[test]
    fn truncated_configuration_space_is_an_error() {
        let (handle, _) = space(0);
        assert!(write_command(&handle, (4096, 4), |command| command).is_err());
        assert!(write_command(&handle, (1 << 20, 64), |command| command).is_err());
        assert!(read_configuration(&handle, (4096, 64), 62, &mut [0; 4]).is_err());
    }

    #[test]
    fn other_command_register_bits_are_preserved() {
        let (handle, place) = space(0x0402);
        write_command(&handle, place, |command| command | COMMAND_BUS_MASTER).unwrap();
        assert_eq!(command(&handle), 0x0406);
    }
}
