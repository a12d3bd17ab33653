//! Copies of whole devices, as `windlass copy` begins them, while hosts use the source and the
//! destination (`ARCHITECTURE.md` §7.1). For the judge, such a copy is a Copy of each block to the same
//! place: until it has ended, a block has what it had, or what its source had at some moment since the
//! beginning.

use std::collections::BTreeSet;
use std::sync::Arc;

use appliance::headless::CopyWanted;
use block::{
    COPIES_MAX, COPY_REQUEST_TIME_MAX, CopyEnd, CopyError, CopyFailure, CopyProgress, CopyStep,
    CopyStop, DeviceError,
};
use reactors::Nanos;

use super::World;
use crate::appliance::Appliance;
use crate::faults::Fault;
use crate::history::{Moment, WriteEnd};
use crate::judge::{Extent, Violation};
use crate::plan::{ServedConfig, device_name};
use crate::random::Random;
use crate::storage::Storage;

/// Share of events with an action, per thousand.
const ACTIONS_PERMILLE: u32 = 60;
/// Share of actions that abort a copy, if one runs, per thousand.
const ABORTS_PERMILLE: u32 = 250;
/// Share of copies that violate a rule, per thousand.
const WRONG_PERMILLE: u32 = 200;
/// Share of copies whose source and destination may be the same disk, per thousand.
const SAME_PERMILLE: u32 = 100;
/// Share of copies whose destination is not exported, as far as that is possible, per thousand.
const HIDDEN_PERMILLE: u32 = 400;
/// Share of copies during which a disk delays its requests, per thousand.
const DELAYS_PERMILLE: u32 = 600;
/// Share of copies to a disk without hosts whose requests are not complete when they are due, per thousand.
const OVERDUE_PERMILLE: u32 = 150;
/// Share of copies during which a mishap strikes a drive, if such are on, per thousand.
const MISHAPS_PERMILLE: u32 = 300;
/// Longest delay of a disk.
const HOLD_MAX: Nanos = Nanos::from_millis(20);
/// Attempts to find a range of which the judge can tell what is copied.
const PLANS_MAX: u32 = 6;
/// Commands of hosts at the source and the destination after the beginning of a copy.
const COMMANDS_MAX: u64 = 8;
/// Most blocks of such a command.
const BLOCKS_MAX: u64 = 8;
/// Longest time between two of them.
const PAUSE_MAX: Nanos = Nanos::from_micros(60);
/// Time after which a request that the copier has given up may still be in a device when the copy ends.
const GIVEN_UP: Nanos = block::GIVEN_UP_MAX;
/// Maximum time in which a copy writes nothing: a request is read and written by each of three ways, or
/// fails, and those that are given up end by force.
const STANDSTILL_MAX: Nanos = Nanos(6 * COPY_REQUEST_TIME_MAX.as_nanos() + 2 * GIVEN_UP.as_nanos());

/// A copy that runs.
pub(super) struct Running {
    number: u32,
    progress: Arc<CopyProgress>,
    source: usize,
    destination: usize,
    first: u64,
    blocks: u64,
    version: u64,
    began: Moment,
    is_aborted: bool,
    /// The written blocks, and since when it has no more.
    written: (u64, Nanos),
}

/// The copies of devices of a run.
pub(super) struct DeviceCopies {
    random: Random,
    running: Vec<Running>,
}

impl DeviceCopies {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed, 0xC7),
            running: Vec::new(),
        }
    }

    /// Whether a copy runs.
    pub(super) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Notes that the appliance has ended, and its copies with it.
    pub(super) fn forget(&mut self) {
        self.running.clear();
    }

    /// What a change must not take from the copies that run.
    pub(super) fn needs(&self) -> Needs {
        Needs {
            numbers: self.running.iter().map(|it| it.number).collect(),
            devices: (self.running.iter())
                .flat_map(|it| [it.source, it.destination])
                .collect(),
            destinations: self.running.iter().map(|it| it.destination).collect(),
        }
    }
}

