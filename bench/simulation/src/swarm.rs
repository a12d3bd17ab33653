//! The parameters of a run, drawn from its seed: each run has its own mixture of faults and sizes,
//! so that a fault that hides another is absent from half of the runs.

use std::sync::Arc;

use block::DataPath;
use nvme_keys::ChapSecret;
use reactors::Nanos;

use crate::ana::ANA_GROUPS;
use crate::appliance::{COMMANDS_MAX, CONNECTIONS_MAX};
use crate::authentication::{KeyFiles, secret};
use crate::disk::{DiskBehaviour, DiskShape};
use crate::faults::{Fault, Faults, Need, faults_of};
use crate::file_disk::FileBehaviour;
use crate::host::ADMIN_DEPTH;
use crate::network::NetworkBehaviour;
use crate::plan::RDMA_LISTENER;
use crate::random::Random;

/// The properties of a host.
#[derive(Clone, Copy, Debug)]
pub struct HostShape {
    /// I/O queues of its controller.
    pub io_queues: u16,
    /// Entries of an I/O queue.
    pub depth: u16,
    /// Header digests.
    pub header_digest: bool,
    /// Data digests.
    pub data_digest: bool,
    /// The requested data alignment in dwords, zero-based (HPDA).
    pub alignment_z: u8,
    /// Submission queue flow control.
    pub flow_control: bool,
    /// Keep Alive Timeout; zero disables it.
    pub keep_alive: Nanos,
    /// It uses RDMA.
    pub rdma: bool,
    /// Over RDMA: it creates a memory window key for each command.
    pub windows: bool,
    /// The subsystem that it attaches to.
    pub subsystem: usize,
    /// The number of the host whose name it uses; two with the same number are two paths of one
    /// host.
    pub identity: usize,
    /// The TCP listener that it connects to.
    tcp_listener: usize,
}

/// The properties of the RDMA network.
#[derive(Clone, Copy, Debug)]
pub struct RdmaBehaviour {
    /// A tick of the fabric.
    pub tick: Nanos,
    /// Ticks between two attempts of a request.
    pub retry_ticks: u64,
    /// Maximum inline data of a work request, in bytes.
    pub inline_bytes: u32,
    /// Maximum number of outstanding RDMA READs.
    pub reads: u8,
    /// Receives in the receive queue that the connections of one reactor share.
    pub receives: u32,
    /// Whether the appliance's network card registers memory of drives.
    pub registers_device_memory: bool,
    /// The smallest read or write whose data goes through memory of its drive, in bytes.
    pub device_transfer_bytes_min: u32,
}

/// Limits on the total resources of all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of controllers.
    pub controllers: u16,
    /// Maximum connections of one reactor and transport.
    pub connections: usize,
    /// Maximum commands in execution on one reactor.
    pub executions: usize,
}

impl Bounds {
    /// Generous limits, or exactly what the hosts need.
    fn of(faults: Faults, hosts: &[HostShape]) -> Self {
        if !faults.has(Fault::Tight) {
            let is_crowded = faults.has(Fault::Anonymous) || faults.has(Fault::OneAddress);
            return Self {
                controllers: if is_crowded { SHARED_CONTROLLERS } else { 256 },
                connections: if is_crowded {
                    4 * CONNECTIONS_MAX
                } else {
                    CONNECTIONS_MAX
                },
                executions: COMMANDS_MAX,
            };
        }
        // The discovery host and unknown hosts are admitted while there is room.
        let others = usize::from(faults.has(Fault::Crowd));
        let queues = hosts.iter().map(|it| usize::from(it.io_queues));
        let commands = hosts.iter().map(|it| {
            // The flush of a shutdown needs one more slot.
            usize::from(ADMIN_DEPTH) + 1 + usize::from(it.io_queues * it.depth)
        });
        Self {
            // A part of each is reserved for hosts that hold little.
            controllers: 2 * (hosts.len() + others) as u16,
            connections: hosts.len() + others + queues.sum::<usize>(),
            executions: 2 * (commands.sum::<usize>() + others * (usize::from(ADMIN_DEPTH) + 1)),
        }
    }
}

