//! The server: the production file service on a volume of a simulated device, without a thread.
//! It is killed and started again; its device, its listener and its stored records remain.

mod control;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use block::{Device, DeviceSet, MemoryDevice, QueueOptions, ReactorDevices};
use files_rdma::{Endpoint, RdmaFileOptions, RdmaFilePoller, RdmaFileService};
use files_server::{
    Clients, Now, Part, PartOptions, Server, ServerOptions, Share, ShareNumber, Squash, VolumeIndex,
};
use files_service::{FileCore, FileMessage};
use files_store::{FormatOptions, Time, Uuid, VolatileOptions, Volume};
use files_tcp::{
    DeviceOfVolume, FilePoller, FileService, FileServiceOptions, RecordStore, VolumeLevels, stored,
};
use hugemem::{Arena, ArenaConfig, PagePolicy, Region};
use rdma::{Domains, Provider as _};
use rdma_testing::fake::Fake;
use reactors::{Nanos, Poller as _, ring};
use rustix::event::EventfdFlags;

use self::control::Control;
pub(super) use self::control::Disappearance;
use super::network::FileNetwork;
use super::quotas::Quota;
use super::rdma::{FileFabric, SERVER_ADDRESS};
use super::swarm::{Backing, FileSwarm};
use crate::disk::{Disk, DiskBehaviour, DiskShape};
use crate::network::Listener;
use crate::ram::Ram;
use crate::random::Random;
use crate::time::SharedTime;

/// The name of the share.
pub(super) const SHARE: &str = "data";
/// The name of the other share of the same volume, and its quotas.
pub(super) const OTHER_SHARE: &str = "other";
pub(super) const OTHER_FILES_MAX: u64 = 3;
pub(super) const OTHER_BLOCKS_MAX: u64 = 10;
/// Size of a block of the device in bytes.
const BLOCK_BYTES: u32 = 512;
/// Size of a block of a volume in bytes.
const VOLUME_BLOCK_BYTES: u64 = 4096;
/// Messages of the control path that are on their way.
const MESSAGES_MAX: usize = 4;
/// Depth of the queue of the device.
const QUEUE_DEPTH: usize = 64;
/// Largest transfer of the device in blocks.
const TRANSFER_BLOCKS_MAX: u32 = 128;
/// Longest time until records of clients are stored.
const STORE_LATENCY_MAX: Nanos = Nanos::from_millis(5);
/// The number of the listener over RDMA.
const LISTENER: u32 = 0;
/// The time of day at the beginning of a run, in seconds since 1970.
const TIME_OF_DAY: i64 = 1_800_000_000;

/// A device without latency and errors, for the start of the server.
const IDEAL: DiskBehaviour = DiskBehaviour {
    latency_min: Nanos::ZERO,
    latency_max: Nanos::ZERO,
    slow_permille: 0,
    slow_max: Nanos::ZERO,
    error_permille: 0,
    flush_error_permille: 0,
    later_permille: 0,
    linger_permille: 0,
    linger_max: Nanos::ZERO,
    write_back_permille: 0,
    forgotten_before: 0,
};

/// Owners that are being stored: until when, and their version.
type Storing = (Nanos, u64, Vec<Box<[u8]>>);

/// The stored records of clients, which outlive the server.
#[derive(Debug, Default)]
struct Records {
    owners: Vec<Box<[u8]>>,
    /// The last version of this start that is stored.
    version: u64,
    storing: VecDeque<Storing>,
}

impl Records {
    fn advance(&mut self, now: Nanos) {
        while let Some((_, version, owners)) = self.storing.pop_front_if(|it| it.0 <= now) {
            (self.version, self.owners) = (version, owners);
        }
    }
}

/// The production service's access to them.
struct RecordsOfServer {
    records: Rc<RefCell<Records>>,
    random: Random,
    time: SharedTime,
    /// Never readable: the simulation polls the service whenever time passes.
    signal: OwnedFd,
}