/// The disks of copies that run at one moment.
pub(super) struct Needs {
    numbers: BTreeSet<u32>,
    devices: BTreeSet<usize>,
    destinations: BTreeSet<usize>,
}

impl Needs {
    /// Whether a change is refused because of a copy.
    pub(super) fn explain(&self, refusal: &str) -> bool {
        refusal.starts_with("nothing was changed: copy ")
            && self
                .numbers
                .iter()
                .any(|it| refusal.contains(&format!("--abort {it}`")))
    }

    /// What a change that was carried out has taken from copies that run.
    fn taken(&self, world: &World, former: &ServedConfig) -> Option<usize> {
        let (now, swarm) = (&world.env.serving, &world.env.swarm);
        let is_closed = |disk: &&usize| {
            former.has_device(**disk)
                && (!now.has_device(**disk)
                    || now.files[**disk] != former.files[**disk]
                    || now.read_only[**disk] != former.read_only[**disk])
        };
        let is_exported = |disk: &&usize| {
            !former.has_namespace(swarm, **disk) && now.has_namespace(swarm, **disk)
        };
        let closed = self.devices.iter().find(is_closed);
        let exported = self.destinations.iter().find(is_exported);
        closed.or(exported).copied()
    }
}

/// A copy as the world wants it, in blocks.
struct Plan {
    source: usize,
    destination: usize,
    first: u64,
    blocks: u64,
    wanted: CopyWanted,
}

/// Whether the appliance must begin a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Begins,
    Refused,
    /// It depends on what the world does not know.
    Either,
}

impl World {
    /// Sometimes begins or aborts a copy of a device.
    pub(super) fn copy_devices(&mut self) -> Result<(), Violation> {
        let is_on = self.env.swarm.faults.has(Fault::DeviceCopy) && !self.is_handing_over;
        if !is_on || !self.device_copies.random.permille(ACTIONS_PERMILLE) {
            return Ok(());
        }
        let random = &mut self.device_copies.random;
        if self.device_copies.running.is_empty() || !random.permille(ABORTS_PERMILLE) {
            return match self.changing {
                true => Ok(()),
                false => self.begin_device_copy(),
            };
        }
        self.abort_device_copy()
    }

    /// Aborts a copy that runs, or one that does not exist.
    fn abort_device_copy(&mut self) -> Result<(), Violation> {
        let Some(appliance) = &self.appliance else {
            return Ok(());
        };
        let copies = &mut self.device_copies;
        if copies.random.permille(200) {
            let number = u32::MAX - copies.random.below(2) as u32;
            return match appliance.abort_copy(number) {
                Ok(()) => Err(Violation::Rule(format!(
                    "copy {number} is aborted, which does not exist"
                ))),
                Err(_) => Ok(()),
            };
        }
        let chosen = copies.random.below(copies.running.len() as u64) as usize;
        let copy = &mut copies.running[chosen];
        copy.is_aborted = true;
        let number = copy.number;
        self.env.note(format_args!("copy {number} is aborted"));
        match appliance.abort_copy(number) {
            Ok(()) => Ok(()),
            Err(error) => Err(Violation::Rule(format!(
                "copy {number} runs and is not aborted: {error}"
            ))),
        }
    }

    /// Begins a copy if the judge can tell what it copies, and has hosts use its disks.
    fn begin_device_copy(&mut self) -> Result<(), Violation> {
        let disks = self.env.disks.len() as u64;
        let random = &mut self.device_copies.random;
        let source = random.below(disks) as usize;
        let destination = match random.permille(SAME_PERMILLE) {
            true => random.below(disks) as usize,
            false => {
                (source as u64 + random.between(1, disks.max(2) - 1)) as usize % disks as usize
            }
        };
        self.hide_destination(destination)?;
        // A copy heeds no Compare and Write of its destination.
        let is_exported = (self.env.serving).has_namespace(&self.env.swarm, destination);
        let has_pairs = self.env.swarm.faults.has(Fault::Fuse) && is_exported;
        if self.changing || self.appliance.is_none() || has_pairs {
            return Ok(());
        }
        for _ in 0..PLANS_MAX {
            let plan = self.plan_device_copy(source, destination);
            let blocks = plan.first..plan.first + plan.blocks;
            let expected = self.expected(&plan);
            // Whatever a copy that is refused would write, it writes nothing.
            let writes = match expected {
                Expected::Refused => None,
                Expected::Begins | Expected::Either => {
                    let sources: Vec<(usize, u64)> = blocks.map(|lba| (source, lba)).collect();
                    let judge = &mut self.env.judge;
                    let begun = judge.begin_copy(destination, &sources, plan.first);
                    let Some(begun) = begun else { continue };
                    Some(begun)
                }
            };
            return self.start_device_copy(&plan, expected, writes);
        }
        Ok(())
    }