/// Everything that a seed determines before the first event.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// The faults that are on.
    pub faults: Faults,
    /// Number of events.
    pub events: u64,
    /// Number of reactors of the appliance.
    pub reactors: usize,
    /// Arena size in bytes.
    pub arena_bytes: usize,
    /// Maximum transfer size in bytes.
    pub transfer_max: usize,
    /// Maximum in-capsule data in bytes.
    pub in_capsule_bytes: u32,
    /// Maximum data of one H2CData PDU in bytes (MAXH2CDATA).
    pub host_data_bytes_max: u32,
    /// Whether reads may end with the SUCCESS flag.
    pub success_flag: bool,
    /// The disks. Disk `n` has namespace `n + 1`.
    pub disks: Vec<DiskShape>,
    /// By disk: whether it is configured to be read-only.
    pub read_only: Vec<bool>,
    /// By disk: the ANA group of its namespace at the start.
    pub ana_groups: Vec<u32>,
    /// By disk: the disk whose drive has it as its second namespace.
    pub neighbours: Vec<Option<usize>>,
    /// By disk: how the data of copies, reads and writes takes its way, if it is on a drive.
    pub data_paths: Vec<DataPath>,
    /// Whether drives access the memory of each other.
    pub drives_share_memory: bool,
    /// By disk: whether it is the production RAM device.
    pub ram: Vec<bool>,
    /// Requests that one reactor may have outstanding at one disk; the others wait.
    pub device_queue_depth: usize,
    /// The behaviour of disks.
    pub disk_behaviour: DiskBehaviour,
    /// By disk: the behaviour of its file, if it is one.
    pub files: Vec<Option<FileBehaviour>>,
    /// Whether all hanging commands of drives can be aborted.
    pub hangs_are_abortable: bool,
    /// The behaviour of the network.
    pub network: NetworkBehaviour,
    /// The properties of the RDMA network, if hosts use it.
    pub rdma: RdmaBehaviour,
    /// The hosts.
    pub hosts: Vec<HostShape>,
    /// Limits on the total resources of all hosts.
    pub limits: Bounds,
    /// Number of subsystems among which disks and hosts are distributed.
    pub subsystems: usize,
    /// Number of TCP listeners.
    pub tcp_listeners: usize,
    /// How long configuration changes wait for commands in flight.
    pub patience: Nanos,
    /// Maximum number of commands issued together.
    pub burst_max: u64,
    /// Maximum time between events.
    pub pace_max: Nanos,
    /// Whether hosts authenticate themselves with a Diffie-Hellman exchange.
    pub has_groups: bool,
    /// The secrets of hosts, if they authenticate themselves.
    pub key_files: Option<Arc<KeyFiles>>,
}

/// What a seed simulates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scenario {
    /// NVMe over Fabrics, by the whole appliance.
    #[default]
    Fabrics,
    /// The file service.
    Files,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Fabrics, Self::Files];

    /// The name, as an option.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fabrics => "fabrics",
            Self::Files => "files",
        }
    }
}

impl std::str::FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| format!("{text:?} is neither fabrics nor files"))
    }
}

/// Restrictions of a shrunk run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// What is simulated.
    pub scenario: Scenario,
    /// Maximum number of events.
    pub events: Option<u64>,
    /// Maximum number of hosts.
    pub hosts: Option<usize>,
    /// Faults that stay off.
    pub without: Faults,
    /// Faults that are on, besides those that the seed selects.
    pub with: Faults,
}

/// Controllers when anonymous hosts try to take all of them: few, but enough for hosts to have
/// shares.
const SHARED_CONTROLLERS: u16 = 128;

/// Arenas below this size can run out of memory.
const ROOMY_ARENA_BYTES: usize = 32 << 20;

/// Share of runs with copies of disks in which all disks have blocks of one size, per thousand.
const ONE_BLOCK_SIZE_PERMILLE: u32 = 700;
/// Share of runs with drives in which one has two namespaces, per thousand.
const NEIGHBOURS_PERMILLE: u32 = 500;

