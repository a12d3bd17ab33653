//! What a seed turns on: each run has its own mixture of faults and sizes, so that a fault that
//! would hide another is absent from half of the runs.

use std::fmt;
use std::str::FromStr;

use reactors::Nanos;

use crate::appliance::{COMMANDS_MAX, CONNECTIONS_MAX};
use crate::disk::{DiskShape, DiskTemper};
use crate::file_disk::FileTemper;
use crate::host::ADMIN_DEPTH;
use crate::network::NetworkTemper;
use crate::plan::RDMA_LISTENER;
use crate::random::Random;

/// Declares the faults with their names.
macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident = $name:literal;)*) => {
        /// Something that can go wrong, or that makes what goes wrong harder.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[$doc])* $fault,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$fault,)*];

            /// Its name on the command line.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Fault::$fault => $name,)*
                }
            }
        }
    };
}

faults! {
    /// Connections break.
    Cut = "cut";
    /// Nothing arrives for seconds.
    Stall = "stall";
    /// Streams arrive in small pieces, down to a byte.
    Grain = "grain";
    /// Hosts read slowly: little fits between the ends.
    Window = "window";
    /// Hosts vanish without a word.
    Vanish = "vanish";
    /// Hosts stop sending Keep Alive.
    Silence = "silence";
    /// Hosts are slow with the data that they were asked for.
    SlowWriter = "slow-writer";
    /// Data or headers are damaged on the wire.
    Damage = "damage";
    /// Hosts send what is no PDU.
    Malformed = "malformed";
    /// Hosts send commands that must be refused.
    Invalid = "invalid";
    /// Hosts abort commands.
    Abort = "abort";
    /// Hosts reset their controllers.
    Reset = "reset";
    /// Hosts disconnect queues in order.
    Disconnect = "disconnect";
    /// Disks are slow at times.
    Slow = "slow";
    /// Disks fail requests.
    Error = "error";
    /// Disks put requests off.
    Later = "later";
    /// Disks answer nothing for a while.
    Hold = "hold";
    /// Disks are pulled out, and are back after the next start.
    Removal = "removal";
    /// The appliance is killed.
    Crash = "crash";
    /// The power fails.
    Power = "power";
    /// The appliance is stopped in order and started again.
    Restart = "restart";
    /// The arena holds a few requests' data.
    Arena = "arena";
    /// Namespaces come and go.
    Namespaces = "namespaces";
    /// Hosts lose their permission and get it back.
    Revoke = "revoke";
    /// Disks are NVMe drives behind our own driver.
    Drive = "drive";
    /// Drives do not answer commands.
    Hang = "hang";
    /// Drives complete what nobody waits for, and do not see doorbells.
    Confusion = "confusion";
    /// Drives stop with a fatal status.
    Failure = "failure";
    /// Some hosts come by RDMA.
    Rdma = "rdma";
    /// RDMA requests begin late, or complete late.
    Late = "late";
    /// RDMA requests fail.
    WorkErrors = "work-errors";
    /// RDMA connections are not made, or late.
    Unreachable = "unreachable";
    /// Devices are taken out of the configuration and put back, with their namespaces.
    Devices = "devices";
    /// The RDMA device is pulled out, and is back after the next start.
    Unplug = "unplug";
    /// Subsystems come and go.
    Subsystems = "subsystems";
    /// Listeners come and go.
    Listeners = "listeners";
    /// Disks grow.
    Growth = "growth";
    /// Changes are wanted that cannot be had.
    Refused = "refused";
    /// Disks keep single requests for seconds, and hosts send lost writes again with other data.
    Linger = "linger";
    /// A host has two controllers, by connections of their own.
    Paths = "paths";
    /// Disks are files behind our own file device.
    File = "file";
    /// Files lose what is written, become shorter and have no room.
    FileErrors = "file-errors";
    /// Some disks are the production device in RAM, which lends its memory.
    Ram = "ram";
    /// Flushes and durable writes fail, and the power with them.
    FlushErrors = "flush-errors";
    /// Keys of the configuration change.
    Keys = "keys";
    /// Several things change at once.
    Compound = "compound";
    /// Hosts send Connects that must be refused.
    WrongConnect = "wrong-connect";
    /// Hosts answer R2Ts with data that breaks the rules.
    WrongData = "wrong-data";
    /// A disk is read-only.
    ReadOnly = "read-only";
    /// Hosts set and read features, switch the write cache off, read the error log.
    Administer = "administer";
    /// Hosts abort all that they have.
    AbortFlood = "abort-flood";
    /// Hosts shut their controllers down in order.
    Shutdown = "shutdown";
    /// Strangers connect, and read the discovery log or do nothing that is of use.
    Crowd = "crowd";
    /// Hosts take memory and do nothing with it.
    Greedy = "greedy";
    /// Controllers, connections and commands are limited to what the hosts need.
    Tight = "tight";
    /// Hosts are slow to ask for events, and to read their log pages.
    Deaf = "deaf";
    /// Devices get other files, and hosts look at the identifiers of their disks.
    Exchange = "exchange";
    /// Hosts send commands with identifiers that are in use.
    Twins = "twins";
    /// Hosts send event requests beyond the limit, and abort them.
    EventFlood = "event-flood";
    /// Hosts that nobody configured take all that they can get.
    Anonymous = "anonymous";
    /// The kernel holds a write of a file for minutes, and its host resets the controller.
    Stuck = "stuck";
    /// Disks swap their namespace identifiers.
    Swap = "swap";
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Fault::ALL.iter().find(|fault| fault.name() == name);
        found.copied().ok_or_else(|| format!("no fault {name:?}"))
    }
}

