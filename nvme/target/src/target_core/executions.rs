//! The table of commands in execution, and their states.
//!
//! An execution is a chain of device requests, one at a time: one for most commands, one per range
//! for Dataset Management, one per source range and a write for Copy, one per device for a Flush of
//! all namespaces. The device's tag consists
//! of slot and generation, so that a stale completion is detected.
//!
//! An intrusive list links the executions of each queue, newest first, so that finding them does
//! not search the table.

mod handover;

use std::collections::VecDeque;

use block::WaitingId;
use hugemem::{Data, DeviceLease};
use reactors::Nanos;

use super::copying::DeviceData;
use super::slots::Slots;
use crate::io::{IoOperation, IoWork};
use crate::status::Fault;

/// No slot: the end of a list.
const NONE: u32 = u32::MAX;

/// The state of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecutionState {
    /// A request is in a device, or waits until the device accepts it. Ends with the completion.
    Submitted,
    /// A request is in a device, but the queue has ended. The completion frees the slot.
    Orphan,
    /// The host's fence, or an excluded block, holds the command back before its first request. Ends
    /// with the fence or the exclusion.
    Fenced,
    /// A part of a fused operation that waits for the other part, for their block, or for the result
    /// of the first part.
    Paired,
}

/// An event that changes the state of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecutionEvent {
    /// The first request is submitted.
    Started,
    /// The last request is complete, or no device has one: the execution is over.
    Finished,
    /// The queue has ended, and a device has a request.
    Abandoned,
}

/// The result of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The execution continues in this state.
    State(ExecutionState),
    /// Its slot is freed.
    Free,
    /// The event cannot occur in this state.
    Never,
}

/// The transition for an event.
pub(crate) const fn transition(state: ExecutionState, event: ExecutionEvent) -> Next {
    use ExecutionEvent::{Abandoned, Finished, Started};
    use ExecutionState::{Fenced, Orphan, Paired, Submitted};
    match (state, event) {
        (Fenced | Paired, Started) => Next::State(Submitted),
        (_, Finished) => Next::Free,
        (Submitted, Abandoned) => Next::State(Orphan),
        (Submitted | Orphan, Started) | (Orphan | Fenced | Paired, Abandoned) => Next::Never,
    }
}

/// A host's command, for its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// Slot of its queue.
    pub(crate) queue: u32,
    /// The command identifier.
    pub(crate) id: u16,
    /// The transport's tag.
    pub(crate) tag: u64,
}

/// The owner of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A host's command.
    Command(Command),
    /// The flush of a controller's normal shutdown.
    Shutdown { controller: u32, generation: u32 },
}

/// One command in execution.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) state: ExecutionState,
    pub(crate) owner: Owner,
    pub(crate) work: IoWork,
    /// The turn in which the command was received.
    pub(crate) received_at: Nanos,
    /// When its execution started.
    pub(crate) started: Nanos,
    /// Number of completed steps: ranges of Dataset Management, or the read before a durable read's
    /// flush. Of a Copy: the number of source ranges whose read is not submitted yet. Of a command whose
    /// data is in memory of its device: the number of its requests there.
    pub(crate) step: u16,
    /// Whether [`ExecutionExtra`] has data of it.
    has_extra: bool,
    /// The latest request's identifier in its device's wait queue, if it ever waited.
    pub(crate) waiting: Option<WaitingId>,
    /// Links in its queue's list of executions.
    of_queue: Links,
}

/// Neighbors in a list: slots, or [`NONE`].
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
    pub(crate) fn new(owner: Owner, work: IoWork, received_at: Nanos, started: Nanos) -> Self {
        let state = ExecutionState::Submitted;
        Self {
            state,
            owner,
            work,
            received_at,
            started,
            step: 0,
            has_extra: false,
            waiting: None,
            of_queue: Links::ALONE,
        }
    }

    /// An execution that a fence holds back.
    pub(crate) fn fenced(owner: Owner, work: IoWork, received_at: Nanos, started: Nanos) -> Self {
        Self {
            state: ExecutionState::Fenced,
            ..Self::new(owner, work, received_at, started)
        }
    }

    /// A part of a fused operation.
    pub(crate) fn paired(owner: Owner, work: IoWork, received_at: Nanos, started: Nanos) -> Self {
        Self {
            state: ExecutionState::Paired,
            ..Self::new(owner, work, received_at, started)
        }
    }

    /// Whether no device ever has a request of it.
    fn is_reservation_change(&self) -> bool {
        matches!(self.work.operation, IoOperation::Reserve(_))
    }

    /// Applies an event after which the execution continues.
    #[inline]
    pub(crate) fn apply(&mut self, event: ExecutionEvent) {
        match transition(self.state, event) {
            Next::State(state) => self.state = state,
            Next::Free | Next::Never => debug_assert!(false, "{event:?} in {:?}", self.state),
        }
    }
}

