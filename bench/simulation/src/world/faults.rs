//! The faults that a run applies, and hosts that misbehave.

use reactors::Nanos;

use super::World;
use crate::drive::{self, Mishap};
use crate::faults::Fault;
use crate::host::Aftermath;
use crate::judge::Violation;
use crate::storage::Storage;

/// Share of events with an additional host behaviour, drawn separately, per thousand.
const HOST_BEHAVIOUR_PERMILLE: u32 = 60;
/// Share of events with an additional fault from a separate random stream, per thousand.
const SEPARATE_PERMILLE: u32 = 40;
/// Share of events with an additional misuse of a queue, per thousand.
const MISUSES_PERMILLE: u32 = 30;
/// Share of the actions of anonymous hosts in which more of them connect, per thousand.
const ANONYMOUS_PERMILLE: u32 = 200;
/// Share of the actions of hosts of one address in which they take all that they may, per thousand.
const FLOODS_PERMILLE: u32 = 250;
/// Probability, per thousand, that a selected fault that affects the whole appliance occurs.
const HEAVY_PERMILLE: u32 = 150;
/// Share of resets and cuts during which a disk delays its requests, per thousand, and the longest
/// delay.
const REMAINDER_PERMILLE: u32 = 800;
const REMAINDER_MAX: Nanos = Nanos::from_millis(400);
/// Commands that are sent before such a delay.
const DELAYED_IOS: u64 = 8;
/// Time after the end of a vanished host's connection in which the target may keep memory for it.
const VANISHED_MAX: Nanos = Nanos::from_secs(1);
/// Time after which the data of these commands has usually arrived.
const DELAYED_WITHIN: Nanos = Nanos::from_millis(1);

impl World {
    /// Sometimes makes a host show unusual behaviour.
    pub(super) fn apply_host_behaviour(&mut self) -> Result<(), Violation> {
        let power_wanted = std::mem::take(&mut self.env.power_wanted);
        let fails = self.env.swarm.faults.has(Fault::Power);
        if power_wanted && fails && !self.changing {
            self.env
                .note(format_args!("the power fails after a durable write"));
            self.kill(true)?;
        }
        if !self.behaviour_random.permille(HOST_BEHAVIOUR_PERMILLE) {
            return Ok(());
        }
        let behaviours = self.env.swarm.faults.iter();
        let behaviours: Vec<Fault> = behaviours.filter(|it| it.is_host_behaviour()).collect();
        if behaviours.is_empty() {
            return Ok(());
        }
        let fault = self.behaviour_random.pick(&behaviours);
        let host = self.behaviour_random.below(self.hosts.len() as u64) as usize;
        if fault == Fault::Crowd {
            let listeners = self.env.swarm.tcp_listeners as u64;
            let listener = &self.env.listeners[self.behaviour_random.below(listeners) as usize];
            let (network, now) = (self.env.network, self.env.time.now());
            self.unknown_hosts
                .connect_more(listener, network, &mut self.behaviour_random, now);
            let random = &mut self.behaviour_random;
            self.silent_hosts
                .connect_more(&self.env.for_hosts(), random);
            self.env.figures.fault(fault);
            return Ok(());
        }
        self.misbehave(host, fault);
        Ok(())
    }

    pub(super) fn misbehave(&mut self, host: usize, fault: Fault) {
        let aftermath = self.hosts[host].misbehave(&mut self.env.for_hosts(), fault);
        self.clean_up(host, aftermath);
        if fault == Fault::Greedy {
            // Paths of one host share its memory limit.
            let identity = self.env.swarm.hosts[host].identity;
            let (now, shapes) = (self.env.time.now(), &self.env.swarm.hosts);
            let paths = self.hosts.iter_mut().zip(shapes);
            paths
                .filter(|(_, shape)| shape.identity == identity)
                .for_each(|(path, _)| path.excuse_own_greed(now));
        }
    }