impl Fault {
    /// What it needs that not every seed has.
    fn need(self) -> Option<Need> {
        match self {
            Fault::Drive | Fault::Hang | Fault::Confusion | Fault::Failure => Some(Need::Drives),
            Fault::Rdma | Fault::Late | Fault::WorkErrors | Fault::Unreachable => Some(Need::Rdma),
            Fault::Devices => Some(Need::Nothing),
            Fault::Linger | Fault::Paths => Some(Need::Orphans),
            Fault::File | Fault::FileErrors => Some(Need::Files),
            Fault::Unplug => Some(Need::RdmaAndMore),
            Fault::Ram => Some(Need::Memory),
            Fault::FlushErrors => Some(Need::Flushes),
            Fault::Keys | Fault::Compound => Some(Need::MoreChanges),
            Fault::Subsystems | Fault::Listeners | Fault::Growth | Fault::Refused => {
                Some(Need::Changes)
            }
            Fault::WrongConnect
            | Fault::WrongData
            | Fault::ReadOnly
            | Fault::Administer
            | Fault::AbortFlood
            | Fault::Shutdown
            | Fault::Tight
            | Fault::Crowd
            | Fault::Greedy
            | Fault::Deaf => Some(Need::Habits),
            Fault::Swap => Some(Need::Swaps),
            Fault::Twins | Fault::EventFlood | Fault::Anonymous => Some(Need::Misuse),
            Fault::Exchange | Fault::Stuck => Some(Need::Apart),
            _ => None,
        }
    }

    /// Whether it is something that hosts do, drawn by a stream of its own.
    #[must_use]
    pub fn is_habit(self) -> bool {
        self.need() == Some(Need::Habits)
    }

    /// Whether it strikes by a stream of its own, so that everything else is as without it.
    #[must_use]
    pub fn is_apart(self) -> bool {
        matches!(self.need(), Some(Need::Apart | Need::Swaps))
    }

    /// Whether it is a misuse of queues, which has a stream of its own too.
    #[must_use]
    pub fn is_misuse(self) -> bool {
        self.need() == Some(Need::Misuse)
    }
}