/// Data of an execution that few executions need. Separate from [`Execution`] to keep that small.
#[derive(Default)]
pub(crate) struct ExecutionExtra {
    /// The ranges of Dataset Management, the data of a durable read or of a Copy, or the data of a
    /// command that is held back or a part of a fused operation.
    pub(crate) data: Option<Data>,
    /// Devices that a Flush of all namespaces still has to flush. Of a Copy: those of its sources.
    pub(crate) devices: u128,
    /// The device of the latest request of a Copy.
    pub(crate) copies_in: u8,
    /// Whether the drive executes a Copy by itself.
    pub(crate) by_drive: bool,
    /// Whether a Copy that starts again may have written to its destination.
    pub(crate) may_be_written: bool,
    /// Of a command whose data is in memory of a device.
    pub(crate) device_data: Option<DeviceData>,
    /// The first fault of a Flush that continues with other devices, or of a piece of a read or write
    /// whose data is in memory of its device.
    pub(crate) failed: Option<Fault>,
}

/// An execution whose data is in memory of its device, of which the last request there has succeeded.
pub(crate) struct LastInDevice<'a> {
    execution: &'a mut Execution,
    /// It has the memory, and nothing else that has to be dropped.
    extra: &'a mut ExecutionExtra,
}

impl LastInDevice<'_> {
    pub(crate) fn execution(&self) -> &Execution {
        self.execution
    }

    /// No device has a request in the memory. Returns whether it is still valid.
    #[inline(always)]
    pub(crate) fn complete(&mut self) -> bool {
        let data = self.extra.device_data.as_mut();
        data.is_some_and(DeviceData::complete)
    }

    /// Moves the memory to the end of `kept`, with the transport's tag of the command.
    #[inline(always)]
    pub(crate) fn move_to(&mut self, kept: &mut VecDeque<(u64, DeviceLease)>, tag: u64) -> bool {
        let Some(data) = self.extra.device_data.take() else {
            return false;
        };
        kept.push_back((tag, data.lease));
        // Nothing is left to be dropped.
        self.execution.has_extra = false;
        true
    }
}

/// All executions of one core.
pub(crate) struct Executions {
    slots: Slots<Execution>,
    extra: Box<[ExecutionExtra]>,
    /// The newest execution of each queue, by the queue's slot.
    newest: Box<[u32]>,
}

/// Bits of a device's tag that hold the slot; the others hold the generation.
const SLOT_BITS: u32 = 24;

const _: () = assert!(SLOT_BITS + u32::BITS <= block::CLIENT_TAG_BITS);

/// Slot and generation of an execution, as the tag of its device requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceTag {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl DeviceTag {
    #[inline]
    pub(crate) fn into_bits(self) -> u64 {
        u64::from(self.generation) << SLOT_BITS | u64::from(self.slot)
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self {
            slot: bits as u32 & ((1 << SLOT_BITS) - 1),
            generation: (bits >> SLOT_BITS) as u32,
        }
    }
}

impl Executions {
    pub(crate) fn new(capacity: usize, queues: usize) -> Self {
        assert!(capacity <= 1 << SLOT_BITS, "too many executions for a tag");
        Self {
            slots: Slots::new(capacity),
            extra: (0..capacity).map(|_| ExecutionExtra::default()).collect(),
            newest: vec![NONE; queues].into_boxed_slice(),
        }
    }

