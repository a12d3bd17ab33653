//! The life of a request that needs a slot: waiting for a lease, fetching the host's data,
//! execution by the target core, and the response.
//!
//! A transport implements [`Requests`] for its connection: how data is fetched and how a response
//! is sent. The order of these steps, and [`Requests::step`], which performs the transitions, are
//! the same for all transports.

use hugemem::{Account, Data, Lease, Pool, WaiterToken};
use nvme_target::{Completed, Direction, QueueId, Released, TargetCore, Work, WorkProgress};
use reactors::Nanos;

use crate::connection_table::Connection;
use crate::slots::{SlotState, SlotTable};
use crate::token::RequestToken;

/// Latency from which a read of a RAM device does not borrow its memory. Reads that meet a write in
/// progress wait for microseconds, those behind a borrow that delays a write for tens of
/// milliseconds. Together with the time for which a transport may keep a borrow, this bounds the
/// time of a write to 150 ms.
const BORROW_LATENCY_MAX: Nanos = Nanos::from_millis(10);

/// What a connection works with while its reactor polls it.
pub trait RequestContext {
    /// The reactor's target core.
    fn core(&mut self) -> &mut TargetCore;
    /// The pool that leases are taken from.
    fn pool(&self) -> &Pool;
    /// The time of this turn.
    fn now(&self) -> Nanos;
    /// Counts a request that waits for a lease.
    fn count_buffer_wait(&self);
}

/// An event that a waiting request waits for.
#[derive(Debug)]
pub enum Event {
    /// The pool granted the lease.
    Granted(Lease),
    /// All of the host's data has arrived.
    Fetched,
    /// The target core completed the command.
    Completed(Completed),
}

/// A connection whose requests have slots. `Cx` is the transport's context.
pub trait Requests<Cx: RequestContext>: Connection {
    /// The transport's record of data that it fetches from the host.
    type Fetch: std::fmt::Debug;
    /// The transport's record of a response that it sends.
    type Response: std::fmt::Debug;

    /// The request slots.
    fn slots(&mut self) -> &mut SlotTable<Self::Fetch, Self::Response>;
    /// The account that leases are charged to.
    fn account(&self) -> Account;

    /// Begins to fetch the host's data into `lease`, and sets the slot's state.
    fn fetch(&mut self, cx: &mut Cx, slot: u16, work: Work, lease: Lease);
    /// Executes or fails a request whose data has arrived.
    fn fetched(&mut self, cx: &mut Cx, slot: u16, fetch: Self::Fetch);
    /// Whether the transport moves data between hosts and memory of devices.
    const ACCESSES_DEVICE_MEMORY: bool = false;

    /// Begins a command whose data may be in memory of its device. Returns it if it has to take the way
    /// through the arena.
    #[cold]
    fn begin_in_device(&mut self, cx: &mut Cx, slot: u16, work: Work) -> Option<Work> {
        let _ = (cx, slot);
        Some(work)
    }

    /// Sends, or queues, the response of a completed request.
    fn respond(&mut self, cx: &mut Cx, slot: u16, done: Completed);