/// What a fault needs that not every seed has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Drives,
    Rdma,
    /// The same, and a stream of chance of its own.
    RdmaAndMore,
    Files,
    /// A stream of chance of its own, so that seeds from before it are as they were.
    Nothing,
    /// The same.
    Changes,
    /// The same.
    Orphans,
    /// The same.
    Habits,
    /// The same.
    Memory,
    /// The same.
    Flushes,
    /// The same.
    MoreChanges,
    /// The same, and they strike by a stream of their own.
    Apart,
    /// The same, by another stream.
    Misuse,
    /// The same.
    Swaps,
}

/// A set of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults(u64);

const _: () = assert!(Fault::ALL.len() <= 64);

impl Faults {
    /// Whether the fault is in the set.
    #[must_use]
    pub fn has(self, fault: Fault) -> bool {
        self.0 & 1 << fault as u32 != 0
    }

    /// The set with one more.
    #[must_use]
    pub fn with(self, fault: Fault) -> Self {
        Self(self.0 | 1 << fault as u32)
    }

    /// The set without one.
    #[must_use]
    pub fn without(self, fault: Fault) -> Self {
        Self(self.0 & !(1 << fault as u32))
    }

    /// Those in the set.
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.iter().copied().filter(move |it| self.has(*it))
    }
}

impl FromIterator<Fault> for Faults {
    fn from_iter<I: IntoIterator<Item = Fault>>(faults: I) -> Self {
        faults.into_iter().fold(Self::default(), Self::with)
    }
}

/// How a run's hosts are.
#[derive(Clone, Copy, Debug)]
pub struct HostShape {
    /// I/O queues of each.
    pub io_queues: u16,
    /// Entries of an I/O queue.
    pub depth: u16,
    /// Header digests.
    pub header_digest: bool,
    /// Data digests.
    pub data_digest: bool,
    /// The alignment that they ask for, in dwords, zero-based.
    pub alignment_z: u8,
    /// Submission queue flow control.
    pub flow_control: bool,
    /// Keep Alive Timeout; zero is none.
    pub keep_alive: Nanos,
    /// They come by RDMA.
    pub rdma: bool,
    /// Over RDMA: keys are made for each command.
    pub windows: bool,
    /// The subsystem that they attach.
    pub subsystem: usize,
    /// The number of the host by whose name they come: two with the same are two paths of one host.
    pub identity: usize,
    /// The listener that they come by, over TCP.
    tcp_listener: usize,
}

/// How RDMA is.
#[derive(Clone, Copy, Debug)]
pub struct RdmaTemper {
    /// A tick of the fabric.
    pub tick: Nanos,
    /// Ticks between two tries of a request.
    pub retry_ticks: u64,
    /// Bytes that a work request may carry itself.
    pub inline_bytes: u32,
    /// RDMA reads that are answered at once.
    pub reads: u8,
    /// Receives that the connections of one reactor share.
    pub receives: u32,
}

/// Bounds on what all hosts may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Controllers.
    pub controllers: u16,
    /// Connections of one reactor and transport.
    pub connections: usize,
    /// Commands of one reactor that may be in execution.
    pub executions: usize,
}

