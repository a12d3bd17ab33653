//! Configuration changes during operation: the appliance's own code determines and performs the
//! steps, and events continue whenever it waits.

mod handing_over;
mod kinds;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use appliance::headless::{Control, EventLoop, Outcome};
use appliance_config::{Backing, Config};
use reactors::Nanos;

use super::device_copies::Needs;
use super::{EVENT_MAX, STOP_MAX, World};
use crate::appliance::Appliance;
use crate::environment::CHANGING;
use crate::fabric::RdmaNetwork;
use crate::faults::Fault;
use crate::history::Moment;
use crate::judge::Violation;
use crate::network::Listener;
use crate::oracle;
use crate::plan::{self, RDMA_LISTENER, ServedConfig, device_name};
use crate::storage::Storage;
use crate::swarm::Swarm;

/// Probability that a wait contains an event, per thousand.
const EVENTS_PERMILLE: u32 = 500;
/// Time that passes in a wait without an event.
const WAIT_MAX: Nanos = Nanos::from_micros(200);
/// Interval at which the control thread checks the devices.
const CHECK_INTERVAL: Nanos = Nanos::from_millis(100);
/// Share of changes that exclude a host while its commands outlast the change's patience, per
/// thousand.
const OUTLAST_PERMILLE: u32 = 300;
/// Maximum time until an excluded host is cut off or waits for a device.
const CUT_OFF_MAX: Nanos = Nanos::from_secs(7);
/// Time in each wait for hosts to see that disks grow.
const GROWTH_LOOK: Nanos = Nanos::from_micros(300);
/// After a kill, every reading of the clock advances by this much, so that all waits end.
const KILLED_CLOCK_STEP: Duration = Duration::from_secs(1 << 20);

/// A requested configuration change.
struct Change {
    wanted: ServedConfig,
    /// The configuration text, if it differs from `wanted`; the change must fail then.
    text: Option<String>,
    /// Hosts that it may disturb, besides those that it adds or removes.
    hosts: BTreeSet<usize>,
    /// Disks that it may disturb, besides those that it adds or removes.
    disks: BTreeSet<usize>,
}

impl Change {
    fn to(wanted: ServedConfig) -> Self {
        Self {
            wanted,
            text: None,
            hosts: BTreeSet::new(),
            disks: BTreeSet::new(),
        }
    }

    /// A change that must fail.
    fn must_fail(serving: &ServedConfig, text: String) -> Self {
        Self {
            text: Some(text),
            ..Self::to(serving.clone())
        }
    }
}

/// What a change adds, removes or changes.
struct Touched {
    hosts: BTreeSet<usize>,
    disks: BTreeSet<usize>,
    /// Names of hosts, and the disks whose masks for them change.
    masks: BTreeSet<(usize, usize)>,
    /// Names of hosts whose keys change.
    secrets: BTreeSet<usize>,
}

/// The reason why a change ends early.
enum End {
    /// A violation.
    Wrong(Violation),
    /// The appliance is killed.
    Killed { power: bool },
}

/// The event loop of a change: the world runs while the change waits.
struct During<'w> {
    world: &'w mut World,
    /// The reading of the machine's clock and the virtual time at the beginning of the change.
    began: (Instant, Nanos),
    /// When remaining commands are cut off.
    patience_ends: Nanos,
    /// Disks whose devices are removed.
    leaving: Vec<usize>,
    end: Option<End>,
    /// Readings of the clock after the end.
    clock_readings: Cell<u32>,
}

