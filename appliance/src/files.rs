//! NFS as a service of the reactors: all volumes, shares and connections belong to the first
//! reactor.

mod changes;
mod lost;
#[cfg_attr(not(feature = "verbs"), path = "files/without_rdma.rs")]
mod rdma;
mod rdma_listeners;
mod reactor_disk;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};

use appliance_config::{
    Backing, ByteSize, Config, FileListener, Name, Share, Squash, Transport, Uuid, Volume,
};
use arc_swap::ArcSwap;
use block::Device;
use files_rdma::RdmaCounters;
use files_server::{
    ClientReport, Clients, Network, Now, Part, PartOptions, Server, ServerCounters, ServerOptions,
    ShareCounters, ShareNumber, VolumeIndex,
};
use files_service::stored::{self, OwnQueue, StoredError};
use files_store::{Time, VolatileOptions};
use files_tcp::{
    DeviceOfVolume, FileMessage, FilePoller, FileService, FileServiceOptions, RecordStore,
    ServiceCounters, Sockets, VolumeLevels, system_time,
};
use hugemem::{Arena, Pool, Region};
use nvme_target::DeviceIndex;
use reactors::ring::Receiver;
use reactors::{Clock as _, InitError, Nanos, ReactorHandle, ReactorSetup};

use crate::devices::Devices;
use crate::error::Failure;
use crate::event_loop::EventLoop;
use crate::file_clients::{FileClients, FileClientsStore};
use crate::messages::{MessageRings, NoResponse};
use crate::reactor_setup::{ReactorParts, Service};
use crate::state_directory::StateDirectory;
use crate::volumes::{self, Obstacle, VolumeError};
pub(crate) use changes::PreparedListener;
use lost::Loss;
pub(crate) use rdma::system as system_rdma;
#[cfg(all(test, feature = "verbs"))]
pub(crate) use rdma::{FileRdma, System as FileRdmaSystem};
use rdma_listeners::FileContext;
pub(crate) use rdma_listeners::RdmaListeners;

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
    #[error(transparent)]
    Part(#[from] PartError),
}

/// Why the directory of a share cannot be shared, or gets no quota.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartError {
    #[error(
        "share {share}: volume {volume} has something else with the name {directory}: rename it, or \
         write another `directory`"
    )]
    Taken {
        share: Name,
        volume: Name,
        directory: Name,
    },
    #[error("share {share}: volume {volume}: {source}")]
    Volume {
        share: Name,
        volume: Name,
        source: StoredError,
    },
}

impl PartError {
    fn new(share: &Share, source: StoredError) -> Self {
        let (name, volume) = (share.name.clone(), share.volume.clone());
        match (&share.directory, source) {
            (Some(directory), StoredError::Part(files_store::Error::Exists)) => Self::Taken {
                share: name,
                volume,
                directory: directory.clone(),
            },
            (_, source) => Self::Volume {
                share: name,
                volume,
                source,
            },
        }
    }
}

