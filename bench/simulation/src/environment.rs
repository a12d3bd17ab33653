//! The simulated environment of the appliance and the hosts: disks, network, configuration, judge.

use std::sync::Arc;

use appliance::headless::Identities;
use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_driver_testing::EmulatedSpace;
use reactors::Nanos;

use crate::appliance::Shelf;
use crate::authentication::KeyFiles;
use crate::disk::Disk;
use crate::drive::{Drive, DriveDisk};
use crate::fabric::RdmaNetwork;
use crate::faults::Fault;
use crate::figures::Figures;
use crate::file_disk::FileDisk;
use crate::host::{HostEnv, Vanished};
use crate::judge::Judge;
use crate::limits::RateJudge;
use crate::network::{Listener, NetworkBehaviour};
use crate::paces::PaceJudge;
use crate::plan::{ServedConfig, disk_path, file_path};
use crate::ram::Ram;
use crate::random::Random;
use crate::storage::Storage;
use crate::store::SimStore;
use crate::swarm::Swarm;
use crate::time::SharedTime;
use crate::trace::Trace;

/// Time value of a change that is in progress. It is later than any real time and leaves room for
/// an added delay.
pub const CHANGING: Nanos = Nanos(u64::MAX / 2);

/// Largest single allocation of a driver, in bytes.
const DRIVE_PIECE_BYTES: usize = 64 << 10;

/// The environment of the hosts and the appliance.
pub struct Environment {
    /// The configuration of the run, drawn from the seed.
    pub swarm: Swarm,
    /// The present time.
    pub time: SharedTime,
    /// Listeners over TCP, by number.
    pub listeners: Vec<Listener>,
    /// How new connections behave.
    pub network: NetworkBehaviour,
    /// The RDMA network, if some hosts use RDMA; replaced at each start of the appliance.
    pub rdma: Option<RdmaNetwork>,
    /// The disks and drives.
    pub disks: Vec<Storage>,
    /// The files behind the disks.
    pub shelf: Shelf,
    /// By disk: the number of its next file.
    next_files: Vec<u32>,
    /// The recorded contents of disks, from which namespace identifiers are derived; kept across
    /// restarts of the appliance.
    pub identities: Identities,
    /// The memory that drives access; it outlives the appliance.
    pub arena: Option<Arc<Arena>>,
    /// The address space that drives share, if they access the memory of each other.
    pub space: Option<Arc<EmulatedSpace>>,
    /// The judge of data.
    pub judge: Judge,
    /// The current configuration.
    pub serving: ServedConfig,
    /// By disk: when its namespace was last added or removed; [`CHANGING`] while a change is in
    /// progress.
    pub namespace_changed: Vec<Nanos>,
    /// By host name and disk: when its mask last changed; [`CHANGING`] while a change is in
    /// progress.
    pub mask_changed: Vec<Vec<Nanos>>,
    /// By host name: when its keys last changed; [`CHANGING`] while a change is in progress.
    pub keys_changed: Vec<Nanos>,
    /// By disk: whether it was pulled out, as far as the control thread may know.
    pub disk_gone: Vec<bool>,
    /// By host: when its subsystem last became reachable or unreachable; [`CHANGING`] while a
    /// change is in progress.
    pub permission_changed: Vec<Nanos>,
    /// By host: when a fence last held back its commands because of its lost writes.
    pub fenced: Vec<Nanos>,
    /// By host: when its next controller last exceeded the share of its name or address.
    pub at_share: Vec<Nanos>,
    /// When anonymous hosts last had controllers that are reserved for hosts that exports name.
    pub crowded_out_at: Nanos,
    /// By host: its controller's identifier, 0 without one.
    pub controllers: Vec<u16>,
    /// By disk: until when its completions may be late.
    pub disk_disturbed: Vec<Nanos>,
    /// By drive: until when requests may have been sent that need its memory while it is not in its
    /// slot. RDMA connections with such requests end.
    pub memory_gone: Vec<Nanos>,
    /// The store of reservations; it outlives the appliance.
    pub store: SimStore,
    /// By disk: how often its reservations could not be stored.
    pub store_failures: Vec<u64>,
    /// By disk: whether its requests may fail.
    pub disk_fails: Vec<bool>,
    /// Whether requests of any disk could fail earlier; an event that reports this may still be
    /// pending.
    pub disk_failed: bool,
    /// Until when memory may be scarce.
    pub memory_disturbed: Nanos,
    /// When each connection began to occupy memory without using it.
    pub occupied_at: Vec<Nanos>,
    /// Until when connections may be disturbed.
    pub network_disturbed: Nanos,
    /// Until when requests are not admitted, because of a hand-over to a new process.
    pub held_until: Nanos,
    /// When a new process last began to serve.
    pub handed_over: Nanos,
    /// Whether the appliance is shutting down.
    pub stopping: bool,
    /// Whether a configuration change is in progress.
    pub changing: bool,
    /// When the last change ended or the appliance was started.
    pub changed_at: Nanos,
    /// Whether the power is to fail now, because data was just made durable.
    pub power_wanted: bool,
    /// Connections of vanished hosts, with the time at which the kernel's keep-alive probes detect
    /// it.
    pub vanished: Vec<(Nanos, Vanished)>,
    /// The judge of rate limits.
    pub rates: RateJudge,
    /// Judges the paces of exports.
    pub paces: PaceJudge,
    /// Counters of the run.
    pub figures: Figures,
    /// Trace of the run.
    pub trace: Trace,
}

