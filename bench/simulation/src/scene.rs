//! All of the world but the appliance and the hosts: disks, network, configuration, judge.

use std::sync::Arc;

use appliance::headless::Identities;
use hugemem::{Arena, ArenaConfig, PagePolicy};
use reactors::Nanos;

use crate::appliance::Shelf;
use crate::disk::Disk;
use crate::drive::Drive;
use crate::fabric::RdmaNetwork;
use crate::figures::Figures;
use crate::file_disk::FileDisk;
use crate::host::{Ground, Vanished};
use crate::judge::Judge;
use crate::network::{Listener, NetworkTemper};
use crate::plan::{Serving, disk_path, file_path};
use crate::ram::Ram;
use crate::random::Random;
use crate::storage::Storage;
use crate::swarm::{Fault, Swarm};
use crate::time::SharedTime;
use crate::trace::Trace;

/// Arenas below this size run dry, so that one connection's trouble may be everyone's.
const ROOMY_ARENA_BYTES: usize = 32 << 20;

/// In place of the time of a change: it is being carried out. Later than anything, with room for
/// a delay.
pub const CHANGING: Nanos = Nanos(u64::MAX / 2);

/// Memory that a driver takes in one piece, at most.
const DRIVE_PIECE_BYTES: usize = 64 << 10;

/// What the hosts and the appliance stand in.
pub struct Scene {
    /// What the seed turned on.
    pub swarm: Swarm,
    /// The present time.
    pub time: SharedTime,
    /// Where connections are made, by number.
    pub listeners: Vec<Listener>,
    /// How new connections behave.
    pub network: NetworkTemper,
    /// Where connections are made over RDMA, in seeds whose hosts do; a new one for each start of
    /// the appliance.
    pub rdma: Option<RdmaNetwork>,
    /// The disks and drives.
    pub disks: Vec<Storage>,
    /// The files that disks are in.
    pub shelf: Shelf,
    /// By disk: the number of the file that it gets next.
    next_files: Vec<u32>,
    /// What was served under which names, as appliances remember it.
    pub identities: Identities,
    /// The memory of drives' host, which outlives the appliances.
    pub arena: Option<Arc<Arena>>,
    /// The judge of data.
    pub judge: Judge,
    /// What is configured.
    pub serving: Serving,
    /// By disk: when its namespace last came or went; [`CHANGING`] while it does.
    pub namespace_changed: Vec<Nanos>,
    /// By disk: whether it was pulled out, as far as the control thread may know.
    pub disk_gone: Vec<bool>,
    /// By host: when it last came to reach its subsystem, or no longer did; [`CHANGING`] while that
    /// changes.
    pub permission_changed: Vec<Nanos>,
    /// By host: when its commands were last held back because of what it had lost.
    pub fenced: Vec<Nanos>,
    /// By host: its controller's identifier, 0 without one.
    pub controllers: Vec<u16>,
    /// By disk: until when its answers may be late.
    pub disk_disturbed: Vec<Nanos>,
    /// By disk: whether its requests may fail.
    pub disk_fails: Vec<bool>,
    /// Whether any could fail in a time that is over: an event of it may still be on its way.
    pub disk_failed: bool,
    /// Until when memory may be short.
    pub memory_disturbed: Nanos,
    /// Until when a connection may be in trouble.
    pub network_disturbed: Nanos,
    /// The appliance is on its way down.
    pub stopping: bool,
    /// A change of the configuration is being carried out.
    pub changing: bool,
    /// When the last one was over, or the appliance was started.
    pub changed_at: Nanos,
    /// The power is to fail now, because something was made durable.
    pub power_wanted: bool,
    /// Connections of hosts that vanished, and when a kernel's probes notice it.
    pub vanished: Vec<(Nanos, Vanished)>,
    /// What is counted.
    pub figures: Figures,
    /// What is told.
    pub trace: Trace,
}

