//! NFS as a service of the reactors: all volumes, shares and connections belong to the first
//! reactor.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use appliance_config::{Config, FileListener, Squash, Uuid, Volume};
use files_server::{Now, Server, ServerOptions, ShareNumber, VolumeIndex};
use files_store::{ShareId, Time, VolatileOptions};
use files_tcp::{DeviceOfVolume, FilePoller, FileService, FileServiceOptions};
use hugemem::Arena;
use reactors::{InitError, ReactorSetup};

use crate::devices::Devices;
use crate::error::Failure;
use crate::reactor_setup::{ReactorParts, Service};

/// The reactor of the service.
const REACTOR: usize = 0;
/// Requests that wait for memory in the pool's own queue: none, the service has queues of its own.
const WAITERS_MAX: usize = 1;

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
enum FilesError {
    #[error("file_listener {name}: {address} cannot be listened on")]
    Listen {
        name: String,
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("volume {volume}: the device {device} is not available")]
    NoDevice { volume: String, device: String },
}

/// What the reactor makes the service from.
struct Parts {
    server: ServerOptions,
    devices: Vec<DeviceOfVolume>,
    listener: TcpListener,
}

/// The service of the whole appliance.
pub(crate) struct Files {
    #[cfg(test)]
    address: SocketAddr,
    /// Taken once by the reactor. The control path only.
    parts: Mutex<Option<Parts>>,
}

impl Files {
    /// Binds the listener and makes empty volumes, if the configuration serves files.
    ///
    /// # Errors
    /// The address or a device is not available.
    pub(crate) fn prepare(
        config: &Config,
        devices: &Devices,
    ) -> Result<Option<Arc<Self>>, Failure> {
        let Some(at) = &config.files.listener else {
            return Ok(None);
        };
        let listener = listen(at)?;
        let address = listener.local_addr()?;
        let mut volumes = Vec::new();
        let mut of_volumes = Vec::new();
        for volume in &config.files.volumes {
            let (volume, device) = empty_volume(volume, devices)?;
            volumes.push(volume);
            of_volumes.push(device);
        }
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let server = ServerOptions {
            // Volumes end with the process, so that clients must not take this server for an
            // earlier one, nor for another appliance.
            identity: Uuid::new_v4().as_bytes().to_vec(),
            instance: since.as_nanos() as u64,
            shares: shares(config, &volumes),
            volumes,
            reclaiming: Vec::new(),
        };
        for share in &config.files.shares {
            tracing::info!("share {} is served at {address}", share.name);
        }
        let parts = Parts {
            server,
            devices: of_volumes,
            listener,
        };
        Ok(Some(Arc::new(Self {
            #[cfg(test)]
            address,
            parts: Mutex::new(Some(parts)),
        })))
    }

    /// Where clients connect.
    #[cfg(test)]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Service for Files {
    fn set_up(&self, parts: &ReactorParts, setup: &mut ReactorSetup<'_>) -> Result<(), InitError> {
        if setup.index() != REACTOR {
            return Ok(());
        }
        let taken = self
            .parts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let own = taken.ok_or("the file service is set up once")?;
        let service = FileService::new(FileServiceOptions {
            server: Server::new(own.server, &start()),
            devices: own.devices,
            set: Rc::clone(parts.devices.set()),
            pool: Arena::pool(&parts.arena, WAITERS_MAX),
            listener: own.listener,
        })?;
        let service = Rc::new(RefCell::new(service));
        parts.devices.add(service.clone());
        setup.register(Box::new(FilePoller::new(service)?))?;
        Ok(())
    }
}

/// The time of the start. The reactor's clock begins at 0.
fn start() -> Now {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Now {
        monotonic_ms: 0,
        time: Time {
            seconds: since.as_secs() as i64,
            nanoseconds: since.subsec_nanos(),
        },
    }
}

fn listen(at: &FileListener) -> Result<TcpListener, FilesError> {
    let address = at.address.socket_addr();
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|source| FilesError::Listen {
        name: at.name.to_string(),
        address,
        source,
    })
}

/// An empty volume with its device.
fn empty_volume(
    volume: &Volume,
    devices: &Devices,
) -> Result<(files_store::Volume, DeviceOfVolume), FilesError> {
    let found = devices.get(&volume.device);
    let (place, device) = found.ok_or_else(|| FilesError::NoDevice {
        volume: volume.name.to_string(),
        device: volume.device.to_string(),
    })?;
    let geometry = device.geometry();
    let options = VolatileOptions {
        uuid: files_store::Uuid(*Uuid::new_v4().as_bytes()),
        device_bytes: geometry.block_count * u64::from(geometry.block_size),
        memory_bytes: volume.metadata_memory.bytes(),
    };
    let transfer = u64::from(geometry.max_transfer_blocks) * u64::from(geometry.block_size);
    let device = DeviceOfVolume {
        place: usize::from(place.0),
        block_bytes: geometry.block_size,
        transfer_bytes: usize::try_from(transfer).unwrap_or(usize::MAX),
    };
    Ok((files_store::Volume::volatile(&options), device))
}

/// The shares, each of a whole volume.
fn shares(config: &Config, volumes: &[files_store::Volume]) -> Vec<files_server::Share> {
    let shares = config.files.shares.iter().enumerate();
    let share = |(number, share): (usize, &appliance_config::Share)| {
        let mut names = config.files.volumes.iter();
        let index = names.position(|volume| volume.name == share.volume)?;
        Some(files_server::Share {
            number: ShareNumber(number as u32),
            name: share.name.to_string(),
            volume: VolumeIndex(index),
            directory: volumes[index].root(),
            part: ShareId::default(),
            is_read_only: share.read_only,
            squash: match share.squash {
                Squash::Root => files_server::Squash::Root,
                Squash::None => files_server::Squash::None,
                Squash::All => files_server::Squash::All,
            },
        })
    };
    // A valid configuration names existing volumes.
    shares.filter_map(share).collect()
}
