//! Drives while the appliance serves: a drive is opened with its first device, and closed after its
//! last one.
//!
//! A thread beside the control thread opens a drive, because that takes long, and moves its owner
//! to a reactor. The device keeps the drive open. When no device uses it any more, the owner shuts
//! it down, its reactor drops the owner, and the control thread closes the function.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use appliance_config::{Backing, Device, DriveNamespace as Settings};
use nvme_driver::DriveState;
use reactors::{ReactorHandle, RunError};
use vfio::PciAddress;

use super::owner_poller::drop_owner;
use super::start::{LOOK_INTERVAL, Unavailable};
use super::{AcquiredDrive, Drives, Stage, address_of};
use crate::devices::{DriveNamespace, Opened, Opener, SystemDevices};
use crate::error::Failure;

/// Time for a drive to shut down before it is opened again: the driver bounds each step, and a
/// drive may report some ten seconds for its cache (RTD3E).
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens devices in memory and files, and namespaces of drives.
pub(crate) struct DeviceOpener {
    pub(crate) system: SystemDevices,
    pub(crate) drives: Arc<Drives>,
}

impl Opener for DeviceOpener {
    fn open(&self, device: &Device) -> Result<Option<Opened>, Failure> {
        match device.backing {
            Backing::Nvme(settings) => {
                let namespace = self.drives.open(device, settings)?;
                Ok(Some(Opened::drive(namespace)))
            }
            Backing::File { .. } | Backing::Memory { .. } | Backing::Null { .. } => {
                self.system.open(device)
            }
        }
    }

    fn open_below(&self, device: &Device, directory: &Path) -> Result<Option<Opened>, Failure> {
        self.system.open_below(device, directory)
    }

    fn is_held(&self, device: &Device) -> bool {
        let Backing::Nvme(settings) = device.backing else {
            return false;
        };
        let acquired = self.drives.acquired();
        let mut held = acquired.iter();
        held.any(|it| Some(it.address) == address_of(settings) && !it.has_settings(settings))
    }

    fn close_unused(&self) -> Option<String> {
        let closing = self.drives.close_unused();
        closing.map(|address| format!("drive {address}"))
    }
}

/// Why a drive that is open gives a device no namespace.
#[derive(Debug, thiserror::Error)]
enum NotAvailable {
    #[error("{address} is still shutting down: apply the configuration again later")]
    Closing { address: PciAddress },
    #[error(
        "{address} has devices with another queue_depth or command_deadline: remove them first"
    )]
    OtherSettings { address: PciAddress },
    #[error("{address} is gone: remove all devices on it, insert it, and add them again")]
    Gone { address: PciAddress },
    #[error("the reactors have not started")]
    NoReactors,
}

impl Drives {
    /// Opens a namespace of a drive, and the drive if no device uses it yet. Blocks, within bounds.
    fn open(&self, device: &Device, settings: Settings) -> Result<DriveNamespace, Failure> {
        let address = address_of(settings).ok_or("it is not a PCI address")?;
        self.await_close(address)?;
        if let Some(joined) = self.join(address, device, settings) {
            return joined;
        }
        let opened = self.acquire(address, device, settings);
        if opened.is_err() {
            self.bus.close_released();
        }
        opened
    }