impl Bounds {
    /// Plenty, or just what the hosts need.
    fn of(faults: Faults, hosts: &[HostShape]) -> Self {
        if !faults.has(Fault::Tight) {
            let is_crowded = faults.has(Fault::Anonymous);
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
        // The discovery host, and strangers, which are let in while there is room.
        let others = usize::from(faults.has(Fault::Crowd));
        let queues = hosts.iter().map(|it| usize::from(it.io_queues));
        let commands = hosts.iter().map(|it| {
            // The flush of a shutdown has a place of its own.
            usize::from(ADMIN_DEPTH) + 1 + usize::from(it.io_queues * it.depth)
        });
        Self {
            // A part of each is kept for hosts that have little.
            controllers: 2 * (hosts.len() + others) as u16,
            connections: hosts.len() + others + queues.sum::<usize>(),
            executions: 2 * (commands.sum::<usize>() + others * (usize::from(ADMIN_DEPTH) + 1)),
        }
    }
}

/// All that a seed decides before the first event.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// The faults that are on.
    pub faults: Faults,
    /// Events.
    pub events: u64,
    /// Reactors of the appliance.
    pub reactors: usize,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// Largest transfer in bytes.
    pub transfer_max: usize,
    /// Data that a capsule may carry, bytes.
    pub in_capsule_bytes: u32,
    /// Largest data of one H2CData PDU, bytes.
    pub host_data_bytes_max: u32,
    /// Whether reads may end with the SUCCESS flag.
    pub success_flag: bool,
    /// The disks; namespace `n + 1` is disk `n`.
    pub disks: Vec<DiskShape>,
    /// By disk: whether it is configured to be read-only.
    pub read_only: Vec<bool>,
    /// By disk: whether it is the production device in RAM.
    pub ram: Vec<bool>,
    /// Requests that one reactor may have at one disk; the rest waits.
    pub device_queue_depth: usize,
    /// How disks behave.
    pub disk_temper: DiskTemper,
    /// By disk: how the file behaves, if it is one.
    pub files: Vec<Option<FileTemper>>,
    /// Commands of drives that hang can all be aborted.
    pub hangs_are_abortable: bool,
    /// How the network behaves.
    pub network: NetworkTemper,
    /// How RDMA is, where hosts come by it.
    pub rdma: RdmaTemper,
    /// The hosts.
    pub hosts: Vec<HostShape>,
    /// Bounds on what all hosts may take.
    pub limits: Bounds,
    /// Subsystems that disks and hosts are shared out among.
    pub subsystems: usize,
    /// Listeners over TCP.
    pub tcp_listeners: usize,
    /// How long changes wait for what is in their way.
    pub patience: Nanos,
    /// Commands that are issued at once, at most.
    pub burst_max: u64,
    /// Time between events at most.
    pub pace_max: Nanos,
}

/// What a run is cut down to when it is shrunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Events at most.
    pub events: Option<u64>,
    /// Hosts at most.
    pub hosts: Option<usize>,
    /// Faults that stay off.
    pub without: Faults,
}

/// Controllers where hosts try to take them all: few, and enough for hosts to have shares of them.
const SHARED_CONTROLLERS: u16 = 128;

/// Events of a run.
const EVENTS_MIN: u64 = 300;
const EVENTS_MAX: u64 = 1500;

/// Bytes of a small arena that the queues of files take.
const FILE_ARENA_BYTES: usize = 1 << 20;

/// Bytes of a small arena that the queues of drives take.
const DRIVE_ARENA_BYTES: usize = 8 << 20;

/// The faults with a need, and whether it is there: drawn apart, by a stream of their own.
fn faults_of(need: Need, seed: u64) -> Vec<Fault> {
    let (stream, itself, share) = match need {
        Need::Drives => (4, Some(Fault::Drive), 400),
        Need::Rdma => (5, Some(Fault::Rdma), 400),
        Need::Nothing => (8, Some(Fault::Devices), 400),
        Need::RdmaAndMore => (0x10, Some(Fault::Unplug), 400),
        Need::Changes => (9, None, 700),
        Need::Orphans => (0x20, Some(Fault::Linger), 400),
        Need::Files => (0x40, Some(Fault::File), 500),
        Need::Habits => (0x25, None, 1000),
        Need::Memory => (0x12, Some(Fault::Ram), 500),
        Need::MoreChanges => (0x18, None, 900),
        Need::Flushes => (0x14, Some(Fault::FlushErrors), 300),
        Need::Apart => (0x50, None, 700),
        Need::Misuse => (0x60, None, 800),
        Need::Swaps => (0x70, Some(Fault::Swap), 400),
    };
    let mut random = Random::new(seed, stream);
    let there = random.permille(share);
    let drawn = Fault::ALL.iter().copied();
    drawn
        .filter(|it| it.need() == Some(need))
        .filter(|fault| {
            let share = if *fault == Fault::FileErrors {
                700
            } else {
                400
            };
            there && (Some(*fault) == itself || random.permille(share))
        })
        .collect()
}

impl Swarm {
    /// The subsystem that a disk's namespace is in.
    #[must_use]
    pub fn subsystem_of_disk(&self, disk: usize) -> usize {
        usize::from(self.subsystems > 1 && disk + 1 == self.disks.len())
    }

