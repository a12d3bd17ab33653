//! What a core has given out, counted twice: as it keeps account of it, and by its owners. For
//! tests and simulations that look for slow leaks; nothing here is called while commands are
//! served.

use super::TargetCore;
use super::queue::QueueKind;

/// The accounts of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreAudit {
    /// Executions that are promised to queues, as the core counts them.
    pub reserved: usize,
    /// The same as the sum over the queues.
    pub promised: usize,
    /// Admin queues.
    pub admin_queues: usize,
    /// I/O queues.
    pub io_queues: usize,
    /// Controllers, each of which has an admin queue.
    pub controllers: usize,
    /// Timers that are armed for a controller that is not there.
    pub stray_timers: usize,
    /// Commands in execution.
    pub executions: usize,
    /// Commands that queues count as being in execution.
    pub executing: usize,
    /// Commands that were checked and are not answered.
    pub unanswered: usize,
    /// Requests that wait for a device to take them.
    pub waiting: usize,
}

impl TargetCore {
    /// Counts what is given out.
    #[must_use]
    pub fn audit(&self) -> CoreAudit {
        let mut audit = CoreAudit {
            reserved: self.reserved.used(),
            controllers: self.controllers.len(),
            stray_timers: self
                .timers
                .armed()
                .filter(|slot| self.controllers.at(*slot).is_none())
                .count(),
            executions: self.executions.len(),
            waiting: self.devices.waiting(),
            ..CoreAudit::default()
        };
        for (_, queue) in self.queues.iter() {
            let is_admin = matches!(queue.kind, QueueKind::Admin { .. });
            audit.promised += queue.slot_quota;
            audit.executing += queue.executing as usize;
            audit.unanswered += queue.unanswered as usize;
            if is_admin {
                audit.admin_queues += 1;
            } else {
                audit.io_queues += 1;
            }
        }
        audit
    }
}