/// Why shares were not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetSharesError {
    #[error(transparent)]
    NoResponse(#[from] NoResponse),
    #[error(transparent)]
    Part(#[from] PartError),
}

/// What the reactor makes the service from.
struct Parts {
    server: ServerOptions,
    devices: Vec<DeviceOfVolume>,
    listeners: Vec<TcpListener>,
    records: Option<FileClientsStore>,
    messages: Receiver<FileMessage>,
}

/// Where clients connect.
#[derive(Clone, Debug)]
pub(crate) struct BoundListener {
    pub(crate) name: Name,
    pub(crate) address: SocketAddr,
    transport: Transport,
    /// Its number in the service over its transport.
    number: u32,
}

/// A volume that is served.
#[derive(Clone, Debug)]
pub(crate) struct ServedVolume {
    pub(crate) name: Name,
    pub(crate) levels: Arc<VolumeLevels>,
    /// Its place in the server.
    pub(super) index: VolumeIndex,
}

/// The service of the whole appliance.
pub(crate) struct Files {
    listeners: ArcSwap<Vec<BoundListener>>,
    /// The number of the next listener. The control path only.
    next_listener: AtomicU32,
    rdma: Arc<dyn RdmaListeners>,
    /// What it takes to record clients, if there is a place for that and they are not. The control path
    /// only.
    unrecorded: Mutex<Option<Unrecorded>>,
    messages: MessageRings<FileMessage>,
    server: Arc<ServerCounters>,
    service: Arc<ServiceCounters>,
    volumes: ArcSwap<Vec<ServedVolume>>,
    /// The volumes whose device is gone. The control path only.
    losses: Mutex<Vec<Loss>>,
    shares: ArcSwap<SharesByName>,
    /// Taken once by the reactor. The control path only.
    parts: Mutex<Option<Parts>>,
}

impl Files {
    /// Binds the listeners and opens the volumes. A configuration without them may get them later.
    ///
    /// # Errors
    /// An address is not available, or a volume cannot be opened.
    pub(crate) fn prepare(
        config: &Config,
        devices: &Devices,
        arena: &Arc<Arena>,
        rdma: Arc<dyn RdmaListeners>,
        (state, cores): (&StateDirectory, &[usize]),
    ) -> Result<Arc<Self>, Failure> {
        let (sockets, listeners) = bind_all(config, devices, arena, &*rdma)?;
        let pool = arena.pool(WAITERS_MAX);
        let mut volumes = Vec::new();
        let mut of_volumes = Vec::new();
        for volume in &config.files.volumes {
            let (volume, device) = opened(volume, config, devices, &pool)?;
            volumes.push(volume);
            of_volumes.push(device);
        }
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let path = state.file_clients(&config.appliance.name);
        let (clients, records) = match volumes.iter().all(files_store::Volume::is_volatile) {
            // There is nothing to reclaim, and the volumes are those of no earlier server.
            true => (FileClients::new(), None),
            false => recorded_clients(path.clone(), cores),
        };
        let unrecorded = path.filter(|_| records.is_none()).map(|path| Unrecorded {
            path,
            identity: clients.identity,
            cores: cores.to_vec(),
        });
        let counters = Arc::<ServerCounters>::default();
        let time = system_time(Nanos::ZERO);
        let served = config.files.volumes.iter().zip(&of_volumes).enumerate();
        let served = served.map(|(index, (volume, device))| ServedVolume {
            name: volume.name.clone(),
            levels: Arc::clone(&device.levels),
            index: VolumeIndex(index),
        });
        let served: Vec<ServedVolume> = served.collect();
        let (of_parts, options): (Vec<_>, Vec<_>) = part_options(&config.files, &served).unzip();
        let disk_of = |index: VolumeIndex| {
            let device = &config.files.volumes[index.0].device;
            let (_, device) = devices.get(device).expect("the volume is open");
            OwnQueue::new(&**device, &pool)
        };
        let parts = stored::prepare_parts(&options, &mut volumes, time, disk_of)
            .map_err(|(index, error)| PartError::new(of_parts[index], error))?;
        let (shares, of_shares) = shares(&config.files, &served, &parts, &SharesByName::new());
        let server = ServerOptions {
            identity: clients.identity.as_bytes().to_vec(),
            instance: since.as_nanos() as u64,
            shares,
            volumes,
            reclaiming: clients.owners,
            keeps_records: records.is_some(),
            counters: Arc::clone(&counters),
        };
        for share in &config.files.shares {
            for BoundListener { address, .. } in &listeners {
                tracing::info!("share {} is served at {address}", share.name);
            }
        }
        let (messages, receivers) = MessageRings::new(1);
        let parts = Parts {
            server,
            devices: of_volumes,
            listeners: sockets,
            records,
            messages: receivers.into_iter().next().expect("one reactor"),
        };
        Ok(Arc::new(Self {
            next_listener: AtomicU32::new(listeners.len() as u32),
            listeners: ArcSwap::from_pointee(listeners),
            rdma,
            unrecorded: Mutex::new(unrecorded),
            messages,
            server: counters,
            service: Arc::default(),
            volumes: ArcSwap::from_pointee(served),
            losses: Mutex::default(),
            shares: ArcSwap::from_pointee(of_shares),
            parts: Mutex::new(Some(parts)),
        }))
    }

    /// Whether there is anything to serve, or a place where.
    pub(crate) fn is_used(&self) -> bool {
        !self.listeners.load().is_empty() || !self.volumes.load().is_empty()
    }

    /// Where clients connect.
    pub(crate) fn listeners(&self) -> Arc<Vec<BoundListener>> {
        self.listeners.load_full()
    }

    pub(crate) fn server_counters(&self) -> &ServerCounters {
        &self.server
    }

    pub(crate) fn service_counters(&self) -> &ServiceCounters {
        &self.service
    }

    pub(crate) fn rdma_counters(&self) -> &RdmaCounters {
        self.rdma.counters()
    }

    /// Number of RDMA devices that serve no files any more and have not returned.
    pub(crate) fn rdma_devices_missing(&self) -> usize {
        self.rdma.missing()
    }

    /// The volumes.
    pub(crate) fn volumes(&self) -> Arc<Vec<ServedVolume>> {
        self.volumes.load_full()
    }

    fn losses(&self) -> MutexGuard<'_, Vec<Loss>> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters of the shares.
    pub(crate) fn shares(&self) -> Arc<SharesByName> {
        self.shares.load_full()
    }

    /// Serves the shares of a configuration that has the same volumes.
    ///
    /// # Errors
    /// [`SetSharesError`]; then all shares are as before, but for quotas that were set already.
    pub(crate) fn set_shares(
        &self,
        files: &appliance_config::Files,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), SetSharesError> {
        let volumes = self.volumes();
        let (of_parts, parts): (Vec<_>, Vec<_>) = part_options(files, &volumes).unzip();
        let message = |reply| FileMessage::PrepareParts { parts, reply };
        let prepared = self.messages.ask(REACTOR, event_loop, message)?;
        let failed = |(index, error)| PartError::new(of_parts[index], StoredError::Part(error));
        let parts = prepared.map_err(failed)?;
        let (shares, of_shares) = shares(files, &volumes, &parts, &self.shares());
        let message = |reply| FileMessage::SetShares { shares, reply };
        self.messages.ask(REACTOR, event_loop, message)?;
        self.shares.store(Arc::new(of_shares));
        Ok(())
    }

    /// Makes every message wake the reactor from now on.
    pub(crate) fn set_wakers(&self, reactors: &[ReactorHandle]) {
        let own = &reactors[REACTOR..=REACTOR];
        self.messages.set_wakers(own);
        self.rdma.set_wakers(own);
    }

    /// Asks the reactor for the list of clients.
    ///
    /// # Errors
    /// [`NoResponse::Full`].
    pub(crate) fn clients(&self) -> Result<mpsc::Receiver<Vec<ClientReport>>, NoResponse> {
        self.ask(|reply| FileMessage::Clients { reply })
    }

    /// Has the reactor evict the client with this number.
    ///
    /// # Errors
    /// [`NoResponse::Full`].
    pub(crate) fn evict(&self, number: u64) -> Result<mpsc::Receiver<bool>, NoResponse> {
        self.ask(|reply| FileMessage::Evict { number, reply })
    }

    fn ask<A>(
        &self,
        message: impl FnOnce(mpsc::Sender<A>) -> FileMessage,
    ) -> Result<mpsc::Receiver<A>, NoResponse> {
        let (reply, response) = mpsc::channel();
        self.messages.send(REACTOR, message(reply))?;
        Ok(response)
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
            server: Server::new(own.server, &start(setup.clock().now())),
            devices: own.devices,
            set: Rc::clone(parts.devices.set()),
            pool: Arena::pool(&parts.arena, WAITERS_MAX),
            network: Sockets::new(own.listeners)?,
            time_of_day: system_time,
            records: own.records.map(|it| Box::new(it) as Box<dyn RecordStore>),
            counters: Arc::clone(&self.service),
            messages: Some(own.messages),
        })?;
        setup.register(self.rdma.poller(FileContext {
            core: Rc::clone(service.core()),
            arena: Arc::clone(&parts.arena),
        })?)?;
        let service = Rc::new(RefCell::new(service));
        parts.devices.add(service.clone());
        setup.register(Box::new(FilePoller::new(service)?))?;
        Ok(())
    }
}