impl EventLoop for During<'_> {
    fn now(&self) -> Instant {
        let (reading, began) = self.began;
        if self.end.is_some() {
            self.clock_readings.set(self.clock_readings.get() + 1);
            return reading + KILLED_CLOCK_STEP * self.clock_readings.get();
        }
        let passed = self.world.env.time.now().saturating_sub(began);
        reading + Duration::from_nanos(passed.as_nanos())
    }

    fn run_once(&mut self) {
        if self.end.is_some() {
            return;
        }
        if self.patience_ends <= self.world.env.time.now() {
            for disk in &self.leaving {
                self.world.env.disk_fails[*disk] = true;
            }
        }
        let result = self.world.run_during_change();
        let kill_after_change = self.world.kill_after_change.take();
        self.end = match result {
            Err(violation) => Some(End::Wrong(violation)),
            Ok(()) => kill_after_change.map(|power| End::Killed { power }),
        };
    }

    fn pause(&self) -> Duration {
        Duration::ZERO
    }

    fn run(&mut self, work: &mut (dyn FnMut() + Send)) -> bool {
        // A killed process performs no work.
        if self.end.is_none() {
            work();
        }
        self.end.is_none()
    }
}

impl World {
    /// Runs the world while a change waits.
    fn run_during_change(&mut self) -> Result<(), Violation> {
        self.follow_ana_states()?;
        self.note_condition();
        self.look_for_growth()?;
        // Events can take seconds, and hosts wait during a hand-over.
        let more = self.event < self.env.swarm.events && !self.is_handing_over;
        if more && self.change_random.permille(EVENTS_PERMILLE) {
            self.event += 1;
            self.env.figures.events += 1;
            return self.one_event();
        }
        // Wait times grow with the duration of the change.
        self.waits += 1;
        let most = WAIT_MAX.as_nanos() << (self.waits / 16).min(9);
        let wait = self.change_random.below(most);
        self.pass(Nanos(wait + 1))
    }

    /// Has hosts read the sizes of growing disks.
    fn look_for_growth(&mut self) -> Result<(), Violation> {
        let (env, hosts) = (&mut self.env, &mut self.hosts);
        let mut asks = false;
        for disk in 0..env.disks.len() {
            let is_there = env.serving.namespaces[disk];
            if !is_there || env.serving.sizes[disk] <= env.swarm.disks[disk].block_count {
                continue;
            }
            for host in hosts.iter_mut() {
                host.ask_size(&mut env.for_hosts(), disk);
                asks = true;
            }
        }
        match asks {
            true => self.pass(GROWTH_LOOK),
            false => Ok(()),
        }
    }

    /// Runs the control thread's periodic checks when they are due.
    pub(super) fn run_control_checks(&mut self) -> Result<(), Violation> {
        let now = self.env.time.now();
        if now < self.checked_at + CHECK_INTERVAL {
            return Ok(());
        }
        self.checked_at = now;
        let strays = self.appliance.as_ref().map_or(0, Appliance::stale_timers);
        if strays > 0 {
            let what = format!("{strays} timers belong to ended controllers");
            return Err(Violation::Rule(what));
        }
        if let Some(appliance) = self.appliance.as_mut().filter(|_| !self.changing) {
            appliance.run_control_checks();
            self.follow_ana_states()?;
        }
        self.note_condition();
        Ok(())
    }

    /// When the control thread's next check is due, if a removed disk waits for it.
    pub(super) fn next_control_check(&self) -> Option<Nanos> {
        let waits = self.env.disk_gone.contains(&true) && !self.changing;
        waits.then_some(self.checked_at + CHECK_INTERVAL)
    }

    /// Whether a disk is pulled out, as far as the appliance knows.
    pub(super) fn is_gone(&self, disk: usize) -> bool {
        let appliance = self.appliance.as_ref();
        self.env.disk_gone[disk]
            || self.env.disks[disk].needs_restart()
            || appliance.is_some_and(|it| it.is_gone(disk))
    }

    /// Notes which devices the control thread may know to be removed or back.
    fn note_condition(&mut self) {
        let Some(appliance) = &self.appliance else {
            return;
        };
        let now = self.env.time.now();
        for (number, disk) in self.env.disks.iter().enumerate() {
            let is_gone = disk.needs_restart() || appliance.is_gone(number);
            let was_gone = &mut self.env.disk_gone[number];
            if is_gone == *was_gone || (self.changing && !is_gone) {
                continue;
            }
            *was_gone = is_gone;
            let changed = &mut self.env.namespace_changed[number];
            *changed = now.max(*changed);
        }
    }

