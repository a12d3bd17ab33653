//! From the configuration's devices to block devices that can be opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use appliance_config::{Backing, ByteSize, Config, Pages};
use block::{
    Device, DirectIo, FileDevice, FileOptions, MemoryDevice, MemoryOptions, NullDevice, NullOptions,
};
use hugemem::{Arena, PagePolicy, Region, Store};
use nvme_target::DeviceIndex;

use crate::command_line::Failure;

/// The devices of a configuration that could be had, and what must be flushed at the end.
#[derive(Clone)]
pub(crate) struct Devices {
    /// Those that could be had, in the configuration's order.
    all: Vec<Arc<dyn Device>>,
    /// For each device of the configuration its place among them.
    places: Vec<Option<DeviceIndex>>,
    files: Vec<Arc<FileDevice>>,
    /// The memory of RAM devices, which data is sent from.
    stores: Vec<Arc<Store>>,
}

#[derive(Debug, thiserror::Error)]
#[error("device {name}")]
struct DeviceError {
    name: String,
    #[source]
    cause: Failure,
}

impl Devices {
    /// Takes the memory and opens the files that `config` names; files move data through leases of
    /// `arena`. The namespaces of drives are `drives`, each with its place in the configuration;
    /// those that could not be had are left out.
    ///
    /// # Errors
    /// The first other device that cannot be had, by name.
    pub(crate) fn open(
        config: &Config,
        arena: &Arc<Arena>,
        drives: Vec<(usize, Arc<dyn Device>)>,
    ) -> Result<Self, Failure> {
        let mut drives: BTreeMap<usize, Arc<dyn Device>> = drives.into_iter().collect();
        let mut devices = Self {
            all: Vec::new(),
            places: Vec::new(),
            files: Vec::new(),
            stores: Vec::new(),
        };
        for (index, device) in config.devices.iter().enumerate() {
            let drive = drives.remove(&index);
            let opened = devices
                .open_one(config, arena, device, drive)
                .map_err(|cause| DeviceError {
                    name: device.name.as_str().to_owned(),
                    cause,
                })?;
            // The configuration has 128 devices at most.
            let place = DeviceIndex(devices.all.len() as u16);
            devices.places.push(opened.is_some().then_some(place));
            devices.all.extend(opened);
        }
        Ok(devices)
    }

    /// The devices that could be had; their places are [`DeviceIndex`]es.
    pub(crate) fn all(&self) -> &[Arc<dyn Device>] {
        &self.all
    }

    /// The device at `index` of the configuration, unless it could not be had.
    pub(crate) fn get(&self, index: usize) -> Option<(DeviceIndex, &Arc<dyn Device>)> {
        let place = (*self.places.get(index)?)?;
        Some((place, self.all.get(usize::from(place.0))?))
    }

    /// All memory that data moves through: the arena's and that of RAM devices.
    pub(crate) fn regions<'a>(&'a self, arena: &'a Arena) -> Vec<&'a Region> {
        let stores = self.stores.iter().map(|store| store.region());
        std::iter::once(arena.region()).chain(stores).collect()
    }

    /// Writes what is cached of files; says in the log which could not be.
    pub(crate) fn flush_files(&self) -> bool {
        let mut flushed = true;
        for file in &self.files {
            if let Err(error) = file.sync() {
                tracing::error!(%error, "a file could not be flushed");
                flushed = false;
            }
        }
        flushed
    }

    fn open_one(
        &mut self,
        config: &Config,
        arena: &Arc<Arena>,
        device: &appliance_config::Device,
        drive: Option<Arc<dyn Device>>,
    ) -> Result<Option<Arc<dyn Device>>, Failure> {
        let name = device.name.as_str().to_owned();
        let uuid = device.uuid.map_or([0; 16], |uuid| *uuid.as_bytes());
        let opened: Arc<dyn Device> = match &device.backing {
            Backing::Memory { size, block_size } => {
                let memory = MemoryDevice::new(MemoryOptions {
                    name: name.clone(),
                    uuid,
                    size_bytes: size.bytes(),
                    block_size: block_size.bytes(),
                    pages: page_policy(config.appliance.pages),
                    read_only: device.read_only,
                })?;
                for notice in memory.store().region().notices() {
                    tracing::warn!("device {name}: {notice}");
                }
                self.stores.push(Arc::clone(memory.store()));
                Arc::new(memory)
            }
            Backing::Null { size, block_size } => Arc::new(NullDevice::new(NullOptions {
                name,
                uuid,
                size_bytes: size.bytes(),
                block_size: block_size.bytes(),
            })?),
            Backing::File {
                path,
                size,
                block_size,
            } => {
                let file = Arc::new(FileDevice::open(FileOptions {
                    name: name.clone(),
                    uuid,
                    path: path.clone(),
                    size_bytes: size.map(ByteSize::bytes),
                    block_size: block_size.bytes(),
                    read_only: device.read_only,
                    direct: DirectIo::Auto,
                    arena: Some(Arc::clone(arena)),
                })?);
                for notice in file.notices() {
                    tracing::warn!("device {name}: {notice}");
                }
                self.files.push(Arc::clone(&file));
                file
            }
            Backing::Nvme(_) => return Ok(drive),
        };
        Ok(Some(opened))
    }
}

/// The arena's words for the configuration's.
pub(crate) fn page_policy(pages: Pages) -> PagePolicy {
    match pages {
        Pages::Auto => PagePolicy::Auto,
        Pages::Huge => PagePolicy::HugeOnly,
        Pages::Ordinary => PagePolicy::Ordinary,
    }
}
