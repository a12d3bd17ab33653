//! Hosts that need memory of one size at the same time: one of them far more than its share.

use reactors::Nanos;

use super::World;
use crate::fairness::PathReport;
use crate::faults::Fault;
use crate::judge::Violation;

/// Share of events with a contention, per thousand, in seeds that can judge it.
const CONTENTIONS_PERMILLE: u32 = 25;
/// Time for earlier commands to complete.
const CALM: Nanos = Nanos::from_millis(1);
/// Bursts of the greediest host.
const BURSTS: u64 = 8;
/// Writes of a burst.
const BURST: u64 = 24;
/// The burst after which the other hosts need memory too.
const OTHERS_AFTER: u64 = 2;
/// Ticks of the fabric within which a request is executed.
const FABRIC_TICKS: u64 = 8;

impl World {
    /// Sometimes has one host fill its queues with writes of one size, several times, while every
    /// other host sends a single one.
    pub(super) fn contend(&mut self) -> Result<(), Violation> {
        let is_wanted = self.shows_memory_waits && self.env.swarm.faults.has(Fault::Contend);
        let random = &mut self.contention_random;
        if !is_wanted || self.changing || !random.permille(CONTENTIONS_PERMILLE) {
            return Ok(());
        }
        let in_capsule = u64::from(self.env.swarm.in_capsule_bytes);
        let transfer_max = self.env.swarm.transfer_max as u64;
        // Data in capsules is not requested.
        if transfer_max <= in_capsule || self.hosts.len() < 2 {
            return Ok(());
        }
        // Of the largest size there are the fewest slices.
        let bytes_min = match random.permille(700) {
            true => in_capsule.max(transfer_max / 2) + 1,
            false => in_capsule + 1,
        };
        let bytes = random.between(bytes_min, transfer_max) as usize;
        let greedy = random.below(self.hosts.len() as u64) as usize;
        self.env.figures.fault(Fault::Contend);
        self.pass(CALM)?;
        for burst in 0..BURSTS {
            self.hosts[greedy].send_writes(&mut self.env.for_hosts(), bytes, BURST);
            if burst == OTHERS_AFTER {
                for host in (0..self.hosts.len()).filter(|it| *it != greedy) {
                    self.hosts[host].send_writes(&mut self.env.for_hosts(), bytes, 1);
                }
            }
            let pause = Nanos::from_micros(self.contention_random.between(10, 200));
            self.pass(pause)?;
        }
        Ok(())
    }

    /// Judges the order in which hosts get memory, where they wait for it.
    pub(super) fn judge_fairness(&mut self) -> Result<(), Violation> {
        if !self.shows_memory_waits {
            return Ok(());
        }
        let env = self.env.for_hosts();
        let reports = self.hosts.iter().map(|it| it.memory_waits(&env));
        let reports: Vec<PathReport> = reports.collect();
        let ticks = self.env.swarm.rdma.tick.as_nanos() * FABRIC_TICKS;
        let latency_max = self.env.network.latency_max.max(Nanos(ticks));
        let now = self.env.time.now();
        let judged = self.fairness.turn_ended(now, &reports, latency_max);
        self.env.figures.memory_waits = self.fairness.waits_judged;
        self.env.figures.overtaken_max = self.fairness.overtaken_max;
        judged
    }
}
