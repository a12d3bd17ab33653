//! Changes of the configuration while everything goes on: the appliance's own code for live changes
//! decides on the steps and carries them out, and whenever it waits, events go on happening.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use appliance::rehearsal::{Control, Meanwhile, Outcome};
use reactors::Nanos;

use super::{EVENT_MAX, STOP_MAX, World};
use crate::appliance::Appliance;
use crate::fabric::RdmaNetwork;
use crate::judge::Violation;
use crate::plan::{self, LISTENERS, RDMA_LISTENER, Serving, device_name};
use crate::scene::CHANGING;
use crate::storage::Storage;
use crate::swarm::Fault;

/// Blocks that a disk grows to at most.
const BLOCKS_MAX: u64 = 600;
/// How often a wait is also an event.
const EVENTS_PERMILLE: u32 = 500;
/// Time that passes in a wait without an event.
const WAIT_MAX: Nanos = Nanos::from_micros(200);
/// The control thread looks after the devices so often.
const LOOK_INTERVAL: Nanos = Nanos::from_millis(100);
/// For whoever was killed every look at the clock is so much later: whatever it waits for is over.
const LONG: Duration = Duration::from_secs(1 << 20);

/// A change that is wanted.
struct Change {
    wanted: Serving,
    /// The text, where it is not just what `wanted` says: then it cannot be had.
    text: Option<String>,
    /// Whom it may disturb, besides those that it takes something from or gives something to.
    hosts: BTreeSet<usize>,
    /// The same of disks.
    disks: BTreeSet<usize>,
}

impl Change {
    fn to(wanted: Serving) -> Self {
        Self {
            wanted,
            text: None,
            hosts: BTreeSet::new(),
            disks: BTreeSet::new(),
        }
    }

    /// One that cannot be had.
    fn in_vain(serving: &Serving, text: String) -> Self {
        Self {
            text: Some(text),
            ..Self::to(serving.clone())
        }
    }
}

/// Why a change is not waited for to its end.
enum End {
    /// Something is wrong.
    Wrong(Violation),
    /// The appliance is killed.
    Killed { power: bool },
}

/// The world while a change waits for it.
struct During<'w> {
    world: &'w mut World,
    /// The reading of the machine's clock that stands for the time of the change's beginning.
    began: (Instant, Nanos),
    /// From then on what is left is cut off.
    patience_ends: Nanos,
    /// Disks whose devices go.
    leaving: Vec<usize>,
    end: Option<End>,
    /// Looks at the clock since then.
    looks: Cell<u32>,
}

impl Meanwhile for During<'_> {
    fn now(&self) -> Instant {
        let (reading, began) = self.began;
        if self.end.is_some() {
            self.looks.set(self.looks.get() + 1);
            return reading + LONG * self.looks.get();
        }
        let passed = self.world.scene.time.now().saturating_sub(began);
        reading + Duration::from_nanos(passed.as_nanos())
    }

    fn tend(&mut self) {
        if self.end.is_some() {
            return;
        }
        if self.patience_ends <= self.world.scene.time.now() {
            for disk in &self.leaving {
                self.world.scene.disk_fails[*disk] = true;
            }
        }
        let gone_on = self.world.go_on();
        let doom = self.world.doom.take();
        self.end = match gone_on {
            Err(violation) => Some(End::Wrong(violation)),
            Ok(()) => doom.map(|power| End::Killed { power }),
        };
    }

    fn pause(&self) -> Duration {
        Duration::ZERO
    }

    fn run(&mut self, work: &mut (dyn FnMut() + Send)) -> bool {
        // A dead process does nothing more.
        if self.end.is_none() {
            work();
        }
        self.end.is_none()
    }
}

impl World {
    /// What happens while a change waits.
    fn go_on(&mut self) -> Result<(), Violation> {
        self.note_condition();
        let more = self.event < self.scene.swarm.events;
        if more && self.changes.permille(EVENTS_PERMILLE) {
            self.event += 1;
            self.scene.figures.events += 1;
            return self.one_event();
        }
        // What takes long is looked at less and less often.
        self.waits += 1;
        let most = WAIT_MAX.as_nanos() << (self.waits / 16).min(9);
        let wait = self.changes.below(most);
        self.pass(Nanos(wait + 1))
    }

