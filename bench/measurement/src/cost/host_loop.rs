//! Our host with its load generator at one end and the target with its TCP transport at the other,
//! connected by the loopback interface, on one thread: every case of size and depth of a RAM
//! device.
//!
//! As in [`tcp_loop`](super::tcp_loop), both alternate: a batch of requests is sent, and the target
//! runs until all are completed, before the next batch is sent. Here the costs of the host are
//! measured, as it runs in `bench run`: choice of requests, NVMe/TCP, latencies.

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hugemem::allocation_counter::allocations_on_this_thread;
use nvme_host::{
    ByteStream, ConnectOptions, Controller, HostError, HostIdentity, IoQueue, NamespaceInfo,
    Socket, StreamResult, Transport,
};
use rustix::io::ioctl_fionread;

use crate::ceiling::CONGESTION_CONTROL;
use crate::cost::LoopCounts;
use crate::cost::measure::CostError;
use crate::cost::rig::{DEVICE_BYTES, Extent, NQN, ram, setup};
use crate::cost::tcp_cases::{Backing, Case};
use crate::cost::tcp_loop::{counting_begins, counting_ends};
use crate::cost::tcp_rig::Rig;
use bench::load::lane::Lane;
use bench::load::run::{fill_buffers, take_arena};
use bench::load::{Limit, Pattern, PhaseKind, PhaseStats, Workload};

/// Number of warm-up batches.
const WARM_UP_BATCHES: u64 = 8;

/// Maximum number of turns of one batch.
const TURNS_MAX: u32 = 100_000;

/// The only reactor.
const REACTOR: usize = 0;

/// The target, and the counters of the host's sockets.
struct LoopState {
    rig: Rig,
    /// Both ends of the latest connection, to check what has arrived there.
    ends: Option<(OwnedFd, TcpStream)>,
    /// Number of bytes that the sockets accepted.
    sent_bytes: u64,
    /// Number of pieces of all vectored sends.
    pieces: u64,
}

thread_local! {
    /// A connection's stream must be `Send`, so it cannot contain the target, which is not.
    static WORLD: RefCell<Option<LoopState>> = const { RefCell::new(None) };
}

fn with_state<T>(use_it: impl FnOnce(&mut LoopState) -> T) -> T {
    WORLD.with_borrow_mut(|world| use_it(world.as_mut().expect("it is set first")))
}

/// The host's socket as in production, except that waiting for it runs the target.
#[derive(Debug)]
struct TurnStream(Socket);

impl TurnStream {
    fn dial(options: &ConnectOptions) -> Result<Self, HostError> {
        let address = options.address;
        let failed = |source| HostError::Connect { address, source };
        let socket = Socket::connect(options)?;
        let own = socket.descriptor().map(|own| own.try_clone_to_owned());
        let own = own.transpose().map_err(failed)?;
        with_state(|world| {
            let accepted = world.rig.accept(REACTOR).map_err(failed)?;
            world.ends = own.map(|own| (own, accepted));
            Ok(Self(socket))
        })
    }
}

impl ByteStream for TurnStream {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> StreamResult {
        self.0.receive(buffers)
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> StreamResult {
        let moved = self.0.send(buffers);
        with_state(|world| {
            world.pieces += buffers.len() as u64;
            if let StreamResult::Bytes(bytes) = moved {
                world.sent_bytes += bytes as u64;
            }
        });
        moved
    }

    fn wait(&self, _: bool, _: Duration) {
        with_state(|world| {
            // If this fails, the wait reports a time-out.
            let _ = world.rig.await_any();
            world.rig.turn_all();
        });
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.descriptor()
    }
}

impl LoopState {
    /// Runs a turn of the target after all sent data has arrived there.
    fn turn(&mut self) -> Result<(), CostError> {
        let received = self.rig.counters(REACTOR).bytes_received.get();
        let expected = self.sent_bytes - received;
        if let Some((_, target_end)) = &self.ends {
            self.rig.await_work(REACTOR, target_end, expected)?;
        }
        self.rig.turn(REACTOR);
        Ok(())
    }