    /// Sometimes removes the namespace of a disk, or adds it again.
    fn hide_destination(&mut self, disk: usize) -> Result<(), Violation> {
        let is_there = self.env.serving.namespaces[disk];
        let random = &mut self.device_copies.random;
        if random.permille(HIDDEN_PERMILLE) && (is_there || random.coin()) && !self.is_gone(disk) {
            self.reconfigure(Fault::Namespaces, disk, 0)?;
        }
        Ok(())
    }

    /// Draws a copy, which may violate a rule.
    fn plan_device_copy(&mut self, source: usize, destination: usize) -> Plan {
        let random = &mut self.device_copies.random;
        let (serving, swarm) = (&self.env.serving, &self.env.swarm);
        let size = serving.sizes[source].min(serving.sizes[destination]);
        let first = random.below(size);
        let blocks = match random.coin() {
            true => size - first,
            false => random.between(1, size - first),
        };
        let is_exported = |disk: usize| serving.has_namespace(swarm, disk);
        let block_bytes = u64::from(swarm.disks[source].block_size);
        let mut wanted = CopyWanted {
            source: device_name(source),
            destination: device_name(destination),
            offset: first * block_bytes,
            length: Some(blocks * block_bytes),
            live: is_exported(source),
            overwrite_exported: is_exported(destination),
            drive_memory: false,
            by_drive: false,
        };
        let (mut first, mut blocks) = (first, blocks);
        if random.permille(WRONG_PERMILLE) {
            match random.below(8) {
                0 => wanted.live = false,
                1 => wanted.overwrite_exported = false,
                2 => wanted.drive_memory = true,
                3 => wanted.by_drive = true,
                4 => wanted.length = Some(blocks * block_bytes - random.below(2)),
                5 => wanted.offset += random.below(2),
                6 => {
                    // Beyond every size that the disks may grow to.
                    (first, blocks) = (1 << 30, 1);
                    wanted.offset = first * block_bytes;
                    wanted.length = Some(block_bytes);
                }
                _ => wanted.destination = "unknown".to_owned(),
            }
        }
        Plan {
            source,
            destination,
            first,
            blocks,
            wanted,
        }
    }

    /// Whether a copy must begin, from the rules of its documentation.
    fn expected(&self, plan: &Plan) -> Expected {
        let (serving, swarm, wanted) = (&self.env.serving, &self.env.swarm, &plan.wanted);
        let (source, destination) = (plan.source, plan.destination);
        let block_bytes = u64::from(swarm.disks[source].block_size);
        let is_aligned = |bytes: u64| bytes.is_multiple_of(block_bytes);
        let is_exported = |disk: usize| serving.has_namespace(swarm, disk);
        let both = [source, destination];
        let may_write_source =
            is_exported(source) && (!serving.read_only[source] || swarm.disks[source].read_only);
        let end = plan.first + plan.blocks;
        let running = &self.device_copies.running;
        let is_busy = running.iter().any(|it| {
            it.destination == source || both.contains(&it.destination) || it.source == destination
        });
        let is_refused = source == destination
            || wanted.destination != device_name(destination)
            || swarm.disks[source].block_size != swarm.disks[destination].block_size
            || both
                .iter()
                .any(|it| !serving.has_device(*it) || self.is_pulled_out(*it))
            || both.iter().any(|it| end > serving.sizes[*it])
            || serving.read_only[destination]
            || !is_aligned(wanted.offset)
            || wanted.length.is_none_or(|it| it == 0 || !is_aligned(it))
            || (may_write_source && !wanted.live)
            || (is_exported(destination) && !wanted.overwrite_exported)
            || is_busy
            || running.len() >= COPIES_MAX;
        let is_drive = |it: &usize| self.env.disks[*it].is_on_drive();
        let ways = wanted.drive_memory || wanted.by_drive;
        let is_file = |it: &usize| matches!(self.env.disks[*it], Storage::File(_));
        match is_refused {
            true => Expected::Refused,
            false if ways && both.iter().any(is_drive) => Expected::Either,
            false if ways => Expected::Refused,
            // It may be damaged.
            false if both.iter().any(is_file) => Expected::Either,
            false => Expected::Begins,
        }
    }

