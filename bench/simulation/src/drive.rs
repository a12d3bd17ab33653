//! An NVMe drive in its slot, with the production driver: the driver's emulated controller with all
//! kinds of faults, and the work of the appliance's control thread for it.
//!
//! The drive and the memory that it accesses outlive the appliances.

use std::cell::Cell;
use std::sync::Arc;

use block::{DataPath, Deallocate, Device};
use block_testing::{Latency, When};
use hugemem::Arena;
use nvme_driver::backing::DeviceBacking;
use nvme_driver::{
    BringUp, BringUpState, Deadlines, DriveCounters, DriveOptions, DriveOwner, DriveState,
};
use nvme_driver_testing::{
    ControllerMemoryOptions, CopyAcross, EmulatedController, EmulatedCopy, EmulatedNamespace,
    EmulatedOptions, EmulatedSpace, EmulatorControl, Fault, FaultId, FaultMatch, FaultRule,
    MemoryFile, SglRules, ShadowDoorbells,
};
use nvme_spec::Status;
use nvme_spec::command::IoOpcode;
use reactors::Nanos;

use crate::disk::{DiskBehaviour, DiskFigures, DiskShape};
use crate::plan::device_name;
use crate::random::Random;
use crate::swarm::Swarm;

/// The namespace of a drive's own disk, and of its neighbour, if there is one.
const NSID: u32 = 1;
const NEIGHBOUR_NSID: u32 = 2;
/// Share of copies by a drive itself that fail at a source range, per million.
const COPY_FAILURES: u32 = 120_000;
/// Deadlines of a command and of each recovery step; short, to keep runs short.
const DEADLINES: Deadlines = Deadlines {
    command: Nanos::from_secs(1),
    abort: Nanos::from_millis(300),
    reset: Nanos::from_secs(3),
    quiesce: Nanos::from_millis(100),
    shutdown: Nanos::from_millis(500),
};
/// Maximum time that a mishap waits for a command.
const MISHAP_WAITS: Nanos = Nanos::from_millis(100);
/// Maximum time until a drive completes all commands after a mishap: the sum of the deadlines.
const MISHAP_LASTS: Nanos = Nanos::from_secs(8);
/// The driver aborts one command of a queue per tick, and resets a drive that still has one after
/// the time for aborts. Of commands that hang together it is certain to abort this number.
const ABORTED_IN_TIME_MAX: u64 = 20;
/// Commands that hang within this time hang together.
const TOGETHER: Nanos = Nanos(DEADLINES.command.0 + DEADLINES.abort.0);
/// Maximum time for which a drive is pulled out.
const ABSENCE_MAX: Nanos = Nanos::from_secs(4);
/// Maximum time until a working drive is ready.
const BRING_UP_MAX: Nanos = Nanos::from_secs(10);
const BRING_UP_STEP: Nanos = Nanos::from_millis(1);

/// A fault of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// Commands do not complete.
    Hang,
    /// Completions and doorbells are wrong.
    Confusion,
    /// The controller stops with a fatal status.
    Failure,
    /// It is pulled out and put back.
    Removal,
}

/// Faults by which a command does not complete.
const HANGS: [Fault; 4] = [
    Fault::Hang { abortable: true },
    Fault::Hang { abortable: false },
    Fault::DropCompletion,
    Fault::NeverCompletes,
];
/// Faults by which completions contain wrong values, or doorbell writes are lost or changed.
const CONFUSIONS: [Fault; 8] = [
    Fault::Duplicate,
    Fault::OtherIdentifier(0x8000),
    Fault::StaleIdentifier,
    Fault::WrongQueue(77),
    Fault::WrongHead(u16::MAX),
    Fault::DoorbellLost,
    Fault::DoorbellDeferred,
    Fault::DoorbellTorn,
];

/// A fault rule that is armed temporarily.
#[derive(Clone, Copy)]
struct Armed {
    rule: FaultId,
    fired_before: u64,
    until: Nanos,
}

/// Number of faults of a drive, by the recovery that they require.
#[derive(Clone, Copy, Default)]
struct FaultCounts {
    /// Hangs that Abort ends.
    abortable: u64,
    /// Faults that may require a reset, including too many abortable hangs together.
    others: u64,
}

/// Commands that hang together and can all be aborted.
#[derive(Clone, Copy, Default)]
struct HangingCommands {
    commands: u64,
    /// Commands that hang after this time do not belong to these.
    until: Nanos,
    /// How often there were more than can be aborted in time.
    excess_hangs: u64,
}