    /// Changes the configuration if possible. Returns whether it did.
    pub(super) fn reconfigure(
        &mut self,
        fault: Fault,
        disk: usize,
        host: usize,
    ) -> Result<bool, Violation> {
        // Only one change at a time.
        if self.changing {
            return Ok(false);
        }
        let change = match fault {
            Fault::Refused => self.failing_change(disk),
            Fault::Compound => self.compound(host),
            _ => {
                let mut wanted = self.env.serving.clone();
                let varied = self.vary(&mut wanted, fault, disk, host);
                varied.then(|| Change::to(wanted))
            }
        };
        match change {
            Some(change) => self.apply_change(change).map(|()| true),
            None => Ok(false),
        }
    }

    /// Moves the namespace of a disk to another ANA group, if possible now.
    pub(super) fn move_to_group(&mut self, disk: usize, group: u32) -> Result<(), Violation> {
        let is_there = self.env.serving.namespaces[disk] && !self.is_gone(disk);
        if self.changing || !is_there || self.env.serving.ana_groups[disk] == group {
            return Ok(());
        }
        let mut wanted = self.env.serving.clone();
        wanted.ana_groups[disk] = group;
        self.apply_change(Change::to(wanted))
    }

    /// Restores the full configuration.
    pub(super) fn configure_all(&mut self) -> Result<(), Violation> {
        let ServedConfig {
            sizes,
            files,
            nsids,
            ana_groups,
            secrets,
            limits,
            latency_targets,
            ..
        } = self.env.serving.clone();
        let wanted = ServedConfig {
            sizes,
            files,
            nsids,
            ana_groups,
            secrets,
            limits,
            latency_targets,
            ..ServedConfig::all(&self.env.swarm)
        };
        if wanted != self.env.serving {
            self.apply_change(Change::to(wanted))?;
        }
        Ok(())
    }

    /// Has the appliance apply a change, and judges the result.
    fn apply_change(&mut self, change: Change) -> Result<(), Violation> {
        let taken = self.appliance.as_mut().and_then(Appliance::take_control);
        let Some(mut control) = taken else {
            return Ok(());
        };
        let done = self.apply_change_by(&mut control, &change);
        if let Some(appliance) = &mut self.appliance {
            appliance.give_control(control);
        }
        match done? {
            Done::Settled => Ok(()),
            Done::Killed { power } => self.kill(power),
            Done::TakesRestart => {
                self.stop()?;
                self.handle_appliance_end(false);
                self.env.serving = change.wanted;
                self.start()
            }
        }
    }

    /// Sometimes makes commands of a host that the change excludes outlast the change's patience
    /// and the time to cut them off.
    fn outlast_patience(
        &mut self,
        hosts: &BTreeSet<usize>,
        change: &Change,
    ) -> Result<(), Violation> {
        let patience = self.env.swarm.patience;
        let swarm = &self.env.swarm;
        let mut out = hosts
            .iter()
            .filter(|it| !change.wanted.reaches(swarm, **it));
        if let Some(host) = out.next().copied()
            && change.text.is_none()
            && patience < Nanos::from_secs(5)
        {
            return self.delay_commands(
                host,
                OUTLAST_PERMILLE,
                patience + CUT_OFF_MAX + CUT_OFF_MAX,
            );
        }
        Ok(())
    }

