//! Hosts that reserve disks and fence each other (Base 2.1 §8.1.22).

use reactors::Nanos;

use super::{RECOVERY_MAX, World};
use crate::faults::Fault;
use crate::judge::{Extent, Violation};
use crate::random::Random;
use crate::reservations::Sendable;
use crate::reservations::model::{ReservationCommand, Reservations, WRITE_EXCLUSIVE};

/// Share of events with a reservation command, per thousand.
const COMMANDS_PERMILLE: u32 = 250;
/// Share of these in which a host fences another one that is writing, per thousand.
const FENCES_PERMILLE: u32 = 250;
/// Share of commands that are refused whatever the state is, per thousand.
const INVALID_PERMILLE: u32 = 60;
/// Share of commands with a wrong key, a reserved type or Ignore Existing Key in vain, per thousand.
const WRONG_PERMILLE: u32 = 100;
/// Share of seeds in which two hosts send commands for a disk at the same time, per thousand.
const RACES_PERMILLE: u32 = 300;
/// Share of fenced hosts that lose a connection before, per thousand.
const CUT_PERMILLE: u32 = 400;
/// Writes of a host before it is fenced.
const FENCED_WRITES: u64 = 6;
/// Time for the commands of a fence to arrive.
const FENCE_PAUSE_MAX: Nanos = Nanos::from_micros(400);
/// Time for a host to register.
const REGISTERED_WITHIN: Nanos = Nanos::from_millis(1);
/// Longest delay of a disk during a fence.
const FENCE_HOLD_MAX: Nanos = Nanos::from_millis(300);
/// Fenced ranges that are read later, and when.
const CHECKED_MAX: usize = 16;
const CHECKED_WITHIN: Nanos = Nanos::from_millis(500);
/// Time after which a changed namespace is usually visible.
const SETTLED_AFTER: Nanos = Nanos::from_millis(10);
/// The bit in which a wrong key differs. Keys of hosts differ only in their upper halves.
const WRONG_KEY: u64 = 1 << 63;
/// A reservation type that is reserved.
const NO_TYPE: u8 = 7;

/// The reservation commands of a run.
pub(super) struct Reserving {
    random: Random,
    /// Two hosts may send commands for a disk at the same time.
    races: bool,
    /// Ranges of fenced writes to read, with the time and the host.
    checks: Vec<(Nanos, usize, Extent)>,
}

impl Reserving {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed, 0xA1),
            races: Random::new(seed, 0xA2).permille(RACES_PERMILLE),
            checks: Vec::new(),
        }
    }

    /// Forgets the reads that were planned, after the end of the appliance.
    pub(super) fn reset(&mut self) {
        self.checks.clear();
    }
}

/// A key of a host. Sometimes hosts have the same key.
pub(super) fn key_of(random: &mut Random, identity: usize) -> u64 {
    let owner = match random.permille(150) {
        true => 0,
        false => identity as u64 + 1,
    };
    (owner + 1) << 40 | random.below(2) << 52
}

/// A command for a disk in this state.
fn choose(random: &mut Random, identity: usize, state: &Reservations) -> ReservationCommand {
    let is_wrong = random.permille(WRONG_PERMILLE);
    let new = key_of(random, identity);
    let ignores_key = random.permille(200);
    let rtype = random.between(1, 6) as u8;
    let Some(key) = state.keys.get(&identity).copied() else {
        return match random.below(12) {
            0 => ReservationCommand::Report,
            1 => acquire(random.below(3) as u8, rtype, new, 0),
            2 => release(random.below(2) as u8, rtype, new),
            3 => register(random.between(1, 2) as u8, ignores_key, new, new),
            _ => register(0, ignores_key, 0, new),
        };
    };
    let current = match is_wrong {
        true => key ^ WRONG_KEY,
        false => key,
    };
    let held = state.held.map_or(rtype, |it| it.rtype);
    let other = other_key(random, identity, state);
    match random.below(24) {
        0..6 => acquire(0, if is_wrong { NO_TYPE } else { rtype }, key, 0),
        6..9 => acquire(1, rtype, current, other),
        9..14 => acquire(2, rtype, current, other),
        14..17 => release(0, if random.permille(850) { held } else { rtype }, current),
        17 => release(1, rtype, current),
        18 => register(2, ignores_key, current, new),
        19 => register(1, ignores_key, current, 0),
        20 => register(0, ignores_key, 0, if is_wrong { new } else { key }),
        21 => ReservationCommand::Acquire {
            action: random.below(3) as u8,
            ignores_key: true,
            rtype,
            current,
            preempted: other,
        },
        _ => ReservationCommand::Report,
    }
}

