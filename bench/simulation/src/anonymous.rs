//! Anonymous hosts, which are not configured: they connect with arbitrary names to the discovery
//! subsystem and to exports that may reject them, up to every limit, and stay.
//!
//! The target reserves capacity for both kinds of controllers (README of the appliance, limits). A
//! discovery controller is admitted, unless too many that were replaced have not ended. It replaces
//! the controller that was idle longest, of those that no export names and that wait for no event.
//! Controllers of exports leave a part of the capacity to named hosts. The effects on configured
//! hosts are judged where these connect.

use std::collections::VecDeque;
use std::fmt::Display;

use nvme_host::pdu::Header;
use nvme_host_testing::Names;
use nvme_host_testing::pdu::{PduInbox, capsule, in_capsule};
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, PropertySize};
use nvme_spec::nqn::DISCOVERY_NQN;
use nvme_spec::registers::{Cc, Register};
use nvme_spec::tcp::{DigestFlags, Framing, IcReq};
use nvme_spec::{Sqe, Status};
use nvme_target::{ControllerSnapshot, DISCOVERY_CONTROLLERS_MAX};
use reactors::Nanos;
use zerocopy::IntoBytes;

use crate::addresses::{
    Admissions, Identity, Limits, SHARED_ADDRESSES, host_id, own_address, shared_address,
};
use crate::host::HostEnv;
use crate::judge::Violation;
use crate::network::{HostEnd, Wire};
use crate::plan::{SUBSYSTEMS, ServedConfig};
use crate::random::Random;

/// Hosts of an address that connect one after the other, after those that connect together.
const FLOOD_REST: usize = 24;
/// Controllers below the limit at which the hosts of an address begin to connect one after the
/// other: more than configured hosts have.
const FLOOD_GAP: usize = 14;
/// Hosts that connect from each of a few other addresses after these.
const BYSTANDERS: u64 = 3;
/// Maximum number of simultaneous hosts.
const HOSTS_MAX: usize = 220;
/// Number of hosts that connect together.
const CONNECTED_TOGETHER_MIN: u64 = 70;
const CONNECTED_TOGETHER_MAX: u64 = 140;
/// Number of hosts that connect immediately. The others follow after this delay, when some have
/// been idle for long.
const FIRST_WAVE: u64 = 62;
const SECOND_WAVE_AFTER: Nanos = Nanos::from_millis(1200);
/// Minimum and maximum time after which a host disconnects.
const STAY_MIN: Nanos = Nanos::from_secs(3);
const STAY_MAX: Nanos = Nanos::from_secs(8);
/// Share of hosts that wait for an event, per thousand.
const WANT_EVENTS_PERMILLE: u32 = 500;
/// Time after which a change is in effect and a disconnected host has no controller.
const SETTLING_TIME: Nanos = Nanos::from_secs(2);
/// Maximum time to a response without disturbance.
const RESPONSE_TIME_MAX: Nanos = Nanos::from_secs(6);
/// Difference between the last commands of two hosts below which it is undefined which was idle
/// longer.
const IDLE_SLACK: Nanos = Nanos::from_millis(500);
/// Entries of an admin queue; few, so that the limit of commands in execution does not apply.
const DEPTH: u16 = 4;
const ENABLE: u16 = 1;
const EVENT_REQUEST: u16 = 2;
const KEEP_ALIVE: u16 = 3;

/// The state of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The ICReq is sent.
    Initialising,
    /// The Connect command is sent.
    Connecting,
    /// It has a controller.
    Attached,
}

/// An anonymous host.
struct Anonymous {
    wire: Wire,
    inbox: PduInbox,
    identity: Identity,
    /// The subsystem of its export; `None` for the discovery subsystem.
    subsystem: Option<usize>,
    listener: usize,
    phase: Phase,
    /// When the current phase began.
    since: Nanos,
    /// When it was attached, or sent its last command since.
    commanded_at: Nanos,
    /// The previous value of `commanded_at`.
    commanded_before: Nanos,
    /// Whether it sends an event request after it has enabled its controller.
    wants_events: bool,
    /// When it sent its event request.
    awaits_event_since: Option<Nanos>,
    /// Whether its Keep Alive has no response yet.
    awaits_keep_alive: bool,
    leaves_at: Nanos,
}

impl Anonymous {
    fn is_attached_to_discovery(&self) -> bool {
        self.phase == Phase::Attached && self.subsystem.is_none()
    }

    fn is_connecting(&self) -> bool {
        self.phase != Phase::Attached
    }

