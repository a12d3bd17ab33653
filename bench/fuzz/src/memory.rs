//! Memory that is reused for all inputs, because mapping and zeroing it would dominate the run
//! time. Every run returns all of it, so the next one starts with none in use.

use std::sync::Arc;

use block::{Device, DeviceError, MemoryDevice, MemoryOptions};
use block_testing::{
    Effect, FaultControl, FaultDevice, FaultPlan, FaultRule, OperationKinds, When,
};
use hugemem::{Arena, ArenaConfig, PagePolicy};

/// Bytes of a logical block.
pub(crate) const BLOCK_BYTES: usize = 512;
/// Largest transfer: the arena has few slices of this size, so requests wait for them.
pub(crate) const TRANSFER_MAX_BYTES: usize = 128 << 10;

const ARENA_BYTES: usize = 8 << 20;
const DEVICE_BYTES: u64 = 1 << 20;

/// An arena and a RAM device.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) arena: Arc<Arena>,
    pub(crate) device: Arc<MemoryDevice>,
}

impl Memory {
    /// The memory of this thread.
    pub(crate) fn of_thread() -> Self {
        thread_local! {
            static MEMORY: Memory = Memory::new();
        }
        MEMORY.with(Self::clone)
    }

    fn new() -> Self {
        let arena = Arena::new(ArenaConfig {
            bytes: ARENA_BYTES,
            pages: PagePolicy::Ordinary,
            max_transfer: TRANSFER_MAX_BYTES,
        })
        .expect("a small arena");
        let device = MemoryDevice::new(MemoryOptions {
            name: "ram".to_owned(),
            uuid: [1; 16],
            size_bytes: DEVICE_BYTES,
            block_size: BLOCK_BYTES as u32,
            pages: PagePolicy::Ordinary,
            read_only: false,
        })
        .expect("a small RAM device");
        Self {
            arena,
            device: Arc::new(device),
        }
    }

    /// Number of slices of the arena in use.
    pub(crate) fn taken(&self) -> u64 {
        let classes = self.arena.counters().classes;
        classes.iter().map(|class| class.taken).sum()
    }

    /// The device behind a fault device that holds, refuses and fails requests while told to.
    pub(crate) fn faulty_device(&self) -> (Arc<dyn Device>, DeviceFaults) {
        let rule = |effect| FaultRule::new(OperationKinds::ALL, When::Always, effect);
        let rules = vec![
            rule(Effect::Hold),
            rule(Effect::Later),
            rule(Effect::Fail(DeviceError::Internal)),
        ];
        let inner = Arc::<MemoryDevice>::clone(&self.device);
        let device = FaultDevice::new(inner, FaultPlan { rules, seed: 1 });
        let device_faults = DeviceFaults(device.control());
        device_faults.end();
        (Arc::new(device), device_faults)
    }
}

/// Controls the faults of a device.
pub(crate) struct DeviceFaults(FaultControl);

impl DeviceFaults {
    const COUNT: usize = 3;

    /// Switches one fault on or off.
    pub(crate) fn switch(&self, fault: u8, on: bool) {
        self.0.arm(usize::from(fault) % Self::COUNT, on);
    }

    /// Releases the held requests.
    pub(crate) fn release(&self) {
        self.0.release();
    }

    /// Ends all faults.
    pub(crate) fn end(&self) {
        for fault in 0..Self::COUNT {
            self.0.arm(fault, false);
        }
        self.release();
    }
}
