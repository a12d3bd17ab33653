//! Brings drives up: all together before the appliance serves, or one for a device that is added.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use appliance_config::{Config, DriveNamespace as Settings};
use nvme_driver::{BringUp, BringUpState, Deadlines, Drive, DriveError, DriveOptions, DriveOwner};
use reactors::{Clock, Nanos, ReactorHandle, TscClock};
use vfio::PciAddress;

use super::monitor::DriveHistory;
use super::owner_poller::{HandOverError, hand_over};
use super::{AcquiredDrive, Drives, Stage, Wanted, wanted};
use crate::devices::DriveNamespace;
use crate::error::{Failure, with_causes};

/// Poll interval of drives that are being brought up.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// A drive that is being brought up.
struct PendingDrive {
    wanted: Wanted,
    /// The reactor that polls its owner.
    reactor: usize,
    bring_up: BringUp,
}

impl Drives {
    /// Opens the drives of `config` and brings all of them up, each within the time that it reports
    /// (CAP.TO). A drive that is not available is logged in one line. Returns the block devices.
    pub(crate) fn start(&self, config: &Config) -> Vec<DriveNamespace> {
        let mut pending = Vec::new();
        for (index, wanted) in wanted(config).into_iter().enumerate() {
            // Owners are distributed over the reactors.
            let reactor = index % self.reactors;
            match self.begin_opening(wanted.address, &wanted.names, wanted.settings, reactor) {
                Ok(bring_up) => pending.push(PendingDrive {
                    wanted,
                    reactor,
                    bring_up,
                }),
                Err(error) => log_omitted(&wanted, &with_causes(error.as_ref())),
            }
        }
        let mut devices = Vec::new();
        let clock = TscClock::new();
        while !pending.is_empty() {
            let now = clock.now();
            pending.retain_mut(|one| match one.bring_up.poll(now) {
                BringUpState::Pending => true,
                BringUpState::Ready((drive, owner)) => {
                    let reactor = one.reactor;
                    devices.extend(self.add(config, &one.wanted, reactor, drive, owner));
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
        devices
    }

    /// Moves the owners of the drives to their reactors, which have started.
    ///
    /// # Errors
    /// A reactor did not take its owner.
    pub(crate) fn begin(&self, handles: &[ReactorHandle]) -> Result<(), HandOverError> {
        let handles = self.handles.get_or_init(|| handles.to_vec());
        let mut acquired = self.acquired();
        for drive in std::mem::take(&mut *acquired) {
            acquired.push(drive.hand_over(&self.undrained, handles)?);
        }
        Ok(())
    }

    fn begin_opening(
        &self,
        address: PciAddress,
        names: &str,
        settings: Settings,
        reactor: usize,
    ) -> Result<BringUp, Failure> {
        let options = options(address, names, settings, self.reactors, reactor);
        let backing = self.bus.open(address)?;
        Ok(BringUp::new(backing, &self.arena, options)?)
    }

    /// Opens a drive and brings it up. Blocks, within bounds.
    ///
    /// # Errors
    /// The drive is closed, as soon as the bus closes released drives.
    pub(super) fn bring_up(
        &self,
        address: PciAddress,
        name: &str,
        settings: Settings,
        reactor: usize,
    ) -> Result<AcquiredDrive, Failure> {
        let mut bring_up = self.begin_opening(address, name, settings, reactor)?;
        let clock = TscClock::new();
        loop {
            match bring_up.poll(clock.now()) {
                BringUpState::Pending => std::thread::sleep(LOOK_INTERVAL),
                BringUpState::Ready((drive, owner)) => {
                    log_ready(name, address, &drive);
                    return Ok(AcquiredDrive::new(address, settings, reactor, drive, owner));
                }
                BringUpState::Failed(error) => return Err(Unavailable::new(address, error).into()),
            }
        }
    }

    /// Adds a drive that is ready. Returns its usable namespaces; without any, the drive is
    /// released.
    fn add(
        &self,
        config: &Config,
        wanted: &Wanted,
        reactor: usize,
        drive: Arc<Drive>,
        owner: DriveOwner,
    ) -> Vec<DriveNamespace> {
        let Wanted {
            address,
            settings,
            namespaces,
            names,
        } = wanted;
        log_ready(names, *address, &drive);
        let mut drive = AcquiredDrive::new(*address, *settings, reactor, drive, owner);
        let mut devices = Vec::new();
        for (place, nsid) in namespaces {
            let device = &config.devices[*place];
            match drive.open_namespace(device, *nsid) {
                Ok((device, content)) => devices.push(DriveNamespace {
                    place: *place,
                    device,
                    content,
                }),
                Err(error) => tracing::error!("{} not served: {address}: {error}", device.name),
            }
        }
        if !devices.is_empty() {
            let mut acquired = self.acquired();
            acquired.push(drive);
            self.publish(&acquired);
        }
        devices
    }
}

/// A drive that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{address}")]
pub(super) struct Unavailable {
    address: PciAddress,
    #[source]
    cause: DriveError,
}

impl Unavailable {
    pub(super) fn new(address: PciAddress, cause: DriveError) -> Self {
        Self { address, cause }
    }
}

impl AcquiredDrive {
    /// A drive without devices.
    fn new(
        address: PciAddress,
        settings: Settings,
        reactor: usize,
        drive: Arc<Drive>,
        owner: DriveOwner,
    ) -> Self {
        Self {
            address,
            settings,
            drive,
            reactor,
            stage: Stage::Started(Box::new(owner)),
            users: Vec::new(),
            names: String::new(),
            history: DriveHistory::default(),
        }
    }

    /// Moves the owner of a started drive to its reactor.
    ///
    /// # Errors
    /// The reactor did not take it; the drive is released.
    pub(super) fn hand_over(
        self,
        undrained: &Arc<AtomicUsize>,
        handles: &[ReactorHandle],
    ) -> Result<Self, HandOverError> {
        let stage = match self.stage {
            Stage::Started(owner) => {
                let wakers = handles.to_vec();
                let wake = move |reactor: usize| wakers[reactor].wake();
                self.drive.set_waker(Box::new(wake));
                Stage::Polled(hand_over(*owner, undrained, &handles[self.reactor])?)
            }
            stage @ (Stage::Polled(_) | Stage::Closing(_) | Stage::Dropping(_)) => stage,
        };
        Ok(Self { stage, ..self })
    }
}

fn log_ready(names: &str, address: PciAddress, drive: &Drive) {
    tracing::info!(
        "{names}: {address} is {}, serial {}, firmware {}, queue depth {}",
        drive.model(),
        drive.serial(),
        drive.firmware(),
        drive.queue_depth(),
    );
}

fn log_omitted(wanted: &Wanted, why: &str) {
    tracing::error!("{} not served: {why}", wanted.names);
}

pub(super) fn options(
    address: PciAddress,
    names: &str,
    settings: Settings,
    reactors: usize,
    owner: usize,
) -> DriveOptions {
    DriveOptions {
        reactors,
        owner,
        queue_depth_max: settings.queue_depth,
        deadlines: Deadlines {
            command: Nanos::from_micros(settings.command_deadline.as_micros()),
            ..Deadlines::default()
        },
        ..DriveOptions::new(&format!("{address} ({names})"))
    }
}
