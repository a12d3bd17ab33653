//! The devices of one reactor, for all protocols: one queue of each device, polled once a turn, and
//! the wait queues of requests that a device does not take yet.
//!
//! A protocol that serves data is a *client* of the set. It submits requests with its own tags and
//! receives the completions with these tags. A set belongs to one thread; its methods take `&self`,
//! so that a client can submit its next request while it handles a completion.

mod absent;
mod client;
mod device_memory;
mod poller;
#[cfg(test)]
mod tests;
mod wait_queues;

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;

use arrayvec::Drain as DrainBatch;
use hugemem::Borrow;
use reactors::Nanos;

use crate::device::{DataPath, Device, DeviceQueue, Drain, QueueOptions};
use crate::error::{DeviceError, OpenError};
use crate::request::{
    COMPLETIONS_PER_POLL_MAX, Completion, CompletionBatch, Operation, Refusal, Request,
};
use crate::shared_queues::SharedQueues;
use absent::EmptyQueue;
pub use client::{DeviceClient, ReactorDevices};
pub use device_memory::NoDeviceMemory;
pub use poller::DevicePoller;
use wait_queues::WaitQueues;
pub use wait_queues::WaitingId;

/// Maximum number of devices in a set.
pub const DEVICES_MAX: usize = 128;

/// A set of places (device indices), as a bit mask.
pub type DeviceMask = u128;

const _: () = assert!(DEVICES_MAX <= DeviceMask::BITS as usize);

/// Maximum number of clients of a set.
const CLIENTS_MAX: usize = 8;

/// Bits of a client's tag. The upper bits of a request's tag are the client's number.
pub const CLIENT_TAG_BITS: u32 = 56;

/// Maximum number of batches taken from one device in one poll, so that a busy device does not
/// starve the rest of the turn.
const BATCHES_PER_POLL_MAX: usize = 4;

/// Turns between two polls of idle devices, from which only an interrupt may have to be disabled.
const TURNS_PER_IDLE_POLL: u8 = 8;

/// Interval of the retries of waiting requests if nothing else wakes the reactor.
const RETRY_INTERVAL: Nanos = Nanos::from_micros(50);

/// The number of a client in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId(u8);

impl ClientId {
    /// The set itself, which flushes the devices when it drains.
    const SET: Self = Self(u8::MAX);

    fn of(tag: u64) -> Self {
        // The upper 8 bits.
        Self((tag >> CLIENT_TAG_BITS) as u8)
    }

    #[inline]
    fn tag(self, tag: u64) -> u64 {
        debug_assert_eq!(tag >> CLIENT_TAG_BITS, 0, "a client's tag is too large");
        u64::from(self.0) << CLIENT_TAG_BITS | tag
    }
}

/// Completions of one client, with the client's own tags.
pub type Completions<'a> = DrainBatch<'a, Completion, COMPLETIONS_PER_POLL_MAX>;

/// The state of a submitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The device has taken it.
    Taken,
    /// It waits until the device can take it.
    Waiting(WaitingId),
}

/// Progress of the set's drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Volatile caches are being flushed. Ends with the last completion.
    Flushing,
    /// Queues are closing. Ends with their last completions.
    Draining,
}

/// The devices of one reactor, indexed by place.
pub struct DeviceSet {
    queues: RefCell<Vec<Box<dyn DeviceQueue>>>,
    /// Dropped after the queues that use it.
    shared: SharedQueues,
    wait_queues: RefCell<WaitQueues>,
    clients: Cell<u8>,
    /// Devices with a non-empty wait queue, which new requests join.
    with_waiting: Cell<DeviceMask>,
    /// Devices with a request whose completion has not been delivered.
    busy: Cell<DeviceMask>,
    /// Devices that took a request, or had one when polled, since their last flush.
    unflushed: Cell<DeviceMask>,
    /// The place that is polled next, busy or not.
    next: Cell<u8>,
    turn: Cell<u8>,
    /// Attached devices, except those that are being detached.
    attached: Cell<DeviceMask>,
    /// Devices whose completed writes may be in a volatile cache.
    volatile: Cell<DeviceMask>,
    /// Devices that support direct placement.
    direct: Cell<DeviceMask>,
    /// Devices whose data may be in memory of devices.
    on_device_path: Cell<DeviceMask>,
    phase: Cell<Phase>,
    /// Devices whose flush for the drain has not completed.
    flushing_for_drain: Cell<DeviceMask>,
    flush_failed: Cell<bool>,
    polled_at: Cell<Nanos>,
    /// Completions without a known request.
    stale_completions: Cell<u64>,
}

