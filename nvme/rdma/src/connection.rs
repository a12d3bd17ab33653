//! One NVMe/RDMA connection: a queue pair, from accepting the connection to its end.
//!
//! Owns the queue pair, the request slots and the posted work. It posts the work requests that move
//! data; the target core interprets commands. It never blocks, and does not allocate after Connect.
//! NVMe/RDMA Transport 1.1 ("RDMA 1.1").

mod audit;
mod connecting;
mod in_device;
mod requests;
mod sending;

use std::collections::VecDeque;
use std::net::SocketAddr;

use hugemem::{Account, DmaBuffer, Lease, Pool};
use nvme_fabrics::{Connection as _, Event, RequestContext, RequestToken, Requests};
use nvme_spec::Sqe;
use nvme_target::{Completed, KeyedBlocks, PortId, QueueId, Released, TargetCore, TransportId};
use rdma::{CompletionStatus, Connection as _, MemoryMap, Provider, QueuePair, WorkCompletion};
use reactors::{LogLimit, Nanos};

use crate::config::RdmaConfig;
use crate::counters::RdmaCounters;
use crate::posted::{CompletedReceive, PostedKind, QueueDestroyed, SendQueue};
use crate::private_data::NegotiatedParameters;
use crate::receives::{COMMAND_BYTES, Receives};
use crate::slot::{SlotState, SlotTable};
use crate::token::{CONNECT_SLOT, WORK_GENERATION_MASK, WorkId};
pub use audit::ConnectionAudit;
use connecting::Connecting;
use in_device::DeviceTable;

/// Time for which a flushed queue pair waits for the device's event that its last receive was taken
/// from the shared queue. On devices that never report it, at most one receive per queue pair is
/// lost.
const LAST_RECEIVE_GRACE: Nanos = Nanos::from_millis(100);

/// Time for which a posted response may borrow blocks that a writer waits for. Posted data can be
/// neither copied nor withdrawn, so the connection ends after this time. Together with
/// [`STALL_CHECK_INTERVAL`] this limits the wait for borrowed blocks to 150 ms.
const BORROW_HOLD_MAX: Nanos = Nanos::from_millis(100);
/// Interval of the checks of a connection whose oldest post is older than [`BORROW_HOLD_MAX`].
const STALL_CHECK_INTERVAL: Nanos = Nanos::from_millis(20);
const _: () = assert!(BORROW_HOLD_MAX.0 + STALL_CHECK_INTERVAL.0 <= 130_000_000);
/// Time for which a work request may be outstanding: limits hosts without posted receives and hosts
/// that have vanished. The queue pair cannot enforce it, because the host chooses the RNR retry
/// count (IBA 1.3 §12.6.5).
const PROGRESS_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Interval at which a connection that finishes is looked at.
const FINISH_LOOK_INTERVAL: Nanos = Nanos::from_millis(1);
/// Time without a post after which a connection is probed. A dead peer is detected within this time
/// and [`PROGRESS_TIMEOUT`], whatever its Keep Alive Timeout.
const PROBE_INTERVAL: Nanos = Nanos::from_secs(30);
const _: () = assert!(2 * PROBE_INTERVAL.0 + PROGRESS_TIMEOUT.0 < 120_000_000_000);

/// What a connection works with while its reactor polls it.
pub(crate) struct Context<'a, P: Provider> {
    pub(crate) core: &'a mut TargetCore,
    pub(crate) pool: &'a Pool,
    pub(crate) config: &'a RdmaConfig,
    pub(crate) counters: &'a RdmaCounters,
    pub(crate) log: &'a LogLimit,
    pub(crate) map: &'a MemoryMap<P>,
    pub(crate) transport: TransportId,
    /// The transport is stopping: new commands are dropped.
    pub(crate) stopping: bool,
    pub(crate) now: Nanos,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Accepted: waits for the connection manager's Established event and for the Connect command.
    Connecting { until: Nanos },
    /// Serves its queue.
    Serving,
    /// Answers its requests, then closes, an admin queue after the I/O queues of its controller.
    /// Received capsules are dropped: the host sends their commands again over its next connection.
    Finishing { until: Nanos, next_look: Nanos },
    /// Sends what is queued, then disconnects. Received capsules are dropped.
    Closing { until: Nanos },
    /// Disconnected: waits until posted work is flushed and the last receive was taken.
    Draining {
        since: Nanos,
        until: Nanos,
        last_receive: bool,
    },
    /// The queue pair may be destroyed.
    Finished,
}

