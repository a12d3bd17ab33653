//! A simulated host: connects, enables its controller, keeps it alive, sends I/O, and misbehaves
//! when told to.
//!
//! Everything that it sees is judged: data by the [`Judge`], answers, closes
//! and delays by whether anything excuses them.

mod answers;
mod connection;
mod rdma;
mod session;
mod tcp;
mod workload;

pub use connection::Vanished;
pub use workload::Aftermath;

use nvme_spec::Sqe;
use nvme_spec::fabrics::{ConnectAttributes, ConnectData, PropertySize};
use nvme_spec::nqn::to_field;
use nvme_spec::registers::{Cc, Register};
use nvme_spec::tcp::Framing;
use reactors::Nanos;
use zerocopy::IntoBytes;

use crate::appliance::CONNECTIONS_MAX;
use crate::fabric::RdmaNetwork;
use crate::figures::Figures;
use crate::history::Moment;
use crate::judge::{Extent, Judge, Violation};
use crate::network::{Listener, NetworkTemper};
use crate::plan::{SUBSYSTEMS, Serving, host_name};
use crate::random::Random;
use crate::swarm::{Fault, HostShape, Swarm};
use crate::trace::Trace;
use connection::{Connection, ConnectionShape, Line, Sending, Transfer};
use rdma::{Call, RdmaLine};
use tcp::TcpLine;

/// Entries of a host's admin queue.
const ADMIN_DEPTH: u16 = 32;
/// A host that lost its controller tries again after so long at most.
const RETRY_MAX: Nanos = Nanos::from_millis(400);
/// How often a host asks whether its controller is ready.
const READY_POLL: Nanos = Nanos::from_millis(1);
/// How often a host looks for answers that are late.
const DEADLINE_CHECK: Nanos = Nanos::from_millis(50);
/// An answer that nothing delays takes no longer than this, whatever other hosts, connections and
/// disks suffer.
pub const LATENCY_MAX: Nanos = Nanos::from_secs(6);

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
    /// By disk: when its namespace last came or went.
    pub namespace_changed: &'a [Nanos],
    /// By disk: whether it was pulled out, as far as the control thread may know.
    pub disk_gone: &'a [bool],
    /// By host: when it last came to reach its subsystem, or no longer did.
    pub permission_changed: &'a [Nanos],
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
    /// Of a write: its version.
    version: u64,
    began: Moment,
    /// Of a comparison.
    expected: Vec<Option<u64>>,
    damaged: bool,
    aborted: bool,
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
    ReadLog,
    KeepAlive,
    Abort,
    Disconnect,
    /// To a disk's namespace, and must be refused with this status.
    Invalid(usize, nvme_spec::Status),
    /// Its header was damaged on the way: there is no answer to it.
    Damaged,
    /// Its key opens no memory: it can not succeed.
    BadKey,
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
    poll_status_at: Option<Nanos>,
    keep_alive_at: Option<Nanos>,
    /// Sends nothing any more: by then the target must have ended the association.
    silent_until: Option<Nanos>,
    /// An event was reported whose log page is not read yet.
    event_unread: bool,
    /// A namespace event must have come by then.
    event_due: Option<Nanos>,
    /// Writes whose queues a reset is ending: once the controller is not ready they are over.
    ending_writes: Vec<Io>,
    deadlines_checked_at: Nanos,
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
            poll_status_at: None,
            keep_alive_at: None,
            silent_until: None,
            event_unread: false,
            event_due: None,
            ending_writes: Vec::new(),
            deadlines_checked_at: Nanos::ZERO,
        }
    }

    /// Whether it can send I/O.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.phase == Phase::Serving && self.silent_until.is_none()
    }

    /// Whether no I/O is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.io.iter().all(|it| it.outstanding().next().is_none())
    }

    /// Whether something has arrived for the target that it has not taken.
    #[must_use]
    pub fn waits_for_target(&self) -> bool {
        let mut connections = self.admin.iter().chain(&self.io);
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
        connection.excused = connections.sum::<usize>() > CONNECTIONS_MAX;
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
            [self.number as u8 + 1; 16],
            cntlid,
            field(SUBSYSTEMS[self.shape.subsystem]),
            field(&host_name(self.number)),
        );
        let sqe = Sqe::connect_queue(qid, depth - 1, attributes, keep_alive);
        (sqe, data.as_bytes().to_vec())
    }

    /// Sends an admin command without data, if the admin queue takes one.
    fn send_admin(&mut self, ground: &mut Ground<'_>, sqe: Sqe, command: Command) {
        self.send_admin_reading(ground, sqe, command, 0);
    }

    fn send_admin_reading(
        &mut self,
        ground: &mut Ground<'_>,
        sqe: Sqe,
        command: Command,
        bytes: usize,
    ) {
        let number = self.number;
        if let Some(admin) = &mut self.admin
            && admin.room() > 0
            && !admin.closing
            && self.silent_until.is_none()
        {
            let transfer = match bytes {
                0 => Transfer::None,
                bytes => Transfer::In(bytes),
            };
            ground
                .trace
                .note(ground.now, format_args!("host {number} sends {command:?}"));
            let sending = Sending {
                transfer,
                ..Sending::plain(sqe, command)
            };
            admin.submit(sending, ground.now);
            self.keep_alive_at = Some(ground.now + Nanos(self.shape.keep_alive.as_nanos() / 3));
        }
    }

    fn set_configuration(&mut self, ground: &mut Ground<'_>, enable: bool) {
        // A controller forgets at a reset what it has not told.
        self.event_due = None;
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
            Command::Enable
        } else {
            Command::Disable
        };
        self.send_admin(ground, sqe, command);
    }

    /// Sends an event request and asks for namespace events.
    fn ask_for_events(&mut self, ground: &mut Ground<'_>) {
        self.send_admin(ground, Sqe::async_event_request(), Command::EventRequest);
    }

    /// When it wants a turn although nothing comes.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let down = match self.phase {
            Phase::Down { until } => Some(until),
            Phase::Starting | Phase::AwaitingReady { .. } | Phase::Opening | Phase::Serving => None,
        };
        let keep_alive = self
            .keep_alive_at
            .filter(|_| self.shape.keep_alive > Nanos::ZERO && self.silent_until.is_none());
        let connections = self.admin.iter().chain(&self.io);
        let network = connections.map(Connection::next_due);
        [down, keep_alive, self.poll_status_at]
            .into_iter()
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
