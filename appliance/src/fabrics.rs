//! NVMe over Fabrics as a service of the reactors: each reactor has a target core, a poller of
//! every transport for that core, and a poller for messages of the control thread.

mod control_queue;
mod poller;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use block::ReactorDevices;
use hugemem::Pool;
use nvme_target::{CoreLimits, Target, TargetCore};
use reactors::ring::Receiver;
use reactors::{InitError, Poller, ReactorSetup};

use crate::reactor_setup::{COMMANDS_MAX, DEVICE_QUEUE_DEPTH, ReactorParts, Service};
use crate::transports::{PerReactor, Transport, TransportContext};
pub(crate) use control_queue::ControlMessage;
use control_queue::ControlQueue;
use poller::TargetPoller;

/// The NVMe over Fabrics service of the whole appliance.
pub(crate) struct Fabrics {
    pub(crate) target: Arc<Target>,
    pub(crate) transports: Vec<Arc<dyn Transport>>,
    /// The control messages for each reactor.
    pub(crate) messages: PerReactor<Receiver<ControlMessage>>,
}

#[derive(Debug, thiserror::Error)]
#[error("its orders were handed out before")]
struct SetUpTwice;

impl Service for Fabrics {
    fn set_up(&self, parts: &ReactorParts, setup: &mut ReactorSetup<'_>) -> Result<(), InitError> {
        let index = setup.index();
        let connections = self.transports.iter().map(|it| it.connections_max());
        let limits = CoreLimits {
            queues_max: connections.sum::<usize>().max(1),
            executions_max: COMMANDS_MAX,
        };
        let devices = Rc::clone(parts.devices.set());
        let mut core = TargetCore::new(Arc::clone(&self.target), index, devices, limits);
        core.set_recorder(setup.recorder());
        let shared = TransportContext {
            core: Rc::new(RefCell::new(core)),
            arena: Arc::clone(&parts.arena),
            commands_max: COMMANDS_MAX,
        };
        for transport in &self.transports {
            let poller = transport.set_up(&shared, setup)?;
            setup.register(poller)?;
        }
        let poller_parts = TargetPollerParts {
            messages: self.messages.take(index).ok_or(SetUpTwice)?,
            pool: parts.arena.pool(COMMANDS_MAX),
            reactor: index,
            queue_depth: DEVICE_QUEUE_DEPTH,
        };
        setup.register(poller_parts.poller(shared.core, parts.devices.clone()))?;
        Ok(())
    }
}

/// The parts of the service on one reactor, other than its transports.
pub(crate) struct TargetPollerParts {
    pub(crate) messages: Receiver<ControlMessage>,
    /// Memory for the queues of devices that are added later.
    pub(crate) pool: Pool,
    pub(crate) reactor: usize,
    /// Most requests of the reactor at a device that is added later.
    pub(crate) queue_depth: usize,
}

impl TargetPollerParts {
    /// Creates the poller of a core, and registers the core as a client of `devices`.
    pub(crate) fn poller(
        self,
        core: Rc<RefCell<TargetCore>>,
        devices: ReactorDevices,
    ) -> Box<dyn Poller> {
        devices.add(core.clone());
        let control_queue = ControlQueue::new(Rc::clone(&core), devices, self);
        Box::new(TargetPoller::new(core, control_queue))
    }
}
