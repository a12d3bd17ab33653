//! A simulated host: connects, enables its controller, keeps it alive, sends I/O, and misbehaves on
//! request.
//!
//! It checks everything that it receives: the [`Judge`] checks data, and the host itself checks
//! whether something excuses responses, closes and delays.

mod admin;
mod ana;
mod authenticating;
mod completion_checks;
mod connection;
pub mod copying;
mod discovery_host;
mod events;
mod flood;
mod fused;
mod greedy;
mod invalid;
mod limits;
mod masks;
mod memory_waits;
mod notices;
mod probes;
mod rdma;
mod reserving;
mod session;
mod silent;
mod tcp;
mod twins;
mod waiting;
mod workload;
mod wrong_data;

pub use connection::Vanished;
pub use discovery_host::DiscoveryHost;
pub use silent::SilentHosts;
pub use workload::Aftermath;

use std::collections::{BTreeMap, VecDeque};

use nvme_spec::Sqe;
use nvme_spec::fabrics::{ConnectAttributes, ConnectData, PropertySize};
use nvme_spec::nqn::to_field;
use nvme_spec::registers::{Cc, Register};
use nvme_spec::tcp::Framing;
use reactors::Nanos;
use zerocopy::IntoBytes;

use crate::addresses::host_address;
use crate::appliance::Held;
use crate::fabric::RdmaNetwork;
use crate::faults::Fault;
use crate::figures::Figures;
use crate::history::Moment;
use crate::judge::{Extent, Judge, Violation};
use crate::limits::RateJudge;
use crate::memory::{MemoryBound, QueuePairBound};
use crate::network::{Listener, NetworkBehaviour, WireId};
use crate::paces::PaceJudge;
use crate::plan::{SUBSYSTEMS, ServedConfig, host_name};
use crate::random::Random;
use crate::storage::Storage;
use crate::store::SimStore;
use crate::swarm::{HostShape, Swarm};
use crate::trace::Trace;
use admin::{AdminState, AdminStep, CommandKey};
use ana::AnaHostState;
use authenticating::AuthenticationStep;
use connection::{Connection, ConnectionShape, ConnectionTransport, Sending, Transfer};
use events::{EventLog, EventState};
use fused::{FusedPart, Pair};
use invalid::Refusal;
use notices::NoticeState;
use probes::Probe;
use rdma::{ConnectionRequest, RdmaTransportEnd};
use reserving::ReserveStep;
use tcp::TcpTransportEnd;

/// Entries of the admin queue of a host.
pub const ADMIN_DEPTH: u16 = 32;
/// Maximum time after which a host without a controller connects again.
const RETRY_MAX: Nanos = Nanos::from_millis(400);
/// Maximum number of lost writes that a host repeats with other data.
const RETRIES_MAX: usize = 16;
/// Maximum number of ranges with lost writes that a host reads often.
const WATCHED_MAX: usize = 4;
/// Interval at which a host reads CSTS while it waits for its controller.
const READY_POLL: Nanos = Nanos::from_millis(1);
/// The interval after a long wait.
const READY_POLL_MAX: Nanos = Nanos::from_millis(100);
/// Interval at which a host checks for late responses.
const DEADLINE_CHECK: Nanos = Nanos::from_millis(50);
/// Maximum time to an undisturbed response, whatever happens to other hosts, connections and disks.
pub const LATENCY_MAX: Nanos = Nanos::from_secs(6);

/// Maximum time for which commands of earlier controllers in devices delay a new controller (Base
/// 2.1 §5.1.13.2.1, CQT), whatever devices do, including delays of networks and polls.
const QUIESCE_MAX: Nanos = Nanos::from_secs(62);

/// Time after which the former state of a namespace is no longer visible after a change.
const SETTLING_TIME: Nanos = Nanos::from_secs(1);

