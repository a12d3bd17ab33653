//! Unknown hosts that send nothing, half of a PDU, or damaged data repeatedly. The target has to
//! close each of these connections in time, and they must not delay well-behaved hosts.

use nvme_spec::Sqe;
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, ConnectData};
use nvme_spec::nqn::{DISCOVERY_NQN, to_field};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{CapsuleCmd, DigestFlags, Framing, IcReq};
use reactors::Nanos;
use zerocopy::IntoBytes;

use crate::addresses::UNKNOWN_ADDRESS;
use crate::judge::Violation;
use crate::memory::MemoryBound;
use crate::network::{Listener, NetworkBehaviour, Wire, WireId};
use crate::random::Random;

/// Maximum lifetime of a connection whose set-up does not continue: the set-up timeout of 10 s, the
/// time of a close, and the network's delays.
const SETUP_MAX: Nanos = Nanos::from_secs(14);
/// Maximum number of simultaneous connections of unknown hosts.
const UNKNOWN_HOSTS_MAX: usize = 12;

/// Number of damaged Connect commands in a flood.
const FLOOD: usize = 400;

/// The connection of an unknown host.
struct UnknownHost {
    wire: Wire,
    what: &'static str,
    /// When the process began to wait for it.
    since: Nanos,
}

/// All connections of unknown hosts.
#[derive(Default)]
pub struct UnknownHosts {
    hosts: Vec<UnknownHost>,
}

impl UnknownHosts {
    /// Opens more connections to `listener`.
    pub fn connect_more(
        &mut self,
        listener: &Listener,
        network: NetworkBehaviour,
        random: &mut Random,
        now: Nanos,
    ) {
        let count = random.between(1, 4);
        for _ in 0..count {
            if self.hosts.len() >= UNKNOWN_HOSTS_MAX {
                return;
            }
            let wire = listener.connect(UNKNOWN_ADDRESS, network, Random::new(random.bits(), 0));
            let what = begin(&wire, random, now);
            self.hosts.push(UnknownHost {
                wire,
                what,
                since: now,
            });
        }
    }

    /// Begins all time limits anew, as a new process does.
    pub fn handed_over(&mut self, now: Nanos) {
        for host in &mut self.hosts {
            host.since = now;
        }
    }

    /// Checks that the target has closed all connections whose time is over.
    ///
    /// # Errors
    /// A connection is still open.
    pub fn check(&mut self, now: Nanos) -> Result<(), Violation> {
        self.hosts.retain(|it| !it.wire.is_closed_by_target());
        let kept = self.hosts.iter().find(|it| it.since + SETUP_MAX < now);
        match kept {
            None => Ok(()),
            Some(host) => Err(Violation::Rule(format!(
                "the target keeps a connection with {} for more than {SETUP_MAX}: {}",
                host.what,
                host.wire.state()
            ))),
        }
    }

    /// The memory bound of each connection.
    pub fn memory_bounds(&self) -> impl Iterator<Item = (WireId, MemoryBound)> {
        let wires = self.hosts.iter().map(|it| it.wire.id());
        wires.map(|wire| (wire, MemoryBound::default()))
    }

    /// Cuts all connections.
    pub fn disconnect_all(&mut self) {
        for host in self.hosts.drain(..) {
            host.wire.cut();
        }
    }

    /// Whether there are no connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Whether unprocessed data has arrived at the target.
    #[must_use]
    pub fn waits_for_target(&self) -> bool {
        self.hosts.iter().any(|it| it.wire.waits_for_target())
    }

    /// The next time at which data arrives or a connection's time is over.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let dues = self.hosts.iter().map(|it| {
            let over = it.since + SETUP_MAX + Nanos(1);
            it.wire.next_due().map_or(over, |due| due.min(over))
        });
        dues.min()
    }
}

/// Sends the beginning of a connection set-up. Returns its description.
fn begin(wire: &Wire, random: &mut Random, now: Nanos) -> &'static str {
    let digests = DigestFlags::new().with_data(true);
    let initialise = IcReq::new(0, digests, 0);
    let initialise = initialise.as_bytes();
    let framing = Framing {
        data_digest: true,
        ..Framing::default()
    };
    let field = |name: &str| to_field(name).unwrap_or_default();
    let name = format!("nqn.2026-11.org.windlass:stranger{}", random.below(1000));
    let data = ConnectData::new([9; 16], CNTLID_DYNAMIC, field(DISCOVERY_NQN), field(&name));
    let data = data.as_bytes();
    let sqe = Sqe::connect_queue(0, 31, ConnectAttributes::new(), 0);
    let sqe = sqe.with_sgl(SglDescriptor::in_capsule(0, data.len() as u32));
    let command = CapsuleCmd::new(sqe, data.len() as u32, framing);
    let mut connect = command.as_bytes().to_vec();
    connect.extend(data);
    match random.below(5) {
        0 => "nothing sent",
        1 => {
            let bytes = random.between(1, initialise.len() as u64 - 1) as usize;
            wire.send(&initialise[..bytes]);
            "half of an ICReq"
        }
        2 => {
            wire.send(initialise);
            let bytes = random.between(1, connect.len() as u64 - 1) as usize;
            wire.send(&connect[..bytes]);
            "half of a Connect"
        }
        3 => {
            // The host does not read the responses.
            wire.stall(false, now + SETUP_MAX);
            wire.send(initialise);
            connect.extend([0; 4]);
            wire.send(&connect.repeat(FLOOD));
            "a flood of damaged Connects"
        }
        _ => {
            // The data digest is wrong in each of them.
            wire.send(initialise);
            connect.extend([0; 4]);
            for _ in 0..random.between(1, 8) {
                wire.send(&connect);
            }
            "damaged Connects"
        }
    }
}