    /// Whether a device is removed, as the control thread sees it now.
    fn is_pulled_out(&self, disk: usize) -> bool {
        let appliance = self.appliance.as_ref();
        self.env.disks[disk].needs_restart() || appliance.is_some_and(|it| it.is_gone(disk))
    }

    fn start_device_copy(
        &mut self,
        plan: &Plan,
        expected: Expected,
        writes: Option<(u64, Moment)>,
    ) -> Result<(), Violation> {
        let destination = Extent {
            disk: plan.destination,
            lba: plan.first,
            blocks: plan.blocks as u32,
        };
        let appliance = self.appliance.as_mut();
        let begun = appliance.and_then(|it| it.copy_device(&plan.wanted));
        let wanted = &plan.wanted;
        let (number, progress) = match (begun, writes) {
            (Some(Ok(begun)), Some(_)) => begun,
            (Some(Ok((number, _))), None) => {
                let what = format!("copy {number} begins, which must be refused: {wanted:?}");
                return Err(Violation::Rule(what));
            }
            (Some(Err(error)), Some(_)) if expected == Expected::Begins => {
                let what = format!("a copy does not begin: {error}: {wanted:?}");
                return Err(Violation::Rule(what));
            }
            (refusal @ (Some(Err(_)) | None), writes) => {
                if let Some(Err(error)) = refusal {
                    self.env.note(format_args!("a copy is refused: {error}"));
                }
                if let Some((version, began)) = writes {
                    let refused = WriteEnd::Refused;
                    (self.env.judge).end_write(&[destination], version, began, refused);
                }
                self.env.figures.device_copies_refused += 1;
                return Ok(());
            }
        };
        let Some((version, began)) = writes else {
            return Ok(());
        };
        let now = self.env.time.now();
        self.env
            .note(format_args!("copy {number} begins: {wanted:?}"));
        self.device_copies.running.push(Running {
            number,
            progress,
            source: plan.source,
            destination: plan.destination,
            first: plan.first,
            blocks: plan.blocks,
            version,
            began,
            is_aborted: false,
            written: (0, now),
        });
        self.env.figures.fault(Fault::DeviceCopy);
        self.use_copied_disks(plan)
    }

    /// Has a disk of a copy delay its requests, and hosts use blocks of both.
    fn use_copied_disks(&mut self, plan: &Plan) -> Result<(), Violation> {
        let random = &mut self.device_copies.random;
        let (swarm, serving) = (&self.env.swarm, &self.env.serving);
        let is_hidden = !serving.has_namespace(swarm, plan.destination);
        // No command of a host is there.
        let is_overdue = is_hidden && random.permille(OVERDUE_PERMILLE);
        let (disk, lasts) = match is_overdue {
            true => {
                let span = random.below(GIVEN_UP.as_nanos() * 3 / 4);
                (plan.destination, COPY_REQUEST_TIME_MAX + Nanos(span))
            }
            false => {
                let disk = random.pick(&[plan.source, plan.destination]);
                (disk, Nanos(random.below(HOLD_MAX.as_nanos())))
            }
        };
        let until = self.env.time.now() + lasts;
        let is_free = self.env.disk_disturbed[disk] < until;
        let later = self.env.swarm.faults.has(Fault::Later);
        let delays = random.permille(DELAYS_PERMILLE) && is_free && !later;
        let lead = Nanos(random.below(PAUSE_MAX.as_nanos()));
        self.pass(lead)?;
        if delays && self.env.disks[disk].hold(until) {
            self.env.disk_disturbed[disk] = until;
            self.env.disturb_memory(until);
        }
        let random = &mut self.device_copies.random;
        if random.permille(MISHAPS_PERMILLE) {
            let choice = random.bits();
            self.strike_copying_drive(disk, choice);
        }
        for _ in 0..self.device_copies.random.below(COMMANDS_MAX + 1) {
            self.use_copied_blocks(plan);
            let pause = Nanos(self.device_copies.random.below(PAUSE_MAX.as_nanos()));
            self.pass(pause)?;
        }
        Ok(())
    }

