//! A complete run: connects, checks the workload against the namespace, runs the phases on threads,
//! and collects the results.
//!
//! The calling thread drives no queue: it keeps the controllers alive, shows progress, and adds up
//! the counters of the threads.

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use hugemem::{Arena, ArenaConfig, ArenaError, Lease, PagePolicy, Pool};
use nvme_host::{
    ConnectOptions, ConnectionCounters, Controller, HostError, IoQueue, IoQueuePlan, NamespaceInfo,
};

use crate::files::FilesError;
use crate::load::initiator::Initiator;
use crate::load::lane::Lane;
use crate::load::local::LocalError;
use crate::load::options::{CheckedWorkload, Limit, OptionsError, SIZE_MAX_BYTES, Workload};
use crate::load::phase::{Phase, PhaseKind, PhaseStats, RunState, STALL_LIMIT, Until, run_phase};
use crate::pinning::{PinError, pin_to_core};
use crate::random::Random;

/// Interval at which the calling thread checks the run.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum total size of the buffers of a run in bytes.
const BUFFERS_MAX_BYTES: u64 = 1 << 30;

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct RunPlan {
    /// The target and the host's identity.
    pub connect: ConnectOptions,
    /// The namespace.
    pub nsid: u32,
    /// The workload.
    pub workload: Workload,
    /// Cores to which the driving threads are pinned in turn; empty for no pinning.
    pub cores: Vec<usize>,
}

/// The reason why a run failed. Errors during data transfer are in the phase's statistics instead.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// An error of the target or the connection.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The workload does not fit the namespace.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// There is not enough memory.
    #[error("cannot take memory for buffers: {0}")]
    Memory(#[from] ArenaError),
    /// The buffers exceed their limit.
    #[error("{0} queues of {1} requests of {2} bytes need more than 1 GiB of buffers")]
    TooManyBuffers(u16, u16, u32),
    /// The target grants fewer I/O queues.
    #[error("the target grants {granted} I/O queues, not {wanted}")]
    QueuesNotGranted {
        /// The granted number.
        granted: u16,
        /// The requested number.
        wanted: u16,
    },
    /// An error of a server of files or a connection to it.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// An error of a local device.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A thread could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A driving thread could not be started.
    #[error("cannot start a driving thread: {0}")]
    Thread(io::Error),
    /// A driving thread panicked.
    #[error("a driving thread panicked")]
    ThreadLost,
}

/// Receives the progress of a run.
pub trait Watch {
    /// A phase begins. `total` is its expected total: bytes for a pass over the region, otherwise
    /// the workload's limit.
    fn phase_begins(&mut self, phase: Phase, total: PhaseTotal);

    /// Reports progress in the phase.
    fn phase_progresses(&mut self, operations: u64, bytes: u64, elapsed: Duration);

    /// The phase has ended.
    fn phase_ends(&mut self, phase: Phase, stats: &PhaseStats);

    /// Whether the run has to end now with its results so far; called many times per second.
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// The expected total of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseTotal {
    /// A number of bytes.
    Bytes(u64),
    /// A number of operations.
    Operations(u64),
    /// A duration.
    Time(Duration),
}

/// A watch that does nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoWatch;

impl Watch for NoWatch {
    fn phase_begins(&mut self, _: Phase, _: PhaseTotal) {}
    fn phase_progresses(&mut self, _: u64, _: u64, _: Duration) {}
    fn phase_ends(&mut self, _: Phase, _: &PhaseStats) {}
}

/// The results of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The namespace.
    pub namespace: NamespaceInfo,
    /// Size of the used region in bytes.
    pub region_bytes: u64,
    /// Request sizes in bytes.
    pub sizes_bytes: Vec<u32>,
    /// The phases that were started, in order.
    pub phases: Vec<(Phase, PhaseStats)>,
    /// The counters of the host's queues.
    pub counters: ConnectionCounters,
    /// Whether the watch ended the run early.
    pub interrupted: bool,
}

impl Outcome {
    pub(crate) fn new(namespace: NamespaceInfo, suited: &CheckedWorkload, driven: Driven) -> Self {
        let block = suited.block_bytes;
        Self {
            namespace,
            region_bytes: region_bytes(suited),
            sizes_bytes: suited
                .sizes_blocks
                .iter()
                .map(|blocks| blocks * block)
                .collect(),
            phases: driven.phases,
            counters: driven.counters,
            interrupted: driven.interrupted,
        }
    }
}

/// The next phase of a thread.
type PhaseOrder = (PhaseKind, Until);

/// Messages from the driving threads.
enum Message {
    /// The queues are open.
    Ready(Result<(), LoadError>),
    /// A phase has ended.
    Phase(Box<PhaseStats>),
    /// The counters of the queues; the last message.
    Counters(ConnectionCounters),
}