    /// Number of executions.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds an execution; `None` if the table is full.
    #[inline]
    pub(crate) fn insert(&mut self, mut execution: Execution) -> Option<DeviceTag> {
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

    /// Removes an execution from the table and from its queue's list.
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
        if execution.has_extra {
            self.extra[slot as usize] = ExecutionExtra::default();
        }
        Some(execution)
    }

    /// The execution with this tag.
    pub(crate) fn get(&self, tag: DeviceTag) -> Option<&Execution> {
        self.slots.get(tag.slot, tag.generation)
    }

    /// The execution with this tag.
    #[inline]
    pub(crate) fn get_mut(&mut self, tag: DeviceTag) -> Option<&mut Execution> {
        self.slots.get_mut(tag.slot, tag.generation)
    }

    /// The additional data of the execution in `slot`.
    pub(crate) fn extra(&mut self, slot: u32) -> &mut ExecutionExtra {
        if let Some(execution) = self.slots.at_mut(slot) {
            execution.has_extra = true;
        }
        &mut self.extra[slot as usize]
    }

    /// The memory of a command whose data is in a device.
    pub(crate) fn device_data(&mut self, tag: DeviceTag) -> Option<&mut DeviceData> {
        let execution = self.slots.get(tag.slot, tag.generation)?;
        let has_extra = execution.has_extra;
        let extra = has_extra.then(|| &mut self.extra[tag.slot as usize])?;
        extra.device_data.as_mut()
    }

    /// An execution whose data is in memory of its device, and that memory.
    #[inline(always)]
    pub(crate) fn with_device_data(
        &mut self,
        tag: DeviceTag,
    ) -> Option<(&mut Execution, &mut DeviceData)> {
        let execution = self.slots.get_mut(tag.slot, tag.generation)?;
        let extra = execution
            .has_extra
            .then(|| &mut self.extra[tag.slot as usize])?;
        Some((execution, extra.device_data.as_mut()?))
    }

    /// Adds the execution of a command with memory of its device; `None` if the table is full.
    #[inline(always)]
    pub(crate) fn insert_in_device(
        &mut self,
        mut execution: Execution,
        data: DeviceData,
    ) -> Option<DeviceTag> {
        execution.has_extra = true;
        let tag = self.insert(execution)?;
        self.extra[tag.slot as usize].device_data = Some(data);
        Some(tag)
    }