    /// Whether data has arrived at the host.
    fn has_responses(&self) -> Result<bool, CostError> {
        let Some((host_end, _)) = &self.ends else {
            return Ok(false);
        };
        let waiting = ioctl_fionread(host_end);
        Ok(waiting.map_err(|error| setup("the host's socket", &error))? > 0)
    }
}

fn workload(case: &Case) -> Workload {
    Workload {
        sizes_bytes: vec![case.bytes],
        depth: case.depth,
        queues: 1,
        threads: 1,
        read_percent: if case.write { 0 } else { 100 },
        pattern: Pattern::Random,
        rate: None,
        limit: Limit::Operations(u64::MAX),
        warm_up: Duration::ZERO,
        verify: false,
        region_bytes: None,
        seed: 1,
    }
}

/// The counted cases.
pub fn cases() -> impl Iterator<Item = Case> {
    Case::unrestricted().filter(|case| case.backing == Backing::Ram)
}

/// Runs every case, or the named one, each after a warm-up. Returns the counters by name.
///
/// # Errors
/// [`CostError::Setup`].
pub fn run(only: Option<&str>) -> Result<Vec<(String, LoopCounts)>, CostError> {
    let rig = Rig::new(&Extent::ONE, |_| Ok(vec![ram(DEVICE_BYTES)?]))?;
    let address = rig.address()?;
    WORLD.set(Some(LoopState {
        rig,
        ends: None,
        sent_bytes: 0,
        pieces: 0,
    }));
    let cases: Vec<Case> = cases()
        .filter(|case| only.is_none_or(|only| case.name() == only))
        .collect();
    let deepest = cases.iter().map(|case| case.depth).max().unwrap_or(1);
    let largest = cases.iter().map(|case| case.bytes).max().unwrap_or(0);
    let failed = |error: HostError| setup("the host", &error);
    let mut controller = Controller::connect(ConnectOptions {
        transport: Transport::tcp_over(TurnStream::dial),
        keep_alive: Duration::ZERO,
        congestion_control: Some(CONGESTION_CONTROL.to_owned()),
        ..ConnectOptions::new(address, NQN, HostIdentity::from_uuid([5; 16]))
    });
    let controller = controller
        .as_mut()
        .map_err(|error| setup("the host", error))?;
    let namespace = controller.namespace(Backing::Ram.nsid()).map_err(failed)?;
    controller.request_io_queues(1).map_err(failed)?;
    let memory = Workload {
        depth: deepest,
        ..workload(&cases[0])
    };
    let arena = take_arena(&memory, largest).map_err(|error| setup("memory", &error))?;
    let pool = arena.pool(0);
    let plan = controller.plan_io_queue(1, deepest).map_err(failed)?;
    let mut queue = plan.open(pool).map_err(failed)?;
    let counted = cases
        .iter()
        .map(|case| Ok((case.name(), count(case, &mut queue, &namespace)?)))
        .collect();
    drop(queue);
    WORLD.set(None);
    counted
}

/// Runs one case.
fn count(
    case: &Case,
    queue: &mut IoQueue,
    namespace: &NamespaceInfo,
) -> Result<LoopCounts, CostError> {
    let suited = workload(case).check_against(namespace, None);
    let suited = Arc::new(suited.map_err(|error| setup("the workload", &error))?);
    let buffers = fill_buffers(queue.pool(), &suited);
    let buffers = buffers.map_err(|error| setup("memory", &error))?;
    let mut lane = Lane::new(queue, &suited, 0, buffers);
    let mut stats = PhaseStats::default();
    lane.begin(PhaseKind::Main, Instant::now());
    for batch in 1..=WARM_UP_BATCHES {
        run_batch(&mut lane, batch * u64::from(case.depth), &mut stats)?;
    }
    let (before, pieces) = (lane.counters(), with_state(|world| world.pieces));
    let mut allocations = 0;
    counting_begins();
    for batch in WARM_UP_BATCHES + 1..=WARM_UP_BATCHES + case.batches {
        allocations += run_batch(&mut lane, batch * u64::from(case.depth), &mut stats)?;
    }
    counting_ends();
    let after = lane.counters();
    let pieces = with_state(|world| world.pieces) - pieces;
    let counted = [
        ("receives", after.receives - before.receives),
        ("sends", after.sends - before.sends),
        ("pieces sent", pieces),
        ("bytes placed", after.placed_bytes - before.placed_bytes),
        ("bytes copied", after.copied_bytes - before.copied_bytes),
    ];
    Ok(LoopCounts {
        requests: case.requests(),
        allocations,
        counted: counted.map(|(name, count)| (name.to_owned(), count)).into(),
    })
}

/// Runs one batch from its first request to its last response; `quota` is the total number of
/// requests sent until its end. Returns the host's allocations.
fn run_batch(
    lane: &mut Lane<&mut IoQueue>,
    quota: u64,
    stats: &mut PhaseStats,
) -> Result<u64, CostError> {
    let mut allocations = 0;
    for _ in 0..TURNS_MAX {
        let before = allocations_on_this_thread();
        let issued = lane.issue(quota, Instant::now());
        allocations += allocations_on_this_thread() - before;
        issued.map_err(|trouble| setup("the host", &trouble))?;
        with_state(LoopState::turn)?;
        while with_state(|world| world.has_responses())? {
            let before = allocations_on_this_thread();
            let collected = lane.collect(stats);
            allocations += allocations_on_this_thread() - before;
            collected.map_err(|trouble| setup("the host", &trouble))?;
        }
        if let Some(trouble) = &stats.trouble {
            return Err(setup("a request", trouble));
        }
        if lane.in_flight() == 0 {
            return Ok(allocations);
        }
    }
    Err(CostError::Setup("a batch is not completed".to_owned()))
}