    fn apply_change_by(
        &mut self,
        control: &mut Control,
        change: &Change,
    ) -> Result<Done, Violation> {
        let wanted = match &change.text {
            Some(text) => plan::read(text),
            None => change.wanted.config(&self.env.swarm),
        };
        let wanted = wanted.map_err(Violation::Rule)?;
        let former = self.env.serving.clone();
        let former_config = control.config().clone();
        let needs = self.device_copies.needs();
        let touched = self.touched(&former, change);
        self.outlast_patience(&touched.hosts, change)?;
        let now = self.env.time.now();
        self.env
            .note(format_args!("a change begins: {:?}", change.wanted));
        let before = self.appliance.iter().flat_map(Appliance::associations);
        let before: BTreeSet<u16> = before.map(|(_, _, controller)| controller).collect();
        self.mark_changing(&touched, change);
        self.env.rates.suspend();
        let began = self.env.judge.begin_read();
        self.changing = true;
        self.env.changing = true;
        self.waits = 0;
        let patience_ends = now + self.env.swarm.patience;
        let leaving = touched.disks.iter().copied();
        let leaving = leaving.filter(|disk| {
            // A device whose mode or file changes is closed and opened again.
            let is_replaced = former.read_only[*disk] != change.wanted.read_only[*disk]
                || former.files[*disk] != change.wanted.files[*disk];
            change.text.is_some() || !change.wanted.devices[*disk] || is_replaced
        });
        let mut during = During {
            began: (Instant::now(), now),
            patience_ends,
            leaving: leaving.collect(),
            end: None,
            clock_readings: Cell::new(0),
            world: self,
        };
        let outcome = control.apply(&wanted, &mut during);
        let end = during.end;
        self.changing = false;
        self.env.changing = false;
        self.env.changed_at = self.env.time.now();
        self.kill_after_change = None;
        self.env.listeners.iter().for_each(Listener::allow_bind);
        self.env.disks.iter().for_each(Storage::allow_open);
        self.env
            .note(format_args!("the change is over: {outcome:?}"));
        self.env.figures.steps += outcome.done.len() as u64;
        match end {
            Some(End::Wrong(violation)) => return Err(violation),
            Some(End::Killed { power }) => {
                // If the file was changed before the kill, the start finds the new configuration.
                if self.change_random.coin() {
                    self.env.serving = former.clone();
                }
                self.mark_changed(&touched, &former, began, false);
                return Ok(Done::Killed { power });
            }
            None => self.follow_ana_states()?,
        }
        let mut former_config = former_config;
        let expected = if change.text.is_some() || !outcome.is_applied {
            self.env.serving = former.clone();
            self.keep_growth(control.config(), &change.wanted, &mut former_config);
            &former_config
        } else {
            &wanted
        };
        self.mark_changed(&touched, &former, began, outcome.is_applied);
        let left = control.config().difference(expected);
        let disks = 0..self.env.disks.len();
        let absent: Vec<usize> = disks.filter(|disk| self.is_gone(*disk)).collect();
        let served = self
            .appliance
            .as_ref()
            .map(|it| it.served(control, &absent));
        let wrong = served.and_then(|served| oracle::disagreement(expected, &served));
        if let Some(step) = left.first() {
            // A device that was pulled out during the change is back only after a restart.
            let network = self.env.rdma.as_ref();
            let is_lost = self.env.disks.iter().any(Storage::needs_restart)
                || network.is_some_and(RdmaNetwork::is_unplugged);
            if !outcome.is_applied && is_lost {
                return Ok(Done::Killed { power: false });
            }
            let what = format!("after a change ({outcome:?}) this step is missing: {step}");
            return Err(Violation::Rule(what));
        }
        if let Some(wrong) = wrong.filter(|_| absent.is_empty() || outcome.is_applied) {
            return Err(Violation::Rule(format!("after a change {wrong}")));
        }
        self.settle_ana_states()?;
        if outcome.is_applied {
            self.judge_departures(&before, &former)?;
            self.judge_change_during_copies(&needs, &former)?;
        }
        self.judge_outcome(change, &outcome, &needs)
    }

