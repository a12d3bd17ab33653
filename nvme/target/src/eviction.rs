//! Eviction of a host by an operator: its associations with a subsystem end.

use std::collections::BTreeSet;
use std::sync::Arc;

use nvme_reservations::HostIdentifier;

use crate::config::TargetError;
use crate::interface::CloseReason;
use crate::shared::{ControllerIdentity, ControllerShared};
use crate::target::Target;

/// A host as an operator names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostName {
    /// Its NQN. Hosts with this NQN may have several identifiers.
    Nqn(String),
    /// Its identifier. Hosts with this identifier may have several NQNs.
    Identifier(HostIdentifier),
}

impl HostName {
    fn is_of(&self, identity: &ControllerIdentity) -> bool {
        match self {
            Self::Nqn(nqn) => identity.host_nqn == *nqn,
            Self::Identifier(host) => identity.host_id == host.0,
        }
    }
}

/// The associations that an eviction or a revocation ended.
#[derive(Default)]
pub struct EvictedAssociations(Vec<Arc<ControllerShared>>);

impl EvictedAssociations {
    pub(crate) fn new(associations: Vec<Arc<ControllerShared>>) -> Self {
        Self(associations)
    }

    /// Their number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The identifiers of their hosts.
    #[must_use]
    pub fn hosts(&self) -> BTreeSet<HostIdentifier> {
        let associations = self.0.iter();
        associations
            .map(|it| HostIdentifier(it.identity.host_id))
            .collect()
    }
}

impl Target {
    /// Ends the associations of a host with a subsystem without waiting for their commands. The
    /// host may reconnect immediately; its new controllers become ready after the commands of the
    /// ended ones have left the devices.
    ///
    /// # Errors
    /// [`TargetError::UnknownSubsystem`]; nothing changes then.
    pub fn evict_host(
        &self,
        nqn: &str,
        host: &HostName,
    ) -> Result<EvictedAssociations, TargetError> {
        let evicted = {
            // Before the publication is read, so that no association is created meanwhile.
            let registry = self.registry();
            if self.published().find(nqn).is_none() {
                return Err(TargetError::UnknownSubsystem {
                    nqn: nqn.to_owned(),
                });
            }
            let controllers = registry.entries().map(|entry| &entry.shared);
            let of_host = controllers
                .filter(|it| it.identity.subsystem_nqn == nqn && host.is_of(&it.identity));
            let evicted: Vec<_> = of_host.cloned().collect();
            for controller in &evicted {
                controller.end(CloseReason::Evicted);
            }
            evicted
        };
        self.notify_all();
        Ok(EvictedAssociations(evicted))
    }

    /// Whether all commands of these associations have left the devices.
    #[must_use]
    pub fn is_evicted(&self, evicted: &EvictedAssociations) -> bool {
        let registry = self.registry();
        let is_left = |controller: &Arc<ControllerShared>| {
            let entry = registry.entry(controller.identity.cntlid);
            // The identifier may be in use by another association.
            entry.is_some_and(|entry| Arc::ptr_eq(&entry.shared, controller))
        };
        !evicted.0.iter().any(is_left)
    }
}
