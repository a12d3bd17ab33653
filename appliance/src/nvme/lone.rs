//! A drive without an appliance, for commands that read or write one of its namespaces.

use std::sync::Arc;
use std::time::{Duration, Instant};

use appliance_config::DriveNamespace as Settings;
use block::Device;
use hugemem::Arena;
use nvme_driver::{BringUp, BringUpState, Drive, DriveOwner};
use reactors::{Clock as _, Poller as _, TscClock};

use super::start::{LOOK_INTERVAL, Unavailable, options};
use super::{Bus, address_of};
use crate::error::Failure;

/// Time for a drive to shut down: the driver bounds each step of it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// A drive that no reactor polls. Requests to it are not bounded by its deadline, but by their
/// sender's. It is shut down when it is dropped, after the queues of its devices.
pub(crate) struct LoneDrive {
    drive: Arc<Drive>,
    owner: DriveOwner,
}

impl LoneDrive {
    /// Opens a drive and the namespace of a device. Blocks, within bounds.
    ///
    /// # Errors
    /// The drive or the namespace is not available.
    pub(crate) fn open(
        bus: &dyn Bus,
        arena: &Arc<Arena>,
        device: &appliance_config::Device,
        settings: Settings,
    ) -> Result<(Self, Arc<dyn Device>), Failure> {
        let address = address_of(settings).ok_or("it is not a PCI address")?;
        let name = device.name.as_str();
        let backing = bus.open(address)?;
        let options = options(address, name, settings, 1, 0);
        let mut bring_up = BringUp::new(backing, arena, options)?;
        let clock = TscClock::new();
        let (drive, owner) = loop {
            match bring_up.poll(clock.now()) {
                BringUpState::Pending => std::thread::sleep(LOOK_INTERVAL),
                BringUpState::Ready(ready) => break ready,
                BringUpState::Failed(error) => return Err(Unavailable::new(address, error).into()),
            }
        };
        let lone = Self { drive, owner };
        let uuid = device.uuid.map_or([0; 16], |uuid| *uuid.as_bytes());
        let opened = lone.drive.device(settings.namespace, name, uuid);
        let opened = opened.map_err(|cause| Unavailable::new(address, cause))?;
        Ok((lone, opened))
    }
}

impl Drop for LoneDrive {
    fn drop(&mut self) {
        let clock = TscClock::new();
        let until = Instant::now() + CLOSE_TIMEOUT;
        self.drive.close();
        while !self.drive.is_closed() && Instant::now() < until {
            self.owner.poll(clock.now());
            if self.drive.function_reset_needed() {
                // The next attempt to open it reports what is wrong.
                let _ = self.drive.function_reset();
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}
