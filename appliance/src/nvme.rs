//! The appliance's NVMe drives: brought up together at start, opened with their first device and
//! closed with their last one while it serves, monitored, and reopened after they are removed and
//! return.
//!
//! A drive that is not available at start is logged in one line with its remedy, and the others are
//! served.

mod bus;
mod handover;
mod live;
mod lone;
mod monitor;
mod owner_poller;
mod start;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use appliance_config::{Backing, Config, DriveNamespace};
use arc_swap::ArcSwap;
use block::{DataPath, Device};
use hugemem::Arena;
use nvme_driver::{Drive, DriveError, DriveOwner};
use reactors::{PollerId, ReactorHandle};
use vfio::PciAddress;

use crate::identities::Content;
use crate::observe::sources::DriveSource;
pub(crate) use bus::{Bus, system_bus};
pub(crate) use live::DeviceOpener;
pub(crate) use lone::LoneDrive;
use monitor::DriveHistory;

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

/// The address of a drive. Each type parses the other's text, so there always is one.
fn address_of(settings: DriveNamespace) -> Option<PciAddress> {
    settings.pci.to_string().parse().ok()
}

/// The configuration's drives, each once, in order.
pub(crate) fn wanted(config: &Config) -> Vec<Wanted> {
    let mut drives: Vec<Wanted> = Vec::new();
    for (index, device) in config.devices.iter().enumerate() {
        let Backing::Nvme(settings) = device.backing else {
            continue;
        };
        let Some(address) = address_of(settings) else {
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
    settings: DriveNamespace,
    drive: Arc<Drive>,
    /// The reactor that polls its owner.
    reactor: usize,
    stage: Stage,
    users: Vec<User>,
    /// The names of the last devices on it, for messages.
    names: String,
    history: DriveHistory,
}

/// A device on a drive. It uses the drive as long as it exists.
struct User {
    name: String,
    device: Weak<dyn Device>,
}

/// The life of an acquired drive. [`AcquiredDrive::advance`] performs the transitions.
enum Stage {
    /// The reactors have not started. Ends with [`Drives::begin`].
    Started(Box<DriveOwner>),
    /// A reactor polls its owner. Ends when it has no device any more.
    Polled(PollerId),
    /// The owner shuts the drive down. Ends when the owner has released it.
    Closing(PollerId),
    /// The reactor drops the owner. Ends with the reactor's response.
    Dropping(Receiver<()>),
}

/// How the data of a device on a drive takes its way.
pub(crate) fn data_path(device: &appliance_config::Device) -> DataPath {
    let Backing::Nvme(settings) = device.backing else {
        return DataPath::Host;
    };
    match settings.data_path {
        appliance_config::DataPath::Host => DataPath::Host,
        appliance_config::DataPath::DriveMemory => DataPath::DeviceMemory,
        appliance_config::DataPath::Auto => DataPath::Best,
    }
}

impl AcquiredDrive {
    /// Whether it has the queue depth and the deadline of `settings`.
    fn has_settings(&self, settings: DriveNamespace) -> bool {
        let of = |it: DriveNamespace| (it.queue_depth, it.command_deadline);
        of(self.settings) == of(settings)
    }

    /// Opens a namespace as a block device, which uses the drive.
    fn open_namespace(
        &mut self,
        device: &appliance_config::Device,
        nsid: u32,
    ) -> Result<(Arc<dyn Device>, Content), DriveError> {
        let name = device.name.as_str();
        let uuid = device.uuid.map_or([0; 16], |uuid| *uuid.as_bytes());
        let data_path = data_path(device);
        let opened = self.drive.device_on_path(nsid, name, uuid, data_path)?;
        self.users.push(User {
            name: name.to_owned(),
            device: Arc::downgrade(&opened),
        });
        self.update_names();
        Ok((opened, content(&self.drive, nsid)))
    }

    fn update_names(&mut self) {
        if !self.users.is_empty() {
            let names: Vec<&str> = self.users.iter().map(|user| user.name.as_str()).collect();
            self.names = names.join(", ");
        }
    }
}

/// A text that distinguishes the content of a drive's namespace: the drive, and its identifiers of
/// the namespace.
fn content(drive: &Drive, nsid: u32) -> Content {
    let mut text = format!("drive {} {} {nsid}", drive.model(), drive.serial());
    let mut namespaces = drive.namespaces().into_iter();
    if let Some(found) = namespaces.find(|it| it.nsid == nsid) {
        let identifiers = [
            found.nguid.map(u128::from_be_bytes),
            found.eui64.map(|id| u128::from(u64::from_be_bytes(id))),
            found.uuid.map(u128::from_be_bytes),
        ];
        for identifier in identifiers.into_iter().flatten() {
            text += &format!(" {identifier:x}");
        }
    }
    Content::Lasting(text.replace(char::is_control, " "))
}

/// All acquired drives. The control thread polls them; a thread that opens a device adds to them.
pub(crate) struct Drives {
    bus: Box<dyn Bus>,
    /// Queues and data of drives are in it.
    arena: Arc<Arena>,
    /// Number of reactors.
    reactors: usize,
    /// Number of reactors whose devices are not drained: a stop shuts drives down after them.
    undrained: Arc<AtomicUsize>,
    /// The reactors, after they have started.
    handles: OnceLock<Vec<ReactorHandle>>,
    /// Locked by the control thread and threads that open devices, never by a reactor: resetting,
    /// reopening and closing functions block with it.
    acquired: Mutex<Vec<AcquiredDrive>>,
    sources: Arc<ArcSwap<Vec<DriveSource>>>,
    /// Whether the drives are released for another process, and not reopened.
    is_released: AtomicBool,
}

impl Drives {
    /// No drives yet, from `bus`, for `reactors` reactors.
    pub(crate) fn new(
        bus: Box<dyn Bus>,
        arena: &Arc<Arena>,
        reactors: usize,
        undrained: &Arc<AtomicUsize>,
    ) -> Self {
        Self {
            bus,
            arena: Arc::clone(arena),
            reactors,
            undrained: Arc::clone(undrained),
            handles: OnceLock::new(),
            acquired: Mutex::default(),
            sources: Arc::default(),
            is_released: AtomicBool::new(false),
        }
    }

    /// The observable state of each, which follows the changes.
    pub(crate) fn sources(&self) -> Arc<ArcSwap<Vec<DriveSource>>> {
        Arc::clone(&self.sources)
    }

    fn acquired(&self) -> MutexGuard<'_, Vec<AcquiredDrive>> {
        self.acquired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the observable state of the drives that have devices.
    fn publish(&self, acquired: &[AcquiredDrive]) {
        let used = acquired.iter().filter(|it| !it.users.is_empty());
        let sources = used.map(|it| DriveSource {
            names: it.names.clone(),
            drive: Arc::clone(&it.drive),
        });
        self.sources.store(Arc::new(sources.collect()));
    }
}