impl Default for DeviceSet {
    fn default() -> Self {
        Self::new()
    }
}

/// Iterates over the places in a bit mask, in ascending order.
#[inline]
fn places(mut set: DeviceMask) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(place)
    })
}

#[inline]
fn insert(set: &Cell<DeviceMask>, place: usize) {
    set.set(set.get() | 1 << place);
}

fn assign(set: &Cell<DeviceMask>, place: usize, is_in: bool) {
    if is_in {
        insert(set, place);
    } else {
        remove(set, place);
    }
}

#[inline]
fn remove(set: &Cell<DeviceMask>, place: usize) {
    set.set(set.get() & !(1 << place));
}

impl DeviceSet {
    /// Creates a set without devices and clients.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: SharedQueues::default(),
            queues: RefCell::new(Vec::with_capacity(DEVICES_MAX)),
            wait_queues: RefCell::new(WaitQueues::new(DEVICES_MAX)),
            clients: Cell::new(0),
            with_waiting: Cell::new(0),
            busy: Cell::new(0),
            unflushed: Cell::new(0),
            next: Cell::new(0),
            turn: Cell::new(0),
            attached: Cell::new(0),
            volatile: Cell::new(0),
            direct: Cell::new(0),
            on_device_path: Cell::new(0),
            phase: Cell::new(Phase::Serving),
            flushing_for_drain: Cell::new(0),
            flush_failed: Cell::new(false),
            polled_at: Cell::new(Nanos::ZERO),
            stale_completions: Cell::new(0),
        }
    }

    /// Registers a client that has at most `requests_max` requests outstanding.
    ///
    /// # Panics
    /// If eight clients are registered already.
    pub fn register(&self, requests_max: usize) -> ClientId {
        let number = self.clients.get();
        assert!(
            usize::from(number) < CLIENTS_MAX,
            "at most {CLIENTS_MAX} clients"
        );
        self.clients.set(number + 1);
        self.wait_queues.borrow_mut().make_room(requests_max);
        ClientId(number)
    }

    /// Opens a queue of a device for a free place.
    ///
    /// # Errors
    /// The device's error.
    pub fn attach(
        &self,
        place: usize,
        device: &dyn Device,
        options: QueueOptions,
    ) -> Result<(), OpenError> {
        let queue = device.open_queue(QueueOptions {
            shared: self.shared.clone(),
            ..options
        })?;
        self.attach_queue(place, queue, device.geometry().volatile_write_cache);
        Ok(())
    }

    /// Adds a queue. `volatile`: completed writes may be lost until a flush completes.
    ///
    /// # Panics
    /// If `place` is not below [`DEVICES_MAX`].
    pub fn attach_queue(&self, place: usize, queue: Box<dyn DeviceQueue>, volatile: bool) {
        assert!(
            place < DEVICES_MAX,
            "place {place} exceeds the maximum number of devices"
        );
        let mut queues = self.queues.borrow_mut();
        while queues.len() <= place {
            queues.push(Box::new(EmptyQueue));
        }
        assign(&self.volatile, place, volatile);
        assign(&self.direct, place, queue.supports_direct_placement());
        let is_on_path = queue.data_path() != DataPath::Host;
        assign(&self.on_device_path, place, is_on_path);
        insert(&self.attached, place);
        queues[place] = queue;
    }

    /// Begins and continues the removal of a device that no client uses any more. Its requests
    /// complete normally. Call it between polls until it returns [`Drain::Done`].
    pub fn detach(&self, place: usize) -> Drain {
        let requests = self.in_flight_of(place);
        remove(&self.attached, place);
        let is_busy = requests > 0 || self.with_waiting.get() & 1 << place != 0;
        if is_busy {
            return Drain::Outstanding(requests.max(1));
        }
        self.vacate(place);
        Drain::Done
    }

    /// Removes a device immediately: requests that it has, or that wait for it, never complete.
    pub fn remove_now(&self, place: usize) {
        remove(&self.attached, place);
        self.wait_queues.borrow_mut().clear(place);
        remove(&self.with_waiting, place);
        self.vacate(place);
    }

    fn vacate(&self, place: usize) {
        if let Some(queue) = self.queues.borrow_mut().get_mut(place) {
            *queue = Box::new(EmptyQueue);
        }
        remove(&self.busy, place);
        remove(&self.volatile, place);
        remove(&self.direct, place);
        remove(&self.on_device_path, place);
    }

    /// Notifies the queue of a device that the device has grown.
    pub fn notify_growth(&self, place: usize) {
        if let Some(queue) = self.queues.borrow_mut().get_mut(place) {
            queue.device_grew();
        }
    }

    /// Attached devices, except those that are being detached.
    #[must_use]
    pub fn attached(&self) -> DeviceMask {
        self.attached.get()
    }

    /// [`DeviceQueue::can_borrow_read`] of the device at `place`.
    #[inline]
    #[must_use]
    pub fn can_borrow_read(&self, place: usize, lba: u64, blocks: u32) -> bool {
        let queues = self.queues.borrow();
        queues
            .get(place)
            .is_some_and(|queue| queue.can_borrow_read(lba, blocks))
    }

    /// [`DeviceQueue::borrow_read`] of the device at `place`.
    #[inline(always)]
    pub fn borrow_read(&self, place: usize, lba: u64, blocks: u32) -> Option<Borrow> {
        self.queues
            .borrow_mut()
            .get_mut(place)?
            .borrow_read(lba, blocks)
    }

    /// [`DeviceQueue::write_inline`] of the device at `place`.
    #[inline(always)]
    pub fn write_inline(&self, place: usize, lba: u64, data: &[u8]) -> bool {
        insert(&self.unflushed, place);
        let mut queues = self.queues.borrow_mut();
        let queue = queues.get_mut(place);
        queue.is_some_and(|queue| queue.write_inline(lba, data))
    }

    /// [`DeviceQueue::absences`] of the device at `place`.
    #[must_use]
    pub fn absences(&self, place: usize) -> u32 {
        let queues = self.queues.borrow();
        queues.get(place).map_or(0, |queue| queue.absences())
    }

    /// [`DeviceQueue::supports_direct_placement`] of the device at `place`.
    #[inline]
    #[must_use]
    pub fn supports_direct_placement(&self, place: usize) -> bool {
        self.direct.get() & 1 << place != 0
    }

    /// [`DeviceQueue::place_directly`] of the device at `place`. `fill` must not call the set.
    pub fn place_directly(
        &self,
        place: usize,
        lba: u64,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        let mut queues = self.queues.borrow_mut();
        let queue = queues.get_mut(place);
        queue.is_some_and(|queue| queue.place_directly(lba, bytes, fill))
    }

    /// [`DeviceQueue::count_placed_write`] of the device at `place`.
    pub fn count_placed_write(&self, place: usize) {
        if let Some(queue) = self.queues.borrow_mut().get_mut(place) {
            queue.count_placed_write();
        }
    }

    /// Submits a client's request to the device at `place`, or adds it to the device's wait queue.
    ///
    /// # Errors
    /// The device can never execute it; the request is dropped.
    #[inline]
    pub fn submit(
        &self,
        client: ClientId,
        place: usize,
        mut request: Request,
    ) -> Result<Submitted, DeviceError> {
        request.tag = client.tag(request.tag);
        let with_waiting = self.with_waiting.get();
        if with_waiting != 0 && with_waiting & 1 << place != 0 {
            return self.wait(place, request);
        }
        let mut queues = self.queues.borrow_mut();
        let Some(queue) = queues.get_mut(place) else {
            return Err(DeviceError::Removed);
        };
        match queue.submit(request) {
            Ok(()) => {
                self.mark_busy(place);
                Ok(Submitted::Taken)
            }
            Err(Refusal::Later(request)) => {
                drop(queues);
                self.wait(place, request)
            }
            Err(Refusal::Never(_, error)) => Err(error),
        }
    }

    #[inline]
    fn mark_busy(&self, place: usize) {
        insert(&self.busy, place);
        insert(&self.unflushed, place);
    }

    #[cold]
    fn wait(&self, place: usize, request: Request) -> Result<Submitted, DeviceError> {
        let waiting = self.wait_queues.borrow_mut().push(place, request);
        debug_assert!(
            waiting.is_some(),
            "a client exceeds its registered number of requests"
        );
        insert(&self.with_waiting, place);
        waiting.map(Submitted::Waiting).ok_or(DeviceError::Internal)
    }

    /// Whether a request is in a wait queue.
    #[must_use]
    pub fn is_waiting(&self, client: ClientId, waiting: WaitingId, tag: u64) -> bool {
        self.wait_queues.borrow().has(waiting, client.tag(tag))
    }

    /// Removes a request from its wait queue. `false`: it is no longer there, because the device
    /// took it or it has completed.
    pub fn cancel(&self, client: ClientId, waiting: WaitingId, tag: u64) -> bool {
        let mut wait_queues = self.wait_queues.borrow_mut();
        let Some(place) = wait_queues.cancel(waiting, client.tag(tag)) else {
            return false;
        };
        if wait_queues.is_empty(place) {
            remove(&self.with_waiting, place);
        }
        true
    }

    /// Number of requests in wait queues.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.wait_queues.borrow().len()
    }

    /// Cancels the unwanted requests of a client in `devices`, as [`DeviceQueue::give_up`] does.
    pub fn give_up(
        &self,
        client: ClientId,
        devices: DeviceMask,
        is_unwanted: &mut dyn FnMut(u64) -> bool,
    ) {
        let mut queues = self.queues.borrow_mut();
        for place in places(devices) {
            if let Some(queue) = queues.get_mut(place) {
                queue.give_up(&mut |tag| belongs_to(client, tag, is_unwanted));
            }
        }
    }

    /// Ends the overdue requests of a client, as [`DeviceQueue::abandon`] does.
    pub fn abandon(&self, client: ClientId, is_overdue: &mut dyn FnMut(u64) -> bool) {
        for queue in &mut *self.queues.borrow_mut() {
            queue.abandon(&mut |tag| belongs_to(client, tag, is_overdue));
        }
    }

    /// Polls the devices that may have completions, and retries waiting requests. `deliver`
    /// receives the completions, grouped by client, and may submit. Returns the amount of work
    /// done.
    #[inline]
    pub fn poll(&self, now: Nanos, mut deliver: impl FnMut(ClientId, Completions<'_>)) -> usize {
        self.polled_at.set(now);
        let mut moved = 0;
        let mut batch = CompletionBatch::new();
        for place in places(self.begin_turn()) {
            for _ in 0..BATCHES_PER_POLL_MAX {
                let (count, is_full) = self.poll_device(place, &mut batch);
                moved += count;
                if count > 0 {
                    self.deliver(&mut batch, &mut deliver);
                }
                if !is_full {
                    break;
                }
            }
        }
        if self.with_waiting.get() != 0 {
            for place in places(self.with_waiting.get()) {
                moved += self.retry(place, &mut batch);
                self.deliver(&mut batch, &mut deliver);
            }
        }
        moved
    }

    /// The devices to poll in this turn: those with requests, and every few turns one of the
    /// others, round robin. A turn therefore costs as much with a hundred idle devices as with one.
    #[inline]
    fn begin_turn(&self) -> DeviceMask {
        let turn = self.turn.get().wrapping_add(1);
        self.turn.set(turn);
        if turn.is_multiple_of(TURNS_PER_IDLE_POLL) {
            self.busy.get() | self.next_idle()
        } else {
            self.busy.get()
        }
    }

    fn next_idle(&self) -> DeviceMask {
        let count = self.queues.borrow().len();
        let next = usize::from(self.next.get());
        // Fewer than 128 devices.
        let following = if next + 1 < count { next + 1 } else { 0 };
        self.next.set(following as u8);
        if next < count { 1 << next } else { 0 }
    }

    #[inline]
    fn poll_device(&self, place: usize, batch: &mut CompletionBatch) -> (usize, bool) {
        let queue = &mut self.queues.borrow_mut()[place];
        let count = queue.poll(batch);
        let is_full = batch.is_full();
        // An idle device without completions needs no flush.
        if count > 0 || self.busy.get() & 1 << place != 0 {
            insert(&self.unflushed, place);
            if !is_full && queue.in_flight() == 0 {
                remove(&self.busy, place);
            }
        }
        (count, is_full)
    }

    /// Delivers each run of completions of one client.
    #[inline]
    fn deliver(
        &self,
        batch: &mut CompletionBatch,
        deliver: &mut impl FnMut(ClientId, Completions<'_>),
    ) {
        while let Some(first) = batch.first() {
            let client = ClientId::of(first.tag);
            let mut run = 0;
            for completion in batch.iter_mut() {
                if ClientId::of(completion.tag) != client {
                    break;
                }
                completion.tag &= (1 << CLIENT_TAG_BITS) - 1;
                run += 1;
            }
            let completions = batch.drain(..run);
            if client.0 < self.clients.get() {
                deliver(client, completions);
            } else {
                completions.for_each(|completion| self.flushed(client, &completion));
            }
        }
    }

    /// Submits the requests of a wait queue to their device again, oldest first.
    fn retry(&self, place: usize, batch: &mut CompletionBatch) -> usize {
        let mut moved = 0;
        let mut wait_queues = self.wait_queues.borrow_mut();
        let queue = &mut self.queues.borrow_mut()[place];
        while !batch.is_full()
            && let Some(request) = wait_queues.pop(place)
        {
            let tag = request.tag;
            match queue.submit(request) {
                Ok(()) => self.mark_busy(place),
                Err(Refusal::Later(request)) => {
                    wait_queues.push_first(place, request);
                    break;
                }
                Err(Refusal::Never(_, error)) => batch.push(Completion {
                    tag,
                    result: Err(error),
                    data: None,
                }),
            }
            moved += 1;
        }
        if wait_queues.is_empty(place) {
            remove(&self.with_waiting, place);
        }
        moved
    }

    /// Ends a turn: all submitted requests are passed to the back ends when this returns.
    #[inline]
    pub fn flush(&self) {
        let mut queues = self.queues.borrow_mut();
        for place in places(self.unflushed.take()) {
            queues[place].flush();
        }
    }

    /// Visits every descriptor that becomes readable when a device has completions.
    pub fn wake_sources(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        for queue in &*self.queues.borrow() {
            if let Some(source) = queue.wake_source() {
                visit(source);
            }
        }
    }

    /// Time at which [`poll`](Self::poll) must be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let waits = self.with_waiting.get() != 0;
        waits.then(|| self.polled_at.get() + RETRY_INTERVAL)
    }

    /// Whether there is work that no descriptor and no deadline signals.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.queues.borrow().iter().any(|queue| queue.has_ready())
    }

    /// Called before the reactor sleeps: the devices enable their interrupts for the descriptors of
    /// [`wake_sources`](Self::wake_sources). `false`: there is work, do not sleep. The next
    /// [`poll`](Self::poll) disables the interrupts.
    pub fn prepare_sleep(&self) -> bool {
        let mut queues = self.queues.borrow_mut();
        queues.iter_mut().all(|queue| queue.prepare_sleep())
    }

    fn in_flight_of(&self, place: usize) -> usize {
        let queues = self.queues.borrow();
        queues.get(place).map_or(0, |queue| queue.in_flight())
    }

    /// Number of requests in devices.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.queues
            .borrow()
            .iter()
            .map(|queue| queue.in_flight())
            .sum()
    }

    /// Begins and continues the drain of the set, after the last client submission: flushes
    /// volatile caches, then closes the queues. Call it between polls until it returns
    /// [`Drain::Done`].
    pub fn drain(&self) -> Drain {
        if self.phase.get() == Phase::Serving {
            self.phase.set(Phase::Flushing);
            self.flush_volatile();
        }
        if self.phase.get() == Phase::Flushing {
            let flushing_for_drain = self.flushing_for_drain.get().count_ones();
            if flushing_for_drain > 0 {
                return Drain::Outstanding(flushing_for_drain as usize);
            }
            self.phase.set(Phase::Draining);
        }
        let mut left = 0;
        for queue in &mut *self.queues.borrow_mut() {
            if let Drain::Outstanding(requests) = queue.drain() {
                left += requests;
            }
        }
        if left > 0 {
            Drain::Outstanding(left)
        } else {
            Drain::Done
        }
    }

    fn flush_volatile(&self) {
        for place in places(self.volatile.get()) {
            let request = Request {
                tag: place as u64,
                operation: Operation::Flush,
                lba: 0,
                blocks: 0,
                data: None,
            };
            match self.submit(ClientId::SET, place, request) {
                Ok(_) => insert(&self.flushing_for_drain, place),
                Err(_) => self.flush_failed.set(true),
            }
        }
    }

    /// Handles a completion without a client: a flush of the drain, or a completion without a
    /// request.
    #[cold]
    fn flushed(&self, client: ClientId, completion: &Completion) {
        let device = usize::try_from(completion.tag).unwrap_or(usize::MAX);
        let awaited = client == ClientId::SET
            && device < DEVICES_MAX
            && self.flushing_for_drain.get() & 1 << device != 0;
        if !awaited {
            return self.stale_completions.set(self.stale_completions.get() + 1);
        }
        remove(&self.flushing_for_drain, device);
        if completion.result.is_err() {
            self.flush_failed.set(true);
        }
    }

    /// Returns and resets the number of completions without a known request.
    pub fn take_stale_completions(&self) -> u64 {
        self.stale_completions.take()
    }

    /// Whether the flush of a device failed during the drain: completed writes may be lost.
    #[must_use]
    pub fn has_failed_to_flush(&self) -> bool {
        self.flush_failed.get()
    }
}

/// Whether a tag belongs to `client` and `picks` selects it.
fn belongs_to(client: ClientId, tag: u64, picks: &mut dyn FnMut(u64) -> bool) -> bool {
    ClientId::of(tag) == client && picks(tag & ((1 << CLIENT_TAG_BITS) - 1))
}
