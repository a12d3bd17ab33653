//! Asymmetric Namespace Access (Base 2.1 §8.1.1): which groups of namespaces hosts reach at which
//! port, and how well.
//!
//! The states belong to the configuration, so a change of them begins an epoch and every command
//! that was checked before is checked again. What they forbid is published in each controller's
//! restrictions, which its gate checks.

mod transitions;

use std::fmt;
use std::str::FromStr;

use nvme_spec::Status;

use crate::config::{AnaPath, PortId};
use crate::status::{Fault, byte};
use crate::view::SubsystemView;
pub(crate) use transitions::{AnaTransitions, EarlierCommands};

/// Highest identifier of an ANA group, and the number of groups (ANAGRPMAX, NANAGRPID). Hosts
/// allocate a log of all groups and namespaces, which has to fit into one transfer.
pub const ANA_GROUPS_MAX: u32 = 128;

/// ANATT: how long a group may be in the state Change before hosts give the path up.
pub(crate) const TRANSITION_SECONDS: u8 = 10;

/// The state of an ANA group at a port (Base 2.1 §8.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AnaState {
    /// Hosts prefer the path.
    #[default]
    Optimized,
    /// Hosts use the path if there is no optimized one.
    NonOptimized,
    /// Commands fail; the state may change later.
    Inaccessible,
    /// Commands fail; the state does not change while the namespace is attached.
    PersistentLoss,
    /// Commands fail until the state changes, which takes ten seconds at most.
    Change,
}

/// An unknown name of an ANA state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not optimized, non-optimized, inaccessible, persistent-loss or change")]
pub struct UnknownAnaState;

impl AnaState {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::Optimized,
        Self::NonOptimized,
        Self::Inaccessible,
        Self::PersistentLoss,
        Self::Change,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent-loss",
            Self::Change => "change",
        }
    }

    /// Whether hosts can read and write.
    #[must_use]
    pub const fn is_accessible(self) -> bool {
        matches!(self, Self::Optimized | Self::NonOptimized)
    }

    /// The state in the log page.
    pub(crate) const fn code(self) -> nvme_spec::log::AnaState {
        match self {
            Self::Optimized => nvme_spec::log::AnaState::OPTIMIZED,
            Self::NonOptimized => nvme_spec::log::AnaState::NON_OPTIMIZED,
            Self::Inaccessible => nvme_spec::log::AnaState::INACCESSIBLE,
            Self::PersistentLoss => nvme_spec::log::AnaState::PERSISTENT_LOSS,
            Self::Change => nvme_spec::log::AnaState::CHANGE,
        }
    }
}

impl fmt::Display for AnaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AnaState {
    type Err = UnknownAnaState;

    fn from_str(name: &str) -> Result<Self, UnknownAnaState> {
        let mut all = Self::ALL.into_iter();
        all.find(|it| it.name() == name).ok_or(UnknownAnaState)
    }
}

/// The devices that hosts cannot read and write at a port, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnaRestrictions {
    /// In any state without access.
    pub(crate) inaccessible: u128,
    /// Of these, the ones in the state Persistent Loss.
    pub(crate) lost: u128,
    /// Of these, the ones in the state Change.
    pub(crate) changing: u128,
}

/// The refusal of a command for a namespace without access (Base 2.1 §8.1.1). The host may send it
/// again on another path.
pub(crate) fn refusal(is_lost: bool, is_changing: bool) -> Fault {
    let status = match (is_lost, is_changing) {
        (true, _) => Status::ANA_PERSISTENT_LOSS,
        (false, true) => Status::ANA_TRANSITION,
        (false, false) => Status::ANA_INACCESSIBLE,
    };
    Fault::retry(status).at(byte::NSID)
}

/// A group in the ANA log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnaGroup {
    pub(crate) id: u32,
    pub(crate) state: AnaState,
    /// Its active namespaces, ascending.
    pub(crate) nsids: Vec<u32>,
}

impl SubsystemView {
    /// The state of a group at a port.
    pub(crate) fn ana_state(&self, port: PortId, group: u32) -> AnaState {
        let state = self.config.ana_states.get(&AnaPath { port, group });
        state.copied().unwrap_or_default()
    }

    /// The devices of the groups at a port for which `is_in` is true.
    fn devices_of_groups(&self, port: PortId, is_in: impl Fn(u32, AnaState) -> bool) -> u128 {
        let namespaces = self.config.namespaces.iter();
        let groups =
            namespaces.filter(|it| is_in(it.ana_group, self.ana_state(port, it.ana_group)));
        groups.fold(0, |all, it| all | 1 << it.device.place())
    }

    /// What the states at a port forbid.
    pub(crate) fn ana_restrictions(&self, port: PortId) -> AnaRestrictions {
        if self.config.ana_states.is_empty() {
            return AnaRestrictions::default();
        }
        AnaRestrictions {
            inaccessible: self.devices_of_groups(port, |_, state| !state.is_accessible()),
            lost: self.devices_of_groups(port, |_, state| state == AnaState::PersistentLoss),
            changing: self.devices_of_groups(port, |_, state| state == AnaState::Change),
        }
    }

    /// The devices of a group.
    pub(crate) fn devices_of_group(&self, path: AnaPath) -> u128 {
        self.devices_of_groups(path.port, |group, _| group == path.group)
    }

    /// The groups that have namespaces, as hosts see them at a port, ascending.
    pub(crate) fn ana_groups(&self, port: PortId) -> Vec<AnaGroup> {
        let namespaces = self.config.namespaces.iter();
        let mut members: Vec<_> = namespaces.map(|it| (it.ana_group, it.nsid)).collect();
        members.sort_unstable();
        let groups = members.chunk_by(|one, other| one.0 == other.0);
        groups
            .filter_map(|members| members.first().map(|(id, _)| (*id, members)))
            .map(|(id, members)| AnaGroup {
                id,
                state: self.ana_state(port, id),
                nsids: members.iter().map(|(_, nsid)| *nsid).collect(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_states_round_trip() {
        for state in AnaState::ALL {
            assert_eq!(state.name().parse(), Ok(state));
        }
        assert_eq!("active".parse::<AnaState>(), Err(UnknownAnaState));
    }

    /// Base 2.1 §8.1.1: each state without access has its own status, and none forbids a retry.
    #[test]
    fn each_state_without_access_has_its_status() {
        for (is_lost, is_changing, status) in [
            (false, false, Status::ANA_INACCESSIBLE),
            (true, false, Status::ANA_PERSISTENT_LOSS),
            (false, true, Status::ANA_TRANSITION),
        ] {
            let refused = refusal(is_lost, is_changing);
            assert!(refused.status.is(status) && !refused.status.dnr());
        }
    }
}