    /// Has a host read, write or zero blocks of the range of a copy.
    fn use_copied_blocks(&mut self, plan: &Plan) {
        let random = &mut self.device_copies.random;
        let disk = random.pick(&[plan.source, plan.destination]);
        let most = BLOCKS_MAX.min(u64::from(self.env.swarm.disks[disk].transfer_blocks_max));
        let first = plan.first + random.below(plan.blocks);
        let blocks = most.min(plan.first + plan.blocks - first) as u32;
        let extent = Extent {
            disk,
            lba: first,
            blocks,
        };
        let host = random.below(self.hosts.len() as u64) as usize;
        let what = random.below(4);
        let shape = self.env.swarm.hosts[host];
        let (serving, swarm) = (&self.env.serving, &self.env.swarm);
        let is_its = swarm.subsystem_of_disk(disk) == shape.subsystem;
        let sees = is_its && serving.shows(swarm, shape.identity, disk);
        if !sees || self.is_gone(disk) || !self.hosts[host].can_reach_disks() {
            return;
        }
        let is_protected = serving.protects(swarm, shape.identity, disk);
        let (host, mut env) = (&mut self.hosts[host], self.env.for_hosts());
        match what {
            0 if !is_protected => host.write_zeroes(&mut env, extent),
            1 | 2 if !is_protected => host.write(&mut env, extent),
            _ => host.read(&mut env, extent),
        };
    }

    /// Judges the copies that have ended, and those that stand still.
    pub(super) fn follow_device_copies(&mut self) -> Result<(), Violation> {
        if self.device_copies.running.is_empty() {
            return Ok(());
        }
        let now = self.env.time.now();
        // A copy has memory that hosts may need.
        self.env.disturb_memory(now);
        for mut copy in std::mem::take(&mut self.device_copies.running) {
            let written = copy.progress.written_blocks();
            if written != copy.written.0 {
                copy.written = (written, now);
            }
            if let Some(end) = copy.progress.end() {
                self.judge_device_copy(&copy, end)?;
            } else if now > copy.written.1 + STANDSTILL_MAX {
                let what = format!("copy {} neither writes nor ends", copy.number);
                return Err(Violation::Rule(what));
            } else {
                self.device_copies.running.push(copy);
            }
        }
        Ok(())
    }

    /// Waits for the end of all copies.
    pub(super) fn await_device_copies(&mut self) -> Result<(), Violation> {
        let by = self.env.time.now() + STANDSTILL_MAX + STANDSTILL_MAX;
        let are_over = |world: &mut Self| !world.device_copies.is_running();
        if self.appliance.is_none() || self.run_until(by, are_over)? {
            return Ok(());
        }
        Err(Violation::Rule(
            "a copy of a device does not end".to_owned(),
        ))
    }

