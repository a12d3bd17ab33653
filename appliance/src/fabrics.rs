//! NVMe over Fabrics as a service of the reactors: on each a target core, a poller of every transport
//! around that core, and one that takes the control thread's orders.

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
use crate::transports::{Portions, Shared, Transport};
pub(crate) use control_queue::ControlMessage;
use control_queue::ControlQueue;
use poller::TargetPoller;

/// NVMe over Fabrics of the whole appliance.
pub(crate) struct Fabrics {
    pub(crate) target: Arc<Target>,
    pub(crate) transports: Vec<Arc<dyn Transport>>,
    /// Orders for each reactor.
    pub(crate) orders: Portions<Receiver<ControlMessage>>,
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
        let shared = Shared {
            core: Rc::new(RefCell::new(core)),
            arena: Arc::clone(&parts.arena),
            commands_max: COMMANDS_MAX,
        };
        for transport in &self.transports {
            let poller = transport.set_up(&shared, setup)?;
            setup.register(poller)?;
        }
        let behind = BehindTransports {
            orders: self.orders.take(index).ok_or(SetUpTwice)?,
            pool: parts.arena.pool(COMMANDS_MAX),
            reactor: index,
            queue_depth: DEVICE_QUEUE_DEPTH,
        };
        setup.register(behind.poller(shared.core, parts.devices.clone()))?;
        Ok(())
    }
}

/// What a reactor has of the service besides its transports.
pub(crate) struct BehindTransports {
    pub(crate) orders: Receiver<ControlMessage>,
    /// Where queues of devices that come take their memory.
    pub(crate) pool: Pool,
    pub(crate) reactor: usize,
    /// Requests that the reactor may have at a device that comes.
    pub(crate) queue_depth: usize,
}

impl BehindTransports {
    /// The poller of a core, which is a client of `devices` from here on.
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
