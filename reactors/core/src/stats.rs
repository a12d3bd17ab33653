//! Statistics of a reactor: written by its thread with plain stores, read by any other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_utils::CachePadded;

use crate::time::Nanos;

/// Numbers of activities, which fit into one word with a time: pollers by slot, and these.
pub(crate) const SLOT_NONE: u16 = 0xFFFF;
pub(crate) const SLOT_INBOX: u16 = 0xFFFE;
pub(crate) const SLOT_TIMERS: u16 = 0xFFFD;
/// The poller was removed; its name is stored separately.
const SLOT_RETIRED: u16 = 0xFFFC;

/// Set in [`HotCounters::idle`] while the thread is blocked.
const ASLEEP: u64 = 1 << 63;

/// The load average's time constant.
const LOAD_WINDOW: Nanos = Nanos::from_millis(100);
/// Update interval of the load average.
const LOAD_STEP: Nanos = Nanos::from_millis(10);

/// A time and a small number in one word, so that a reader never sees parts of two: 48 bits of
/// 1.024 µs units (enough for 9 years of uptime) and 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimeMark(u64);

impl TimeMark {
    const NONE: TimeMark = TimeMark(SLOT_NONE as u64);

    fn new(time: Nanos, number: u16) -> TimeMark {
        TimeMark((time.0 >> 10) << 16 | u64::from(number))
    }

    fn time(self) -> Nanos {
        Nanos((self.0 >> 16) << 10)
    }

    fn number(self) -> u16 {
        (self.0 & 0xFFFF) as u16
    }
}

/// A poller's name and a duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDuration {
    /// The poller, or `inbox` or `timers` for control messages and the reactor's own timers.
    pub name: Arc<str>,
    /// The duration, accurate to about a microsecond.
    pub lasted: Nanos,
}

/// The poller that has blocked a reactor for too long and still does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckPoller {
    /// The poller, or `inbox` or `timers` for control messages and the reactor's own timers.
    pub name: Arc<str>,
    /// The duration so far.
    pub lasted: Nanos,
}

#[derive(Debug)]
struct Names {
    inbox: Arc<str>,
    timers: Arc<str>,
    slots: Vec<Option<Arc<str>>>,
    retired_longest: Option<Arc<str>>,
    retired_stall: Option<Arc<str>>,
}

/// Counters of one reactor. Every getter may be called from any thread at any time.
#[derive(Debug)]
pub struct ReactorStats {
    hot: CachePadded<HotCounters>,
    /// Locked when pollers are added or removed and by readers of names; never in a turn.
    names: Mutex<Names>,
}

#[derive(Debug)]
struct HotCounters {
    running: AtomicU64,
    turns: AtomicU64,
    busy_ns: AtomicU64,
    /// Awake: the idle time so far. Asleep: [`ASLEEP`] and the value to subtract from the current
    /// time to get it. One word, so that a reader's idle time never jumps.
    idle: AtomicU64,
    load: AtomicU64,
    sleeps: AtomicU64,
    wakeups: AtomicU64,
    stalls: AtomicU64,
    longest: AtomicU64,
    last_stall: AtomicU64,
}

/// All statistics of a reactor at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReactorSnapshot {
    /// Turns taken.
    pub turns: u64,
    /// Time spent in turns that made progress.
    pub busy: Nanos,
    /// Time spent in turns without progress, pausing and sleeping, including the current sleep.
    pub idle: Nanos,
    /// Fraction of busy time over about the last 100 ms, in thousandths.
    pub busy_permille: u32,
    /// Number of times that the thread blocked in the kernel.
    pub sleeps: u64,
    /// Sleeps ended by a message or a descriptor; the rest ended by a deadline.
    pub wakeups: u64,
    /// Polls, flushes, messages and timers that took longer than the configured threshold.
    pub stalls: u64,
    /// The longest poll so far.
    pub longest_poll: Option<NamedDuration>,
    /// The latest stall.
    pub last_stall: Option<NamedDuration>,
    /// Whether the thread is blocked in the kernel.
    pub asleep: bool,
}