    fn send(&mut self, sqe: Sqe, data: &[u8]) {
        let capsule = capsule(sqe.with_sgl(in_capsule(data)), data, Framing::default());
        self.wire.send(&capsule);
    }

    fn connect(&mut self, now: Nanos) {
        let subsystem = self.subsystem.map_or(DISCOVERY_NQN, |it| SUBSYSTEMS[it]);
        let names = Names {
            host: self.identity.name.clone(),
            host_id: host_id(self.identity.address),
            subsystem: subsystem.to_owned(),
        };
        let data = names.connect_data(CNTLID_DYNAMIC);
        let sqe = Sqe::connect_queue(0, DEPTH - 1, ConnectAttributes::new(), 0);
        self.send(sqe, data.as_bytes());
        (self.phase, self.since) = (Phase::Connecting, now);
    }
}

/// All anonymous hosts.
#[derive(Default)]
pub struct AnonymousHosts {
    hosts: Vec<Anonymous>,
    pending: Vec<PendingHost>,
    /// Hosts that connect one after the other.
    in_turn: VecDeque<PendingHost>,
    admissions: Admissions,
    /// When controllers ended, and whether each was a discovery controller.
    gone: Vec<(Nanos, bool)>,
    /// Controllers that the target ended recently.
    evicted: Vec<Evicted>,
    named: u64,
}

impl AnonymousHosts {
    /// Schedules more hosts, for discovery or for an export.
    pub fn connect_more(&mut self, env: &HostEnv<'_>, random: &mut Random) {
        let chosen = random.below(2 * env.swarm.subsystems as u64) as usize;
        let subsystem = (chosen < env.swarm.subsystems).then_some(chosen);
        for number in 0..random.between(CONNECTED_TOGETHER_MIN, CONNECTED_TOGETHER_MAX) {
            if self.hosts.len() + self.pending.len() >= HOSTS_MAX {
                return;
            }
            let at = match number < FIRST_WAVE {
                true => env.now,
                false => env.now + SECOND_WAVE_AFTER,
            };
            self.named += 1;
            let identity = Identity::new(name_of(self.named), own_address(self.named));
            let pending = PendingHost::new(env, identity, subsystem, random);
            self.pending.push(PendingHost { at, ..pending });
        }
    }

    /// Connects many hosts of one address, or one host many times from different addresses, up to
    /// the limit, and then some hosts of other addresses.
    pub fn flood(&mut self, env: &HostEnv<'_>, random: &mut Random) {
        let open = env
            .serving
            .keys
            .any_host
            .iter()
            .zip(&env.serving.subsystems);
        let open: Vec<usize> = open
            .enumerate()
            .filter(|(_, (is_open, is_there))| **is_open && **is_there)
            .map(|(number, _)| number)
            .collect();
        let most = Limits::of(env.serving).of_one_address();
        if open.is_empty() || !self.is_empty() || most + FLOOD_REST > HOSTS_MAX {
            return;
        }
        let subsystem = Some(random.pick(&open));
        let is_one_host = random.permille(300);
        let address = shared_address(random.below(SHARED_ADDRESSES));
        let name = name_of(self.named + 1);
        for number in 0..most - FLOOD_GAP + FLOOD_REST {
            self.named += 1;
            let identity = match is_one_host {
                true => Identity::new(name.clone(), own_address(self.named)),
                false => Identity::new(name_of(self.named), address),
            };
            let pending = PendingHost::new(env, identity, subsystem, random);
            if number < most - FLOOD_GAP {
                self.pending.push(pending);
            } else {
                self.in_turn.push_back(pending);
            }
        }
        for address in (0..SHARED_ADDRESSES).map(shared_address) {
            for _ in 0..BYSTANDERS {
                self.named += 1;
                let identity = Identity::new(name_of(self.named), address);
                let pending = PendingHost::new(env, identity, subsystem, random);
                self.in_turn.push_back(pending);
            }
        }
    }

    /// Judges the admissions of a turn of the target. `controllers`: those that exist now.
    ///
    /// # Errors
    /// A limit is exceeded.
    pub fn turn_ended(
        &mut self,
        env: &mut HostEnv<'_>,
        controllers: impl FnOnce() -> Vec<ControllerSnapshot>,
        is_host_connecting: bool,
    ) -> Result<(), Violation> {
        let hosts = self.hosts.iter_mut();
        let mut connecting = hosts
            .filter(|it| it.is_connecting() && it.subsystem.is_some())
            .map(|it| &mut it.identity)
            .peekable();
        if connecting.peek().is_none() && !is_host_connecting {
            self.admissions.pause();
            return Ok(());
        }
        self.admissions.turn_ended(env, &controllers(), connecting)
    }

