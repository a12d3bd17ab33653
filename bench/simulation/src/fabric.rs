//! The RDMA fabric between the appliance and its hosts, with time that the simulation drives.
//!
//! Everything of it is decided by the seed; a tick of the fabric is a fixed piece of virtual time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rdma::Provider;
use rdma::fake::{DeviceConfig, Fabric, FabricConfig, Fake};
use reactors::Nanos;

use crate::swarm::RdmaTemper;

const TARGET_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Where the appliance listens.
pub const TARGET_ADDRESS: SocketAddr = SocketAddr::new(TARGET_IP, 4420);

/// A fabric with the appliance's machine and one of each host.
pub struct RdmaNetwork {
    fabric: Fabric,
    tick: Nanos,
    target: Fake,
    hosts: Vec<Fake>,
    is_unplugged: bool,
}

impl RdmaNetwork {
    /// A fabric for so many hosts, on which nothing has happened.
    ///
    /// # Panics
    /// The process is out of descriptors.
    #[must_use]
    pub fn new(seed: u64, temper: RdmaTemper, hosts: usize) -> Self {
        let fabric = Fabric::new(FabricConfig {
            retry_ticks: temper.retry_ticks,
            ..FabricConfig::manual(seed)
        });
        let machine = |name: &str, address| {
            let mut config = DeviceConfig::new(name, address);
            config.inline_bytes = temper.inline_bytes;
            config.limits.reads_incoming = temper.reads;
            config.limits.reads_outgoing = temper.reads;
            fabric.machine(&[config]).expect("descriptors")
        };
        let target = machine("target", TARGET_IP);
        let hosts = (0..hosts)
            .map(|number| {
                let address = Ipv4Addr::new(192, 0, 2, 10 + number as u8);
                machine("host", address.into())
            })
            .collect();
        Self {
            fabric,
            tick: temper.tick,
            target,
            hosts,
            is_unplugged: false,
        }
    }

    /// Pulls the appliance's device out, which then tells so itself or leaves it to the connection
    /// manager. It is back with the next network.
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

    /// The fabric itself.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The appliance's RDMA.
    #[must_use]
    pub fn target(&self) -> &Fake {
        &self.target
    }

    /// The RDMA of host `number`.
    #[must_use]
    pub fn host(&self, number: usize) -> &Fake {
        &self.hosts[number]
    }

    /// How long a tick is.
    #[must_use]
    pub fn tick(&self) -> Nanos {
        self.tick
    }

    /// Lets happen what is due by now.
    pub fn tend(&self, now: Nanos) {
        self.fabric
            .advance_to(now.as_nanos() / self.tick.as_nanos());
    }

    /// When something happens next.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let tick = self.fabric.next_tick()?;
        Some(Nanos(tick * self.tick.as_nanos()))
    }

    /// Whether something has arrived for the appliance that it has not taken.
    #[must_use]
    pub fn waits_for_target(&self) -> bool {
        self.fabric.has_news(&self.target)
    }
}
