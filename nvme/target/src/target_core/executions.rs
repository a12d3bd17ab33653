//! Commands in execution: a fixed table, its states, and the lines of those that a device put off.
//!
//! An execution is a chain of device requests, one at a time: one for most commands, one per range
//! for Dataset Management, one per device for a Flush of all namespaces. The device's tag is slot
//! and generation, so that a completion nobody waits for is recognised.
//!
//! Two kinds of intrusive lists run through the table, so that nothing has to search it: the
//! executions of each queue, newest first, and the parked executions of each device, oldest first.

use block::Request;
use hugemem::Data;
use reactors::Nanos;
use reactors::sim::planted;

use super::slots::Slots;
use crate::io::IoWork;
use crate::status::Fault;

/// No slot: the end of a line.
const NONE: u32 = u32::MAX;

/// Where an execution stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecutionState {
    /// A request is in the device; its completion moves the execution on.
    InDevice,
    /// The device put the request off; a poll after the device completed something moves it on.
    Parked,
    /// A request is in the device, but the queue is gone: its completion frees the slot.
    Orphan,
    /// No request is made yet: the host's fence holds the command back. The end of the fence moves
    /// it on.
    Fenced,
}

/// What happens to an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecutionEvent {
    /// The device took the (next) request.
    Taken,
    /// The device put the (next) request off.
    Deferred,
    /// The last request is done, or the command was aborted in line: an answer goes out.
    Finished,
    /// The queue is gone.
    Abandoned,
}

/// What an execution's next state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It goes on in this state.
    State(ExecutionState),
    /// Its slot becomes free.
    Free,
    /// It cannot happen.
    Never,
}

/// The move that an event makes.
pub(crate) const fn transition(state: ExecutionState, event: ExecutionEvent) -> Next {
    use ExecutionEvent::{Abandoned, Deferred, Finished, Taken};
    use ExecutionState::{Fenced, InDevice, Orphan, Parked};
    match (state, event) {
        (InDevice | Parked | Fenced, Taken) => Next::State(InDevice),
        (InDevice | Parked, Deferred) => Next::State(Parked),
        (InDevice | Orphan, Finished) | (Parked | Fenced, Finished | Abandoned) => Next::Free,
        (InDevice, Abandoned) => Next::State(Orphan),
        (Orphan, Taken | Deferred | Abandoned) | (Fenced, Deferred) => Next::Never,
    }
}

/// A host's command, as it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// Slot of its queue.
    pub(crate) queue: u32,
    /// The command identifier.
    pub(crate) id: u16,
    /// The transport's own.
    pub(crate) tag: u64,
}

/// For whom an execution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A host's command.
    Command(Command),
    /// The flush of a controller's normal shutdown.
    Shutdown { controller: u32, generation: u32 },
    /// The flush before the core comes to rest.
    Drain,
}

/// One command in execution.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) state: ExecutionState,
    pub(crate) owner: Owner,
    pub(crate) work: IoWork,
    /// The turn in which the command came.
    pub(crate) came: Nanos,
    /// When it was put into execution.
    pub(crate) started: Nanos,
    /// Steps done: ranges of Dataset Management, the read before a durable read's flush.
    pub(crate) step: u16,
    /// Whether [`Kept`] holds anything of it.
    keeps: bool,
    /// Neighbours in its device's line, while it is parked.
    line: Links,
    /// Neighbours among its queue's executions.
    of_queue: Links,
}

/// Neighbours in a list: slots, or [`NONE`].
#[derive(Clone, Copy, Debug)]
struct Links {
    previous: u32,
    next: u32,
}

impl Links {
    const ALONE: Self = Self {
        previous: NONE,
        next: NONE,
    };
}

impl Execution {
    pub(crate) fn new(owner: Owner, work: IoWork, came: Nanos, started: Nanos) -> Self {
        let state = ExecutionState::InDevice;
        Self {
            state,
            owner,
            work,
            came,
            started,
            step: 0,
            keeps: false,
            line: Links::ALONE,
            of_queue: Links::ALONE,
        }
    }

    /// An execution that a fence holds back.
    pub(crate) fn fenced(owner: Owner, work: IoWork, came: Nanos, started: Nanos) -> Self {
        Self {
            state: ExecutionState::Fenced,
            ..Self::new(owner, work, came, started)
        }
    }

    /// Moves the state by an event after which the execution goes on.
    #[inline]
    pub(crate) fn apply(&mut self, event: ExecutionEvent) {
        match transition(self.state, event) {
            Next::State(state) => self.state = state,
            Next::Free | Next::Never => debug_assert!(false, "{event:?} in {:?}", self.state),
        }
    }
}

