//! Hosts that replace the same block by Compare and Write at the same time, while others change it
//! in other ways (Base 2.1 §3.4.2).

use reactors::Nanos;

use super::World;
use crate::faults::Fault;
use crate::judge::{Extent, Violation};
use crate::random::Random;

/// Share of events with a competition, per thousand.
const ROUNDS_PERMILLE: u32 = 100;
/// Share of competitions at a disk that delays its requests, per thousand.
const DELAYS_PERMILLE: u32 = 400;
/// Time in which most writes complete.
const WRITE_TIME: Nanos = Nanos::from_millis(2);
/// Longest delay of a disk.
const HOLD_MAX: Nanos = Nanos::from_millis(20);
/// Blocks at the start of a disk that hosts compete for.
const BLOCKS: u64 = 4;
/// Most commands of a competition.
const COMMANDS_MAX: u64 = 12;
/// Most bytes of a write that competes.
const WRITE_BYTES_MAX: u64 = 4096;

/// The competitions of a run.
pub(super) struct Competition {
    random: Random,
}

impl Competition {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed, 0xC1),
        }
    }
}

impl World {
    /// Sometimes has hosts compete for a block.
    pub(super) fn compete(&mut self) -> Result<(), Violation> {
        if !self.env.swarm.faults.has(Fault::Fuse)
            || !self.competition.random.permille(ROUNDS_PERMILLE)
        {
            return Ok(());
        }
        let random = &mut self.competition.random;
        let disk = random.below(self.env.swarm.disks.len() as u64) as usize;
        let lba = random.below(BLOCKS.min(self.env.swarm.disks[disk].block_count));
        let block = Extent {
            disk,
            lba,
            blocks: 1,
        };
        let subsystem = self.env.swarm.subsystem_of_disk(disk);
        let hosts = self.env.swarm.hosts.iter().enumerate();
        let hosts = hosts.filter(|(_, shape)| shape.subsystem == subsystem);
        let hosts: Vec<usize> = hosts.map(|(host, _)| host).collect();
        let is_there = self.env.serving.namespaces[disk] && !self.env.disk_gone[disk];
        if hosts.is_empty() || !is_there || self.env.serving.read_only[disk] {
            return Ok(());
        }
        self.env.figures.fault(Fault::Fuse);
        let Some(known) = self.known_version(block, &hosts)? else {
            return Ok(());
        };
        self.delay_disk(disk);
        let mut kinds = self.choose_kinds();
        while let Some(kind) = kinds.pop() {
            let random = &mut self.competition.random;
            let host = &mut self.hosts[random.pick(&hosts)];
            let pause = Nanos(random.below(30_000));
            let is_later = random.permille(200);
            let mut env = self.env.for_hosts();
            match kind {
                0..=5 => {
                    host.replace(&mut env, block, known);
                }
                6 if host.can_reach_disks() => {
                    host.write_zeroes(&mut env, block);
                }
                7 if host.can_reach_disks() => {
                    let size = env.swarm.disks[disk].block_count;
                    let short = WRITE_BYTES_MAX / u64::from(env.swarm.disks[disk].block_size);
                    let most = short.clamp(1, size - lba);
                    let blocks = random.between(1, most) as u32;
                    host.write(&mut env, Extent { blocks, ..block });
                }
                8 => {
                    host.send_part(&mut env, block, known);
                }
                _ => {
                    host.read(&mut env, block);
                }
            }
            if is_later {
                self.pass(pause)?;
            }
            let is_gone = !self.env.serving.namespaces[disk] || self.env.serving.read_only[disk];
            if is_gone {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The kinds of the commands, the first at the end. A device often has a change of the block
    /// before the first Compare and Write of another queue.
    fn choose_kinds(&mut self) -> Vec<u64> {
        let random = &mut self.competition.random;
        let count = random.between(2, COMMANDS_MAX);
        let mut kinds: Vec<u64> = (0..count).map(|_| random.below(10)).collect();
        if random.coin() {
            kinds.push(random.between(6, 7));
        }
        kinds
    }

    /// The version that a block certainly has: that of a write, which may be sent now.
    fn known_version(&mut self, block: Extent, hosts: &[usize]) -> Result<Option<u64>, Violation> {
        let certain = |world: &Self| world.env.judge.certain(block).and_then(|it| it[0]);
        if certain(self).is_none() {
            let host = self.competition.random.pick(hosts);
            self.hosts[host].write(&mut self.env.for_hosts(), block);
            self.pass(WRITE_TIME)?;
        }
        Ok(certain(self))
    }

    /// Has a disk delay its requests.
    fn delay_disk(&mut self, disk: usize) {
        let random = &mut self.competition.random;
        let until = self.env.time.now() + Nanos(random.below(HOLD_MAX.as_nanos()));
        let is_free = self.env.disk_disturbed[disk] < until;
        let later = self.env.swarm.faults.has(Fault::Later);
        let delays = random.permille(DELAYS_PERMILLE) && is_free && !later;
        if delays && self.env.disks[disk].hold(until) {
            self.env.disk_disturbed[disk] = until;
            self.env.disturb_memory(until);
        }
    }
}
