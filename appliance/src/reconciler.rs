//! A running appliance follows its configuration: what the target serves, the devices and the
//! listeners are what the configuration says, and change with it under I/O.
//!
//! It belongs to the control thread, which alone changes anything. The reactors own their parts:
//! they are told by orders and by what the target publishes, and are never waited for with a lock.

mod apply;
mod served;
mod steps;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use appliance_config::{Config, Transport as TransportName};
use arc_swap::ArcSwap;
use nvme_target::Target;
use reactors::ReactorHandle;

use crate::devices::{Devices, Opened, Opener};
use crate::exports::Ports;
use crate::fabrics::ControlMessage;
use crate::orders::Orders;
use crate::running::Running;
use crate::transports::Listening;
use crate::watch::Watch;
pub(crate) use apply::{How, Origin, directory_of};
use served::Served;

/// What a running appliance's configuration has led to.
pub(crate) struct Reconciler {
    config: Config,
    running: Running,
    opener: Box<dyn Opener>,
    target: Arc<Target>,
    devices: Devices,
    ports: Ports,
    transports: Vec<Arc<dyn Listening>>,
    control_queues: Orders<ControlMessage>,
    served: Served,
    watch: Watch,
    /// Devices that no reactor has any more; their memory may still be on its way to hosts.
    departed: Vec<Opened>,
}

/// What a start has made, from which everything can be changed.
pub(crate) struct Started {
    pub(crate) config: Config,
    /// Opens the devices that are added.
    pub(crate) opener: Box<dyn Opener>,
    pub(crate) target: Arc<Target>,
    pub(crate) devices: Devices,
    pub(crate) ports: Ports,
    pub(crate) transports: Vec<Arc<dyn Listening>>,
    pub(crate) control_queues: Orders<ControlMessage>,
}

impl Reconciler {
    /// Takes over what a start has made; orders wake the reactors from now on.
    pub(crate) fn new(started: Started, handles: &[ReactorHandle]) -> Self {
        let Started {
            config,
            opener,
            target,
            devices,
            ports,
            transports,
            control_queues,
        } = started;
        control_queues.set_wakers(handles);
        for transport in &transports {
            transport.set_wakers(handles);
        }
        let lowered = lowered(&config, &transports);
        let served = Served::new(&lowered, &devices, &ports);
        Self {
            running: Running {
                uuids: Arc::new(ArcSwap::from_pointee(served.uuids())),
                config: Arc::new(ArcSwap::from_pointee(config.clone())),
                ports: Arc::new(ArcSwap::from_pointee(ports.clone())),
            },
            served,
            watch: Watch::new(&devices),
            config,
            opener,
            target,
            devices,
            ports,
            transports,
            control_queues,
            departed: Vec::new(),
        }
    }

    /// The configuration that runs.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The same, and where its listeners are bound, for other threads.
    pub(crate) fn running(&self) -> Running {
        self.running.clone()
    }

    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Tells hosts and people what the devices went through since the last look.
    pub(crate) fn look(&mut self) {
        self.watch.look(&self.devices, &self.target);
        if let Err(error) = self.serve() {
            // What one look finds wrong the next one finds again.
            tracing::error!(%error, "what is served could not be changed");
        }
        self.reap();
    }

    /// Has the target serve what the configuration, the devices and the listeners are now.
    fn serve(&mut self) -> Result<(), nvme_target::TargetError> {
        let config = lowered(&self.config, &self.transports);
        let wanted = Served::new(&config, &self.devices, &self.ports);
        let outcome = self.served.reconcile(wanted, &self.target);
        self.running.config.store(Arc::new(self.config.clone()));
        self.running.ports.store(Arc::new(self.ports.clone()));
        self.running.uuids.store(Arc::new(self.served.uuids()));
        outcome
    }

    /// Closes devices that nobody has any more.
    fn reap(&mut self) {
        let transports = &self.transports;
        self.departed.retain(|opened| {
            let is_alone = opened.is_alone();
            if is_alone {
                for region in opened.regions() {
                    transports.iter().for_each(|it| it.detach_memory(region));
                }
            }
            !is_alone
        });
    }

    fn transport(&self, name: TransportName) -> Option<&Arc<dyn Listening>> {
        self.transports.iter().find(|it| it.name() == name)
    }
}

/// `config` with what the network cards of its listeners allow, where that is less.
fn lowered(config: &Config, transports: &[Arc<dyn Listening>]) -> Config {
    let mut config = config.clone();
    for listener in &mut config.listeners {
        let found = transports.iter().find(|it| it.name() == listener.transport);
        if let Some(transport) = found {
            transport.lower_limits(listener);
        }
    }
    config
}
