//! What each reactor gets on its own thread: its device queues, its target core, a poller of every
//! transport around that core, and the drives that it owns.

mod desk;
mod rest;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use block::{Device, QueueOptions};
use hugemem::Arena;
use nvme_driver::DriveOwner;
use nvme_target::{CoreLimits, Target, TargetCore};
use reactors::ring::Receiver;
use reactors::{InitError, ReactorSetup};

use crate::transports::{Portions, Shared, Transport};
pub(crate) use desk::{Desk, DeskOrder};
use rest::Last;
pub(crate) use rest::Rest;

/// Requests that one reactor may have at one device at once.
pub(crate) const DEVICE_QUEUE_DEPTH: usize = 1024;
/// Commands that the queues of one reactor may have outstanding at once, all together: 512 queues
/// of 128 entries. A Connect beyond it is told that the controller is busy.
pub(crate) const COMMANDS_MAX: usize = 65_536;

const _: () = assert!(DEVICE_QUEUE_DEPTH <= block::QUEUE_DEPTH_MAX);

/// What can be handed to any reactor's thread.
pub(crate) struct Parts {
    pub(crate) arena: Arc<Arena>,
    /// In the order of their places.
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) target: Arc<Target>,
    pub(crate) transports: Vec<Arc<dyn Transport>>,
    /// Orders for the target cores.
    pub(crate) orders: Portions<Receiver<DeskOrder>>,
    /// The owners of drives, for each reactor those that it polls.
    pub(crate) owners: Vec<Mutex<Vec<DriveOwner>>>,
    /// Reactors whose target cores have not come to rest.
    pub(crate) undrained: Arc<AtomicUsize>,
}

#[derive(Debug, thiserror::Error)]
enum SetupError {
    #[error("its orders were handed out before")]
    Twice,
    #[error("device {name} gives it no queue")]
    DeviceQueue {
        name: String,
        #[source]
        cause: block::OpenError,
    },
}

/// Sets reactor `index` up.
pub(crate) fn set_up(
    parts: &Parts,
    index: usize,
    setup: &mut ReactorSetup<'_>,
) -> Result<(), InitError> {
    let pool = parts.arena.pool(COMMANDS_MAX);
    let mut queues = Vec::new();
    for device in &parts.devices {
        let options = QueueOptions {
            core: index,
            depth: DEVICE_QUEUE_DEPTH,
            pool: pool.clone(),
        };
        let queue = device
            .open_queue(options)
            .map_err(|cause| SetupError::DeviceQueue {
                name: device.name().to_owned(),
                cause,
            })?;
        queues.push(queue);
    }
    let transports = &parts.transports;
    let connections: usize = transports.iter().map(|it| it.connections_max()).sum();
    let limits = CoreLimits {
        queues_max: connections.max(1),
        executions_max: COMMANDS_MAX,
    };
    let mut core = TargetCore::new(Arc::clone(&parts.target), index, queues, limits);
    core.set_recorder(setup.recorder());
    let shared = Shared {
        core: Rc::new(RefCell::new(core)),
        arena: Arc::clone(&parts.arena),
        commands_max: COMMANDS_MAX,
    };
    for transport in transports {
        let poller = transport.set_up(&shared, setup)?;
        setup.register(poller)?;
    }
    // Behind the transports, whose polls and flushes drive the core.
    let undrained = &parts.undrained;
    let orders = parts.orders.take(index).ok_or(SetupError::Twice)?;
    let desk = Desk::new(
        Rc::clone(&shared.core),
        orders,
        pool,
        index,
        DEVICE_QUEUE_DEPTH,
    );
    let rest = Rest::new(shared.core, Arc::clone(undrained), desk);
    setup.register(Box::new(rest))?;
    let owners = parts.owners[index]
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .split_off(0);
    for owner in owners {
        setup.register(Box::new(Last::new(owner, Arc::clone(undrained))))?;
    }
    Ok(())
}