    /// Connects the hosts that are due.
    fn connect_due(&mut self, env: &HostEnv<'_>) {
        let due = |it: &mut PendingHost| it.at <= env.now;
        let mut pending: Vec<PendingHost> = self.pending.extract_if(.., due).collect();
        if pending.is_empty() && !self.hosts.iter().any(Anonymous::is_connecting) {
            pending.extend(self.in_turn.pop_front());
        }
        for pending in pending {
            let PendingHost {
                at,
                listener,
                identity,
                subsystem,
                stays,
                wants_events,
                random,
            } = pending;
            let address = identity.address.into();
            let wire = env.listeners[listener].connect(address, env.network, random);
            wire.send(IcReq::new(0, DigestFlags::new(), 0).as_bytes());
            self.hosts.push(Anonymous {
                wire,
                inbox: PduInbox::default(),
                identity,
                subsystem,
                listener,
                phase: Phase::Initialising,
                since: env.now,
                commanded_at: Nanos::ZERO,
                commanded_before: Nanos::ZERO,
                wants_events,
                awaits_event_since: None,
                awaits_keep_alive: false,
                leaves_at: at.max(env.now) + stays,
            });
        }
    }

    /// Has some hosts send a command, so that others were idle longer.
    pub fn send_some_commands(&mut self, now: Nanos, random: &mut Random) {
        for host in &mut self.hosts {
            let sends = host.is_attached_to_discovery() && random.permille(300);
            if sends && !std::mem::replace(&mut host.awaits_keep_alive, true) {
                host.send(Sqe::keep_alive().with_cid(KEEP_ALIVE), &[]);
                host.commanded_before = std::mem::replace(&mut host.commanded_at, now);
            }
        }
    }

    /// Disconnects all hosts.
    pub fn disconnect_all(&mut self) {
        for host in self.hosts.drain(..) {
            host.wire.cut();
        }
        self.pending.clear();
        self.in_turn.clear();
        self.admissions.pause();
        self.gone.clear();
        self.evicted.clear();
    }