    /// Keeps the growth of disks after a failed change; everything else of it is undone.
    fn keep_growth(&mut self, runs: &Config, wanted: &ServedConfig, former: &mut Config) {
        for disk in 0..self.env.disks.len() {
            // A file that was extended when it was opened stays extended after its close.
            if let Storage::Disk(file) = &self.env.disks[disk]
                && !self.env.serving.has_device(disk)
            {
                let size = &mut self.env.serving.sizes[disk];
                *size = file.shape().block_count.max(*size);
            }
            let name = device_name(disk);
            let its = |it: &&appliance_config::Device| it.name.as_str() == name;
            let size = runs
                .devices
                .iter()
                .find(its)
                .and_then(|it| it.backing.size());
            let block_size = u64::from(self.env.swarm.disks[disk].block_size);
            let Some(bytes) = size.filter(|it| it.bytes() == wanted.sizes[disk] * block_size)
            else {
                continue;
            };
            self.env.serving.sizes[disk] = wanted.sizes[disk];
            let mut devices = former.devices.iter_mut();
            let device = devices.find(|it| it.name.as_str() == name);
            match device.map(|it| &mut it.backing) {
                Some(Backing::File { size, .. }) => *size = Some(bytes),
                Some(Backing::Memory { size, .. }) => *size = bytes,
                Some(Backing::Null { .. } | Backing::Nvme(_)) | None => {}
            }
        }
    }

    /// Whether hosts of a subsystem must be disconnected because one of their disks was replaced.
    fn has_exchanged(&self, former: &ServedConfig, subsystem: usize) -> bool {
        let mut disks = self.env.swarm.disks_of(subsystem);
        disks.any(|disk| is_exchanged_in_service(former, &self.env.serving, disk))
    }

    /// Checks that no host keeps an association that the completed change forbids.
    fn judge_departures(
        &self,
        before: &BTreeSet<u16>,
        former: &ServedConfig,
    ) -> Result<(), Violation> {
        let swarm = &self.env.swarm;
        let (then, now) = (&former.keys.identities, &self.env.serving.keys.identities);
        let associations = self.appliance.iter().flat_map(Appliance::associations);
        for (host, subsystem, controller) in associations {
            // A host may have two paths, each with its own controllers.
            let ways = (0..swarm.hosts.len())
                .filter(|it| plan::host_name(swarm.hosts[*it].identity) == host);
            let mut served = plan::SUBSYSTEMS.iter().take(swarm.subsystems);
            let is_open_to_all = served
                .position(|it| *it == subsystem)
                .is_some_and(|it| self.env.serving.keys.any_host[it]);
            let is_allowed = ways.clone().any(|it| self.env.serving.reaches(swarm, it));
            let is_allowed = is_allowed || (is_open_to_all && ways.clone().next().is_none());
            let is_unauthenticated = |it: usize| {
                must_reconnect(swarm, former, &self.env.serving, it)
                    && self.env.controllers[it] == controller
                    && self.hosts[it].is_unauthenticated()
            };
            if before.contains(&controller) && ways.clone().any(is_unauthenticated) {
                let what = format!(
                    "a change is done, and {host} has controller {controller} of {subsystem} \
                     without having authenticated itself"
                );
                return Err(Violation::Rule(what));
            }
            // Hosts identify a subsystem by its serial and model number.
            let is_other = ways
                .map(|it| swarm.hosts[it].subsystem)
                .any(|it| then[it] != now[it] || self.has_exchanged(former, it));
            if !is_allowed || (is_other && before.contains(&controller)) {
                let what = format!(
                    "a change is done, and {host} still has controller {controller} of {subsystem}"
                );
                return Err(Violation::Rule(what));
            }
        }
        Ok(())
    }