    /// Performs the transition of a waiting request from one state to the next. Inlined, since each
    /// caller passes a known event.
    #[inline(always)]
    fn step(&mut self, cx: &mut Cx, slot: u16, event: Event) {
        // States are matched in place, since most are small and the largest is not.
        let state = self.slots().state(slot);
        match (&*state, event) {
            (SlotState::Executing | SlotState::Held, Event::Completed(mut done)) => {
                self.slots().completed(slot);
                if matches!(done.data, Some(Data::Borrow(_)))
                    && done.timing.latency() >= BORROW_LATENCY_MAX
                {
                    self.copy_borrowed(cx, &mut done.data);
                }
                self.respond(cx, slot, done);
            }
            (SlotState::AwaitingBuffer(_), Event::Granted(mut lease)) => {
                if let SlotState::AwaitingBuffer(mut work) = state.take()
                    && let Some(queue) = self.queue()
                {
                    let now = cx.now();
                    // That of a Copy has room for more.
                    lease.resize(work.bytes() as usize);
                    cx.core()
                        .record_progress(queue, &mut work, WorkProgress::GotBuffer, now);
                    self.use_buffer(cx, slot, work, lease);
                }
            }
            (SlotState::AwaitingCopyBuffer(..), Event::Granted(lease)) => {
                if let SlotState::AwaitingCopyBuffer(mut work, list) = state.take()
                    && let Some(queue) = self.queue()
                {
                    let now = cx.now();
                    cx.core()
                        .record_progress(queue, &mut work, WorkProgress::GotBuffer, now);
                    self.execute_copy(cx, slot, work, &list, lease);
                }
            }
            (SlotState::FetchingData(_), Event::Fetched) => {
                if let SlotState::FetchingData(fetch) = state.take() {
                    self.fetched(cx, slot, fetch);
                }
            }
            (state, Event::Granted(_) | Event::Fetched | Event::Completed(_)) => {
                debug_assert!(false, "slot {slot}: unexpected event in {state:?}");
            }
        }
    }

    /// Lets an admitted command wait for a rate, without a lease or with that of its in-capsule data.
    /// `may_abort`: whether it may be completed while it waits.
    #[cold]
    fn await_rate(
        &mut self,
        cx: &mut Cx,
        slot: u16,
        work: Work,
        lease: Option<Lease>,
        may_abort: bool,
    ) {
        let Some(queue) = self.queue() else { return };
        let tag = self.token().with_slot(slot).into_bits();
        let now = cx.now();
        cx.core().await_rate(queue, tag, &work, may_abort, now);
        self.slots().set(slot, SlotState::AwaitingRate(work, lease));
    }

    /// Continues, or fails, a command whose wait for a rate has ended.
    #[cold]
    fn released(&mut self, cx: &mut Cx, slot: u16, released: Released) {
        if !matches!(self.slots().state(slot), SlotState::AwaitingRate(..)) {
            return self.released_early(cx, slot);
        }
        let SlotState::AwaitingRate(work, lease) = self.slots().take_state(slot) else {
            return;
        };
        let Some(queue) = self.queue() else { return };
        if let Some(status) = released.refused {
            let response = cx.core().reject(queue, work, status);
            let done = Completed::without_data(released.tag, response);
            return self.respond(cx, slot, done);
        }
        match (lease, work.is_copy()) {
            (list, true) => self.begin_copy(cx, slot, work, list),
            (Some(lease), false) => self.execute(cx, slot, work, Some(lease)),
            (None, false) => self.begin(cx, slot, work),
        }
    }

    /// Notes that a command was released whose data is already being received.
    fn released_early(&mut self, cx: &mut Cx, slot: u16);

    /// Copies the data of a read that waited for a range of a RAM device; it stays borrowed if
    /// there is no memory for the copy.
    ///
    /// The read may have waited for a write, and that for the borrow of a host that takes no data.
    /// If this host takes none either, its borrow would delay the next write for as long again, and
    /// so would the next read after that.
    #[cold]
    #[inline(never)]
    fn copy_borrowed(&self, cx: &Cx, data: &mut Option<Data>) {
        if let Some(Data::Borrow(borrow)) = data
            && let Some(mut lease) = cx.pool().take_for(self.account(), borrow.len())
        {
            lease.copy_from_slice(borrow);
            *data = Some(Data::Lease(lease));
        }
    }

    /// Begins an admitted command: executes it, or takes a lease for it or waits for one.
    #[inline]
    fn begin(&mut self, cx: &mut Cx, slot: u16, mut work: Work) {
        if !work.needs_lease() {
            return self.execute(cx, slot, work, None);
        }
        if Self::ACCESSES_DEVICE_MEMORY && cx.core().may_use_device_memory(&work) {
            match self.begin_in_device(cx, slot, work) {
                Some(returned) => work = returned,
                None => return,
            }
        }
        let waiter = WaiterToken(self.token().with_slot(slot).into_bits());
        let (account, bytes, now) = (self.account(), work.bytes() as usize, cx.now());
        match cx
            .pool()
            .take_or_wait(account, bytes, waiter, now.as_nanos())
        {
            Some(lease) => self.use_buffer(cx, slot, work, lease),
            None => {
                cx.count_buffer_wait();
                if let Some(queue) = self.queue() {
                    cx.core()
                        .record_progress(queue, &mut work, WorkProgress::AwaitsBuffer, now);
                }
                self.slots().set(slot, SlotState::AwaitingBuffer(work));
            }
        }
    }