/// Latencies of a run in which hosts need memory at the same time.
const CONTEND_NETWORK_LATENCY: Nanos = Nanos::from_micros(5);
const CONTEND_DISK_LATENCY: Nanos = Nanos::from_millis(1);
/// Commands of a queue in such a run at least.
const CONTEND_DEPTH: u16 = 16;

/// Share of runs in which hosts authenticate themselves with a Diffie-Hellman exchange, per
/// thousand. It takes most of the time of such a run.
const GROUPS_PERMILLE: u32 = 150;

/// Share of runs with an operator in which all disks are in one ANA group, per thousand.
const ONE_ANA_GROUP_PERMILLE: u32 = 250;

/// Number of events of a run.
const EVENTS_MIN: u64 = 300;
const EVENTS_MAX: u64 = 1500;

/// Bytes that the queues of files take from a small arena.
const FILE_ARENA_BYTES: usize = 1 << 20;

/// Bytes that the queues of drives take from a small arena.
const DRIVE_ARENA_BYTES: usize = 8 << 20;

impl Swarm {
    /// The subsystem of a disk's namespace.
    #[must_use]
    pub fn subsystem_of_disk(&self, disk: usize) -> usize {
        usize::from(self.subsystems > 1 && disk + 1 == self.disks.len())
    }

    /// The disks of the drive of a disk, with that which is its first namespace at the beginning; the disk
    /// alone if it is on no drive.
    #[must_use]
    pub fn disks_of_drive(&self, disk: usize) -> Vec<usize> {
        let owner = self.neighbours[disk].unwrap_or(disk);
        let others = (0..self.neighbours.len()).filter(|it| self.neighbours[*it] == Some(owner));
        [owner].into_iter().chain(others).collect()
    }

    /// Whether the arena can run out of memory, so that one connection can affect all others.
    #[must_use]
    pub fn has_scarce_memory(&self) -> bool {
        self.arena_bytes < ROOMY_ARENA_BYTES
    }

    /// Whether hosts of every kind together have far fewer commands than one reactor executes, so
    /// that the limits on commands refuse no host.
    #[must_use]
    pub fn has_room_for_commands(&self) -> bool {
        let hosts = self.hosts.iter();
        let commands = hosts.map(|it| {
            usize::from(ADMIN_DEPTH) + 1 + usize::from(it.io_queues) * usize::from(it.depth)
        });
        2 * commands.sum::<usize>() < self.limits.executions / 2
    }

    /// Maximum number of I/O commands that all hosts together may have outstanding.
    #[must_use]
    pub fn outstanding_max(&self) -> u64 {
        let hosts = self.hosts.iter();
        hosts
            .map(|it| u64::from(it.io_queues) * u64::from(it.depth))
            .sum()
    }

    /// The disks of a subsystem.
    pub fn disks_of(&self, subsystem: usize) -> impl Iterator<Item = usize> {
        let disks = 0..self.disks.len();
        disks.filter(move |disk| self.subsystem_of_disk(*disk) == subsystem)
    }

    /// The number that takes the place of a host's in the controllers' key.
    #[must_use]
    pub fn controller_identity(&self) -> usize {
        self.hosts.len()
    }

    /// The secret with which controllers authenticate themselves.
    #[must_use]
    pub fn controller_secret(&self) -> ChapSecret {
        secret(self.controller_identity(), 0)
    }