impl Environment {
    /// Creates the environment of a seed.
    ///
    /// # Panics
    /// If the memory for drives cannot be allocated, or the files of keys cannot be created.
    #[must_use]
    pub fn new(seed: u64, mut swarm: Swarm) -> Self {
        let time = SharedTime::default();
        if swarm.faults.has(Fault::Chap) {
            let files = KeyFiles::create(swarm.controller_identity() + 1);
            swarm.key_files = Some(Arc::new(files.expect("a directory for temporary files")));
        }
        let has_drives = swarm.faults.has(Fault::Drive);
        let arena = has_drives.then(|| arena(&swarm).expect("memory of this size"));
        let space = (has_drives && swarm.drives_share_memory).then(Arc::default);
        let disks = storages(seed, &mut swarm, (arena.as_deref(), space.as_ref()), &time);
        let shapes = swarm.disks.iter();
        let sizes: Vec<_> = shapes
            .map(|it| (it.block_count, it.block_size, it.volatile))
            .collect();
        let count = disks.len();
        let fails = swarm.disk_behaviour.error_permille > 0;
        let shelf = Shelf::default();
        for (number, storage) in disks.iter().enumerate() {
            if let Storage::Disk(disk) = storage {
                shelf.put(disk_path(number).into(), disk.clone());
            }
        }
        Self {
            listeners: listeners(&swarm, &time),
            network: swarm.network,
            rdma: None,
            judge: Judge::new(&sizes),
            serving: ServedConfig::all(&swarm),
            shelf,
            next_files: vec![1; count],
            identities: Identities::default(),
            namespace_changed: vec![Nanos::ZERO; count],
            mask_changed: vec![vec![Nanos::ZERO; count]; swarm.hosts.len()],
            keys_changed: vec![Nanos::ZERO; swarm.hosts.len()],
            disk_gone: vec![false; count],
            permission_changed: vec![Nanos::ZERO; swarm.hosts.len()],
            fenced: vec![Nanos::ZERO; swarm.hosts.len()],
            at_share: vec![Nanos::ZERO; swarm.hosts.len()],
            crowded_out_at: Nanos::ZERO,
            controllers: vec![0; swarm.hosts.len()],
            disk_disturbed: vec![Nanos::ZERO; count],
            memory_gone: vec![Nanos::ZERO; count],
            store: SimStore::new(seed, time.clone()),
            store_failures: vec![0; count],
            disk_fails: vec![fails; count],
            disk_failed: false,
            memory_disturbed: Nanos::ZERO,
            occupied_at: Vec::new(),
            network_disturbed: Nanos::ZERO,
            held_until: Nanos::ZERO,
            handed_over: Nanos::ZERO,
            stopping: false,
            changing: false,
            changed_at: Nanos::ZERO,
            power_wanted: false,
            vanished: Vec::new(),
            rates: RateJudge::default(),
            paces: PaceJudge::default(),
            figures: Figures::default(),
            trace: Trace::default(),
            swarm,
            time,
            disks,
            arena,
            space,
        }
    }

