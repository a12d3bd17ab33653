//! A phase of a workload: what it does, when it ends, what it counted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nvme_host::HostError;
use nvme_spec::Status;

use crate::ceiling::{histogram, nanos};
use crate::load::initiator::Initiator;
use crate::load::lane::Lane;
use crate::verify::{Checked, Mismatch};

/// No completion for so long means that the target hangs.
pub(crate) const STALL_LIMIT: Duration = Duration::from_secs(30);

/// Polls without a completion before the thread sleeps until something comes: long enough never to
/// matter to what is measured, short enough that a target on the same core is not starved for long.
const IDLE_POLLS_MAX: u32 = 4000;

/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// A sleeping thread may be back this much late.
const WAKE_UP_MARGIN: Duration = Duration::from_micros(200);

/// What a phase does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseKind {
    /// Writes the whole region once, in order.
    Fill,
    /// As the main phase, and not reported.
    WarmUp,
    /// Reads and writes as the workload says, until its limit.
    Main,
    /// Reads the whole region once, in order.
    ReadBack,
}

/// A phase with its name for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phase {
    /// What it does.
    pub kind: PhaseKind,
    /// What it is called.
    pub name: &'static str,
}

/// Operations of one kind.
#[derive(Debug, Clone)]
pub struct OperationStats {
    /// Operations that ended well.
    pub operations: u64,
    /// Their data, bytes.
    pub bytes: u64,
    /// Their latencies, nanoseconds.
    pub latencies: Histogram<u64>,
}

impl Default for OperationStats {
    fn default() -> Self {
        Self {
            operations: 0,
            bytes: 0,
            latencies: histogram(),
        }
    }
}

impl OperationStats {
    pub(crate) fn record(&mut self, bytes: u64, latency: Duration) {
        self.operations += 1;
        self.bytes += bytes;
        self.latencies.saturating_record(nanos(latency));
    }

    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        // Both have the same bounds.
        let _ = self.latencies.add(&other.latencies);
    }
}

/// What went wrong in a phase; it ends the run.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// A read returned something else than what was written.
    #[error("WRONG DATA: {0}")]
    Mismatch(#[from] Mismatch),
    /// A command failed.
    #[error("{operation} of {blocks} blocks at {lba} failed: {status}")]
    Command {
        /// `read` or `write`.
        operation: &'static str,
        /// First block.
        lba: u64,
        /// Blocks.
        blocks: u32,
        /// Its status.
        status: Status,
    },
    /// The connection failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Nothing came back for very long.
    #[error("the target hangs: {outstanding} commands without an answer for {limit:?}")]
    Stalled {
        /// Commands in flight.
        outstanding: usize,
        /// For how long.
        limit: Duration,
    },
    /// The target completed a command that was not in flight; the host should have seen that.
    #[error("a completion for token {0}, which is not in flight")]
    UnknownToken(u64),
}

/// What a phase counted.
#[derive(Debug, Default)]
pub struct PhaseStats {
    /// Reads.
    pub reads: OperationStats,
    /// Writes.
    pub writes: OperationStats,
    /// From the first submission to the last completion.
    pub elapsed: Duration,
    /// Time in which the driving threads, all together, found nothing to send or to receive.
    pub idle: Duration,
    /// Blocks checked.
    pub checked: Checked,
    /// Requests that a limited rate made due, and that the target left no room to send in time.
    pub unsent: u64,
    /// The first thing that went wrong.
    pub trouble: Option<Trouble>,
}

impl PhaseStats {
    /// Adds what another thread counted in the same phase.
    pub(crate) fn add(&mut self, other: Self) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        self.elapsed = self.elapsed.max(other.elapsed);
        self.idle += other.idle;
        self.unsent += other.unsent;
        self.checked.right += other.checked.right;
        self.checked.unknown += other.checked.unknown;
        if self.trouble.is_none() {
            self.trouble = other.trouble;
        }
    }
}

/// What the threads of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Operations ended in this phase.
    pub(crate) operations: AtomicU64,
    /// Their bytes.
    pub(crate) bytes: AtomicU64,
    /// Someone is in trouble: stop issuing.
    pub(crate) stop: AtomicBool,
    /// How long nothing may come back while something is in flight.
    pub(crate) stall_limit: Duration,
}