    fn judge_outcome(
        &self,
        change: &Change,
        outcome: &Outcome,
        needs: &Needs,
    ) -> Result<Done, Violation> {
        let wrong = |what: String| Err(Violation::Rule(what));
        match (&outcome.failure_reason, change.text.is_some()) {
            (None, false) => Ok(Done::Settled),
            (None, true) => wrong("a change was carried out that cannot be had".to_owned()),
            (Some(_), true) => Ok(Done::Settled),
            (Some(failure_reason), false) => {
                let rdma = change.wanted.listeners[RDMA_LISTENER]
                    && !self.env.serving.listeners[RDMA_LISTENER];
                // A simulated appliance has RDMA only if a listener needs it at start.
                if rdma && failure_reason.contains("transport rdma is not available") {
                    return Ok(Done::TakesRestart);
                }
                // A copy keeps its devices.
                if needs.explain(failure_reason) {
                    return Ok(Done::Settled);
                }
                // A device that was pulled out during the change is not available.
                if self.env.disks.iter().any(Storage::needs_restart) {
                    return Ok(Done::Settled);
                }
                // No listener is possible on an RDMA device that was pulled out.
                let network = self.env.rdma.as_ref();
                if rdma && network.is_some_and(RdmaNetwork::is_unplugged) {
                    return Ok(Done::Settled);
                }
                wrong(format!("a change is not carried out: {failure_reason}"))
            }
        }
    }

    /// The hosts and disks to which a change adds or from which it removes something.
    fn touched(&self, former: &ServedConfig, change: &Change) -> Touched {
        let swarm = &self.env.swarm;
        let wanted = &change.wanted;
        let hosts = 0..swarm.hosts.len();
        let hosts = hosts.filter(|it| {
            let subsystem = swarm.hosts[*it].subsystem;
            former.reaches(swarm, *it) != wanted.reaches(swarm, *it)
                || former.keys.identities[subsystem] != wanted.keys.identities[subsystem]
                || former.has_listener(swarm, *it) != wanted.has_listener(swarm, *it)
                || must_reconnect(swarm, former, wanted, *it)
                || swarm
                    .disks_of(subsystem)
                    .any(|disk| is_exchanged_in_service(former, wanted, disk))
        });
        let disks = (0..swarm.disks.len()).filter(|disk| {
            former.namespaces[*disk] != wanted.namespaces[*disk]
                || former.devices[*disk] != wanted.devices[*disk]
                || former.sizes[*disk] != wanted.sizes[*disk]
                || former.files[*disk] != wanted.files[*disk]
                || former.nsids[*disk] != wanted.nsids[*disk]
                || former.ana_groups[*disk] != wanted.ana_groups[*disk]
                || former.read_only[*disk] != wanted.read_only[*disk]
        });
        let access = |config: &ServedConfig, identity, disk| config.access(swarm, identity, disk);
        let identities = 0..swarm.hosts.len();
        let pairs = identities.flat_map(|it| (0..swarm.disks.len()).map(move |disk| (it, disk)));
        let masks = pairs.filter(|(identity, disk)| {
            access(former, *identity, *disk) != access(wanted, *identity, *disk)
        });
        Touched {
            hosts: hosts.chain(change.hosts.iter().copied()).collect(),
            disks: disks.chain(change.disks.iter().copied()).collect(),
            masks: masks.collect(),
            secrets: hosts_with_other_secrets(swarm, former, wanted).collect(),
        }
    }

    /// Marks the state as changing: from now on each effect of the change may or may not have
    /// happened.
    fn mark_changing(&mut self, touched: &Touched, change: &Change) {
        let Touched {
            hosts,
            disks,
            masks,
            secrets,
        } = touched;
        for identity in secrets {
            self.env.keys_changed[*identity] = CHANGING;
        }
        self.note_ana_groups(Some(&change.wanted));
        for host in hosts {
            self.env.permission_changed[*host] = CHANGING;
        }
        for disk in disks {
            self.env.namespace_changed[*disk] = CHANGING;
            let now = self.env.time.now();
            self.env.judge.reservations.change_begins(now, *disk);
            let blocks = change.wanted.sizes[*disk];
            self.env.judge.grow(*disk, blocks);
            let former = &self.env.serving;
            let is_exchanged = former.files[*disk] != change.wanted.files[*disk];
            if is_exchanged {
                let is_known = former.has_namespace(&self.env.swarm, *disk);
                self.env.judge.exchange_begins(*disk, !is_known);
            }
            self.expect_namespace_events(*disk, None, change);
        }
        for (identity, disk) in masks {
            self.env.mask_changed[*identity][*disk] = CHANGING;
            self.expect_namespace_events(*disk, Some(*identity), change);
        }
        self.env.serving = change.wanted.clone();
    }

