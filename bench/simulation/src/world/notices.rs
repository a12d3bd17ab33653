//! Hosts that mask reservation notifications and read their log without an event (Base 2.1
//! §8.1.22.2).

use reactors::Nanos;

use super::reserving::{acquire, key_of, register, release};
use super::{RECOVERY_MAX, World};
use crate::faults::Fault;
use crate::judge::Violation;
use crate::random::Random;
use crate::reservations::Sendable;
use crate::reservations::model::{ReservationCommand, Reservations};

/// Share of events in which a host does so, per thousand.
const STEPS_PERMILLE: u32 = 60;
/// Share of events in which a host causes several notifications in succession, per thousand.
const BURSTS_PERMILLE: u32 = 15;
/// Its commands at most, and the longest time for each.
const BURST_MAX: u64 = 12;
const BURST_STEP_MAX: Nanos = Nanos::from_millis(5);
/// Share of these, in seeds with masks, in which the other host masks some before, per thousand,
/// and the time for that.
const BURST_MASKED_PERMILLE: u32 = 600;
const MASKED_WITHIN: Nanos = Nanos::from_millis(1);
/// Longest time for which another host does not read its log meanwhile.
const UNREAD_MAX: Nanos = Nanos::from_millis(500);
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

/// A command of a host that notifies the other registrants, or that prepares one.
fn next_change(random: &mut Random, identity: usize, state: &Reservations) -> ReservationCommand {
    let Some(key) = state.keys.get(&identity).copied() else {
        return register(0, false, 0, key_of(random, identity));
    };
    match state.held {
        _ if random.permille(100) => release(1, 1, key),
        // Types whose release notifies registrants.
        None => acquire(0, random.between(3, 6) as u8, key, 0),
        Some(held) if state.is_holder(identity) => release(0, held.rtype, key),
        Some(held) => {
            let holder = held.holder.and_then(|it| state.keys.get(&it));
            acquire(
                1,
                random.between(3, 6) as u8,
                key,
                holder.copied().unwrap_or(0),
            )
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
            // A device without a namespace has no notifications.
            if !self.was_there(due.disk, due.sent_at) {
                continue;
            }
            let subsystem = self.env.swarm.subsystem_of_disk(due.disk);
            let shapes = self.env.swarm.hosts.clone();
            for (host, shape) in self.hosts.iter_mut().zip(shapes) {
                if shape.subsystem == subsystem {
                    host.expect_notice(&self.env.for_hosts(), due);
                }
            }
        }
    }

    /// Whether a disk has had its namespace since `since`.
    fn was_there(&self, disk: usize, since: Nanos) -> bool {
        let changed = self.env.namespace_changed[disk];
        let is_old = changed == Nanos::ZERO || changed < since;
        is_old && self.env.serving.namespaces[disk] && !self.env.disk_gone[disk]
    }

    /// Sometimes has a host mask notifications, get its mask, or read the log without an event.
    pub(super) fn handle_notices(&mut self) -> Result<(), Violation> {
        let is_on = self.env.swarm.faults.has(Fault::Reserve);
        let NoticeReaders { random, mask } = &mut self.notice_readers;
        if is_on && random.permille(BURSTS_PERMILLE) {
            return self.cause_notices();
        }
        if !is_on || !random.permille(STEPS_PERMILLE) {
            return Ok(());
        }
        let by = random.below(self.hosts.len() as u64) as usize;
        if !self.hosts[by].can_reach_disks() {
            return Ok(());
        }
        let subsystem = self.env.swarm.hosts[by].subsystem;
        let disks: Vec<usize> = self.env.swarm.disks_of(subsystem).collect();
        let (disk, step) = (random.pick(&disks), random.below(10));
        if step == 5 {
            self.set_persistence(by, disk);
            return Ok(());
        }
        let env = &mut self.env.for_hosts();
        let host = &mut self.hosts[by];
        match step {
            0..3 if *mask => {
                let disk = random.permille(750).then_some(disk);
                let bits = random.bits() as u32 & random.bits() as u32 & MASK_BITS;
                host.mask_notices(env, disk, bits);
            }
            3 if *mask => host.ask_notice_mask(env, disk),
            4 => host.ask_persistence(env, disk),
            6..8 => host.read_notice(env, false),
            _ => host.read_notice(env, true),
        }
        Ok(())
    }

    /// Has a host change the Persist Through Power Loss state of a disk.
    fn set_persistence(&mut self, by: usize, disk: usize) {
        let reservations = &self.env.judge.reservations;
        let is_possible = reservations.sendable(disk, false) == Sendable::Anything;
        let Some(can_persist) = reservations.can_persist(disk).filter(|_| is_possible) else {
            return;
        };
        let random = &mut self.notice_readers.random;
        let persists = random.permille(if can_persist { 500 } else { 200 });
        if self.is_settled(disk) {
            self.hosts[by].set_persistence(&mut self.env.for_hosts(), disk, persists);
            self.env.judge.lift_fences();
        }
    }

    /// Has a host cause several notifications, which another one reads later.
    fn cause_notices(&mut self) -> Result<(), Violation> {
        let random = &mut self.notice_readers.random;
        let (shapes, hosts) = (&self.env.swarm.hosts, &self.hosts);
        let pairs = (0..hosts.len()).flat_map(|by| (0..hosts.len()).map(move |to| (by, to)));
        let pairs = pairs.filter(|(by, to)| {
            let are_two = shapes[*by].identity != shapes[*to].identity;
            let are_there = hosts[*by].can_reach_disks() && hosts[*to].can_reach_disks();
            are_two && are_there && shapes[*by].subsystem == shapes[*to].subsystem
        });
        let pairs: Vec<(usize, usize)> = pairs.collect();
        if pairs.is_empty() {
            return Ok(());
        }
        let (by, to) = random.pick(&pairs);
        let disks = self.env.swarm.disks_of(shapes[by].subsystem);
        let disks: Vec<usize> = disks.filter(|it| self.is_settled(*it)).collect();
        if disks.is_empty() {
            return Ok(());
        }
        let random = &mut self.notice_readers.random;
        let disk = random.pick(&disks);
        let until = self.env.time.now() + Nanos(random.below(UNREAD_MAX.as_nanos()));
        self.hosts[to].leave_notices(until);
        let NoticeReaders { random, mask } = &mut self.notice_readers;
        if *mask && random.permille(BURST_MASKED_PERMILLE) {
            let bits = random.bits() as u32 & MASK_BITS;
            self.hosts[to].mask_notices(&mut self.env.for_hosts(), Some(disk), bits);
            self.pass(MASKED_WITHIN)?;
        }
        for _ in 0..self.notice_readers.random.between(4, BURST_MAX) {
            let reservations = &self.env.judge.reservations;
            let is_possible = reservations.sendable(disk, false) == Sendable::Anything;
            let Some(state) = reservations.certain(disk).filter(|_| is_possible) else {
                return Ok(());
            };
            let identity = |host: usize| self.env.swarm.hosts[host].identity;
            let random = &mut self.notice_readers.random;
            let (host, command) = match state.keys.contains_key(&identity(to)) {
                true => (by, next_change(random, identity(by), state)),
                false => (to, register(0, false, 0, key_of(random, identity(to)))),
            };
            let env = &mut self.env.for_hosts();
            if self.hosts[host].send_reservation(env, disk, command) {
                self.env.figures.fault(Fault::Reserve);
            }
            self.env.judge.lift_fences();
            let by = self.env.time.now() + BURST_STEP_MAX;
            self.run_until(by, |world| {
                let reservations = &world.env.judge.reservations;
                reservations.sendable(disk, false) != Sendable::Nothing
            })?;
        }
        Ok(())
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
