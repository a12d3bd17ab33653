//! Drives that are released on any thread and closed on the control thread: the kernel resets a
//! function when it is closed, which takes 100 ms or more, and a reactor must not block that long.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use hugemem::{AddressSpace, DmaBuf};
use nvme_driver::backing::{ControllerMemory, DeviceBacking};

/// Released drives, for the control thread to close.
#[derive(Default)]
pub(super) struct ReleasedDrives(Mutex<Vec<Arc<dyn DeviceBacking>>>);

impl ReleasedDrives {
    fn push(&self, drive: Arc<dyn DeviceBacking>) {
        let mut drives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drives.push(drive);
    }

    /// Closes them. May block.
    pub(super) fn close(&self) {
        let drives = {
            let mut drives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *drives)
        };
        // Outside the lock, which a reactor may need.
        drop(drives);
    }
}

/// A drive in use. Dropping it returns it for closing.
pub(super) struct DriveHandle {
    pub(super) drive: Arc<dyn DeviceBacking>,
    pub(super) released: Arc<ReleasedDrives>,
}

impl Drop for DriveHandle {
    fn drop(&mut self) {
        self.released.push(Arc::clone(&self.drive));
    }
}

impl DeviceBacking for DriveHandle {
    fn registers_len(&self) -> usize {
        self.drive.registers_len()
    }

    fn read_u32(&self, offset: usize) -> u32 {
        self.drive.read_u32(offset)
    }

    fn read_u64(&self, offset: usize) -> u64 {
        self.drive.read_u64(offset)
    }

    fn write_u32(&self, offset: usize, value: u32) {
        self.drive.write_u32(offset, value);
    }

    fn write_u64(&self, offset: usize, value: u64) {
        self.drive.write_u64(offset, value);
    }

    fn dma_address(&self, region_offset: usize) -> u64 {
        self.drive.dma_address(region_offset)
    }

    fn controller_memory(
        &self,
        bar: u8,
        offset: u64,
        len: u64,
    ) -> Option<Arc<dyn ControllerMemory>> {
        self.drive.controller_memory(bar, offset, len)
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.drive.address_space()
    }

    fn reserve_addresses(&self, len: u64, at: Option<u64>) -> Option<u64> {
        self.drive.reserve_addresses(len, at)
    }

    fn share_memory(&self, bar: u8, part: (u64, u64), address: u64) -> io::Result<()> {
        self.drive.share_memory(bar, part, address)
    }

    fn unshare_memory(&self, is_unused: bool) {
        self.drive.unshare_memory(is_unused);
    }

    fn export_memory(&self, bar: u8, part: (u64, u64)) -> io::Result<DmaBuf> {
        self.drive.export_memory(bar, part)
    }

    fn set_bus_master(&self, on: bool) -> io::Result<()> {
        self.drive.set_bus_master(on)
    }

    fn reset_function(&self) -> io::Result<()> {
        self.drive.reset_function()
    }

    fn interrupt_vectors(&self) -> u16 {
        self.drive.interrupt_vectors()
    }

    fn interrupt(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.drive.interrupt(vector)
    }

    fn arm_interrupt(&self, vector: u16, armed: bool) -> io::Result<()> {
        self.drive.arm_interrupt(vector, armed)
    }

    fn clear_interrupt(&self, vector: u16) {
        self.drive.clear_interrupt(vector);
    }

    fn removal_requested(&self) -> bool {
        self.drive.removal_requested()
    }

    fn describe(&self) -> String {
        self.drive.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Implements only the methods that this test uses.
    struct Drive;

    impl DeviceBacking for Drive {
        fn registers_len(&self) -> usize {
            4096
        }

        fn read_u32(&self, _offset: usize) -> u32 {
            u32::MAX
        }

        fn read_u64(&self, _offset: usize) -> u64 {
            u64::MAX
        }

        fn write_u32(&self, _offset: usize, _value: u32) {}

        fn write_u64(&self, _offset: usize, _value: u64) {}

        fn dma_address(&self, region_offset: usize) -> u64 {
            region_offset as u64
        }

        fn set_bus_master(&self, _on: bool) -> io::Result<()> {
            Ok(())
        }

        fn reset_function(&self) -> io::Result<()> {
            Ok(())
        }

        fn interrupt_vectors(&self) -> u16 {
            0
        }

        fn interrupt(&self, _vector: u16) -> Option<BorrowedFd<'_>> {
            None
        }

        fn arm_interrupt(&self, _vector: u16, _armed: bool) -> io::Result<()> {
            Ok(())
        }

        fn clear_interrupt(&self, _vector: u16) {}

        fn removal_requested(&self) -> bool {
            false
        }

        fn describe(&self) -> String {
            "a drive".to_owned()
        }
    }

    #[test]
    fn drive_dropped_by_a_reactor_is_closed_by_the_control_thread() {
        let drive: Arc<dyn DeviceBacking> = Arc::new(Drive);
        let released: Arc<ReleasedDrives> = Arc::default();
        let borrowed: Arc<dyn DeviceBacking> = Arc::new(DriveHandle {
            drive: Arc::clone(&drive),
            released: Arc::clone(&released),
        });
        let reactor = std::thread::spawn({
            let borrowed = Arc::clone(&borrowed);
            move || assert_eq!(borrowed.describe(), "a drive")
        });
        reactor.join().expect("no panic");
        released.close();
        drop(borrowed);
        assert_eq!(Arc::strong_count(&drive), 2, "it is still open");
        released.close();
        assert_eq!(Arc::strong_count(&drive), 1);
        released.close();
    }
}