/// The calling thread's handle of a driving thread.
struct Driver<'scope> {
    commands: Option<Sender<PhaseOrder>>,
    messages: Receiver<Message>,
    thread: ScopedJoinHandle<'scope, ()>,
}

/// Opens the queue of a driving thread.
pub(crate) trait OpenQueue: Send {
    /// The type of the queue.
    type Queue: Initiator;

    /// Opens the queue on the thread that drives it.
    fn open(&self, pool: Pool) -> Result<Self::Queue, LoadError>;
}

impl OpenQueue for IoQueuePlan {
    type Queue = IoQueue;

    fn open(&self, pool: Pool) -> Result<IoQueue, LoadError> {
        Ok(self.clone().open(pool)?)
    }
}

/// The parameters of a driving thread.
struct Assignment<O> {
    lanes: Vec<(u16, O)>,
    suited: Arc<CheckedWorkload>,
    arena: Arc<Arena>,
    core: Option<usize>,
    shared: Arc<RunState>,
}

/// Runs a workload.
///
/// # Errors
/// [`LoadError`] if the run could not start or a thread was lost.
pub fn run(plan: &RunPlan, watch: &mut dyn Watch) -> Result<Outcome, LoadError> {
    run_over(plan, NonZero::<u16>::MIN, watch)
}

/// Runs a workload whose queues are distributed equally over `count` controllers, because a target
/// limits the queues of each.
///
/// # Errors
/// Those of [`run`].
pub fn run_over(
    plan: &RunPlan,
    count: NonZero<u16>,
    watch: &mut dyn Watch,
) -> Result<Outcome, LoadError> {
    let mut first = Controller::connect(plan.connect.clone())?;
    let namespace = first.namespace(plan.nsid)?;
    let suited = Arc::new(
        plan.workload
            .check_against(&namespace, first.transfer_bytes_max())?,
    );
    let workload = &plan.workload;
    let arena = take_arena(workload, suited.size_max_bytes)?;
    plan.connect.transport.attach(&arena)?;
    let mut controllers = vec![first];
    for _ in 1..count.get() {
        controllers.push(Controller::connect(plan.connect.clone())?);
    }
    let mut queues = Vec::with_capacity(usize::from(workload.queues));
    for (number, controller) in (0..count.get()).zip(&mut controllers) {
        let wanted = workload.queues / count + u16::from(number < workload.queues % count);
        let granted = controller.request_io_queues(wanted)?;
        if granted < wanted {
            return Err(LoadError::QueuesNotGranted { granted, wanted });
        }
        for qid in 1..=wanted {
            queues.push(controller.plan_io_queue(qid, workload.depth)?);
        }
    }
    let driven = {
        // A lost admin connection also ends the I/O queues, which report the requests in flight.
        let mut tend = || {
            for controller in &mut controllers {
                let _ = controller.run_periodic();
            }
        };
        drive_queues(queues, &suited, &arena, &plan.cores, &mut tend, watch)?
    };
    // A failed shutdown does not affect the measurement; errors of the target are in the phases.
    for controller in controllers {
        let _ = controller.shut_down();
    }
    Ok(Outcome::new(namespace, &suited, driven))
}

/// The results of the phases of a run.
#[derive(Debug, Default)]
pub(crate) struct Driven {
    /// The phases that were started, in order.
    phases: Vec<(Phase, PhaseStats)>,
    /// The counters of the queues.
    counters: ConnectionCounters,
    /// Whether the watch ended the run early.
    interrupted: bool,
}

impl Driven {
    /// Whether an error has ended a phase.
    pub(crate) fn has_trouble(&self) -> bool {
        self.phases.iter().any(|(_, stats)| stats.trouble.is_some())
    }
}

/// Runs the phases with the workload's queues on separate threads. The calling thread calls `tend`
/// and the watch.
pub(crate) fn drive_queues<O: OpenQueue>(
    queues: Vec<O>,
    suited: &Arc<CheckedWorkload>,
    arena: &Arc<Arena>,
    cores: &[usize],
    tend: &mut dyn FnMut(),
    watch: &mut dyn Watch,
) -> Result<Driven, LoadError> {
    let shared = Arc::new(RunState::new(STALL_LIMIT));
    let assignments = assign(queues, suited, arena, cores, &shared);
    std::thread::scope(|scope| {
        let mut drivers: Vec<Driver<'_>> = assignments
            .into_iter()
            .map(|assignment| start(scope, assignment))
            .collect::<Result<_, _>>()?;
        let driven = drive(&mut drivers, tend, suited, &shared, watch);
        let counted = finish(drivers);
        Ok(Driven {
            counters: counted?,
            ..driven?
        })
    })
}

fn region_bytes(suited: &CheckedWorkload) -> u64 {
    let lanes = u64::from(suited.workload.queues);
    suited.blocks_per_lane * lanes * u64::from(suited.block_bytes)
}