/// What an execution keeps while it waits; apart from [`Execution`], because most never need it.
#[derive(Default)]
pub(crate) struct Kept {
    /// The request that the device put off.
    pub(crate) request: Option<Request>,
    /// The ranges of Dataset Management, or what a durable read found.
    pub(crate) data: Option<Data>,
    /// Devices that a Flush of all namespaces has yet to reach.
    pub(crate) devices: u128,
    /// The first fault of a Flush that goes on regardless.
    pub(crate) failed: Option<Fault>,
}

/// A line of parked executions.
#[derive(Clone, Copy)]
struct Line {
    head: u32,
    tail: u32,
}

/// All commands in execution of one core.
pub(crate) struct Executions {
    slots: Slots<Execution>,
    kept: Box<[Kept]>,
    /// By device.
    lines: Box<[Line]>,
    /// By the slot of a queue: its newest execution.
    newest: Box<[u32]>,
    parked: usize,
}

/// Slot and generation, as a device sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceTag {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl DeviceTag {
    #[inline]
    pub(crate) fn into_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self {
            slot: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

impl Executions {
    pub(crate) fn new(capacity: usize, devices: usize, queues: usize) -> Self {
        Self {
            slots: Slots::new(capacity),
            kept: (0..capacity).map(|_| Kept::default()).collect(),
            lines: vec![
                Line {
                    head: NONE,
                    tail: NONE
                };
                devices
            ]
            .into_boxed_slice(),
            newest: vec![NONE; queues].into_boxed_slice(),
            parked: 0,
        }
    }

    /// Executions now.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Executions that wait for a device.
    pub(crate) fn parked(&self) -> usize {
        self.parked
    }

    /// Whether a device has a line, which new requests must join at its end.
    #[inline]
    pub(crate) fn has_line(&self, device: u8) -> bool {
        self.lines[usize::from(device)].head != NONE
    }

    /// Begins an execution; `None` when the table is full.
    #[inline]
    pub(crate) fn insert(&mut self, mut execution: Execution) -> Option<DeviceTag> {
        if planted("identifier-replaces")
            && let Owner::Command(Command { queue, id, .. }) = execution.owner
            && let Some(former) = self.find(queue, id)
        {
            self.take(former);
        }
        let mut newest = None;
        if let Owner::Command(command) = execution.owner {
            newest = self.newest.get_mut(command.queue as usize);
            execution.of_queue.next = newest.as_deref().copied().unwrap_or(NONE);
        }
        let next = execution.of_queue.next;
        let (slot, generation) = self.slots.insert(execution)?;
        if let Some(newest) = newest {
            *newest = slot;
        }
        if let Some(next) = self.slots.at_mut(next) {
            next.of_queue.previous = slot;
        }
        Some(DeviceTag { slot, generation })
    }

    /// Takes an execution out of the table and out of its queue's list.
    #[inline(always)]
    fn take(&mut self, slot: u32) -> Option<Execution> {
        let execution = self.slots.remove(slot)?;
        if let Owner::Command(command) = execution.owner {
            let Links { previous, next } = execution.of_queue;
            if let Some(previous) = self.slots.at_mut(previous) {
                previous.of_queue.next = next;
            } else if let Some(newest) = self.newest.get_mut(command.queue as usize) {
                *newest = next;
            }
            if let Some(next) = self.slots.at_mut(next) {
                next.of_queue.previous = previous;
            }
        }
        if execution.keeps {
            self.kept[slot as usize] = Kept::default();
        }
        Some(execution)
    }

    /// The execution that a device's tag names.
    pub(crate) fn get(&self, tag: DeviceTag) -> Option<&Execution> {
        self.slots.get(tag.slot, tag.generation)
    }

    /// The execution that a device's tag names.
    #[inline]
    pub(crate) fn get_mut(&mut self, tag: DeviceTag) -> Option<&mut Execution> {
        self.slots.get_mut(tag.slot, tag.generation)
    }

    /// What the execution in `slot` keeps.
    pub(crate) fn kept(&mut self, slot: u32) -> &mut Kept {
        if let Some(execution) = self.slots.at_mut(slot) {
            execution.keeps = true;
        }
        &mut self.kept[slot as usize]
    }

    /// Ends an execution; what it kept is dropped.
    #[inline(always)]
    pub(crate) fn remove(&mut self, tag: DeviceTag) -> Option<Execution> {
        let state = self.slots.get(tag.slot, tag.generation)?.state;
        debug_assert_eq!(transition(state, ExecutionEvent::Finished), Next::Free);
        debug_assert_ne!(
            state,
            ExecutionState::Parked,
            "a parked execution is in line"
        );
        self.take(tag.slot)
    }

    /// Puts an execution whose request the device put off at the end of the device's line.
    pub(crate) fn park(&mut self, tag: DeviceTag, request: Request) {
        let Some(execution) = self.slots.get_mut(tag.slot, tag.generation) else {
            debug_assert!(false, "only a live execution is parked");
            return;
        };
        execution.apply(ExecutionEvent::Deferred);
        let line = &mut self.lines[usize::from(execution.work.device)];
        let previous = std::mem::replace(&mut line.tail, tag.slot);
        execution.line = Links {
            previous,
            next: NONE,
        };
        if previous == NONE {
            line.head = tag.slot;
        } else if let Some(last) = self.slots.at_mut(previous) {
            last.line.next = tag.slot;
        }
        self.kept(tag.slot).request = Some(request);
        self.parked += 1;
    }

    /// Takes the first of a device's line out, with its request, to be tried again.
    pub(crate) fn unpark(&mut self, device: u8) -> Option<(DeviceTag, Request)> {
        let slot = self.lines[usize::from(device)].head;
        self.leave_line(slot)?;
        let request = self.kept[slot as usize].request.take();
        debug_assert!(request.is_some(), "a parked execution keeps its request");
        Some((self.tag(slot), request?))
    }

    /// Takes a parked execution out of its device's line, wherever it stands.
    fn leave_line(&mut self, slot: u32) -> Option<()> {
        let execution = self.slots.at(slot)?;
        let device = usize::from(execution.work.device);
        let Links { previous, next } = execution.line;
        match self.slots.at_mut(previous) {
            Some(before) => before.line.next = next,
            None => self.lines[device].head = next,
        }
        match self.slots.at_mut(next) {
            Some(after) => after.line.previous = previous,
            None => self.lines[device].tail = previous,
        }
        self.parked -= 1;
        Some(())
    }

    /// The tag of the execution in `slot`.
    fn tag(&self, slot: u32) -> DeviceTag {
        let generation = self.slots.generation(slot);
        DeviceTag { slot, generation }
    }

    /// Puts the first of a device's line back where it was.
    pub(crate) fn park_first(&mut self, tag: DeviceTag, request: Request) {
        let Some(execution) = self.slots.get_mut(tag.slot, tag.generation) else {
            debug_assert!(false, "only a live execution is parked");
            return;
        };
        execution.apply(ExecutionEvent::Deferred);
        let line = &mut self.lines[usize::from(execution.work.device)];
        let next = std::mem::replace(&mut line.head, tag.slot);
        execution.line = Links {
            previous: NONE,
            next,
        };
        if next == NONE {
            line.tail = tag.slot;
        } else if let Some(first) = self.slots.at_mut(next) {
            first.line.previous = tag.slot;
        }
        self.kept(tag.slot).request = Some(request);
        self.parked += 1;
    }

    /// Frees an execution of which the device has nothing: a parked or a fenced one.
    #[inline(never)]
    pub(crate) fn remove_waiting(&mut self, slot: u32) -> Option<Execution> {
        match self.slots.at(slot)?.state {
            ExecutionState::Parked => self.leave_line(slot)?,
            ExecutionState::Fenced => {}
            ExecutionState::InDevice | ExecutionState::Orphan => return None,
        }
        self.take(slot)
    }

    /// The slot of a command of a queue, by its identifier. Costs what the queue has in execution.
    pub(crate) fn find(&self, queue: u32, command_id: u16) -> Option<u32> {
        let mut slot = *self.newest.get(queue as usize)?;
        loop {
            let execution = self.slots.at(slot)?;
            if matches!(execution.owner, Owner::Command(command) if command.id == command_id) {
                return Some(slot);
            }
            slot = execution.of_queue.next;
        }
    }

    /// The oldest execution of a queue that a fence holds back.
    pub(crate) fn first_fenced(&self, queue: u32) -> Option<DeviceTag> {
        let mut slot = *self.newest.get(queue as usize)?;
        let mut found = None;
        while let Some(execution) = self.slots.at(slot) {
            if execution.state == ExecutionState::Fenced {
                found = Some(slot);
            }
            slot = execution.of_queue.next;
        }
        found.map(|slot| self.tag(slot))
    }

    /// The next newer execution of the same queue that a fence holds back.
    pub(crate) fn next_fenced(&self, tag: DeviceTag) -> Option<DeviceTag> {
        let mut slot = self.get(tag)?.of_queue.previous;
        loop {
            let execution = self.slots.at(slot)?;
            if execution.state == ExecutionState::Fenced {
                return Some(self.tag(slot));
            }
            slot = execution.of_queue.previous;
        }
    }

    /// Whether a device's request is of the queue that is gone and had this slot.
    pub(crate) fn is_orphan_of(&self, queue: u32, tag: DeviceTag) -> bool {
        self.is_orphan(tag)
            && self.get(tag).is_some_and(|execution| {
                matches!(execution.owner, Owner::Command(command) if command.queue == queue)
            })
    }

    /// Whether a device's request is of a queue that is gone.
    pub(crate) fn is_orphan(&self, tag: DeviceTag) -> bool {
        self.get(tag)
            .is_some_and(|execution| execution.state == ExecutionState::Orphan)
    }

    /// The executions whose request is in a device or in its line.
    pub(crate) fn of_device(&self, device: u8) -> impl Iterator<Item = (DeviceTag, &Execution)> {
        let all = self.slots.iter();
        let of_it = all.filter(move |(_, execution)| execution.work.device == device);
        of_it.map(|(slot, execution)| (self.tag(slot), execution))
    }

    /// The queue of `slot` is gone: frees what waits here, orphans what is in a device. Costs what
    /// the queue has in execution.
    pub(crate) fn abandon(&mut self, queue: u32) -> Abandoned {
        let mut abandoned = Abandoned::default();
        let mut next = self.newest.get(queue as usize).copied().unwrap_or(NONE);
        while let Some(execution) = self.slots.at_mut(next) {
            let slot = std::mem::replace(&mut next, execution.of_queue.next);
            match transition(execution.state, ExecutionEvent::Abandoned) {
                Next::State(state) => {
                    execution.state = state;
                    abandoned.orphaned += 1;
                    abandoned.devices |= 1 << execution.work.device;
                }
                Next::Free => {
                    self.remove_waiting(slot);
                    abandoned.freed += 1;
                }
                Next::Never => debug_assert!(false, "a queue goes once"),
            }
        }
        abandoned
    }
}

/// What became of a queue's executions when it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Abandoned {
    pub(crate) freed: u32,
    pub(crate) orphaned: u32,
    /// Bit per device that has an orphan.
    pub(crate) devices: u128,
}