/// What it takes to record clients, who are not recorded before there is a durable volume. What the file has is
/// of an earlier server.
struct Unrecorded {
    path: PathBuf,
    /// The identity of this server.
    identity: Uuid,
    /// Those of the reactors.
    cores: Vec<usize>,
}

/// The clients that may reclaim, and where such clients are recorded, off the cores of the reactors.
fn recorded_clients(
    path: Option<PathBuf>,
    cores: &[usize],
) -> (FileClients, Option<FileClientsStore>) {
    let Some(path) = path else {
        tracing::warn!(
            "clients of files lose their locks at a restart: there is no state directory: set \
             STATE_DIRECTORY"
        );
        return (FileClients::new(), None);
    };
    let clients = FileClients::read(&path);
    match FileClientsStore::start(path.clone(), &clients, cores) {
        Ok(store) => (clients, Some(store)),
        Err(cause) => {
            // What it has would be old at the next start.
            let removed = std::fs::remove_file(&path);
            tracing::warn!(
                "{}: it cannot be written: {cause}: clients of files lose their locks at a \
                 restart: make the directory writable{}",
                path.display(),
                match removed {
                    Ok(()) => "",
                    Err(_) => ", and remove the file before a restart",
                }
            );
            (clients, None)
        }
    }
}

/// Why the RDMA listeners of `config` cannot work on this machine.
pub(crate) fn rdma_problem(config: &Config) -> Option<String> {
    rdma::problem(config)
}