impl HangingCommands {
    fn add(&mut self, commands: u64, now: Nanos) {
        if self.until < now {
            self.commands = 0;
        }
        self.until = now + TOGETHER;
        let before = self.commands;
        self.commands += commands;
        if before <= ABORTED_IN_TIME_MAX && self.commands > ABORTED_IN_TIME_MAX {
            self.excess_hangs += 1;
        }
    }
}

/// A disk that is a namespace of a drive.
#[derive(Clone, Copy, Debug)]
pub struct DriveDisk {
    /// Its number.
    pub number: usize,
    /// Its properties.
    pub shape: DiskShape,
    /// How the data of copies, reads and writes takes its way.
    pub path: DataPath,
}

/// The second namespace of a drive, which is another disk. Whatever happens to the drive is applied to
/// the first one.
pub struct Neighbour {
    shape: DiskShape,
    control: EmulatorControl,
}

impl Neighbour {
    /// Its properties.
    #[must_use]
    pub fn shape(&self) -> DiskShape {
        self.shape
    }

    /// Copies a block of the medium. Returns false if there is none.
    #[must_use]
    pub fn read_medium(&self, lba: u64, into: &mut [u8]) -> bool {
        self.control.read_durable(NEIGHBOUR_NSID, lba, into)
    }
}

/// A drive in its slot.
pub struct Drive {
    name: String,
    /// Its disks, with the namespaces.
    disks: Vec<(u32, DriveDisk)>,
    number: usize,
    shape: DiskShape,
    controller: Arc<EmulatedController>,
    control: EmulatorControl,
    errors: Vec<FaultId>,
    /// Failures of copies by itself, which are not those of requests.
    copy_errors: Vec<FaultId>,
    flush_error: FaultId,
    slow: FaultId,
    /// Whether Abort ends its hangs.
    hangs_are_abortable: bool,
    hanging: HangingCommands,
    /// Fatal statuses and removals.
    fatal_faults: u64,
    /// Its fault counts when it was opened last.
    opened_with: Cell<FaultCounts>,
    hangs: Vec<FaultId>,
    confusions: Vec<FaultId>,
    armed: Option<Armed>,
    returns_at: Option<Nanos>,
    random: Random,
}

impl Drive {
    /// A drive full of zeroes that accesses the memory of `arena`, and that of other drives in `space`.
    /// Its second namespace is the disk `neighbour`.
    ///
    /// # Errors
    /// The error of the kernel when the memory is mapped.
    pub fn new(
        own: DriveDisk,
        neighbour: Option<DriveDisk>,
        seed: u64,
        swarm: &Swarm,
        (arena, space): (&Arena, Option<&Arc<EmulatedSpace>>),
    ) -> std::io::Result<Self> {
        let (behaviour, hangs_are_abortable) = (swarm.disk_behaviour, swarm.hangs_are_abortable);
        let DriveDisk { number, shape, .. } = own;
        let mut random = Random::new(seed, 0x300 + number as u64);
        let options = options(&mut random, own, neighbour, behaviour);
        let options = EmulatedOptions {
            space: space.cloned(),
            ..options
        };
        let deallocate = if options.optional_commands {
            Deallocate::Unspecified
        } else {
            Deallocate::Unsupported
        };
        let shape = DiskShape {
            deallocate,
            ..shape
        };
        let controller = Arc::new(EmulatedController::new(arena.region(), options)?);
        let control = controller.control();
        let inject = |matching, when, fault| control.inject(FaultRule::new(matching, when, fault));
        let share = |permille| When::PerMillion(permille * 1000);
        let errors = [
            (IoOpcode::READ, Status::UNRECOVERED_READ_ERROR),
            (IoOpcode::WRITE, Status::WRITE_FAULT),
            (IoOpcode::FLUSH, Status::INTERNAL_ERROR),
            (IoOpcode::COPY, Status::UNRECOVERED_READ_ERROR),
        ];
        let errors = errors.map(|(opcode, status)| {
            let matching = FaultMatch::io().with_opcode(opcode.0);
            inject(
                matching,
                share(behaviour.error_permille),
                Fault::Status(status),
            )
        });
        let copy_errors = [0, 1].map(|range| {
            let copies = FaultMatch::io().with_opcode(IoOpcode::COPY.0);
            let when = When::PerMillion(COPY_FAILURES);
            inject(copies, when, Fault::CopyFailsAt(range))
        });
        let flush_error = inject(
            FaultMatch::io().with_opcode(IoOpcode::FLUSH.0),
            share(behaviour.flush_error_permille),
            Fault::Status(Status::INTERNAL_ERROR),
        );
        let slow = inject(
            FaultMatch::io(),
            share(behaviour.slow_permille),
            Fault::Delay(behaviour.slow_max),
        );
        let asleep = |fault: &Fault| {
            let rule = inject(FaultMatch::io(), When::Always, *fault);
            control.arm(rule, false);
            rule
        };
        Ok(Self {
            name: format!("drive{number}"),
            disks: [Some((NSID, own)), neighbour.map(|it| (NEIGHBOUR_NSID, it))]
                .into_iter()
                .flatten()
                .collect(),
            number,
            shape,
            errors: errors.to_vec(),
            copy_errors: copy_errors.to_vec(),
            flush_error,
            hangs_are_abortable,
            hanging: HangingCommands::default(),
            fatal_faults: 0,
            opened_with: Cell::default(),
            slow,
            hangs: HANGS.iter().map(asleep).collect(),
            confusions: CONFUSIONS.iter().map(asleep).collect(),
            armed: None,
            returns_at: None,
            random,
            control,
            controller,
        })
    }

