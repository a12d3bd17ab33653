//! The running configuration and its ports, for readers on other threads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use appliance_config::{Config, Name, Uuid};
use arc_swap::ArcSwap;
use nvme_target::DeviceIndex;

use crate::change_gate::ChangeGate;
use crate::exports::Ports;
use crate::operator_states::SharedOperatorStates;

/// Snapshots that the control plane reads without a lock, and the states that it sets.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) config: Arc<ArcSwap<Config>>,
    pub(crate) ports: Arc<ArcSwap<Ports>>,
    /// The UUID of a device's namespace, by the device's index.
    pub(crate) uuids: Arc<ArcSwap<BTreeMap<DeviceIndex, Uuid>>>,
    /// The keys whose secrets are revoked.
    pub(crate) revoked_keys: Arc<ArcSwap<BTreeSet<Name>>>,
    /// While it is locked, neither the target nor the snapshots change.
    pub(crate) operator_states: SharedOperatorStates,
    /// Open for changes that do not go through the control thread.
    pub(crate) change_gate: ChangeGate,
}