/// Divides the queues among the threads.
fn assign<O>(
    queues: Vec<O>,
    suited: &Arc<CheckedWorkload>,
    arena: &Arc<Arena>,
    cores: &[usize],
    shared: &Arc<RunState>,
) -> Vec<Assignment<O>> {
    let mut assignments: Vec<Assignment<O>> = (0..usize::from(suited.workload.threads))
        .map(|index| Assignment {
            lanes: Vec::new(),
            suited: Arc::clone(suited),
            arena: Arc::clone(arena),
            core: cores.get(index % cores.len().max(1)).copied(),
            shared: Arc::clone(shared),
        })
        .collect();
    let threads = assignments.len();
    for (lane, queue) in (0_u16..).zip(queues) {
        if let Some(assignment) = assignments.get_mut(usize::from(lane) % threads) {
            assignment.lanes.push((lane, queue));
        }
    }
    assignments
}

/// Allocates memory for a lease of the largest size for every request in flight, and one more for
/// each queue's Connect.
pub fn take_arena(workload: &Workload, size_max_bytes: u32) -> Result<Arc<Arena>, LoadError> {
    let slice = size_max_bytes
        .next_power_of_two()
        .clamp(4096, SIZE_MAX_BYTES);
    // Size classes are powers of four from 4 KiB.
    let slice = if slice.trailing_zeros().is_multiple_of(2) {
        slice
    } else {
        slice * 2
    };
    let requests = u64::from(workload.queues) * (u64::from(workload.depth) + 1);
    if requests * u64::from(slice) > BUFFERS_MAX_BYTES {
        let (queues, depth) = (workload.queues, workload.depth);
        return Err(LoadError::TooManyBuffers(queues, depth, size_max_bytes));
    }
    // The largest size class gets at least three sixteenths of an arena.
    let bytes = usize::try_from(requests * u64::from(slice) * 6).unwrap_or(usize::MAX);
    let bytes = bytes.max(4 << 20).next_multiple_of(4 << 20);
    let config = ArenaConfig {
        bytes,
        pages: PagePolicy::Auto,
        max_transfer: slice as usize,
    };
    Ok(Arena::new(config)?)
}

fn start<'scope, O: OpenQueue + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    assignment: Assignment<O>,
) -> Result<Driver<'scope>, LoadError> {
    let (commands, orders) = channel();
    let (reports, messages) = channel();
    let thread = Builder::new()
        .spawn_scoped(scope, move || drive_lanes(&assignment, &orders, &reports))
        .map_err(LoadError::Thread)?;
    Ok(Driver {
        commands: Some(commands),
        messages,
        thread,
    })
}

/// The main function of a driving thread: opens its queues, runs the phases, and reports the
/// counters.
fn drive_lanes<O: OpenQueue>(
    assignment: &Assignment<O>,
    orders: &Receiver<PhaseOrder>,
    reports: &Sender<Message>,
) {
    let opened = open_lanes(assignment);
    let (mut lanes, ready) = match opened {
        Ok(lanes) => (lanes, Ok(())),
        Err(error) => (Vec::new(), Err(error)),
    };
    // Sending only fails if the calling thread has given up.
    let _ = reports.send(Message::Ready(ready));
    for (kind, until) in orders {
        let stats = run_phase(&mut lanes, kind, until, &assignment.shared);
        let _ = reports.send(Message::Phase(Box::new(stats)));
    }
    let mut counters = ConnectionCounters::default();
    for lane in &lanes {
        counters.add(&lane.counters());
    }
    let _ = reports.send(Message::Counters(counters));
}

fn open_lanes<O: OpenQueue>(assignment: &Assignment<O>) -> Result<Vec<Lane<O::Queue>>, LoadError> {
    if let Some(core) = assignment.core {
        pin_to_core(core)?;
    }
    let suited = &assignment.suited;
    let pool = assignment.arena.pool(0);
    let mut lanes = Vec::with_capacity(assignment.lanes.len());
    for (index, plan) in &assignment.lanes {
        let queue = plan.open(pool.clone())?;
        let buffers = fill_buffers(&pool, suited)?;
        lanes.push(Lane::new(queue, suited, *index, buffers));
    }
    Ok(lanes)
}

