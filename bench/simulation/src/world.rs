//! The run of one seed: a sequence of events on an appliance, its hosts and its faulty environment,
//! then recovery without faults, and a final check.

mod changes;
mod stuck;

use std::collections::BTreeSet;

use nvme_driver::DriveState;
use nvme_target::{ControllerSnapshot, ControllerState};
use reactors::Nanos;

use crate::anonymous::AnonymousHosts;
use crate::appliance::{Appliance, Held};
use crate::drive::Mishap;
use crate::environment::Environment;
use crate::fabric::RdmaNetwork;
use crate::host::{Aftermath, DiscoveryHost, Host, SilentHosts};
use crate::judge::{Extent, Violation};
use crate::memory::{check_connections, check_queue_pairs, check_receives, slices_at_rest};
use crate::plan::{IN_CAPSULE_MORE_BYTES, host_name};
use crate::random::Random;
use crate::storage::Storage;
use crate::swarm::{Fault, Limits, Swarm};
use crate::unknown_hosts::UnknownHosts;

/// Share of events that are faults, per thousand.
const FAULTS_PERMILLE: u32 = 120;
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
/// Share of events in which only time passes, per thousand.
const PAUSES_PERMILLE: u32 = 15;
/// Probability, per thousand, that a selected fault that affects the whole appliance occurs.
const HEAVY_PERMILLE: u32 = 150;
/// Maximum duration of an orderly shutdown.
const STOP_MAX: Nanos = Nanos::from_secs(30);
/// Maximum recovery time after the last fault, until every host is in service: the longest stall,
/// Keep Alive timeout and keep-alive probe of a kernel, in sequence.
const RECOVERY_MAX: Nanos = Nanos::from_secs(180);
/// Maximum time until a driver detects a fault of its drive.
const DRIVE_NOTICES_WITHIN: Nanos = Nanos::from_secs(1);
/// Maximum delay of a namespace event.
const EVENT_MAX: Nanos = Nanos::from_secs(2);
/// Idle turns before time advances while the transport has events to find: it checks quiet
/// connections only every 16th turn while others are busy.
const IDLE_TURNS: u32 = 18;
/// The same with pending RDMA events: the transport checks for them every 32nd turn.
const IDLE_TURNS_RDMA: u32 = 34;
/// Probability of a power failure after a failed flush, per thousand events.
const POWER_AFTER_FLUSH_ERROR_PERMILLE: u32 = 150;
/// Share of resets and cuts during which a disk delays its requests, per thousand, and the longest
/// delay.
const REMAINDER_PERMILLE: u32 = 800;
const REMAINDER_MAX: Nanos = Nanos::from_millis(400);
/// Commands that are sent before such a delay.
const DELAYED_IOS: u64 = 8;
/// Time after which the data of these commands has usually arrived.
const DELAYED_WITHIN: Nanos = Nanos::from_millis(1);
/// Events between checks of the media.
const MEDIA_INTERVAL: u64 = 8;
/// Events between checks of the memory of connections.
const MEMORY_INTERVAL: u64 = 4;
/// Blocks per read of the final check.
const LAST_READ_BLOCKS: u32 = 8;

/// A run.
pub struct World {
    seed: u64,
    random: Random,
    /// The environment: everything but the appliance and the hosts.
    pub env: Environment,
    hosts: Vec<Host>,
    /// Hosts of the discovery subsystem, in seeds with unknown hosts.
    discovery_hosts: Vec<DiscoveryHost>,
    unknown_hosts: UnknownHosts,
    silent_hosts: SilentHosts,
    anonymous_hosts: AnonymousHosts,
    appliance: Option<Appliance>,
    starts: u64,
    /// Random stream for host behaviour.
    behaviour_random: Random,
    /// Random stream for faults that are drawn separately.
    separate_random: Random,
    /// Random stream for misuses of queues.
    misuse_random: Random,
    /// The disk whose write the kernel holds back, and the host that sent it.
    stuck_host: Option<(usize, usize)>,
    /// Random stream for configuration changes and for events while they wait.
    change_random: Random,
    /// Whether a configuration change is in progress.
    changing: bool,
    /// How often the change has waited.
    waits: u64,
    /// The appliance is to be killed as soon as the change returns; the value: with a power
    /// failure.
    kill_after_change: Option<bool>,
    /// When the control thread last checked the devices.
    checked_at: Nanos,
    /// Random stream for power failures after failed flushes, and the number of failed flushes.
    flushes: (Random, u64),
    /// Random stream for disks that delay requests.
    delay_random: Random,
    /// The current event.
    pub event: u64,
}

