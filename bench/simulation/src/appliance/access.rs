//! ANA states of the appliance's target, by listener.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;

use nvme_target::{AnaPath, AnaState, PortConfig, TargetConfig, TransportKind};

use super::Appliance;
use crate::ana::GroupPath;
use crate::plan::{RDMA_LISTENER, SUBSYSTEMS, tcp_address};

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

impl Appliance {
    /// Sets the state of a path. Returns `None` if its subsystem is not offered there.
    ///
    /// # Errors
    /// That of the target, as text.
    pub fn set_ana_state(
        &self,
        path: GroupPath,
        state: AnaState,
    ) -> Result<Option<Receiver<()>>, String> {
        let config = self.target.configuration();
        let nqn = SUBSYSTEMS[path.subsystem];
        let subsystem = config.subsystems.iter().find(|it| it.nqn == nqn);
        let ports = subsystem.map(|it| it.ports.as_slice()).unwrap_or_default();
        let Some(its) = ana_path(&config, path).filter(|it| ports.contains(&it.port)) else {
            return Ok(None);
        };
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