#[cfg(test)]
mod tests {
    use block::Operation;

    use super::*;
    use crate::io::IoOperation;

    fn execution(queue: u32, command_id: u16) -> Execution {
        let owner = Owner::Command(Command {
            queue,
            id: command_id,
            tag: u64::from(command_id),
        });
        let operation = IoOperation::Flush;
        let work = IoWork {
            operation,
            device: 0,
            blocks: 0,
            lba: 0,
            bytes: 0,
            nsid: 1,
            epoch: 1,
        };
        Execution::new(owner, work, Nanos::ZERO, Nanos::ZERO)
    }

    fn request(tag: DeviceTag) -> Request {
        let tag = tag.into_bits();
        Request {
            tag,
            operation: Operation::Flush,
            lba: 0,
            blocks: 0,
            data: None,
        }
    }

    fn parked(executions: &mut Executions, command_id: u16) -> DeviceTag {
        let tag = executions.insert(execution(3, command_id)).expect("room");
        executions.park(tag, request(tag));
        tag
    }

    #[test]
    fn tags_carry_slot_and_generation() {
        let tag = DeviceTag {
            slot: 0x1234_5678,
            generation: 0x9abc_def0,
        };
        assert_eq!(DeviceTag::from_bits(tag.into_bits()), tag);
    }

