//! The commands that delay a hand-over.

use super::{Command, Executions, Owner};

impl Executions {
    /// Identifier and opcode of each command of a queue, the oldest first.
    pub(crate) fn commands_of(&self, queue: u32) -> Vec<(u16, u8)> {
        let mut commands = Vec::new();
        let mut slot = self.newest.get(queue as usize).copied();
        while let Some(execution) = slot.and_then(|slot| self.slots.at(slot)) {
            if let Owner::Command(Command { id, .. }) = execution.owner {
                commands.push((id, execution.work.operation.opcode().0));
            }
            slot = Some(execution.of_queue.next);
        }
        commands.reverse();
        commands
    }
}