impl World {
    /// The world of a seed before its first event.
    #[must_use]
    pub fn new(seed: u64, limits: &Limits) -> Self {
        let swarm = Swarm::of(seed, limits);
        let hosts = swarm.hosts.iter().enumerate();
        let faults = swarm.faults;
        let has_anonymous_hosts = (faults.has(Fault::Anonymous) || faults.has(Fault::OneAddress))
            && !faults.has(Fault::Tight);
        let has_unknown_hosts = faults.has(Fault::Crowd) || has_anonymous_hosts;
        Self {
            discovery_hosts: (0..usize::from(has_unknown_hosts))
                .map(|host| DiscoveryHost::new(host, seed))
                .collect(),
            unknown_hosts: UnknownHosts::default(),
            silent_hosts: SilentHosts::default(),
            anonymous_hosts: AnonymousHosts::default(),
            seed,
            random: Random::new(seed, 2),
            hosts: hosts
                .map(|(number, shape)| Host::new(number, *shape, seed))
                .collect(),
            env: Environment::new(seed, swarm),
            appliance: None,
            starts: 0,
            behaviour_random: Random::new(seed, 0x26),
            separate_random: Random::new(seed, 0x51),
            misuse_random: Random::new(seed, 0x61),
            stuck_host: None,
            change_random: Random::new(seed, 11),
            changing: false,
            waits: 0,
            kill_after_change: None,
            checked_at: Nanos::ZERO,
            flushes: (Random::new(seed, 0x17), 0),
            delay_random: Random::new(seed, 0x28),
            event: 0,
        }
    }

    /// Runs the seed to its end.
    ///
    /// # Errors
    /// The first violation.
    pub fn run(&mut self) -> Result<(), Violation> {
        self.start()?;
        self.pass(Nanos::from_millis(5))?;
        while self.event < self.env.swarm.events {
            self.event += 1;
            self.env.figures.events += 1;
            self.one_event()?;
        }
        self.recover()?;
        self.read_everything()?;
        self.check_accounts()?;
        self.stop()?;
        self.handle_appliance_end(true);
        self.check_media(true)?;
        self.env.count_ambient();
        self.env.figures.seeds += 1;
        self.env.figures.time = self.env.time.now();
        Ok(())
    }

    /// Ends the appliance in any state.
    pub fn end(&mut self) {
        self.appliance = None;
    }

    fn one_event(&mut self) -> Result<(), Violation> {
        if self.event.is_multiple_of(MEDIA_INTERVAL) {
            self.check_survivors()?;
        }
        if self.event.is_multiple_of(MEMORY_INTERVAL) {
            self.check_memory()?;
        }
        self.apply_host_behaviour()?;
        self.apply_separate_fault()?;
        self.misuse();
        if self.random.permille(PAUSES_PERMILLE) {
            let pause = Nanos::from_millis(self.random.between(1, 4000));
            return self.pass(pause);
        }
        if self.random.permille(FAULTS_PERMILLE) {
            let faults = self.env.swarm.faults.iter();
            let faults: Vec<Fault> = faults
                .filter(|it| {
                    !it.is_host_behaviour() && !it.is_drawn_separately() && !it.is_misuse()
                })
                .collect();
            if !faults.is_empty() {
                let fault = self.random.pick(&faults);
                self.apply_fault(fault)?;
            }
        } else {
            let count = self.random.between(1, self.env.swarm.burst_max);
            let chosen = self.random.below(self.hosts.len() as u64) as usize;
            self.hosts[chosen].send_io(&mut self.env.for_hosts(), count);
        }
        let pace = self.random.below(self.env.swarm.pace_max.as_nanos());
        self.pass(Nanos(pace))?;
        self.follow_flush_errors()
    }

    /// Fails the power soon after failed flushes, to check what was acknowledged as durable.
    fn follow_flush_errors(&mut self) -> Result<(), Violation> {
        let disks = self.env.disks.iter();
        let failed = disks.map(|disk| disk.figures().flush_errors).sum();
        let (random, known) = &mut self.flushes;
        let before = std::mem::replace(known, failed);
        if before == failed || !random.permille(POWER_AFTER_FLUSH_ERROR_PERMILLE) {
            return Ok(());
        }
        if self.changing {
            self.kill_after_change = Some(true);
            return Ok(());
        }
        self.kill(true)
    }

