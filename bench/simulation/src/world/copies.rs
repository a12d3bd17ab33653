//! Hosts that copy blocks of a disk or between disks, while others write and zero the sources and read the
//! destination (NVM 1.1 §3.3.2).

use reactors::Nanos;

use super::World;
use crate::faults::Fault;
use crate::host::copying::{BYTES_MAX, RANGES_MAX};
use crate::judge::{Extent, Violation};
use crate::random::Random;

/// Share of events with copies, per thousand.
const ROUNDS_PERMILLE: u32 = 60;
/// The same where drives have several ways to copy.
const DRIVE_ROUNDS_PERMILLE: u32 = 120;
/// Share of rounds at a disk that delays its requests, per thousand.
const DELAYS_PERMILLE: u32 = 400;
/// Longest delay of a disk.
const HOLD_MAX: Nanos = Nanos::from_millis(20);
/// Most commands of a round.
const COMMANDS_MAX: u64 = 12;
/// Most blocks of a usual range.
const BLOCKS_MAX: u64 = 8;
/// Share of copies to a read-only namespace that are sent, per thousand.
const PROTECTED_PERMILLE: u32 = 300;
/// Most plans of a Copy until the judge can tell what one of them copies.
const PLANS_MAX: u32 = 6;
/// Share of copies whose sources may be on other disks, per thousand.
const ACROSS_PERMILLE: u32 = 500;
/// Share of commands of a round after which a mishap strikes the drive, if such are on, per thousand.
const MISHAPS_PERMILLE: u32 = 25;
/// Share of commands of a round after which a host aborts commands or loses a connection, per thousand.
const DISTURBANCES_PERMILLE: u32 = 60;
/// Share of copies that are as long as possible, per thousand.
const LONG_PERMILLE: u32 = 60;

/// The copies of a run.
pub(super) struct Copying {
    random: Random,
    /// Random stream for disturbances of copies.
    disturbances: Random,
}

impl Copying {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed, 0xC3),
            disturbances: Random::new(seed, 0xCB),
        }
    }

    /// Source ranges and the first block of their destination, a disk of `size` blocks of which a Copy
    /// may have `most`. The sources are on it, or on any of the disks `others`, which have blocks of
    /// the same size.
    fn plan(
        &mut self,
        (disk, size): (usize, u64),
        others: &[(usize, u64)],
        most: u64,
    ) -> (Vec<Extent>, u64) {
        let random = &mut self.random;
        let is_long = random.permille(LONG_PERMILLE);
        let is_across = !others.is_empty() && random.permille(ACROSS_PERMILLE);
        let count = match random.permille(500) {
            true => 1,
            false => random.between(1, RANGES_MAX),
        };
        let (mut sources, mut left) = (Vec::new(), most.min(size));
        for _ in 0..count {
            let (disk, size) = match is_across && random.permille(700) {
                true => random.pick(others),
                false => (disk, size),
            };
            let longest = if is_long { left } else { BLOCKS_MAX.min(left) };
            let longest = longest.min(size);
            if longest == 0 {
                break;
            }
            let blocks = random.between(1, longest);
            let lba = random.between(0, size - blocks);
            sources.push(Extent {
                disk,
                lba,
                blocks: blocks as u32,
            });
            left -= blocks;
        }
        let total: u64 = sources.iter().map(|it| u64::from(it.blocks)).sum();
        (sources, random.between(0, size - total))
    }
}

impl World {
    /// Sometimes has hosts copy blocks of a disk.
    pub(super) fn copy_blocks(&mut self) -> Result<(), Violation> {
        let swarm = &self.env.swarm;
        let permille = match swarm.faults.has(Fault::Drive) && swarm.disks.len() > 1 {
            true => DRIVE_ROUNDS_PERMILLE,
            false => ROUNDS_PERMILLE,
        };
        if !swarm.faults.has(Fault::Copy) || !self.copying.random.permille(permille) {
            return Ok(());
        }
        let random = &mut self.copying.random;
        let disk = random.below(self.env.swarm.disks.len() as u64) as usize;
        let subsystem = self.env.swarm.subsystem_of_disk(disk);
        let hosts = self.env.swarm.hosts.iter().enumerate();
        let hosts = hosts.filter(|(_, shape)| shape.subsystem == subsystem);
        let hosts: Vec<usize> = hosts.map(|(host, _)| host).collect();
        if !hosts.iter().any(|host| self.hosts[*host].can_reach_disks()) {
            return Ok(());
        }
        self.env.figures.fault(Fault::Copy);
        self.delay_disk_of_copies(disk);
        for _ in 0..self.copying.random.between(2, COMMANDS_MAX) {
            let hosts = hosts.iter().copied();
            let hosts = hosts.filter(|host| self.hosts[*host].can_reach_disks());
            let hosts: Vec<usize> = hosts.collect();
            let is_there = self.env.serving.namespaces[disk] && !self.env.disk_gone[disk];
            if hosts.is_empty() || !is_there {
                return Ok(());
            }
            self.copy_once(disk, &hosts);
            self.disturb_copying(disk, &hosts);
            let random = &mut self.copying.random;
            if random.permille(200) {
                let pause = Nanos(random.below(30_000));
                self.pass(pause)?;
            }
        }
        Ok(())
    }