    /// Whether there are no hosts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.pending.is_empty() && self.in_turn.is_empty()
    }

    /// Whether unprocessed data has arrived at the target.
    #[must_use]
    pub fn waits_for_target(&self) -> bool {
        self.hosts.iter().any(|it| it.wire.waits_for_target())
    }

    /// The next time at which data arrives or a host connects or disconnects.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let dues = self.hosts.iter().map(|it| {
            let due = it.wire.next_due();
            due.map_or(it.leaves_at, |due| due.min(it.leaves_at))
        });
        dues.chain(self.pending.iter().map(|it| it.at)).min()
    }

    /// Receives at all hosts. Returns whether there was anything.
    ///
    /// # Errors
    /// A violation by the target.
    pub fn poll(&mut self, env: &mut HostEnv<'_>) -> Result<bool, Violation> {
        let now = env.now;
        self.gone.retain(|(at, _)| *at + SETTLING_TIME > now);
        self.check_evictions(now)?;
        self.connect_due(env);
        let mut moved = false;
        let mut at = 0;
        while at < self.hosts.len() {
            let host = &mut self.hosts[at];
            let inbox = host.inbox.buffer();
            let before = inbox.len();
            let end = host.wire.receive(inbox);
            moved |= inbox.len() > before || end != HostEnd::Open;
            let continues = self.take_pdus(env, at)?;
            if end != HostEnd::Open && continues {
                self.check_end(env, at)?;
            }
            let host = &self.hosts[at];
            let is_late = host.phase != Phase::Attached && host.since + RESPONSE_TIME_MAX < now;
            let since = env.changed_at.max(env.memory_disturbed);
            if is_late && since + RESPONSE_TIME_MAX < now && is_calm(env, host.listener) {
                let what = format!(
                    "{} is in {:?} without a response",
                    host.identity.name, host.phase
                );
                return Err(Violation::Rule(what));
            }
            if end == HostEnd::Open && continues && host.leaves_at > now {
                at += 1;
                continue;
            }
            let host = self.hosts.swap_remove(at);
            host.wire.cut();
            self.gone.push((now, host.subsystem.is_none()));
        }
        Ok(moved)
    }

    /// Processes complete PDUs. Returns whether the host continues.
    fn take_pdus(&mut self, env: &mut HostEnv<'_>, at: usize) -> Result<bool, Violation> {
        loop {
            let host = &mut self.hosts[at];
            let rule = |error: &dyn Display| Violation::Rule(error.to_string());
            let next = host.inbox.next_pdu().map_err(|error| rule(&error))?;
            let Some(pdu) = next else {
                return Ok(true);
            };
            let checked = pdu.check(Framing::default());
            match checked.map_err(|error| rule(&error))?.0 {
                Header::Initialized => host.connect(env.now),
                Header::Response(capsule) => {
                    let status = capsule.cqe.status();
                    if host.phase == Phase::Connecting {
                        if !self.connected(env, at, status)? {
                            return Ok(false);
                        }
                    } else if capsule.cqe.cid.get() == EVENT_REQUEST {
                        host.awaits_event_since = None;
                    } else if capsule.cqe.cid.get() == KEEP_ALIVE {
                        host.awaits_keep_alive = false;
                    } else if capsule.cqe.cid.get() == ENABLE
                        && status.is_success()
                        && host.wants_events
                    {
                        let request = Sqe::async_event_request().with_cid(EVENT_REQUEST);
                        host.send(request, &[]);
                        host.awaits_event_since = Some(env.now);
                        host.commanded_at = env.now;
                    }
                }
                Header::Termination(header) => {
                    let what =
                        format!("{} received {}: {header:?}", host.identity.name, pdu.kind());
                    return Err(Violation::Rule(what));
                }
                Header::Data(_) | Header::Request(_) => {
                    let what = format!("{} received {}", host.identity.name, pdu.kind());
                    return Err(Violation::Rule(what));
                }
            }
        }
    }

    /// Handles the response to a Connect. Returns whether the host is attached now.
    fn connected(
        &mut self,
        env: &mut HostEnv<'_>,
        at: usize,
        status: Status,
    ) -> Result<bool, Violation> {
        let host = &self.hosts[at];
        let (subsystem, began) = (host.subsystem, host.since);
        let is_settled = env.changed_at + SETTLING_TIME < began && is_calm(env, host.listener);
        let is_right = match subsystem {
            None => {
                let is_busy = status.is(Status::CONNECT_CONTROLLER_BUSY);
                status.is_success() || (is_busy && self.may_be_crowded())
            }
            Some(subsystem) => Self::is_right(env.serving, &host.identity, subsystem, status),
        };
        if is_settled && !is_right {
            let what = format!(
                "Connect of {:?} to {:?} completed with {status}, with {} in discovery and {} at exports",
                host.identity,
                subsystem,
                self.count(true),
                self.count(false),
            );
            return Err(Violation::Rule(what));
        }
        if !status.is_success() {
            return Ok(false);
        }
        let host = &mut self.hosts[at];
        host.phase = Phase::Attached;
        (host.since, host.commanded_at) = (env.now, env.now);
        host.commanded_before = env.now;
        let cc = u64::from(Cc::enabled_nvm().into_bits());
        let enable = Sqe::set_property(Register::CC.0, PropertySize::BYTES_4, cc);
        host.send(enable.with_cid(ENABLE), &[]);
        env.figures.anonymous_attached += 1;
        Ok(true)
    }

    /// Whether the status of a Connect to an export is correct for its configuration.
    fn is_right(
        serving: &ServedConfig,
        identity: &Identity,
        subsystem: usize,
        status: Status,
    ) -> bool {
        if !serving.subsystems[subsystem] {
            return !status.is_success();
        }
        if !serving.keys.any_host[subsystem] {
            return status.is(Status::CONNECT_INVALID_HOST);
        }
        // Too many controllers are found when they are admitted.
        let is_busy = status.is(Status::CONNECT_CONTROLLER_BUSY);
        status.is_success() || (is_busy && identity.may_be_refused(serving))
    }

    /// Whether so many discovery controllers were replaced and have maybe not ended that the target may
    /// refuse another one: it keeps at most as many of these as of others.
    fn may_be_crowded(&self) -> bool {
        let hosts = self.hosts.iter().filter(|it| it.subsystem.is_none());
        let gone = self.gone.iter().filter(|(_, is_discovery)| *is_discovery);
        hosts.count() + gone.count() + FLOOD_GAP >= 2 * DISCOVERY_CONTROLLERS_MAX
    }

    /// Number of controllers of these hosts, as far as they know.
    fn count(&self, of_discovery: bool) -> usize {
        let attached = self.hosts.iter().filter(|it| it.phase == Phase::Attached);
        attached
            .filter(|it| it.subsystem.is_none() == of_discovery)
            .count()
    }

    /// Checks whether the target may end this connection.
    fn check_end(&mut self, env: &HostEnv<'_>, at: usize) -> Result<(), Violation> {
        let host = &self.hosts[at];
        let is_settled = env.changed_at + SETTLING_TIME < env.now;
        if host.phase != Phase::Attached || !is_settled || !is_calm(env, host.listener) {
            return Ok(());
        }
        let wrong = |what: String| {
            Err(Violation::Rule(format!(
                "{} was disconnected{what}",
                host.identity.name
            )))
        };
        if host.subsystem.is_some() {
            return wrong(" by an export that allows it".to_owned());
        }
        let gone = self.gone.iter().filter(|(_, is_discovery)| *is_discovery);
        let connecting = self.hosts.iter().filter(|it| it.subsystem.is_none());
        let perhaps = connecting.count() + gone.count() + 1;
        if perhaps < DISCOVERY_CONTROLLERS_MAX {
            return wrong(format!(" with {perhaps} discovery controllers"));
        }
        // The target may not have received the last command.
        let is_recent = |at: Nanos| at + IDLE_SLACK > env.now;
        if host.awaits_event_since.is_some_and(is_recent) {
            return Ok(());
        }
        let waits = host.awaits_event_since.is_some();
        let idle_since = match is_recent(host.commanded_at) {
            true => host.commanded_before,
            false => host.commanded_at,
        };
        self.evicted.push(Evicted {
            at: env.now,
            name: host.identity.name.clone(),
            waits,
            idle_since,
        });
        Ok(())
    }

    /// Checks recent evictions: hosts that wait for no event are evicted first, and among equals
    /// the one that was idle longest.
    fn check_evictions(&mut self, now: Nanos) -> Result<(), Violation> {
        let attached = self.hosts.iter().filter(|it| it.is_attached_to_discovery());
        for evicted in &self.evicted {
            if evicted.at + IDLE_SLACK > now {
                continue;
            }
            let better = attached.clone().find(|it| {
                let waits = it.awaits_event_since.is_some();
                let was_idle_longer = it.commanded_at + IDLE_SLACK < evicted.idle_since;
                let was_there = it.commanded_at + IDLE_SLACK < evicted.at;
                let waits_less = evicted.waits && !waits && was_there;
                waits_less || (evicted.waits == waits && was_idle_longer)
            });
            if let Some(other) = better {
                let what = format!(
                    "{} was evicted after its command at {} (waiting for an event: {}), but {} with its \
                     last command at {} was not",
                    evicted.name,
                    evicted.idle_since,
                    evicted.waits,
                    other.identity.name,
                    other.commanded_at
                );
                return Err(Violation::Rule(what));
            }
        }
        self.evicted.retain(|it| it.at + IDLE_SLACK > now);
        Ok(())
    }
}