/// A change of the Persist Through Power Loss state, if it is known whether there is one.
fn choose_persistence(random: &mut Random, can_persist: Option<bool>) -> u8 {
    match can_persist {
        Some(true) => random.pick(&[0, 0, 0, 2, 3, 3, 3]),
        Some(false) if random.permille(WRONG_PERMILLE) => random.pick(&[1, 2, 3]),
        _ => 0,
    }
}

/// The same command with a change of the Persist Through Power Loss state, if it has room for one.
fn persisting(mut command: ReservationCommand, change: u8) -> ReservationCommand {
    if let ReservationCommand::Register { cptpl, .. } = &mut command {
        *cptpl = change;
    }
    command
}

/// The key of another registrant, or sometimes another key.
fn other_key(random: &mut Random, identity: usize, state: &Reservations) -> u64 {
    let others = state.keys.iter().filter(|(host, _)| **host != identity);
    let others: Vec<u64> = others.map(|(_, key)| *key).collect();
    let holder = state.held.and_then(|it| state.keys.get(&it.holder?));
    match random.below(10) {
        0 => 0,
        1 => WRONG_KEY,
        2..6 if holder.is_some() => holder.copied().unwrap_or_default(),
        _ if others.is_empty() => 0,
        _ => random.pick(&others),
    }
}

pub(super) fn register(
    action: u8,
    ignores_key: bool,
    current: u64,
    new: u64,
) -> ReservationCommand {
    ReservationCommand::Register {
        action,
        ignores_key,
        cptpl: 0,
        current,
        new,
    }
}

pub(super) fn acquire(action: u8, rtype: u8, current: u64, preempted: u64) -> ReservationCommand {
    ReservationCommand::Acquire {
        action,
        ignores_key: false,
        rtype,
        current,
        preempted,
    }
}

pub(super) fn release(action: u8, rtype: u8, current: u64) -> ReservationCommand {
    ReservationCommand::Release {
        action,
        ignores_key: false,
        rtype,
        current,
    }
}

impl World {
    /// Sometimes has a host send a reservation command, or fence another host.
    pub(super) fn reserve(&mut self) -> Result<(), Violation> {
        if !self.env.swarm.faults.has(Fault::Reserve) {
            return Ok(());
        }
        self.read_fenced();
        let random = &mut self.reserving.random;
        if !random.permille(COMMANDS_PERMILLE) {
            return Ok(());
        }
        let hosts = (0..self.hosts.len()).filter(|it| self.hosts[*it].can_reach_disks());
        let hosts: Vec<usize> = hosts.collect();
        if hosts.is_empty() {
            return Ok(());
        }
        let host = random.pick(&hosts);
        let fences = random.permille(FENCES_PERMILLE);
        let subsystem = self.env.swarm.hosts[host].subsystem;
        let disks = self.env.swarm.disks_of(subsystem);
        let disks: Vec<usize> = disks.filter(|it| self.is_settled(*it)).collect();
        if disks.is_empty() {
            return Ok(());
        }
        let disk = self.reserving.random.pick(&disks);
        if fences && let Some(fenced) = self.choose_fenced(host, disk) {
            self.fence(host, fenced, disk)?;
        } else {
            self.send_reservation(host, disk);
            if self.reserving.races {
                let other = self.reserving.random.below(self.hosts.len() as u64) as usize;
                if self.env.swarm.hosts[other].subsystem == subsystem {
                    self.send_reservation(other, disk);
                }
            }
        }
        self.env.judge.lift_fences();
        Ok(())
    }