/// Why a connection is aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The host disconnected.
    Disconnected,
    /// The host violated the protocol.
    Violation(&'static str),
    /// The host did not connect its queue in time.
    SetupTimeout,
    /// Queued responses were not sent in time.
    CloseTimeout,
    /// A work request failed.
    Work(CompletionStatus),
    /// No posted work has completed for too long.
    NoProgress,
    /// A write waits for blocks that a posted read borrows.
    BorrowedTooLong,
    /// A work request could not be posted.
    Post,
    /// The connection manager or the device reported a fault.
    Fault(&'static str),
}

/// The parts of a new connection.
pub(crate) struct Parts<P: Provider> {
    pub(crate) queue_pair: P::QueuePair,
    pub(crate) connection: P::Connection,
    /// Memory for responses, for devices that do not take them inline.
    pub(crate) responses: Option<DmaBuffer>,
    pub(crate) reads: u8,
    /// Send queue entries that it uses, for which its completion queue has room.
    pub(crate) send_requests: u32,
    pub(crate) negotiated: NegotiatedParameters,
    pub(crate) port: PortId,
    pub(crate) in_capsule_bytes: u32,
    pub(crate) token: RequestToken,
    pub(crate) device: u16,
    pub(crate) completion_queue: u16,
}

/// One host's connection: one queue pair.
#[derive(Debug)]
pub(crate) struct Connection<P: Provider> {
    queue_pair: P::QueuePair,
    /// Whether destruction of the queue pair was attempted.
    destroy_attempted: bool,
    connection: P::Connection,
    sends: SendQueue,
    slots: SlotTable,
    /// By slot: where the host's data is, and the key to invalidate.
    remotes: Vec<KeyedBlocks>,
    connecting: Connecting,
    responses: Option<DmaBuffer>,
    phase: Phase,
    queue: Option<QueueId>,
    token: RequestToken,
    /// The common part of its work request identifiers.
    work: WorkId,
    /// Index of the registration that contained data last, where the next search starts.
    registration_hint: usize,
    /// Memory of devices that requests and posted work use.
    in_device: DeviceTable,
    /// Requests that wait for a read, or have more reads to post.
    waiting_reads: VecDeque<u16>,
    /// Requests whose responses wait for room in the send queue.
    waiting_sends: VecDeque<u16>,
    reads_free: u8,
    /// Time of the next progress check of posted work, while serving or closing.
    check_at: Nanos,
    /// The next sequence number at the last check that found nothing outstanding.
    quiet_since: u32,
    in_capsule_max: u32,
    /// The account that its leases are charged to; the appliance's own before Connect.
    account: Account,
    /// Work requests are queued and not posted.
    queued: bool,
    /// A work request was refused: the connection is aborted at the next flush.
    refused: bool,
    negotiated: NegotiatedParameters,
    port: PortId,
    in_capsule_bytes: u32,
    pub(crate) device: u16,
    pub(crate) completion_queue: u16,
}

impl<P: Provider> Connection<P> {
    /// A connection that was just accepted.
    pub(crate) fn new(parts: Parts<P>, cx: &Context<'_, P>) -> Self {
        let Parts {
            queue_pair,
            connection,
            responses,
            reads,
            send_requests,
            negotiated,
            port,
            in_capsule_bytes,
            token,
            device,
            completion_queue,
        } = parts;
        Self {
            queue_pair,
            destroy_attempted: false,
            connection,
            sends: SendQueue::new(send_requests),
            slots: SlotTable::default(),
            remotes: Vec::new(),
            connecting: Connecting::new(),
            responses,
            phase: Phase::Connecting {
                until: cx.now.saturating_add(cx.config.setup_timeout),
            },
            queue: None,
            token,
            work: WorkId::new()
                .with_connection(token.connection())
                .with_generation((token.generation() & WORK_GENERATION_MASK) as u16),
            registration_hint: 0,
            in_device: DeviceTable::default(),
            waiting_reads: VecDeque::new(),
            waiting_sends: VecDeque::new(),
            reads_free: reads,
            check_at: Nanos::MAX,
            quiet_since: 0,
            in_capsule_max: 0,
            account: Account::SYSTEM,
            queued: false,
            refused: false,
            negotiated,
            port,
            in_capsule_bytes,
            device,
            completion_queue,
        }
    }

    pub(crate) fn host_address(&self) -> Option<SocketAddr> {
        self.connection.peer_address()
    }

    pub(crate) fn queue_pair_number(&self) -> u32 {
        self.queue_pair.number()
    }

    /// Entries of its send queue.
    pub(crate) fn send_requests(&self) -> u32 {
        self.sends.capacity()
    }

    /// Whether it may be dropped.
    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// Whether nothing is in flight except held Asynchronous Event Requests.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.active() == 0 && self.sends.is_empty()
    }

    /// Handles a deadline that has passed.
    pub(crate) fn check_deadline(&mut self, cx: &mut Context<'_, P>) {
        if self.deadline().is_none_or(|deadline| cx.now < deadline) {
            return;
        }
        match self.phase {
            Phase::Connecting { .. } => self.abort(cx, Cause::SetupTimeout),
            Phase::Closing { until } if until <= cx.now => {
                self.abort(cx, Cause::CloseTimeout);
            }
            Phase::Finishing { until, .. } if until <= cx.now => self.close(cx),
            Phase::Serving | Phase::Finishing { .. } | Phase::Closing { .. } => {
                self.check_progress(cx);
            }
            Phase::Draining { .. } => self.phase = Phase::Finished,
            Phase::Finished => {}
        }
    }

    /// Schedules a progress check of work that was just posted.
    #[inline]
    fn expect_progress(&mut self, now: Nanos) {
        self.check_at = self.check_at.min(now.saturating_add(BORROW_HOLD_MAX));
    }

    /// Aborts the connection if posted work makes no progress, and probes it if it is idle.
    #[cold]
    fn check_progress(&mut self, cx: &mut Context<'_, P>) {
        let Some(age) = self.sends.oldest_age(cx.now) else {
            self.check_at = cx.now.saturating_add(PROBE_INTERVAL);
            let sequence = self.sends.next_sequence();
            let was_quiet = std::mem::replace(&mut self.quiet_since, sequence) == sequence;
            if was_quiet && self.phase == Phase::Serving {
                self.post_probe(cx);
            }
            return;
        };
        if age >= PROGRESS_TIMEOUT {
            return self.abort(cx, Cause::NoProgress);
        }
        if age < BORROW_HOLD_MAX {
            let left = Nanos(BORROW_HOLD_MAX.0 - age.0);
            self.check_at = cx.now.saturating_add(left);
            return;
        }
        self.check_at = cx.now.saturating_add(STALL_CHECK_INTERVAL);
        let delays_writer = self.sends.delays_writer(BORROW_HOLD_MAX, cx.now)
            || self.queued_response_delays_writer();
        if delays_writer {
            self.abort(cx, Cause::BorrowedTooLong);
        }
    }

    /// Handles a received capsule of `bytes` bytes.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        cx: &mut Context<'_, P>,
        receives: &mut Receives<P>,
        receive: &CompletedReceive,
        bytes: u32,
    ) {
        // A device never reports more bytes than the receive has room for.
        let Some(carried) = bytes.checked_sub(COMMAND_BYTES as u32) else {
            let violation = Cause::Violation("a capsule is shorter than a command");
            return self.abort(cx, violation);
        };
        match self.phase {
            Phase::Serving if !cx.stopping => {
                self.admit(cx, receives, Capsule { receive, carried });
            }
            Phase::Connecting { .. } if !cx.stopping => {
                self.take_connect(cx, receives, Capsule { receive, carried });
            }
            Phase::Serving
            | Phase::Connecting { .. }
            | Phase::Finishing { .. }
            | Phase::Closing { .. }
            | Phase::Draining { .. }
            | Phase::Finished => {}
        }
    }

    /// Handles a failed receive: the queue pair is in the error state.
    pub(crate) fn receive_failed(&mut self, cx: &mut Context<'_, P>, status: CompletionStatus) {
        if status != CompletionStatus::FLUSHED {
            cx.counters.work_failures.add(1);
        }
        self.abort(cx, Cause::Work(status));
    }

    /// Handles the completion of a send request, successful or not.
    #[inline]
    pub(crate) fn sent(
        &mut self,
        cx: &mut Context<'_, P>,
        id: WorkId,
        completion: &WorkCompletion,
    ) {
        if !completion.is_success() {
            self.send_failed(cx, completion.status);
        }
        while let Some(kind) = self.sends.end_next(id.sequence(), id.last()) {
            // Most are responses, which need no further work.
            if kind == PostedKind::Response {
                continue;
            }
            match kind {
                PostedKind::Response => {}
                PostedKind::ResponseInDevice { place } => self.in_device.end_post(place),
                PostedKind::Read { slot, requests } => self.read_done(cx, slot, requests),
                PostedKind::Connect => self.connect_data_read(cx),
            }
        }
        match self.phase {
            Phase::Serving | Phase::Finishing { .. } | Phase::Closing { .. } => {
                self.pump_sends(cx);
                self.pump_reads(cx);
            }
            Phase::Connecting { .. } | Phase::Draining { .. } | Phase::Finished => {}
        }
        self.advance(cx);
    }

    #[cold]
    fn send_failed(&mut self, cx: &mut Context<'_, P>, status: CompletionStatus) {
        if status != CompletionStatus::FLUSHED {
            cx.counters.work_failures.add(1);
        }
        // RDMA 1.1 §3.5: an invalid key, a range beyond its region or a missing access right puts
        // the queue pair into the error state, so no response can be sent.
        if status == CompletionStatus::REMOTE_ACCESS_ERROR {
            cx.counters.remote_access_errors.add(1);
        }
        self.abort(cx, Cause::Work(status));
    }

    /// Handles the connection manager's Established event.
    pub(crate) fn established(&mut self, cx: &mut Context<'_, P>) {
        if let Some(capsule) = self.connecting.establish()
            && matches!(self.phase, Phase::Connecting { .. })
        {
            self.begin_connect(cx, capsule);
        }
    }

    /// Handles the device's event that the queue pair has taken its last receive.
    pub(crate) fn last_receive_taken(&mut self, cx: &mut Context<'_, P>) {
        if let Phase::Draining { last_receive, .. } = &mut self.phase {
            *last_receive = true;
        }
        self.advance(cx);
    }

    /// The wait of a request for a rate has ended.
    #[cold]
    pub(crate) fn rate_released(&mut self, cx: &mut Context<'_, P>, slot: u16, released: Released) {
        if self.slots.find(slot).is_some() {
            self.released(cx, slot, released);
        }
    }

    /// The pool granted a lease to a request that waited for one.
    pub(crate) fn granted(&mut self, cx: &mut Context<'_, P>, slot: u16, lease: Lease) {
        if slot == CONNECT_SLOT {
            return self.connect_buffer(cx, lease);
        }
        if self.slots.find(slot).is_some() {
            self.step(cx, slot, Event::Granted(lease));
        }
    }

    /// The target core completed a request.
    #[inline]
    pub(crate) fn completed(&mut self, cx: &mut Context<'_, P>, slot: u16, done: Completed) {
        if self.slots.find(slot).is_some() {
            self.step(cx, slot, Event::Completed(done));
        }
    }

    /// Ends the connection when its requests are answered, or its time is over. To be called again
    /// until then.
    pub(crate) fn finish(&mut self, cx: &mut Context<'_, P>) {
        let until = match self.phase {
            Phase::Serving => cx.now.saturating_add(cx.config.close_timeout),
            Phase::Finishing { until, .. } => until,
            _ => return self.close(cx),
        };
        let is_needed = self.queue.is_some_and(|queue| cx.core.has_io_queues(queue));
        if self.is_idle() && !is_needed {
            return self.close(cx);
        }
        // Other reactors may have the I/O queues.
        let next_look = cx.now.saturating_add(FINISH_LOOK_INTERVAL);
        self.phase = Phase::Finishing { until, next_look };
    }

    /// Ends the connection after queued responses have been sent. Its requests are abandoned.
    pub(crate) fn close(&mut self, cx: &mut Context<'_, P>) {
        match self.phase {
            Phase::Connecting { .. } | Phase::Serving | Phase::Finishing { .. } => {}
            Phase::Closing { .. } | Phase::Draining { .. } | Phase::Finished => return,
        }
        self.release_queue(cx, false);
        let until = cx.now.saturating_add(cx.config.close_timeout);
        self.phase = Phase::Closing { until };
        self.advance(cx);
    }

    /// Ends the connection immediately: posted work is flushed.
    #[cold]
    pub(crate) fn abort(&mut self, cx: &mut Context<'_, P>, cause: Cause) {
        match self.phase {
            Phase::Connecting { .. }
            | Phase::Serving
            | Phase::Finishing { .. }
            | Phase::Closing { .. } => {}
            Phase::Draining { .. } | Phase::Finished => return,
        }
        self.report(cx, cause);
        self.release_queue(cx, true);
        self.disconnect(cx);
    }

    /// Ends the connection without waiting, because the device failed or was removed.
    pub(crate) fn abandon(&mut self, cx: &mut Context<'_, P>) {
        self.abort(cx, Cause::Fault("the device failed or is gone"));
        self.phase = Phase::Finished;
    }

    /// Destroys the queue pair and then takes back the memory of posted work.
    ///
    /// # Errors
    /// The device did not destroy the queue pair and may still access that memory, which is never
    /// used again.
    pub(crate) fn end(&mut self) -> Result<(), rdma::Error> {
        if std::mem::replace(&mut self.destroy_attempted, true) {
            return Ok(());
        }
        match QueueDestroyed::queue_pair(&mut self.queue_pair) {
            Ok(proof) => {
                self.sends.queue_destroyed(&proof);
                self.in_device.queue_destroyed(&proof);
                self.end_reads(&proof);
                self.connecting.queue_destroyed(&proof);
                Ok(())
            }
            Err(error) => {
                std::mem::forget(self.responses.take());
                Err(error)
            }
        }
    }

    /// Disconnects and begins to wait for the flush.
    fn disconnect(&mut self, cx: &mut Context<'_, P>) {
        let until = cx.now.saturating_add(cx.config.close_timeout);
        self.phase = Phase::Draining {
            since: cx.now,
            until,
            last_receive: false,
        };
        // Queued work is posted, so that the device flushes it and reports its completion.
        self.post_queued();
        let disconnected = self.connection.disconnect();
        // Required even if the host is not connected, so that posted work is flushed.
        let stopped = self.queue_pair.set_error();
        if disconnected.and(stopped).is_err() {
            // Destroying the queue pair has the same effect.
            self.phase = Phase::Finished;
        }
        self.advance(cx);
    }

    /// Changes to the next phase if there is nothing to wait for.
    fn advance(&mut self, cx: &mut Context<'_, P>) {
        match self.phase {
            Phase::Closing { .. } => {
                let sent = self.waiting_sends.is_empty() && !self.queued;
                if sent && self.sends.is_empty() {
                    self.disconnect(cx);
                }
            }
            Phase::Draining {
                last_receive: true, ..
            } if self.sends.is_empty() => self.phase = Phase::Finished,
            Phase::Connecting { .. }
            | Phase::Serving
            | Phase::Finishing { .. }
            | Phase::Draining { .. }
            | Phase::Finished => {}
        }
    }

    fn report(&self, cx: &Context<'_, P>, cause: Cause) {
        let counters = cx.counters;
        match cause {
            Cause::Disconnected => return,
            Cause::Violation(_) => counters.violations.add(1),
            Cause::SetupTimeout => counters.setup_timeouts.add(1),
            Cause::NoProgress | Cause::BorrowedTooLong => {
                counters.progress_timeouts.add(1);
                counters.connections_broken.add(1);
            }
            Cause::CloseTimeout | Cause::Work(_) | Cause::Post | Cause::Fault(_) => {
                counters.connections_broken.add(1);
            }
        }
        // A disconnect by the host may appear as a flush first, if the device is faster than the
        // connection manager.
        if cause == Cause::Work(CompletionStatus::FLUSHED) {
            return;
        }
        if let Some(withheld) = cx.log.admit(cx.now) {
            let (host, qid) = (self.host_address(), self.negotiated.qid);
            tracing::warn!(?host, qid, %cause, withheld, "a connection breaks off");
        }
    }

    /// Closes the target core's queue and frees every buffer that the device does not access.
    /// Queued responses are kept unless `discards_responses` is set.
    fn release_queue(&mut self, cx: &mut Context<'_, P>, discards_responses: bool) {
        let queue = self.queue.take();
        self.close_queue(cx, queue);
        self.connecting.give_up();
        self.waiting_reads.clear();
        // The device may still write to the leases of posted reads.
        self.slots.abandon(|state| match state {
            SlotState::FetchingData(_) => true,
            SlotState::Responding(_) => !discards_responses,
            _ => false,
        });
        if discards_responses {
            self.waiting_sends.clear();
        }
        self.in_device.abandon(&mut self.slots);
    }

    /// The queue pair was destroyed, so no read is outstanding.
    fn end_reads(&mut self, proof: &QueueDestroyed) {
        for state in self.slots.iter_mut() {
            if let SlotState::FetchingData(fetch) = state {
                fetch.buffer.queue_destroyed(proof);
            }
        }
    }

    /// The identifier of a work request.
    #[inline]
    fn work_id(&self, sequence: u32, last: bool) -> u64 {
        self.work
            .with_sequence(sequence)
            .with_last(last)
            .into_bits()
    }

    /// Whether a work request identifier belongs to this connection.
    #[inline]
    pub(crate) fn is_named_by(&self, id: WorkId) -> bool {
        id.connection() == self.work.connection() && id.generation() == self.work.generation()
    }
}