    /// The parameters of a seed, within `limits`.
    #[must_use]
    pub fn of(seed: u64, limits: &Limits) -> Self {
        let mut random = Random::new(seed, 1);
        let share = random.pick(&[150, 300, 500]);
        let chosen: Faults = Fault::ALL
            .iter()
            .copied()
            .filter(|fault| fault.need().is_none() && random.permille(share))
            .chain(faults_of(Need::Drives, seed))
            .chain(faults_of(Need::Rdma, seed))
            .chain(faults_of(Need::Nothing, seed))
            .chain(faults_of(Need::Changes, seed))
            .chain(faults_of(Need::Orphans, seed))
            .chain(faults_of(Need::Files, seed))
            .chain(faults_of(Need::HostBehaviour, seed))
            .chain(faults_of(Need::Memory, seed))
            .chain(faults_of(Need::Flushes, seed))
            .chain(faults_of(Need::MoreChanges, seed))
            .chain(faults_of(Need::Separate, seed))
            .chain(faults_of(Need::Misuse, seed))
            .chain(faults_of(Need::Swaps, seed))
            .chain(faults_of(Need::Addresses, seed))
            .chain(faults_of(Need::Contention, seed))
            .chain(faults_of(Need::Reservations, seed))
            .chain(faults_of(Need::Operator, seed))
            .chain(faults_of(Need::Competitors, seed))
            .chain(faults_of(Need::Copies, seed))
            .chain(faults_of(Need::DeviceCopies, seed))
            .chain(faults_of(Need::Masks, seed))
            .chain(faults_of(Need::Keys, seed))
            .chain(faults_of(Need::NewProcess, seed))
            .chain(faults_of(Need::Rates, seed))
            .chain(faults_of(Need::Paces, seed))
            .chain(limits.with.iter())
            .collect();
        // Drives with two namespaces are for copies.
        let copies = [Fault::Copy, Fault::DeviceCopy];
        let chosen = match chosen.has(Fault::Drive) && has_neighbours(seed) {
            true => copies.into_iter().fold(chosen, Faults::with),
            false => chosen,
        };
        let hides = Fault::NEEDS_ALL_DISKS.iter();
        let chosen = match hides.clone().any(|it| chosen.has(*it)) {
            // Most of the runs with masks.
            true if chosen.has(Fault::Mask) && Random::new(seed, 0xD1).permille(700) => {
                hides.fold(chosen, |chosen, it| chosen.without(*it))
            }
            true => chosen.without(Fault::Mask),
            false => chosen,
        };
        // A host that loses access at one listener has another path in many of these runs.
        let chosen = match chosen.has(Fault::Ana) && Random::new(seed, 0xB2).coin() {
            true => chosen.with(Fault::Paths),
            false => chosen,
        };
        let chosen = match chosen.has(Fault::Rdma) {
            true => faults_of(Need::RdmaAndMore, seed)
                .into_iter()
                .fold(chosen, Faults::with),
            false => chosen,
        };
        // Queue pairs and drives belong to a process, and so do the states of files that fail.
        let chosen = match Fault::NOT_HANDED_OVER.iter().any(|it| chosen.has(*it)) {
            true => chosen.without(Fault::Handover),
            false => chosen,
        };
        let chosen = match (chosen.has(Fault::Contend), chosen.has(Fault::Drive)) {
            // The buffers of a drive's queues make the memory less predictable.
            (true, true) => chosen.without(Fault::Contend),
            (true, false) => with_visible_memory_waits(chosen),
            (false, _) => chosen,
        };
        // Waits for a rate are none for memory.
        let chosen = match chosen.has(Fault::Contend) {
            true => chosen.without(Fault::Limit).without(Fault::Pace),
            false => chosen,
        };
        // A command that waits for a pace may use its turn at a rate late, and others then start with it.
        let chosen = match chosen.has(Fault::Limit) {
            true => chosen.without(Fault::Pace),
            false => chosen,
        };
        // The judges of waits for memory and of writes that the kernel holds back know hosts only.
        let chosen = match chosen.has(Fault::Contend) || chosen.has(Fault::Stuck) {
            true => chosen.without(Fault::DeviceCopy),
            false => chosen,
        };
        let faults = chosen
            .iter()
            .filter(|it| !limits.without.has(*it))
            .collect::<Faults>();
        let transfer_max = random.pick(&[16 << 10, 64 << 10, 128 << 10]);
        let transfer_max = match chosen.has(Fault::Contend) {
            // The arena has one or two slices of this size.
            true => 128 << 10,
            false => transfer_max,
        };
        let mut disks = disks(&mut random, transfer_max);
        let copies =
            faults.has(Fault::DeviceCopy) || (faults.has(Fault::Copy) && faults.has(Fault::Drive));
        if copies && Random::new(seed, 0xCC).permille(ONE_BLOCK_SIZE_PERMILLE) {
            unify_blocks(&mut disks);
        }
        let files = files(seed, faults, &mut disks);
        let read_only = read_only(seed, faults, &mut disks);
        let mut disk_behaviour = disk_behaviour(&mut random, faults);
        if faults.has(Fault::FlushErrors) {
            disk_behaviour.flush_error_permille = Random::new(seed, 0x15).pick(&[30, 200]);
        }
        let mut network = network_behaviour(&mut random, faults);
        if network.grain < 64 {
            network.latency_max = Nanos::from_micros(5);
        }
        if chosen.has(Fault::Contend) {
            // Slices are in use for much longer than a message is on its way.
            network.latency_max = network.latency_max.min(CONTEND_NETWORK_LATENCY);
            disk_behaviour.latency_max = disk_behaviour.latency_max.max(CONTEND_DISK_LATENCY);
            // One of the largest requests covers half a disk.
            disks
                .iter_mut()
                .for_each(|disk| disk.block_count = 2 * u64::from(disk.transfer_blocks_max));
        }
        let events = random.between(EVENTS_MIN, EVENTS_MAX);
        let mut hosts: Vec<HostShape> = (0..random.between(1, 4))
            .map(|_| host_shape(&mut random))
            .collect();
        if chosen.has(Fault::Contend) {
            hosts
                .iter_mut()
                .for_each(|host| host.depth = host.depth.max(CONTEND_DEPTH));
        }
        hosts.truncate(limits.hosts.unwrap_or(usize::MAX).max(1));
        if faults.has(Fault::Rdma) {
            let mut random = Random::new(seed, 6);
            hosts
                .iter_mut()
                .for_each(|host| host.take_rdma(&mut random));
        }
        let topology = Topology::of(seed, faults, disks.len(), &mut hosts);
        if faults.has(Fault::Paths) {
            add_path(seed, topology.tcp_listeners, &mut hosts);
        }
        let ram = ram_disks(seed, faults, &mut disks, &files);
        let neighbours = neighbours(seed, faults, &mut disks, &ram, transfer_max);
        let small = random.pick(&[1_usize, 2]) * (1 << 20);
        let reactors = random.between(1, 3) as usize;
        let in_capsule_bytes = random.pick(&[0, 4096, 8192, 16 << 10]);
        let arena_bytes = match (faults.has(Fault::Arena), faults.has(Fault::Drive)) {
            (true, false) if faults.has(Fault::File) => small + FILE_ARENA_BYTES,
            (true, false) => small,
            // Each queue of a drive has its own buffer.
            (true, true) if disks.len() * reactors > 8 => small + DRIVE_ARENA_BYTES * 3 / 2,
            (true, true) => small + DRIVE_ARENA_BYTES,
            (false, _) => 64 << 20,
        };
        let ana_groups = ana_groups(seed, faults, disks.len());
        Self {
            faults,
            events: events.min(limits.events.unwrap_or(u64::MAX)),
            reactors,
            arena_bytes,
            transfer_max,
            in_capsule_bytes,
            host_data_bytes_max: random.pick(&[4096, 8192, 1 << 20]),
            success_flag: random.coin(),
            disks,
            files,
            read_only,
            ana_groups,
            data_paths: data_paths(seed, &neighbours),
            neighbours,
            drives_share_memory: share_memory(seed),
            ram,
            device_queue_depth: Random::new(seed, 3).pick(&[2, 16, 64]),
            disk_behaviour,
            hangs_are_abortable: Random::new(seed, 0x16).coin(),
            network,
            rdma: rdma_behaviour(seed),
            limits: Bounds::of(faults, &hosts),
            hosts,
            subsystems: topology.subsystems,
            tcp_listeners: topology.tcp_listeners,
            patience: topology.patience,
            burst_max: random.pick(&[1, 4, 16]),
            pace_max: Nanos::from_micros(random.pick(&[5, 50, 300])),
            has_groups: Random::new(seed, 0xE1).permille(GROUPS_PERMILLE),
            key_files: None,
        }
    }
}

