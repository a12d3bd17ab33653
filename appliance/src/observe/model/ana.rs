//! The JSON of ANA states (Base 2.1 §8.1.1).

use appliance_config::{AnaState, Export, Listener};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::observe::measured::measured;

/// The input of the status of an ANA group at a listener.
pub(crate) struct AnaInput<'o> {
    pub(crate) export: &'o Export,
    pub(crate) listener: &'o Listener,
    pub(crate) group: u32,
    pub(crate) state: AnaState,
}

measured! {
    /// An ANA group of an export as hosts reach it at a listener: `GET /api/v1/ana` answers with a
    /// list of these.
    struct AnaStatus from input: AnaInput<'_> {
        /// The export's NQN.
        export: String = input.export.nqn.to_string();
        /// The group.
        group: u32 = input.group;
        /// The listener's name.
        listener: String = input.listener.name.to_string();
        /// Its state now.
        state: AnaWord = input.state.into(),
            Gauge "ana_state": |_| Some(1)
            => "The state of an ANA group of an export at a listener, as a label.";
        /// Its state in the configuration: another one if an operator has set the state.
        configured: AnaWord = input.export.ana_state(&input.listener.name, input.group).into();
        /// The identifiers of the group's namespaces.
        namespaces: Vec<u32> = {
            let namespaces = input.export.namespaces.iter();
            let of_group = namespaces.filter(|it| it.ana_group == input.group);
            of_group.map(|it| it.nsid).collect()
        };
    }
}

/// The state of an ANA group at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AnaWord {
    /// Hosts prefer the path.
    Optimized,
    /// Hosts use the path if there is no optimized one.
    NonOptimized,
    /// Commands fail with a path error; the state may change later.
    Inaccessible,
    /// Commands fail with a path error; the state does not change while the namespace is attached.
    PersistentLoss,
    /// Commands fail with a path error, and hosts wait at most ten seconds for another state, which
    /// has to be set.
    Change,
}

impl AnaWord {
    /// The word in the configuration and in commands.
    pub(crate) fn word(self) -> &'static str {
        AnaState::from(self).word()
    }

    /// Whether hosts can read and write.
    pub(crate) const fn is_accessible(self) -> bool {
        matches!(self, AnaWord::Optimized | AnaWord::NonOptimized)
    }
}

impl From<AnaState> for AnaWord {
    fn from(state: AnaState) -> Self {
        match state {
            AnaState::Optimized => Self::Optimized,
            AnaState::NonOptimized => Self::NonOptimized,
            AnaState::Inaccessible => Self::Inaccessible,
            AnaState::PersistentLoss => Self::PersistentLoss,
            AnaState::Change => Self::Change,
        }
    }
}

impl From<AnaWord> for AnaState {
    fn from(word: AnaWord) -> Self {
        match word {
            AnaWord::Optimized => Self::Optimized,
            AnaWord::NonOptimized => Self::NonOptimized,
            AnaWord::Inaccessible => Self::Inaccessible,
            AnaWord::PersistentLoss => Self::PersistentLoss,
            AnaWord::Change => Self::Change,
        }
    }
}

/// What `POST /api/v1/ana/set` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct AnaRequest {
    /// The export's NQN.
    pub(crate) export: String,
    /// The listener's name; without it, all listeners of the export.
    #[serde(default)]
    pub(crate) listener: Option<String>,
    /// The group; without it, all groups of the export.
    #[serde(default)]
    pub(crate) group: Option<u32>,
    /// The new state.
    pub(crate) state: AnaWord,
}

/// What `POST /api/v1/ana/set` answers: the states are set, and commands that hosts had sent on
/// paths without access have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct AnaAnswer {
    pub(crate) export: String,
    /// The states that changed.
    pub(crate) changes: Vec<AnaChange>,
    /// What was done, for people.
    pub(crate) text: String,
}

/// A changed state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct AnaChange {
    pub(crate) group: u32,
    pub(crate) listener: String,
    pub(crate) from: AnaWord,
    pub(crate) to: AnaWord,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The API, the commands and the configuration have the same words.
    #[test]
    fn words_are_those_of_the_configuration() {
        for state in AnaState::ALL {
            let word = AnaWord::from(*state);
            assert_eq!(AnaState::from(word), *state);
            assert_eq!(
                serde_json::to_value(word).expect("a word"),
                word.word(),
                "{word:?}"
            );
            let value = word.to_possible_value().expect("it is not hidden");
            assert_eq!(value.get_name(), word.word());
        }
    }
}