    /// Whether the namespace of a disk has been there for a while.
    pub(super) fn is_settled(&self, disk: usize) -> bool {
        let changed = self.env.namespace_changed[disk];
        let is_old = changed == Nanos::ZERO || changed + SETTLED_AFTER <= self.env.time.now();
        is_old && self.env.serving.namespaces[disk] && !self.env.disk_gone[disk]
    }

    /// Sends a command of a host for a disk, if it may.
    fn send_reservation(&mut self, host: usize, disk: usize) {
        let random = &mut self.reserving.random;
        let identity = self.env.swarm.hosts[host].identity;
        let reservations = &self.env.judge.reservations;
        let command = match reservations.sendable(disk, self.reserving.races) {
            Sendable::Nothing => return,
            Sendable::Barrier => release(0, WRITE_EXCLUSIVE, WRONG_KEY),
            Sendable::Report => ReservationCommand::Report,
            Sendable::Anything if random.permille(INVALID_PERMILLE) => {
                let env = &mut self.env.for_hosts();
                self.hosts[host].send_invalid_reservation(env, disk, random);
                return;
            }
            Sendable::Anything => match reservations.state(disk) {
                Some(state) => {
                    let cptpl = choose_persistence(random, reservations.can_persist(disk));
                    persisting(choose(random, identity, state), cptpl)
                }
                None => return,
            },
        };
        let env = &mut self.env.for_hosts();
        if self.hosts[host].send_reservation(env, disk, command) {
            self.env.figures.fault(Fault::Reserve);
        }
    }

    /// A host of a disk that another host can fence.
    fn choose_fenced(&mut self, by: usize, disk: usize) -> Option<usize> {
        let reservations = &self.env.judge.reservations;
        if reservations.sendable(disk, false) != Sendable::Anything {
            return None;
        }
        reservations.certain(disk)?;
        let shapes = &self.env.swarm.hosts;
        let (identity, subsystem) = (shapes[by].identity, shapes[by].subsystem);
        let others = (0..shapes.len()).filter(|it| {
            let shape = &shapes[*it];
            shape.subsystem == subsystem
                && shape.identity != identity
                && self.hosts[*it].can_reach_disks()
        });
        let others: Vec<usize> = others.collect();
        if others.is_empty() || self.env.serving.read_only[disk] {
            return None;
        }
        Some(self.reserving.random.pick(&others))
    }