    /// An execution whose data is in memory of its device, if it has one request left there, and none of
    /// those before has failed.
    #[inline(always)]
    pub(crate) fn last_in_device(&mut self, tag: DeviceTag) -> Option<LastInDevice<'_>> {
        let execution = self.slots.get_mut(tag.slot, tag.generation)?;
        let is_last = execution.step == 1 && execution.has_extra;
        let extra = is_last.then(|| &mut self.extra[tag.slot as usize])?;
        let bytes = execution.work.bytes as usize;
        let is_submitted = (extra.device_data.as_ref()).is_some_and(|it| it.offset >= bytes);
        let is_sound = is_submitted && extra.failed.is_none() && extra.data.is_none();
        is_sound.then_some(LastInDevice { execution, extra })
    }

    /// Removes a finished execution and drops its additional data.
    #[inline(always)]
    pub(crate) fn remove(&mut self, tag: DeviceTag) -> Option<Execution> {
        let state = self.slots.get(tag.slot, tag.generation)?.state;
        debug_assert_eq!(transition(state, ExecutionEvent::Finished), Next::Free);
        self.take(tag.slot)
    }

    /// The tag of the execution in `slot`.
    fn tag(&self, slot: u32) -> DeviceTag {
        let generation = self.slots.generation(slot);
        DeviceTag { slot, generation }
    }

    /// Removes an execution of which no device has a request: one that is held back, or whose
    /// request `cancel` removes from its device's wait queue.
    #[inline(never)]
    pub(crate) fn remove_waiting(
        &mut self,
        slot: u32,
        cancel: &mut dyn FnMut(WaitingId, DeviceTag) -> bool,
    ) -> Option<Execution> {
        let execution = self.slots.at(slot)?;
        let is_free = match (execution.state, execution.waiting) {
            (ExecutionState::Fenced | ExecutionState::Paired, _) => true,
            (ExecutionState::Submitted, Some(waiting)) => cancel(waiting, self.tag(slot)),
            (ExecutionState::Submitted, None) | (ExecutionState::Orphan, _) => false,
        };
        is_free.then(|| self.take(slot)).flatten()
    }

    /// The slot of a queue's command by its identifier. Searches the executions of the queue.
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

    /// Whether a device's request belongs to the ended queue with this slot.
    pub(crate) fn is_orphan_of(&self, queue: u32, tag: DeviceTag) -> bool {
        self.is_orphan(tag)
            && self.get(tag).is_some_and(|execution| {
                matches!(execution.owner, Owner::Command(command) if command.queue == queue)
            })
    }

    /// Whether a device's request belongs to an ended queue.
    pub(crate) fn is_orphan(&self, tag: DeviceTag) -> bool {
        self.get(tag)
            .is_some_and(|execution| execution.state == ExecutionState::Orphan)
    }

    /// Whether an execution is a part of a fused operation that no device has.
    pub(crate) fn is_paired(&self, tag: DeviceTag) -> bool {
        self.get(tag)
            .is_some_and(|execution| execution.state == ExecutionState::Paired)
    }

    /// The executions that have or will have requests in devices, whatever changes meanwhile: no
    /// changes of reservations, and no parts of fused operations, which the gate examines again. Each
    /// with its devices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u128, &Execution)> {
        let all = self.slots.iter().filter(|(_, execution)| {
            !execution.is_reservation_change() && execution.state != ExecutionState::Paired
        });
        all.map(|(slot, execution)| (self.devices(slot, execution), execution))
    }

    /// The devices, one bit each, of which an execution has, had or will have a request; of a Flush of
    /// all namespaces, the one that it flushes now.
    fn devices(&self, slot: u32, execution: &Execution) -> u128 {
        let sources = match execution.work.operation {
            IoOperation::Copy { .. } => self.extra[slot as usize].devices,
            _ => 0,
        };
        sources | 1 << execution.work.device
    }

    /// The device of an execution's latest request.
    fn latest_device(&self, slot: u32, execution: &Execution) -> u8 {
        match execution.work.operation {
            IoOperation::Copy { .. } => self.extra[slot as usize].copies_in,
            _ => execution.work.device,
        }
    }

    /// The executions that have, had or will have a request for a device.
    pub(crate) fn of_device(&self, device: u8) -> impl Iterator<Item = (DeviceTag, &Execution)> {
        let all = self.slots.iter();
        let of_it = all.filter(move |(slot, execution)| {
            self.devices(*slot, execution) & 1 << device != 0 && !execution.is_reservation_change()
        });
        of_it.map(|(slot, execution)| (self.tag(slot), execution))
    }

    /// The executions whose request is in a device or in its wait queue.
    pub(crate) fn in_device(&self, device: u8) -> impl Iterator<Item = DeviceTag> {
        let all = self.slots.iter();
        let in_it = all.filter(move |(slot, execution)| {
            self.latest_device(*slot, execution) == device && !execution.is_reservation_change()
        });
        in_it.map(|(slot, _)| self.tag(slot))
    }

    /// Removes the executions of an ended queue that no device has, and makes orphans of the
    /// others. Searches the executions of the queue.
    pub(crate) fn abandon(
        &mut self,
        queue: u32,
        cancel: &mut dyn FnMut(WaitingId, DeviceTag) -> bool,
    ) -> Abandoned {
        let mut abandoned = Abandoned::default();
        let mut next = self.newest.get(queue as usize).copied().unwrap_or(NONE);
        while let Some(execution) = self.slots.at(next) {
            let slot = std::mem::replace(&mut next, execution.of_queue.next);
            // A change of reservations takes effect without its execution.
            let is_change = execution.is_reservation_change();
            let removed = match is_change {
                true => self.take(slot),
                false => self.remove_waiting(slot, cancel),
            };
            if removed.is_some() {
                abandoned.freed += 1;
            } else if let Some(execution) = self.slots.at_mut(slot) {
                execution.apply(ExecutionEvent::Abandoned);
                abandoned.orphaned += 1;
                if let Some(execution) = self.slots.at(slot) {
                    abandoned.devices |= self.devices(slot, execution);
                }
            }
        }
        abandoned
    }
}