    /// Opens it for an appliance with this number of reactors, as a drive of one of them. `now`
    /// advances during the call.
    ///
    /// # Errors
    /// The reason why it does not start, as text.
    pub fn open(
        &self,
        arena: &Arc<Arena>,
        reactors: usize,
        queue_depth: usize,
        now: &mut Nanos,
    ) -> Result<(Opened, DriveOwner), String> {
        let options = DriveOptions {
            reactors,
            owner: self.number % reactors,
            queue_depth_max: queue_depth as u16,
            deadlines: DEADLINES,
            ..DriveOptions::new(&self.name)
        };
        let backing = Arc::clone(&self.controller) as Arc<dyn DeviceBacking>;
        let mut bring_up = BringUp::new(backing, arena, options).map_err(|it| it.to_string())?;
        self.opened_with.set(self.fault_counts());
        let latest = *now + BRING_UP_MAX;
        while *now < latest {
            self.control.tick(*now);
            match bring_up.poll(*now) {
                BringUpState::Pending => *now += BRING_UP_STEP,
                BringUpState::Failed(error) => return Err(error.to_string()),
                BringUpState::Ready((drive, owner)) => {
                    let device_of = |(nsid, disk): &(u32, DriveDisk)| {
                        let (name, uuid) = (device_name(disk.number), [disk.number as u8 + 1; 16]);
                        let device = drive.device_on_path(*nsid, &name, uuid, disk.path);
                        Ok((disk.number, device.map_err(|error| error.to_string())?))
                    };
                    let devices: Result<Vec<_>, String> =
                        self.disks.iter().map(device_of).collect();
                    let opened = Opened {
                        devices: devices?,
                        owner: self.number % reactors,
                        number: self.number,
                        controller: Arc::clone(&self.controller),
                        control: self.control.clone(),
                        drive,
                    };
                    return Ok((opened, owner));
                }
            }
        }
        Err(format!("{} does not become ready", self.name))
    }

    /// Its properties, including its own effect of deallocations.
    #[must_use]
    pub fn shape(&self) -> DiskShape {
        self.shape
    }

    /// The disk of its second namespace.
    #[must_use]
    pub fn neighbour(&self, shape: DiskShape) -> Neighbour {
        Neighbour {
            shape: DiskShape {
                deallocate: self.shape.deallocate,
                ..shape
            },
            control: self.control.clone(),
        }
    }

    /// Applies a mishap. Returns until when its completions may be late.
    pub fn apply_mishap(&mut self, mishap: Mishap, now: Nanos) -> Nanos {
        self.disarm();
        match mishap {
            Mishap::Hang | Mishap::Confusion => {
                let rules = match mishap {
                    Mishap::Hang => &self.hangs,
                    _ => &self.confusions,
                };
                let rule = match mishap {
                    Mishap::Hang if self.hangs_are_abortable => rules[0],
                    _ => self.random.pick(rules),
                };
                self.control.arm(rule, true);
                self.armed = Some(Armed {
                    rule,
                    fired_before: self.control.fired(rule),
                    until: now + MISHAP_WAITS,
                });
            }
            Mishap::Failure if self.control.is_present() => {
                self.fatal_faults += 1;
                self.control.fail();
            }
            Mishap::Failure => {}
            Mishap::Removal => {
                self.fatal_faults += 1;
                self.control.remove();
                let absence = self.random.between(1, ABSENCE_MAX.as_nanos());
                let back = now + Nanos(absence);
                self.returns_at = Some(back);
                return back + MISHAP_LASTS;
            }
        }
        now + MISHAP_LASTS
    }

