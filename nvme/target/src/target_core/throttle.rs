//! Commands that wait because a rate limit of their queue is used up.
//!
//! A command waits after it was admitted and before it takes memory: its transport keeps the
//! [`Work`], and this core keeps its place. The commands of a queue wait in their order. Only the
//! first one has reserved its turn at the rates, and a timer for it, so that queues take turns and
//! a queue that ends leaves at most one turn unused. When its turn has come, the transport takes
//! it by [`TargetCore::next_released`] and continues it.
//!
//! A command that cannot wait any longer is released at once: when its queue drains because of a
//! configuration change, when it is held for a hand-over, or when no limit applies any more.

use nvme_spec::Status;
use reactors::Nanos;
use reactors::timer::{TimerId, TimerWheel};

use super::TargetCore;
use super::queue::Queue;
use crate::config::CoreLimits;
use crate::interface::{Admission, QueueId, TransportId, Work, WorkKind};
use crate::rate::patience;
use crate::rates::Charge;
use crate::view::TargetView;

/// Resolution of the turns. A later start loses nothing, because rates catch up within their burst.
const TICK: Nanos = Nanos::from_micros(50);

/// No waiter: the end of a list.
const NONE: u32 = u32::MAX;

/// A command whose wait for a rate has ended, for its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The tag given to [`TargetCore::await_rate`].
    pub tag: u64,
    /// The status to [`reject`](TargetCore::reject) the command with, if it does not start.
    pub refused: Option<Status>,
}

/// A command that waits, or that was released and not taken by its transport yet.
#[derive(Clone, Copy)]
struct Waiter {
    queue: QueueId,
    tag: u64,
    charge: Charge,
    since: Nanos,
    /// When it starts at the latest, however slow a pace is.
    latest: Nanos,
    command_id: u16,
    may_abort: bool,
    refused: Option<Status>,
    /// The next one of its list.
    next: u32,
}

/// A list of waiters, in their order.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

impl List {
    const EMPTY: Self = Self {
        first: NONE,
        last: NONE,
    };
}

/// The turn that the first waiter of a queue has reserved.
#[derive(Clone, Copy)]
struct Turn {
    /// The position of the rate that it waits for.
    rate: usize,
    timer: Option<TimerId>,
}

/// The waiters of a queue.
#[derive(Clone, Copy)]
struct QueueWaiters {
    list: List,
    turn: Option<Turn>,
}

/// The waiters of a core.
pub(super) struct Throttle {
    /// The places that have been used. There is room for all, which is not touched before.
    waiters: Vec<Waiter>,
    /// Of these, the free ones, as a list.
    free: u32,
    queues: Box<[QueueWaiters]>,
    /// Released waiters by transport, and their number.
    released: Vec<List>,
    released_count: u32,
    turns: TimerWheel<u32>,
}

impl Throttle {
    pub(super) fn new(limits: &CoreLimits) -> Self {
        let none = QueueWaiters {
            list: List::EMPTY,
            turn: None,
        };
        Self {
            waiters: Vec::with_capacity(limits.executions_max),
            free: NONE,
            queues: vec![none; limits.queues_max].into_boxed_slice(),
            released: Vec::with_capacity(super::TRANSPORTS_MAX),
            released_count: 0,
            turns: TimerWheel::new(limits.queues_max, TICK, Nanos::ZERO),
        }
    }

    pub(super) fn add_transport(&mut self) {
        self.released.push(List::EMPTY);
    }

    /// When the next turn comes; sometimes a little early.
    pub(super) fn next_turn(&self) -> Option<Nanos> {
        self.turns.next_deadline()
    }

    /// Whether there are released commands that no transport has taken.
    #[inline]
    pub(super) fn has_any_released(&self) -> bool {
        self.released_count > 0
    }

    fn add(&mut self, waiter: Waiter) -> Option<u32> {
        let place = self.free;
        if let Some(free) = self.waiters.get_mut(place as usize) {
            self.free = free.next;
            *free = waiter;
            return Some(place);
        }
        let has_room = self.waiters.len() < self.waiters.capacity();
        has_room.then(|| {
            self.waiters.push(waiter);
            self.waiters.len() as u32 - 1
        })
    }