    fn judge_device_copy(&mut self, copy: &Running, end: CopyEnd) -> Result<(), Violation> {
        let Running {
            number,
            progress,
            blocks,
            ..
        } = copy;
        self.env.note(format_args!("copy {number} ends: {end:?}"));
        let took = progress.took().unwrap_or_default();
        let wrong = |what: &str| {
            let copied = progress.written_blocks();
            let what =
                format!("copy {number} of {blocks} blocks {what}: {end:?}, {copied} written");
            Err(Violation::Rule(what))
        };
        let figures = &mut self.env.figures;
        figures.device_copies_in_drives += progress.in_device_blocks();
        figures.device_copies_by_drives += progress.by_device_blocks();
        let (written, is_durable) = match end {
            CopyEnd::Complete if progress.written_blocks() != *blocks => {
                return wrong("is complete without all blocks");
            }
            CopyEnd::Complete => {
                figures.device_copies += 1;
                (*blocks, true)
            }
            CopyEnd::Stopped {
                written_blocks,
                cause,
            } => {
                figures.device_copies_stopped += 1;
                if written_blocks > progress.written_blocks() {
                    return wrong("reports blocks that are not written");
                }
                let mistake = match cause {
                    CopyStop::Aborted if copy.is_aborted => None,
                    CopyStop::ReactorStops if self.env.stopping => None,
                    CopyStop::Aborted | CopyStop::ReactorStops => Some("ends without a reason"),
                    CopyStop::Failed(failure) => {
                        self.mistake_of(copy, &failure, written_blocks, took)
                    }
                };
                if let Some(mistake) = mistake {
                    return wrong(mistake);
                }
                (written_blocks, false)
            }
        };
        // A device may still execute a request that was given up for as long.
        let may_follow = took >= GIVEN_UP;
        let extent = Extent {
            disk: copy.destination,
            lba: copy.first,
            blocks: *blocks as u32,
        };
        let write = (copy.version, copy.began);
        (self.env.judge).end_device_copy(extent, write, (written, is_durable), may_follow);
        Ok(())
    }

    /// What is wrong with the failure that a copy reports, if anything.
    fn mistake_of(
        &self,
        copy: &Running,
        failure: &CopyFailure,
        written: u64,
        took: Nanos,
    ) -> Option<&'static str> {
        let end = copy.first + copy.blocks;
        if failure.step == CopyStep::Flush && written != copy.blocks {
            return Some("fails to flush before all blocks are written");
        }
        let is_exact =
            matches!(failure.error, CopyError::Device(error) if error != DeviceError::Removed);
        if failure.step != CopyStep::Flush {
            let last = failure.first_block + failure.blocks;
            if failure.first_block < copy.first || last > end || failure.blocks == 0 {
                return Some("reports a range that it does not have");
            }
            let before = failure.first_block - copy.first;
            if written > before || (is_exact && took < GIVEN_UP && written < before) {
                return Some("reports a range that is not the lowest that failed");
            }
        }
        if matches!(failure.error, CopyError::Overdue | CopyError::NoMemory) {
            let is_early = took < COPY_REQUEST_TIME_MAX;
            return is_early.then_some("fails before its deadline");
        }
        let both = [copy.source, copy.destination];
        let may_fail = |it: &usize| self.env.disk_fails[*it] || self.is_gone(*it);
        let may_not_flush = failure.step == CopyStep::Flush
            && self.env.swarm.disk_behaviour.flush_error_permille > 0;
        let has_reason = both.iter().any(may_fail) || may_not_flush;
        (!has_reason).then_some("fails without a reason")
    }

    /// Checks that a change that was carried out left the copies what they need. `needs`: what those had
    /// that ran before.
    pub(super) fn judge_change_during_copies(
        &self,
        needs: &Needs,
        former: &ServedConfig,
    ) -> Result<(), Violation> {
        let now = self.device_copies.needs();
        let still = Needs {
            numbers: now.numbers.intersection(&needs.numbers).copied().collect(),
            devices: now.devices.intersection(&needs.devices).copied().collect(),
            destinations: (now.destinations.intersection(&needs.destinations))
                .copied()
                .collect(),
        };
        let is_there = self
            .appliance
            .as_ref()
            .is_some_and(|it| !Appliance::is_stopped(it));
        match still.taken(self, former).filter(|_| is_there) {
            None => Ok(()),
            Some(disk) => Err(Violation::Rule(format!(
                "a change takes disk {disk} from a copy that runs, or exports what is overwritten"
            ))),
        }
    }
}