    /// The disks of a subsystem.
    pub fn disks_of(&self, subsystem: usize) -> impl Iterator<Item = usize> {
        let disks = 0..self.disks.len();
        disks.filter(move |disk| self.subsystem_of_disk(*disk) == subsystem)
    }

    /// What a seed turns on, within `limits`.
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
            .chain(faults_of(Need::Habits, seed))
            .chain(faults_of(Need::Memory, seed))
            .chain(faults_of(Need::Flushes, seed))
            .chain(faults_of(Need::MoreChanges, seed))
            .chain(faults_of(Need::Apart, seed))
            .chain(faults_of(Need::Misuse, seed))
            .chain(faults_of(Need::Swaps, seed))
            .collect();
        let chosen = match chosen.has(Fault::Rdma) {
            true => faults_of(Need::RdmaAndMore, seed)
                .into_iter()
                .fold(chosen, Faults::with),
            false => chosen,
        };
        let faults = chosen
            .iter()
            .filter(|it| !limits.without.has(*it))
            .collect::<Faults>();
        let transfer_max = random.pick(&[16 << 10, 64 << 10, 128 << 10]);
        let mut disks = disks(&mut random, transfer_max);
        let files = files(seed, faults, &mut disks);
        let read_only = read_only(seed, faults, &mut disks);
        let mut disk_temper = disk_temper(&mut random, faults);
        if faults.has(Fault::FlushErrors) {
            disk_temper.flush_error_permille = Random::new(seed, 0x15).pick(&[30, 200]);
        }
        let mut network = network_temper(&mut random, faults);
        if network.grain < 64 {
            network.latency_max = Nanos::from_micros(5);
        }
        let events = random.between(EVENTS_MIN, EVENTS_MAX);
        let mut hosts: Vec<HostShape> = (0..random.between(1, 4))
            .map(|_| host_shape(&mut random))
            .collect();
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
        let small = random.pick(&[1_usize, 2]) * (1 << 20);
        let reactors = random.between(1, 3) as usize;
        let in_capsule_bytes = random.pick(&[0, 4096, 8192, 16 << 10]);
        let arena_bytes = match (faults.has(Fault::Arena), faults.has(Fault::Drive)) {
            (true, false) if faults.has(Fault::File) => small + FILE_ARENA_BYTES,
            (true, false) => small,
            // Each queue of a drive has a buffer of its own.
            (true, true) if disks.len() * reactors > 8 => small + DRIVE_ARENA_BYTES * 3 / 2,
            (true, true) => small + DRIVE_ARENA_BYTES,
            (false, _) => 64 << 20,
        };
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
            ram,
            device_queue_depth: Random::new(seed, 3).pick(&[2, 16, 64]),
            disk_temper,
            hangs_are_abortable: Random::new(seed, 0x16).coin(),
            network,
            rdma: rdma_temper(seed),
            limits: Bounds::of(faults, &hosts),
            hosts,
            subsystems: topology.subsystems,
            tcp_listeners: topology.tcp_listeners,
            patience: topology.patience,
            burst_max: random.pick(&[1, 4, 16]),
            pace_max: Nanos::from_micros(random.pick(&[5, 50, 300])),
        }
    }
}

/// What hosts come by, and what they come for.
struct Topology {
    subsystems: usize,
    tcp_listeners: usize,
    patience: Nanos,
}

