//! A VFIO device as the driver's backing: real drives.
//!
//! It only translates calls: [`vfio`] checks bounds, orders doorbells after memory, and makes sure
//! that the drive accesses only the arena and memory of other drives.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hugemem::{AddressSpace, Arena, DmaBuf};
use vfio::{Bar, Container, Device, PciAddress};

use crate::backing::{ControllerMemory, DeviceBacking};

/// A PCI NVMe function opened through VFIO.
///
/// When the last reference is dropped, the kernel stops and resets the function, and returns it if
/// the system requested it.
#[derive(Debug)]
pub struct VfioBacking {
    device: Device,
    /// Device address of the arena's first byte.
    arena_address: u64,
}

impl VfioBacking {
    /// Opens the drive at `address` in `container`, with access to `arena` only, and with at most
    /// `vectors_max` interrupt vectors (useful are one per reactor and one for the admin queue).
    /// Bus mastering stays off.
    ///
    /// # Errors
    /// Those of [`Container::map_arena`] and [`Container::open_device`].
    pub fn open(
        container: &Arc<Container>,
        address: PciAddress,
        arena: &Arc<Arena>,
        vectors_max: u16,
    ) -> Result<VfioBacking, vfio::Error> {
        container.map_arena(arena, address)?;
        let device = container.open_device(address, vectors_max)?;
        // The open device keeps its group in the container, and with it the arena's mapping.
        let arena_address = container.arena_address().ok_or(vfio::Error::Unusable {
            address,
            what: "its container has no memory",
        })?;
        Ok(VfioBacking {
            device,
            arena_address,
        })
    }
}

impl DeviceBacking for VfioBacking {
    fn registers_len(&self) -> usize {
        self.device.registers().len()
    }

    fn read_u32(&self, offset: usize) -> u32 {
        self.device.registers().read_u32(offset)
    }

    fn read_u64(&self, offset: usize) -> u64 {
        self.device.registers().read_u64(offset)
    }

    fn write_u32(&self, offset: usize, value: u32) {
        self.device.registers().write_u32(offset, value);
    }

    fn write_u64(&self, offset: usize, value: u64) {
        self.device.registers().write_u64(offset, value);
    }

    fn dma_address(&self, region_offset: usize) -> u64 {
        self.arena_address + region_offset as u64
    }

    fn controller_memory(
        &self,
        bar: u8,
        offset: u64,
        len: u64,
    ) -> Option<Arc<dyn ControllerMemory>> {
        // A drive may report a buffer that does not exist or cannot be mapped; it is then not used.
        let bus_address = self.device.bar_bus_address(bar).ok()?.checked_add(offset)?;
        let bar = self.device.bar(bar).ok()?;
        let offset = usize::try_from(offset).ok()?;
        let len = usize::try_from(len).ok()?;
        let within = offset.checked_add(len).is_some_and(|end| end <= bar.len());
        if len == 0 || !within || !offset.is_multiple_of(8) {
            return None;
        }
        Some(Arc::new(VfioControllerMemory {
            bar,
            offset,
            len,
            bus_address,
        }))
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.device.address_space()
    }

    fn reserve_addresses(&self, len: u64, at: Option<u64>) -> Option<u64> {
        self.device.reserve_addresses(len, at)
    }

    fn share_memory(&self, bar: u8, part: (u64, u64), address: u64) -> io::Result<()> {
        self.device.map_for_neighbours(bar, part, address)
    }

    fn unshare_memory(&self, is_unused: bool) {
        self.device.unmap_for_neighbours(is_unused);
    }

    fn export_memory(&self, bar: u8, part: (u64, u64)) -> io::Result<DmaBuf> {
        let descriptor = self.device.export_bar(bar, part)?;
        Ok(DmaBuf::new(descriptor, 0))
    }

    fn set_bus_master(&self, on: bool) -> io::Result<()> {
        self.device.set_bus_master(on)
    }

    fn reset_function(&self) -> io::Result<()> {
        self.device.reset()
    }

    fn interrupt_vectors(&self) -> u16 {
        self.device.interrupt_vectors()
    }

    fn interrupt(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.device.interrupt(vector)
    }

    fn arm_interrupt(&self, vector: u16, armed: bool) -> io::Result<()> {
        self.device.arm_interrupt(vector, armed)
    }

    fn clear_interrupt(&self, vector: u16) {
        self.device.clear_interrupt(vector);
    }

    fn removal_requested(&self) -> bool {
        self.device.removal_requested()
    }

    fn describe(&self) -> String {
        self.device.address().to_string()
    }
}

/// A controller memory buffer in one of the drive's BARs.
#[derive(Debug)]
struct VfioControllerMemory {
    bar: Arc<Bar>,
    offset: usize,
    len: usize,
    bus_address: u64,
}

impl ControllerMemory for VfioControllerMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn bus_address(&self) -> u64 {
        self.bus_address
    }

    fn write_u64(&self, offset: usize, value: u64) {
        assert!(
            offset <= self.len && 8 <= self.len - offset,
            "8 bytes at {offset:#x} of {:#x} bytes of controller memory",
            self.len
        );
        self.bar.write_u64(self.offset + offset, value);
    }

    // No flush: VFIO maps the BAR uncached, so writes reach the function in order, doorbells last.
}