/// The same faults without those that hide waits for memory, and with little memory.
fn with_visible_memory_waits(faults: Faults) -> Faults {
    let hides = Fault::HIDES_MEMORY_WAITS.iter();
    hides.fold(faults.with(Fault::Arena), |faults, hides| {
        faults.without(*hides)
    })
}

/// The subsystems and listeners of a run, and the patience of its configuration changes.
struct Topology {
    subsystems: usize,
    tcp_listeners: usize,
    patience: Nanos,
}

impl Topology {
    /// Assigns the hosts to subsystems and listeners.
    fn of(seed: u64, faults: Faults, disks: usize, hosts: &mut [HostShape]) -> Self {
        let mut random = Random::new(seed, 10);
        let patience = Nanos::from_millis(random.pick(&[300, 2000, 10_000]));
        // Anonymous hosts need one open subsystem and one that is not.
        let are_wanted = faults.has(Fault::Subsystems) || faults.has(Fault::Anonymous);
        let two_subsystems = are_wanted && disks > 1 && hosts.len() > 1;
        let subsystems = 1 + usize::from(two_subsystems);
        let has_two_listeners = faults.has(Fault::Listeners) || faults.has(Fault::Ana);
        let tcp_listeners = 1 + usize::from(has_two_listeners);
        let last = hosts.len() - 1;
        for (number, host) in hosts.iter_mut().enumerate() {
            host.identity = number;
            let drawn = (random.below(2), random.below(2));
            // Each subsystem has at least one host.
            host.subsystem = match number {
                0 => 0,
                it if it == last => subsystems - 1,
                _ => (drawn.0 as usize).min(subsystems - 1),
            };
            host.tcp_listener = (drawn.1 as usize).min(tcp_listeners - 1);
        }
        Self {
            subsystems,
            tcp_listeners,
            patience,
        }
    }
}