/// A host that is about to connect.
struct PendingHost {
    at: Nanos,
    listener: usize,
    identity: Identity,
    /// The subsystem of its export; `None` for the discovery subsystem.
    subsystem: Option<usize>,
    /// How long it stays.
    stays: Nanos,
    wants_events: bool,
    random: Random,
}

impl PendingHost {
    /// A host that connects now.
    fn new(
        env: &HostEnv<'_>,
        identity: Identity,
        subsystem: Option<usize>,
        random: &mut Random,
    ) -> Self {
        let stays = random.between(STAY_MIN.as_nanos(), STAY_MAX.as_nanos());
        Self {
            at: env.now,
            listener: random.below(env.swarm.tcp_listeners as u64) as usize,
            identity,
            subsystem,
            stays: Nanos(stays),
            wants_events: random.permille(WANT_EVENTS_PERMILLE),
            random: Random::new(random.bits(), 0),
        }
    }
}

/// The name of an anonymous host.
fn name_of(number: u64) -> String {
    format!("nqn.2026-11.org.windlass:anonymous{number}")
}

/// A discovery controller that was replaced by another one.
struct Evicted {
    at: Nanos,
    name: String,
    /// Whether it waited for an event.
    waits: bool,
    idle_since: Nanos,
}

/// Whether responses at a listener depend on nothing but the host itself.
fn is_calm(env: &HostEnv<'_>, listener: usize) -> bool {
    !env.stopping && !env.changing && env.serving.listeners[listener]
}
