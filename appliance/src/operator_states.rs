//! The ANA states (Base 2.1 §8.1.1) that operators have set while the appliance runs.
//!
//! Such a state holds until the appliance restarts, or until another configuration is applied in
//! which the state of the same path differs from the one that the operator replaced. During a
//! change of the configuration it is ignored as soon as the configured state differs, but only
//! forgotten when the change is complete: if the change is undone, it holds again. If the change
//! fails and cannot be undone, the state holds from the next change on that brings the path back.
//!
//! The control plane sets states, and the control thread reads them whenever it changes the target.
//! Both hold the lock until the target has the states, so that neither overwrites the other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use appliance_config::{AnaState, Config, Export, Name, Nqn};

/// An ANA group of an export at a listener.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Path {
    export: Nqn,
    listener: Name,
    group: u32,
}

/// A state that an operator has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Set {
    state: AnaState,
    /// The configured state at that time.
    replaced: AnaState,
}

/// The states that operators have set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperatorStates(BTreeMap<Path, Set>);

impl OperatorStates {
    /// The state of a group at a listener: the operator's, or else the configured one.
    pub(crate) fn state(&self, export: &Export, listener: &Name, group: u32) -> AnaState {
        let configured = export.ana_state(listener, group);
        let set = self.0.get(&path(export, listener, group));
        let set = set.filter(|set| set.replaced == configured);
        set.map_or(configured, |set| set.state)
    }

    /// Sets the state of a group at a listener.
    pub(crate) fn set(&mut self, export: &Export, listener: &Name, group: u32, state: AnaState) {
        let (path, replaced) = (
            path(export, listener, group),
            export.ana_state(listener, group),
        );
        if state == replaced {
            self.0.remove(&path);
        } else {
            self.0.insert(path, Set { state, replaced });
        }
    }

    /// The states that differ from the configured ones, by export, listener and group.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Nqn, &Name, u32, AnaState)> {
        let all = self.0.iter();
        all.map(|(path, set)| (&path.export, &path.listener, path.group, set.state))
    }

    /// Forgets the states of paths that `config` does not have, or whose configured state has
    /// changed.
    pub(crate) fn forget_changed(&mut self, config: &Config) {
        self.0.retain(|path, set| {
            config.export(&path.export).is_some_and(|export| {
                export.listeners.contains(&path.listener)
                    && export.ana_groups().contains(&path.group)
                    && export.ana_state(&path.listener, path.group) == set.replaced
            })
        });
    }
}

fn path(export: &Export, listener: &Name, group: u32) -> Path {
    Path {
        export: export.nqn.clone(),
        listener: listener.clone(),
        group,
    }
}

/// The states, for the control plane and the control thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedOperatorStates(Arc<Mutex<OperatorStates>>);

impl SharedOperatorStates {
    pub(crate) fn new(states: OperatorStates) -> Self {
        Self(Arc::new(Mutex::new(states)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, OperatorStates> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use appliance_config::AnaEntry;

    use super::*;

    fn config() -> Config {
        Config::default_embedded(std::path::Path::new("/demo.img")).expect("valid")
    }

    fn configure(config: &mut Config, state: AnaState) {
        let export = &mut config.exports[0];
        export.ana = vec![AnaEntry {
            listener: export.listeners[0].clone(),
            group: None,
            state,
        }];
    }

    #[test]
    fn a_state_holds_until_the_configured_one_changes() {
        let mut states = OperatorStates::default();
        let mut config = config();
        let listener = config.exports[0].listeners[0].clone();
        let state = |states: &OperatorStates, config: &Config| {
            states.state(&config.exports[0], &listener, 1)
        };
        states.set(&config.exports[0], &listener, 1, AnaState::Inaccessible);
        assert_eq!(state(&states, &config), AnaState::Inaccessible);
        // A change that spells out the same state is none.
        configure(&mut config, AnaState::Optimized);
        states.forget_changed(&config);
        assert_eq!(state(&states, &config), AnaState::Inaccessible);
        // A change that is undone has no effect.
        let mut other = config.clone();
        configure(&mut other, AnaState::NonOptimized);
        assert_eq!(state(&states, &other), AnaState::NonOptimized);
        assert_eq!(state(&states, &config), AnaState::Inaccessible);
        states.forget_changed(&other);
        assert_eq!(state(&states, &config), AnaState::Optimized);
        assert_eq!(states, OperatorStates::default());
    }

    #[test]
    fn states_of_removed_paths_are_forgotten() {
        let config = config();
        let listener = config.exports[0].listeners[0].clone();
        let mut none = config.clone();
        none.exports.clear();
        let mut regrouped = config.clone();
        for namespace in &mut regrouped.exports[0].namespaces {
            namespace.ana_group = 2;
        }
        let mut detached = config.clone();
        detached.exports[0].listeners.clear();
        for other in [none, regrouped, detached] {
            let mut states = OperatorStates::default();
            states.set(&config.exports[0], &listener, 1, AnaState::Change);
            states.forget_changed(&config);
            assert_ne!(states, OperatorStates::default());
            states.forget_changed(&other);
            assert_eq!(states, OperatorStates::default());
        }
    }

    #[test]
    fn the_configured_state_ends_that_of_the_operator() {
        let config = config();
        let listener = &config.exports[0].listeners[0];
        let mut states = OperatorStates::default();
        for state in [AnaState::Change, AnaState::Optimized] {
            states.set(&config.exports[0], listener, 1, state);
        }
        assert_eq!(states, OperatorStates::default());
    }
}
