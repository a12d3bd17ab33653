//! What is configured and served at present, for readers on other threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use appliance_config::{Config, Uuid};
use arc_swap::ArcSwap;
use nvme_target::DeviceIndex;

use crate::exports::Ports;

/// Shared with the control plane, which reads it without a lock.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) config: Arc<ArcSwap<Config>>,
    pub(crate) ports: Arc<ArcSwap<Ports>>,
    /// The UUID that hosts know the namespace of a device by, by the device's place.
    pub(crate) uuids: Arc<ArcSwap<BTreeMap<DeviceIndex, Uuid>>>,
}
