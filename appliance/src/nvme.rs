//! The appliance's NVMe drives: brought up together at start, monitored while it serves, and
//! reopened after they are removed and return.
//!
//! A drive that is not available is logged in one line with its remedy, and the others are served.

mod bus;
mod monitor;
mod start;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use appliance_config::{Backing, Config, DriveNamespace};
use nvme_driver::Drive;
use vfio::PciAddress;

use crate::observe::sources::DriveSource;
pub(crate) use bus::{Bus, system_bus};
use monitor::DriveHistory;
pub(crate) use start::start;

/// A drive of the configuration, with its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) address: PciAddress,
    /// Queue depth and deadline, which are the same for all of its devices.
    settings: DriveNamespace,
    /// Index of each device in the configuration, with its namespace of the drive.
    namespaces: Vec<(usize, u32)>,
    /// The devices' names, for messages.
    pub(crate) names: String,
}

impl Wanted {
    /// Most requests that one reactor has outstanding at it.
    pub(crate) fn queue_depth(&self) -> u16 {
        self.settings.queue_depth
    }

    /// Whether the device at `index` of the configuration is on it.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.namespaces.iter().any(|(device, _)| *device == index)
    }
}

/// The configuration's drives, each once, in order.
pub(crate) fn wanted(config: &Config) -> Vec<Wanted> {
    let mut drives: Vec<Wanted> = Vec::new();
    for (index, device) in config.devices.iter().enumerate() {
        let Backing::Nvme(settings) = device.backing else {
            continue;
        };
        // Each type parses the other's text.
        let Ok(address) = settings.pci.to_string().parse() else {
            continue;
        };
        let (name, namespace) = (device.name.as_str(), (index, settings.namespace));
        match drives.iter_mut().find(|drive| drive.address == address) {
            Some(drive) => {
                drive.names = format!("{}, {name}", drive.names);
                drive.namespaces.push(namespace);
            }
            None => drives.push(Wanted {
                address,
                settings,
                namespaces: vec![namespace],
                names: name.to_owned(),
            }),
        }
    }
    drives
}

/// A drive that the appliance has acquired.
struct AcquiredDrive {
    address: PciAddress,
    names: String,
    drive: Arc<Drive>,
    history: DriveHistory,
}

/// All acquired drives. For the control thread.
pub(crate) struct Drives {
    bus: Box<dyn Bus>,
    taken: Vec<AcquiredDrive>,
}

impl Drives {
    /// The observable state of each.
    pub(crate) fn sources(&self) -> Vec<DriveSource> {
        let taken = self.taken.iter();
        taken
            .map(|taken| DriveSource {
                names: taken.names.clone(),
                drive: Arc::clone(&taken.drive),
            })
            .collect()
    }
}