impl Scene {
    /// The scene of a seed.
    ///
    /// # Panics
    /// The memory for drives cannot be had.
    #[must_use]
    pub fn new(seed: u64, mut swarm: Swarm) -> Self {
        let time = SharedTime::default();
        let has_drives = swarm.faults.has(Fault::Drive);
        let arena = has_drives.then(|| arena(&swarm).expect("memory of this size"));
        let disks = storages(seed, &mut swarm, arena.as_deref(), &time);
        let shapes = swarm.disks.iter();
        let sizes: Vec<_> = shapes
            .map(|it| (it.block_count, it.block_size, it.volatile))
            .collect();
        let count = disks.len();
        let fails = swarm.disk_temper.error_permille > 0;
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
            serving: Serving::all(&swarm),
            shelf,
            next_files: vec![1; count],
            identities: Identities::default(),
            namespace_changed: vec![Nanos::ZERO; count],
            disk_gone: vec![false; count],
            permission_changed: vec![Nanos::ZERO; swarm.hosts.len()],
            fenced: vec![Nanos::ZERO; swarm.hosts.len()],
            controllers: vec![0; swarm.hosts.len()],
            disk_disturbed: vec![Nanos::ZERO; count],
            disk_fails: vec![fails; count],
            disk_failed: false,
            memory_disturbed: Nanos::ZERO,
            network_disturbed: Nanos::ZERO,
            stopping: false,
            changing: false,
            changed_at: Nanos::ZERO,
            power_wanted: false,
            vanished: Vec::new(),
            figures: Figures::default(),
            trace: Trace::default(),
            swarm,
            time,
            disks,
            arena,
        }
    }

    /// What hosts see of it.
    pub fn ground(&mut self) -> Ground<'_> {
        Ground {
            judge: &mut self.judge,
            now: self.time.now(),
            listeners: &self.listeners,
            network: self.network,
            rdma: self.rdma.as_ref(),
            swarm: &self.swarm,
            serving: &self.serving,
            disks: &self.disks,
            namespace_changed: &self.namespace_changed,
            disk_gone: &self.disk_gone,
            permission_changed: &self.permission_changed,
            fenced: &self.fenced,
            controllers: &mut self.controllers,
            disk_fails: &self.disk_fails,
            disk_failed: self.disk_failed,
            disk_disturbed: &self.disk_disturbed,
            memory_disturbed: self.memory_disturbed,
            stopping: self.stopping,
            changing: self.changing,
            changed_at: self.changed_at,
            power_wanted: &mut self.power_wanted,
            figures: &mut self.figures,
            trace: &mut self.trace,
        }
    }

    /// Makes a file that a disk can be put into, full of zeroes, and tells its number.
    pub fn make_file(&mut self, seed: u64, disk: usize) -> u32 {
        let file = self.next_files[disk];
        self.next_files[disk] += 1;
        let random = Random::new(seed, 0x1000 + 0x100 * disk as u64 + u64::from(file));
        let shape = self.swarm.disks[disk];
        let (temper, time) = (self.swarm.disk_temper, self.time.clone());
        let made = Disk::new(disk as u32, shape, temper, random, time);
        self.shelf.put(file_path(disk, file).into(), made);
        file
    }

    /// A disk is in another file from now on.
    pub fn put_into_file(&mut self, disk: usize, file: u32) {
        let path = file_path(disk, file);
        if let Some(found) = self.shelf.find(path.as_ref()) {
            self.disks[disk] = Storage::Disk(found);
        }
    }

    /// Notes something that happened now.
    pub fn note(&mut self, what: std::fmt::Arguments<'_>) {
        let now = self.time.now();
        self.trace.note(now, what);
    }

    /// Whoever needs memory may have to wait until `until`, where memory is scarce.
    pub fn disturb_memory(&mut self, until: Nanos) {
        if self.swarm.arena_bytes < ROOMY_ARENA_BYTES {
            self.memory_disturbed = self.memory_disturbed.max(until);
        }
    }

    /// Ends connections of vanished hosts whose time has come.
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

    /// Time goes on for RDMA.
    pub fn tend_rdma(&mut self) {
        if let Some(rdma) = &self.rdma {
            rdma.tend(self.time.now());
        }
    }

    /// All connections are gone, and the network begins anew for a start of this seed.
    pub fn renew_networks(&mut self, seed: u64) {
        self.listeners = listeners(&self.swarm, &self.time);
        self.vanished.clear();
        let rdma = self.swarm.faults.has(Fault::Rdma);
        let new = || RdmaNetwork::new(seed, self.swarm.rdma, self.swarm.hosts.len());
        self.rdma = rdma.then(new);
    }

    /// Whether a connection over TCP waits to be accepted.
    #[must_use]
    pub fn is_connected_to(&self) -> bool {
        self.listeners.iter().any(Listener::is_waited_for)
    }

    /// Whether something has arrived for the appliance over RDMA that it has not taken.
    #[must_use]
    pub fn rdma_waits(&self) -> bool {
        self.rdma
            .as_ref()
            .is_some_and(RdmaNetwork::waits_for_target)
    }

    /// Time goes on for disks and drives.
    pub fn tend_disks(&mut self) {
        let now = self.time.now();
        for (number, disk) in self.disks.iter_mut().enumerate() {
            disk.tend(now);
            if disk.operate(now) {
                self.judge.disk_lost_power(number);
                self.trace
                    .note(now, format_args!("disk {number} is reopened"));
            }
        }
    }

    /// Systems forget what they have cached of their files' medium.
    pub fn evict(&mut self) {
        for (number, disk) in self.disks.iter().enumerate() {
            if disk.evict() {
                self.judge.disk_lost_power(number);
            }
        }
    }

    /// When something happens that no host and no reactor knows of.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let disks = self.disks.iter().filter_map(Storage::next_due);
        let rdma = self.rdma.as_ref().and_then(RdmaNetwork::next_due);
        let vanished = self.vanished.iter().map(|(at, _)| *at);
        let closed = self.listeners.iter().filter_map(Listener::next_due);
        disks.chain(vanished).chain(rdma).chain(closed).min()
    }

    /// From now on nothing new goes wrong.
    pub fn heal(&mut self) {
        for disk in &mut self.disks {
            disk.heal(self.swarm.disk_temper);
        }
        self.swarm.faults = self
            .swarm
            .faults
            .without(Fault::Damage)
            .without(Fault::SlowWriter);
        self.network.grain = usize::MAX;
        self.network.window = 1 << 20;
        if let Some(rdma) = &self.rdma {
            rdma.fabric().clear_faults();
        }
    }

    /// Counts what ambient faults did.
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

