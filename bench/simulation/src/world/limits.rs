//! Rate limits: an administrator changes them while hosts use more than they permit.

use reactors::Nanos;

use super::World;
use crate::faults::Fault;
use crate::judge::Violation;
use crate::limits::{self, BURSTS_MS, Limit, LimitScope};

/// Probability of an action in an event, per thousand.
const ACTIONS_PERMILLE: u32 = 30;
/// Share of changes among the actions, per thousand.
const CHANGES_PERMILLE: u32 = 400;
/// Most times the smallest rate.
const TIMES: [u64; 3] = [1, 4, 16];
/// Rounds of commands that exceed limits.
const ROUNDS: u64 = 25;
/// Commands of each host in a round.
const IOS: u64 = 16;
/// Time between two rounds.
const ROUND_MAX: Nanos = Nanos::from_millis(2);
/// Most limits at once.
const LIMITS_MAX: u64 = 3;

impl World {
    /// Sometimes changes the limits, or has all hosts exceed them.
    pub(super) fn limit_hosts(&mut self) -> Result<(), Violation> {
        let random = &mut self.limit_random;
        let is_on = self.env.swarm.faults.has(Fault::Limit) && !self.changing;
        if !is_on || !random.permille(ACTIONS_PERMILLE) {
            return Ok(());
        }
        if self.env.serving.limits.is_empty() || random.permille(CHANGES_PERMILLE) {
            let host = random.below(self.hosts.len() as u64) as usize;
            let disk = random.below(self.env.disks.len() as u64) as usize;
            if random.coin() {
                self.exceed(1, ROUND_MAX)?;
            }
            if self.reconfigure(Fault::Limit, disk, host)? {
                self.env.figures.fault(Fault::Limit);
            }
            return Ok(());
        }
        self.exceed(ROUNDS, ROUND_MAX)
    }

    /// All hosts send commands for some rounds, with pauses between them.
    pub(super) fn exceed(&mut self, rounds: u64, pause_max: Nanos) -> Result<(), Violation> {
        for _ in 0..rounds {
            for host in 0..self.hosts.len() {
                self.hosts[host].send_io(&mut self.env.for_hosts(), IOS);
            }
            let pause = self.limit_random.below(pause_max.as_nanos());
            self.pass(Nanos(pause + 1))?;
        }
        Ok(())
    }

    /// Other limits: none, or some for the disk, the host and others.
    pub(super) fn vary_limits(&mut self, limits: &mut Vec<Limit>, disk: usize, host: usize) {
        let shape = self.env.swarm.hosts[host];
        let (iops_min, mib_min) = limits::smallest_rates(&self.env.swarm);
        let random = &mut self.limit_random;
        if random.permille(200) {
            return limits.clear();
        }
        // Some limits stay.
        let kept = random.below(limits.len() as u64 + 1) as usize;
        limits.truncate(kept);
        for _ in 0..random.between(1, LIMITS_MAX) {
            let scope = match random.below(3) {
                0 => LimitScope::Disk(disk),
                1 => LimitScope::Host(shape.identity),
                _ => LimitScope::HostAt(shape.identity, shape.subsystem),
            };
            let (reads, writes) = random.pick(&[(true, true), (true, false), (false, true)]);
            let overlaps = |it: &Limit| it.scope == scope;
            if limits.iter().any(overlaps) {
                continue;
            }
            let iops = random.coin().then(|| iops_min * random.pick(&TIMES));
            let by_bytes = iops.is_none() || random.coin();
            limits.push(Limit {
                scope,
                reads,
                writes,
                iops,
                mib_per_second: by_bytes.then(|| mib_min * random.pick(&TIMES)),
                burst_ms: random.pick(&BURSTS_MS),
            });
        }
        limits.truncate(LIMITS_MAX as usize);
    }
}
