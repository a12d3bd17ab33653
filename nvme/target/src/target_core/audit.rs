//! Compares a core's resource accounts with the sums over the owners. For tests and simulations
//! that detect slow leaks; not called on the I/O path.

use super::TargetCore;
use super::queue::QueueKind;

/// The accounts of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreAudit {
    /// Execution slots reserved for queues, as the core counts them.
    pub reserved: usize,
    /// The same as the sum of the queues' quotas.
    pub quota_sum: usize,
    /// Admin queues.
    pub admin_queues: usize,
    /// I/O queues.
    pub io_queues: usize,
    /// Controllers, each of which has an admin queue.
    pub controllers: usize,
    /// Timers that are armed for a controller that does not exist.
    pub stale_timers: usize,
    /// Commands in execution.
    pub executions: usize,
    /// Commands in execution as the queues count them.
    pub executing: usize,
    /// Commands that were admitted and have no response yet.
    pub outstanding_commands: usize,
    /// Requests that wait until a device accepts them.
    pub waiting: usize,
    /// Fused operations whose commands are not all complete.
    pub pairs: usize,
    /// Blocks that this core knows to be excluded.
    pub exclusions: usize,
}

impl TargetCore {
    /// Collects the accounts.
    #[must_use]
    pub fn audit(&self) -> CoreAudit {
        let mut audit = CoreAudit {
            reserved: self.reserved.used(),
            controllers: self.controllers.len(),
            stale_timers: self
                .timers
                .armed()
                .filter(|slot| self.controllers.at(*slot).is_none())
                .count(),
            executions: self.executions.len(),
            waiting: self.devices.waiting(),
            pairs: self.pairs.len(),
            exclusions: self.exclusions.len(),
            ..CoreAudit::default()
        };
        for (_, queue) in self.queues.iter() {
            let is_admin = matches!(queue.kind, QueueKind::Admin { .. });
            audit.quota_sum += queue.slot_quota;
            audit.executing += queue.executing as usize;
            audit.outstanding_commands += queue.outstanding_commands as usize;
            if is_admin {
                audit.admin_queues += 1;
            } else {
                audit.io_queues += 1;
            }
        }
        audit
    }
}