    /// The part of the environment that hosts use.
    pub fn for_hosts(&mut self) -> HostEnv<'_> {
        HostEnv {
            judge: &mut self.judge,
            now: self.time.now(),
            listeners: &self.listeners,
            network: self.network,
            rdma: self.rdma.as_ref(),
            swarm: &self.swarm,
            serving: &self.serving,
            disks: &self.disks,
            namespace_changed: &self.namespace_changed,
            mask_changed: &self.mask_changed,
            keys_changed: &self.keys_changed,
            disk_gone: &self.disk_gone,
            permission_changed: &self.permission_changed,
            fenced: &self.fenced,
            at_share: &mut self.at_share,
            crowded_out_at: &mut self.crowded_out_at,
            controllers: &mut self.controllers,
            store: &self.store,
            store_failures: &self.store_failures,
            disk_fails: &self.disk_fails,
            disk_failed: self.disk_failed,
            disk_disturbed: &self.disk_disturbed,
            memory_gone: &self.memory_gone,
            memory_disturbed: self.memory_disturbed,
            held_until: self.held_until,
            handed_over: self.handed_over,
            occupied_at: &mut self.occupied_at,
            stopping: self.stopping,
            changing: self.changing,
            changed_at: self.changed_at,
            power_wanted: &mut self.power_wanted,
            rates: &mut self.rates,
            paces: &mut self.paces,
            figures: &mut self.figures,
            trace: &mut self.trace,
        }
    }

    /// Creates a zero-filled file for a disk and returns its number.
    pub fn make_file(&mut self, seed: u64, disk: usize) -> u32 {
        let file = self.next_files[disk];
        self.next_files[disk] += 1;
        let random = Random::new(seed, 0x1000 + 0x100 * disk as u64 + u64::from(file));
        let shape = self.swarm.disks[disk];
        let (behaviour, time) = (self.swarm.disk_behaviour, self.time.clone());
        let made = Disk::new(disk as u32, shape, behaviour, random, time);
        self.shelf.put(file_path(disk, file).into(), made);
        file
    }

    /// Moves a disk to another file.
    pub fn put_into_file(&mut self, disk: usize, file: u32) {
        let path = file_path(disk, file);
        if let Some(found) = self.shelf.find(path.as_ref()) {
            self.disks[disk] = Storage::Disk(found);
        }
    }

    /// Records an event in the trace at the current time.
    pub fn note(&mut self, what: std::fmt::Arguments<'_>) {
        let now = self.time.now();
        self.trace.note(now, what);
    }

    /// Notes that allocations may wait until `until` if memory is scarce.
    pub fn disturb_memory(&mut self, until: Nanos) {
        if self.swarm.has_scarce_memory() {
            self.memory_disturbed = self.memory_disturbed.max(until);
        }
    }

    /// Closes connections of vanished hosts that the kernel's probes have detected.
    pub fn probe_vanished(&mut self) {
        let now = self.time.now();
        let (over, left) = std::mem::take(&mut self.vanished)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.vanished = left;
        for (_, vanished) in over {
            vanished.end();
        }
    }

    /// Advances the RDMA network to the current time.
    pub fn advance_rdma(&mut self) {
        if let Some(rdma) = &self.rdma {
            rdma.advance_to(self.time.now());
        }
    }

    /// Resets the network before a start of the appliance: all connections are gone.
    pub fn renew_networks(&mut self, seed: u64) {
        self.listeners = listeners(&self.swarm, &self.time);
        self.vanished.clear();
        let rdma = self.swarm.faults.has(Fault::Rdma);
        let new = || RdmaNetwork::new(seed, self.swarm.rdma, self.swarm.hosts.len());
        self.rdma = rdma.then(new);
        let Some(network) = &self.rdma else { return };
        for memory in self.disks.iter().filter_map(Storage::memory_file) {
            let name = memory.name().expect("an open file has a name");
            network.fabric().add_slot(name, move || memory.insertion());
        }
    }

    /// Whether a TCP connection waits to be accepted.
    #[must_use]
    pub fn is_connected_to(&self) -> bool {
        self.listeners.iter().any(Listener::is_waited_for)
    }

    /// Whether the appliance has unprocessed RDMA events.
    #[must_use]
    pub fn rdma_waits(&self) -> bool {
        self.rdma
            .as_ref()
            .is_some_and(RdmaNetwork::waits_for_target)
    }

    /// By disk: whether its reservations can persist from the start of the appliance on. The content
    /// of a RAM device does not survive.
    #[must_use]
    pub fn can_persist_reservations(&self) -> Vec<bool> {
        let is_wanted = self.swarm.faults.has(Fault::Reserve);
        let disks = 0..self.disks.len();
        disks
            .map(|disk| is_wanted && !self.swarm.ram[disk] && self.serving.has_device(disk))
            .collect()
    }

    /// Advances disks and drives to the current time.
    pub fn advance_disks(&mut self) {
        let now = self.time.now();
        for (number, disk) in self.disks.iter_mut().enumerate() {
            disk.advance_to(now);
            if disk.run_operator(now) {
                self.judge.disk_lost_power(number);
                self.trace
                    .note(now, format_args!("disk {number} is reopened"));
            }
        }
    }

    /// Drops the cached data of files whose write-back failed.
    pub fn evict(&mut self) {
        for (number, disk) in self.disks.iter().enumerate() {
            if disk.evict() {
                self.judge.disk_lost_power(number);
            }
        }
    }

    /// The next time at which disks, network or RDMA have an event of their own.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let disks = self.disks.iter().filter_map(Storage::next_due);
        let rdma = self.rdma.as_ref().and_then(RdmaNetwork::next_due);
        let vanished = self.vanished.iter().map(|(at, _)| *at);
        let closed = self.listeners.iter().filter_map(Listener::next_due);
        let stores = self.store.next_due();
        let network = vanished.chain(rdma).chain(closed);
        disks.chain(network).chain(stores).min()
    }

    /// Turns off all further faults.
    pub fn disable_faults(&mut self) {
        for disk in &mut self.disks {
            disk.disable_faults(self.swarm.disk_behaviour);
        }
        self.store.disable_faults();
        self.swarm.faults = self
            .swarm
            .faults
            .without(Fault::Damage)
            .without(Fault::SlowWriter)
            .without(Fault::ChapMisuse);
        self.network.grain = usize::MAX;
        self.network.window = 1 << 20;
        if let Some(rdma) = &self.rdma {
            rdma.fabric().clear_faults();
        }
    }

    /// Counts the ambient faults that occurred.
    pub fn count_ambient(&mut self) {
        for disk in &self.disks {
            let figures = disk.figures();
            self.figures.faults(Fault::Error, figures.errors);
            self.figures.faults(Fault::Later, figures.later);
            self.figures
                .faults(Fault::FlushErrors, figures.flush_errors);
            self.figures.faults(Fault::Slow, figures.slow);
        }
        for fault in [
            Fault::Grain,
            Fault::Window,
            Fault::SlowWriter,
            Fault::Drive,
            Fault::Rdma,
            Fault::File,
            Fault::FileErrors,
            Fault::ReadOnly,
            Fault::Deaf,
            Fault::Tight,
            Fault::Ram,
        ] {
            self.figures
                .faults(fault, u64::from(self.swarm.faults.has(fault)));
        }
    }
}