    #[test]
    fn a_line_is_served_in_order() {
        let mut executions = Executions::new(8, 1, 8);
        assert!(!executions.has_line(0));
        let tags = [1, 2, 3].map(|id| parked(&mut executions, id));
        assert!(executions.has_line(0));
        let (first, request) = executions.unpark(0).expect("in line");
        assert_eq!(first, tags[0]);
        executions.park_first(first, request);
        for tag in tags {
            assert_eq!(executions.unpark(0).map(|(tag, _)| tag), Some(tag));
        }
        assert!(executions.unpark(0).is_none());
        assert_eq!(executions.parked(), 0);
    }

    #[test]
    fn any_place_in_a_line_can_be_left() {
        for leaving in 0..3 {
            let mut executions = Executions::new(8, 1, 8);
            let tags = [1, 2, 3].map(|id| parked(&mut executions, id));
            assert!(executions.remove_waiting(tags[leaving].slot).is_some());
            assert!(executions.remove_waiting(tags[leaving].slot).is_none());
            let fourth = parked(&mut executions, 4);
            let mut rest: Vec<_> = tags
                .into_iter()
                .filter(|tag| *tag != tags[leaving])
                .collect();
            rest.push(fourth);
            for tag in rest {
                assert_eq!(executions.unpark(0).map(|(tag, _)| tag), Some(tag));
            }
            assert!(executions.unpark(0).is_none());
        }
    }