/// Gives one of the hosts a second path to its subsystem.
fn add_path(seed: u64, tcp_listeners: usize, hosts: &mut Vec<HostShape>) {
    let mut random = Random::new(seed, 0x21);
    let first = random.below(hosts.len() as u64) as usize;
    let HostShape {
        subsystem,
        identity,
        ..
    } = hosts[first];
    hosts.push(HostShape {
        subsystem,
        identity,
        tcp_listener: random.below(tcp_listeners as u64) as usize,
        ..host_shape(&mut random)
    });
}

/// The ANA groups of the disks: several ones in most runs with an operator.
fn ana_groups(seed: u64, faults: Faults, disks: usize) -> Vec<u32> {
    let mut random = Random::new(seed, 0xB3);
    let has_one = !faults.has(Fault::Ana) || random.permille(ONE_ANA_GROUP_PERMILLE);
    let groups = (0..disks).map(|_| match has_one {
        true => ANA_GROUPS[0],
        false => random.pick(&ANA_GROUPS),
    });
    groups.collect()
}

/// Selects the disks that are files, and their behaviour.
fn files(seed: u64, faults: Faults, disks: &mut [DiskShape]) -> Vec<Option<FileBehaviour>> {
    let mut random = Random::new(seed, 0x41);
    let are_files = faults.has(Fault::File) && !faults.has(Fault::Drive);
    let errors = faults.has(Fault::FileErrors);
    let mut draw = |shape: &mut DiskShape| {
        let behaviour = FileBehaviour::of(&mut random, errors);
        let is_file = are_files && random.permille(750);
        is_file.then(|| {
            shape.volatile = true;
            shape.deallocate = behaviour.deallocate();
            behaviour
        })
    };
    disks.iter_mut().map(&mut draw).collect()
}

fn disks(random: &mut Random, transfer_max: usize) -> Vec<DiskShape> {
    let count = random.between(1, 3);
    (0..count)
        .map(|_| {
            let block_size = random.pick(&[512_u32, 512, 4096]);
            DiskShape {
                block_size,
                block_count: random.pick(&[16, 64, 256]),
                volatile: random.permille(750),
                deallocate: random
                    .pick(&[block::Deallocate::ReadsZero, block::Deallocate::Unsupported]),
                transfer_blocks_max: (transfer_max / block_size as usize) as u32,
                read_only: false,
            }
        })
        .collect()
}