    /// Expects that the hosts that see a changed disk, or those with one name, are told.
    fn expect_namespace_events(&mut self, disk: usize, of: Option<usize>, change: &Change) {
        let swarm = &self.env.swarm;
        let (former, wanted) = (&self.env.serving, &change.wanted);
        let subsystem = swarm.subsystem_of_disk(disk);
        // No event tells in which state a failed change leaves the namespace, and that of a removed
        // device is gone already. If the disk is exchanged, its hosts are disconnected, and find
        // another disk after they reconnect.
        let is_exchanged = is_exchanged_in_service(former, wanted, disk);
        if change.text.is_some() || self.is_gone(disk) || is_exchanged {
            return;
        }
        for (host, shape) in self.hosts.iter_mut().zip(&swarm.hosts) {
            let identity = shape.identity;
            let sees = |config: &ServedConfig| config.shows(swarm, identity, disk);
            let state = |config| (sees(config), config.protects(swarm, identity, disk));
            let is_its = match of {
                Some(its) => its == identity && state(former) != state(wanted),
                None => true,
            };
            if shape.subsystem == subsystem && is_its && (sees(former) || sees(wanted)) {
                host.expect_namespace_event(disk, CHANGING);
            }
        }
    }

    /// Marks the change as complete.
    fn mark_changed(
        &mut self,
        touched: &Touched,
        former: &ServedConfig,
        began: Moment,
        is_applied: bool,
    ) {
        let now = self.env.time.now();
        self.note_ana_groups(None);
        let Touched {
            hosts,
            disks,
            masks,
            secrets,
        } = touched;
        // A device that is opened again has other rates, and so has a limit that was undone. Commands
        // of a host that is disconnected start without their turn.
        let keeps = is_applied && hosts.is_empty() && disks.is_empty() && secrets.is_empty();
        self.env.rates.begin(&self.env.serving, |_| keeps);
        for identity in secrets {
            self.env.keys_changed[*identity] = now;
        }
        for host in hosts {
            self.env.permission_changed[*host] = now;
        }
        for (identity, disk) in masks {
            self.env.mask_changed[*identity][*disk] = now;
        }
        // A namespace needs its device, which may have been pulled out during the change.
        let is_told = is_applied && !disks.iter().any(|disk| self.is_gone(*disk));
        for disk in disks {
            self.env.namespace_changed[*disk] = now;
            let file = self.env.serving.files[*disk];
            let is_moved = former.files[*disk] != file;
            self.env.judge.exchange_ends(*disk, is_moved);
            let is_reopened = self.is_reopened(*disk, former, is_applied);
            let reservations = &mut self.env.judge.reservations;
            reservations.change_ends(now, *disk, is_reopened);
            if is_reopened == Some(true) {
                self.env.store.forget(*disk);
            }
            if is_moved {
                self.env.put_into_file(*disk, file);
                self.env.swarm.disks[*disk].block_count = self.env.serving.sizes[*disk];
                continue;
            }
            let is_closed = is_applied && !self.env.serving.has_device(*disk);
            let is_exchanged =
                is_applied && former.read_only[*disk] != self.env.serving.read_only[*disk];
            if (is_closed || is_exchanged) && former.has_device(*disk) {
                self.device_closed(*disk, began);
            }
            self.env.swarm.disks[*disk].block_count = self.env.serving.sizes[*disk];
        }
        self.env.judge.end_read(began);
        for host in &mut self.hosts {
            host.changed_by(now, is_told.then_some(now + EVENT_MAX));
        }
    }

    /// Whether a change has closed a disk's device, so that nothing is left of its reservations;
    /// `None` if that is not certain.
    fn is_reopened(&self, disk: usize, former: &ServedConfig, is_applied: bool) -> Option<bool> {
        let serving = &self.env.serving;
        let is_kept = former.has_device(disk)
            && serving.has_device(disk)
            && former.read_only[disk] == serving.read_only[disk]
            && former.files[disk] == serving.files[disk];
        is_applied.then_some(!is_kept)
    }

