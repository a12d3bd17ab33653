//! Unknown hosts over RDMA that connect a queue pair and send no Connect: the target has to close
//! the connection in time, and to keep little memory for it until then.

use nvme_spec::tcp::Framing;
use reactors::Nanos;

use super::HostEnv;
use super::connection::{Connection, ConnectionShape, ConnectionTransport, Incoming};
use super::rdma::{ConnectionRequest, RdmaTransportEnd};
use crate::judge::Violation;
use crate::memory::QueuePairBound;
use crate::random::Random;

/// Maximum lifetime of a connection whose set-up does not continue: the set-up timeout of 10 s, the
/// time of a close, and delays of the fabric.
const SETUP_MAX: Nanos = Nanos::from_secs(14);
/// Maximum number of simultaneous hosts.
const HOSTS_MAX: usize = 6;

/// A host that sends nothing, or a capsule that is no command.
struct SilentHost {
    connection: Connection,
    sends_garbage: bool,
}

/// All silent hosts.
#[derive(Default)]
pub struct SilentHosts {
    hosts: Vec<SilentHost>,
}

impl SilentHosts {
    /// Begins to connect more hosts, if there is an RDMA network.
    pub fn connect_more(&mut self, env: &HostEnv<'_>, random: &mut Random) {
        let Some(network) = env.rdma else { return };
        for _ in 0..random.between(1, 3) {
            if self.hosts.len() >= HOSTS_MAX {
                return;
            }
            let shape = ConnectionShape {
                qid: 0,
                depth: random.pick(&[2, 16, 64]),
                framing: Framing::default(),
                flow_control: true,
                in_capsule_bytes: 0,
                transfer_max: 0,
                write_delay_max: Nanos::ZERO,
                is_limited: false,
            };
            let call = ConnectionRequest {
                host: env.swarm.hosts.len(),
                shape,
                cntlid: 0,
                windows: false,
                records_reads: false,
                begins_wrong: None,
            };
            let transport = RdmaTransportEnd::open(network, call);
            let transport = ConnectionTransport::Rdma(Box::new(transport));
            let random = Random::new(random.bits(), 0);
            self.hosts.push(SilentHost {
                sends_garbage: random.clone().permille(300),
                connection: Connection::new(transport, shape, random, env.now),
            });
        }
    }

    /// Receives at all hosts. Returns whether there was anything.
    ///
    /// # Errors
    /// The target keeps a connection, or violates the protocol.
    pub fn poll(&mut self, env: &HostEnv<'_>) -> Result<bool, Violation> {
        let mut moved = false;
        let mut at = 0;
        while at < self.hosts.len() {
            let SilentHost {
                connection,
                sends_garbage,
            } = &mut self.hosts[at];
            let mut incoming = Vec::new();
            moved |= connection
                .poll(env.now, &mut incoming)
                .map_err(Violation::Rule)?;
            let mut has_ended = false;
            for event in incoming {
                match event {
                    Incoming::Initialised if *sends_garbage => connection.send_garbage(0, 0),
                    Incoming::Initialised => {}
                    Incoming::Ended(_) => has_ended = true,
                    Incoming::Completed { .. } | Incoming::Terminated(_) => {
                        let what = "a host received a response to no command";
                        return Err(Violation::Rule(what.to_owned()));
                    }
                }
            }
            if has_ended {
                self.hosts.swap_remove(at);
                continue;
            }
            if connection.opened_at + SETUP_MAX < env.now && !env.stopping {
                let what = format!(
                    "the target keeps an RDMA connection without Connect for more than {SETUP_MAX}: {}",
                    connection.state()
                );
                return Err(Violation::Rule(what));
            }
            at += 1;
        }
        Ok(moved)
    }

    /// The memory bounds of the connections.
    pub fn queue_pair_bounds(&self) -> impl Iterator<Item = QueuePairBound> {
        let hosts = self.hosts.iter();
        hosts.filter_map(|it| it.connection.queue_pair_bound())
    }

    /// Drops all hosts.
    pub fn disconnect_all(&mut self) {
        for host in &mut self.hosts {
            host.connection.cut();
        }
        self.hosts.clear();
    }

    /// Whether there are no hosts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// The next time at which a connection's time is over.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let hosts = self.hosts.iter();
        hosts
            .map(|it| it.connection.opened_at + SETUP_MAX + Nanos(1))
            .min()
    }
}