/// Makes a disk read-only, by itself or only by the configuration. Returns by disk whether the
/// configuration makes it read-only.
fn read_only(seed: u64, faults: Faults, disks: &mut [DiskShape]) -> Vec<bool> {
    let mut random = Random::new(seed, 0x27);
    let mut configured = vec![false; disks.len()];
    if faults.has(Fault::ReadOnly) && disks.len() > 1 {
        let others = [Fault::Drive, Fault::File, Fault::Ram];
        let is_configured = random.permille(700) || others.iter().any(|it| faults.has(*it));
        configured[0] = is_configured;
        disks[0].read_only = !is_configured;
    }
    configured
}

/// Selects the disks that are in RAM. They have no volatile cache, and deallocated blocks read as
/// zeroes.
fn ram_disks(
    seed: u64,
    faults: Faults,
    disks: &mut [DiskShape],
    files: &[Option<FileBehaviour>],
) -> Vec<bool> {
    let mut random = Random::new(seed, 0x13);
    let first = random.below(disks.len() as u64) as usize;
    let drawn = disks.iter_mut().enumerate();
    let ram = drawn.map(|(number, shape)| {
        let is_ram = random.coin() || number == first;
        let is_ram = is_ram && faults.has(Fault::Ram) && files[number].is_none();
        if is_ram {
            shape.volatile = false;
            shape.deallocate = block::Deallocate::ReadsZero;
        }
        is_ram
    });
    ram.collect()
}

/// Gives all disks blocks of the size of the first one's, so that they can be copied to each other.
fn unify_blocks(disks: &mut [DiskShape]) {
    let Some(first) = disks.first().copied() else {
        return;
    };
    for disk in disks {
        disk.block_size = first.block_size;
        disk.transfer_blocks_max = first.transfer_blocks_max;
    }
}

/// Whether a drive has two namespaces, if there are drives and enough disks.
fn has_neighbours(seed: u64) -> bool {
    Random::new(seed, 0xC8).permille(NEIGHBOURS_PERMILLE)
}

/// Makes a disk the second namespace of the drive of another one.
fn neighbours(
    seed: u64,
    faults: Faults,
    disks: &mut [DiskShape],
    ram: &[bool],
    transfer_max: usize,
) -> Vec<Option<usize>> {
    let mut neighbours = vec![None; disks.len()];
    let mut on_drives = (0..disks.len()).filter(|disk| !ram[*disk]);
    let are_wanted = faults.has(Fault::Drive) && has_neighbours(seed);
    if are_wanted && let (Some(first), Some(second)) = (on_drives.next(), on_drives.next()) {
        let DiskShape {
            block_size,
            volatile,
            ..
        } = disks[first];
        disks[second] = DiskShape {
            block_size,
            volatile,
            transfer_blocks_max: (transfer_max / block_size as usize) as u32,
            ..disks[second]
        };
        neighbours[second] = Some(first);
    }
    neighbours
}

/// Whether drives access the memory of each other, if there are drives.
fn share_memory(seed: u64) -> bool {
    Random::new(seed, 0xCA).coin()
}

/// The ways of the data: every other drive allows its memory, if it has any, and each that has two
/// namespaces. Some of the second ones have another way.
fn data_paths(seed: u64, neighbours: &[Option<usize>]) -> Vec<DataPath> {
    let mut random = Random::new(seed, 0xC9);
    let others = [
        DataPath::Best,
        DataPath::Best,
        DataPath::Best,
        DataPath::Best,
        DataPath::DeviceMemory,
        DataPath::Host,
    ];
    let paths = neighbours.iter().enumerate().map(|(disk, owner)| {
        let has_two = neighbours.contains(&Some(disk));
        match owner {
            Some(_) => random.pick(&others),
            None if has_two || disk % 2 == 0 => DataPath::Best,
            None if share_memory(seed) => random.pick(&others),
            None => DataPath::Host,
        }
    });
    paths.collect()
}