/// Where connections are made over TCP.
fn listeners(swarm: &Swarm, time: &SharedTime) -> Vec<Listener> {
    // One more, which no host comes by.
    let listeners = 0..=swarm.tcp_listeners;
    listeners.map(|_| Listener::new(time.clone())).collect()
}

/// The memory of an appliance.
///
/// # Errors
/// That of the arena.
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

/// The disks of a seed, or the drives where there is memory for them.
fn storages(
    seed: u64,
    swarm: &mut Swarm,
    arena: Option<&Arena>,
    time: &SharedTime,
) -> Vec<Storage> {
    let mut storages = Vec::new();
    for (number, shape) in swarm.disks.iter_mut().enumerate() {
        let random = Random::new(seed, 0x200 + number as u64);
        storages.push(match arena {
            _ if swarm.ram[number] => {
                let ram = Ram::new(*shape, swarm.disk_temper, random, time.clone());
                Storage::Ram(ram)
            }
            None => {
                if let Some(temper) = swarm.files[number] {
                    let (path, time) = (disk_path(number).into(), time.clone());
                    let disk_temper = swarm.disk_temper;
                    let file = FileDisk::new(path, *shape, temper, disk_temper, random, time);
                    storages.push(Storage::File(file));
                    continue;
                }
                let number = number as u32;
                let disk = Disk::new(number, *shape, swarm.disk_temper, random, time.clone());
                Storage::Disk(disk)
            }
            Some(arena) => {
                let abortable = swarm.hangs_are_abortable;
                let drive = Drive::new(number, seed, *shape, swarm.disk_temper, arena, abortable);
                let drive = drive.expect("another mapping of the memory");
                *shape = drive.shape();
                Storage::Drive(Box::new(drive))
            }
        });
    }
    storages
}