    /// Compares the drivers' recovery actions with the faults that occurred.
    fn judge_recovery(&self, at_rest: bool) -> Result<(), Violation> {
        let counters = self.appliance.iter().flat_map(Appliance::drive_counters);
        for (disk, did) in counters {
            if let Storage::Drive(drive) = &self.env.disks[disk]
                && let Some(what) = drive.recovery_mistake(&did, at_rest)
            {
                return Err(Violation::Rule(what));
            }
        }
        Ok(())
    }

    /// Sometimes makes a host show unusual behaviour.
    fn apply_host_behaviour(&mut self) -> Result<(), Violation> {
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
        let aftermath = self.hosts[host].misbehave(&mut self.env.for_hosts(), fault);
        self.clean_up(aftermath);
        Ok(())
    }

    /// Sometimes applies a fault that is drawn from a separate random stream.
    fn apply_separate_fault(&mut self) -> Result<(), Violation> {
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
    fn misuse(&mut self) {
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

    fn apply_fault(&mut self, fault: Fault) -> Result<(), Violation> {
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
                let aftermath = self.hosts[host].misbehave(&mut self.env.for_hosts(), fault);
                self.clean_up(aftermath);
                if fault == Fault::Greedy {
                    // Paths of one host share its memory limit.
                    let identity = self.env.swarm.hosts[host].identity;
                    let (now, shapes) = (self.env.time.now(), &self.env.swarm.hosts);
                    let paths = self.hosts.iter_mut().zip(shapes);
                    paths
                        .filter(|(_, shape)| shape.identity == identity)
                        .for_each(|(path, _)| path.excuse_own_greed(now));
                }
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
            | Fault::OneAddress
            | Fault::Stuck
            | Fault::Tight => return Ok(()),
            Fault::Hang => self.strike_drive(disk, Mishap::Hang),
            Fault::Confusion => self.strike_drive(disk, Mishap::Confusion),
            Fault::Failure => self.strike_drive(disk, Mishap::Failure),
            Fault::Removal if matches!(self.env.disks[disk], Storage::Drive(_)) => {
                self.strike_drive(disk, Mishap::Removal);
                self.env.judge.disk_lost_power(disk);
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
    fn delay_commands(
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

    fn strike_drive(&mut self, disk: usize, mishap: Mishap) {
        let now = self.env.time.now();
        if let Some(until) = self.env.disks[disk].apply_mishap(mishap, now) {
            let disturbed = &mut self.env.disk_disturbed[disk];
            *disturbed = until.max(*disturbed);
            self.env.disk_fails[disk] = true;
            self.env.disturb_memory(until);
        }
    }

    fn clean_up(&mut self, aftermath: Option<Aftermath>) {
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
            self.env.vanished.push((noticed, vanished));
        }
        self.env.network_disturbed = self.env.network_disturbed.max(disturbed);
    }

    /// Starts the appliance; disks that were pulled out are back.
    fn start(&mut self) -> Result<(), Violation> {
        for disk in &mut self.env.disks {
            disk.reinsert();
        }
        let fails = self.env.swarm.disk_behaviour.error_permille > 0;
        self.env.disk_failed |= self.env.disk_fails.contains(&true);
        for (disk, may_fail) in self.env.disks.iter().zip(&mut self.env.disk_fails) {
            *may_fail = disk.fails() || (fails && !matches!(disk, Storage::File(_)));
        }
        self.env.stopping = false;
        self.env.changed_at = self.env.time.now();
        self.env.disk_gone.fill(false);
        self.starts += 1;
        let seed = self.seed.wrapping_add(self.starts << 32);
        self.env.renew_networks(seed);
        self.find_sizes(seed)?;
        self.env.renew_networks(seed);
        let started = Appliance::start(seed, &self.env);
        let appliance = started.map_err(|error| Violation::Rule(format!("start: {error}")))?;
        self.appliance = Some(appliance);
        Ok(())
    }

    /// Kills the appliance in any state, and starts it again.
    fn kill(&mut self, power: bool) -> Result<(), Violation> {
        self.judge_recovery(false)?;
        if let Some(appliance) = self.appliance.take() {
            for disk in &self.env.disks {
                disk.prepare_kill(power);
            }
            let leases = appliance.end();
            if leases > 0 {
                let what = format!("{leases} leases are not returned after the kill");
                return Err(Violation::Rule(what));
            }
        }
        self.handle_appliance_end(power);
        self.check_media(power)?;
        self.start()
    }

    /// Handles the end of the appliance: its connections and commands in flight are gone.
    fn handle_appliance_end(&mut self, power: bool) {
        self.appliance = None;
        for disk in &self.env.disks {
            disk.reset_after_end();
        }
        self.env.disk_disturbed.fill(Nanos::ZERO);
        for host in &mut self.hosts {
            host.crash(&mut self.env.for_hosts());
        }
        let now = self.env.time.now();
        for discovery_host in &mut self.discovery_hosts {
            discovery_host.crash(now);
        }
        self.unknown_hosts.disconnect_all();
        self.silent_hosts.disconnect_all();
        self.anonymous_hosts.disconnect_all();
        self.env.judge.stopped();
        self.env.evict();
        if power {
            for disk in &self.env.disks {
                disk.cut_power();
            }
            self.env.judge.power_cut();
        }
        for (number, disk) in self.env.disks.iter().enumerate() {
            if disk.loses_content_on_close() {
                self.env.judge.content_lost(number);
            }
        }
        self.env.note(format_args!(
            "the appliance is down{}",
            if power { ", without power" } else { "" }
        ));
    }

    /// Checks that no connection holds more memory than its queue and its commands need.
    fn check_memory(&self) -> Result<(), Violation> {
        let Some(appliance) = &self.appliance else {
            return Ok(());
        };
        let hosts = self.hosts.iter().flat_map(Host::memory_bounds);
        let discovery_hosts = self
            .discovery_hosts
            .iter()
            .filter_map(DiscoveryHost::memory_bound);
        let bounds = hosts
            .chain(discovery_hosts)
            .chain(self.unknown_hosts.memory_bounds());
        let held = appliance.held_by_connections().into_iter();
        check_connections(&bounds.collect(), held)?;
        let Some(rdma) = &self.env.rdma else {
            return Ok(());
        };
        let swarm = &self.env.swarm;
        let capsule_bytes = (swarm.in_capsule_bytes + IN_CAPSULE_MORE_BYTES) as usize;
        let hosts = self.hosts.iter().flat_map(Host::queue_pair_bounds);
        let bounds = hosts.chain(self.silent_hosts.queue_pair_bounds());
        let held = appliance.held_by_queue_pairs().into_iter();
        let request_bytes = swarm.transfer_max.max(capsule_bytes);
        check_queue_pairs(bounds, held, request_bytes)?;
        let in_capsule_bytes = swarm.in_capsule_bytes as usize;
        check_receives(
            &rdma.shared_receives(),
            in_capsule_bytes,
            appliance.slices(),
        )
    }

    /// Checks that the media contain all data that must survive a power failure.
    fn check_survivors(&self) -> Result<(), Violation> {
        for (number, disk) in self.env.disks.iter().enumerate() {
            let judge = &self.env.judge;
            disk.inspect_medium(&mut |lba, version| judge.judge_survivor(number, lba, version))?;
        }
        Ok(())
    }

    /// Checks every block on the media after a power failure.
    fn check_media(&self, power: bool) -> Result<(), Violation> {
        if !power {
            return Ok(());
        }
        for (number, disk) in self.env.disks.iter().enumerate() {
            let shape = self.env.swarm.disks[number];
            let mut found = vec![0; shape.block_size as usize];
            for lba in 0..shape.block_count {
                if disk.read_medium(lba, &mut found) {
                    self.env.judge.judge_medium(number, lba, &found)?;
                }
            }
        }
        Ok(())
    }

    /// Shuts the appliance down in order, and checks that all commands are completed, all written
    /// data is durable and all leases are returned.
    fn stop(&mut self) -> Result<(), Violation> {
        let now = self.env.time.now();
        let latest = self.env.disk_disturbed.iter().max().copied();
        let disturbed = self
            .env
            .network_disturbed
            .max(latest.unwrap_or_default())
            .max(self.env.memory_disturbed);
        let calm = disturbed <= now && !self.env.swarm.faults.has(Fault::SlowWriter);
        let flush_fails = self.env.swarm.disk_behaviour.flush_error_permille > 0;
        let fails = flush_fails || self.env.disk_fails.contains(&true);
        self.judge_recovery(false)?;
        let began = self.env.judge.begin_read();
        self.env.stopping = true;
        self.env
            .note(format_args!("the appliance is requested to stop"));
        if let Some(appliance) = &mut self.appliance {
            appliance.begin_stop(now + STOP_MAX);
        }
        self.run_until(now + STOP_MAX, |world| {
            world.appliance.as_ref().is_none_or(Appliance::is_stopped)
        })?;
        self.env.judge.end_read(began);
        let Some(mut appliance) = self.appliance.take() else {
            return Ok(());
        };
        let outstanding = appliance.outstanding();
        let stale = appliance.stale_completions();
        self.env
            .figures
            .faults(Fault::Arena, appliance.waits_for_memory());
        if calm && !outstanding.is_empty() {
            let what = format!("the appliance does not stop: {}", outstanding.join(", "));
            return Err(Violation::Rule(what));
        }
        if calm && !fails && outstanding.is_empty() {
            // A device that was closed before is not flushed again.
            for disk in (0..self.env.disks.len()).filter(|disk| appliance.has_device(*disk)) {
                self.env.judge.flushed(disk, began);
            }
        }
        let leases = appliance.end();
        if leases > 0 || stale > 0 {
            let what =
                format!("{leases} leases are not returned, {stale} completions have no command");
            return Err(Violation::Rule(what));
        }
        Ok(())
    }

    /// Ends all faults, and checks that every host returns to service.
    fn recover(&mut self) -> Result<(), Violation> {
        self.env.note(format_args!("all faults are disabled"));
        self.unknown_hosts.disconnect_all();
        self.silent_hosts.disconnect_all();
        self.anonymous_hosts.disconnect_all();
        for discovery_host in &mut self.discovery_hosts {
            discovery_host.retire();
        }
        self.env.disable_faults();
        let rdma = self.env.rdma.as_ref();
        let is_unplugged = rdma.is_some_and(RdmaNetwork::is_unplugged);
        if is_unplugged || self.env.disks.iter().any(Storage::needs_restart) {
            self.kill(false)?;
        }
        self.await_devices()?;
        self.configure_all()?;
        self.env.namespace_changed.fill(self.env.time.now());
        let healed = self.env.time.now();
        let by = healed + RECOVERY_MAX;
        let at_rest = |world: &mut Self| {
            let hosts = world.hosts.iter().all(|it| it.is_serving() && it.is_idle());
            let appliance = world.appliance.as_ref();
            let ready = appliance
                .is_some_and(|it| it.drive_states().all(|state| state == DriveState::Ready));
            let ready = ready && healed + DRIVE_NOTICES_WITHIN <= world.env.time.now();
            hosts && ready && world.env.disks.iter().all(|it| it.in_flight() == 0)
        };
        if !self.run_until(by, at_rest)? {
            let hosts = self.hosts.iter().map(Host::is_serving);
            let hosts: Vec<bool> = hosts.collect();
            let drives = self.appliance.iter().flat_map(Appliance::drive_states);
            let drives: Vec<DriveState> = drives.collect();
            let what =
                format!("not everything is in service again: hosts {hosts:?}, drives {drives:?}");
            return Err(Violation::Rule(what));
        }
        self.judge_recovery(true)?;
        self.env.disk_failed |= self.env.disk_fails.contains(&true);
        for (storage, fails) in self.env.disks.iter().zip(&mut self.env.disk_fails) {
            *fails &= !matches!(storage, Storage::Drive(_));
        }
        self.env.judge.stopped();
        self.env.evict();
        Ok(())
    }

    /// Reads every block of every disk.
    fn read_everything(&mut self) -> Result<(), Violation> {
        for disk in 0..self.env.disks.len() {
            let shape = self.env.swarm.disks[disk];
            let subsystem = self.env.swarm.subsystem_of_disk(disk);
            let mut hosts = self.env.swarm.hosts.iter();
            let reader = hosts.position(|host| host.subsystem == subsystem);
            let reader = reader.unwrap_or_default();
            let step = LAST_READ_BLOCKS.min(shape.transfer_blocks_max);
            for lba in (0..shape.block_count).step_by(step as usize) {
                let left = shape.block_count - lba;
                let blocks = u64::from(step).min(left) as u32;
                let extent = Extent { disk, lba, blocks };
                let by = self.env.time.now() + RECOVERY_MAX;
                let mut sent = false;
                self.run_until(by, |world| {
                    sent = sent || world.hosts[reader].read(&mut world.env.for_hosts(), extent);
                    sent
                })?;
                if !sent && self.appliance.is_some() {
                    let what = format!("host {reader} cannot send the final reads of disk {disk}");
                    return Err(Violation::Rule(what));
                }
            }
        }
        let by = self.env.time.now() + RECOVERY_MAX;
        if !self.run_until(by, |world| world.hosts.iter().all(Host::is_idle))? {
            return Err(Violation::Rule(
                "the final reads are not completed".to_owned(),
            ));
        }
        Ok(())
    }

    /// Checks that drives access no memory after its return.
    fn check_dma(&self) -> Result<(), Violation> {
        let appliance = self.appliance.as_ref();
        match appliance.and_then(Appliance::take_dma_violation) {
            None => Ok(()),
            Some(access) => {
                let what = format!("a drive accessed memory that it was not given: {access:?}");
                Err(Violation::Rule(what))
            }
        }
    }

    /// Informs the judge about associations whose end the target has detected, has other paths of
    /// their hosts repeat the lost writes, and notes the hosts whose commands are fenced.
    fn update_lost_writes(&mut self) {
        let may_be_fenced =
            self.env.judge.has_lost() || self.hosts.iter().any(Host::awaits_readiness);
        let Some(appliance) = self.appliance.as_ref().filter(|_| may_be_fenced) else {
            return;
        };
        let controllers = appliance.controllers();
        let now = self.env.time.now();
        let identities = self.env.swarm.hosts.iter().map(|host| host.identity);
        for (fenced, identity) in self.env.fenced.iter_mut().zip(identities) {
            let name = host_name(identity);
            let mut its = controllers.iter().filter(|it| it.host_nqn == name);
            if its.any(|it| it.fenced || it.state == ControllerState::Enabling) {
                *fenced = now;
            }
        }
        let unnoticed: BTreeSet<(usize, u16)> = self.env.judge.unnoticed().collect();
        for (identity, cntlid) in unnoticed {
            let name = host_name(identity);
            let serves = |it: &ControllerSnapshot| {
                let is_it = it.controller_id == cntlid && it.host_nqn == name;
                is_it && it.state != ControllerState::Ended
            };
            if !controllers.iter().any(serves) {
                self.env.judge.noticed((identity, cntlid));
                self.pass_retries_on(identity);
            }
        }
    }

    /// Has a path in service repeat the lost writes of the other paths of its host.
    fn pass_retries_on(&mut self, identity: usize) {
        let shapes = &self.env.swarm.hosts;
        let paths = (0..shapes.len()).filter(|path| shapes[*path].identity == identity);
        let paths: Vec<usize> = paths.collect();
        let serving = paths.iter().find(|path| self.hosts[**path].is_serving());
        if let Some(&serving) = serving {
            let lost = paths.iter();
            let lost = lost.flat_map(|path| self.hosts[*path].take_retries());
            let lost: Vec<Extent> = lost.collect();
            self.hosts[serving].retry(lost);
        }
    }

    /// Checks that the target accounts for no resources that no host has.
    fn check_accounts(&mut self) -> Result<(), Violation> {
        let by = self.env.time.now() + RECOVERY_MAX;
        let mut wrong = String::new();
        let agrees = |world: &mut Self| {
            let mut held = Held::default();
            for host in world.hosts.iter().map(Host::held) {
                held.admin_queues += host.admin_queues;
                held.io_queues += host.io_queues;
            }
            let faults = world.env.swarm.faults;
            // The queues of drives and files hold memory while idle.
            let holds = [Fault::Drive, Fault::File];
            let is_known = !holds.iter().any(|it| faults.has(*it));
            let leases = world.slices_at_rest();
            let checked = world
                .appliance
                .as_ref()
                .map(|it| it.check_accounts(held, is_known.then_some(leases)));
            match checked {
                Some(Err(what)) => {
                    wrong = what;
                    false
                }
                Some(Ok(())) | None => true,
            }
        };
        // If a host vanished while the target did not receive from it, the connection's resources
        // are freed only when the target sends again, which may be never.
        let is_excused = self.env.swarm.faults.has(Fault::Vanish);
        if self.run_until(by, agrees)? || is_excused {
            return Ok(());
        }
        Err(Violation::Rule(wrong))
    }

    /// Slices of the arena that transports have in an idle appliance.
    fn slices_at_rest(&self) -> u64 {
        let Some(rdma) = &self.env.rdma else {
            return 0;
        };
        let hosts = self.hosts.iter().zip(&self.env.swarm.hosts);
        let queues = hosts.filter(|(_, shape)| shape.rdma).map(|(host, _)| {
            let held = host.held();
            held.admin_queues + held.io_queues
        });
        let inline_bytes = self.env.swarm.rdma.inline_bytes;
        slices_at_rest(&rdma.shared_receives(), inline_bytes, queues.sum())
    }

    fn pass(&mut self, span: Nanos) -> Result<(), Violation> {
        let until = self.env.time.now() + span;
        self.run_until(until, |_| false)?;
        Ok(())
    }

    /// Runs the world until `done` returns true or until `until`. Returns whether it is done.
    fn run_until(
        &mut self,
        until: Nanos,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<bool, Violation> {
        let mut idle_turns = 0;
        loop {
            if done(self) {
                return Ok(true);
            }
            if self.env.time.now() >= until {
                return Ok(false);
            }
            let Some(appliance) = &mut self.appliance else {
                return Ok(false);
            };
            // Sending alone is no progress for a reactor, so arrivals at hosts count too.
            let mut busy = appliance.run_turn().is_busy();
            let on_its_way = !appliance.is_idle();
            if !self.anonymous_hosts.is_empty() {
                let connecting = self.hosts.iter().any(Host::is_connecting);
                let (anonymous_hosts, env) = (&mut self.anonymous_hosts, &mut self.env.for_hosts());
                anonymous_hosts.turn_ended(env, || appliance.controllers(), connecting)?;
            }
            self.env.probe_vanished();
            self.env.advance_disks();
            self.env.advance_rdma();
            self.run_control_checks()?;
            self.check_dma()?;
            self.update_lost_writes();
            for host in &mut self.hosts {
                busy |= host.poll(&mut self.env.for_hosts())?;
            }
            for discovery_host in &mut self.discovery_hosts {
                busy |= discovery_host.poll(&mut self.env.for_hosts())?;
            }
            if !self.unknown_hosts.is_empty() {
                self.unknown_hosts.check(self.env.time.now())?;
            }
            if !self.silent_hosts.is_empty() {
                busy |= self.silent_hosts.poll(&self.env.for_hosts())?;
            }
            if !self.anonymous_hosts.is_empty() {
                busy |= self.anonymous_hosts.poll(&mut self.env.for_hosts())?;
            }
            idle_turns = if busy { 0 } else { idle_turns + 1 };
            let waiting =
                self.env.is_connected_to() || self.hosts.iter().any(Host::waits_for_target);
            let waiting = waiting
                || self.unknown_hosts.waits_for_target()
                || self.anonymous_hosts.waits_for_target()
                || self
                    .discovery_hosts
                    .iter()
                    .any(DiscoveryHost::waits_for_target);
            let events_wait = idle_turns < IDLE_TURNS_RDMA && self.env.rdma_waits();
            if busy || on_its_way || (waiting && idle_turns < IDLE_TURNS) || events_wait {
                continue;
            }
            let check = self.next_control_check();
            let Some(appliance) = &mut self.appliance else {
                return Ok(false);
            };
            let deadlines = [appliance.next_deadline(), self.env.next_due(), check];
            let hosts = self.hosts.iter().map(Host::next_deadline);
            let discovery_hosts = self
                .discovery_hosts
                .iter()
                .map(DiscoveryHost::next_deadline);
            let others = discovery_hosts.chain([
                self.unknown_hosts.next_due(),
                self.anonymous_hosts.next_due(),
                self.silent_hosts.next_due(),
            ]);
            let next = deadlines.into_iter().chain(hosts).chain(others);
            let next = next.flatten().min();
            appliance.advance_to(next.unwrap_or(until).min(until));
            idle_turns = 0;
        }
    }
}