    fn disarm(&mut self) {
        let Some(armed) = self.armed.take() else {
            return;
        };
        self.control.arm(armed.rule, false);
        if armed.rule == self.hangs[0] {
            let commands = self.control.fired(armed.rule) - armed.fired_before;
            // Commands met the rule no later than that.
            self.hanging.add(commands, armed.until);
        }
    }

    /// Advances the time: ends mishaps, and puts a removed drive back.
    pub fn advance_to(&mut self, now: Nanos) {
        if let Some(armed) = self.armed
            && (armed.until <= now || self.control.fired(armed.rule) > armed.fired_before)
        {
            self.disarm();
        }
        if self.returns_at.is_some_and(|at| at <= now) {
            self.reinsert();
        }
    }

    /// Puts it in its slot with power and ends mishaps.
    pub fn reinsert(&mut self) {
        self.disarm();
        self.returns_at = None;
        self.control.reinsert();
    }

    /// Turns off all further faults.
    pub fn disable_faults(&mut self) {
        let rules = self.errors.iter().chain(&self.copy_errors);
        for rule in rules.chain([&self.slow, &self.flush_error]) {
            self.control.arm(*rule, false);
        }
        self.reinsert();
    }

    /// Ends its memory access before the appliance is killed.
    pub fn prepare_kill(&self) {
        // A removed drive has no memory access.
        let _ = self.controller.set_bus_master(false);
    }

    /// Resets the function after the end of the appliance, as the kernel does.
    pub fn reset_after_end(&self) {
        // A removed drive is not reset.
        let _ = self.controller.reset_function();
    }

    /// Cuts its power.
    pub fn cut_power(&self) {
        self.control.power_cut();
    }

    /// Copies a block of the medium. Returns false if there is none.
    #[must_use]
    pub fn read_medium(&self, lba: u64, into: &mut [u8]) -> bool {
        self.control.read_durable(NSID, lba, into)
    }

    /// The file of its controller memory buffer.
    #[must_use]
    pub fn memory_file(&self) -> Option<MemoryFile> {
        self.control.memory_file()
    }

    /// Commands in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.control.outstanding()
    }

    /// The time of its next event that is unknown to the reactors.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let armed = self.armed.map(|armed| armed.until);
        let dues = [self.control.next_due(), armed, self.returns_at];
        dues.into_iter().flatten().min()
    }

    fn fault_counts(&self) -> FaultCounts {
        let fired = |rules: &[FaultId]| rules.iter().map(|it| self.control.fired(*it)).sum();
        FaultCounts {
            abortable: fired(&self.hangs[..1]),
            others: fired(&self.hangs[1..])
                + fired(&self.confusions)
                + self.fatal_faults
                + self.hanging.excess_hangs,
        }
    }

    /// Checks the driver's recovery actions since the drive was opened; returns a mistake, if any:
    /// no reset if Abort suffices. `at_rest`: the recovery is complete.
    #[must_use]
    pub fn recovery_mistake(&self, did: &DriveCounters, at_rest: bool) -> Option<String> {
        let (now, before) = (self.fault_counts(), self.opened_with.get());
        let abortable = now.abortable - before.abortable;
        let others = now.others - before.others;
        let name = &self.name;
        if did.resets > others {
            let resets = did.resets;
            return Some(format!(
                "{name} was reset {resets} times for {others} faults that a reset is for"
            ));
        }
        let aborts = did.aborts;
        let is_unaborted = at_rest && others == 0 && aborts < abortable;
        is_unaborted.then(|| format!("{name} had {abortable} hangs and {aborts} aborts"))
    }

    /// Its counters.
    #[must_use]
    pub fn figures(&self) -> DiskFigures {
        DiskFigures {
            errors: self.errors.iter().map(|it| self.control.fired(*it)).sum(),
            flush_errors: self.control.fired(self.flush_error),
            slow: self.control.fired(self.slow),
            lost_blocks: self.control.counters().blocks_lost,
            ..DiskFigures::default()
        }
    }
}

/// A drive that an appliance has opened, as its control thread sees it.
pub struct Opened {
    /// The devices of its namespaces, with the numbers of their disks.
    pub devices: Vec<(usize, Arc<dyn Device>)>,
    /// The reactor of the drive's owner.
    pub owner: usize,
    /// The number of its disk.
    pub number: usize,
    drive: Arc<nvme_driver::Drive>,
    controller: Arc<EmulatedController>,
    control: EmulatorControl,
}