    /// Sometimes applies a fault that is drawn from a separate random stream.
    pub(super) fn apply_separate_fault(&mut self) -> Result<(), Violation> {
        let faults = self.env.swarm.faults.iter();
        let faults: Vec<Fault> = faults.filter(|it| it.is_drawn_separately()).collect();
        if faults.is_empty() || !self.separate_random.permille(SEPARATE_PERMILLE) {
            return Ok(());
        }
        let fault = self.separate_random.pick(&faults);
        let disk = self.separate_random.below(self.env.disks.len() as u64) as usize;
        let host = self.separate_random.below(self.hosts.len() as u64) as usize;
        let applied = match fault {
            Fault::Exchange | Fault::Swap => self.reconfigure(fault, disk, host)?,
            Fault::Stuck => match self.stuck_host.take_if(|_| !self.changing) {
                Some(stuck) => self.reset_behind_stuck(stuck)?,
                None => self.hold_next_write(disk, host),
            },
            _ => false,
        };
        if applied {
            self.env.note(format_args!(
                "{fault} strikes disk {disk} or host {host}, apart"
            ));
            self.env.figures.fault(fault);
        }
        Ok(())
    }

    /// Sometimes makes a host misuse a queue.
    pub(super) fn misuse(&mut self) {
        let faults = self.env.swarm.faults.iter();
        let faults: Vec<Fault> = faults.filter(|it| it.is_misuse()).collect();
        if faults.is_empty() || !self.misuse_random.permille(MISUSES_PERMILLE) {
            return;
        }
        let fault = self.misuse_random.pick(&faults);
        let host = self.misuse_random.below(self.hosts.len() as u64) as usize;
        if fault == Fault::OneAddress {
            let is_tight = self.env.swarm.faults.has(Fault::Tight);
            if !is_tight && self.misuse_random.permille(FLOODS_PERMILLE) {
                let anonymous_hosts = &mut self.anonymous_hosts;
                anonymous_hosts.flood(&self.env.for_hosts(), &mut self.misuse_random);
                self.env.figures.fault(fault);
            }
            return;
        }
        if fault == Fault::Anonymous {
            let (anonymous_hosts, now) = (&mut self.anonymous_hosts, self.env.time.now());
            anonymous_hosts.send_some_commands(now, &mut self.misuse_random);
            // With tight limits there is no room for more hosts.
            let is_tight = self.env.swarm.faults.has(Fault::Tight);
            if !is_tight && self.misuse_random.permille(ANONYMOUS_PERMILLE) {
                anonymous_hosts.connect_more(&self.env.for_hosts(), &mut self.misuse_random);
                self.env.figures.fault(fault);
            }
            return;
        }
        self.hosts[host].misbehave(&mut self.env.for_hosts(), fault);
    }

