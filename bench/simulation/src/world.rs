//! The run of one seed: a sequence of events on an appliance, its hosts and its faulty environment,
//! then recovery without faults, and a final check.

mod ana;
mod authenticating;
mod changes;
mod checks;
mod compete;
mod contention;
mod copies;
mod device_copies;
mod faults;
mod limits;
mod masks;
mod notices;
mod paces;
mod rare;
mod reserving;
mod stuck;

use nvme_driver::DriveState;
use reactors::Nanos;

use crate::anonymous::AnonymousHosts;
use crate::appliance::Appliance;
use crate::environment::Environment;
use crate::fabric::RdmaNetwork;
use crate::fairness::Fairness;
use crate::faults::Fault;
use crate::host::{DiscoveryHost, Host, SilentHosts};
use crate::judge::{Extent, Violation};
use crate::random::Random;
use crate::storage::Storage;
use crate::swarm::{Limits, Swarm};
use crate::unknown_hosts::UnknownHosts;
use ana::Operator;
use compete::Competition;
use copies::Copying;
use device_copies::DeviceCopies;
use notices::NoticeReaders;
use reserving::Reserving;

/// Share of events that are faults, per thousand.
const FAULTS_PERMILLE: u32 = 120;
/// Share of events in which only time passes, per thousand.
const PAUSES_PERMILLE: u32 = 15;
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
/// Turns after which time has advanced unless something is busy forever.
const TURNS_AT_ONE_TIME_MAX: u64 = 2_000_000;
/// Probability of a power failure after a failed flush, per thousand events.
const POWER_AFTER_FLUSH_ERROR_PERMILLE: u32 = 150;
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
    fairness: Fairness,
    /// Random stream for hosts that need memory at the same time.
    contention_random: Random,
    /// Whether the order of grants of memory is judged.
    shows_memory_waits: bool,
    anonymous_hosts: AnonymousHosts,
    reserving: Reserving,
    notice_readers: NoticeReaders,
    operator: Operator,
    competition: Competition,
    copying: Copying,
    device_copies: DeviceCopies,
    /// Random stream for changes of masks.
    mask_random: Random,
    /// Random stream for changes of keys and for authentications.
    key_random: Random,
    /// Random stream for changes of rate limits, and for commands beyond them.
    limit_random: Random,
    /// Random stream for changes of latency targets.
    pace_random: Random,
    /// When paces were adjusted last.
    paced_at: Nanos,
    /// Random stream for hand-overs to a new process.
    handover_random: Random,
    /// Random stream for their failures.
    failing_random: Random,
    /// Whether one is in progress.
    is_handing_over: bool,
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
    /// Random stream for situations that other faults seldom produce.
    rare_random: Random,
    /// The current event.
    pub event: u64,
}

impl World {
    /// The world of a seed before its first event.
    #[must_use]
    pub fn new(seed: u64, limits: &Limits) -> Self {
        let swarm = Swarm::of(seed, limits);
        let shows_memory_waits = swarm.shows_memory_waits();
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
            fairness: Fairness::default(),
            contention_random: Random::new(seed, 0x62),
            shows_memory_waits,
            anonymous_hosts: AnonymousHosts::default(),
            reserving: Reserving::new(seed),
            notice_readers: NoticeReaders::new(seed),
            operator: Operator::new(seed),
            competition: Competition::new(seed),
            copying: Copying::new(seed),
            device_copies: DeviceCopies::new(seed),
            mask_random: Random::new(seed, 0xD2),
            key_random: Random::new(seed, 0xE2),
            limit_random: Random::new(seed, 0xF5),
            pace_random: Random::new(seed, 0xF7),
            paced_at: Nanos::ZERO,
            handover_random: Random::new(seed, 0xF1),
            failing_random: Random::new(seed, 0xF2),
            is_handing_over: false,
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
            rare_random: Random::new(seed, 0x29),
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
        let copies = self.appliance.as_ref().map(Appliance::copies_in_drives);
        self.env.figures.copies_in_drives += copies.unwrap_or_default();
        let copies = self.appliance.as_ref().map(Appliance::copies_by_drives);
        self.env.figures.copies_by_drives += copies.unwrap_or_default();
        let transfers = self.appliance.as_ref().map(Appliance::transfers_in_drives);
        self.env.figures.transfers_in_drives += transfers.unwrap_or_default();
        self.stop()?;
        self.handle_appliance_end(true);
        self.check_media(true)?;
        self.env.count_ambient();
        self.env.figures.rates_judged = self.env.rates.judged;
        self.env.figures.paces_judged = self.env.paces.judged;
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
        self.apply_rare_fault()?;
        self.contend()?;
        self.reserve()?;
        self.handle_notices()?;
        self.operate()?;
        self.compete()?;
        self.copy_blocks()?;
        self.copy_devices()?;
        self.mask_hosts()?;
        self.authenticate_hosts()?;
        self.limit_hosts()?;
        self.pace_exports()?;
        self.hand_over_sometimes()?;
        if self.random.permille(PAUSES_PERMILLE) {
            let pause = Nanos::from_millis(self.random.between(1, 4000));
            return self.pass(pause);
        }
        if self.random.permille(FAULTS_PERMILLE) {
            let faults = self.env.swarm.faults.iter();
            let faults: Vec<Fault> = faults
                .filter(|it| {
                    let has_own_stream =
                        it.is_host_behaviour() || it.is_drawn_separately() || it.is_misuse();
                    let is_elsewhere = matches!(
                        it,
                        Fault::Contend
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
                    );
                    !has_own_stream && !is_elsewhere
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
        let can_persist = self.env.can_persist_reservations();
        let (now, reservations) = (self.env.time.now(), &mut self.env.judge.reservations);
        reservations.restart(now, &can_persist);
        let started = Appliance::start(seed, &self.env);
        let appliance = started.map_err(|error| Violation::Rule(format!("start: {error}")))?;
        self.appliance = Some(appliance);
        self.env.rates.suspend();
        self.env.rates.begin(&self.env.serving, |_| false);
        self.note_ana_groups(None);
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
        if let Some(space) = &self.env.space {
            space.close();
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
        self.fairness.reset();
        self.device_copies.forget();
        self.env.judge.stopped();
        self.reserving.reset();
        self.reset_ana();
        self.env.store.appliance_ended();
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
        self.return_all_access()?;
        self.await_device_copies()?;
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
        self.clear_reservations()?;
        self.empty_notices()?;
        self.judge_recovery(true)?;
        self.env.disk_failed |= self.env.disk_fails.contains(&true);
        for (storage, fails) in self.env.disks.iter().zip(&mut self.env.disk_fails) {
            *fails &= !storage.is_on_drive();
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
        let mut turns_now = 0_u64;
        loop {
            if done(self) {
                return Ok(true);
            }
            turns_now += 1;
            if turns_now > TURNS_AT_ONE_TIME_MAX {
                let what = "the appliance or a host is busy forever".to_owned();
                return Err(Violation::Rule(what));
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
            self.adjust_paces()?;
            self.check_dma()?;
            self.follow_device_copies()?;
            self.update_lost_writes();
            for host in &mut self.hosts {
                busy |= host.poll(&mut self.env.for_hosts())?;
            }
            busy |= self.complete_stores();
            self.apply_fences()?;
            self.require_notices();
            self.check_ana()?;
            self.judge_fairness()?;
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
            (idle_turns, turns_now) = (0, 0);
        }
    }
}