    fn list_mut(&mut self, place: Place) -> Option<&mut List> {
        match place {
            Place::Queue(slot) => Some(&mut self.queues.get_mut(slot as usize)?.list),
            Place::Released(transport) => self.released.get_mut(usize::from(transport)),
        }
    }

    fn append(&mut self, to: Place, waiter: u32) {
        self.waiters[waiter as usize].next = NONE;
        let Some(list) = self.list_mut(to) else {
            return;
        };
        let last = std::mem::replace(&mut list.last, waiter);
        match last {
            NONE => list.first = waiter,
            last => self.waiters[last as usize].next = waiter,
        }
    }

    /// Removes the waiter behind `previous`, or the first one.
    fn unlink(&mut self, from: Place, previous: Option<u32>) -> Option<u32> {
        let first = self.list_mut(from)?.first;
        let waiter = match previous {
            None => first,
            Some(previous) => self.waiters.get(previous as usize)?.next,
        };
        let next = self.waiters.get(waiter as usize)?.next;
        if let Some(previous) = previous {
            self.waiters[previous as usize].next = next;
        }
        let list = self.list_mut(from)?;
        if previous.is_none() {
            list.first = next;
        }
        if next == NONE {
            list.last = previous.unwrap_or(NONE);
        }
        Some(waiter)
    }

    fn release_place(&mut self, waiter: u32) {
        self.waiters[waiter as usize].next = std::mem::replace(&mut self.free, waiter);
    }

    fn first(&self, slot: u32) -> Option<&Waiter> {
        let first = self.queues.get(slot as usize)?.list.first;
        self.waiters.get(first as usize)
    }

    fn take_turn(&mut self, slot: u32) -> Option<Turn> {
        let turn = self.queues.get_mut(slot as usize)?.turn.take()?;
        if let Some(timer) = turn.timer {
            self.turns.cancel(timer);
        }
        Some(turn)
    }

    /// The waiter of a command, and the one before it.
    fn find(&self, slot: u32, command_id: u16) -> Option<(Option<u32>, &Waiter)> {
        let (mut previous, mut place) = (None, self.queues.get(slot as usize)?.list.first);
        loop {
            let waiter = self.waiters.get(place as usize)?;
            if waiter.command_id == command_id {
                return Some((previous, waiter));
            }
            previous = Some(place);
            place = waiter.next;
        }
    }
}

/// The list that a waiter is in.
#[derive(Clone, Copy)]
enum Place {
    Queue(u32),
    Released(u8),
}

impl TargetCore {
    /// Admits a command of a queue with rates: it starts if no rate delays it.
    #[cold]
    #[inline(never)]
    pub(super) fn admit_by_rates(&mut self, slot: u32, work: Work, now: Nanos) -> Admission {
        let is_copy = matches!(work.kind, WorkKind::Copy(_));
        let rates = self.queues.at_mut(slot).and_then(Queue::rates_mut);
        let starts = match (rates, charge(&work)) {
            (Some(rates), Some(charge)) => rates.take(charge, now),
            (None, _) | (_, None) => true,
        };
        match (starts, is_copy) {
            (true, false) => Admission::Work(work),
            (true, true) => {
                self.set_aside = Some(work);
                Admission::Copy
            }
            (false, _) => {
                self.set_aside = Some(work);
                Admission::Throttled
            }
        }
    }