fn disk_behaviour(random: &mut Random, faults: Faults) -> DiskBehaviour {
    let share = |fault, permille| if faults.has(fault) { permille } else { 0 };
    DiskBehaviour {
        latency_min: Nanos::from_micros(random.pick(&[0, 5])),
        latency_max: Nanos::from_micros(random.pick(&[10, 80, 400])),
        slow_permille: share(Fault::Slow, random.pick(&[5, 50])),
        slow_max: Nanos::from_millis(random.pick(&[5, 200])),
        error_permille: share(Fault::Error, random.pick(&[5, 50])),
        flush_error_permille: 0,
        later_permille: share(Fault::Later, random.pick(&[20, 300])),
        write_back_permille: random.pick(&[0, 100, 500]),
        forgotten_before: 0,
        linger_permille: share(Fault::Linger, 30),
        linger_max: Nanos::from_millis(2500),
    }
}

fn network_behaviour(random: &mut Random, faults: Faults) -> NetworkBehaviour {
    let grain = random.pick(&[1, 7, 24, 73, 600, 4096]);
    let window = random.pick(&[200, 3000, 30_000]);
    NetworkBehaviour {
        latency_min: Nanos::from_micros(1),
        latency_max: Nanos::from_micros(random.pick(&[2, 20, 200])),
        grain: if faults.has(Fault::Grain) {
            grain
        } else {
            usize::MAX
        },
        window: if faults.has(Fault::Window) {
            window
        } else {
            1 << 20
        },
    }
}

fn rdma_behaviour(seed: u64) -> RdmaBehaviour {
    let mut random = Random::new(seed, 7);
    RdmaBehaviour {
        tick: Nanos::from_micros(random.pick(&[1, 5, 20])),
        retry_ticks: random.pick(&[1, 50, 500]),
        inline_bytes: random.pick(&[0, 128]),
        reads: random.pick(&[1, 2, 3, 4, 16]),
        receives: random.pick(&[4, 16, 64]),
        registers_device_memory: random.permille(900),
        device_transfer_bytes_min: random.pick(&[512, 4096, 16 << 10]),
    }
}

impl HostShape {
    /// The listener that the host connects to.
    #[must_use]
    pub fn listener(&self) -> usize {
        if self.rdma {
            RDMA_LISTENER
        } else {
            self.tcp_listener
        }
    }

    /// Moves the host to RDMA, which has no digests, with a probability of one half.
    fn take_rdma(&mut self, random: &mut Random) {
        (self.rdma, self.windows) = (random.coin(), random.coin());
        self.header_digest &= !self.rdma;
        self.data_digest &= !self.rdma;
    }
}

fn host_shape(random: &mut Random) -> HostShape {
    HostShape {
        io_queues: random.between(1, 3) as u16,
        depth: random.pick(&[2, 3, 8, 32]),
        header_digest: random.coin(),
        data_digest: random.coin(),
        alignment_z: random.pick(&[0, 0, 1, 7, 31]),
        flow_control: random.permille(700),
        keep_alive: Nanos::from_secs(random.pick(&[0, 2, 5, 15])),
        rdma: false,
        windows: false,
        subsystem: 0,
        identity: 0,
        tcp_listener: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_enabled_in_some_seeds_only() {
        let limits = Limits::default();
        let on = |fault| {
            let seeds = (0..200).filter(|seed| Swarm::of(*seed, &limits).faults.has(fault));
            seeds.count()
        };
        for fault in Fault::ALL {
            assert!((20..180).contains(&on(*fault)), "{fault}: {}", on(*fault));
        }
    }

    #[test]
    fn swarm_limits_affect_only_what_they_limit() {
        let whole = Swarm::of(7, &Limits::default());
        let limits = Limits {
            scenario: Scenario::Fabrics,
            events: Some(10),
            hosts: Some(1),
            without: Faults::default().with(Fault::Slow),
            with: Faults::default(),
        };
        let less = Swarm::of(7, &limits);
        assert_eq!((less.events, less.hosts.len()), (10, 1));
        assert_eq!(less.faults, whole.faults.without(Fault::Slow));
        assert_eq!(less.transfer_max, whole.transfer_max);
        assert_eq!(less.disks.len(), whole.disks.len());
        assert_eq!(less.reactors, whole.reactors);
    }
}
