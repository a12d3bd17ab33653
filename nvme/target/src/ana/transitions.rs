//! Changes of ANA states: each is complete when no reactor has a command left that was checked
//! before it and whose path has lost access.
//!
//! Control path only; the registry owns the table. Such a command may still change data after the
//! path became inaccessible. An operator who moves a device to another target waits for the end.

use std::collections::BTreeSet;
use std::sync::mpsc::Sender;

use crate::config::PortId;
use crate::registry::ControllerEntry;
use crate::shared::ControllerIdentity;

/// Commands that were checked before a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EarlierCommands {
    /// Distinguishes this change from others.
    pub(crate) number: u64,
    /// NQN of their subsystem. It may have been removed and added again since, which gives it
    /// another slot.
    pub(crate) subsystem_nqn: String,
    /// Their ports, and the devices at each, one bit for each.
    pub(crate) paths: Vec<(PortId, u128)>,
    /// The epoch that began with the change.
    pub(crate) before: u32,
}

impl EarlierCommands {
    /// The devices that such commands of a controller can have.
    pub(crate) fn devices(&self, controller: &ControllerIdentity) -> u128 {
        if controller.subsystem_nqn != self.subsystem_nqn {
            return 0;
        }
        let paths = self.paths.iter();
        paths
            .filter(|(port, _)| *port == controller.port)
            .fold(0, |all, (_, devices)| all | devices)
    }

    /// Whether a command was checked before the change.
    pub(crate) fn includes(&self, epoch: u32) -> bool {
        // Epochs wrap around. No work lasts for half of their range.
        (1..1 << 31).contains(&self.before.wrapping_sub(epoch))
    }
}

/// A change that is not complete.
#[derive(Debug)]
struct Transition {
    commands: EarlierCommands,
    /// Those that have not reported yet.
    reactors: BTreeSet<usize>,
    /// Dropped when the change is complete.
    _done: Sender<()>,
}

/// The changes that are not complete.
#[derive(Debug, Default)]
pub(crate) struct AnaTransitions {
    changes: u64,
    pending: Vec<Transition>,
}

impl AnaTransitions {
    /// Begins a change. `done` is dropped when it is complete.
    pub(crate) fn begin<'a>(
        &mut self,
        commands: EarlierCommands,
        controllers: impl Iterator<Item = &'a ControllerEntry>,
        done: Sender<()>,
    ) {
        let concerned = controllers.filter(|it| commands.devices(&it.shared.identity) != 0);
        let reactors: BTreeSet<usize> = concerned
            .flat_map(|it| it.io_queues.iter().map(|queue| queue.reactor))
            .collect();
        if reactors.is_empty() {
            return;
        }
        self.changes += 1;
        self.pending.push(Transition {
            commands: EarlierCommands {
                number: self.changes,
                ..commands
            },
            reactors,
            _done: done,
        });
    }

    /// Whether every change is complete.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// The commands whose end a reactor has to report.
    pub(crate) fn awaited_from(&self, reactor: usize) -> Vec<EarlierCommands> {
        let pending = self.pending.iter();
        pending
            .filter(|it| it.reactors.contains(&reactor))
            .map(|it| it.commands.clone())
            .collect()
    }

    /// A reactor has none of these commands any more.
    pub(crate) fn ended(&mut self, number: u64, reactor: usize) {
        for transition in &mut self.pending {
            if transition.commands.number == number {
                transition.reactors.remove(&reactor);
            }
        }
        self.pending.retain(|it| !it.reactors.is_empty());
    }
}