impl<P: Provider> RequestContext for Context<'_, P> {
    #[inline]
    fn core(&mut self) -> &mut TargetCore {
        self.core
    }

    #[inline]
    fn pool(&self) -> &Pool {
        self.pool
    }

    #[inline]
    fn now(&self) -> Nanos {
        self.now
    }

    fn count_buffer_wait(&self) {
        self.counters.buffer_waits.add(1);
    }
}

impl<P: Provider> nvme_fabrics::Connection for Connection<P> {
    #[inline]
    fn token(&self) -> RequestToken {
        self.token
    }

    fn port(&self) -> PortId {
        self.port
    }

    #[inline]
    fn queue(&self) -> Option<QueueId> {
        self.queue
    }

    #[inline]
    fn wants_flush(&self) -> bool {
        self.queued || self.refused || self.is_finished()
    }

    #[inline]
    fn deadline(&self) -> Option<Nanos> {
        match self.phase {
            Phase::Serving => Some(self.check_at),
            Phase::Connecting { until } => Some(until),
            Phase::Finishing { until, next_look } => Some(until.min(next_look)),
            Phase::Closing { until } => Some(until.min(self.check_at)),
            Phase::Finished => None,
            Phase::Draining { since, until, .. } if self.sends.is_empty() => {
                Some(until.min(since.saturating_add(LAST_RECEIVE_GRACE)))
            }
            Phase::Draining { until, .. } => Some(until),
        }
    }
}

