//! A host of the discovery subsystem: it reads the discovery log and waits for its changes (Base
//! 2.1 §3.1.3.3, §5.1.12.3.1).
//!
//! The log must match the configuration, its generation counter must change with it, and an event
//! must report the change.

use nvme_spec::command::{FeatureId, LogPageId, LogPageSelect};
use nvme_spec::event::AsyncEvent;
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, ConnectData, PropertySize};
use nvme_spec::features::AsyncEventConfiguration;
use nvme_spec::log::{DiscoveryEntry, DiscoveryHeader, SubsystemType, TransportType};
use nvme_spec::nqn::{DISCOVERY_NQN, from_field, to_field};
use nvme_spec::registers::{Cc, Csts, Register};
use nvme_spec::tcp::Framing;
use nvme_spec::{Cqe, Sqe};
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use super::connection::{
    Connection, ConnectionShape, ConnectionTransport, Incoming, Outstanding, Sending, Transfer,
};
use super::tcp::TcpTransportEnd;
use super::{ADMIN_DEPTH, Command, HostEnv, READY_POLL, RETRY_MAX};
use crate::addresses::UNKNOWN_ADDRESS;
use crate::judge::Violation;
use crate::memory::MemoryBound;
use crate::network::{HostEnd, WireId};
use crate::plan::{SUBSYSTEMS, host_name};
use crate::random::Random;

/// Keep Alive Timeout.
const KEEP_ALIVE: Nanos = Nanos::from_secs(15);
/// Bytes of the log to read: its header and eleven entries.
const LOG_BYTES: usize = 12 << 10;
/// Time after which a configuration change is in the log and reported by an event.
const SETTLING_TIME: Nanos = Nanos::from_secs(3);
/// Maximum interval between reads of the log without an event.
const READ_INTERVAL: Nanos = Nanos::from_secs(1);

/// The subsystems over TCP in the log: name and service identifier.
type Shown = Vec<(String, String)>;

/// The state of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Down {
        until: Nanos,
    },
    Starting,
    ServedConfig,
    /// Permanently disconnected.
    Over,
}

/// A host of the discovery subsystem.
pub struct DiscoveryHost {
    /// The host whose name it uses.
    host: usize,
    random: Random,
    phase: Phase,
    connection: Option<Connection>,
    /// The listener that it is connected to.
    listener: usize,
    keep_alive_at: Nanos,
    poll_status_at: Option<Nanos>,
    read_at: Nanos,
    /// Its last log: generation, entries, and when it was requested.
    last: Option<(u64, Shown, Nanos)>,
    /// When it sent its outstanding event request.
    asked_at: Option<Nanos>,
}

impl DiscoveryHost {
    /// Creates one that uses the name of host `host`.
    #[must_use]
    pub fn new(host: usize, seed: u64) -> Self {
        Self {
            host,
            random: Random::new(seed, 0x400 + host as u64),
            phase: Phase::Down { until: Nanos::ZERO },
            connection: None,
            listener: 0,
            keep_alive_at: Nanos::ZERO,
            poll_status_at: None,
            read_at: Nanos::ZERO,
            last: None,
            asked_at: None,
        }
    }

    /// The memory bound of its connection.
    pub fn memory_bound(&self) -> Option<(WireId, MemoryBound)> {
        self.connection.as_ref().and_then(Connection::memory_bound)
    }