/// The result of abandoning a queue's executions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Abandoned {
    pub(crate) freed: u32,
    pub(crate) orphaned: u32,
    /// One bit for each device that has an orphan.
    pub(crate) devices: u128,
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// A cancel function that finds no request in a wait queue.
    fn nothing(_: WaitingId, _: DeviceTag) -> bool {
        false
    }

    #[test]
    fn tags_carry_slot_and_generation() {
        let tag = DeviceTag {
            slot: 0x12_3456,
            generation: 0x9abc_def0,
        };
        assert_eq!(DeviceTag::from_bits(tag.into_bits()), tag);
    }

    #[test]
    fn closed_queue_orphans_only_submitted_executions() {
        let mut executions = Executions::new(8, 8);
        let in_device = executions.insert(execution(3, 1)).expect("room");
        let fenced = Execution {
            state: ExecutionState::Fenced,
            ..execution(3, 2)
        };
        let fenced = executions.insert(fenced).expect("room");
        let other = executions.insert(execution(4, 1)).expect("room");
        assert_eq!(executions.find(3, 2), Some(fenced.slot));
        assert_eq!(
            executions.abandon(3, &mut nothing),
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
            Some(ExecutionState::Submitted)
        );
        assert_eq!(executions.len(), 2);
        assert!(executions.remove(in_device).is_some());
        assert!(
            executions.remove(in_device).is_none(),
            "a stale tag frees nothing"
        );
    }

    /// Each queue's list contains its own executions, in whatever order they end.
    #[test]
    fn executions_are_found_by_queue_and_command_id() {
        let mut executions = Executions::new(16, 8);
        let tags: Vec<_> = (0..12)
            .map(|id| {
                let execution = execution(u32::from(id % 3), id);
                executions.insert(execution).expect("room")
            })
            .collect();
        assert_eq!(executions.find(2, 5), Some(tags[5].slot));
        assert_eq!(executions.find(1, 5), None, "of another queue");
        for closed in [11, 2, 5] {
            assert!(executions.remove(tags[closed]).is_some());
            assert_eq!(executions.find(2, closed as u16), None);
        }
        assert_eq!(executions.find(2, 8), Some(tags[8].slot));
        assert_eq!(executions.abandon(2, &mut nothing).orphaned, 1);
        assert!(executions.is_orphan(tags[8]) && !executions.is_orphan(tags[7]));
        assert!(executions.remove(tags[8]).is_some());
        assert_eq!(executions.find(2, 8), None);
        assert_eq!(executions.abandon(2, &mut nothing), Abandoned::default());
        assert_eq!(executions.abandon(0, &mut nothing).orphaned, 4);
        assert_eq!(executions.abandon(7, &mut nothing), Abandoned::default());
    }

    #[test]
    fn fenced_executions_are_found_oldest_first() {
        let mut executions = Executions::new(8, 8);
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
        assert!(
            executions
                .remove_waiting(fenced[0].slot, &mut nothing)
                .is_some()
        );
        assert_eq!(executions.first_fenced(3), Some(fenced[1]));
        assert_eq!(executions.abandon(3, &mut nothing).freed, 2);
    }

    #[test]
    fn all_transitions_are_defined() {
        use ExecutionEvent::{Abandoned, Finished, Started};
        use ExecutionState::{Fenced, Orphan, Paired, Submitted};
        let rows = [
            (Submitted, Started, Next::Never),
            (Submitted, Finished, Next::Free),
            (Submitted, Abandoned, Next::State(Orphan)),
            (Orphan, Started, Next::Never),
            (Orphan, Finished, Next::Free),
            (Orphan, Abandoned, Next::Never),
            (Fenced, Started, Next::State(Submitted)),
            (Fenced, Finished, Next::Free),
            (Fenced, Abandoned, Next::Never),
            (Paired, Started, Next::State(Submitted)),
            (Paired, Finished, Next::Free),
            (Paired, Abandoned, Next::Never),
        ];
        for (state, event, next) in rows {
            assert_eq!(transition(state, event), next, "{state:?} {event:?}");
        }
    }
}