impl Topology {
    /// Shares the hosts out.
    fn of(seed: u64, faults: Faults, disks: usize, hosts: &mut [HostShape]) -> Self {
        let mut random = Random::new(seed, 10);
        let patience = Nanos::from_millis(random.pick(&[300, 2000, 10_000]));
        // Hosts that nobody configured find one that is open to them, beside one that is not.
        let are_wanted = faults.has(Fault::Subsystems) || faults.has(Fault::Anonymous);
        let two_subsystems = are_wanted && disks > 1 && hosts.len() > 1;
        let subsystems = 1 + usize::from(two_subsystems);
        let tcp_listeners = 1 + usize::from(faults.has(Fault::Listeners));
        let last = hosts.len() - 1;
        for (number, host) in hosts.iter_mut().enumerate() {
            host.identity = number;
            let drawn = (random.below(2), random.below(2));
            // Each subsystem has a host.
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

/// Which disks are files, and how those are.
fn files(seed: u64, faults: Faults, disks: &mut [DiskShape]) -> Vec<Option<FileTemper>> {
    let mut random = Random::new(seed, 0x41);
    let are_files = faults.has(Fault::File) && !faults.has(Fault::Drive);
    let errors = faults.has(Fault::FileErrors);
    let mut draw = |shape: &mut DiskShape| {
        let temper = FileTemper::of(&mut random, errors);
        let is_file = are_files && random.permille(750);
        is_file.then(|| {
            shape.volatile = true;
            shape.deallocate = temper.deallocate();
            temper
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

/// Makes a disk read-only, by itself or by the configuration alone; by disk, whether the
/// configuration says so.
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

/// Which of the disks are in RAM; those have no volatile cache, and zeroes where they were
/// deallocated.
fn ram_disks(
    seed: u64,
    faults: Faults,
    disks: &mut [DiskShape],
    files: &[Option<FileTemper>],
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

fn disk_temper(random: &mut Random, faults: Faults) -> DiskTemper {
    let share = |fault, permille| if faults.has(fault) { permille } else { 0 };
    DiskTemper {
        latency_min: Nanos::from_micros(random.pick(&[0, 5])),
        latency_max: Nanos::from_micros(random.pick(&[10, 80, 400])),
        slow_permille: share(Fault::Slow, random.pick(&[5, 50])),
        slow_max: Nanos::from_millis(random.pick(&[5, 200])),
        error_permille: share(Fault::Error, random.pick(&[5, 50])),
        flush_error_permille: 0,
        later_permille: share(Fault::Later, random.pick(&[20, 300])),
        write_back_permille: random.pick(&[0, 100, 500]),
        linger_permille: share(Fault::Linger, 30),
        linger_max: Nanos::from_millis(2500),
    }
}

fn network_temper(random: &mut Random, faults: Faults) -> NetworkTemper {
    let grain = random.pick(&[1, 7, 24, 73, 600, 4096]);
    let window = random.pick(&[200, 3000, 30_000]);
    NetworkTemper {
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

fn rdma_temper(seed: u64) -> RdmaTemper {
    let mut random = Random::new(seed, 7);
    RdmaTemper {
        tick: Nanos::from_micros(random.pick(&[1, 5, 20])),
        retry_ticks: random.pick(&[1, 50, 500]),
        inline_bytes: random.pick(&[0, 128]),
        reads: random.pick(&[1, 2, 3, 4, 16]),
        receives: random.pick(&[4, 16, 64]),
    }
}

impl HostShape {
    /// The listener that the host comes by.
    #[must_use]
    pub fn listener(&self) -> usize {
        if self.rdma {
            RDMA_LISTENER
        } else {
            self.tcp_listener
        }
    }

    /// Every other host comes by RDMA, which has no digests.
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
    fn faults_have_names_that_are_read_back() {
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(*fault));
        }
        assert!("nothing".parse::<Fault>().is_err());
    }

    #[test]
    fn every_fault_is_on_in_some_seeds_and_off_in_others() {
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
    fn limits_take_away_and_change_nothing_else() {
        let whole = Swarm::of(7, &Limits::default());
        let limits = Limits {
            events: Some(10),
            hosts: Some(1),
            without: Faults::default().with(Fault::Slow),
        };
        let less = Swarm::of(7, &limits);
        assert_eq!((less.events, less.hosts.len()), (10, 1));
        assert_eq!(less.faults, whole.faults.without(Fault::Slow));
        assert_eq!(less.transfer_max, whole.transfer_max);
        assert_eq!(less.disks.len(), whole.disks.len());
        assert_eq!(less.reactors, whole.reactors);
    }
}