/// The part of the world that hosts see.
pub struct HostEnv<'a> {
    /// The judge of data.
    pub judge: &'a mut Judge,
    /// The current time.
    pub now: Nanos,
    /// Listeners over TCP, by number.
    pub listeners: &'a [Listener],
    /// The behaviour of the network.
    pub network: NetworkBehaviour,
    /// The RDMA network, if hosts use it.
    pub rdma: Option<&'a RdmaNetwork>,
    /// The parameters of the run.
    pub swarm: &'a Swarm,
    /// The current configuration.
    pub serving: &'a ServedConfig,
    /// The disks, to look for a host's writes.
    pub disks: &'a [Storage],
    /// By disk: when its namespace was last added or removed.
    pub namespace_changed: &'a [Nanos],
    /// By host name and disk: when its mask last changed.
    pub mask_changed: &'a [Vec<Nanos>],
    /// By host name: when its keys last changed.
    pub keys_changed: &'a [Nanos],
    /// By disk: whether it was pulled out, as far as the control thread may know.
    pub disk_gone: &'a [bool],
    /// By host: when its subsystem last became reachable or unreachable.
    pub permission_changed: &'a [Nanos],
    /// By host: when a fence last held back its commands because of its lost writes.
    pub fenced: &'a [Nanos],
    /// By host: when its next controller last exceeded the share of its name or address.
    pub at_share: &'a mut [Nanos],
    /// When anonymous hosts last had controllers that are reserved for hosts that exports name: after
    /// a change of the configuration, until they leave.
    pub crowded_out_at: &'a mut Nanos,
    /// By host: its controller's identifier, 0 without one.
    pub controllers: &'a mut [u16],
    /// The store of reservations.
    pub store: &'a SimStore,
    /// By disk: how often its reservations could not be stored.
    pub store_failures: &'a [u64],
    /// By disk: whether its requests may fail.
    pub disk_fails: &'a [bool],
    /// Whether requests of any disk could fail earlier; an event that reports this may still be
    /// pending.
    pub disk_failed: bool,
    /// By disk: until when its completions may be late; the usual latency follows.
    pub disk_disturbed: &'a [Nanos],
    /// See [`Environment::memory_gone`](crate::environment::Environment::memory_gone).
    pub memory_gone: &'a [Nanos],
    /// The same for everything that needs memory.
    pub memory_disturbed: Nanos,
    /// Until when requests are not admitted, because of a hand-over to a new process.
    pub held_until: Nanos,
    /// When a new process last began to serve.
    pub handed_over: Nanos,
    /// When each connection began to occupy memory without using it.
    pub occupied_at: &'a mut Vec<Nanos>,
    /// Whether the appliance is shutting down, so that connections may end.
    pub stopping: bool,
    /// Whether a configuration change is in progress.
    pub changing: bool,
    /// When the last change ended.
    pub changed_at: Nanos,
    /// Whether the power is to fail now, because data was just made durable.
    pub power_wanted: &'a mut bool,
    /// The judge of rate limits.
    pub rates: &'a mut RateJudge,
    /// Judges the paces of exports.
    pub paces: &'a mut PaceJudge,
    /// Counters of the run.
    pub figures: &'a mut Figures,
    /// Trace of the run.
    pub trace: &'a mut Trace,
}

/// The kind of an I/O command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoKind {
    Read,
    Write,
    WriteZeroes,
    Deallocate,
    Compare,
    Flush,
    Copy,
}

/// An I/O command.
#[derive(Clone, Debug)]
struct Io {
    kind: IoKind,
    extents: Vec<Extent>,
    /// The source ranges of a Copy across namespaces.
    sources: Vec<Extent>,
    fua: bool,
    /// Whether its success means that the written data is durable.
    durable: bool,
    /// The version of a write.
    version: u64,
    began: Moment,
    /// The expected content of a comparison.
    expected: Vec<Option<u64>>,
    damaged: bool,
    aborted: bool,
    /// It failed, or another command with the same identifier failed.
    ambiguous: bool,
    /// Its part in a fused operation.
    fused: Option<FusedPart>,
}

/// A command that the host has sent.
#[derive(Clone, Debug)]
enum Command {
    Connect,
    /// Part of an authentication.
    Authenticate(AuthenticationStep),
    /// It must be refused, because the host is not authenticated.
    Premature,
    Enable,
    Disable,
    Status,
    Queues,
    EventMask,
    EventRequest,
    ReadLog(EventLog),
    KeepAlive,
    /// Aborts this command, or a nonexistent one.
    Abort(Option<CommandKey>),
    Disconnect,
    Admin(AdminStep),
    DiscoveryLog,
    /// It must be refused with this status.
    Invalid(Refusal),
    /// Its header was damaged on the wire, so it has no response.
    Damaged,
    /// It must not succeed, for this reason, and may remain without a response.
    Hopeless(&'static str),
    /// Every result is correct.
    Ignored,
    Reserve(ReserveStep),
    Io(Io),
}

/// The state of a host with respect to its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has no connection until this time.
    Down { until: Nanos },
    /// It connects the admin queue and enables the controller.
    Starting,
    /// It waits for this value of CSTS.RDY.
    AwaitingReady { ready: bool },
    /// It connects the I/O queues.
    Opening,
    /// It is in service.
    ServedConfig,
    /// It has set CC.SHN and waits for CSTS.SHST.
    ShuttingDown,
}

