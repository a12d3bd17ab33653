//! RDMA between the server and its clients: the in-process fabric in virtual time, and the memory of
//! each client, which its connections share.

mod call;
mod end;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use hugemem::{PagePolicy, Region, SharedRegion};
use rdma::{Access, Device as _, Provider as _, SharedMemory};
use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig, Fake, FakeDomain};
use reactors::Nanos;

pub(super) use end::{Arrived, RdmaEnd};

use super::swarm::RdmaSwarm;
use crate::random::Random;

const SERVER_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 250));
/// Where the server listens.
pub(super) const SERVER_ADDRESS: SocketAddr = SocketAddr::new(SERVER_IP, 20049);

/// Size of the longest message in bytes.
const MESSAGE_BYTES: usize = 4096;
/// Receives of a connection, and its sends.
const MESSAGES: usize = 16;
/// Connections of a client, with those that it has lost without the server noticing.
const ENDS_MAX: usize = 12;
/// Calls of a client that may be outstanding.
const CALLS_MAX: usize = 20;
/// Memory of a call for data of READ or WRITE in bytes.
const DATA_BYTES: usize = 320 << 10;
/// Memory of a call for a long reply in bytes.
const REPLY_BYTES: usize = 64 << 10;
/// Memory of a call for a long call in bytes. The server reads at most 64 KiB at once.
const CALL_BYTES: usize = 60 << 10;
/// Bytes behind each of these that the server must not write.
const GUARD_BYTES: usize = 64;
/// What memory that the server may write contains before.
const UNWRITTEN: u8 = 0xE7;
/// Where the memory of calls begins.
const CALLS_AT: usize = ENDS_MAX * 2 * MESSAGES * MESSAGE_BYTES;
const BYTES_PER_CALL: usize = DATA_BYTES + REPLY_BYTES + CALL_BYTES + 3 * GUARD_BYTES;
/// Time after which the objects of a connection disappear whose end the server does not notice: longer
/// than it keeps one without a call.
const GHOST_FOR: Nanos = Nanos::from_secs(400);

/// The fabric, with the machine of the server.
#[derive(Clone)]
pub(super) struct FileFabric {
    fabric: Fabric,
    tick: Nanos,
    server: Fake,
    behaviour: RdmaSwarm,
}

impl FileFabric {
    /// A fabric with the machine of the server.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub(super) fn new(seed: u64, behaviour: RdmaSwarm) -> Result<Self, String> {
        let fabric = Fabric::new(FabricConfig {
            retry_ticks: behaviour.retry_ticks,
            ..FabricConfig::manual(seed)
        });
        let server = fabric.machine(&[config(SERVER_IP, &behaviour)]);
        Ok(Self {
            server: server.map_err(|error| error.to_string())?,
            tick: behaviour.tick,
            fabric,
            behaviour,
        })
    }

    /// The provider of the server.
    pub(super) fn server(&self) -> &Fake {
        &self.server
    }

    /// Executes everything that is due.
    pub(super) fn advance_to(&self, now: Nanos) {
        self.fabric
            .advance_to(now.as_nanos() / self.tick.as_nanos());
    }

    /// The time of the next event.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        let tick = self.fabric.next_tick()?;
        Some(Nanos(tick * self.tick.as_nanos()))
    }

    fn tick_of(&self, time: Nanos) -> u64 {
        time.as_nanos() / self.tick.as_nanos()
    }
}

fn config(address: IpAddr, behaviour: &RdmaSwarm) -> DeviceConfig {
    let mut config = DeviceConfig::new("device", address);
    config.limits.reads_incoming = behaviour.reads;
    config.limits.reads_outgoing = behaviour.reads;
    config
}

/// Unused places in the memory of a client.
struct Places {
    ends: Vec<usize>,
    calls: Vec<usize>,
}

/// What the connections of a client share.
#[derive(Clone)]
pub(super) struct Machine {
    network: FileFabric,
    provider: Fake,
    domain: FakeDomain,
    memory: Rc<SharedMemory<Fake>>,
    places: Rc<RefCell<Places>>,
    /// Whether each chunk has a key of its own, which the server may invalidate.
    has_windows: bool,
}

impl Machine {
    /// The machine of a client.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn new(
        network: &FileFabric,
        address: IpAddr,
        random: &mut Random,
    ) -> Result<Self, String> {
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let config = config(address, &network.behaviour);
        let provider = network.fabric.machine(&[config]).map_err(|it| told(&it))?;
        let device = provider.devices().map_err(|it| told(&it))?.remove(0);
        let domain = device.create_domain().map_err(|it| told(&it))?;
        let bytes = CALLS_AT + CALLS_MAX * BYTES_PER_CALL;
        let region = Region::map(bytes, PagePolicy::Ordinary).map_err(|it| told(&it))?;
        let region = SharedRegion::new(region).map_err(|it| told(&it))?;
        let has_windows = random.coin();
        let access = match has_windows {
            true => Access::WINDOWS,
            false => Access::REMOTE,
        };
        let memory = SharedMemory::register(&domain, region, access).map_err(|it| told(&it))?;
        // What the server must not write is checked from the first call on.
        for call in 0..CALLS_MAX {
            for guard in Area::of(call).guards() {
                memory.view().write(guard, &[UNWRITTEN; GUARD_BYTES]);
            }
        }
        Ok(Self {
            network: network.clone(),
            provider,
            domain,
            memory: Rc::new(memory),
            places: Rc::new(RefCell::new(Places {
                ends: (0..ENDS_MAX).collect(),
                calls: (0..CALLS_MAX).collect(),
            })),
            has_windows,
        })
    }
}

/// The memory of a call.
#[derive(Clone, Copy)]
struct Area {
    data: usize,
    reply: usize,
    call: usize,
}

impl Area {
    fn of(place: usize) -> Self {
        let data = CALLS_AT + place * BYTES_PER_CALL;
        let reply = data + DATA_BYTES + GUARD_BYTES;
        Self {
            data,
            reply,
            call: reply + REPLY_BYTES + GUARD_BYTES,
        }
    }

    fn guards(self) -> [usize; 3] {
        [
            self.data + DATA_BYTES,
            self.reply + REPLY_BYTES,
            self.call + CALL_BYTES,
        ]
    }
}
