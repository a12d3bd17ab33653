//! Detects slow leaks: compares the appliance's resource counts with the sum over their owners.

use nvme_target::CoreAudit;

use super::Appliance;

/// Resources that the hosts use in an idle appliance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Admin queues, each with a controller.
    pub admin_queues: usize,
    /// I/O queues.
    pub io_queues: usize,
}

impl Appliance {
    /// Timers of ended controllers, on all cores.
    #[must_use]
    pub fn stale_timers(&self) -> usize {
        let cores = self.cores.iter();
        cores.map(|core| core.borrow().audit().stale_timers).sum()
    }

    /// Compares every account with `held` and with the others while no command is in flight.
    ///
    /// # Errors
    /// The accounts that differ.
    pub fn check_accounts(&self, held: Held, leases_at_rest: Option<u64>) -> Result<(), String> {
        let mut sum = CoreAudit::default();
        for core in &self.cores {
            let audit = core.borrow().audit();
            if audit.reserved != audit.quota_sum || audit.stale_timers > 0 {
                return Err(format!("a core's accounts do not agree: {audit:?}"));
            }
            sum.admin_queues += audit.admin_queues;
            sum.io_queues += audit.io_queues;
            sum.controllers += audit.controllers;
            sum.executions += audit.executions;
            sum.executing += audit.executing;
            sum.outstanding_commands += audit.outstanding_commands;
            sum.waiting += audit.waiting;
            sum.pairs += audit.pairs;
            sum.exclusions += audit.exclusions;
        }
        let busy = sum.executions + sum.executing + sum.outstanding_commands + sum.waiting;
        if busy + sum.pairs + sum.exclusions > 0 {
            return Err(format!("commands are under way at rest: {sum:?}"));
        }
        let snapshot = self.target.snapshot();
        if (sum.admin_queues, sum.io_queues) != (held.admin_queues, held.io_queues)
            || sum.controllers != sum.admin_queues
        {
            let hosts = snapshot
                .controllers
                .iter()
                .map(|it| (&it.host_nqn, it.kind, it.admin_reactor));
            let hosts: Vec<_> = hosts.collect();
            return Err(format!(
                "hosts have {held:?}, and the cores {sum:?}, of {hosts:?}"
            ));
        }
        let io_queues = snapshot.controllers.iter().map(|it| it.io_queues.len());
        let registered = (snapshot.controllers.len(), io_queues.sum::<usize>());
        if registered != (sum.controllers, sum.io_queues) {
            return Err(format!(
                "{registered:?} are registered, and {sum:?} are there"
            ));
        }
        let reactors = 0..self.target.reactors();
        let placed: u32 = reactors.map(|it| self.placement.connections(it)).sum();
        let connections = held.admin_queues + held.io_queues;
        if placed as usize != connections {
            return Err(format!(
                "{placed} connections are placed, and {connections} are there"
            ));
        }
        let slices = self.slices_in_use();
        if slices > 0 {
            return Err(format!(
                "{slices} slices of the memory of drives are in use at rest"
            ));
        }
        let classes = self.arena.counters().classes;
        let taken: u64 = classes.iter().map(|class| class.taken).sum();
        if leases_at_rest.is_some_and(|most| taken > most) {
            return Err(format!("{taken} slices of the arena are out at rest"));
        }
        Ok(())
    }
}