    /// A round of the control thread, when it is time.
    pub(super) fn tend_control(&mut self) {
        let now = self.scene.time.now();
        if now < self.looked_at + LOOK_INTERVAL {
            return;
        }
        self.looked_at = now;
        if let Some(appliance) = self.appliance.as_mut().filter(|_| !self.changing) {
            appliance.look();
        }
        self.note_condition();
    }

    /// When the control thread looks next, where somebody waits for that.
    pub(super) fn next_look(&self) -> Option<Nanos> {
        let waits = self.scene.disk_gone.contains(&true) && !self.changing;
        waits.then_some(self.looked_at + LOOK_INTERVAL)
    }

    /// Whether a disk is pulled out, as far as anybody in the appliance knows.
    fn is_gone(&self, disk: usize) -> bool {
        let appliance = self.appliance.as_ref();
        self.scene.disk_gone[disk]
            || self.scene.disks[disk].needs_restart()
            || appliance.is_some_and(|it| it.is_gone(disk))
    }

    /// Notes which devices the control thread may know to be gone, and which to be back.
    fn note_condition(&mut self) {
        let Some(appliance) = &self.appliance else {
            return;
        };
        let now = self.scene.time.now();
        for (number, disk) in self.scene.disks.iter().enumerate() {
            let is_gone = disk.needs_restart() || appliance.is_gone(number);
            let was_gone = &mut self.scene.disk_gone[number];
            if is_gone == *was_gone || (self.changing && !is_gone) {
                continue;
            }
            *was_gone = is_gone;
            let changed = &mut self.scene.namespace_changed[number];
            *changed = now.max(*changed);
        }
    }

    /// Something of the configuration changes, if it can just now; whether it did.
    pub(super) fn reconfigure(
        &mut self,
        fault: Fault,
        disk: usize,
        host: usize,
    ) -> Result<bool, Violation> {
        // One change after the other.
        if self.changing {
            return Ok(false);
        }
        let change = match fault {
            Fault::Namespaces | Fault::Devices => self.namespace_change(fault, disk),
            Fault::Revoke => {
                let mut wanted = self.scene.serving.clone();
                let shapes = &self.scene.swarm.hosts;
                for (number, may_connect) in wanted.hosts.iter_mut().enumerate() {
                    *may_connect ^= shapes[number].identity == shapes[host].identity;
                }
                Some(Change::to(wanted))
            }
            Fault::Subsystems => {
                let mut wanted = self.scene.serving.clone();
                let chosen = self.changes.below(wanted.subsystems.len() as u64);
                wanted.subsystems[chosen as usize] ^= true;
                Some(Change::to(wanted))
            }
            Fault::Listeners => self.listener_change(),
            Fault::Growth => self.growth(disk),
            _ => self.change_in_vain(disk),
        };
        match change {
            Some(change) => self.carry_out(change).map(|()| true),
            None => Ok(false),
        }
    }

    /// Everything is configured again.
    pub(super) fn configure_all(&mut self) -> Result<(), Violation> {
        let sizes = self.scene.serving.sizes.clone();
        let wanted = Serving {
            sizes,
            ..Serving::all(&self.scene.swarm)
        };
        if wanted != self.scene.serving {
            self.carry_out(Change::to(wanted))?;
        }
        Ok(())
    }

    fn namespace_change(&mut self, fault: Fault, disk: usize) -> Option<Change> {
        let mut wanted = self.scene.serving.clone();
        let comes = !wanted.namespaces[disk];
        // One that was pulled out cannot be opened.
        if comes && self.scene.disks[disk].needs_restart() {
            return None;
        }
        wanted.namespaces[disk] = comes;
        // Drives are taken at start.
        let goes = fault == Fault::Devices && matches!(self.scene.disks[disk], Storage::Disk(_));
        wanted.devices[disk] = comes || !goes;
        Some(Change::to(wanted))
    }

    fn listener_change(&mut self) -> Option<Change> {
        let all = Serving::all(&self.scene.swarm).listeners;
        let all: Vec<usize> = (0..all.len()).filter(|it| all[*it]).collect();
        let mut wanted = self.scene.serving.clone();
        wanted.listeners[self.changes.pick(&all)] ^= true;
        // An export has one at least.
        wanted.listeners.contains(&true).then(|| Change::to(wanted))
    }