    /// Has a host copy a few blocks, or access those that were copied last.
    fn copy_once(&mut self, disk: usize, hosts: &[usize]) {
        let shape = self.env.swarm.disks[disk];
        let size = shape.block_count;
        let most = BYTES_MAX.min(self.env.swarm.transfer_max as u64) / u64::from(shape.block_size);
        let is_protected = self.env.serving.read_only[disk];
        let others = self.sources_of_copies(disk);
        let host = &mut self.hosts[self.copying.random.pick(hosts)];
        let mut env = self.env.for_hosts();
        let near = |lba: u64| Extent {
            disk,
            lba,
            blocks: BLOCKS_MAX.min(most).min(size - lba) as u32,
        };
        let (mut sources, mut to) = self.copying.plan((disk, size), &others, most);
        let copies = !is_protected || self.copying.random.permille(PROTECTED_PERMILLE);
        if copies && self.copying.random.permille(600) {
            let fua = self.copying.random.permille(250);
            for _ in 0..PLANS_MAX {
                if host.copy(&mut env, &sources, (disk, to), fua) {
                    break;
                }
                (sources, to) = self.copying.plan((disk, size), &others, most);
            }
        }
        let source = sources.first().map_or(0, |it| it.lba.min(size - 1));
        let random = &mut self.copying.random;
        match random.below(8) {
            0 if !is_protected => {
                host.write(&mut env, near(source));
            }
            1 if !is_protected => {
                host.write_zeroes(&mut env, near(source));
            }
            2 if !is_protected => {
                host.write(&mut env, near(to));
            }
            3 if !is_protected => {
                host.copy_wrongly(&mut env, random, disk);
            }
            4 => {}
            _ => {
                host.read(&mut env, near(to));
            }
        }
    }

    /// Sometimes has a mishap strike the drive of a disk, or a host abort its commands, or lose its
    /// controller or a connection, while copies are under way.
    fn disturb_copying(&mut self, disk: usize, hosts: &[usize]) {
        let random = &mut self.copying.disturbances;
        if random.permille(MISHAPS_PERMILLE) {
            let choice = random.bits();
            self.strike_copying_drive(disk, choice);
        }
        let random = &mut self.copying.disturbances;
        if !random.permille(DISTURBANCES_PERMILLE) {
            return;
        }
        let faults = self.env.swarm.faults;
        let enabled = [Fault::Abort, Fault::Reset, Fault::Cut, Fault::Disconnect].into_iter();
        let enabled: Vec<Fault> = enabled.filter(|it| faults.has(*it)).collect();
        if enabled.is_empty() {
            return;
        }
        let (fault, host) = (random.pick(&enabled), random.pick(hosts));
        self.misbehave(host, fault);
    }

    /// The other disks that hosts may copy to a disk, with their sizes.
    fn sources_of_copies(&self, disk: usize) -> Vec<(usize, u64)> {
        let swarm = &self.env.swarm;
        let disks = swarm.disks_of(swarm.subsystem_of_disk(disk));
        let fit = disks.filter(|other| {
            let is_there = self.env.serving.namespaces[*other] && !self.env.disk_gone[*other];
            let is_same = swarm.disks[*other].block_size == swarm.disks[disk].block_size;
            *other != disk && is_there && is_same
        });
        fit.map(|it| (it, swarm.disks[it].block_count)).collect()
    }

    /// Has a disk delay its requests.
    fn delay_disk_of_copies(&mut self, disk: usize) {
        let random = &mut self.copying.random;
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
