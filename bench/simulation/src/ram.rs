//! A RAM disk: the production device behind a queue that is slow, fails and defers requests.
//!
//! It is the only simulated disk that supports zero-copy reads, inline writes and direct data
//! placement. Its content is lost when the device is closed.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use block::{
    Completion, CompletionBatch, Device, DeviceError, DeviceIdentity, DeviceQueue, Drain, Geometry,
    Health, MemoryDevice, MemoryError, MemoryOptions, OpenError, QueueOptions, Refusal, Request,
};
use hugemem::{Borrow, Data, PagePolicy};
use reactors::Nanos;

use crate::disk::{DiskBehaviour, DiskFigures, DiskShape, draw_error};
use crate::random::Random;
use crate::time::SharedTime;

/// Share of inline accesses that the device declines without need, per thousand.
const DECLINED_INLINE_PERMILLE: u32 = 200;
/// Interval at which a reactor polls while a request waits, in nanoseconds.
const POLL_NANOS: u64 = 10_000;
/// Interval at which a request that waits for borrowed memory is checked.
const WAITING_POLL: Nanos = Nanos::from_millis(5);
/// More consecutive polls than the readers of 32 units ever yield to a writer: 4095 for each unit.
const FRUITLESS_POLLS_MAX: u64 = 140_000;
/// Share of requests that reach the memory when they are submitted, per thousand.
const DIRECT_PERMILLE: u32 = 500;

struct State {
    shape: DiskShape,
    behaviour: DiskBehaviour,
    random: Random,
    /// The next open fails.
    next_open_fails: bool,
    /// The memory that was opened last, and the identity of its content.
    opened: (Weak<MemoryDevice>, u128),
    /// What the next open continues with, after a hand-over to another process.
    passed: Option<(Arc<MemoryDevice>, u128)>,
    held_until: Nanos,
    /// When each delayed request reaches the memory, with its number.
    dues: BTreeSet<(Nanos, u64)>,
    next_number: u64,
    in_flight: usize,
    figures: DiskFigures,
}

/// A RAM disk. It outlives the appliances that use it, but its content does not.
#[derive(Clone)]
pub struct Ram {
    state: Arc<Mutex<State>>,
    time: SharedTime,
}

/// An open RAM disk.
pub struct OpenRam {
    /// Its memory.
    pub memory: Arc<MemoryDevice>,
    /// The device for the appliance.
    pub device: Arc<dyn Device>,
    /// The identity of its content.
    pub content: u128,
}

