//! Latency targets: an administrator changes them while hosts keep exports busy.

use nvme_target::PACING_INTERVAL;
use reactors::Nanos;

use super::World;
use crate::faults::Fault;
use crate::judge::Violation;

/// Probability of an action in an event, per thousand.
const ACTIONS_PERMILLE: u32 = 30;
/// Share of changes among the actions, per thousand.
const CHANGES_PERMILLE: u32 = 300;
/// Share of changes after which no export has a target, per thousand.
const ENDS_PERMILLE: u32 = 250;
/// Latency targets in microseconds: some that are always missed, and some that never are.
const TARGETS: [u64; 5] = [10, 100, 1000, 20_000, 10_000_000];
/// Rounds of commands of all hosts.
const ROUNDS: u64 = 60;
/// Time between two rounds: paces are adjusted several times within the rounds.
const ROUND_MAX: Nanos = Nanos::from_millis(40);

impl World {
    /// Sometimes changes the targets, or has all hosts send many commands.
    pub(super) fn pace_exports(&mut self) -> Result<(), Violation> {
        let random = &mut self.pace_random;
        let is_on = self.env.swarm.faults.has(Fault::Pace) && !self.changing;
        if !is_on || !random.permille(ACTIONS_PERMILLE) {
            return Ok(());
        }
        let has_targets = self.env.serving.latency_targets.iter().any(Option::is_some);
        if has_targets && !random.permille(CHANGES_PERMILLE) {
            return self.exceed(ROUNDS, ROUND_MAX);
        }
        if self.reconfigure(Fault::Pace, 0, 0)? {
            self.env.figures.fault(Fault::Pace);
        }
        Ok(())
    }

    /// Another target of an export, or none of any.
    pub(super) fn vary_targets(&mut self, targets: &mut [Option<u64>]) {
        let random = &mut self.pace_random;
        if random.permille(ENDS_PERMILLE) {
            return targets.fill(None);
        }
        let chosen = random.below(targets.len() as u64) as usize;
        targets[chosen] = random.coin().then(|| random.pick(&TARGETS));
    }

    /// Does what the pacing thread does, when it is due.
    pub(super) fn adjust_paces(&mut self) -> Result<(), Violation> {
        let now = self.env.time.now();
        let is_due = now >= self.paced_at + PACING_INTERVAL;
        let Some(appliance) = self.appliance.as_ref().filter(|_| is_due) else {
            return Ok(());
        };
        self.paced_at = now;
        let paces = appliance.adjust_paces(now);
        if self.changing {
            return Ok(());
        }
        self.env.paces.judge(&self.env.serving, &paces)
    }
}
