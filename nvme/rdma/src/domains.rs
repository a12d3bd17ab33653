//! The protection domains of all devices, with all memory for data registered once per device.
//!
//! Created at start, on the control path, since registering gigabytes takes time. Shared by all
//! reactors.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugemem::Region;
use rdma::{Access, Device, DeviceIndex, DomainMemory, Error, Provider};

use crate::plan::{SharedQueues, Unfit};

/// A device that can serve hosts.
#[derive(Debug)]
struct Entry<P: Provider> {
    device: P::Device,
    memory: Arc<DomainMemory<P>>,
}

/// Why a device is not used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// It lacks a capability that NVMe/RDMA requires.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// No protection domain can be created.
    #[error("it gives no protection domain")]
    Domain(#[source] Error),
    /// Memory cannot be registered with it.
    #[error("memory cannot be registered with it")]
    Memory(#[source] Error),
}

/// Totals of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Number of registrations of all devices.
    pub count: u64,
    /// Their total size in bytes. A device that limits the size of registrations has overlapping
    /// ones.
    pub bytes: u64,
}

/// One protection domain per device.
#[derive(Debug)]
pub struct Domains<P: Provider> {
    entries: Mutex<Vec<Entry<P>>>,
}

impl<P: Provider> Default for Domains<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Provider> Domains<P> {
    /// A set without devices.
    #[must_use]
    pub fn new() -> Self {
        Self {
            entries: Mutex::new(Vec::new()),
        }
    }

    /// Adds `device`: creates a protection domain and registers `regions`.
    ///
    /// # Errors
    /// [`DeviceError`], if the device cannot be used.
    pub fn add(&self, device: &P::Device, regions: &[&Region]) -> Result<(), DeviceError> {
        SharedQueues::new(1, device.limits())?;
        let domain = device.create_domain().map_err(DeviceError::Domain)?;
        // Only work requests of this side access it: hosts receive no key.
        let memory = DomainMemory::new(domain, Access::LOCAL);
        for region in regions {
            memory.attach_region(region).map_err(DeviceError::Memory)?;
        }
        let entry = Entry {
            device: device.clone(),
            memory: Arc::new(memory),
        };
        let mut entries = self.entries();
        entries.retain(|other| other.device.index() != device.index());
        entries.push(entry);
        Ok(())
    }

    /// Registers more memory with every device. Skips a device that was removed and is not yet
    /// released.
    ///
    /// # Errors
    /// The error of the first device that fails. The memory is then registered with none.
    pub fn attach(&self, region: &Region) -> Result<(), DeviceError> {
        let entries = self.entries();
        for (index, entry) in entries.iter().enumerate() {
            let attached = entry.memory.attach_region(region);
            if let Err(error) = attached
                && !matches!(error, Error::DeviceGone)
            {
                for registered in &entries[..index] {
                    registered.memory.detach_region(region);
                }
                return Err(DeviceError::Memory(error));
            }
        }
        Ok(())
    }

    /// Deregisters memory that is no longer used.
    pub fn detach(&self, region: &Region) {
        for entry in &*self.entries() {
            entry.memory.detach_region(region);
        }
    }

    /// The devices in use.
    #[must_use]
    pub fn devices(&self) -> Vec<P::Device> {
        let entries = self.entries();
        entries.iter().map(|entry| entry.device.clone()).collect()
    }

    /// A device's registered memory. Control path.
    #[must_use]
    pub fn memory(&self, device: DeviceIndex) -> Option<Arc<DomainMemory<P>>> {
        let entries = self.entries();
        let found = entries.iter().find(|entry| entry.device.index() == device);
        found.map(|entry| Arc::clone(&entry.memory))
    }

    /// Totals over all devices. Control path.
    #[must_use]
    pub fn registered(&self) -> Registered {
        let mut registered = Registered::default();
        for entry in self.entries().iter() {
            let map = entry.memory.map();
            registered.count += map.registrations() as u64;
            registered.bytes += map.registered_bytes();
        }
        registered
    }

    /// Removes a device that failed or is being removed. Its memory is deregistered when the last
    /// reactor releases it.
    pub fn remove(&self, device: DeviceIndex) {
        self.entries()
            .retain(|entry| entry.device.index() != device);
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry<P>>> {
        // Each change is one push or removal, so a panic elsewhere leaves the table consistent.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