fn read(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

/// The reactor's thread is the only writer, so no read-modify-write is needed.
fn bump(cell: &AtomicU64) {
    cell.store(read(cell) + 1, Ordering::Relaxed);
}

impl ReactorStats {
    pub(crate) fn new() -> ReactorStats {
        let zero = || AtomicU64::new(0);
        let none = || AtomicU64::new(TimeMark::NONE.0);
        ReactorStats {
            hot: CachePadded::new(HotCounters {
                running: none(),
                turns: zero(),
                busy_ns: zero(),
                idle: zero(),
                load: zero(),
                sleeps: zero(),
                wakeups: zero(),
                stalls: zero(),
                longest: none(),
                last_stall: none(),
            }),
            names: Mutex::new(Names {
                inbox: Arc::from("inbox"),
                timers: Arc::from("timers"),
                slots: Vec::new(),
                retired_longest: None,
                retired_stall: None,
            }),
        }
    }

    /// Turns taken.
    #[must_use]
    pub fn turns(&self) -> u64 {
        read(&self.hot.turns)
    }

    /// Nanoseconds spent in turns that made progress.
    #[must_use]
    pub fn busy_ns(&self) -> u64 {
        read(&self.hot.busy_ns)
    }

    /// Nanoseconds until `now` (of the reactor's clock) spent in turns without progress, pausing
    /// and sleeping, including the current sleep.
    #[must_use]
    pub fn idle_ns(&self, now: Nanos) -> u64 {
        let word = read(&self.hot.idle);
        if word & ASLEEP == 0 {
            word
        } else {
            now.0.saturating_sub(word & !ASLEEP)
        }
    }

    /// Number of times that the thread blocked in the kernel.
    #[must_use]
    pub fn sleeps(&self) -> u64 {
        read(&self.hot.sleeps)
    }

    /// Sleeps ended by a message or a descriptor; the rest ended by a deadline.
    #[must_use]
    pub fn wakeups(&self) -> u64 {
        read(&self.hot.wakeups)
    }

    /// Polls, flushes, messages and timers that took longer than the configured threshold.
    #[must_use]
    pub fn stalls(&self) -> u64 {
        read(&self.hot.stalls)
    }

    /// Whether the thread is blocked in the kernel.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        read(&self.hot.idle) & ASLEEP != 0
    }

    /// Fraction of busy time over about the last 100 ms before `now` (of the reactor's clock), in
    /// thousandths. An exponential average with that time constant; it decays during a sleep
    /// without being written.
    #[must_use]
    pub fn busy_permille(&self, now: Nanos) -> u32 {
        let load = TimeMark(read(&self.hot.load));
        let permille = f64::from(load.number());
        // Only a sleep is certainly idle; a long turn in progress is counted when it ends.
        let rested = if self.is_asleep() {
            now - load.time()
        } else {
            Nanos::ZERO
        };
        (permille * decay(rested)).round() as u32
    }

    /// The longest poll so far.
    #[must_use]
    pub fn longest_poll(&self) -> Option<NamedDuration> {
        self.named(&self.hot.longest, |names| names.retired_longest.clone())
    }

    /// The latest poll that took longer than the configured threshold.
    #[must_use]
    pub fn last_stall(&self) -> Option<NamedDuration> {
        self.named(&self.hot.last_stall, |names| names.retired_stall.clone())
    }

    /// The current activity of the reactor if it has lasted for at least `threshold` before `now`
    /// (of the reactor's clock): for a watchdog on another thread.
    #[must_use]
    pub fn stuck_in(&self, now: Nanos, threshold: Nanos) -> Option<StuckPoller> {
        let running = TimeMark(self.hot.running.load(Ordering::Acquire));
        let lasted = now - running.time();
        if running == TimeMark::NONE || lasted < threshold {
            return None;
        }
        let name = self.name_of(running.number(), &self.lock_names(), |_| None)?;
        Some(StuckPoller { name, lasted })
    }

    /// The name of the poller with that number, or `inbox` or `timers` for control messages and the
    /// reactor's own timers; `None` after the poller was removed.
    #[must_use]
    pub fn poller_name(&self, poller: u16) -> Option<Arc<str>> {
        self.name(poller)
    }

    /// All statistics, as of `now` of the reactor's clock.
    #[must_use]
    pub fn snapshot(&self, now: Nanos) -> ReactorSnapshot {
        ReactorSnapshot {
            turns: self.turns(),
            busy: Nanos(self.busy_ns()),
            idle: Nanos(self.idle_ns(now)),
            busy_permille: self.busy_permille(now),
            sleeps: self.sleeps(),
            wakeups: self.wakeups(),
            stalls: self.stalls(),
            longest_poll: self.longest_poll(),
            last_stall: self.last_stall(),
            asleep: self.is_asleep(),
        }
    }

    fn lock_names(&self) -> std::sync::MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn named(
        &self,
        cell: &AtomicU64,
        retired: impl FnOnce(&Names) -> Option<Arc<str>>,
    ) -> Option<NamedDuration> {
        let names = self.lock_names();
        let mark = TimeMark(cell.load(Ordering::Acquire));
        if mark == TimeMark::NONE {
            return None;
        }
        let name = self.name_of(mark.number(), &names, retired)?;
        Some(NamedDuration {
            name,
            lasted: mark.time(),
        })
    }

    fn name_of(
        &self,
        slot: u16,
        names: &Names,
        retired: impl FnOnce(&Names) -> Option<Arc<str>>,
    ) -> Option<Arc<str>> {
        match slot {
            SLOT_NONE => None,
            SLOT_INBOX => Some(Arc::clone(&names.inbox)),
            SLOT_TIMERS => Some(Arc::clone(&names.timers)),
            SLOT_RETIRED => retired(names),
            slot => names.slots.get(usize::from(slot)).cloned().flatten(),
        }
    }
}

/// Methods for the reactor itself.
impl ReactorStats {
    pub(crate) fn set_name(&self, slot: u16, name: &str) {
        let mut names = self.lock_names();
        let index = usize::from(slot);
        if names.slots.len() <= index {
            names.slots.resize(index + 1, None);
        }
        names.slots[index] = Some(Arc::from(name));
    }