    pub(super) fn apply_fault(&mut self, fault: Fault) -> Result<(), Violation> {
        let now = self.env.time.now();
        let disk = self.random.below(self.env.disks.len() as u64) as usize;
        let host = self.random.below(self.hosts.len() as u64) as usize;
        let heavy = self.random.permille(HEAVY_PERMILLE);
        match fault {
            Fault::Cut
            | Fault::Stall
            | Fault::Vanish
            | Fault::Silence
            | Fault::Damage
            | Fault::Malformed
            | Fault::Invalid
            | Fault::Abort
            | Fault::Reset
            | Fault::Disconnect
            | Fault::Late
            | Fault::WorkErrors
            | Fault::Unreachable
            | Fault::WrongConnect
            | Fault::WrongData
            | Fault::Administer
            | Fault::AbortFlood
            | Fault::Shutdown
            | Fault::Greedy => {
                if matches!(fault, Fault::Reset | Fault::Cut) {
                    self.delay_commands(host, REMAINDER_PERMILLE, REMAINDER_MAX)?;
                }
                self.misbehave(host, fault);
                return Ok(());
            }
            // These are permanent properties of disks, the network and hosts.
            Fault::Grain
            | Fault::Window
            | Fault::SlowWriter
            | Fault::Drive
            | Fault::Rdma
            | Fault::Slow
            | Fault::Error
            | Fault::Later
            | Fault::Linger
            | Fault::Paths
            | Fault::File
            | Fault::FileErrors
            | Fault::Ram
            | Fault::FlushErrors
            | Fault::Arena
            | Fault::ReadOnly
            | Fault::Deaf
            | Fault::Crowd
            | Fault::Exchange
            | Fault::Swap
            | Fault::Twins
            | Fault::EventFlood
            | Fault::Anonymous
            | Fault::Contend
            | Fault::OneAddress
            | Fault::Reserve
            | Fault::Ana
            | Fault::Fuse
            | Fault::Copy
            | Fault::DeviceCopy
            | Fault::Mask
            | Fault::Chap
            | Fault::ChapMisuse
            | Fault::Handover
            | Fault::Limit
            | Fault::Pace
            | Fault::Stuck
            | Fault::Tight => return Ok(()),
            Fault::Hang => self.strike_drive(disk, Mishap::Hang),
            Fault::Confusion => self.strike_drive(disk, Mishap::Confusion),
            Fault::Failure => self.strike_drive(disk, Mishap::Failure),
            Fault::Removal if self.env.disks[disk].is_on_drive() => {
                self.strike_drive(disk, Mishap::Removal);
                for disk in self.env.swarm.disks_of_drive(disk) {
                    self.env.judge.disk_lost_power(disk);
                }
            }
            Fault::Hold => {
                // Deferred requests are retried continuously.
                let retried = self.env.swarm.faults.has(Fault::Later);
                let longest = if retried { 100 } else { 15_000 };
                let until = now + Nanos::from_millis(self.random.between(1, longest));
                if !self.env.disks[disk].hold(until) {
                    return Ok(());
                }
                self.env.disk_disturbed[disk] = until;
                self.env.disturb_memory(until);
            }
            Fault::Namespaces
            | Fault::Devices
            | Fault::Revoke
            | Fault::Subsystems
            | Fault::Listeners
            | Fault::Growth
            | Fault::Keys
            | Fault::Compound
            | Fault::Refused => {
                if !self.reconfigure(fault, disk, host)? {
                    return Ok(());
                }
            }
            Fault::Removal | Fault::Crash | Fault::Power | Fault::Restart | Fault::Unplug
                if !heavy =>
            {
                return Ok(());
            }
            Fault::Unplug => {
                let is_silent = self.random.coin();
                if let Some(rdma) = &mut self.env.rdma {
                    rdma.unplug(is_silent);
                }
                // Nothing notifies a host that sends nothing of the removal.
                self.silent_hosts.disconnect_all();
            }
            Fault::Removal => {
                let Storage::Disk(removed) = &self.env.disks[disk] else {
                    return Ok(());
                };
                removed.remove();
                self.env.disk_fails[disk] = true;
            }
            Fault::Crash | Fault::Power if self.changing => {
                self.kill_after_change = Some(fault == Fault::Power);
            }
            // A shutdown request waits for the change.
            Fault::Restart if self.changing => return Ok(()),
            Fault::Crash => self.kill(false)?,
            Fault::Power => self.kill(true)?,
            Fault::Restart => {
                self.stop()?;
                let power = self.random.coin();
                self.handle_appliance_end(power);
                self.check_media(power)?;
                self.start()?;
            }
        }
        self.env
            .note(format_args!("{fault} strikes disk {disk} or host {host}"));
        self.env.figures.fault(fault);
        Ok(())
    }