    #[test]
    fn a_queue_that_goes_leaves_orphans_only_in_devices() {
        let mut executions = Executions::new(8, 1, 8);
        let in_device = executions.insert(execution(3, 1)).expect("room");
        let in_line = parked(&mut executions, 2);
        let other = executions.insert(execution(4, 1)).expect("room");
        assert_eq!(executions.find(3, 2), Some(in_line.slot));
        assert_eq!(
            executions.abandon(3),
            Abandoned {
                freed: 1,
                orphaned: 1,
                devices: 1,
            }
        );
        assert_eq!(
            executions.slots.at(in_device.slot).map(|it| it.state),
            Some(ExecutionState::Orphan)
        );
        assert_eq!(
            executions.slots.at(other.slot).map(|it| it.state),
            Some(ExecutionState::InDevice)
        );
        assert_eq!((executions.len(), executions.parked()), (2, 0));
        assert!(executions.remove(in_device).is_some());
        assert!(
            executions.remove(in_device).is_none(),
            "a stale tag frees nothing"
        );
    }

    /// Each queue's list holds its own executions, whichever of them go first.
    #[test]
    fn a_queue_finds_its_own_executions() {
        let mut executions = Executions::new(16, 1, 8);
        let tags: Vec<_> = (0..12)
            .map(|id| {
                let execution = execution(u32::from(id % 3), id);
                executions.insert(execution).expect("room")
            })
            .collect();
        assert_eq!(executions.find(2, 5), Some(tags[5].slot));
        assert_eq!(executions.find(1, 5), None, "of another queue");
        for gone in [11, 2, 5] {
            assert!(executions.remove(tags[gone]).is_some());
            assert_eq!(executions.find(2, gone as u16), None);
        }
        assert_eq!(executions.find(2, 8), Some(tags[8].slot));
        assert_eq!(executions.abandon(2).orphaned, 1);
        assert!(executions.is_orphan(tags[8]) && !executions.is_orphan(tags[7]));
        assert!(executions.remove(tags[8]).is_some());
        assert_eq!(executions.find(2, 8), None);
        assert_eq!(executions.abandon(2), Abandoned::default());
        assert_eq!(executions.abandon(0).orphaned, 4);
        assert_eq!(executions.abandon(7), Abandoned::default());
    }

    #[test]
    fn fenced_executions_are_found_oldest_first() {
        let mut executions = Executions::new(8, 1, 8);
        let mut fenced = Vec::new();
        for id in 0..6 {
            let mut one = execution(3, id);
            if id % 2 == 1 {
                one.state = ExecutionState::Fenced;
            }
            let tag = executions.insert(one).expect("room");
            if id % 2 == 1 {
                fenced.push(tag);
            }
        }
        let first = executions.first_fenced(3);
        let found = std::iter::successors(first, |tag| executions.next_fenced(*tag));
        assert_eq!(found.collect::<Vec<_>>(), fenced);
        assert_eq!(executions.first_fenced(4), None);
        assert!(executions.remove_waiting(fenced[0].slot).is_some());
        assert_eq!(executions.first_fenced(3), Some(fenced[1]));
        assert_eq!(executions.abandon(3).freed, 2);
    }

    #[test]
    fn every_move_is_decided() {
        use ExecutionEvent::{Abandoned, Deferred, Finished, Taken};
        use ExecutionState::{Fenced, InDevice, Orphan, Parked};
        let rows = [
            (InDevice, Taken, Next::State(InDevice)),
            (InDevice, Deferred, Next::State(Parked)),
            (InDevice, Finished, Next::Free),
            (InDevice, Abandoned, Next::State(Orphan)),
            (Parked, Taken, Next::State(InDevice)),
            (Parked, Deferred, Next::State(Parked)),
            (Parked, Finished, Next::Free),
            (Parked, Abandoned, Next::Free),
            (Orphan, Finished, Next::Free),
            (Orphan, Taken, Next::Never),
            (Orphan, Deferred, Next::Never),
            (Orphan, Abandoned, Next::Never),
            (Fenced, Taken, Next::State(InDevice)),
            (Fenced, Deferred, Next::Never),
            (Fenced, Finished, Next::Free),
            (Fenced, Abandoned, Next::Free),
        ];
        for (state, event, next) in rows {
            assert_eq!(transition(state, event), next, "{state:?} {event:?}");
        }
    }
}