impl Ram {
    /// Creates a disk of this shape.
    #[must_use]
    pub fn new(
        shape: DiskShape,
        behaviour: DiskBehaviour,
        random: Random,
        time: SharedTime,
    ) -> Self {
        let state = State {
            shape,
            behaviour,
            random,
            next_open_fails: false,
            opened: (Weak::new(), 0),
            passed: None,
            held_until: Nanos::ZERO,
            dues: BTreeSet::new(),
            next_number: 0,
            in_flight: 0,
            figures: DiskFigures::default(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            time,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens it with zeroed memory, or with that which was passed on.
    ///
    /// # Errors
    /// There is no memory.
    pub fn open(
        &self,
        name: &str,
        size_bytes: u64,
        read_only: bool,
    ) -> Result<OpenRam, MemoryError> {
        let passed = self.state().passed.take();
        if let Some((memory, content)) = passed {
            return Ok(self.device(memory, content));
        }
        let memory = Arc::new(MemoryDevice::new(MemoryOptions {
            name: name.to_owned(),
            uuid: [0; 16],
            size_bytes,
            block_size: self.state().shape.block_size,
            pages: PagePolicy::Ordinary,
            read_only,
        })?);
        let content = {
            let mut state = self.state();
            let content = u128::from(state.random.bits()) << 64 | u128::from(state.random.bits());
            state.opened = (Arc::downgrade(&memory), content);
            content
        };
        Ok(self.device(memory, content))
    }

    fn device(&self, memory: Arc<MemoryDevice>, content: u128) -> OpenRam {
        let device = RamDevice {
            ram: self.clone(),
            memory: Arc::clone(&memory),
        };
        OpenRam {
            memory,
            device: Arc::new(device),
            content,
        }
    }

    /// Lets the next open continue with the open memory, if `passes` is true.
    pub fn pass_on(&self, passes: bool) {
        let mut state = self.state();
        let (memory, content) = &state.opened;
        let memory = memory.upgrade().filter(|_| passes);
        state.passed = memory.map(|memory| (memory, *content));
    }

    /// Changes its behaviour.
    pub fn set_behaviour(&self, behaviour: DiskBehaviour) {
        self.state().behaviour = behaviour;
    }

    /// Delays all completions until `until`.
    pub fn hold(&self, until: Nanos) {
        self.state().held_until = until;
    }

    /// Makes the next open fail for lack of memory.
    pub fn fail_next_open(&self) {
        self.state().next_open_fails = true;
    }

    /// Whether this open fails for lack of memory; only once.
    #[must_use]
    pub fn take_open_failure(&self) -> bool {
        std::mem::take(&mut self.state().next_open_fails)
    }

    /// Lets the next open succeed.
    pub fn reinsert(&self) {
        self.state().next_open_fails = false;
    }

    /// Requests in its queues.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.state().in_flight
    }

    /// The next time at which a request continues without an action of a reactor.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let state = self.state();
        let due = state.dues.first().map(|(due, _)| *due);
        let now = self.time.now();
        let held = (state.held_until > now).then_some(state.held_until);
        let waits = state.in_flight > state.dues.len();
        let waits = waits.then(|| (now + WAITING_POLL).max(state.held_until));
        let due = due.map(|due| due.max(state.held_until)).or(held);
        due.into_iter().chain(waits).min()
    }

    /// Its counters.
    #[must_use]
    pub fn figures(&self) -> DiskFigures {
        self.state().figures
    }
}

/// An open RAM disk.
struct RamDevice {
    ram: Ram,
    memory: Arc<MemoryDevice>,
}

impl Device for RamDevice {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn identity(&self) -> &DeviceIdentity {
        self.memory.identity()
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        let depth = options.depth;
        Ok(Box::new(RamQueue {
            ram: self.ram.clone(),
            inner: self.memory.open_queue(options)?,
            depth,
            delayed: Vec::new(),
            failing: BTreeSet::new(),
            ended: VecDeque::new(),
            is_closing: false,
            polled_at: Nanos::ZERO,
            fruitless: 0,
        }))
    }
}

/// A request that has not reached the memory yet.
struct Delayed {
    number: u64,
    due: Nanos,
    request: Request,
}

struct RamQueue {
    ram: Ram,
    inner: Box<dyn DeviceQueue>,
    depth: usize,
    delayed: Vec<Delayed>,
    /// Tags of requests that take effect but fail.
    failing: BTreeSet<u64>,
    /// Completions that do not come from the memory device.
    ended: VecDeque<Completion>,
    is_closing: bool,
    polled_at: Nanos,
    /// Polls since the memory device last took or completed a request.
    fruitless: u64,
}

impl RamQueue {
    /// Polls the memory device as often as a reactor does in the elapsed time. Readers yield to a
    /// writer for a limited number of polls.
    fn poll_inner(&mut self, now: Nanos, completions: &mut CompletionBatch) {
        let passed = now.saturating_sub(self.polled_at).as_nanos() / POLL_NANOS;
        self.polled_at = now;
        let mut polls = passed.max(1);
        while polls > 0 && self.inner.poll(completions) == 0 && self.inner.in_flight() > 0 {
            self.fruitless += 1;
            polls -= 1;
            if self.fruitless > FRUITLESS_POLLS_MAX {
                return;
            }
        }
        self.fruitless = 0;
    }

    /// Whether an inline access is attempted now.
    fn attempts_inline(&self) -> bool {
        let now = self.ram.time.now();
        let mut state = self.ram.state();
        let is_free = now >= state.held_until && !self.is_closing;
        is_free && !state.random.permille(DECLINED_INLINE_PERMILLE)
    }

    /// Passes a request to the memory device, or fails it. Returns the request if there is no room
    /// yet.
    fn pass_on(&mut self, request: Request) -> Option<Request> {
        let mut state = self.ram.state();
        let share = state.behaviour.error_permille;
        if state.random.permille(share) {
            state.figures.errors += 1;
            // Half of the failing requests have no effect.
            if state.random.coin() {
                let error = draw_error(&mut state.random, request.operation);
                self.ended.push_back(failed(request, error));
                return None;
            }
            self.failing.insert(request.tag);
        }
        drop(state);
        self.fruitless = 0;
        match self.inner.submit(request) {
            Ok(()) => None,
            Err(Refusal::Later(request)) => Some(request),
            Err(Refusal::Never(request, error)) => {
                self.ended.push_back(failed(request, error));
                None
            }
        }
    }

