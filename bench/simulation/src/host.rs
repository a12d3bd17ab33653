//! A simulated host: connects, enables its controller, keeps it alive, sends I/O, and misbehaves
//! when told to.
//!
//! Everything that it sees is judged: data by the [`Judge`], answers, closes
//! and delays by whether anything excuses them.

mod admin;
mod answers;
mod connection;
mod events;
mod explorer;
mod flood;
mod greedy;
mod invalid;
mod probes;
mod rdma;
mod session;
mod tcp;
mod twins;
mod waiting;
mod workload;
mod wrong_data;

pub use connection::Vanished;
pub use explorer::Explorer;
pub use workload::Aftermath;

use std::collections::VecDeque;

use nvme_spec::Sqe;
use nvme_spec::fabrics::{ConnectAttributes, ConnectData, PropertySize};
use nvme_spec::nqn::to_field;
use nvme_spec::registers::{Cc, Register};
use nvme_spec::tcp::Framing;
use reactors::Nanos;
use zerocopy::IntoBytes;

use crate::appliance::Held;
use crate::fabric::RdmaNetwork;
use crate::figures::Figures;
use crate::history::Moment;
use crate::judge::{Extent, Judge, Violation};
use crate::memory::MemoryBound;
use crate::network::{Listener, NetworkTemper, WireId};
use crate::plan::{SUBSYSTEMS, Serving, host_name};
use crate::random::Random;
use crate::storage::Storage;
use crate::swarm::{Fault, HostShape, Swarm};
use crate::trace::Trace;
use admin::{AdminState, AdminStep, CommandKey};
use connection::{Connection, ConnectionShape, Line, Sending, Transfer};
use events::{EventLog, EventState};
use invalid::Refusal;
use probes::Probe;
use rdma::{Call, RdmaLine};
use tcp::TcpLine;

/// Entries of a host's admin queue.
pub const ADMIN_DEPTH: u16 = 32;
/// A host that lost its controller tries again after so long at most.
const RETRY_MAX: Nanos = Nanos::from_millis(400);
/// Lost writes that a host sends again, with other data, at most.
const RETRIES_MAX: usize = 16;
/// Ranges of lost writes that a host looks at often, at most.
const WATCHED_MAX: usize = 4;
/// How often a host asks whether its controller is ready.
const READY_POLL: Nanos = Nanos::from_millis(1);
/// And how often where that takes long.
const READY_POLL_MAX: Nanos = Nanos::from_millis(100);
/// How often a host looks for answers that are late.
const DEADLINE_CHECK: Nanos = Nanos::from_millis(50);
/// An answer that nothing delays takes no longer than this, whatever other hosts, connections and
/// disks suffer.
pub const LATENCY_MAX: Nanos = Nanos::from_secs(6);

/// What earlier controllers of a host left in devices keeps a new one waiting for no longer than
/// this (Base 2.1 §5.1.13.2.1, CQT), whatever devices do; with what networks and polls may add.
const QUIESCE_MAX: Nanos = Nanos::from_secs(62);

/// What a namespace was before a change can be seen no longer after this.
const SETTLED: Nanos = Nanos::from_secs(1);

/// What hosts stand on: the rest of the world, as far as they see it.
pub struct Ground<'a> {
    /// The judge of data.
    pub judge: &'a mut Judge,
    /// The present time.
    pub now: Nanos,
    /// Where connections are made, by number.
    pub listeners: &'a [Listener],
    /// How the network behaves.
    pub network: NetworkTemper,
    /// Where connections are made over RDMA, if anybody does.
    pub rdma: Option<&'a RdmaNetwork>,
    /// What the seed turned on.
    pub swarm: &'a Swarm,
    /// What is configured.
    pub serving: &'a Serving,
    /// The disks, for what can be seen in them of a host's writes.
    pub disks: &'a [Storage],
    /// By disk: when its namespace last came or went.
    pub namespace_changed: &'a [Nanos],
    /// By disk: whether it was pulled out, as far as the control thread may know.
    pub disk_gone: &'a [bool],
    /// By host: when it last came to reach its subsystem, or no longer did.
    pub permission_changed: &'a [Nanos],
    /// By host: when its commands were last held back because of what it had lost.
    pub fenced: &'a [Nanos],
    /// By host: its controller's identifier, 0 without one.
    pub controllers: &'a mut [u16],
    /// By disk: whether its requests may fail.
    pub disk_fails: &'a [bool],
    /// Whether any could fail in a time that is over: an event of it may still be on its way.
    pub disk_failed: bool,
    /// By disk: its answers may be late until then, and for the usual time after.
    pub disk_disturbed: &'a [Nanos],
    /// The same for everything that needs memory.
    pub memory_disturbed: Nanos,
    /// The appliance is on its way down, so connections may end.
    pub stopping: bool,
    /// A change of the configuration is being carried out.
    pub changing: bool,
    /// When the last one was over.
    pub changed_at: Nanos,
    /// The power is to fail now, because something was made durable.
    pub power_wanted: &'a mut bool,
    /// What is counted.
    pub figures: &'a mut Figures,
    /// What is told.
    pub trace: &'a mut Trace,
}