    /// Sometimes sends commands of a host that a disk delays for up to `longest`, so that they are
    /// outstanding during the following fault of the host.
    pub(super) fn delay_commands(
        &mut self,
        host: usize,
        permille: u32,
        longest: Nanos,
    ) -> Result<(), Violation> {
        let later = self.env.swarm.faults.has(Fault::Later);
        if later || !self.delay_random.permille(permille) {
            return Ok(());
        }
        let subsystem = self.env.swarm.hosts[host].subsystem;
        let disks = self.env.swarm.disks_of(subsystem);
        let can_hold =
            |it: &usize| matches!(self.env.disks[*it], Storage::Disk(_) | Storage::Ram(_));
        let disks: Vec<usize> = disks.filter(can_hold).collect();
        if disks.is_empty() {
            return Ok(());
        }
        let disk = self.delay_random.pick(&disks);
        let now = self.env.time.now();
        let lasts = self
            .delay_random
            .between(longest.as_nanos() / 2, longest.as_nanos());
        let until = now + Nanos(lasts);
        if self.env.disk_disturbed[disk] >= until || !self.env.disks[disk].hold(until) {
            return Ok(());
        }
        self.env.disk_disturbed[disk] = until;
        self.env.disturb_memory(until);
        self.env.note(format_args!(
            "disk {disk} delays its requests until {until}"
        ));
        self.hosts[host].send_io(&mut self.env.for_hosts(), DELAYED_IOS);
        self.pass(DELAYED_WITHIN)
    }

    /// Applies one of the enabled mishaps to the drive of a disk, if it is on one: while it copies.
    /// `choice` selects it.
    pub(super) fn strike_copying_drive(&mut self, disk: usize, choice: u64) {
        let mishaps = [
            (Fault::Hang, Mishap::Hang),
            (Fault::Confusion, Mishap::Confusion),
            (Fault::Failure, Mishap::Failure),
            (Fault::Removal, Mishap::Removal),
        ];
        let faults = self.env.swarm.faults;
        let enabled = mishaps.into_iter().filter(|(it, _)| faults.has(*it));
        let enabled: Vec<(Fault, Mishap)> = enabled.collect();
        if enabled.is_empty() || !self.env.disks[disk].is_on_drive() {
            return;
        }
        let (fault, mishap) = enabled[(choice % enabled.len() as u64) as usize];
        self.env
            .note(format_args!("{fault} strikes disk {disk}, which copies"));
        self.strike_drive(disk, mishap);
        if mishap == Mishap::Removal {
            for disk in self.env.swarm.disks_of_drive(disk) {
                self.env.judge.disk_lost_power(disk);
            }
        }
        self.env.figures.fault(fault);
    }

    pub(super) fn strike_drive(&mut self, disk: usize, mishap: Mishap) {
        let now = self.env.time.now();
        let disks = self.env.swarm.disks_of_drive(disk);
        let Some(until) = self.env.disks[disks[0]].apply_mishap(mishap, now) else {
            return;
        };
        for disk in disks {
            let disturbed = &mut self.env.disk_disturbed[disk];
            *disturbed = until.max(*disturbed);
            let path = self.env.swarm.data_paths[disk];
            if mishap == Mishap::Removal && drive::allows_memory(path) {
                self.env.memory_gone[disk] = until;
            }
            self.env.disk_fails[disk] = true;
        }
        self.env.disturb_memory(until);
    }

    pub(super) fn clean_up(&mut self, host: usize, aftermath: Option<Aftermath>) {
        let Some(Aftermath {
            memory_until,
            vanished,
        }) = aftermath
        else {
            return;
        };
        self.env.disturb_memory(memory_until);
        let mut disturbed = memory_until;
        for vanished in vanished {
            let noticed = self.env.time.now() + Nanos::from_millis(self.random.between(1, 40_000));
            self.env.disturb_memory(noticed);
            disturbed = disturbed.max(noticed);
            self.hosts[host].memory_is_kept(noticed + VANISHED_MAX);
            self.env.vanished.push((noticed, vanished));
        }
        self.env.network_disturbed = self.env.network_disturbed.max(disturbed);
    }
}