    /// Begins an admitted Copy, like [`begin`](Self::begin). `list`: the list of source ranges, if its
    /// capsule had it in a lease of its own. Larger leases are waited for with smaller ones, never the
    /// other way around.
    #[cold]
    fn begin_copy(&mut self, cx: &mut Cx, slot: u16, mut work: Work, list: Option<Lease>) {
        let waiter = WaiterToken(self.token().with_slot(slot).into_bits());
        let (account, now) = (self.account(), cx.now());
        let bytes = work.lease_bytes() as usize;
        let list = match list {
            Some(mut lease) if lease.capacity() >= bytes => {
                lease.resize(work.bytes() as usize);
                return self.execute(cx, slot, work, Some(lease));
            }
            list => list,
        };
        let lease = cx
            .pool()
            .take_or_wait(account, bytes, waiter, now.as_nanos());
        match (lease, list) {
            (Some(lease), Some(list)) => self.execute_copy(cx, slot, work, &list, lease),
            (Some(mut lease), None) => {
                lease.resize(work.bytes() as usize);
                self.use_buffer(cx, slot, work, lease);
            }
            (None, list) => {
                cx.count_buffer_wait();
                if let Some(queue) = self.queue() {
                    cx.core()
                        .record_progress(queue, &mut work, WorkProgress::AwaitsBuffer, now);
                }
                let state = match list {
                    Some(list) => SlotState::AwaitingCopyBuffer(work, list),
                    None => SlotState::AwaitingBuffer(work),
                };
                self.slots().set(slot, state);
            }
        }
    }

    /// Executes a Copy whose list of source ranges is in another lease.
    #[cold]
    fn execute_copy(&mut self, cx: &mut Cx, slot: u16, work: Work, list: &[u8], mut lease: Lease) {
        lease.resize(list.len());
        lease.copy_from_slice(list);
        self.execute(cx, slot, work, Some(lease));
    }

    /// Fetches the host's data into the lease, or executes a command without data from the host.
    #[inline]
    fn use_buffer(&mut self, cx: &mut Cx, slot: u16, mut work: Work, lease: Lease) {
        match work.direction() {
            Direction::FromHost => {
                if let Some(queue) = self.queue() {
                    let now = cx.now();
                    cx.core()
                        .record_progress(queue, &mut work, WorkProgress::Fetches, now);
                }
                self.fetch(cx, slot, work, lease);
            }
            Direction::ToHost | Direction::None => self.execute(cx, slot, work, Some(lease)),
        }
    }

    /// Executes the request in a slot without a state. A request that completes inline is responded
    /// to without a state in between.
    #[inline]
    fn execute(&mut self, cx: &mut Cx, slot: u16, work: Work, lease: Option<Lease>) {
        let Some(queue) = self.queue() else { return };
        let tag = self.token().with_slot(slot).into_bits();
        let now = cx.now();
        match cx.core().execute(queue, tag, work, lease, now) {
            Some(done) => self.respond(cx, slot, done),
            None => self.slots().set(slot, SlotState::Executing),
        }
    }

    /// Closes the connection's queue and cancels its requests' waits for leases.
    fn close_queue(&mut self, cx: &mut Cx, queue: Option<QueueId>) {
        if let Some(queue) = queue {
            let now = cx.now();
            cx.core().close_queue(queue, now);
        }
        let connection = self.token();
        cx.pool().cancel_waits(Some(self.account()), |waiter| {
            connection.names_same_connection(RequestToken::from_bits(waiter.0))
        });
    }
}