/// A buffer for each request in flight of a lane, with the data of unverified writes:
/// incompressible bytes.
pub fn fill_buffers(pool: &Pool, suited: &CheckedWorkload) -> Result<Vec<Lease>, LoadError> {
    let mut random = Random::new(suited.workload.seed);
    let buffer = |_| {
        let lease = pool.take(suited.size_max_bytes as usize);
        let mut lease = lease.ok_or(HostError::NoMemory)?;
        for chunk in lease.chunks_mut(8) {
            let bytes = random.next_u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        Ok(lease)
    };
    (0..suited.workload.depth).map(buffer).collect()
}

/// Runs the phases on the threads.
fn drive(
    drivers: &mut [Driver<'_>],
    tend: &mut dyn FnMut(),
    suited: &CheckedWorkload,
    shared: &RunState,
    watch: &mut dyn Watch,
) -> Result<Driven, LoadError> {
    for driver in drivers.iter() {
        match await_message(driver, tend, &mut || {})? {
            Message::Ready(ready) => ready?,
            Message::Phase(_) | Message::Counters(_) => return Err(LoadError::ThreadLost),
        }
    }
    let mut done = Driven::default();
    for phase in phases(&suited.workload) {
        shared.operations.store(0, Ordering::Relaxed);
        shared.bytes.store(0, Ordering::Relaxed);
        let until = until(phase.kind, &suited.workload);
        watch.phase_begins(phase, total(phase.kind, suited));
        let begun = Instant::now();
        for driver in drivers.iter() {
            let commands = driver.commands.as_ref().ok_or(LoadError::ThreadLost)?;
            commands
                .send((phase.kind, until))
                .map_err(|_| LoadError::ThreadLost)?;
        }
        let mut stats = PhaseStats::default();
        for driver in drivers.iter() {
            let mut check = || {
                let operations = shared.operations.load(Ordering::Relaxed);
                let bytes = shared.bytes.load(Ordering::Relaxed);
                watch.phase_progresses(operations, bytes, begun.elapsed());
                if watch.is_interrupted() {
                    shared.stop.store(true, Ordering::Relaxed);
                }
            };
            match await_message(driver, tend, &mut check)? {
                Message::Phase(counted) => stats.add(*counted),
                Message::Ready(_) | Message::Counters(_) => return Err(LoadError::ThreadLost),
            }
        }
        watch.phase_ends(phase, &stats);
        done.interrupted = watch.is_interrupted();
        if done.interrupted {
            // Requests that were due after an early end do not count.
            stats.unsent = 0;
        }
        let troubled = stats.trouble.is_some();
        done.phases.push((phase, stats));
        if troubled || done.interrupted {
            break;
        }
    }
    Ok(done)
}

fn phases(workload: &Workload) -> Vec<Phase> {
    let phase = |kind, name, wanted: bool| wanted.then_some(Phase { kind, name });
    [
        phase(PhaseKind::Fill, "fill", workload.verify),
        phase(PhaseKind::WarmUp, "warm up", !workload.warm_up.is_zero()),
        phase(PhaseKind::Main, "main", true),
        phase(PhaseKind::ReadBack, "read back", workload.verify),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn until(kind: PhaseKind, workload: &Workload) -> Until {
    match (kind, workload.limit) {
        (PhaseKind::Fill | PhaseKind::ReadBack, _) => Until::End,
        (PhaseKind::WarmUp, _) => Until::Time(workload.warm_up),
        (PhaseKind::Main, Limit::Time(time)) => Until::Time(time),
        (PhaseKind::Main, Limit::Operations(operations)) => {
            Until::Operations(operations.div_ceil(u64::from(workload.queues)))
        }
    }
}

fn total(kind: PhaseKind, suited: &CheckedWorkload) -> PhaseTotal {
    match (kind, suited.workload.limit) {
        (PhaseKind::Fill | PhaseKind::ReadBack, _) => PhaseTotal::Bytes(region_bytes(suited)),
        (PhaseKind::WarmUp, _) => PhaseTotal::Time(suited.workload.warm_up),
        (PhaseKind::Main, Limit::Time(time)) => PhaseTotal::Time(time),
        (PhaseKind::Main, Limit::Operations(operations)) => PhaseTotal::Operations(operations),
    }
}

/// Waits for a thread's next message, and calls `tend` and `check` in the meantime.
fn await_message(
    driver: &Driver<'_>,
    tend: &mut dyn FnMut(),
    check: &mut dyn FnMut(),
) -> Result<Message, LoadError> {
    loop {
        match driver.messages.recv_timeout(WATCH_INTERVAL) {
            Ok(message) => return Ok(message),
            Err(RecvTimeoutError::Disconnected) => return Err(LoadError::ThreadLost),
            Err(RecvTimeoutError::Timeout) => {
                check();
                tend();
            }
        }
    }
}

/// Ends the threads. Returns the counters of their queues.
fn finish(drivers: Vec<Driver<'_>>) -> Result<ConnectionCounters, LoadError> {
    let mut counters = ConnectionCounters::default();
    for mut driver in drivers {
        driver.commands = None;
        while let Ok(message) = driver.messages.recv() {
            if let Message::Counters(more) = message {
                counters.add(&more);
            }
        }
        driver.thread.join().map_err(|_| LoadError::ThreadLost)?;
    }
    Ok(counters)
}
