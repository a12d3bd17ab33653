//! The protection domains of all devices, with all memory for data registered once per device.
//!
//! Changed on the control path, since registering gigabytes takes time: at start, with the first
//! listener, and when a device returns. Shared by all reactors.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugemem::{DeviceMemory, NotExported, Region};

use crate::device::{DeviceIndex, DeviceLimits};
use crate::device_events::DeviceEvents;
use crate::error::Error;
use crate::memory::Access;
use crate::provider::{Device, Provider};
use crate::registered::DomainMemory;

/// Checks whether a device with these limits is fit for its use. The error says what it lacks.
pub type FitnessCheck = fn(&DeviceLimits) -> Result<(), Unfit>;

/// What a device lacks.
pub type Unfit = Box<dyn std::error::Error + Send + Sync>;

/// A device in use.
#[derive(Debug)]
struct Entry<P: Provider> {
    device: P::Device,
    memory: Arc<DomainMemory<P>>,
}

/// Why a device is not used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// It lacks a required capability.
    #[error(transparent)]
    Unfit(Unfit),
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
    table: Mutex<Table<P>>,
    check: FitnessCheck,
    events: Arc<DeviceEvents>,
}

#[derive(Debug)]
struct Table<P: Provider> {
    entries: Vec<Entry<P>>,
    /// Names of devices that failed or were removed and have not returned.
    lost: BTreeSet<String>,
    /// Memory of drives, which every device is to register.
    device_memory: Vec<Arc<DeviceMemory>>,
    /// Memory that no device is to register any more, and that work requests may still use. The drive
    /// ends the registrations when they are done, or after its deadline.
    retiring: Vec<Arc<DeviceMemory>>,
}

impl<P: Provider> Table<P> {
    /// Registers the memory of drives with every device, and ends registrations of memory that has
    /// ended.
    fn register_device_memory(&mut self) {
        let ended = self.device_memory.extract_if(.., |it| it.has_ended());
        self.retiring.extend(ended);
        self.retiring.retain(|it| !is_done(it));
        for entry in &self.entries {
            let is_wanted = |number| {
                let mut all = self.device_memory.iter().chain(&self.retiring);
                all.any(|it| it.number() == number)
            };
            entry.memory.retain_device_memory(is_wanted);
        }
        for memory in &self.device_memory {
            let registered = self.entries.iter().map(|entry| {
                let name = entry.device.name();
                let refusal = entry.memory.attach_device_memory(memory).err()?;
                refusal_of(&refusal).map(|why| format!("{name}: {why}"))
            });
            let refusals: Vec<String> = registered.flatten().collect();
            let is_new = memory.export_refusals() != refusals;
            if is_new && !refusals.is_empty() {
                tracing::warn!(
                    "memory of a drive is not registered, so that hosts' data goes through the \
                     arena: {}",
                    refusals.join("; ")
                );
            }
            memory.set_export_refusals(refusals);
        }
    }
}

/// Whether a memory has ended, and no work request uses it.
fn is_done(memory: &Arc<DeviceMemory>) -> bool {
    memory.has_ended() && memory.neighbours_in_flight() == 0
}

/// Why a device has not registered a memory; `None` if the memory has ended.
fn refusal_of(refusal: &NotExported<Error>) -> Option<String> {
    match refusal {
        NotExported::Ended => None,
        NotExported::Refused(why) => Some(why.clone()),
        NotExported::Failed(error) => Some(match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        }),
    }
}

impl<P: Provider> Default for Domains<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Provider> Domains<P> {
    /// A set without devices, which any device is fit for.
    #[must_use]
    pub fn new() -> Self {
        Self::with_check(|_| Ok(()))
    }

    /// A set without devices, for those that pass a check.
    #[must_use]
    pub fn with_check(check: FitnessCheck) -> Self {
        Self {
            check,
            events: Arc::default(),
            table: Mutex::new(Table {
                entries: Vec::new(),
                lost: BTreeSet::new(),
                device_memory: Vec::new(),
                retiring: Vec::new(),
            }),
        }
    }

    /// The same set, whose devices other services of the process use, too.
    #[must_use]
    pub fn with_events(self, events: Arc<DeviceEvents>) -> Self {
        Self { events, ..self }
    }

    /// The events of the devices.
    #[must_use]
    pub fn events(&self) -> &Arc<DeviceEvents> {
        &self.events
    }

