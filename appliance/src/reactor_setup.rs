//! Sets up each reactor on its own thread: its devices, and its part of every service.
//!
//! A turn has three phases. Services receive and submit in `poll` of their pollers; the devices and
//! their clients are polled once each, whatever the number of listeners; services take completions
//! and send in `flush` of their pollers, and the devices are flushed last.

mod drain;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use block::{Device, DeviceSet, QueueOptions, ReactorDevices};
use hugemem::Arena;
use reactors::{InitError, ReactorSetup};

pub(crate) use drain::DrainedDevices;

/// Most requests of one reactor at one device.
pub(crate) const DEVICE_QUEUE_DEPTH: usize = 1024;
/// Most requests of one service on a reactor that are outstanding or wait for memory: for NVMe over
/// Fabrics 512 queues of 128 entries. A Connect beyond that fails with Controller Busy.
pub(crate) const COMMANDS_MAX: usize = 65_536;

const _: () = assert!(DEVICE_QUEUE_DEPTH <= block::QUEUE_DEPTH_MAX);

/// A protocol that serves the data of the devices on every reactor.
pub(crate) trait Service: Send + Sync {
    /// Sets up the calling reactor's part: registers its pollers, and its client with the devices.
    /// Called once on each reactor.
    ///
    /// # Errors
    /// A resource is not available to the reactor; the appliance does not start then.
    fn set_up(&self, parts: &ReactorParts, setup: &mut ReactorSetup<'_>) -> Result<(), InitError>;
}

/// The resources that the services of one reactor share. Recorder and clock belong to the reactor.
pub(crate) struct ReactorParts {
    pub(crate) devices: ReactorDevices,
    /// Each service takes its own pools, because a pool grants buffers to the requests in its own
    /// wait queue.
    pub(crate) arena: Arc<Arena>,
}

/// The inputs of the setup, which any reactor's thread can use.
pub(crate) struct Parts {
    pub(crate) arena: Arc<Arena>,
    /// In the order of their indexes.
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) services: Vec<Arc<dyn Service>>,
    /// Number of reactors whose devices are not drained.
    pub(crate) undrained: Arc<AtomicUsize>,
}

#[derive(Debug, thiserror::Error)]
#[error("device {name} gives it no queue")]
struct NoDeviceQueue {
    name: String,
    #[source]
    cause: block::OpenError,
}

/// Sets up reactor `index`.
pub(crate) fn set_up(
    parts: &Parts,
    index: usize,
    setup: &mut ReactorSetup<'_>,
) -> Result<(), InitError> {
    let pool = parts.arena.pool(COMMANDS_MAX);
    let set = Rc::new(DeviceSet::new());
    for (place, device) in parts.devices.iter().enumerate() {
        let options = QueueOptions::new(index, DEVICE_QUEUE_DEPTH, pool.clone());
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
    let devices = DrainedDevices::new(shared.devices, Arc::clone(&parts.undrained))?;
    setup.register(Box::new(devices))?;
    Ok(())
}