    /// Waits until a drive that is being closed is closed.
    fn await_close(&self, address: PciAddress) -> Result<(), NotAvailable> {
        let began = Instant::now();
        while self.is_closing(address) {
            if began.elapsed() > CLOSE_TIMEOUT {
                return Err(NotAvailable::Closing { address });
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }

    fn is_closing(&self, address: PciAddress) -> bool {
        self.close_unused();
        let acquired = self.acquired();
        let mut closing = acquired.iter().filter(|it| it.is_closing());
        closing.any(|it| it.address == address)
    }

    /// Opens a namespace of a drive that other devices use; `None` if there is no such drive.
    fn join(
        &self,
        address: PciAddress,
        device: &Device,
        settings: Settings,
    ) -> Option<Result<DriveNamespace, Failure>> {
        let mut acquired = self.acquired();
        let drive = acquired.iter_mut().find(|it| it.address == address)?;
        if !drive.has_settings(settings) {
            return Some(Err(NotAvailable::OtherSettings { address }.into()));
        }
        if matches!(drive.drive.state(), DriveState::Gone(_)) {
            return Some(Err(NotAvailable::Gone { address }.into()));
        }
        let opened = drive.open(device, settings);
        self.publish(&acquired);
        Some(opened)
    }

    /// Opens a drive with its first device.
    fn acquire(
        &self,
        address: PciAddress,
        device: &Device,
        settings: Settings,
    ) -> Result<DriveNamespace, Failure> {
        let handles = self.handles.get().ok_or(NotAvailable::NoReactors)?;
        let name = device.name.as_str();
        let reactor = self.least_loaded_reactor();
        let mut drive = self.bring_up(address, name, settings, reactor)?;
        let opened = drive.open(device, settings)?;
        let drive = drive.hand_over(&self.undrained, handles)?;
        let mut acquired = self.acquired();
        acquired.push(drive);
        self.publish(&acquired);
        Ok(opened)
    }

    /// The first reactor among those with the fewest owners.
    fn least_loaded_reactor(&self) -> usize {
        let acquired = self.acquired();
        let load = |reactor: &usize| acquired.iter().filter(|it| it.reactor == *reactor).count();
        (0..self.reactors).min_by_key(load).unwrap_or(0)
    }

    /// Closes drives without devices, as far as possible without waiting for a reactor. Returns the
    /// first that is still being closed.
    pub(super) fn close_unused(&self) -> Option<PciAddress> {
        let handles = self.handles.get()?;
        let mut acquired = self.acquired();
        let mut has_changed = false;
        acquired.retain_mut(|it| {
            has_changed |= it.forget_users();
            let is_closed = it.advance(handles);
            has_changed |= is_closed;
            !is_closed
        });
        if has_changed {
            self.publish(&acquired);
        }
        // Locked, because a function that is not closed yet cannot be opened.
        self.bus.close_released();
        let mut closing = acquired.iter().filter(|it| it.is_closing());
        closing.next().map(|it| it.address)
    }
}

impl AcquiredDrive {
    /// Opens the namespace of `device`.
    fn open(&mut self, device: &Device, settings: Settings) -> Result<DriveNamespace, Failure> {
        let opened = self.open_namespace(device, settings.namespace);
        let (device, content) = opened.map_err(|cause| Unavailable::new(self.address, cause))?;
        Ok(DriveNamespace {
            place: 0,
            device,
            content,
        })
    }

    /// Forgets the devices that are closed. Returns whether there were any.
    fn forget_users(&mut self) -> bool {
        let before = self.users.len();
        self.users.retain(|user| user.device.strong_count() > 0);
        self.update_names();
        self.users.len() < before
    }

    pub(super) fn is_closing(&self) -> bool {
        match self.stage {
            Stage::Started(_) | Stage::Polled(_) => false,
            Stage::Closing(_) | Stage::Dropping(_) => true,
        }
    }

    /// Performs the next transition if its condition holds. Returns whether the drive is closed and
    /// its owner dropped.
    fn advance(&mut self, handles: &[ReactorHandle]) -> bool {
        match &self.stage {
            Stage::Started(_) => false,
            Stage::Polled(_) if !self.users.is_empty() => false,
            Stage::Polled(poller) => {
                tracing::info!("{}: closing {}", self.names, self.address);
                self.stage = Stage::Closing(*poller);
                self.drive.close();
                false
            }
            Stage::Closing(_) if !self.drive.is_closed() => false,
            Stage::Closing(poller) => match drop_owner(*poller, &handles[self.reactor]) {
                Ok(response) => {
                    self.stage = Stage::Dropping(response);
                    false
                }
                // The next call tries again.
                Err(RunError::Full(_)) => false,
                // The reactor has dropped its pollers.
                Err(RunError::Stopped) => true,
            },
            Stage::Dropping(response) => match response.try_recv() {
                Err(TryRecvError::Empty) => false,
                Ok(()) | Err(TryRecvError::Disconnected) => {
                    tracing::info!("{}: {} is closed", self.names, self.address);
                    true
                }
            },
        }
    }
}