impl RecordStore for RecordsOfServer {
    fn store(&mut self, version: u64, owners: Vec<Box<[u8]>>) {
        let latency = self.random.below(STORE_LATENCY_MAX.as_nanos());
        let mut records = self.records.borrow_mut();
        let last = records.storing.back().map_or(Nanos::ZERO, |it| it.0);
        let due = (self.time.now() + Nanos(latency)).max(last);
        records.storing.push_back((due, version, owners));
    }

    fn stored(&self) -> u64 {
        let mut records = self.records.borrow_mut();
        records.advance(self.time.now());
        records.version
    }

    fn wake_source(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

/// An open device and its volume.
struct Opened {
    device: Arc<dyn Device>,
    /// Its memory, if clients read it by RDMA.
    memory: Option<Arc<MemoryDevice>>,
    volume: Volume,
}

/// The device of the volume.
enum Storage {
    Disk(Disk),
    Ram(Ram),
}

/// The transport over RDMA of a started server.
struct Rdma {
    service: Rc<RefCell<RdmaFileService<Fake>>>,
    poller: RdmaFilePoller<Fake>,
}

/// A started server.
struct Running {
    service: Rc<RefCell<FileService<FileNetwork>>>,
    poller: FilePoller<FileNetwork>,
    devices: ReactorDevices,
    levels: Arc<VolumeLevels>,
    rdma: Option<Rdma>,
    /// What the control path tells it.
    messages: ring::Sender<FileMessage>,
    /// Kept while its queue is open.
    device: Arc<dyn Device>,
}

/// The machine of the server.
pub(super) struct FileServer {
    backing: Backing,
    storage: Storage,
    behaviour: DiskBehaviour,
    /// Where the data of the volume begin.
    data_at: u64,
    device_bytes: u64,
    memory_bytes: u64,
    arena: Arc<Arena>,
    listener: Listener,
    records: Rc<RefCell<Records>>,
    random: Random,
    time: SharedTime,
    starts: u64,
    fabric: Option<FileFabric>,
    quota: Option<Quota>,
    running: Option<Running>,
    control: Option<Control>,
    /// The place of the volume.
    volume: VolumeIndex,
    /// A volume that is not served.
    removed: Option<Box<Volume>>,
    /// Whether the share of the clients is read-only.
    is_read_only: bool,
}

impl FileServer {
    /// A machine with a formatted device. The server does not run.
    ///
    /// # Errors
    /// There is no memory, or the device cannot be formatted.
    pub(super) fn new(
        swarm: &FileSwarm,
        seed: u64,
        time: &SharedTime,
        fabric: Option<FileFabric>,
    ) -> Result<Self, String> {
        let mut random = Random::new(seed, 0xF100);
        let shape = DiskShape {
            block_size: BLOCK_BYTES,
            block_count: swarm.device_bytes / u64::from(BLOCK_BYTES),
            volatile: swarm.backing == Backing::Durable,
            deallocate: block::Deallocate::Unsupported,
            transfer_blocks_max: TRANSFER_BLOCKS_MAX,
            read_only: false,
        };
        let of_device = Random::new(seed, 0xF101);
        let storage = match swarm.backing {
            Backing::Ram => Storage::Ram(Ram::new(shape, swarm.device, of_device, time.clone())),
            Backing::Durable | Backing::Volatile => {
                Storage::Disk(Disk::new(0, shape, IDEAL, of_device, time.clone()))
            }
        };
        let arena = Arena::new(ArenaConfig {
            bytes: swarm.arena_bytes,
            pages: PagePolicy::Ordinary,
            max_transfer: 64 << 10,
        });
        let arena = arena.map_err(|error| error.to_string())?;
        if let (Backing::Durable, Storage::Disk(disk)) = (swarm.backing, &storage) {
            let options = FormatOptions {
                uuid: Uuid([7; 16]),
                salt: random.bits(),
                device_bytes: swarm.device_bytes,
                memory_bytes: swarm.memory_bytes,
                log_bytes: 0,
            };
            let formatted = stored::format(&mut own(disk, &arena.pool(1)), &options);
            formatted.map_err(|error| error.to_string())?;
        }
        Ok(Self {
            backing: swarm.backing,
            storage,
            behaviour: swarm.device,
            data_at: 0,
            device_bytes: swarm.device_bytes,
            memory_bytes: swarm.memory_bytes,
            arena,
            listener: Listener::new(time.clone()),
            records: Rc::default(),
            random,
            time: time.clone(),
            starts: 0,
            fabric,
            quota: swarm.quota,
            running: None,
            control: None,
            volume: VolumeIndex(0),
            removed: None,
            is_read_only: false,
        })
    }

    /// Where clients connect.
    #[must_use]
    pub(super) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Whether it runs.
    #[must_use]
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether its volume survives a restart.
    #[must_use]
    pub(super) fn is_durable(&self) -> bool {
        self.backing == Backing::Durable
    }

    /// Starts it. With `failures` per thousand requests to the device it may not start: then it returns
    /// false.
    ///
    /// # Errors
    /// The volume cannot be opened, or the service cannot start.
    pub(super) fn start(&mut self, failures: u32) -> Result<bool, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let now = self.time.now();
        let pool = self.arena.pool(1);
        let Some(opened) = self.open(&pool, failures)? else {
            return Ok(false);
        };
        let Opened {
            device,
            memory,
            volume,
        } = opened;
        let now = Now {
            monotonic_ms: now.as_millis(),
            time: time_of_day(now),
        };
        let mut volumes = vec![volume];
        let Some(shares) = self.shares(&mut volumes, &pool, (now.time, failures))? else {
            return Ok(false);
        };
        let keeps_records = self.is_durable();
        self.starts += 1;
        let reclaiming = self.records.borrow().owners.clone();
        let options = ServerOptions {
            identity: b"simulated".to_vec(),
            instance: self.starts << 32 | self.random.below(1 << 32),
            volumes,
            shares,
            reclaiming: if keeps_records {
                reclaiming
            } else {
                Vec::new()
            },
            keeps_records,
            counters: Arc::default(),
        };
        let set = Rc::new(DeviceSet::new());
        let queue = QueueOptions::new(0, QUEUE_DEPTH, pool.clone());
        set.attach(0, &*device, queue).map_err(|it| text(&it))?;
        let devices = ReactorDevices::new(Rc::clone(&set));
        let socket = self.listener.bind().map_err(|it| text(&it))?;
        let levels = Arc::<VolumeLevels>::default();
        let server = Server::new(options, &now);
        let (sender, messages) = ring::channel(MESSAGES_MAX);
        let service = FileService::new(FileServiceOptions {
            server,
            devices: vec![Self::device_of_volume(&*device, &levels)],
            set,
            pool,
            network: FileNetwork::new(socket).map_err(|it| text(&it))?,
            time_of_day,
            records: self.records_of_server(keeps_records)?,
            counters: Arc::default(),
            messages: Some(messages),
        });
        let service = Rc::new(RefCell::new(service.map_err(|it| text(&it))?));
        devices.add(service.clone());
        let poller = FilePoller::new(Rc::clone(&service)).map_err(|it| text(&it))?;
        let core = Rc::clone(service.borrow().core());
        let rdma = match &self.fabric {
            Some(fabric) => Some(self.over_rdma(fabric, core, memory.as_deref())?),
            None => None,
        };
        self.running = Some(Running {
            service,
            poller,
            devices,
            levels,
            rdma,
            messages: sender,
            device,
        });
        Ok(true)
    }

    fn device_of_volume(device: &dyn Device, levels: &Arc<VolumeLevels>) -> DeviceOfVolume {
        let geometry = device.geometry();
        DeviceOfVolume {
            place: 0,
            block_bytes: geometry.block_size,
            transfer_bytes: (geometry.max_transfer_blocks * geometry.block_size) as usize,
            keeps_cache: false,
            levels: Arc::clone(levels),
        }
    }

    /// The shares: the volume as a whole, or two parts of it with their quotas. `None` if their
    /// directories cannot be stored, because the device fails.
    fn shares(
        &self,
        volumes: &mut [Volume],
        pool: &hugemem::Pool,
        (now, failures): (Time, u32),
    ) -> Result<Option<Vec<Share>>, String> {
        let disk_of = |_| match &self.storage {
            Storage::Disk(disk) => Ok(own(disk, pool)),
            Storage::Ram(_) => unreachable!("a volume in memory has nothing to store"),
        };
        let parts = stored::prepare_parts(&self.parts(), volumes, now, disk_of);
        if let Storage::Disk(disk) = &self.storage {
            disk.set_behaviour(self.behaviour);
        }
        let parts = match parts {
            Ok(parts) => parts,
            Err(_) if failures > 0 => return Ok(None),
            Err((_, error)) => return Err(format!("a part of the volume: {error}")),
        };
        Ok(Some(self.shares_of(parts)))
    }

    /// The parts of the volume that are shared, with their quotas.
    fn parts(&self) -> Vec<PartOptions> {
        let part = |directory: Option<&str>, files: Option<u64>, blocks: Option<u64>| PartOptions {
            volume: self.volume,
            directory: directory.map(str::to_owned),
            files_max: files,
            bytes_max: blocks.map(|it| it * VOLUME_BLOCK_BYTES),
        };
        match self.quota {
            None => vec![part(None, None, None)],
            Some(Quota {
                files_max,
                blocks_max,
            }) => vec![
                part(Some("first"), Some(files_max), Some(blocks_max)),
                part(
                    Some("second"),
                    Some(OTHER_FILES_MAX),
                    Some(OTHER_BLOCKS_MAX),
                ),
            ],
        }
    }

    fn shares_of(&self, parts: Vec<Part>) -> Vec<Share> {
        let names = [SHARE, OTHER_SHARE];
        let shares = names.into_iter().zip(parts).zip(1..);
        let shares = shares.map(|((name, part), number)| Share {
            number: ShareNumber(number),
            name: name.to_owned(),
            volume: self.volume,
            directory: part.directory,
            part: part.part,
            is_read_only: self.is_read_only && number == 1,
            squash: Squash::None,
            clients: Clients::Any,
            counters: Arc::default(),
        });
        shares.collect()
    }

    /// The service over RDMA.
    fn over_rdma(
        &self,
        fabric: &FileFabric,
        core: Rc<RefCell<FileCore>>,
        memory: Option<&MemoryDevice>,
    ) -> Result<Rdma, String> {
        let of_device = memory.map(|it| it.store().region());
        let regions: Vec<&Region> = [self.arena.region()].into_iter().chain(of_device).collect();
        let domains = Arc::new(Domains::new());
        let devices = fabric.server().devices();
        for device in devices.map_err(|error| error.to_string())? {
            let added = domains.add(&device, &regions);
            added.map_err(|error| error.to_string())?;
        }
        let endpoint = Endpoint::new(fabric.server(), domains);
        let mut endpoint = endpoint.map_err(|error| error.to_string())?;
        let listening = endpoint.listen(LISTENER, SERVER_ADDRESS);
        listening.map_err(|error| error.to_string())?;
        endpoint.open(LISTENER);
        let service = RdmaFileService::new(RdmaFileOptions {
            core,
            arena: Arc::clone(&self.arena),
            endpoint,
            counters: Arc::default(),
            changes: None,
        });
        let service = Rc::new(RefCell::new(service));
        let poller = RdmaFilePoller::new(Rc::clone(&service));
        Ok(Rdma { service, poller })
    }

    /// Opens the device and the volume on it; `None` if that fails because the device does. A disk
    /// goes on failing as often until the shares are there.
    fn open(&mut self, pool: &hugemem::Pool, failures: u32) -> Result<Option<Opened>, String> {
        let volatile = VolatileOptions {
            uuid: Uuid([self.starts as u8; 16]),
            device_bytes: self.device_bytes,
            memory_bytes: self.memory_bytes,
        };
        match &self.storage {
            Storage::Ram(ram) => {
                let opened = ram.open("ram", self.device_bytes, false);
                let opened = opened.map_err(|error| error.to_string())?;
                Ok(Some(Opened {
                    device: opened.device,
                    memory: Some(opened.memory),
                    volume: Volume::volatile(&volatile),
                }))
            }
            Storage::Disk(disk) => {
                let volume = match self.backing {
                    Backing::Durable => {
                        disk.set_behaviour(IDEAL);
                        let opening = stored::read(&mut own(disk, pool));
                        let opening = opening.map_err(|error| error.to_string())?;
                        self.data_at = self.device_bytes - opening.usage().data_bytes;
                        let problems = opening.problems();
                        if !problems.is_empty() {
                            return Err(format!("the volume is inconsistent: {problems:?}"));
                        }
                        disk.set_behaviour(self.failing(IDEAL, failures, failures));
                        match stored::open(&mut own(disk, pool)) {
                            Ok(volume) => volume,
                            Err(_) if failures > 0 => return Ok(None),
                            Err(error) => return Err(error.to_string()),
                        }
                    }
                    Backing::Ram | Backing::Volatile => Volume::volatile(&volatile),
                };
                Ok(Some(Opened {
                    device: Arc::new(disk.clone()),
                    memory: None,
                    volume,
                }))
            }
        }
    }

    fn records_of_server(&mut self, keeps: bool) -> Result<Option<Box<dyn RecordStore>>, String> {
        if !keeps {
            return Ok(None);
        }
        self.records.borrow_mut().version = 0;
        let signal = rustix::event::eventfd(0, EventfdFlags::NONBLOCK);
        Ok(Some(Box::new(RecordsOfServer {
            records: Rc::clone(&self.records),
            random: Random::new(self.random.bits(), 0),
            time: self.time.clone(),
            signal: signal.map_err(|error| error.to_string())?,
        })))
    }

    /// Kills it at this moment. Any part of what is being stored is stored. If the power fails, too,
    /// the device loses any part of what was not flushed.
    pub(super) fn kill(&mut self, power_fails: bool) {
        // The kernel destroys the queue pairs of a process that ends.
        if let Some(rdma) = self.running.as_ref().and_then(|it| it.rdma.as_ref()) {
            rdma.service.borrow_mut().end(self.time.now());
        }
        self.running = None;
        self.hold_device(Nanos::ZERO);
        self.end_control();
        let mut records = self.records.borrow_mut();
        let kept = self.random.below(records.storing.len() as u64 + 1);
        for _ in 0..kept {
            if let Some((_, _, owners)) = records.storing.pop_front() {
                records.owners = owners;
            }
        }
        records.storing.clear();
        if let Storage::Disk(disk) = &self.storage
            && power_fails
        {
            disk.cut_power();
        }
    }

    /// One turn of its reactor. Returns whether anything was done.
    pub(super) fn turn(&mut self) -> bool {
        let now = self.time.now();
        let Some(running) = &mut self.running else {
            return false;
        };
        let mut is_busy = running.poller.poll(now).is_busy();
        if let Some(rdma) = &mut running.rdma {
            is_busy |= rdma.poller.poll(now).is_busy();
        }
        is_busy |= running.devices.poll(now) > 0;
        running.poller.flush(now);
        if let Some(rdma) = &mut running.rdma {
            rdma.poller.flush(now);
            if !is_busy {
                // A reactor without work sleeps, and looks at everything before.
                is_busy = rdma.service.borrow_mut().poll_events(now) > 0;
            }
        }
        running.devices.flush();
        is_busy
    }

    /// Number of connections and of requests in flight.
    #[must_use]
    pub(super) fn counts(&self) -> (usize, usize) {
        let running = self.running.as_ref();
        running.map_or((0, 0), |it| it.service.borrow().counts())
    }

    /// Number of connections over RDMA.
    #[must_use]
    pub(super) fn connections_over_rdma(&self) -> usize {
        let running = self.running.as_ref().and_then(|it| it.rdma.as_ref());
        running.map_or(0, |it| it.service.borrow().connections())
    }

    /// Bytes for data of the volume, and those that are free, as of the last second.
    #[must_use]
    pub(super) fn usage(&self) -> (u64, u64) {
        let levels = self.running.as_ref().map(|it| &it.levels);
        levels.map_or((0, 0), |it| (it.data_bytes.get(), it.free_bytes.get()))
    }

    /// Delays everything that the device has and gets until then.
    pub(super) fn hold_device(&self, until: Nanos) {
        match &self.storage {
            Storage::Disk(disk) => disk.hold(until),
            Storage::Ram(ram) => ram.hold(until),
        }
    }

    /// Lets requests to the device fail from now on.
    pub(super) fn begin_failure(&self, error_permille: u32, flush_error_permille: u32) {
        self.set_behaviour(self.failing(self.behaviour, error_permille, flush_error_permille));
    }

    /// A device that behaves so and fails. A failed flush forgets metadata only.
    fn failing(
        &self,
        behaviour: DiskBehaviour,
        error_permille: u32,
        flush_error_permille: u32,
    ) -> DiskBehaviour {
        DiskBehaviour {
            error_permille,
            flush_error_permille,
            forgotten_before: self.data_at / u64::from(BLOCK_BYTES),
            ..behaviour
        }
    }

    /// Requests to the device do not fail any more.
    pub(super) fn end_failure(&self) {
        self.set_behaviour(self.behaviour);
    }

    fn set_behaviour(&self, behaviour: DiskBehaviour) {
        match &self.storage {
            Storage::Disk(disk) => disk.set_behaviour(behaviour),
            Storage::Ram(ram) => ram.set_behaviour(behaviour),
        }
    }

    /// Whether its volume has become read-only, as of the last second.
    #[must_use]
    pub(super) fn has_failed(&self) -> bool {
        let levels = self.running.as_ref().map(|it| &it.levels);
        levels.is_some_and(|it| it.has_failed.get() != 0)
    }

    /// When it has something to do next, without another request.
    #[must_use]
    pub(super) fn next_due(&self) -> Option<Nanos> {
        let running = self.running.as_ref()?;
        let device = match &self.storage {
            Storage::Disk(disk) => disk.next_due(),
            Storage::Ram(ram) => ram.next_due(),
        };
        let records = self.records.borrow().storing.front().map(|it| it.0);
        let of_rdma = running.rdma.as_ref();
        let of_rdma = of_rdma.and_then(|it| it.poller.next_deadline());
        let timers = running.poller.next_deadline().into_iter().chain(of_rdma);
        let queues = running.devices.next_deadline();
        let dues = device.into_iter().chain(records).chain(timers);
        dues.chain(queues).chain(self.control_due()).min()
    }

    /// Reads the volume after the server was killed, as `windlass volume check` does.
    ///
    /// # Errors
    /// It cannot be read, or it is inconsistent.
    pub(super) fn check_volume(&self) -> Result<(), String> {
        let (Backing::Durable, Storage::Disk(disk)) = (self.backing, &self.storage) else {
            return Ok(());
        };
        disk.set_behaviour(IDEAL);
        let opening = stored::read(&mut own(disk, &self.arena.pool(1)));
        let problems = opening.map_err(|error| error.to_string())?.problems();
        match problems.is_empty() {
            true => Ok(()),
            false => Err(format!("the volume is inconsistent: {problems:?}")),
        }
    }

    /// Slices of the arena that are in use.
    #[must_use]
    pub(super) fn leases(&self) -> u64 {
        let classes = self.arena.counters().classes;
        classes.iter().map(|it| it.taken).sum()
    }
}

fn time_of_day(now: Nanos) -> Time {
    let nanos = now.as_nanos();
    Time {
        seconds: TIME_OF_DAY + (nanos / 1_000_000_000) as i64,
        nanoseconds: (nanos % 1_000_000_000) as u32,
    }
}

/// A queue of a device for the functions of `stored`.
fn own(device: &dyn block::Device, pool: &hugemem::Pool) -> stored::OwnQueue {
    stored::OwnQueue::new(device, pool).expect("a queue")
}