    /// Adds `device`: creates a protection domain and registers `regions`.
    ///
    /// # Errors
    /// [`DeviceError`], if the device cannot be used.
    pub fn add(&self, device: &P::Device, regions: &[&Region]) -> Result<(), DeviceError> {
        (self.check)(device.limits()).map_err(DeviceError::Unfit)?;
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
        let mut table = self.table();
        table
            .entries
            .retain(|other| other.device.index() != device.index());
        table.entries.push(entry);
        table.lost.remove(device.name());
        table.register_device_memory();
        Ok(())
    }

    /// Sets the memory of drives that every device is to register for large reads and writes, in place
    /// of what was set before. A memory that has ended is registered no more, and its registrations
    /// end when no work request uses it. Control path: it blocks while memory is registered.
    pub fn set_device_memory(&self, memory: Vec<Arc<DeviceMemory>>) {
        let mut table = self.table();
        let before = std::mem::replace(&mut table.device_memory, memory);
        let Table {
            device_memory,
            retiring,
            ..
        } = &mut *table;
        let is_set = |one: &Arc<DeviceMemory>| device_memory.iter().any(|it| Arc::ptr_eq(it, one));
        retiring.extend(before);
        retiring.retain(|it| !is_set(it));
        table.register_device_memory();
    }

    /// Whether [`set_device_memory`](Self::set_device_memory) with this memory would change something.
    #[must_use]
    pub fn lacks_device_memory(&self, memory: &[Arc<DeviceMemory>]) -> bool {
        let table = self.table();
        let set = table.device_memory.iter().map(|it| it.number());
        !set.eq(memory.iter().map(|it| it.number())) || table.retiring.iter().any(is_done)
    }

    /// Registers more memory with every device that does not have it. Skips a device that was removed
    /// and is not yet released.
    ///
    /// # Errors
    /// The error of the first device that fails. What this call has registered is so no more.
    pub fn attach(&self, region: &Region) -> Result<(), DeviceError> {
        let table = self.table();
        let mut added = Vec::new();
        for entry in &table.entries {
            if entry.memory.has_region(region) {
                continue;
            }
            match entry.memory.attach_region(region) {
                Ok(()) => added.push(entry),
                Err(Error::DeviceGone) => {}
                Err(error) => {
                    for registered in added {
                        registered.memory.detach_region(region);
                    }
                    return Err(DeviceError::Memory(error));
                }
            }
        }
        Ok(())
    }

    /// Deregisters memory that is no longer used.
    pub fn detach(&self, region: &Region) {
        for entry in &self.table().entries {
            entry.memory.detach_region(region);
        }
    }

    /// The devices in use.
    #[must_use]
    pub fn devices(&self) -> Vec<P::Device> {
        let table = self.table();
        let entries = table.entries.iter();
        entries.map(|entry| entry.device.clone()).collect()
    }

    /// A device's registered memory. Control path.
    #[must_use]
    pub fn memory(&self, device: DeviceIndex) -> Option<Arc<DomainMemory<P>>> {
        let table = self.table();
        let mut entries = table.entries.iter();
        let found = entries.find(|entry| entry.device.index() == device);
        found.map(|entry| Arc::clone(&entry.memory))
    }

    /// Totals over all devices. Control path.
    #[must_use]
    pub fn registered(&self) -> Registered {
        let mut registered = Registered::default();
        for entry in &self.table().entries {
            let map = entry.memory.map();
            registered.count += map.registrations() as u64;
            registered.bytes += map.registered_bytes();
        }
        registered
    }

    /// Removes a device that failed or is being removed. Its memory is deregistered when the last
    /// reactor releases it.
    pub fn remove(&self, device: DeviceIndex) {
        let mut table = self.table();
        let found = (table.entries.iter()).position(|entry| entry.device.index() == device);
        if let Some(place) = found {
            let entry = table.entries.remove(place);
            table.lost.insert(entry.device.name().to_owned());
        }
    }

    /// Names of the devices that failed or were removed and have not returned. Control path.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        self.table().lost.iter().cloned().collect()
    }

    /// Removes all devices, because no listener needs them. None counts as lost. Returns their
    /// memory: it is deregistered when the caller and the last reactor have dropped it. That takes
    /// time, so the caller drops it last.
    #[must_use]
    pub fn clear(&self) -> Vec<Arc<DomainMemory<P>>> {
        let mut table = self.table();
        table.lost.clear();
        let entries = table.entries.drain(..);
        entries.map(|entry| entry.memory).collect()
    }

    fn table(&self) -> MutexGuard<'_, Table<P>> {
        // Each change is complete before the next one, so a panic elsewhere leaves it consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
