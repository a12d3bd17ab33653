//! Hosts that mask reservation notifications and read their log without an event (Base 2.1
//! §8.1.22.2).

use reactors::Nanos;

use super::{RECOVERY_MAX, World};
use crate::faults::Fault;
use crate::judge::Violation;
use crate::random::Random;

/// Share of events in which a host does so, per thousand.
const STEPS_PERMILLE: u32 = 60;
/// Share of seeds in which hosts mask notifications, per thousand.
const MASKS_PERMILLE: u32 = 500;
/// The bits of the mask.
const MASK_BITS: u32 = 0b1110;
/// Time after which notifications are in the logs.
const LOGGED_AFTER: Nanos = Nanos::from_millis(2);

/// The notifications of a run.
pub(super) struct NoticeReaders {
    random: Random,
    /// Hosts mask notifications.
    mask: bool,
}

impl NoticeReaders {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed, 0xA3),
            mask: Random::new(seed, 0xA4).permille(MASKS_PERMILLE),
        }
    }
}

impl World {
    /// Tells hosts the notifications that they must get.
    pub(super) fn require_notices(&mut self) {
        if !self.env.swarm.faults.has(Fault::Reserve) {
            return;
        }
        for due in self.env.judge.reservations.notices.take_due() {
            let subsystem = self.env.swarm.subsystem_of_disk(due.disk);
            let shapes = self.env.swarm.hosts.clone();
            for (host, shape) in self.hosts.iter_mut().zip(shapes) {
                if shape.subsystem == subsystem {
                    host.expect_notice(&self.env.for_hosts(), due);
                }
            }
        }
    }

    /// Sometimes has a host mask notifications, get its mask, or read the log without an event.
    pub(super) fn handle_notices(&mut self) {
        let is_on = self.env.swarm.faults.has(Fault::Reserve);
        let NoticeReaders { random, mask } = &mut self.notice_readers;
        if !is_on || !random.permille(STEPS_PERMILLE) {
            return;
        }
        let host = random.below(self.hosts.len() as u64) as usize;
        if !self.hosts[host].can_reach_disks() {
            return;
        }
        let subsystem = self.env.swarm.hosts[host].subsystem;
        let disks: Vec<usize> = self.env.swarm.disks_of(subsystem).collect();
        let disk = random.pick(&disks);
        let env = &mut self.env.for_hosts();
        let host = &mut self.hosts[host];
        match random.below(8) {
            0..3 if *mask => {
                let disk = random.permille(750).then_some(disk);
                let bits = random.bits() as u32 & random.bits() as u32 & MASK_BITS;
                host.mask_notices(env, disk, bits);
            }
            3 if *mask => host.ask_notice_mask(env, disk),
            4..6 => host.read_notice(env, false),
            _ => host.read_notice(env, true),
        }
    }

    /// Has all hosts read their logs until they are empty.
    pub(super) fn empty_notices(&mut self) -> Result<(), Violation> {
        if !self.env.swarm.faults.has(Fault::Reserve) {
            return Ok(());
        }
        self.pass(LOGGED_AFTER)?;
        let now = self.env.time.now();
        let are_empty = self.run_until(now + RECOVERY_MAX, |world| {
            let env = &mut world.env.for_hosts();
            let mut are_empty = true;
            for host in &mut world.hosts {
                are_empty &= !host.is_serving() || host.empty_notices(env, now);
            }
            are_empty
        })?;
        if !are_empty && self.appliance.is_some() {
            let what = "a log of reservation notifications does not become empty".to_owned();
            return Err(Violation::Rule(what));
        }
        Ok(())
    }
}