/// The time of the start, by the reactor's clock and by that of the machine.
fn start(now: Nanos) -> Now {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Now {
        monotonic_ms: now.as_millis(),
        time: Time {
            seconds: since.as_secs() as i64,
            nanoseconds: since.subsec_nanos(),
        },
    }
}

/// The sockets of the listeners over TCP, by number, and all bound listeners.
type AllBound = (Vec<TcpListener>, Vec<BoundListener>);

/// Binds the listeners of a configuration.
fn bind_all(
    config: &Config,
    devices: &Devices,
    arena: &Arena,
    rdma: &dyn RdmaListeners,
) -> Result<AllBound, Failure> {
    let mut sockets = Vec::new();
    let mut listeners = Vec::new();
    for (index, listener) in config.files.listeners.iter().enumerate() {
        let (address, number) = match listener.transport {
            Transport::Tcp => {
                let socket = listen(listener)?;
                let address = socket.local_addr()?;
                sockets.push(socket);
                (address, sockets.len() - 1)
            }
            Transport::Rdma => {
                let memory = registered_memory(config, devices, arena);
                (rdma.bind(index as u32, listener, &memory)?, index)
            }
        };
        listeners.push(BoundListener {
            name: listener.name.clone(),
            address,
            transport: listener.transport,
            number: number as u32,
        });
    }
    Ok((sockets, listeners))
}

/// The memory that data of files are in: of the arena, and of the RAM devices of volumes.
pub(crate) fn registered_memory<'m>(
    config: &'m Config,
    devices: &'m Devices,
    arena: &'m Arena,
) -> Vec<&'m Region> {
    let volumes = config.files.volumes.iter().map(|it| &it.device);
    devices.regions_of(arena, volumes)
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

/// A volume with its device: empty in memory, or as it was left.
fn opened(
    volume: &Volume,
    config: &Config,
    devices: &Devices,
    pool: &Pool,
) -> Result<(files_store::Volume, DeviceOfVolume), VolumeError> {
    let found = devices.get(&volume.device);
    let (place, device) = found.ok_or_else(|| VolumeError::new(volume, Obstacle::NoDevice))?;
    let of_volume = device_of_volume(volume, config, (place, &**device));
    let backing = config.device(&volume.device).map(|it| &it.backing);
    let opened = match backing {
        Some(Backing::Memory { .. }) => volatile_volume(volume, &**device),
        _ => {
            let mut queue = own_queue(volume, &**device, pool)?;
            volumes::open(volume, &mut queue)?
        }
    };
    Ok((opened, of_volume))
}

