//! Brings up all drives together, before the appliance serves.

use std::sync::Arc;
use std::time::Duration;

use appliance_config::Config;
use hugemem::Arena;
use nvme_driver::{BringUp, BringUpState, Deadlines, Drive, DriveOptions, DriveOwner};
use reactors::{Clock, Nanos, TscClock};

use super::monitor::DriveHistory;
use super::{AcquiredDrive, Bus, Drives, Wanted, wanted};
use crate::devices::DriveNamespace;
use crate::error::{Failure, with_causes};
use crate::identities::Content;

/// Poll interval of drives that are being brought up.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// The drives that were brought up, and the parts that other components own.
pub(crate) struct Started {
    pub(crate) drives: Drives,
    /// The owner of each drive, with the reactor that polls it.
    pub(crate) owners: Vec<(usize, DriveOwner)>,
    /// A block device for each namespace.
    pub(crate) devices: Vec<DriveNamespace>,
}

/// A drive that is being brought up.
struct PendingDrive {
    wanted: Wanted,
    /// The reactor that polls its owner.
    reactor: usize,
    bring_up: BringUp,
}

/// Opens the drives of `config` from `bus` and brings all of them up, each within the time that it
/// reports (CAP.TO). A drive that is not available is logged in one line.
pub(crate) fn start(
    bus: Box<dyn Bus>,
    config: &Config,
    arena: &Arc<Arena>,
    reactors: usize,
) -> Started {
    let mut pending = Vec::new();
    for (index, wanted) in wanted(config).into_iter().enumerate() {
        // Owners are distributed over the reactors.
        let reactor = index % reactors;
        match open(&*bus, &wanted, arena, options(&wanted, reactors, reactor)) {
            Ok(bring_up) => pending.push(PendingDrive {
                wanted,
                reactor,
                bring_up,
            }),
            Err(error) => log_omitted(&wanted, &with_causes(error.as_ref())),
        }
    }
    let mut started = Started {
        drives: Drives {
            bus,
            taken: Vec::new(),
        },
        owners: Vec::new(),
        devices: Vec::new(),
    };
    let clock = TscClock::new();
    while !pending.is_empty() {
        let now = clock.now();
        pending.retain_mut(|one| match one.bring_up.poll(now) {
            BringUpState::Pending => true,
            BringUpState::Ready((drive, owner)) => {
                if started.add(config, &one.wanted, drive) {
                    started.owners.push((one.reactor, owner));
                }
                false
            }
            BringUpState::Failed(error) => {
                let cause = with_causes(&error);
                log_omitted(&one.wanted, &format!("{}: {cause}", one.wanted.address));
                false
            }
        });
        if !pending.is_empty() {
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
    started
}

fn log_omitted(wanted: &Wanted, why: &str) {
    tracing::error!("{} not served: {why}", wanted.names);
}

fn options(wanted: &Wanted, reactors: usize, owner: usize) -> DriveOptions {
    let deadline = wanted.settings.command_deadline;
    DriveOptions {
        reactors,
        owner,
        queue_depth_max: wanted.settings.queue_depth,
        deadlines: Deadlines {
            command: Nanos::from_millis(deadline.as_millis()),
            ..Deadlines::default()
        },
        ..DriveOptions::new(&format!("{} ({})", wanted.address, wanted.names))
    }
}

fn open(
    bus: &dyn Bus,
    wanted: &Wanted,
    arena: &Arc<Arena>,
    options: DriveOptions,
) -> Result<BringUp, Failure> {
    let backing = bus.open(wanted.address)?;
    Ok(BringUp::new(backing, arena, options)?)
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

impl Started {
    /// Adds a drive that is ready, with its usable namespaces. Returns false, and releases the
    /// drive, if there are none.
    fn add(&mut self, config: &Config, wanted: &Wanted, drive: Arc<Drive>) -> bool {
        let Wanted { address, names, .. } = wanted;
        tracing::info!(
            "{names}: {address} is {}, serial {}, firmware {}, queue depth {}",
            drive.model(),
            drive.serial(),
            drive.firmware(),
            drive.queue_depth(),
        );
        let before = self.devices.len();
        for (index, nsid) in &wanted.namespaces {
            let device = &config.devices[*index];
            let name = device.name.as_str();
            let uuid = device.uuid.map_or([0; 16], |uuid| *uuid.as_bytes());
            match drive.device(*nsid, name, uuid) {
                Ok(device) => self.devices.push(DriveNamespace {
                    place: *index,
                    device,
                    content: content(&drive, *nsid),
                }),
                Err(error) => tracing::error!("{name} not served: {address}: {error}"),
            }
        }
        if self.devices.len() == before {
            return false;
        }
        self.drives.taken.push(AcquiredDrive {
            address: *address,
            names: names.clone(),
            drive,
            history: DriveHistory::default(),
        });
        true
    }
}