    /// Lets an admitted command wait for its turn, with the transport's tag. `may_abort`: whether
    /// it may be completed before that; not if its data stops the stream. The transport keeps its
    /// [`Work`] until [`next_released`](Self::next_released) returns the tag.
    #[cold]
    pub fn await_rate(
        &mut self,
        queue: QueueId,
        tag: u64,
        work: &Work,
        may_abort: bool,
        now: Nanos,
    ) {
        let slot = queue.slot;
        let (Some(entry), Some(charge)) =
            (self.queues.get_mut(slot, queue.generation), charge(work))
        else {
            return;
        };
        let waiter = Waiter {
            queue,
            tag,
            charge,
            since: now,
            latest: now + patience(!may_abort, entry.depth),
            command_id: work.command_id,
            may_abort,
            refused: None,
            next: NONE,
        };
        // As many as there are executions, and each queue has its slot quota of these.
        let Some(place) = self.throttle.add(waiter) else {
            debug_assert!(false, "a command without a place to wait");
            return;
        };
        self.throttle.append(Place::Queue(slot), place);
        match entry.rates_mut() {
            Some(rates) => rates.waiting += 1,
            None => return self.release_waiting(slot, None),
        }
        self.reserve_turn(slot, now);
        self.set_core_timer();
    }

    /// The next command of a transport whose wait for a rate has ended. Drops those of queues that
    /// have been closed in the meantime.
    #[inline]
    pub fn next_released(&mut self, transport: TransportId) -> Option<Released> {
        if !self.throttle.has_any_released() {
            return None;
        }
        self.take_released(transport)
    }

    #[cold]
    fn take_released(&mut self, transport: TransportId) -> Option<Released> {
        while let Some(place) = self.throttle.unlink(Place::Released(transport.0), None) {
            let waiter = self.throttle.waiters[place as usize];
            self.throttle.release_place(place);
            self.throttle.released_count -= 1;
            let QueueId { slot, generation } = waiter.queue;
            if self.queues.get(slot, generation).is_some() {
                let Waiter { tag, refused, .. } = waiter;
                return Some(Released { tag, refused });
            }
        }
        None
    }

    /// Reserves the turn of a queue's first waiter, unless it has one.
    fn reserve_turn(&mut self, slot: u32, now: Nanos) {
        let Some(rates) = self.queues.at(slot).and_then(Queue::rates) else {
            return;
        };
        let Some((charge, latest)) = self.throttle.first(slot).map(|it| (it.charge, it.latest))
        else {
            return;
        };
        let Some(waiters) = self.throttle.queues.get_mut(slot as usize) else {
            return;
        };
        if waiters.turn.is_none() {
            let (start, rate) = rates.reserve(charge, latest, now);
            // There is room for every queue.
            let timer = self.throttle.turns.insert(start, slot).ok();
            waiters.turn = Some(Turn { rate, timer });
        }
    }

    /// Releases the commands whose turn has come. Returns their number.
    #[cold]
    pub(super) fn release_due(&mut self, now: Nanos) -> usize {
        let mut released = 0;
        while let Some((_, slot)) = self.throttle.turns.pop_due(now) {
            let waiters = self.throttle.queues.get_mut(slot as usize);
            let turn = waiters.and_then(|it| it.turn.take());
            if let (Some(turn), Some(waiter)) = (turn, self.throttle.first(slot).copied()) {
                let rates = self.queues.at(slot).and_then(Queue::rates);
                if let Some(rates) = rates {
                    let waited = now.saturating_sub(waiter.since);
                    rates.count_throttled(waiter.charge.access, turn.rate, waited);
                }
                self.release_first(slot, None);
                released += 1;
            }
            self.reserve_turn(slot, now);
        }
        released
    }

    /// Passes the first waiter of a queue to its transport.
    fn release_first(&mut self, slot: u32, refused: Option<Status>) -> bool {
        self.release_behind(slot, None, refused)
    }

    /// Passes the waiter behind `previous` to its transport.
    fn release_behind(
        &mut self,
        slot: u32,
        previous: Option<u32>,
        refused: Option<Status>,
    ) -> bool {
        let Some(place) = self.throttle.unlink(Place::Queue(slot), previous) else {
            return false;
        };
        self.throttle.waiters[place as usize].refused = refused;
        let Some(queue) = self.queues.at_mut(slot) else {
            self.throttle.release_place(place);
            return true;
        };
        if let Some(rates) = queue.rates_mut() {
            rates.waiting = rates.waiting.saturating_sub(1);
        }
        let transport = queue.transport;
        self.throttle.append(Place::Released(transport), place);
        self.throttle.released_count += 1;
        true
    }

