//! Anonymous hosts, which are not configured: they connect with arbitrary names to the discovery
//! subsystem and to exports that may reject them, up to every limit, and stay.
//!
//! The target reserves capacity for both kinds of controllers (README of the appliance, limits). A
//! discovery controller is always admitted; it replaces the controller that was idle longest, of
//! those that no export names and that wait for no event. Controllers of exports leave a part of
//! the capacity to named hosts. The effects on configured hosts are judged where these connect.

use std::fmt::Display;

use nvme_host::pdu::Header;
use nvme_host_testing::Names;
use nvme_host_testing::pdu::{PduInbox, capsule, in_capsule};
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, PropertySize};
use nvme_spec::nqn::DISCOVERY_NQN;
use nvme_spec::registers::{Cc, Register};
use nvme_spec::tcp::{DigestFlags, Framing, IcReq};
use nvme_spec::{Sqe, Status};
use nvme_target::DISCOVERY_CONTROLLERS_MAX;
use reactors::Nanos;
use zerocopy::IntoBytes;

use crate::host::HostEnv;
use crate::judge::Violation;
use crate::network::{HostEnd, Wire};
use crate::plan::SUBSYSTEMS;
use crate::random::Random;

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
/// Time after which a change is in effect and a disconnected host has no controller.
const SETTLING_TIME: Nanos = Nanos::from_secs(2);
/// Maximum time to a response without disturbance.
const RESPONSE_TIME_MAX: Nanos = Nanos::from_secs(6);
/// Difference between the last commands of two hosts below which it is undefined which was idle
/// longer.
const IDLE_SLACK: Nanos = Nanos::from_millis(500);
/// The part of an export's controllers that is reserved for named hosts: one in this number.
const LISTED_PART: usize = 4;
/// The part that hosts leave to those that have few: one in this number.
const RESERVED_PART: usize = 8;
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
    name: String,
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

    fn send(&mut self, sqe: Sqe, data: &[u8]) {
        let capsule = capsule(sqe.with_sgl(in_capsule(data)), data, Framing::default());
        self.wire.send(&capsule);
    }

    fn connect(&mut self, now: Nanos) {
        let subsystem = self.subsystem.map_or(DISCOVERY_NQN, |it| SUBSYSTEMS[it]);
        let names = Names {
            host: self.name.clone(),
            host_id: [0xA0; 16],
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
            let stays = random.between(STAY_MIN.as_nanos(), STAY_MAX.as_nanos());
            self.pending.push(PendingHost {
                at,
                listener: random.below(env.swarm.tcp_listeners as u64) as usize,
                subsystem,
                leaves_at: at + Nanos(stays),
                random: Random::new(random.bits(), 0),
            });
        }
    }

    /// Connects the hosts that are due.
    fn connect_due(&mut self, env: &HostEnv<'_>) {
        let due = |it: &mut PendingHost| it.at <= env.now;
        for pending in self.pending.extract_if(.., due) {
            let PendingHost {
                listener,
                subsystem,
                leaves_at,
                random,
                ..
            } = pending;
            let wire = env.listeners[listener].connect(env.network, random);
            wire.send(IcReq::new(0, DigestFlags::new(), 0).as_bytes());
            self.named += 1;
            self.hosts.push(Anonymous {
                wire,
                inbox: PduInbox::default(),
                name: format!("nqn.2026-11.org.windlass:anonymous{}", self.named),
                subsystem,
                listener,
                phase: Phase::Initialising,
                since: env.now,
                commanded_at: Nanos::ZERO,
                commanded_before: Nanos::ZERO,
                awaits_event_since: None,
                awaits_keep_alive: false,
                leaves_at,
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
        self.gone.clear();
        self.evicted.clear();
    }

    /// Whether there are no hosts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.pending.is_empty()
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
                let what = format!("{} is in {:?} without a response", host.name, host.phase);
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
                    } else if capsule.cqe.cid.get() == ENABLE && status.is_success() {
                        // Every second host waits for an event.
                        if self.named.is_multiple_of(2) {
                            let request = Sqe::async_event_request().with_cid(EVENT_REQUEST);
                            host.send(request, &[]);
                            host.awaits_event_since = Some(env.now);
                            host.commanded_at = env.now;
                        }
                    }
                }
                Header::Termination(header) => {
                    let what = format!("{} received {}: {header:?}", host.name, pdu.kind());
                    return Err(Violation::Rule(what));
                }
                Header::Data(_) | Header::Request(_) => {
                    let what = format!("{} received {}", host.name, pdu.kind());
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
            None => status.is_success(),
            Some(subsystem) => self.is_right(env, subsystem, status),
        };
        if is_settled && !is_right {
            let what = format!(
                "Connect of {} to {:?} completed with {status}, with {} in discovery and {} at exports",
                host.name,
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
    fn is_right(&self, env: &HostEnv<'_>, subsystem: usize, status: Status) -> bool {
        let serving = env.serving;
        if !serving.subsystems[subsystem] {
            return !status.is_success();
        }
        if !serving.keys.any_host[subsystem] {
            return status.is(Status::CONNECT_INVALID_HOST);
        }
        let capacity = usize::from(serving.keys.controllers);
        let most = match serving.names_hosts() {
            true => capacity - capacity / LISTED_PART,
            false => capacity,
        };
        // Disconnected hosts may still have a controller, and configured hosts have some.
        let certainly = self.count(false);
        if status.is_success() {
            return certainly < most;
        }
        let gone = self.gone.iter().filter(|(_, is_discovery)| !is_discovery);
        let perhaps = certainly + gone.count() + 4 * env.swarm.hosts.len();
        let least = capacity - capacity / LISTED_PART - capacity / RESERVED_PART;
        status.is(Status::CONNECT_CONTROLLER_BUSY) && perhaps >= least
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
                host.name
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
            name: host.name.clone(),
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
                    evicted.name, evicted.idle_since, evicted.waits, other.name, other.commanded_at
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
    /// The subsystem of its export; `None` for the discovery subsystem.
    subsystem: Option<usize>,
    leaves_at: Nanos,
    random: Random,
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