    /// Has a host write while the disk delays its requests, and another one preempt it.
    fn fence(&mut self, by: usize, fenced: usize, disk: usize) -> Result<(), Violation> {
        for host in [fenced, by] {
            let identity = self.env.swarm.hosts[host].identity;
            let reservations = &self.env.judge.reservations;
            let state = reservations.certain(disk);
            if state.is_some_and(|it| !it.keys.contains_key(&identity)) {
                let key = key_of(&mut self.reserving.random, identity);
                let env = &mut self.env.for_hosts();
                self.hosts[host].send_reservation(env, disk, register(0, false, 0, key));
                self.env.judge.lift_fences();
                self.pass(REGISTERED_WITHIN)?;
            }
        }
        self.hold_reservation(fenced, disk)?;
        let now = self.env.time.now();
        let random = &mut self.reserving.random;
        let later = self.env.swarm.faults.has(Fault::Later);
        let until = now + Nanos(random.below(FENCE_HOLD_MAX.as_nanos()));
        let is_free = self.env.disk_disturbed[disk] < until;
        let cuts = random.permille(CUT_PERMILLE);
        if !later && is_free && (cuts || random.coin()) && self.env.disks[disk].hold(until) {
            self.env.disk_disturbed[disk] = until;
            self.env.disturb_memory(until);
        }
        for _ in 0..random.between(1, FENCED_WRITES) {
            self.hosts[fenced].write_to(&mut self.env.for_hosts(), disk);
        }
        let pause = Nanos(self.reserving.random.below(FENCE_PAUSE_MAX.as_nanos()));
        self.pass(pause)?;
        if cuts {
            let faults = [Fault::Cut, Fault::Reset, Fault::Vanish];
            let faults = faults.into_iter();
            let faults: Vec<Fault> = faults.filter(|it| self.env.swarm.faults.has(*it)).collect();
            if !faults.is_empty() {
                let fault = self.reserving.random.pick(&faults);
                let aftermath = self.hosts[fenced].misbehave(&mut self.env.for_hosts(), fault);
                self.clean_up(fenced, aftermath);
                let pause = Nanos(self.reserving.random.below(FENCE_PAUSE_MAX.as_nanos()));
                self.pass(pause)?;
            }
        }
        let reservations = &self.env.judge.reservations;
        let shapes = &self.env.swarm.hosts;
        let (identity, victim) = (shapes[by].identity, shapes[fenced].identity);
        let is_possible = reservations.sendable(disk, false) == Sendable::Anything;
        let Some(state) = reservations.certain(disk).filter(|_| is_possible) else {
            return Ok(());
        };
        let (Some(key), Some(preempted)) = (state.keys.get(&identity), state.keys.get(&victim))
        else {
            return Ok(());
        };
        let (key, preempted) = (*key, *preempted);
        let rtype = self.reserving.random.between(1, 6) as u8;
        let command = acquire(2, rtype, key, preempted);
        let env = &mut self.env.for_hosts();
        if self.hosts[by].send_reservation(env, disk, command) {
            self.env.figures.fault(Fault::Reserve);
        }
        Ok(())
    }

    /// Has a registrant acquire a reservation, if there is none. Without one, a preempted host loses
    /// only its registration, and may write.
    fn hold_reservation(&mut self, host: usize, disk: usize) -> Result<(), Violation> {
        let identity = self.env.swarm.hosts[host].identity;
        let state = self.env.judge.reservations.certain(disk);
        let free = state.filter(|it| it.held.is_none());
        let Some(key) = free.and_then(|it| it.keys.get(&identity)).copied() else {
            return Ok(());
        };
        let rtype = self.reserving.random.between(1, 6) as u8;
        let env = &mut self.env.for_hosts();
        self.hosts[host].send_reservation(env, disk, acquire(0, rtype, key, 0));
        self.env.judge.lift_fences();
        self.pass(REGISTERED_WITHIN)
    }

    /// Completes the requests of the store that are due. Returns whether there were any.
    pub(super) fn complete_stores(&mut self) -> bool {
        if !self.env.swarm.faults.has(Fault::Reserve) {
            return false;
        }
        let results = self.env.store.take_due();
        let is_any = !results.is_empty();
        for result in results {
            self.env.store_failures[result.disk] += u64::from(!result.is_stored);
            self.env.note(format_args!("{result:?}"));
            if let Some(appliance) = &self.appliance {
                appliance.reservations_stored(result);
            }
        }
        is_any
    }