    /// Disconnects it permanently.
    pub fn retire(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            connection.finish();
        }
        self.phase = Phase::Over;
    }

    /// Handles the end of the appliance; generations may restart.
    pub fn crash(&mut self, now: Nanos) {
        if let Some(mut connection) = self.connection.take() {
            connection.cut();
        }
        self.last = None;
        self.drop_all(now);
    }

    fn drop_all(&mut self, now: Nanos) {
        if let Some(mut connection) = self.connection.take() {
            connection.finish();
        }
        self.asked_at = None;
        self.poll_status_at = None;
        if self.phase != Phase::Over {
            let until = now + Nanos(self.random.below(RETRY_MAX.as_nanos()));
            self.phase = Phase::Down { until };
        }
    }

    /// Whether unprocessed data has arrived at the target.
    #[must_use]
    pub fn waits_for_target(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(Connection::waits_for_target)
    }

    /// The next time at which it acts on its own.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let network = self.connection.as_ref().and_then(Connection::next_due);
        let own = match self.phase {
            Phase::Down { until } => Some(until),
            Phase::Starting => self.poll_status_at,
            Phase::ServedConfig => Some(self.keep_alive_at.min(self.read_at)),
            Phase::Over => None,
        };
        [network, own].into_iter().flatten().min()
    }

    /// Receives what has arrived, and performs the steps that are due. Returns whether something
    /// had arrived.
    ///
    /// # Errors
    /// A violation by the target.
    pub fn poll(&mut self, env: &mut HostEnv<'_>) -> Result<bool, Violation> {
        if let Phase::Down { until } = self.phase
            && until <= env.now
        {
            self.open(env);
        }
        let mut incoming = Vec::new();
        let moved = match &mut self.connection {
            Some(connection) => connection.poll(env.now, &mut incoming),
            None => return Ok(false),
        };
        let moved = moved.map_err(|what| self.violation(&what))?;
        for event in incoming {
            match event {
                Incoming::Initialised => self.connect(env),
                Incoming::Completed { outstanding, cqe } => {
                    self.completed(env, &outstanding, &cqe)?;
                }
                Incoming::Terminated(status) => {
                    return Err(self.violation(&format!("it was terminated with {status}")));
                }
                Incoming::Ended(HostEnd::Open) => {}
                Incoming::Ended(end) => {
                    self.check_end(env, end)?;
                    self.drop_all(env.now);
                }
            }
        }
        if self.poll_status_at.is_some_and(|at| at <= env.now) {
            self.poll_status_at = None;
            let sqe = Sqe::get_property(Register::CSTS.0, PropertySize::BYTES_4);
            self.send(env.now, sqe, Command::Status, 0);
        }
        if self.phase == Phase::ServedConfig {
            if self.keep_alive_at <= env.now {
                self.keep_alive_at = env.now + Nanos(KEEP_ALIVE.as_nanos() / 3);
                self.send(env.now, Sqe::keep_alive(), Command::KeepAlive, 0);
            }
            if self.read_at <= env.now {
                self.read_at = env.now + READ_INTERVAL + READ_INTERVAL;
                self.check_reported(env)?;
                if self.random.permille(300) {
                    self.read_log(env.now);
                }
            }
        }
        Ok(moved)
    }

    /// Checks the end of a connection. Discovery controllers of hosts that exports name, and that
    /// wait for events, are not evicted for others.
    fn check_end(&self, env: &HostEnv<'_>, end: HostEnd) -> Result<(), Violation> {
        let identity = env.swarm.hosts[self.host].identity;
        let hosts = env.swarm.hosts.iter().zip(&env.serving.hosts);
        let mut same = hosts.filter(|(host, _)| host.identity == identity);
        let is_named = same.any(|(_, listed)| *listed) && env.serving.names_hosts();
        let waits = self.asked_at.is_some_and(|at| at + SETTLING_TIME < env.now);
        let is_there = env.serving.listeners[self.listener];
        let is_settled = Self::is_settled(env, env.now) && is_there;
        if end == HostEnd::Cut || !is_settled || !is_named || !waits {
            return Ok(());
        }
        Err(self.violation("it was disconnected while it waited for events"))
    }

    fn open(&mut self, env: &HostEnv<'_>) {
        let random = Random::new(self.random.bits(), 0);
        let listener = self.random.below(env.swarm.tcp_listeners as u64) as usize;
        self.listener = listener;
        let wire = env.listeners[listener].connect(UNKNOWN_ADDRESS, env.network, random.clone());
        let shape = ConnectionShape {
            qid: 0,
            depth: ADMIN_DEPTH,
            framing: Framing::default(),
            flow_control: true,
            in_capsule_bytes: 0,
            transfer_max: LOG_BYTES,
            write_delay_max: Nanos::ZERO,
            is_limited: false,
        };
        let transport = ConnectionTransport::Tcp(TcpTransportEnd::open(wire, shape.framing));
        self.connection = Some(Connection::new(transport, shape, random, env.now));
        self.phase = Phase::Starting;
    }

    fn connect(&mut self, env: &HostEnv<'_>) {
        let field = |name: &str| to_field(name).unwrap_or_default();
        let host_id = [0x80 + self.host as u8; 16];
        let identity = env.swarm.hosts[self.host].identity;
        let host = field(&host_name(identity));
        let data = ConnectData::new(host_id, CNTLID_DYNAMIC, field(DISCOVERY_NQN), host);
        let keep_alive = KEEP_ALIVE.as_millis() as u32;
        let attributes = ConnectAttributes::new();
        let sqe = Sqe::connect_queue(0, ADMIN_DEPTH - 1, attributes, keep_alive);
        if let Some(connection) = &mut self.connection {
            connection.submit_connect(sqe, data.as_bytes().to_vec(), env.now);
        }
    }

    fn send(&mut self, now: Nanos, sqe: Sqe, command: Command, bytes: usize) {
        let Some(connection) = self.connection.as_mut().filter(|it| it.room() > 0) else {
            return;
        };
        let transfer = match bytes {
            0 => Transfer::None,
            bytes => Transfer::In(bytes),
        };
        let sending = Sending {
            transfer,
            ..Sending::plain(sqe, command)
        };
        connection.submit(sending, now);
    }

    fn read_log(&mut self, now: Nanos) {
        let select = LogPageSelect::new()
            .with_lid(LogPageId::DISCOVERY)
            .with_numd_z((LOG_BYTES / 4 - 1) as u32);
        let sqe = Sqe::log_page(0, select, 0);
        self.send(now, sqe, Command::DiscoveryLog, LOG_BYTES);
    }

    fn ask_for_events(&mut self, now: Nanos) {
        self.send(now, Sqe::async_event_request(), Command::EventRequest, 0);
        self.asked_at = Some(now);
    }

    fn completed(
        &mut self,
        env: &mut HostEnv<'_>,
        outstanding: &Outstanding,
        cqe: &Cqe,
    ) -> Result<(), Violation> {
        let now = env.now;
        if !cqe.status().is_success() {
            // There may be no free controller, and an appliance that stops ends its association.
            self.drop_all(now);
            return Ok(());
        }
        match outstanding.command {
            Command::Connect => {
                if let Some(connection) = &mut self.connection {
                    connection.queue.live = true;
                }
                let value = u64::from(Cc::enabled_nvm().into_bits());
                let sqe = Sqe::set_property(Register::CC.0, PropertySize::BYTES_4, value);
                self.send(now, sqe, Command::Enable, 0);
            }
            Command::Enable => self.poll_status_at = Some(now),
            Command::Status if !Csts::from_bits(cqe.dw0.get()).rdy() => {
                self.poll_status_at = Some(now + READY_POLL);
            }
            Command::Status => {
                let mask = AsyncEventConfiguration::new().with_discovery_log(true);
                let feature = FeatureId::ASYNC_EVENT_CONFIGURATION;
                let sqe = Sqe::set_feature(feature, 0, mask.into_bits());
                self.send(now, sqe, Command::EventMask, 0);
            }
            Command::EventMask => {
                self.phase = Phase::ServedConfig;
                self.keep_alive_at = now + Nanos(KEEP_ALIVE.as_nanos() / 3);
                self.read_at = now + READ_INTERVAL;
                self.ask_for_events(now);
                self.read_log(now);
            }
            Command::EventRequest => {
                let event = AsyncEvent::from_bits(cqe.dw0.get());
                if event != AsyncEvent::DISCOVERY_LOG_CHANGED {
                    return Err(self.violation(&format!("it received the event {event:?}")));
                }
                self.ask_for_events(now);
                self.read_log(now);
            }
            Command::DiscoveryLog => return self.check_log(env, outstanding),
            _ => {}
        }
        Ok(())
    }

    /// Whether it has the name of a host that may attach to a subsystem.
    fn is_allowed(&self, env: &HostEnv<'_>, subsystem: usize) -> bool {
        if env.serving.keys.any_host[subsystem] {
            return true;
        }
        let hosts = &env.swarm.hosts;
        let mut allowed = (0..hosts.len()).filter(|it| env.serving.hosts[*it]);
        allowed.any(|it| hosts[it].identity == hosts[self.host].identity)
    }

    /// The expected entries of the log while nothing changes.
    fn model(&self, env: &HostEnv<'_>) -> Shown {
        let serving = env.serving;
        let listeners = (0..env.swarm.tcp_listeners).filter(|it| serving.listeners[*it]);
        let services: Vec<String> = listeners
            .map(|it| crate::plan::tcp_address(it).port().to_string())
            .collect();
        let exported = (0..serving.subsystems.len()).filter(|it| serving.subsystems[*it]);
        let seen = exported.clone().filter(|it| self.is_allowed(env, *it));
        let mut names: Vec<&str> = seen.map(|it| SUBSYSTEMS[it]).collect();
        if exported.count() == 0 {
            names.push("nqn.2026-11.org.windlass:rest");
        }
        let mut shown = Shown::new();
        for name in names {
            let entries = services.iter();
            shown.extend(entries.map(|service| (name.to_owned(), service.clone())));
        }
        shown.sort();
        shown
    }

    /// Whether the configuration has been unchanged since `since` and for a while before.
    fn is_settled(env: &HostEnv<'_>, since: Nanos) -> bool {
        !env.changing && env.changed_at + SETTLING_TIME < since && !env.stopping
    }

    fn check_log(
        &mut self,
        env: &mut HostEnv<'_>,
        outstanding: &Outstanding,
    ) -> Result<(), Violation> {
        let short = || self.violation("a log page is shorter than requested");
        let (header, entries) =
            DiscoveryHeader::read_from_prefix(&outstanding.data).map_err(|_| short())?;
        let count = header.numrec.get() as usize;
        let entries = <[DiscoveryEntry]>::ref_from_prefix_with_elems(entries, count);
        let (entries, _) = entries.map_err(|_| short())?;
        let mut shown = Shown::new();
        for entry in entries {
            if entry.subtype == SubsystemType::NVM && entry.trtype == TransportType::TCP {
                let name = from_field(&entry.subnqn).unwrap_or_default().to_owned();
                shown.push((name, entry.trsvcid.to_string()));
            }
        }
        shown.sort();
        let generation = header.genctr.get();
        if let Some((before, was_shown, _)) = &self.last {
            let changed = *was_shown != shown;
            if generation < *before || (changed && generation == *before) {
                let what = format!(
                    "the discovery log went from generation {before} {was_shown:?} to \
                     {generation} {shown:?}"
                );
                return Err(self.violation(&what));
            }
        }
        let issued_at = outstanding.issued_at;
        let model = self.model(env);
        if Self::is_settled(env, issued_at) && model != shown {
            let what = format!("the discovery log shows {shown:?}, not {model:?}");
            return Err(self.violation(&what));
        }
        self.last = Some((generation, shown, issued_at));
        Ok(())
    }

    /// Checks that an event reported a change.
    fn check_reported(&mut self, env: &HostEnv<'_>) -> Result<(), Violation> {
        let Some((_, shown, read_at)) = &self.last else {
            return Ok(());
        };
        let asked = self.asked_at.is_some_and(|at| at < env.changed_at);
        let reads = self.connection.iter().flat_map(Connection::outstanding);
        let mut reads = reads.filter(|(_, it)| matches!(it.command, Command::DiscoveryLog));
        let unread = *read_at < env.changed_at && reads.next().is_none();
        if asked && unread && Self::is_settled(env, env.now) && *shown != self.model(env) {
            return Err(self.violation("no event reports the changed discovery log"));
        }
        Ok(())
    }

    fn violation(&self, what: &str) -> Violation {
        Violation::Rule(format!("the discovery host {}: {what}", self.host))
    }
}
