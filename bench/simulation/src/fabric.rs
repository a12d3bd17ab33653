//! The RDMA fabric between the appliance and its hosts, in virtual time.
//!
//! The seed determines all of its behaviour. A tick of the fabric is a fixed amount of virtual
//! time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rdma::Provider;
use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig, Fake, SharedReceives};
use reactors::Nanos;

use crate::addresses::{UNKNOWN_ADDRESS, host_address};
use crate::swarm::RdmaBehaviour;

const TARGET_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// The RDMA address of the appliance.
pub const TARGET_ADDRESS: SocketAddr = SocketAddr::new(TARGET_IP, 4420);

/// A fabric with the appliance's machine, a machine for each host, and one for unknown hosts.
pub struct RdmaNetwork {
    fabric: Fabric,
    tick: Nanos,
    target: Fake,
    hosts: Vec<Fake>,
    is_unplugged: bool,
}

impl RdmaNetwork {
    /// A new fabric for this number of hosts.
    ///
    /// # Panics
    /// If the process is out of descriptors.
    #[must_use]
    pub fn new(seed: u64, behaviour: RdmaBehaviour, hosts: usize) -> Self {
        let fabric = Fabric::new(FabricConfig {
            retry_ticks: behaviour.retry_ticks,
            ..FabricConfig::manual(seed)
        });
        let machine = |name: &str, address| {
            let mut config = DeviceConfig::new(name, address);
            config.inline_bytes = behaviour.inline_bytes;
            config.registers_device_memory = behaviour.registers_device_memory;
            config.limits.reads_incoming = behaviour.reads;
            config.limits.reads_outgoing = behaviour.reads;
            fabric.machine(&[config]).expect("descriptors")
        };
        let target = machine("target", TARGET_IP);
        let known = (0..hosts).map(host_address);
        let hosts = known.chain([UNKNOWN_ADDRESS]);
        let hosts = hosts.map(|address| machine("host", address)).collect();
        Self {
            fabric,
            tick: behaviour.tick,
            target,
            hosts,
            is_unplugged: false,
        }
    }

    /// Pulls the appliance's device out. If `is_silent`, only the connection manager reports it.
    /// The next network contains the device again.
    pub fn unplug(&mut self, is_silent: bool) {
        for device in self.target.devices().unwrap_or_default() {
            if is_silent {
                self.fabric.remove_silent_device(&device);
            } else {
                self.fabric.remove_device(&device);
            }
        }
        self.is_unplugged = true;
    }

    /// Whether the appliance's device was pulled out.
    #[must_use]
    pub fn is_unplugged(&self) -> bool {
        self.is_unplugged
    }

    /// The fabric.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The appliance's RDMA provider.
    #[must_use]
    pub fn target(&self) -> &Fake {
        &self.target
    }

    /// The RDMA provider of host `number`; the last one is that of unknown hosts.
    #[must_use]
    pub fn host(&self, number: usize) -> &Fake {
        &self.hosts[number]
    }

    /// The receives that are posted to the appliance's shared queues.
    #[must_use]
    pub fn shared_receives(&self) -> SharedReceives {
        self.fabric.shared_receives(&self.target)
    }

    /// The duration of a tick.
    #[must_use]
    pub fn tick(&self) -> Nanos {
        self.tick
    }

    /// Executes all events that are due.
    pub fn advance_to(&self, now: Nanos) {
        self.fabric
            .advance_to(now.as_nanos() / self.tick.as_nanos());
    }

    /// The time of the next event.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let tick = self.fabric.next_tick()?;
        Some(Nanos(tick * self.tick.as_nanos()))
    }

    /// Whether unprocessed events are pending for the appliance.
    #[must_use]
    pub fn waits_for_target(&self) -> bool {
        self.fabric.has_pending_events(&self.target)
    }
}