    /// Releases all waiters of a queue, or refuses those that may be aborted.
    #[cold]
    pub(super) fn release_waiting(&mut self, slot: u32, refused: Option<Status>) {
        self.throttle.take_turn(slot);
        while let Some(waiter) = self.throttle.first(slot) {
            let refused = refused.filter(|_| waiter.may_abort);
            self.release_first(slot, refused);
        }
        self.set_core_timer();
    }

    /// Releases all commands that wait, for a hand-over.
    pub fn release_throttled(&mut self) {
        for slot in 0..self.queues.capacity() {
            if self.throttle.first(slot).is_some() {
                self.release_waiting(slot, None);
            }
        }
    }

    /// Forgets the waiters of a queue whose connection is closed.
    pub(super) fn forget_waiting(&mut self, slot: u32) {
        if self.throttle.first(slot).is_none() {
            return;
        }
        self.return_turn(slot);
        while let Some(place) = self.throttle.unlink(Place::Queue(slot), None) {
            self.throttle.release_place(place);
        }
        if let Some(rates) = self.queues.at_mut(slot).and_then(Queue::rates_mut) {
            rates.waiting = 0;
        }
        self.set_core_timer();
    }

    /// Gives back the turn of a queue's first waiter.
    fn return_turn(&mut self, slot: u32) {
        let charge = self.throttle.first(slot).map(|it| it.charge);
        let turn = self.throttle.take_turn(slot);
        let rates = self.queues.at(slot).and_then(Queue::rates);
        if let (Some(_), Some(charge), Some(rates)) = (turn, charge, rates) {
            rates.give_back(charge);
        }
    }

    /// Abort of a command that waits. Returns whether it is completed.
    pub(super) fn abort_throttled(&mut self, slot: u32, command_id: u16) -> bool {
        let found = self.throttle.find(slot, command_id);
        let Some((previous, waiter)) = found else {
            return false;
        };
        if !waiter.may_abort {
            return false;
        }
        if previous.is_none() {
            self.return_turn(slot);
        }
        self.release_behind(slot, previous, Some(Status::ABORT_REQUESTED));
        self.reserve_turn(slot, self.polled_at);
        self.set_core_timer();
        true
    }

    /// Adopts the rates of a new configuration for the queue in `slot`.
    pub(super) fn adopt_rates(&mut self, slot: u32, view: &TargetView, now: Nanos) {
        let Some(queue) = self.queues.at(slot) else {
            return;
        };
        let rates = queue.find_rates(view);
        let is_same = match (queue.rates(), &rates) {
            (None, None) => true,
            (Some(before), Some(after)) => before.is_same(after),
            (None, Some(_)) | (Some(_), None) => false,
        };
        if is_same {
            return;
        }
        self.return_turn(slot);
        if let Some(queue) = self.queues.at_mut(slot) {
            let waiting = queue.rates().map_or(0, |it| it.waiting);
            queue.set_rates(rates);
            match queue.rates_mut() {
                Some(rates) => rates.waiting = waiting,
                None => return self.release_waiting(slot, None),
            }
        }
        self.reserve_turn(slot, now);
        self.set_core_timer();
    }
}

/// What the rates count of a command.
fn charge(work: &Work) -> Option<Charge> {
    match &work.kind {
        WorkKind::Io(io) => Charge::of(io),
        // The bytes are known, and counted, when the list of source ranges is there.
        WorkKind::Copy(copy) => Charge::of(&copy.io).map(|it| Charge { bytes: 0, ..it }),
        WorkKind::Fused(_)
        | WorkKind::Reservation(_)
        | WorkKind::Admin(_)
        | WorkKind::Authentication(_) => None,
    }
}

/// Counts a part of a command that was not counted before it started: later ones wait longer.
#[cold]
pub(super) fn charge_started(queue: &Queue, charge: Charge, is_counted: bool, now: Nanos) {
    if let Some(rates) = queue.rates() {
        rates.reserve(charge, now, now);
        if is_counted {
            rates.give_back(Charge { bytes: 0, ..charge });
        }
    }
}