    /// Tells the judge of data which writes are over because their host was preempted, and checks
    /// that no disk still has one.
    pub(super) fn apply_fences(&mut self) -> Result<(), Violation> {
        if !self.env.swarm.faults.has(Fault::Reserve) {
            return Ok(());
        }
        for fence in self.env.judge.reservations.take_fences() {
            let (disk, fenced) = (fence.disk, fence.fenced);
            let reservations = &self.env.judge.reservations;
            let may_write = reservations.may_be_written(disk, fenced);
            // A write that the kernel holds back may end at any time; the device is damaged then.
            if may_write || self.env.judge.is_maybe_stuck(disk) {
                continue;
            }
            let shapes = self.env.swarm.hosts.iter();
            let paths = self.hosts.iter().zip(shapes);
            let its = paths.filter(|(_, shape)| shape.identity == fenced);
            let open = its.flat_map(|(host, _)| host.open_writes(disk)).collect();
            let over = self.env.judge.fence(fenced, disk, open);
            self.env.figures.fenced_writes += over.len() as u64;
            let storage = &self.env.disks[disk];
            if let Some((version, _)) = over
                .iter()
                .find(|(version, _)| storage.is_writing(*version))
            {
                let what = format!(
                    "host identity {fenced} was preempted, and disk {disk} still has its write \
                     {version}"
                );
                return Err(Violation::Rule(what));
            }
            let mut shapes = self.env.swarm.hosts.iter();
            let Some(reader) = shapes.position(|it| it.identity == fence.by) else {
                continue;
            };
            for (_, extent) in over {
                let random = &mut self.reserving.random;
                let at = self.env.time.now() + Nanos(random.below(CHECKED_WITHIN.as_nanos()));
                if extent.blocks > 0 && self.reserving.checks.len() < CHECKED_MAX {
                    self.reserving.checks.push((at, reader, extent));
                }
            }
        }
        self.env.judge.lift_fences();
        Ok(())
    }

    /// Reads ranges of fenced writes twice: at once and later.
    fn read_fenced(&mut self) {
        let now = self.env.time.now();
        let (due, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.reserving.checks)
            .into_iter()
            .partition(|(at, _, _)| *at <= now);
        self.reserving.checks = left;
        for (_, host, extent) in due {
            let blocks = self.env.swarm.disks[extent.disk].block_count;
            if extent.lba + u64::from(extent.blocks) <= blocks {
                self.hosts[host].read(&mut self.env.for_hosts(), extent);
            }
        }
    }

    /// Releases all reservations, so that every host can read everything again.
    pub(super) fn clear_reservations(&mut self) -> Result<(), Violation> {
        if !self.env.swarm.faults.has(Fault::Reserve) {
            return Ok(());
        }
        // A command of a host that vanished may still take effect until the target detects that.
        let by = self.env.time.now() + RECOVERY_MAX;
        let are_noticed = self.run_until(by, |world| {
            world.env.judge.reservations.unnoticed().next().is_none()
        })?;
        for disk in 0..self.env.disks.len() {
            let subsystem = self.env.swarm.subsystem_of_disk(disk);
            let mut shapes = self.env.swarm.hosts.iter();
            let host = shapes.position(|it| it.subsystem == subsystem);
            let host = host.unwrap_or_default();
            let key = key_of(&mut self.reserving.random, host);
            let commands = [
                register(2, true, 0, key),
                release(1, WRITE_EXCLUSIVE, key),
                ReservationCommand::Report,
            ];
            for command in commands {
                let by = self.env.time.now() + RECOVERY_MAX;
                let mut sent = false;
                let done = self.run_until(by, |world| {
                    let is_idle = |world: &Self| {
                        let hosts = &world.hosts;
                        hosts.iter().all(crate::host::Host::is_idle)
                    };
                    if !sent && is_idle(world) {
                        let env = &mut world.env.for_hosts();
                        sent = world.hosts[host].send_reservation(env, disk, command);
                        return false;
                    }
                    sent && is_idle(world)
                })?;
                self.env.judge.lift_fences();
                if !done {
                    let what = format!("disk {disk}: {command:?} is not completed");
                    return Err(Violation::Rule(what));
                }
            }
            let reservations = &self.env.judge.reservations;
            if !reservations.is_clear(disk) && are_noticed {
                let state = reservations.certain(disk);
                let what = format!("disk {disk} is not clear of reservations: {state:?}");
                return Err(Violation::Rule(what));
            }
        }
        Ok(())
    }
}
