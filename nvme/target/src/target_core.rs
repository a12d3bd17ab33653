//! One reactor's part of a target: its queues and commands. No lock and no allocation per command.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use block::DeviceQueue;
use hugemem::Lease;
use nvme_spec::{Cqe, Sqe, Status};
use reactors::Nanos;

use crate::config::{CoreLimits, TransportKind};
use crate::counters::CoreCounters;
use crate::interface::{
    Admission, Arrival, Close, Completed, ConnectOutcome, QueueId, TransportId, Work,
};
use crate::target::Target;

/// Whether a core has come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CoreDrain {
    /// No queue, no command, and every device queue is empty and closed.
    Done,
    /// What is still there.
    Outstanding {
        /// Queues whose connections have not been closed.
        queues: usize,
        /// Commands in execution.
        executions: usize,
        /// Requests in device queues.
        device_requests: usize,
    },
}

/// One reactor's target core. Belongs to one thread; see the crate's documentation for its use.
pub struct TargetCore {
    counters: Arc<CoreCounters>,
    target: Arc<Target>,
}

impl TargetCore {
    /// The core of reactor `reactor`, with one queue of every device in the order of
    /// [`DeviceIndex`](crate::DeviceIndex).
    ///
    /// # Panics
    /// When `queues` does not match the target's devices, `reactor` is not one of its reactors, or a
    /// limit is zero.
    #[must_use]
    pub fn new(
        target: Arc<Target>,
        reactor: usize,
        queues: Vec<Box<dyn DeviceQueue>>,
        limits: CoreLimits,
    ) -> Self {
        assert_eq!(
            queues.len(),
            target.devices.len(),
            "one queue of every device"
        );
        assert!(
            reactor < target.reactors,
            "reactor {reactor} is not the target's"
        );
        let counters = Arc::new(CoreCounters::new(queues.len(), limits.queues_max));
        Self { counters, target }
    }

    /// Makes an inbox for a transport of this reactor.
    pub fn register_transport(&mut self, kind: TransportKind) -> TransportId {
        let _ = kind;
        TransportId(0)
    }

    /// Handles the first capsule of a connection; `data` is what followed it (1024 bytes for Connect).
    pub fn connect(
        &mut self,
        arrival: &Arrival,
        sqe: &Sqe,
        data: &[u8],
        now: Nanos,
    ) -> ConnectOutcome {
        let _ = (arrival, data, now);
        ConnectOutcome::Rejected(Cqe::new(sqe.cid.get(), Status::CONNECT_CONTROLLER_BUSY))
    }

    /// The queue's connection is gone. Commands in devices are orphaned: their leases come home when
    /// the devices are done.
    pub fn close_queue(&mut self, queue: QueueId, now: Nanos) {
        let _ = (queue, now);
    }

    /// Decodes and checks one command, once. `tag` comes back when the command was held.
    pub fn admit(&mut self, queue: QueueId, tag: u64, sqe: &Sqe, now: Nanos) -> Admission {
        let _ = (queue, tag, now);
        Admission::Respond(Cqe::new(sqe.cid.get(), Status::INVALID_OPCODE.with_dnr()))
    }

    /// Executes a checked command. `data` is a lease of exactly [`Work::bytes`] bytes, filled for
    /// [`Direction::FromHost`](crate::Direction::FromHost), or `None` when
    /// [`Work::needs_lease`] is false. `Some`: done; `None`: comes by
    /// [`next_completion`](Self::next_completion).
    pub fn execute(
        &mut self,
        queue: QueueId,
        tag: u64,
        work: Work,
        data: Option<Lease>,
        now: Nanos,
    ) -> Option<Completed> {
        let _ = (queue, now, data);
        let response = Cqe::new(work.command_id, Status::INTERNAL_ERROR);
        Some(Completed {
            tag,
            response,
            data: None,
            bytes: 0,
        })
    }

    /// Ends a checked command without executing it, because its data could not be moved: for a
    /// digest error, [`Status::TRANSIENT_TRANSPORT_ERROR`].
    pub fn reject(&mut self, queue: QueueId, work: Work, status: Status) -> Cqe {
        let _ = queue;
        Cqe::new(work.command_id, status)
    }

    /// Polls the devices, retries what they put off, and looks at timers and at what other reactors
    /// changed. Returns how much there was to do.
    pub fn poll(&mut self, now: Nanos) -> usize {
        let _ = now;
        0
    }

    /// Ends a turn: rings the devices.
    pub fn flush(&mut self) {}

    /// The next finished command of a transport.
    pub fn next_completion(&mut self, transport: TransportId) -> Option<Completed> {
        let _ = transport;
        None
    }

    /// The next connection that a transport must end.
    pub fn next_close(&mut self, transport: TransportId) -> Option<Close> {
        let _ = transport;
        None
    }

    /// When `poll` must be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// Shows every descriptor that becomes readable when a device has completions.
    pub fn wake_sources(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        let _ = visit;
    }

    /// Whether there is something to do now that no descriptor and no deadline will tell.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        false
    }

    /// Commands in execution, orphans included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        0
    }

    /// Begins to shut down: new Connects are refused, and every connection is handed out for closing.
    pub fn begin_shutdown(&mut self, now: Nanos) {
        let _ = now;
    }

    /// Goes on shutting down: once no queue and no command is left, flushes and drains the devices.
    /// Call it between polls until it says [`CoreDrain::Done`].
    pub fn drain(&mut self, now: Nanos) -> CoreDrain {
        let _ = now;
        CoreDrain::Done
    }

    /// The counters, which other threads may read.
    #[must_use]
    pub fn counters(&self) -> &Arc<CoreCounters> {
        &self.counters
    }

    /// The target.
    #[must_use]
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }
}
