//! Excluded blocks on this reactor (`nvme/target/src/exclusions.rs`): holds back commands that would
//! change them, and reports when the devices have none left.

use reactors::Nanos;

use super::TargetCore;
use super::executions::{DeviceTag, Execution, ExecutionState, Owner};
use super::gate::GateDecision;
use crate::exclusions::{Block, Excluded};
use crate::io::{IoOperation, IoWork};

/// The excluded blocks that a core knows.
#[derive(Default)]
pub(super) struct Exclusions {
    known: Vec<Excluded>,
    /// Commands that wait for the end of an exclusion, oldest first. Some may have ended meanwhile.
    held: Vec<DeviceTag>,
}

impl Exclusions {
    /// Whether a command would change an excluded block.
    #[inline(always)]
    pub(super) fn hold(&self, work: &IoWork) -> bool {
        !self.known.is_empty() && self.any_conflicts(work)
    }

    #[cold]
    #[inline(never)]
    fn any_conflicts(&self, work: &IoWork) -> bool {
        self.known.iter().any(|it| changes(work, it.block))
    }

    /// Adds a command that was held back.
    pub(super) fn add_held(&mut self, tag: DeviceTag) {
        if !self.known.is_empty() {
            self.held.push(tag);
        }
    }

    fn is_waited_for(&self) -> bool {
        self.known.iter().any(|it| it.is_unclear)
    }

    /// Number of known blocks.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

/// Whether a command may change a block. The ranges of a Dataset Management are not known here.
fn changes(work: &IoWork, block: Block) -> bool {
    let is_in = work.lba <= block.lba && block.lba - work.lba < u64::from(work.blocks);
    let is_unknown = matches!(work.operation, IoOperation::Deallocate { .. });
    work.device == block.device && work.operation.changes_medium() && (is_in || is_unknown)
}

impl TargetCore {
    /// Handles messages of the registry's table.
    #[cold]
    pub(super) fn handle_exclusion_messages(&mut self, now: Nanos) {
        self.exclusion_messages_seen = self.target.exclusion_messages(self.reactor);
        let reactor = self.reactor;
        let latest = (self.target).change_exclusions(|table| table.for_reactor(reactor));
        let is_still = |it: &Excluded| latest.iter().any(|other| other.number == it.number);
        self.exclusions.known.retain(is_still);
        // Before a new exclusion of the same block holds them back again.
        self.start_held();
        self.exclusions.known.clone_from(&latest);
        self.report_clear_blocks();
        for pair in latest.iter().filter_map(|it| it.granted) {
            self.block_granted(pair, now);
        }
    }

    /// Reports the blocks that no command in a device changes any more.
    pub(super) fn report_clear_blocks(&mut self) {
        if !self.exclusions.is_waited_for() {
            return;
        }
        for place in 0..self.exclusions.known.len() {
            let Excluded {
                number,
                block,
                is_unclear,
                ..
            } = self.exclusions.known[place];
            let in_device = |execution: &Execution| match execution.state {
                ExecutionState::Submitted | ExecutionState::Orphan => true,
                ExecutionState::Fenced | ExecutionState::Paired => false,
            };
            let mut executions = self.executions.of_device(block.device);
            let has_change = executions.any(|(_, it)| in_device(it) && changes(&it.work, block));
            if !is_unclear || has_change {
                continue;
            }
            self.exclusions.known[place].is_unclear = false;
            let reactor = self.reactor;
            (self.target).change_exclusions(|table| table.report_clear(number, reactor));
        }
    }

    /// Starts the commands that no exclusion holds back any more, oldest first.
    fn start_held(&mut self) {
        for tag in std::mem::take(&mut self.exclusions.held) {
            let Some(execution) = self.executions.get(tag) else {
                continue;
            };
            let (Owner::Command(command), ExecutionState::Fenced) =
                (execution.owner, execution.state)
            else {
                continue;
            };
            let work = execution.work;
            match self.pass_admitted(command.queue, &work) {
                // The end of the fence starts it.
                GateDecision::Held => {}
                GateDecision::Open if self.exclusions.hold(&work) => {
                    self.exclusions.held.push(tag);
                }
                decision => self.start_held_command(command.queue, tag, &work, decision),
            }
        }
    }
}