    fn growth(&mut self, disk: usize) -> Option<Change> {
        let mut wanted = self.scene.serving.clone();
        let is_disk = matches!(self.scene.disks[disk], Storage::Disk(_));
        let is_there = wanted.devices[disk] && !self.scene.disks[disk].needs_restart();
        // What is beyond the end now would no longer be.
        let is_tried = self.hosts.iter().any(|host| host.tries_beyond(disk));
        let more = self.changes.between(1, 2 * wanted.sizes[disk]);
        let size = &mut wanted.sizes[disk];
        if !is_disk || !is_there || is_tried || *size + more > BLOCKS_MAX {
            return None;
        }
        *size += more;
        Some(Change::to(wanted))
    }

    /// A change that must be refused, or undone where it could only be found out on the way.
    fn change_in_vain(&mut self, disk: usize) -> Option<Change> {
        let serving = self.scene.serving.clone();
        let swarm = &self.scene.swarm;
        let text = serving.text(swarm);
        // Something else is to go at the same time, and must stay.
        let mut less = serving.clone();
        less.hosts.fill(false);
        let less = less.text(swarm);
        match self.changes.below(5) {
            0 => {
                let device =
                    "[[device]]\nname = \"new\"\ntype = \"file\"\npath = \"/simulated/no\"\n";
                Some(Change::in_vain(&serving, less + device))
            }
            1 => {
                let listener = "[[listener]]\nname = \"new\"\ntransport = \"tcp\"\n\
                                address = \"127.0.0.1:4999\"\n";
                Some(Change::in_vain(&serving, less + listener))
            }
            2 if serving.sizes[disk] > 1 && self.can_be_replaced(disk) => {
                let mut smaller = serving.clone();
                smaller.sizes[disk] -= self.changes.between(1, serving.sizes[disk] - 1);
                let text = smaller.text(&self.scene.swarm);
                Some(Change::in_vain(&serving, text))
            }
            3 => {
                let tcp = (0..self.scene.listeners.len()).filter(|it| serving.listeners[*it]);
                let tcp: Vec<usize> = tcp.collect();
                let chosen = (!tcp.is_empty()).then(|| self.changes.pick(&tcp))?;
                self.scene.listeners[chosen].covet();
                let hosts = self.scene.swarm.hosts.iter().enumerate();
                let hosts = hosts.filter(|(_, host)| host.listener() == chosen);
                let renamed = text.replace(&format!("\"{}\"", LISTENERS[chosen]), "\"renamed\"");
                Some(Change {
                    hosts: hosts.map(|(number, _)| number).collect(),
                    ..Change::in_vain(&serving, renamed)
                })
            }
            4 if self.can_be_replaced(disk) => {
                if let Storage::Disk(storage) = &self.scene.disks[disk] {
                    storage.covet();
                }
                let name = format!("name = \"{}\"\n", device_name(disk));
                let uuid = "uuid = \"6d7bfb0e-53a5-4c1c-8c36-0d6a1f7a0d11\"\n";
                // With other identifiers it is a different disk, so its hosts are disconnected.
                let subsystem = self.scene.swarm.subsystem_of_disk(disk);
                let hosts = self.scene.swarm.hosts.iter().enumerate();
                let hosts = hosts.filter(|(_, host)| host.subsystem == subsystem);
                Some(Change {
                    disks: [disk].into(),
                    hosts: hosts.map(|(number, _)| number).collect(),
                    ..Change::in_vain(&serving, text.replace(&name, &(name.clone() + uuid)))
                })
            }
            _ => None,
        }
    }

    /// Whether a disk's device is there and could be closed and opened again.
    fn can_be_replaced(&self, disk: usize) -> bool {
        let storage = &self.scene.disks[disk];
        let is_disk = matches!(storage, Storage::Disk(_)) && !storage.needs_restart();
        is_disk && self.scene.serving.devices[disk]
    }