impl Opened {
    /// Advances the drive's time, and does the control thread's work for it.
    pub fn advance_to(&self, now: Nanos) {
        self.control.tick(now);
        if self.drive.function_reset_needed() {
            // The owner checks the result.
            let _ = self.drive.function_reset();
        }
        if self.control.is_present() && self.drive.wants_reopen() {
            // The kernel resets a function after its last close.
            let _ = self.controller.reset_function();
            let backing = Arc::clone(&self.controller) as Arc<dyn DeviceBacking>;
            // It fails only if the drive does not need it.
            let _ = self.drive.reattach(backing);
        }
    }

    /// The driver's counters since the drive was opened.
    #[must_use]
    pub fn counters(&self) -> DriveCounters {
        self.drive.counters()
    }

    /// The state of the drive.
    #[must_use]
    pub fn state(&self) -> DriveState {
        self.drive.state()
    }
}

/// Whether data may be in the memory of a drive.
#[must_use]
pub fn allows_memory(path: DataPath) -> bool {
    path != DataPath::Host
}

fn options(
    random: &mut Random,
    own: DriveDisk,
    neighbour: Option<DriveDisk>,
    behaviour: DiskBehaviour,
) -> EmulatedOptions {
    let DriveDisk {
        number,
        shape,
        path,
    } = own;
    let namespace = |nsid, disk: DriveDisk| {
        let DiskShape {
            block_size,
            block_count,
            ..
        } = disk.shape;
        EmulatedNamespace::new(nsid, block_size, block_count)
    };
    let second = neighbour.map(|it| namespace(NEIGHBOUR_NSID, it));
    let span = |random: &mut Random| Nanos::from_millis(random.between(0, 50));
    let options = EmulatedOptions {
        name: format!("drive{number}"),
        serial: format!("SIM{number}"),
        queue_entries_max: random.pick(&[8, 64, 1024]),
        timeout_units: 2,
        transfer_code: random.pick(&[0, 1, 3, 8]),
        ready_after: span(random),
        disabled_after: span(random),
        shutdown_after: span(random),
        latency: Latency::Range {
            min: behaviour.latency_min,
            max: behaviour.latency_max,
        },
        write_cache: shape.volatile,
        shadow_doorbells: random.pick(&[
            ShadowDoorbells::Unsupported,
            ShadowDoorbells::Ring,
            ShadowDoorbells::Poll,
        ]),
        sgl: random.pick(&[SglRules::Unsupported, SglRules::Any, SglRules::Dword]),
        controller_memory: (random.coin() || allows_memory(path)).then_some(
            ControllerMemoryOptions {
                bytes: match path {
                    DataPath::Host => 64 << 10,
                    DataPath::DeviceMemory | DataPath::Best => 1 << 20,
                },
                placed_by_host: true,
                holds_data: allows_memory(path),
            },
        ),
        optional_commands: random.permille(700),
        write_zeroes_code: random.pick(&[0, 1, 4]),
        namespaces: [namespace(NSID, own)].into_iter().chain(second).collect(),
        seed: random.bits(),
        ..EmulatedOptions::default()
    };
    EmulatedOptions {
        copy: copy(options.seed, neighbour.is_some()),
        ..options
    }
}

/// Whether a drive copies by itself, and what at most. Others copy through memory of drives only.
fn copy(seed: u64, has_neighbour: bool) -> Option<EmulatedCopy> {
    let bit = |place: u32| seed >> place & 1 == 1;
    (bit(8) || has_neighbour).then(|| EmulatedCopy {
        range_blocks_max: if bit(9) { 4 } else { 128 },
        blocks_max: if bit(10) { 8 } else { 1024 },
        ranges_max_z: if bit(11) { 0 } else { 127 },
        single_atomicity: true,
        failing_range: (seed >> 12 & 3 == 0).then_some(u8::from(bit(14))),
        // Each start of a drive enables it, also without a second namespace.
        across: match (bit(15), bit(16)) {
            (true, true) => CopyAcross::NotEnabled,
            (true, false) => CopyAcross::Supported,
            (false, _) if has_neighbour => CopyAcross::Supported,
            (false, _) => CopyAcross::Unsupported,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_hangs_are_counted_once() {
        let mut hanging = HangingCommands::default();
        hanging.add(ABORTED_IN_TIME_MAX, Nanos(1));
        assert_eq!(hanging.excess_hangs, 0);
        // Long after the others were aborted.
        let later = hanging.until + Nanos(1);
        hanging.add(1, later);
        assert_eq!(hanging.excess_hangs, 0);
        hanging.add(ABORTED_IN_TIME_MAX, later + Nanos(1));
        assert_eq!(hanging.excess_hangs, 1);
        hanging.add(1, later + Nanos(2));
        assert_eq!(hanging.excess_hangs, 1, "it is the same group");
    }
}