/// A simulated host.
pub struct Host {
    number: usize,
    shape: HostShape,
    random: Random,
    phase: Phase,
    admin: Option<Connection>,
    io: Vec<Connection>,
    cntlid: u16,
    /// When its admin queue was opened.
    opened_at: Nanos,
    /// When its controller was enabled last.
    enabled_at: Moment,
    /// The time of `enabled_at`.
    enable_sent_at: Nanos,
    /// When CC.EN was last changed.
    configured_at: Nanos,
    /// Ranges of lost writes, which it writes again with other data.
    retries: Vec<Extent>,
    /// Ranges of the latest lost writes, which it reads more often than others.
    watched: VecDeque<Extent>,
    poll_status_at: Option<Nanos>,
    keep_alive_at: Option<Nanos>,
    /// Set if it sends nothing any more: when the target must have ended the association.
    silent_until: Option<Nanos>,
    events: EventState,
    ana: AnaHostState,
    /// Compare and Writes in flight, by the version of the Write.
    pairs: BTreeMap<u64, Pair>,
    notices: NoticeState,
    /// Writes whose queues a reset ends. They are over when the controller is not ready any more.
    ending_writes: Vec<Io>,
    deadlines_checked_at: Nanos,
    /// Connections with a Connect that must be refused.
    probes: Vec<Probe>,
    admin_state: AdminState,
    /// The Keep Alive Timeout of its Connect.
    configured_keep_alive: Nanos,
    /// Until when another path of the same host may hold the whole memory share of the host.
    greedy_until: Nanos,
    /// Until when the target may keep memory for it: the kernel holds one of its writes, or has not
    /// noticed that its connection is gone.
    memory_kept_until: Nanos,
    /// When it last aborted commands.
    aborted_at: Option<Nanos>,
    /// By disk: the namespace identifier that the host uses, if it knows it.
    nsids: Option<Vec<u32>>,
}

impl Host {
    /// Host `number` of a seed, without a connection.
    #[must_use]
    pub fn new(number: usize, shape: HostShape, seed: u64) -> Self {
        Self {
            number,
            shape,
            random: Random::new(seed, 0x100 + number as u64),
            phase: Phase::Down { until: Nanos::ZERO },
            admin: None,
            io: Vec::new(),
            cntlid: 0,
            opened_at: Nanos::ZERO,
            enabled_at: Moment::default(),
            enable_sent_at: Nanos::ZERO,
            configured_at: Nanos::ZERO,
            retries: Vec::new(),
            watched: VecDeque::new(),
            poll_status_at: None,
            keep_alive_at: None,
            silent_until: None,
            events: EventState::default(),
            ana: AnaHostState::default(),
            pairs: BTreeMap::new(),
            notices: NoticeState::default(),
            ending_writes: Vec::new(),
            deadlines_checked_at: Nanos::ZERO,
            probes: Vec::new(),
            admin_state: AdminState::default(),
            configured_keep_alive: shape.keep_alive,
            greedy_until: Nanos::ZERO,
            memory_kept_until: Nanos::ZERO,
            aborted_at: None,
            nsids: None,
        }
    }