    /// Has the appliance carry a change out, and judges what came of it.
    fn carry_out(&mut self, change: Change) -> Result<(), Violation> {
        let taken = self.appliance.as_mut().and_then(Appliance::take_control);
        let Some(mut control) = taken else {
            return Ok(());
        };
        let done = self.carry_out_by(&mut control, &change);
        if let Some(appliance) = &mut self.appliance {
            appliance.give_control(control);
        }
        match done? {
            Done::Settled => Ok(()),
            Done::Killed { power } => self.kill(power),
            Done::TakesRestart => {
                self.stop()?;
                self.fall(false);
                self.scene.serving = change.wanted;
                self.start()
            }
        }
    }

    fn carry_out_by(&mut self, control: &mut Control, change: &Change) -> Result<Done, Violation> {
        let wanted = match &change.text {
            Some(text) => plan::read(text),
            None => change.wanted.config(&self.scene.swarm),
        };
        let wanted = wanted.map_err(Violation::Rule)?;
        let now = self.scene.time.now();
        let former = self.scene.serving.clone();
        let former_config = control.config().clone();
        let touched = self.touched(&former, change);
        self.scene
            .note(format_args!("a change begins: {:?}", change.wanted));
        self.begin_flux(&touched, change);
        self.changing = true;
        self.scene.changing = true;
        self.waits = 0;
        let patience_ends = now + self.scene.swarm.patience;
        let leaving = touched.1.iter().copied();
        let leaving = leaving.filter(|disk| change.text.is_some() || !change.wanted.devices[*disk]);
        let mut during = During {
            began: (Instant::now(), now),
            patience_ends,
            leaving: leaving.collect(),
            end: None,
            looks: Cell::new(0),
            world: self,
        };
        let outcome = control.apply(&wanted, &mut during);
        let end = during.end;
        self.changing = false;
        self.scene.changing = false;
        self.scene.changed_at = self.scene.time.now();
        self.doom = None;
        self.scene
            .note(format_args!("the change is over: {outcome:?}"));
        self.scene.figures.steps += outcome.done.len() as u64;
        match end {
            Some(End::Wrong(violation)) => return Err(violation),
            Some(End::Killed { power }) => {
                // Where the file was changed first, that is what a start finds.
                if self.changes.coin() {
                    self.scene.serving = former;
                }
                self.end_flux(&touched, false);
                return Ok(Done::Killed { power });
            }
            None => {}
        }
        let expected = if change.text.is_some() || !outcome.is_applied {
            self.scene.serving = former;
            &former_config
        } else {
            &wanted
        };
        self.end_flux(&touched, outcome.is_applied);
        let left = control.config().difference(expected);
        if let Some(step) = left.first() {
            // What was pulled out meanwhile cannot be had back without a restart.
            if change.text.is_some() && self.scene.disks.iter().any(Storage::needs_restart) {
                return Ok(Done::Killed { power: false });
            }
            let what = format!("after a change ({outcome:?}) this is left to do: {step}");
            return Err(Violation::Rule(what));
        }
        self.judge_outcome(change, &outcome)
    }

    fn judge_outcome(&self, change: &Change, outcome: &Outcome) -> Result<Done, Violation> {
        let wrong = |what: String| Err(Violation::Rule(what));
        match (&outcome.trouble, change.text.is_some()) {
            (None, false) => Ok(Done::Settled),
            (None, true) => wrong("a change was carried out that cannot be had".to_owned()),
            (Some(_), true) => Ok(Done::Settled),
            (Some(trouble), false) => {
                let rdma = change.wanted.listeners[RDMA_LISTENER]
                    && !self.scene.serving.listeners[RDMA_LISTENER];
                if rdma && trouble.contains("restart") {
                    return Ok(Done::TakesRestart);
                }
                // What was pulled out meanwhile is not to be had.
                if self.scene.disks.iter().any(Storage::needs_restart) {
                    return Ok(Done::Settled);
                }
                // Nobody listens on a device that is not there.
                let network = self.scene.rdma.as_ref();
                if rdma && network.is_some_and(RdmaNetwork::is_unplugged) {
                    return Ok(Done::Settled);
                }
                wrong(format!("a change is not carried out: {trouble}"))
            }
        }
    }

