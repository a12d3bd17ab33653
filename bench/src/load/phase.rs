//! A phase of a workload: its work, its end condition, its counters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nvme_host::HostError;
use nvme_spec::Status;

use crate::files::FilesError;
use crate::load::initiator::Initiator;
use crate::load::lane::Lane;
use crate::report::{histogram, nanos};
use crate::verify::{Checked, Mismatch};

/// Time without a completion after which the target counts as hanging.
pub(crate) const STALL_LIMIT: Duration = Duration::from_secs(30);

/// Polls without a completion before the thread sleeps: enough not to affect measurements, but few
/// enough to leave time for a target on the same core.
const IDLE_POLLS_MAX: u32 = 4000;

/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Maximum expected delay of a wake-up.
const WAKE_UP_MARGIN: Duration = Duration::from_micros(200);

/// The work of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseKind {
    /// Writes the whole region once, in order.
    Fill,
    /// Like the main phase, but not reported.
    WarmUp,
    /// Reads and writes according to the workload, until its limit.
    Main,
    /// Reads the whole region once, in order.
    ReadBack,
}

/// A phase with its name in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phase {
    /// The work of the phase.
    pub kind: PhaseKind,
    /// Its name.
    pub name: &'static str,
}

/// Counters of one kind of operation.
#[derive(Debug, Clone)]
pub struct OperationStats {
    /// Successful operations.
    pub operations: u64,
    /// Size of their data in bytes.
    pub bytes: u64,
    /// Their latencies in nanoseconds.
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

/// An error in a phase, which ends the run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A read returned other data than was written.
    #[error("WRONG DATA: {0}")]
    Mismatch(#[from] Mismatch),
    /// A command failed.
    #[error("{operation} of {blocks} blocks at {lba} failed: {status}")]
    Command {
        /// `read` or `write`.
        operation: &'static str,
        /// First block.
        lba: u64,
        /// Number of blocks.
        blocks: u32,
        /// Its status.
        status: Status,
    },
    /// The connection failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The server of files failed, or the connection to it.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// No completion for too long.
    #[error("the target hangs: {outstanding} commands without a completion for {limit:?}")]
    Stalled {
        /// Commands in flight.
        outstanding: usize,
        /// For this time.
        limit: Duration,
    },
    /// The target completed a command that was not in flight, which the host should have detected.
    #[error("a completion for token {0}, which is not in flight")]
    UnknownToken(u64),
}

/// Times between two completions of one queue. Completions that are received together count once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gaps {
    /// Their number.
    pub count: u64,
    /// The longest one.
    pub longest: Duration,
}

impl Gaps {
    pub(crate) fn record(&mut self, gap: Duration) {
        self.count += 1;
        self.longest = self.longest.max(gap);
    }

    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.longest = self.longest.max(other.longest);
    }
}

/// Counters of a phase.
#[derive(Debug, Default)]
pub struct PhaseStats {
    /// Times between completions, over all queues.
    pub gaps: Gaps,
    /// Reads.
    pub reads: OperationStats,
    /// Writes.
    pub writes: OperationStats,
    /// Time from the first submission to the last completion.
    pub elapsed: Duration,
    /// Total time in which the driving threads found nothing to send or receive.
    pub idle: Duration,
    /// Counters of checked blocks.
    pub checked: Checked,
    /// Requests that were due at a limited rate and could not be sent in time.
    pub unsent: u64,
    /// The first error.
    pub trouble: Option<RunError>,
}

impl PhaseStats {
    /// Adds the counters of another thread for the same phase.
    pub(crate) fn add(&mut self, other: Self) {
        self.gaps.add(other.gaps);
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

/// State that the threads of a run share.
#[derive(Debug)]
pub(crate) struct RunState {
    /// Operations completed in this phase.
    pub(crate) operations: AtomicU64,
    /// Size of their data in bytes.
    pub(crate) bytes: AtomicU64,
    /// A thread has an error: all stop issuing requests.
    pub(crate) stop: AtomicBool,
    /// Time without a completion after which requests in flight count as hanging.
    pub(crate) stall_limit: Duration,
}

impl RunState {
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

/// The condition for a thread to stop issuing requests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    /// At the end of the region.
    End,
    /// After a time.
    Time(Duration),
    /// After this number of operations on each lane.
    Operations(u64),
}

/// Runs a phase on all lanes of a thread, and waits for the requests in flight at its end.
pub(crate) fn run_phase<I: Initiator>(
    lanes: &mut [Lane<I>],
    kind: PhaseKind,
    until: Until,
    shared: &RunState,
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
        let turned = drive_once(lanes, quota, now, &mut stats);
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
                    .get_or_insert(RunError::Stalled { outstanding, limit });
                shared.stop.store(true, Ordering::Relaxed);
                break;
            }
        }
    }
    stats.elapsed = start.elapsed();
    if let Until::Time(limit) = until {
        stats.unsent = lanes
            .iter()
            .map(|lane| lane.missed_requests(start + limit))
            .sum();
    }
    stats
}

/// Sleeps if the next request is due much later, and wakes before that.
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

/// Issues, sends and receives once on all lanes. Returns the number of completed requests, or a
/// final error.
fn drive_once<I: Initiator>(
    lanes: &mut [Lane<I>],
    quota: u64,
    now: Instant,
    stats: &mut PhaseStats,
) -> Result<usize, RunError> {
    let mut ended = 0;
    for lane in lanes {
        if stats.trouble.is_none() {
            lane.issue(quota, now)?;
        }
        ended += lane.collect(stats)?;
    }
    Ok(ended)
}
