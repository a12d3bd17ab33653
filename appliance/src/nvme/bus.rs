//! The source of drives: this machine's PCI functions through VFIO, or a test's implementation.

mod drive_handle;

use std::sync::{Arc, OnceLock};

use hugemem::Arena;
use nvme_driver::VfioBacking;
use nvme_driver::backing::DeviceBacking;
use vfio::{Container, PciAddress, Problem, System, diagnose};

use crate::error::Failure;
use drive_handle::{DriveHandle, ReleasedDrives};

/// A source of drives. For the control thread and threads beside it: every method may block.
pub(crate) trait Bus: Send + Sync {
    /// Opens the drive at `address`, which can then access the arena.
    ///
    /// # Errors
    /// One line with its remedy. A drive that cannot be opened is unchanged.
    fn open(&self, address: PciAddress) -> Result<Arc<dyn DeviceBacking>, Failure>;

    /// Checks whether the drive at `address` can be opened, without changing anything.
    ///
    /// # Errors
    /// The obstacle.
    fn check(&self, address: PciAddress) -> Result<(), Problem>;

    /// Closes the drives that were released since the last call.
    fn close_released(&self) {}
}

/// The machine's own bus. The arena is mapped once, into one container, with the first drive.
pub(crate) struct Vfio {
    system: System,
    container: OnceLock<Arc<Container>>,
    arena: Arc<Arena>,
    vectors_max: u16,
    released: Arc<ReleasedDrives>,
}

/// The bus of this system for `reactors` reactors, with `arena` mapped for its drives.
pub(crate) fn system_bus(arena: &Arc<Arena>, reactors: usize) -> Box<dyn Bus> {
    Box::new(Vfio::new(System::default(), Arc::clone(arena), reactors))
}

impl Vfio {
    /// The drives of `system`, with access to `arena` and an interrupt for each of `reactors`
    /// reactors. Opens nothing yet.
    pub(crate) fn new(system: System, arena: Arc<Arena>, reactors: usize) -> Self {
        Self {
            system,
            container: OnceLock::new(),
            arena,
            // Plus one for the admin queue.
            vectors_max: u16::try_from(reactors + 1).unwrap_or(u16::MAX),
            released: Arc::default(),
        }
    }

    /// The container; opens it for `address` if necessary.
    fn container(&self, address: PciAddress) -> Result<&Arc<Container>, vfio::Error> {
        if let Some(container) = self.container.get() {
            return Ok(container);
        }
        let container = Container::open(&self.system, address)?;
        Ok(self.container.get_or_init(|| container))
    }

    /// Bytes to be pinned for the next drive: zero once the arena is mapped.
    fn bytes_to_pin(&self) -> u64 {
        let mapped = self.container.get().and_then(|it| it.arena_address());
        match mapped {
            Some(_) => 0,
            None => self.arena.region().len() as u64,
        }
    }
}

impl Bus for Vfio {
    fn open(&self, address: PciAddress) -> Result<Arc<dyn DeviceBacking>, Failure> {
        self.check(address)?;
        let container = self.container(address)?;
        let backing = VfioBacking::open(container, address, &self.arena, self.vectors_max)?;
        Ok(Arc::new(DriveHandle {
            drive: Arc::new(backing),
            released: Arc::clone(&self.released),
        }))
    }

    fn check(&self, address: PciAddress) -> Result<(), Problem> {
        diagnose(&self.system, address, self.bytes_to_pin()).map(drop)
    }

    fn close_released(&self) {
        self.released.close();
    }
}
