//! From the configuration's devices to block devices that can be opened.

use std::sync::Arc;

use appliance_config::{Backing, ByteSize, Config, Pages};
use block::{
    Device, DirectIo, FileDevice, FileOptions, MemoryDevice, MemoryOptions, NullDevice, NullOptions,
};
use hugemem::{Arena, PagePolicy};

use crate::command_line::Failure;

/// The devices of a configuration, in its order, and what must be flushed at the end.
pub(crate) struct Devices {
    pub(crate) all: Vec<Arc<dyn Device>>,
    pub(crate) files: Vec<Arc<FileDevice>>,
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
    /// `arena`.
    ///
    /// # Errors
    /// The first device that cannot be had, by name.
    pub(crate) fn open(config: &Config, arena: &Arc<Arena>) -> Result<Self, Failure> {
        let mut devices = Self {
            all: Vec::new(),
            files: Vec::new(),
        };
        for device in &config.devices {
            devices
                .open_one(config, arena, device)
                .map_err(|cause| DeviceError {
                    name: device.name.as_str().to_owned(),
                    cause,
                })?;
        }
        Ok(devices)
    }

    fn open_one(
        &mut self,
        config: &Config,
        arena: &Arc<Arena>,
        device: &appliance_config::Device,
    ) -> Result<(), Failure> {
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
            Backing::Nvme(_) => return Err("drives are not served by this build yet".into()),
        };
        self.all.push(opened);
        Ok(())
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
