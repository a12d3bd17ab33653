//! Devices that pass from one process to the next: what the old process passes of each, and how the
//! new one opens them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use appliance_config::{Backing, Device as Configured, Name};
use block::{FileCapabilities, FileDevice, HealthState, MemoryDevice};

use super::{Devices, Kind, Opened, Opener, SystemDevices};
use crate::error::Failure;
use crate::identities::Content;

/// What the old process passes of a device.
pub(crate) struct PassingDevice<'d> {
    pub(crate) name: &'d Name,
    pub(crate) content: &'d Content,
    /// The memory of a RAM device, or the file, which has the lock.
    pub(crate) descriptors: Vec<BorrowedFd<'d>>,
    /// Bytes of each part of the memory of a RAM device.
    pub(crate) extents: Vec<u64>,
    /// Of a file.
    pub(crate) capabilities: Option<FileCapabilities>,
}

/// What the new process has received of a device.
#[derive(Debug)]
pub(crate) struct PassedDevice {
    pub(crate) content: Content,
    pub(crate) descriptors: Vec<OwnedFd>,
    pub(crate) extents: Vec<u64>,
    pub(crate) capabilities: Option<FileCapabilities>,
}

/// Why a device cannot be handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotPassed {
    #[error("device {0} belongs to the process: restart the service")]
    Bound(Name),
    #[error("device {0} is damaged: put it back into service first (`windlass device reopen {0}`)")]
    Damaged(Name),
    #[error("device {0} is not available: apply the configuration without it first")]
    Unavailable(Name),
}

/// A device that the old process has not passed, or passed wrongly.
#[derive(Debug, thiserror::Error)]
enum NotReceived {
    #[error("the old process has not passed it")]
    Device,
    #[error("the old process has passed {0} descriptors for it")]
    Descriptors(usize),
    #[error("the old process has not passed the capabilities of its file")]
    Capabilities,
    #[error(
        "its drive, which the old process has released, cannot be used: the log has the reason"
    )]
    Drive,
}

impl Devices {
    /// What is passed of each device.
    ///
    /// # Errors
    /// The first device that cannot be handed over.
    pub(crate) fn passing(&self) -> Result<Vec<PassingDevice<'_>>, NotPassed> {
        let all = self.all.iter();
        all.map(|(name, (_, opened))| opened.passing(name))
            .collect()
    }
}

impl Opened {
    fn passing<'d>(&'d self, name: &'d Name) -> Result<PassingDevice<'d>, NotPassed> {
        match self.device.health().state {
            HealthState::Ready | HealthState::ReadOnly => {}
            HealthState::Damaged => return Err(NotPassed::Damaged(name.clone())),
            _ => return Err(NotPassed::Unavailable(name.clone())),
        }
        let descriptors = match &self.kind {
            Kind::Memory(_) => {
                let stores = self.stores.iter();
                stores.map(|store| store.region().as_fd()).collect()
            }
            Kind::File(file) => vec![file.lock_owner()],
            Kind::Null(_) | Kind::Drive => Vec::new(),
            Kind::Other(_) => return Err(NotPassed::Bound(name.clone())),
        };
        let capabilities = match &self.kind {
            Kind::File(file) => Some(file.capabilities()),
            _ => None,
        };
        let stores = self.stores.iter();
        Ok(PassingDevice {
            capabilities,
            name,
            content: &self.content,
            descriptors,
            extents: stores.map(|store| store.len() as u64).collect(),
        })
    }
}

/// Opens the devices of a configuration from what an earlier process has passed.
pub(crate) struct PassedDevices<'s> {
    system: &'s SystemDevices,
    passed: Mutex<BTreeMap<Name, PassedDevice>>,
}

impl<'s> PassedDevices<'s> {
    pub(crate) fn new(system: &'s SystemDevices, passed: BTreeMap<Name, PassedDevice>) -> Self {
        Self {
            system,
            passed: Mutex::new(passed),
        }
    }
}

impl Opener for PassedDevices<'_> {
    fn open(&self, device: &Configured) -> Result<Option<Opened>, Failure> {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let received = passed.remove(&device.name);
        if received.is_none() && matches!(device.backing, Backing::Nvme(_)) {
            // The old process does not have it either.
            return Ok(None);
        }
        let received = received.ok_or(NotReceived::Device)?;
        let PassedDevice {
            content,
            descriptors,
            extents,
            capabilities,
        } = received;
        let wrong = NotReceived::Descriptors(descriptors.len());
        let SystemDevices { pages, arena } = self.system;
        match &device.backing {
            Backing::Memory { size, block_size } => {
                if descriptors.len() != extents.len() {
                    return Err(wrong.into());
                }
                let options = super::memory_options(*pages, device, *size, *block_size);
                let extents = descriptors.into_iter().zip(extents).collect();
                let memory = Arc::new(MemoryDevice::adopt(options, extents)?);
                Ok(Some(Opened {
                    stores: memory.stores(),
                    device: memory.clone(),
                    kind: Kind::Memory(memory),
                    content,
                    file_id: None,
                }))
            }
            Backing::File { .. } => {
                let Ok([file]) = <[OwnedFd; 1]>::try_from(descriptors) else {
                    return Err(wrong.into());
                };
                let capabilities = capabilities.ok_or(NotReceived::Capabilities)?;
                let found = rustix::fs::fstat(&file)?;
                let options = super::file_options(arena, device, None)?;
                let file = Arc::new(FileDevice::adopt(options, file, capabilities)?);
                Ok(Some(Opened {
                    content,
                    file_id: Some((found.st_dev, found.st_ino)),
                    device: file.clone(),
                    kind: Kind::File(file),
                    stores: Vec::new(),
                }))
            }
            Backing::Null { .. } => self.system.open(device),
            Backing::Nvme(_) => Err(NotReceived::Drive.into()),
        }
    }
}
