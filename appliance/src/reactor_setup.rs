//! What each reactor gets on its own thread: its devices, its part of every service, and the drives that
//! it owns.
//!
//! A turn has three phases. Services receive and submit in their pollers' polls; the devices and their
//! clients are polled, each once, whatever the number of listeners; services take completions and
//! send in their pollers' flushes, and the devices are flushed last.

mod rest;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use block::{Device, DeviceSet, QueueOptions, ReactorDevices};
use hugemem::Arena;
use nvme_driver::DriveOwner;
use reactors::{InitError, ReactorSetup};

use rest::Last;
pub(crate) use rest::RestingDevices;

/// Requests that one reactor may have at one device at once.
pub(crate) const DEVICE_QUEUE_DEPTH: usize = 1024;
/// Requests that one service may have on a reactor, and that wait for memory: of NVMe over Fabrics 512
/// queues of 128 entries. A Connect beyond it is told that the controller is busy.
pub(crate) const COMMANDS_MAX: usize = 65_536;

const _: () = assert!(DEVICE_QUEUE_DEPTH <= block::QUEUE_DEPTH_MAX);

/// Serves data of the devices by a protocol, on every reactor.
pub(crate) trait Service: Send + Sync {
    /// Makes the calling reactor's part: registers its pollers, and its client with the devices.
    /// Called once on each reactor.
    ///
    /// # Errors
    /// What the reactor cannot have; the appliance does not start then.
    fn set_up(&self, parts: &ReactorParts, setup: &mut ReactorSetup<'_>) -> Result<(), InitError>;
}

/// What the services of one reactor share. The recorder and the clock are the reactor's own.
pub(crate) struct ReactorParts {
    pub(crate) devices: ReactorDevices,
    /// Where each takes pools of its own: grants go to whoever waits in that pool's line.
    pub(crate) arena: Arc<Arena>,
}

/// What can be handed to any reactor's thread.
pub(crate) struct Parts {
    pub(crate) arena: Arc<Arena>,
    /// In the order of their places.
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) services: Vec<Arc<dyn Service>>,
    /// The owners of drives, for each reactor those that it polls.
    pub(crate) owners: Vec<Mutex<Vec<DriveOwner>>>,
    /// Reactors whose devices have not come to rest.
    pub(crate) undrained: Arc<AtomicUsize>,
}

#[derive(Debug, thiserror::Error)]
#[error("device {name} gives it no queue")]
struct NoDeviceQueue {
    name: String,
    #[source]
    cause: block::OpenError,
}

/// Sets reactor `index` up.
pub(crate) fn set_up(
    parts: &Parts,
    index: usize,
    setup: &mut ReactorSetup<'_>,
) -> Result<(), InitError> {
    let pool = parts.arena.pool(COMMANDS_MAX);
    let set = Rc::new(DeviceSet::new());
    for (place, device) in parts.devices.iter().enumerate() {
        let options = QueueOptions {
            core: index,
            depth: DEVICE_QUEUE_DEPTH,
            pool: pool.clone(),
        };
        let attached = set.attach(place, &**device, options);
        attached.map_err(|cause| NoDeviceQueue {
            name: device.name().to_owned(),
            cause,
        })?;
    }
    let shared = ReactorParts {
        devices: ReactorDevices::new(set),
        arena: Arc::clone(&parts.arena),
    };
    for service in &parts.services {
        service.set_up(&shared, setup)?;
    }
    let devices = RestingDevices::new(shared.devices, Arc::clone(&parts.undrained))?;
    setup.register(Box::new(devices))?;
    let owners = parts.owners[index]
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .split_off(0);
    for owner in owners {
        let undrained = Arc::clone(&parts.undrained);
        setup.register(Box::new(Last::new(owner, undrained)))?;
    }
    Ok(())
}
