//! The drives that this appliance has taken: brought up at start, all at once; looked after while
//! it serves; taken again when they were pulled and came back.
//!
//! A drive that cannot be had is one line in the log, with its remedy, and the rest is served.

mod bus;
mod care;
mod start;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use appliance_config::{Backing, Config, DriveNamespace};
use nvme_driver::Drive;
use vfio::PciAddress;

use crate::observe::sources::DriveSource;
pub(crate) use bus::{Bus, system_bus};
use care::Notes;
pub(crate) use start::start;

/// A drive of the configuration, and the devices on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) address: PciAddress,
    /// Queue depth and deadline; the same for all of its devices.
    settings: DriveNamespace,
    /// Place among the configuration's devices, and namespace of the drive.
    namespaces: Vec<(usize, u32)>,
    /// The devices' names, for people.
    pub(crate) names: String,
}

impl Wanted {
    /// Most requests that one reactor has at it at once.
    pub(crate) fn queue_depth(&self) -> u16 {
        self.settings.queue_depth
    }

    /// Whether the device at `index` of the configuration is on it.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.namespaces.iter().any(|(device, _)| *device == index)
    }
}

/// The configuration's drives, each once, in its order.
pub(crate) fn wanted(config: &Config) -> Vec<Wanted> {
    let mut drives: Vec<Wanted> = Vec::new();
    for (index, device) in config.devices.iter().enumerate() {
        let Backing::Nvme(settings) = device.backing else {
            continue;
        };
        // Both types read what the other one prints.
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

/// A drive that belongs to the appliance.
struct Taken {
    address: PciAddress,
    names: String,
    drive: Arc<Drive>,
    notes: Notes,
}

/// All drives that belong to the appliance. For the control thread.
pub(crate) struct Drives {
    bus: Box<dyn Bus>,
    taken: Vec<Taken>,
}

impl Drives {
    /// What can be seen of each.
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