impl Shared {
    pub(crate) fn new(stall_limit: Duration) -> Self {
        let (operations, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            operations,
            bytes,
            stop: AtomicBool::new(false),
            stall_limit,
        }
    }
}

/// When a thread stops issuing.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    /// At the end of the region.
    End,
    /// After a time.
    Time(Duration),
    /// Operations on each lane.
    Operations(u64),
}

/// Drives all lanes of a thread through a phase; what they have in flight is awaited in the end.
pub(crate) fn run_phase<I: Initiator>(
    lanes: &mut [Lane<I>],
    kind: PhaseKind,
    until: Until,
    shared: &Shared,
) -> PhaseStats {
    let mut stats = PhaseStats::default();
    let start = Instant::now();
    for lane in lanes.iter_mut() {
        lane.begin(kind, start);
    }
    let (mut now, mut last_completion) = (start, start);
    let mut idle_polls = 0;
    loop {
        let halted = shared.stop.load(Ordering::Relaxed);
        let quota = match until {
            _ if halted => 0,
            Until::Time(limit) if now - start >= limit => 0,
            Until::Operations(operations) => operations,
            Until::End | Until::Time(_) => u64::MAX,
        };
        let (before, bytes_before) = totals(&stats);
        let begun = now;
        let turned = turn(lanes, quota, now, &mut stats);
        now = Instant::now();
        let moved = lanes
            .iter_mut()
            .fold(false, |moved, lane| lane.take_moved() | moved);
        if !moved {
            stats.idle += now - begun;
        }
        let (after, bytes_after) = totals(&stats);
        let ended = match turned {
            Ok(ended) => ended,
            Err(trouble) => {
                shared.stop.store(true, Ordering::Relaxed);
                stats.trouble.get_or_insert(trouble);
                break;
            }
        };
        if stats.trouble.is_some() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        if ended > 0 {
            shared
                .operations
                .fetch_add(after - before, Ordering::Relaxed);
            shared
                .bytes
                .fetch_add(bytes_after - bytes_before, Ordering::Relaxed);
            (last_completion, idle_polls) = (now, 0);
            continue;
        }
        let outstanding: usize = lanes.iter().map(Lane::in_flight).sum();
        let due = lanes.iter().filter_map(|lane| lane.next_due(quota)).min();
        match due {
            None if outstanding == 0 => break,
            Some(due) if outstanding == 0 => {
                last_completion = now;
                sleep_until_nearly(due, now);
                continue;
            }
            _ => {}
        }
        idle_polls += 1;
        if idle_polls >= IDLE_POLLS_MAX {
            idle_polls = 0;
            if let Some(lane) = lanes.iter_mut().find(|lane| lane.in_flight() > 0) {
                let until = due.map_or(SLEEP_MAX, |due| due.saturating_duration_since(now));
                lane.wait(until.min(SLEEP_MAX));
            }
            let woken = Instant::now();
            stats.idle += woken - now;
            now = woken;
            let limit = shared.stall_limit;
            if last_completion.elapsed() >= limit {
                stats
                    .trouble
                    .get_or_insert(Trouble::Stalled { outstanding, limit });
                shared.stop.store(true, Ordering::Relaxed);
                break;
            }
        }
    }
    stats.elapsed = start.elapsed();
    if let Until::Time(limit) = until {
        stats.unsent = lanes.iter().map(|lane| lane.overdue(start + limit)).sum();
    }
    stats
}

/// Sleeps where the next request is far off, and is back before it is due.
fn sleep_until_nearly(due: Instant, now: Instant) {
    let ahead = due.saturating_duration_since(now);
    if ahead > WAKE_UP_MARGIN {
        std::thread::sleep((ahead - WAKE_UP_MARGIN).min(SLEEP_MAX));
    }
}

fn totals(stats: &PhaseStats) -> (u64, u64) {
    let operations = stats.reads.operations + stats.writes.operations;
    (operations, stats.reads.bytes + stats.writes.bytes)
}

/// One turn over all lanes: issue, send, receive. Gives how many requests ended, or a trouble that
/// is final.
fn turn<I: Initiator>(
    lanes: &mut [Lane<I>],
    quota: u64,
    now: Instant,
    stats: &mut PhaseStats,
) -> Result<usize, Trouble> {
    let mut ended = 0;
    for lane in lanes {
        if stats.trouble.is_none() {
            lane.issue(quota, now)?;
        }
        ended += lane.collect(stats)?;
    }
    Ok(ended)
}
