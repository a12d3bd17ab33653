//! A snapshot of a target for status, metrics and the dashboard.

use crate::authentication::QueueAuthentication;
use crate::config::PortId;
use crate::controller::ControllerKind;
use crate::controller::state::ControllerState;
use crate::counters::{IoCounters, IoTotals};
use crate::registry::ControllerEntry;
use crate::secure_channel::QueueChannel;
use crate::shared::DISCOVERY_SLOT;
use crate::target::Target;

/// One I/O queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// Queue identifier.
    pub qid: u16,
    /// The reactor that serves it.
    pub reactor: usize,
    /// Its slot in that reactor's core, which trace events contain.
    pub slot: u32,
    /// Its traffic.
    pub totals: IoTotals,
    /// How its host was authenticated, if it was.
    pub authentication: Option<QueueAuthentication>,
    /// The secure channel of its connection, if it has one.
    pub channel: Option<QueueChannel>,
}

/// One controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerSnapshot {
    /// Controller identifier.
    pub controller_id: u16,
    /// I/O or discovery.
    pub kind: ControllerKind,
    /// Its state.
    pub state: ControllerState,
    /// Its subsystem.
    pub subsystem_nqn: String,
    /// Its host.
    pub host_nqn: String,
    /// The host's identifier.
    pub host_id: [u8; 16],
    /// The reactor of its admin queue.
    pub admin_reactor: usize,
    /// The port at which the host connected its admin queue.
    pub port: PortId,
    /// Its I/O queues.
    pub io_queues: Vec<QueueSnapshot>,
    /// The traffic of all its I/O queues, closed ones included.
    pub totals: IoTotals,
    /// Number of entries of its error log so far.
    pub errors_logged: u64,
    /// Whether commands that change data are held back, because devices still have requests of
    /// which its host no longer expects a completion.
    pub fenced: bool,
    /// How its host was authenticated on the admin queue, if it was.
    pub authentication: Option<QueueAuthentication>,
    /// The secure channel of the admin queue, if it has one.
    pub channel: Option<QueueChannel>,
}

/// One subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemSnapshot {
    /// Its slot, which trace events contain.
    pub slot: u32,
    /// Its name.
    pub nqn: String,
    /// Its active namespaces: identifier and device.
    pub namespaces: Vec<(u32, crate::DeviceIndex)>,
    /// Number of its controllers.
    pub controllers: usize,
}

/// A whole target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSnapshot {
    /// Controllers by identifier.
    pub controllers: Vec<ControllerSnapshot>,
    /// Subsystems.
    pub subsystems: Vec<SubsystemSnapshot>,
    /// The traffic of each device, by index.
    pub devices: Vec<IoTotals>,
    /// Queues per reactor, admin queues included, for placement by load.
    pub queues_per_reactor: Vec<u64>,
    /// Generation counter of the discovery log.
    pub discovery_generation: u64,
    /// Whether Connects are refused because the target is shutting down.
    pub shutting_down: bool,
}

impl TargetSnapshot {
    pub(crate) fn take(target: &Target) -> Self {
        let published = target.published();
        let registry = target.registry();
        let controllers: Vec<_> = registry
            .entries()
            .map(|entry| controller(target, entry))
            .collect();
        let subsystems = (0..)
            .zip(&published.subsystems)
            .filter_map(|(slot, view)| Some((slot, view.as_ref()?)))
            .map(|(slot, view)| SubsystemSnapshot {
                slot,
                nqn: view.config.nqn.clone(),
                namespaces: view
                    .config
                    .namespaces
                    .iter()
                    .map(|it| (it.nsid, it.device))
                    .collect(),
                controllers: controllers
                    .iter()
                    .filter(|controller| controller.subsystem_nqn == view.config.nqn)
                    .count(),
            });
        let devices = 0..published.devices.len();
        let queues_per_reactor = {
            let cores = target.cores();
            cores
                .iter()
                .map(|core| core.as_ref().map_or(0, |core| core.queues.get()))
                .collect()
        };
        Self {
            subsystems: subsystems.collect(),
            controllers,
            devices: devices
                .map(|device| target.device_totals(&(device..device + 1)))
                .collect(),
            queues_per_reactor,
            discovery_generation: published.generation,
            shutting_down: target.is_shutting_down(),
        }
    }
}

fn controller(target: &Target, entry: &ControllerEntry) -> ControllerSnapshot {
    let shared = &entry.shared;
    let identity = &shared.identity;
    let mut totals = *shared.closed_queues();
    let authentications = shared.authentications().clone();
    let channels = shared.channels().clone();
    let cores = target.cores();
    let io_queues = entry.io_queues.iter().map(|queue| {
        let core = cores.get(queue.reactor).and_then(Option::as_ref);
        let counters = core.and_then(|core| core.queue_slots.get(queue.slot as usize));
        let moved = counters.map_or_else(IoTotals::default, IoCounters::totals);
        totals.add(moved);
        QueueSnapshot {
            qid: queue.qid,
            reactor: queue.reactor,
            slot: queue.slot,
            totals: moved,
            authentication: authentications.get(&queue.qid).cloned(),
            channel: channels.get(&queue.qid).cloned(),
        }
    });
    let io_queues = io_queues.collect();
    let discovery = identity.subsystem == DISCOVERY_SLOT;
    ControllerSnapshot {
        controller_id: identity.cntlid,
        kind: if discovery {
            ControllerKind::Discovery
        } else {
            ControllerKind::Io
        },
        state: ControllerState::from_code(shared.state_code()),
        subsystem_nqn: identity.subsystem_nqn.clone(),
        host_nqn: identity.host_nqn.clone(),
        host_id: identity.host_id,
        admin_reactor: identity.admin_reactor,
        port: identity.port,
        io_queues,
        totals,
        errors_logged: shared.errors.count(),
        fenced: shared.gate().is_fenced(),
        authentication: authentications.get(&0).cloned(),
        channel: channels.get(&0).cloned(),
    }
}