impl<P: Provider> Drop for Connection<P> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "a queue pair was not destroyed: its memory is given up");
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Disconnected => f.write_str("the host disconnected"),
            Self::Violation(what) => write!(f, "protocol violation: {what}"),
            Self::SetupTimeout => f.write_str("the queue was not connected in time"),
            Self::CloseTimeout => f.write_str("the last responses were not received in time"),
            Self::NoProgress => write!(
                f,
                "nothing that was posted for the host completed for {} s",
                PROGRESS_TIMEOUT.0 / 1_000_000_000
            ),
            Self::BorrowedTooLong => write!(
                f,
                "a write waited for blocks that a read of the host borrowed for {} ms",
                BORROW_HOLD_MAX.0 / 1_000_000
            ),
            Self::Work(status) => write!(f, "a work request failed: {status}"),
            Self::Post => f.write_str("a work request could not be posted"),
            Self::Fault(what) => f.write_str(what),
        }
    }
}

/// A capsule in a receive.
#[derive(Clone, Copy, Debug)]
struct Capsule<'a> {
    receive: &'a CompletedReceive,
    /// Bytes that follow the command.
    carried: u32,
}

/// A capsule that was received before the connection manager's Established event.
#[derive(Debug)]
struct EarlyCapsule {
    sqe: Sqe,
    /// The in-capsule data.
    data: Option<Lease>,
    carried: u32,
}