/// What an I/O command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoKind {
    Read,
    Write,
    WriteZeroes,
    Deallocate,
    Compare,
    Flush,
}

/// An I/O command.
#[derive(Clone, Debug)]
struct Io {
    kind: IoKind,
    extents: Vec<Extent>,
    fua: bool,
    /// Its success says that what it wrote is durable.
    durable: bool,
    /// Of a write: its version.
    version: u64,
    began: Moment,
    /// Of a comparison.
    expected: Vec<Option<u64>>,
    damaged: bool,
    aborted: bool,
    /// It failed, or another command with its identifier did.
    ambiguous: bool,
}

/// A command, as the host remembers it.
#[derive(Clone, Debug)]
enum Command {
    Connect,
    Enable,
    Disable,
    Status,
    Queues,
    EventMask,
    EventRequest,
    ReadLog(EventLog),
    KeepAlive,
    /// Of this command, or of none.
    Abort(Option<CommandKey>),
    Disconnect,
    Admin(AdminStep),
    DiscoveryLog,
    /// It must be refused so.
    Invalid(Refusal),
    /// Its header was damaged on the way: there is no answer to it.
    Damaged,
    /// It must not succeed, for this reason, and may stay without an answer.
    Hopeless(&'static str),
    /// However it ends is right.
    Ignored,
    Io(Io),
}

/// Where a host stands with its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Without a connection, until then.
    Down { until: Nanos },
    /// The admin queue is being connected, the controller enabled.
    Starting,
    /// Waits for CSTS.RDY to be this.
    AwaitingReady { ready: bool },
    /// The I/O queues are being connected.
    Opening,
    /// In service.
    Serving,
    /// CC.SHN is set: waits for CSTS.SHST.
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
    /// The time of it.
    enable_sent_at: Nanos,
    /// When CC.EN was last changed.
    configured_at: Nanos,
    /// Where writes were lost that it sends again with other data.
    retries: Vec<Extent>,
    /// Where the latest writes were lost, which it looks at more often than elsewhere.
    watched: VecDeque<Extent>,
    poll_status_at: Option<Nanos>,
    keep_alive_at: Option<Nanos>,
    /// Sends nothing any more: by then the target must have ended the association.
    silent_until: Option<Nanos>,
    events: EventState,
    /// Writes whose queues a reset is ending: once the controller is not ready they are over.
    ending_writes: Vec<Io>,
    deadlines_checked_at: Nanos,
    /// Connections whose Connect must be refused.
    probes: Vec<Probe>,
    admin_state: AdminState,
    /// Keep Alive Timeout of Connect.
    configured_keep_alive: Nanos,
    /// Until then another path of the same host may hold all memory that the host may have.
    greedy_until: Nanos,
    /// By disk: the namespace identifier that the host knows it by, once it does.
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
            ending_writes: Vec::new(),
            deadlines_checked_at: Nanos::ZERO,
            probes: Vec::new(),
            admin_state: AdminState::default(),
            configured_keep_alive: shape.keep_alive,
            greedy_until: Nanos::ZERO,
            nsids: None,
        }
    }

    /// Whether its controller executes I/O.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.phase == Phase::Serving && self.silent_until.is_none()
    }

    /// The namespace identifier that the host knows a disk by: that of when it was attached, since a
    /// target disconnects the hosts of disks that swap theirs.
    fn nsid(&self, ground: &Ground<'_>, disk: usize) -> u32 {
        self.nsids.as_ref().unwrap_or(&ground.serving.nsids)[disk]
    }

    /// Whether it knows which disk each namespace is. One that is attached while a change goes on
    /// that may have to be undone waits for its end.
    fn knows_disks(&self) -> bool {
        self.nsids.is_some()
    }

    /// Whether it can send I/O, and knows where.
    #[must_use]
    pub fn can_reach_disks(&self) -> bool {
        self.is_serving() && self.knows_disks()
    }

    /// Looks which disk each namespace is, unless that may be about to change.
    fn learn_disks(&mut self, ground: &Ground<'_>) {
        let may_change = ground.changing && ground.swarm.faults.has(Fault::Swap);
        if !may_change {
            self.nsids = Some(ground.serving.nsids.clone());
        }
    }

    /// Whether it waits for a controller to be ready, or not to be any more.
    #[must_use]
    pub fn awaits_readiness(&self) -> bool {
        matches!(self.phase, Phase::AwaitingReady { .. })
    }

    /// Whether no I/O is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let waits = self.io.iter().any(|it| it.outstanding().next().is_some());
        !waits && self.probes.is_empty()
    }

    /// What it has of the appliance.
    #[must_use]
    pub fn held(&self) -> Held {
        let admin_queues = usize::from(self.admin.is_some());
        let io_queues = self.io.len();
        Held {
            admin_queues,
            io_queues,
        }
    }

    /// Whether something has arrived for the target that it has not taken.
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

    /// What the target may hold for its connections.
    pub fn memory_bounds(&self) -> impl Iterator<Item = (WireId, MemoryBound)> {
        let connections = self.admin.iter().chain(&self.io);
        connections.filter_map(Connection::memory_bound)
    }

    /// Opens a connection for queue `qid`.
    fn open(&mut self, ground: &mut Ground<'_>, qid: u16) -> Connection {
        let mut random = Random::new(self.random.bits(), 0);
        ground.figures.connections += 1;
        let slow = ground.swarm.faults.has(Fault::SlowWriter);
        let shape = ConnectionShape {
            qid,
            depth: if qid == 0 {
                ADMIN_DEPTH
            } else {
                self.shape.depth
            },
            framing: self.framing(),
            flow_control: self.shape.flow_control,
            in_capsule_bytes: ground.swarm.in_capsule_bytes as usize,
            transfer_max: ground.swarm.transfer_max,
            write_delay_max: if slow {
                Nanos::from_millis(50)
            } else {
                Nanos::ZERO
            },
        };
        let number = self.number;
        ground
            .trace
            .note(ground.now, format_args!("host {number} opens queue {qid}"));
        let line = match ground.rdma.filter(|_| self.shape.rdma) {
            None => {
                let wire =
                    ground.listeners[self.shape.listener()].connect(ground.network, random.clone());
                Line::Tcp(TcpLine::open(wire, shape.framing))
            }
            Some(network) => {
                ground.figures.rdma_connections += 1;
                let malformed = ground.swarm.faults.has(Fault::Malformed);
                let call = Call {
                    host: number,
                    shape,
                    cntlid: self.cntlid,
                    windows: self.shape.windows,
                    begins_wrong: (malformed && random.permille(200)).then(|| random.below(3)),
                };
                Line::Rdma(Box::new(RdmaLine::open(network, call)))
            }
        };
        let mut connection = Connection::new(line, shape, random, ground.now);
        // Those of hosts that vanished may fill a reactor until their keep-alive expires.
        let connections = ground.listeners.iter().map(Listener::connections);
        connection.excused = connections.sum::<usize>() > ground.swarm.limits.connections;
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

    /// Sends an admin command without data, if the admin queue takes one.
    fn send_admin(&mut self, ground: &mut Ground<'_>, sqe: Sqe, command: Command) -> bool {
        self.send_admin_moving(ground, sqe, command, Transfer::None)
    }

    /// Sends an admin command, if the admin queue takes one; whether it did.
    fn send_admin_moving(
        &mut self,
        ground: &mut Ground<'_>,
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
            ground
                .trace
                .note(ground.now, format_args!("host {number} sends {command:?}"));
            let sending = Sending {
                transfer,
                ..Sending::plain(sqe, command)
            };
            admin.submit(sending, ground.now);
            self.keep_alive_at = Some(ground.now + Nanos(self.shape.keep_alive.as_nanos() / 3));
            return true;
        }
        false
    }

    fn set_configuration(&mut self, ground: &mut Ground<'_>, enable: bool) {
        self.reset_events();
        self.forget_features();
        self.configured_at = ground.now;
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
            self.enabled_at = ground.judge.moment();
            self.enable_sent_at = ground.now;
            Command::Enable
        } else {
            Command::Disable
        };
        self.send_admin(ground, sqe, command);
    }

    /// When it wants a turn although nothing comes.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let down = match self.phase {
            Phase::Down { until } => Some(until),
            Phase::Starting
            | Phase::AwaitingReady { .. }
            | Phase::Opening
            | Phase::Serving
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
        ];
        [down, keep_alive]
            .into_iter()
            .chain(own)
            .chain(network)
            .flatten()
            .min()
    }

    fn violation(&self, ground: &mut Ground<'_>, what: &str) -> Violation {
        let text = format!("host {}: {what}", self.number);
        ground
            .trace
            .note(ground.now, format_args!("VIOLATION {text}"));
        Violation::Rule(text)
    }
}