    /// Whether its controller executes I/O.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.phase == Phase::ServedConfig && self.silent_until.is_none()
    }

    /// The namespace identifier that the host uses for a disk: that of the time when it attached,
    /// because a target disconnects the hosts of disks that swap their identifiers.
    fn nsid(&self, env: &HostEnv<'_>, disk: usize) -> u32 {
        self.nsids.as_ref().unwrap_or(&env.serving.nsids)[disk]
    }

    /// Whether it knows the disk of each namespace. A host that attaches during a change that may
    /// be undone waits for the end of the change.
    fn knows_disks(&self) -> bool {
        self.nsids.is_some()
    }

    /// Whether it can send I/O to its disks.
    #[must_use]
    pub fn can_reach_disks(&self) -> bool {
        self.is_serving() && self.knows_disks()
    }

    /// Reads the disk of each namespace, unless that may change now.
    fn learn_disks(&mut self, env: &HostEnv<'_>) {
        let may_change = env.changing && env.swarm.faults.has(Fault::Swap);
        if !may_change {
            self.nsids = Some(env.serving.nsids.clone());
        }
    }

    /// Whether it connects its admin queue.
    #[must_use]
    pub fn is_connecting(&self) -> bool {
        self.phase == Phase::Starting
    }

    /// Whether it uses RDMA.
    #[must_use]
    pub fn uses_rdma(&self) -> bool {
        self.shape.rdma
    }

    /// Whether it waits for a change of CSTS.RDY.
    #[must_use]
    pub fn awaits_readiness(&self) -> bool {
        matches!(self.phase, Phase::AwaitingReady { .. })
    }

    /// Whether it has no outstanding I/O.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let waits = self.io.iter().any(|it| it.outstanding().next().is_some());
        !waits && self.probes.is_empty()
    }

    /// Its resources in the appliance.
    #[must_use]
    pub fn held(&self) -> Held {
        let admin_queues = usize::from(self.admin.is_some());
        let io_queues = self.io.len();
        Held {
            admin_queues,
            io_queues,
        }
    }

    /// Whether unprocessed data has arrived at the target.
    #[must_use]
    pub fn waits_for_target(&self) -> bool {
        let probes = self.probes.iter().map(|it| &it.connection);
        let mut connections = self.admin.iter().chain(&self.io).chain(probes);
        connections.any(Connection::waits_for_target)
    }

    fn framing(&self) -> Framing {
        Framing {
            header_digest: self.shape.header_digest,
            data_digest: self.shape.data_digest,
            alignment_z: self.shape.alignment_z,
        }
    }

    fn connections(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.admin.iter_mut().chain(&mut self.io)
    }

    /// The memory bounds of its connections.
    pub fn memory_bounds(&self) -> impl Iterator<Item = (WireId, MemoryBound)> {
        let connections = self.admin.iter().chain(&self.io);
        connections.filter_map(Connection::memory_bound)
    }

    /// The memory bounds of its connections over RDMA.
    pub fn queue_pair_bounds(&self) -> impl Iterator<Item = QueuePairBound> {
        let connections = self.admin.iter().chain(&self.io);
        connections.filter_map(Connection::queue_pair_bound)
    }

    /// Opens a connection for queue `qid`.
    fn open(&mut self, env: &mut HostEnv<'_>, qid: u16) -> Connection {
        let mut random = Random::new(self.random.bits(), 0);
        env.figures.connections += 1;
        let slow = env.swarm.faults.has(Fault::SlowWriter);
        let shape = ConnectionShape {
            qid,
            depth: if qid == 0 {
                ADMIN_DEPTH
            } else {
                self.shape.depth
            },
            framing: self.framing(),
            flow_control: self.shape.flow_control,
            in_capsule_bytes: env.swarm.in_capsule_bytes as usize,
            transfer_max: env.swarm.transfer_max,
            is_limited: env.swarm.faults.has(Fault::Limit) || env.swarm.faults.has(Fault::Pace),
            write_delay_max: if slow {
                Nanos::from_millis(50)
            } else {
                Nanos::ZERO
            },
        };
        let number = self.number;
        env.trace
            .note(env.now, format_args!("host {number} opens queue {qid}"));
        let transport = match env.rdma.filter(|_| self.shape.rdma) {
            None => {
                let wire = env.listeners[self.shape.listener()].connect(
                    host_address(number),
                    env.network,
                    random.clone(),
                );
                ConnectionTransport::Tcp(TcpTransportEnd::open(wire, shape.framing))
            }
            Some(network) => {
                env.figures.rdma_connections += 1;
                let malformed = env.swarm.faults.has(Fault::Malformed);
                let call = ConnectionRequest {
                    host: number,
                    shape,
                    cntlid: self.cntlid,
                    windows: self.shape.windows,
                    records_reads: env.swarm.has_scarce_memory(),
                    begins_wrong: (malformed && random.permille(200)).then(|| random.below(3)),
                };
                ConnectionTransport::Rdma(Box::new(RdmaTransportEnd::open(network, call)))
            }
        };
        let mut connection = Connection::new(transport, shape, random, env.now);
        // Connections of vanished hosts may occupy a reactor until their keep-alive expires.
        let connections = env.listeners.iter().map(Listener::connections);
        connection.excused = connections.sum::<usize>() > env.swarm.limits.connections;
        connection
    }

    fn connect_command(&self, qid: u16, depth: u16) -> (Sqe, Vec<u8>) {
        let attributes =
            ConnectAttributes::new().with_disable_sq_flow_control(!self.shape.flow_control);
        let keep_alive = if qid == 0 {
            self.shape.keep_alive.as_millis() as u32
        } else {
            0
        };
        let cntlid = if qid == 0 { 0xFFFF } else { self.cntlid };
        let field = |name: &str| to_field(name).unwrap_or_default();
        let data = ConnectData::new(
            self.host_id(),
            cntlid,
            field(SUBSYSTEMS[self.shape.subsystem]),
            field(&host_name(self.shape.identity)),
        );
        let sqe = Sqe::connect_queue(qid, depth - 1, attributes, keep_alive);
        (sqe, data.as_bytes().to_vec())
    }

    fn host_id(&self) -> [u8; 16] {
        [self.shape.identity as u8 + 1; 16]
    }

    /// Sends an admin command without data, if the admin queue has room.
    fn send_admin(&mut self, env: &mut HostEnv<'_>, sqe: Sqe, command: Command) -> bool {
        self.send_admin_moving(env, sqe, command, Transfer::None)
    }

    /// Sends an admin command, if the admin queue has room. Returns whether it did.
    fn send_admin_moving(
        &mut self,
        env: &mut HostEnv<'_>,
        sqe: Sqe,
        command: Command,
        transfer: Transfer,
    ) -> bool {
        let number = self.number;
        if let Some(admin) = &mut self.admin
            && admin.room() > 0
            && !admin.closing
            && self.silent_until.is_none()
        {
            env.trace
                .note(env.now, format_args!("host {number} sends {command:?}"));
            let sending = Sending {
                transfer,
                ..Sending::plain(sqe, command)
            };
            admin.submit(sending, env.now);
            self.keep_alive_at = Some(env.now + Nanos(self.shape.keep_alive.as_nanos() / 3));
            return true;
        }
        false
    }

    fn set_configuration(&mut self, env: &mut HostEnv<'_>, enable: bool) {
        self.reset_events();
        self.forget_features();
        self.configured_at = env.now;
        if !enable {
            self.reset_ana(env.now);
            self.reset_notices(env.now);
        }
        let cc = if enable {
            Cc::enabled_nvm()
        } else {
            Cc::enabled_nvm().with_en(false)
        };
        let sqe = Sqe::set_property(
            Register::CC.0,
            PropertySize::BYTES_4,
            u64::from(cc.into_bits()),
        );
        let command = if enable {
            self.enabled_at = env.judge.moment();
            self.enable_sent_at = env.now;
            Command::Enable
        } else {
            Command::Disable
        };
        self.send_admin(env, sqe, command);
    }

    /// The next time at which it acts on its own.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let down = match self.phase {
            Phase::Down { until } => Some(until),
            Phase::Starting
            | Phase::AwaitingReady { .. }
            | Phase::Opening
            | Phase::ServedConfig
            | Phase::ShuttingDown => None,
        };
        let keep_alive = self
            .keep_alive_at
            .filter(|_| self.shape.keep_alive > Nanos::ZERO && self.silent_until.is_none());
        let connections = self.admin.iter().chain(&self.io);
        let network = connections.map(Connection::next_due);
        let own = [
            self.poll_status_at,
            self.next_probe(),
            self.next_event_step(),
            self.next_end_of_misuse(),
        ];
        [down, keep_alive]
            .into_iter()
            .chain(own)
            .chain(network)
            .flatten()
            .min()
    }

    fn violation(&self, env: &mut HostEnv<'_>, what: &str) -> Violation {
        let text = format!("host {}: {what}", self.number);
        env.trace.note(env.now, format_args!("VIOLATION {text}"));
        Violation::Rule(text)
    }
}