    /// Passes on requests that are due, in the order of their times.
    fn pass_due(&mut self, now: Nanos) {
        self.delayed.sort_by_key(|it| (it.due, it.number));
        let due = self.delayed.iter().take_while(|it| it.due <= now).count();
        let due: Vec<Delayed> = self.delayed.drain(..due).collect();
        for mut delayed in due {
            let key = (delayed.due, delayed.number);
            match self.pass_on(delayed.request) {
                None => {
                    self.ram.state().dues.remove(&key);
                }
                Some(request) => {
                    delayed.request = request;
                    self.delayed.push(delayed);
                }
            }
        }
    }
}

fn failed(request: Request, error: DeviceError) -> Completion {
    Completion {
        tag: request.tag,
        result: Err(error),
        data: request.data.map(Data::Lease),
    }
}

impl DeviceQueue for RamQueue {
    fn can_borrow_read(&self, lba: u64, blocks: u32) -> bool {
        self.inner.can_borrow_read(lba, blocks)
    }

    fn borrow_read(&mut self, lba: u64, blocks: u32) -> Option<Borrow> {
        let at_once = self.attempts_inline();
        at_once
            .then(|| self.inner.borrow_read(lba, blocks))
            .flatten()
    }

    fn write_inline(&mut self, lba: u64, data: &[u8]) -> bool {
        self.attempts_inline() && self.inner.write_inline(lba, data)
    }

    fn supports_direct_placement(&self) -> bool {
        self.inner.supports_direct_placement()
    }

    fn place_directly(&mut self, lba: u64, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        self.attempts_inline() && self.inner.place_directly(lba, bytes, fill)
    }

    fn count_placed_write(&mut self) {
        self.inner.count_placed_write();
    }

    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        if self.is_closing {
            return Err(Refusal::Never(request, DeviceError::Removed));
        }
        let now = self.ram.time.now();
        let mut state = self.ram.state();
        let later = state.behaviour.later_permille;
        // Requests that wait in the memory device do not count towards the depth.
        let own = self.delayed.len() + self.ended.len();
        if own >= self.depth || state.random.permille(later) {
            state.figures.later += 1;
            return Err(Refusal::Later(request));
        }
        state.in_flight += 1;
        let number = state.next_number;
        state.next_number += 1;
        let is_direct = now >= state.held_until && state.random.permille(DIRECT_PERMILLE);
        let latency = match is_direct {
            true => Nanos::ZERO,
            false => {
                let behaviour = state.behaviour;
                let State {
                    random, figures, ..
                } = &mut *state;
                behaviour.draw_latency(random, figures)
            }
        };
        let due = now + latency;
        state.dues.insert((due, number));
        drop(state);
        let rest = match is_direct {
            true => self.pass_on(request),
            false => Some(request),
        };
        match rest {
            Some(request) => self.delayed.push(Delayed {
                number,
                due,
                request,
            }),
            None => {
                self.ram.state().dues.remove(&(due, number));
            }
        }
        Ok(())
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        let now = self.ram.time.now();
        if now < self.ram.state().held_until {
            return 0;
        }
        self.pass_due(now);
        let before = completions.len();
        self.poll_inner(now, completions);
        let mut state = self.ram.state();
        for completion in &mut completions[before..] {
            if self.failing.remove(&completion.tag) && completion.result.is_ok() {
                // The operation is unknown here. This error is possible for every operation.
                completion.result = Err(DeviceError::Internal);
                let data = completion.data.take();
                completion.data = data.filter(|data| matches!(data, Data::Lease(_)));
            }
        }
        while !completions.is_full()
            && let Some(ended) = self.ended.pop_front()
        {
            completions.push(ended);
        }
        let count = completions.len() - before;
        state.in_flight -= count;
        count
    }

    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        let Self {
            delayed,
            ended,
            ram,
            ..
        } = self;
        let unwanted = delayed.extract_if(.., |it| is_unwanted(it.request.tag));
        for delayed in unwanted {
            ram.state().dues.remove(&(delayed.due, delayed.number));
            ended.push_back(failed(delayed.request, DeviceError::Aborted));
        }
        self.inner.give_up(is_unwanted);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.delayed.len() + self.ended.len()
    }

    fn has_ready(&self) -> bool {
        !self.delayed.is_empty() || !self.ended.is_empty() || self.inner.has_ready()
    }

    fn device_grew(&mut self) {
        self.inner.device_grew();
    }

    fn drain(&mut self) -> Drain {
        self.is_closing = true;
        if self.delayed.is_empty() {
            // Outstanding requests are counted below.
            let _ = self.inner.drain();
        }
        match self.in_flight() {
            0 => Drain::Done,
            outstanding => Drain::Outstanding(outstanding),
        }
    }
}

impl Drop for RamQueue {
    fn drop(&mut self) {
        let in_flight = self.in_flight();
        let mut state = self.ram.state();
        state.in_flight -= in_flight;
        for delayed in &self.delayed {
            state.dues.remove(&(delayed.due, delayed.number));
        }
    }
}