/// What the service needs to know of a device at a place.
fn device_of_volume(
    volume: &Volume,
    config: &Config,
    (place, device): (DeviceIndex, &dyn Device),
) -> DeviceOfVolume {
    let backing = config.device(&volume.device).map(|it| &it.backing);
    let geometry = device.geometry();
    let transfer = u64::from(geometry.max_transfer_blocks) * u64::from(geometry.block_size);
    DeviceOfVolume {
        place: usize::from(place.0),
        block_bytes: geometry.block_size,
        transfer_bytes: usize::try_from(transfer).unwrap_or(usize::MAX),
        keeps_cache: matches!(backing, Some(Backing::Nvme(_))),
        levels: Arc::default(),
    }
}

/// An empty volume on a device in memory.
fn volatile_volume(volume: &Volume, device: &dyn Device) -> files_store::Volume {
    files_store::Volume::volatile(&VolatileOptions {
        uuid: files_store::Uuid(*Uuid::new_v4().as_bytes()),
        device_bytes: device.geometry().bytes(),
        memory_bytes: volume.metadata_memory.bytes(),
    })
}

/// A queue of a device for the control path.
pub(crate) fn own_queue(
    volume: &Volume,
    device: &dyn Device,
    pool: &Pool,
) -> Result<OwnQueue, VolumeError> {
    OwnQueue::new(device, pool).map_err(|cause| VolumeError::new(volume, cause))
}

/// The numbers of shares, which file handles contain: they follow from the names (FNV-1a), so that
/// handles stay valid when other shares come and go. Should two names have one number, the later
/// share gets the next one.
fn share_numbers<'n>(names: impl Iterator<Item = &'n str>) -> Vec<u32> {
    let mut numbers = Vec::new();
    for name in names {
        let mut number = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        while numbers.contains(&number) {
            number = number.wrapping_add(1);
        }
        numbers.push(number);
    }
    numbers
}

/// The clients that may use a share.
fn clients(share: &Share) -> Clients {
    if share.allow_any_client {
        return Clients::Any;
    }
    let networks = share.clients.iter().map(|it| Network {
        address: it.address(),
        prefix_bits: it.prefix_bits(),
    });
    Clients::In(networks.collect())
}

/// The counters of the shares.
type SharesByName = Vec<(Name, Arc<ShareCounters>)>;

/// What each share is of its volume.
fn part_options<'f>(
    files: &'f appliance_config::Files,
    volumes: &'f [ServedVolume],
) -> impl Iterator<Item = (&'f Share, PartOptions)> {
    files.shares.iter().filter_map(|share| {
        // A valid configuration names existing volumes.
        let volume = volumes.iter().find(|it| it.name == share.volume)?;
        let options = PartOptions {
            volume: volume.index,
            directory: share.directory.as_ref().map(ToString::to_string),
            files_max: share.max_files,
            bytes_max: share.max_size.map(ByteSize::bytes),
        };
        Some((share, options))
    })
}

/// The shares of these parts, with their counters. Those that were there `before` keep theirs.
fn shares(
    files: &appliance_config::Files,
    volumes: &[ServedVolume],
    parts: &[Part],
    before: &SharesByName,
) -> (Vec<files_server::Share>, SharesByName) {
    // Those of volumes that are not served any more are left out.
    let names = part_options(files, volumes).map(|(share, _)| share.name.as_str());
    let numbers = share_numbers(names);
    let counters = |name: &Name| {
        let known = before.iter().find(|(it, _)| it == name);
        known.map_or_else(Arc::default, |(_, it)| Arc::clone(it))
    };
    let shares = numbers
        .into_iter()
        .zip(part_options(files, volumes))
        .zip(parts);
    let share = |((number, (share, options)), part): ((u32, (&Share, PartOptions)), &Part)| {
        let served = files_server::Share {
            number: ShareNumber(number),
            name: share.name.to_string(),
            volume: options.volume,
            directory: part.directory,
            part: part.part,
            is_read_only: share.read_only,
            clients: clients(share),
            squash: match share.squash {
                Squash::Root => files_server::Squash::Root,
                Squash::None => files_server::Squash::None,
                Squash::All => files_server::Squash::All,
            },
            counters: counters(&share.name),
        };
        let of_share = (share.name.clone(), Arc::clone(&served.counters));
        (served, of_share)
    };
    shares.map(share).unzip()
}