    pub(crate) fn name(&self, slot: u16) -> Option<Arc<str>> {
        self.name_of(slot, &self.lock_names(), |_| None)
    }

    /// Frees a slot for reuse; records that refer to it keep the name.
    pub(crate) fn retire_name(&self, slot: u16) {
        let mut names = self.lock_names();
        let name = names
            .slots
            .get_mut(usize::from(slot))
            .and_then(Option::take);
        if let Some(mark) = retire(&self.hot.longest, slot) {
            names.retired_longest.clone_from(&name);
            self.hot.longest.store(mark.0, Ordering::Release);
        }
        if let Some(mark) = retire(&self.hot.last_stall, slot) {
            names.retired_stall = name;
            self.hot.last_stall.store(mark.0, Ordering::Release);
        }
    }

    #[inline]
    pub(crate) fn enter(&self, slot: u16, now: Nanos) {
        self.hot
            .running
            .store(TimeMark::new(now, slot).0, Ordering::Release);
    }

    #[inline]
    pub(crate) fn leave(&self) {
        self.hot.running.store(TimeMark::NONE.0, Ordering::Release);
    }

    pub(crate) fn record_longest(&self, slot: u16, lasted: Nanos) {
        self.hot
            .longest
            .store(TimeMark::new(lasted, slot).0, Ordering::Release);
    }

    pub(crate) fn record_stall(&self, slot: u16, lasted: Nanos) {
        bump(&self.hot.stalls);
        self.hot
            .last_stall
            .store(TimeMark::new(lasted, slot).0, Ordering::Release);
    }

    pub(crate) fn record_wakeup(&self) {
        bump(&self.hot.wakeups);
    }
}

fn retire(cell: &AtomicU64, slot: u16) -> Option<TimeMark> {
    let mark = TimeMark(read(cell));
    (mark.number() == slot).then(|| TimeMark::new(mark.time(), SLOT_RETIRED))
}

/// The fraction of an average that remains after `span` of idle time.
fn decay(span: Nanos) -> f64 {
    (-(span.0 as f64) / LOAD_WINDOW.0 as f64).exp()
}

/// The sums of busy and idle time, which the reactor accumulates and publishes to its statistics.
#[derive(Debug)]
pub(crate) struct TimeAccounting {
    counted_until: Nanos,
    busy: Nanos,
    idle: Nanos,
    step_busy: Nanos,
    step: Nanos,
    permille: f64,
}

impl TimeAccounting {
    pub(crate) fn new(now: Nanos) -> TimeAccounting {
        TimeAccounting {
            counted_until: now,
            busy: Nanos::ZERO,
            idle: Nanos::ZERO,
            step_busy: Nanos::ZERO,
            step: Nanos::ZERO,
            permille: 0.0,
        }
    }

    /// Adds a turn from `start` to `end`; the time between the last turn and `start` was idle.
    pub(crate) fn add_turn(&mut self, start: Nanos, end: Nanos, busy: bool, stats: &ReactorStats) {
        self.add_idle_until(start);
        let turn = end - start;
        self.counted_until = end;
        self.step += turn;
        if busy {
            self.busy += turn;
            self.step_busy += turn;
        } else {
            self.idle += turn;
        }
        let hot = &stats.hot;
        bump(&hot.turns);
        hot.busy_ns.store(self.busy.0, Ordering::Relaxed);
        hot.idle.store(self.idle.0, Ordering::Relaxed);
        if self.step >= LOAD_STEP {
            self.update_load(stats);
        }
    }

    /// The thread blocks at `now`: from here on readers compute idle time themselves.
    pub(crate) fn sleep(&mut self, now: Nanos, stats: &ReactorStats) {
        self.add_idle_until(now);
        self.update_load(stats);
        bump(&stats.hot.sleeps);
        stats
            .hot
            .idle
            .store(ASLEEP | (now - self.idle).0, Ordering::Relaxed);
    }

    /// The thread has woken up.
    pub(crate) fn wake(&mut self, now: Nanos, stats: &ReactorStats) {
        self.add_idle_until(now);
        stats.hot.idle.store(self.idle.0, Ordering::Relaxed);
    }

    fn add_idle_until(&mut self, now: Nanos) {
        let rest = now - self.counted_until;
        self.counted_until = self.counted_until.max(now);
        self.idle += rest;
        self.step += rest;
    }

    /// Updates the load average, also before a sleep, during which it is not updated.
    fn update_load(&mut self, stats: &ReactorStats) {
        if self.step > Nanos::ZERO {
            let share = 1_000.0 * self.step_busy.0 as f64 / self.step.0 as f64;
            self.permille = share + (self.permille - share) * decay(self.step);
            self.step = Nanos::ZERO;
            self.step_busy = Nanos::ZERO;
        }
        let load = TimeMark::new(self.counted_until, self.permille.round() as u16);
        stats.hot.load.store(load.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