    /// Handles a disk's device that was closed by a change. Data acknowledged before the change
    /// began is durable if the device is persistent. Later data may have gone to the device that
    /// replaced it.
    fn device_closed(&mut self, disk: usize, began: Moment) {
        let storage = &self.env.disks[disk];
        if storage.loses_content_on_close() {
            self.env.judge.content_lost(disk);
        } else if !storage.is_sync_failed() && !storage.needs_restart() {
            self.env.judge.flushed(disk, began);
        }
    }

    /// Adapts the configuration for the next start to the size of the disks. A start fails if a
    /// file is longer than configured.
    pub(super) fn find_sizes(&mut self, seed: u64) -> Result<(), Violation> {
        let mut is_shorter = false;
        for (number, storage) in self.env.disks.iter().enumerate() {
            let Storage::Disk(disk) = storage else {
                continue;
            };
            let size = disk.shape().block_count;
            let serving = &self.env.serving;
            is_shorter |= serving.has_device(number) && serving.sizes[number] < size;
        }
        if is_shorter && Appliance::start(seed, &self.env).is_ok() {
            let what = "the appliance starts although a file is longer than configured";
            return Err(Violation::Rule(what.to_owned()));
        }
        for (number, storage) in self.env.disks.iter().enumerate() {
            let size = &mut self.env.serving.sizes[number];
            match storage {
                Storage::Disk(disk) => *size = disk.shape().block_count.max(*size),
                Storage::Ram(_) => {}
                Storage::File(_) | Storage::Drive(_) | Storage::Neighbour(_) => continue,
            }
            self.env.swarm.disks[number].block_count = *size;
            self.env.judge.grow(number, *size);
        }
        Ok(())
    }

    /// Waits until the effects of a pulled drive are visible.
    pub(super) fn await_devices(&mut self) -> Result<(), Violation> {
        let by = self.env.time.now() + STOP_MAX;
        let are_back = |world: &mut Self| {
            let gone = world.env.disk_gone.iter().zip(&world.env.disks);
            !gone
                .into_iter()
                .any(|(gone, disk)| *gone && !disk.needs_restart())
        };
        if self.run_until(by, are_back)? {
            return Ok(());
        }
        Err(Violation::Rule("a drive does not come back".to_owned()))
    }
}

/// The names of the hosts whose keys change, or that begin or cease to need one.
fn hosts_with_other_secrets<'a>(
    swarm: &'a Swarm,
    former: &'a ServedConfig,
    wanted: &'a ServedConfig,
) -> impl Iterator<Item = usize> + 'a {
    let hosts = (0..swarm.hosts.len()).filter(|host| {
        former.demanded_secrets(swarm, *host) != wanted.demanded_secrets(swarm, *host)
    });
    hosts.map(|host| swarm.hosts[host].identity)
}

/// Whether a host has to connect again because it begins to need a key.
fn must_reconnect(
    swarm: &Swarm,
    former: &ServedConfig,
    wanted: &ServedConfig,
    host: usize,
) -> bool {
    let needs = |config: &ServedConfig| !config.demanded_secrets(swarm, host).is_empty();
    !needs(former) && needs(wanted)
}

/// Whether a disk that stays in service has moved to another file or has another namespace
/// identifier.
fn is_exchanged_in_service(former: &ServedConfig, wanted: &ServedConfig, disk: usize) -> bool {
    let stays = former.namespaces[disk] && wanted.namespaces[disk];
    let is_another = former.files[disk] != wanted.files[disk];
    stays && (is_another || former.nsids[disk] != wanted.nsids[disk])
}

/// The work that remains after a change.
enum Done {
    Settled,
    /// The appliance must be killed during the change.
    Killed {
        power: bool,
    },
    /// Nothing was changed; the change requires a restart.
    TakesRestart,
}