    /// The hosts and the disks that a change takes something from or gives something to.
    fn touched(&self, former: &Serving, change: &Change) -> (BTreeSet<usize>, BTreeSet<usize>) {
        let swarm = &self.scene.swarm;
        let wanted = &change.wanted;
        let hosts = 0..swarm.hosts.len();
        let hosts = hosts.filter(|it| {
            former.reaches(swarm, *it) != wanted.reaches(swarm, *it)
                || former.has_listener(swarm, *it) != wanted.has_listener(swarm, *it)
        });
        let disks = (0..swarm.disks.len()).filter(|disk| {
            former.namespaces[*disk] != wanted.namespaces[*disk]
                || former.devices[*disk] != wanted.devices[*disk]
                || former.sizes[*disk] != wanted.sizes[*disk]
        });
        (
            hosts.chain(change.hosts.iter().copied()).collect(),
            disks.chain(change.disks.iter().copied()).collect(),
        )
    }

    /// From now on what a change does may have happened, or not yet.
    fn begin_flux(&mut self, touched: &(BTreeSet<usize>, BTreeSet<usize>), change: &Change) {
        let (hosts, disks) = touched;
        for host in hosts {
            self.scene.permission_changed[*host] = CHANGING;
        }
        for disk in disks {
            self.scene.namespace_changed[*disk] = CHANGING;
            let blocks = change.wanted.sizes[*disk];
            self.scene.judge.grow(*disk, blocks);
            // Which of two states the namespace is left in when it is in vain is told by no event.
            let subsystem = self.scene.swarm.subsystem_of_disk(*disk);
            let is_seen = self.scene.serving.namespaces[*disk] || change.wanted.namespaces[*disk];
            // A namespace whose device was pulled out has gone already.
            let is_told = is_seen && !self.is_gone(*disk) && change.text.is_none();
            for host in self.hosts.iter_mut().filter(|_| is_told) {
                host.expect_namespace_event(subsystem, *disk, CHANGING);
            }
        }
        self.scene.serving = change.wanted.clone();
    }

    /// What a change did has happened.
    fn end_flux(&mut self, touched: &(BTreeSet<usize>, BTreeSet<usize>), is_applied: bool) {
        let now = self.scene.time.now();
        let (hosts, disks) = touched;
        for host in hosts {
            self.scene.permission_changed[*host] = now;
        }
        // A namespace comes with its device, which may have been pulled out meanwhile.
        let is_told = is_applied && !disks.iter().any(|disk| self.is_gone(*disk));
        for disk in disks {
            self.scene.namespace_changed[*disk] = now;
            self.scene.swarm.disks[*disk].block_count = self.scene.serving.sizes[*disk];
        }
        for host in &mut self.hosts {
            host.changed_by(now, is_told.then_some(now + EVENT_MAX));
        }
    }

    /// What the disks are, and what that makes of the configuration that a start finds: a file that
    /// is longer than it says is left alone, and the start refused.
    pub(super) fn find_sizes(&mut self, seed: u64) -> Result<(), Violation> {
        let mut is_shorter = false;
        for (number, storage) in self.scene.disks.iter().enumerate() {
            let Storage::Disk(disk) = storage else {
                continue;
            };
            let size = disk.shape().block_count;
            is_shorter |= self.scene.serving.sizes[number] < size;
        }
        if is_shorter && Appliance::start(seed, &self.scene).is_ok() {
            let what = "the appliance starts with a file that is longer than it says";
            return Err(Violation::Rule(what.to_owned()));
        }
        for (number, storage) in self.scene.disks.iter().enumerate() {
            let Storage::Disk(disk) = storage else {
                continue;
            };
            let size = &mut self.scene.serving.sizes[number];
            *size = disk.shape().block_count.max(*size);
            self.scene.swarm.disks[number].block_count = *size;
            self.scene.judge.grow(number, *size);
        }
        Ok(())
    }

    /// Waits for what a pulled drive does to be seen.
    pub(super) fn await_devices(&mut self) -> Result<(), Violation> {
        let by = self.scene.time.now() + STOP_MAX;
        let are_back = |world: &mut Self| {
            let gone = world.scene.disk_gone.iter().zip(&world.scene.disks);
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

/// What is left to do after a change.
enum Done {
    Settled,
    /// The appliance is killed in the midst of it.
    Killed {
        power: bool,
    },
    /// Nothing was changed; only a restart can do it.
    TakesRestart,
}