/// The listeners over TCP.
fn listeners(swarm: &Swarm, time: &SharedTime) -> Vec<Listener> {
    // One more than configured, which no host uses.
    let listeners = 0..=swarm.tcp_listeners;
    listeners.map(|_| Listener::new(time.clone())).collect()
}

/// Creates the arena of an appliance.
///
/// # Errors
/// Those of the arena.
pub fn arena(swarm: &Swarm) -> Result<Arc<Arena>, hugemem::ArenaError> {
    let least = if swarm.faults.has(Fault::Drive) {
        DRIVE_PIECE_BYTES
    } else {
        0
    };
    Arena::new(ArenaConfig {
        bytes: swarm.arena_bytes,
        pages: PagePolicy::Ordinary,
        max_transfer: swarm.transfer_max.max(least),
    })
}

/// The disks of a seed, or drives if there is memory for them.
fn storages(
    seed: u64,
    swarm: &mut Swarm,
    (arena, space): (Option<&Arena>, Option<&Arc<EmulatedSpace>>),
    time: &SharedTime,
) -> Vec<Storage> {
    let mut storages = Vec::new();
    for number in 0..swarm.disks.len() {
        let shape = &swarm.disks[number];
        let random = Random::new(seed, 0x200 + number as u64);
        storages.push(match arena {
            _ if swarm.ram[number] => {
                let ram = Ram::new(*shape, swarm.disk_behaviour, random, time.clone());
                Storage::Ram(ram)
            }
            None => {
                if let Some(behaviour) = swarm.files[number] {
                    let (path, time) = (disk_path(number).into(), time.clone());
                    let disk_behaviour = swarm.disk_behaviour;
                    let file = FileDisk::new(path, *shape, behaviour, disk_behaviour, random, time);
                    storages.push(Storage::File(file));
                    continue;
                }
                let number = number as u32;
                let disk = Disk::new(number, *shape, swarm.disk_behaviour, random, time.clone());
                Storage::Disk(disk)
            }
            Some(arena) => {
                let storage = on_drive(number, seed, swarm, (arena, space), &storages);
                swarm.disks[number] = storage.drive_shape().expect("a disk on a drive");
                storage
            }
        });
    }
    storages
}

/// A disk on a drive: its first namespace, or the second one of a drive that exists.
fn on_drive(
    number: usize,
    seed: u64,
    swarm: &Swarm,
    memory: (&Arena, Option<&Arc<EmulatedSpace>>),
    storages: &[Storage],
) -> Storage {
    let disk = |number: usize| DriveDisk {
        number,
        shape: swarm.disks[number],
        path: swarm.data_paths[number],
    };
    if let Some(owner) = swarm.neighbours[number]
        && let Storage::Drive(drive) = &storages[owner]
    {
        return Storage::Neighbour(drive.neighbour(swarm.disks[number]));
    }
    let mut neighbours = swarm.neighbours.iter();
    let neighbour = neighbours.position(|owner| *owner == Some(number));
    let drive = Drive::new(disk(number), neighbour.map(disk), seed, swarm, memory);
    Storage::Drive(Box::new(drive.expect("another mapping of the memory")))
}
