//! ANA states of the appliance's target, by listener.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;

use nvme_target::{AnaPath, AnaState, PortConfig, TargetConfig, TransportKind};

use super::Appliance;
use crate::ana::GroupPath;
use crate::plan::{LISTENERS, RDMA_LISTENER, SUBSYSTEMS, tcp_address};

/// The path as the target names it, if its listener exists.
fn ana_path(config: &TargetConfig, path: GroupPath) -> Option<AnaPath> {
    let service = tcp_address(path.listener).port().to_string();
    let is_it = |port: &&PortConfig| match path.listener {
        RDMA_LISTENER => port.transport == TransportKind::Rdma,
        _ => port.transport == TransportKind::Tcp && port.service == service,
    };
    let port = config.ports.iter().find(is_it)?.id;
    Some(AnaPath {
        port,
        group: path.group,
    })
}

/// The state as the control plane names it.
fn configured(state: AnaState) -> appliance_config::AnaState {
    match state {
        AnaState::Optimized => appliance_config::AnaState::Optimized,
        AnaState::NonOptimized => appliance_config::AnaState::NonOptimized,
        AnaState::Inaccessible => appliance_config::AnaState::Inaccessible,
        AnaState::PersistentLoss => appliance_config::AnaState::PersistentLoss,
        AnaState::Change => appliance_config::AnaState::Change,
    }
}

impl Appliance {
    /// Sets the state of a path. Returns `None` if its subsystem is not offered there.
    ///
    /// The control plane refuses a group without namespaces, so its state is set in the target
    /// alone, where it must have no effect.
    ///
    /// # Errors
    /// The refusal, as text.
    pub fn set_ana_state(
        &self,
        path: GroupPath,
        state: AnaState,
        has_namespaces: bool,
    ) -> Result<Option<Receiver<()>>, String> {
        let config = self.target.configuration();
        let nqn = SUBSYSTEMS[path.subsystem];
        let subsystem = config.subsystems.iter().find(|it| it.nqn == nqn);
        let ports = subsystem.map(|it| it.ports.as_slice()).unwrap_or_default();
        let Some(its) = ana_path(&config, path).filter(|it| ports.contains(&it.port)) else {
            return Ok(None);
        };
        if has_namespaces {
            let (listener, state) = (LISTENERS[path.listener], configured(state));
            let set = self.ana_operator.set(nqn, listener, path.group, state);
            return set.map(Some);
        }
        let states = BTreeMap::from([(its, state)]);
        let done = self.target.set_ana_states(nqn, &states);
        done.map(Some).map_err(|error| error.to_string())
    }

    /// The states of paths; a path that does not exist is optimized.
    #[must_use]
    pub fn ana_states(&self, paths: &[(GroupPath, AnaState)]) -> Vec<AnaState> {
        let config = self.target.configuration();
        let state = |path: GroupPath| {
            let its = ana_path(&config, path)?;
            let mut subsystems = config.subsystems.iter();
            let subsystem = subsystems.find(|it| it.nqn == SUBSYSTEMS[path.subsystem])?;
            subsystem.ana_states.get(&its).copied()
        };
        let states = paths.iter().map(|(path, _)| state(*path));
        states.map(Option::unwrap_or_default).collect()
    }
}
