//! Latency targets of the simulated configuration, and the judge of the exports that they slow down.

use nvme_target::{PaceReason, PaceSnapshot};
use reactors::Nanos;

use crate::judge::Violation;
use crate::plan::{SUBSYSTEMS, ServedConfig};

/// The longest delay of a command by the pace of its export.
pub const DELAY_MAX: Nanos = Nanos::from_secs(2);
/// The slowest pace in bytes of a second.
const SLOWEST: u64 = 1 << 20;
/// What the target's histograms may add to a latency, in parts of a thousand.
const INEXACT_PERMILLE: u64 = 60;

/// Judges the paces of exports. It knows the latencies that hosts have seen, which are longer than
/// those that the target measures.
#[derive(Clone, Debug, Default)]
pub struct PaceJudge {
    /// By subsystem: the longest latency of a command so far.
    slowest: [Nanos; SUBSYSTEMS.len()],
    /// Judged paces that had a limit.
    pub judged: u64,
}

impl PaceJudge {
    /// A command of a subsystem has ended after this time.
    pub fn note(&mut self, subsystem: usize, latency: Nanos) {
        let slowest = &mut self.slowest[subsystem];
        *slowest = latency.max(*slowest);
    }

    /// Judges the paces while no change is in progress.
    ///
    /// # Errors
    /// An export has a pace that no target requires, or that is too slow.
    pub fn judge(
        &mut self,
        served: &ServedConfig,
        paces: &[PaceSnapshot],
    ) -> Result<(), Violation> {
        let wrong = paces.iter().find_map(|pace| self.wrong(served, pace));
        let limited = paces.iter().filter(|it| it.limit.is_some());
        self.judged += limited.count() as u64;
        match wrong {
            Some(what) => Err(Violation::Rule(what)),
            None => Ok(()),
        }
    }

    fn wrong(&self, served: &ServedConfig, pace: &PaceSnapshot) -> Option<String> {
        let name = &pace.subsystem;
        let subsystem = SUBSYSTEMS.iter().position(|it| it == name);
        if pace.reason != PaceReason::Latency || !subsystem.is_some_and(|it| served.subsystems[it])
        {
            return Some(format!("a pace that nothing requires: {pace:?}"));
        }
        if subsystem.is_some_and(|it| served.latency_targets[it].is_some()) {
            return Some(format!("{name} has a latency target and is slowed down"));
        }
        let limit = pace.limit?;
        if limit < SLOWEST {
            return Some(format!(
                "{name} is slowed down to {limit} bytes in a second"
            ));
        }
        let targets = served.latency_targets.iter().zip(&served.subsystems);
        let mut missed = targets
            .zip(self.slowest)
            .filter(|((target, is_there), slowest)| {
                let seen = slowest.as_nanos().saturating_mul(1000 + INEXACT_PERMILLE) / 1000;
                **is_there && target.is_some_and(|micros| micros * 1000 < seen)
            });
        match missed.next() {
            Some(_) => None,
            None => Some(format!(
                "{name} is slowed down, but no export has missed its target: {:?}",
                self.slowest
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use nvme_target::Throttled;

    use super::*;
    use crate::swarm::{Limits, Swarm};

    fn served(targets: [Option<u64>; 2]) -> ServedConfig {
        let swarm = Swarm::of(1, &Limits::default());
        ServedConfig {
            subsystems: vec![true; 2],
            latency_targets: targets.to_vec(),
            ..ServedConfig::all(&swarm)
        }
    }

    fn pace(subsystem: usize, limit: u64) -> [PaceSnapshot; 1] {
        [PaceSnapshot {
            subsystem: SUBSYSTEMS[subsystem].to_owned(),
            reason: PaceReason::Latency,
            limit: Some(limit),
            missed_by: None,
            throttled: Throttled {
                commands: 0,
                waited: Nanos::ZERO,
            },
        }]
    }

    #[test]
    fn only_missed_targets_slow_others_down() {
        let served = served([Some(100), None]);
        let mut judge = PaceJudge::default();
        judge.note(0, Nanos::from_micros(90));
        judge.note(1, Nanos::from_secs(1));
        assert!(judge.judge(&served, &pace(1, SLOWEST)).is_err(), "kept");
        judge.note(0, Nanos::from_micros(99));
        assert!(judge.judge(&served, &pace(1, SLOWEST)).is_ok());
        assert!(judge.judge(&served, &pace(1, SLOWEST - 1)).is_err());
        assert!(judge.judge(&served, &pace(0, SLOWEST)).is_err());
        assert_eq!(judge.judged, 4);
    }
}
