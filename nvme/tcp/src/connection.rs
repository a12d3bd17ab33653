//! One NVMe/TCP connection: initialisation, Connect, commands, and its end.
//!
//! Owns the stream, the request slots and the send queue. It moves data; the target core interprets
//! commands. It never blocks, and does not allocate after Connect. TCP 1.1 §3.3, §3.5 and §3.6.

mod audit;
mod direct_placement;
mod handover;
mod progress;
mod requests;

use std::collections::VecDeque;
use std::io::IoSliceMut;

use hugemem::{Account, Lease, Pool};
use nvme_fabrics::{Connection as _, Event, RequestContext, RequestToken, Requests};
use nvme_spec::tcp::{FatalError, Framing, IcReq};
use nvme_spec::{Cqe, Sqe, Status};
use nvme_target::{
    Arrival, Completed, ConnectOutcome, PortId, QueueId, QueueInfo, Released, TargetCore, Timing,
    TransportId,
};
use reactors::{LogLimit, Nanos, Placement};
use zerocopy::IntoBytes;

pub use audit::ConnectionAudit;
use handover::HeldBack;
pub use handover::RestoreError;

use crate::config::{
    PROGRESS_CHECK_INTERVAL, PROGRESS_TIMEOUT, PROGRESS_TIMEOUT_CONTENDED, PortSettings,
    RESERVE_RETRY_INTERVAL, TcpConfig,
};
use crate::counters::TcpCounters;
use crate::digest::digest;
use crate::receive::{Payload, Pdu, Receiver, Rules, Violation};
use crate::receive_buffers::ReceiveBuffers;
use crate::slot::{SlotState, SlotTable, is_fetching};
use crate::stream::{ByteStream, Transferred};
use crate::termination::termination_request;
use crate::transmit::{Finishes, Flushed, Transmitter};

/// Bytes of the data of a Connect command (Base 2.1 §6.3).
const CONNECT_DATA_BYTES: usize = 1024;
/// Receives of one connection in one poll, before the next connection is polled.
const RECEIVES_PER_POLL_MAX: usize = 4;

/// Responses of an admin queue for which storage is allocated at Connect, whatever its depth. More
/// is allocated when a host has more commands outstanding.
const RESERVED_RESPONSES_MAX: u16 = 128;

/// Receive space behind awaited data, in bytes: enough for some headers.
const ROOM_BEFORE_DATA_BYTES: usize = 512;
/// Time for which a stream that accepts no data may borrow device memory. Writes to the borrowed
/// range wait meanwhile.
const BORROWED_MAX: Nanos = Nanos::from_millis(100);
/// Interval after that at which the connection checks whether a writer waits for the borrowed data
/// of a partly sent PDU.
const BORROWED_CHECK_INTERVAL: Nanos = Nanos::from_millis(20);

/// What a connection works with while its reactor polls it.
pub(crate) struct Context<'a> {
    pub(crate) core: &'a mut TargetCore,
    pub(crate) buffers: &'a mut ReceiveBuffers,
    pub(crate) pool: &'a Pool,
    pub(crate) config: &'a TcpConfig,
    pub(crate) counters: &'a TcpCounters,
    pub(crate) log: &'a LogLimit,
    /// Counts evictable connections, and the reactor that they are counted for.
    pub(crate) placement: &'a (Placement, usize),
    pub(crate) transport: TransportId,
    pub(crate) now: Nanos,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waits for the ICReq.
    Initialising,
    /// Waits for the Connect command.
    Connecting,
    /// Serves its queue.
    Serving,
    /// Completes its requests and admits no commands, before a hand-over (`handover.rs`). Ends when
    /// the connection is resumed.
    Held,
    /// Sends what is queued and then closes the sending side. Discards received bytes until the
    /// host closes its side or `until` has passed.
    Closing {
        until: Nanos,
        finished_sending: bool,
    },
}

/// Why a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The host closed it, or both sides have.
    Closed,
    /// The stream broke.
    Broken,
    /// The host did not finish its set-up in time.
    SetupTimeout,
    /// The host received no data for too long.
    SendTimeout,
    /// A borrow had to end, and there was no lease for the rest of the partly sent PDU.
    NoCopy,
    /// It was not attached to an export, and was ended to make room for another one.
    Evicted,
}

/// The destination of the data of a PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sink {
    Slot(u16),
    Connect,
    Discard,
    /// Kept as received, for after a hand-over.
    Aside,
    /// No data: nothing is received until the connection is resumed.
    Nothing,
}

/// What is received next.
#[derive(Debug, Clone, Copy)]
enum Expecting {
    Header,
    /// `remaining` of the `bytes` bytes of data of this PDU, for `sink`.
    Data {
        sink: Sink,
        bytes: usize,
        remaining: usize,
        digest: bool,
    },
    Digest {
        sink: Sink,
        bytes: usize,
    },
}

/// A Connect command whose data is being received.
#[derive(Debug)]
struct PendingConnect {
    sqe: Sqe,
    data: Box<[u8; CONNECT_DATA_BYTES]>,
    filled: usize,
    corrupt: bool,
}

/// One host's connection: one queue pair.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    stream: S,
    expecting: Expecting,
    phase: Phase,
    token: RequestToken,
    queue: Option<QueueId>,
    slots: SlotTable,
    transmitter: Transmitter,
    receiver: Receiver,
    rules: Rules,
    pending_connect: Option<PendingConnect>,
    /// Number of commands that completed inline, without a slot, and whose responses are not sent.
    unsent_inline: usize,
    /// Timings of the oldest of these, for those whose responses were not sent in the same turn.
    deferred_timings: VecDeque<Timing>,
    /// Number of requests with an R2T whose data is not complete.
    solicited: usize,
    /// The account that its leases are charged to; the appliance's own before Connect.
    account: Account,
    /// Whether a successful read without a result ends with the SUCCESS flag of its data instead of
    /// a response capsule.
    success_flag: bool,
    /// The stream accepts no more bytes: borrows are suspended then, unless all is sent before.
    borrows_until: Option<Nanos>,
    /// Borrows were suspended. Until all is sent, a borrow lasts for one send only.
    is_slow: bool,
    /// Time of the next progress check, while requests wait for data from the host or the stream
    /// accepts no more bytes.
    progress_check_at: Option<Nanos>,
    /// When awaited data was last received, or the first request began to wait for data.
    data_at: Nanos,
    /// When the stream last accepted bytes, or was first found to accept none.
    sent_at: Nanos,
    /// Bytes that the stream had accepted at that time.
    sent_bytes: u64,
    /// The PDU that was partly sent at that time, if its data is borrowed.
    partly_sent_borrow: Option<u64>,
    port: PortId,
    settings: PortSettings,
    setup_deadline: Nanos,
    /// It has, or had, a queue of an export's controller, so it cannot be evicted.
    attached: bool,
    /// Whether its queue is an I/O queue.
    serves_io: bool,
    pub(crate) opened_at: Nanos,
    /// When bytes were last received. A recently active I/O queue is polled without asking epoll.
    pub(crate) last_arrival: Nanos,
    /// The stream takes no more bytes, and the transport waits until it is writable.
    pub(crate) awaits_writable: bool,
    /// What a held connection has received and not interpreted.
    held_back: Option<Box<HeldBack>>,
}

impl<S: ByteStream> Connection<S> {
    /// A connection that was just accepted on `port`. `token` identifies it in requests. With a
    /// `framing`, its host has received the ICResp that agreed on it.
    pub(crate) fn new(
        stream: S,
        framing: Option<Framing>,
        port: PortId,
        token: RequestToken,
        cx: &Context<'_>,
    ) -> Self {
        let mut connection = Self {
            stream,
            expecting: Expecting::Header,
            phase: Phase::Initialising,
            token,
            queue: None,
            slots: SlotTable::default(),
            transmitter: Transmitter::new(),
            receiver: Receiver::new(),
            rules: Rules::before_initialisation(cx.config.host_data_bytes_max),
            pending_connect: None,
            unsent_inline: 0,
            deferred_timings: VecDeque::new(),
            solicited: 0,
            account: Account::SYSTEM,
            success_flag: false,
            borrows_until: None,
            is_slow: false,
            progress_check_at: None,
            data_at: cx.now,
            sent_at: cx.now,
            sent_bytes: 0,
            partly_sent_borrow: None,
            port,
            settings: cx.config.port(port),
            setup_deadline: cx.now.saturating_add(cx.config.setup_timeout),
            attached: false,
            serves_io: false,
            opened_at: cx.now,
            last_arrival: cx.now,
            awaits_writable: false,
            held_back: None,
        };
        if let Some(framing) = framing {
            connection.operate(framing);
        }
        connection
    }

    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    /// The stream of a connection that has ended.
    pub(crate) fn into_stream(self) -> S {
        self.stream
    }

    /// Whether it has, or had, a queue of an export's controller.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached
    }

    /// Whether its queue is an I/O queue.
    pub(crate) fn serves_io(&self) -> bool {
        self.serves_io
    }

    /// Whether data is queued for sending, or the stream is to be closed for sending.
    pub(crate) fn has_output(&self) -> bool {
        !self.transmitter.is_empty()
            || self.stream.keeps_unsent()
            || matches!(
                self.phase,
                Phase::Closing {
                    finished_sending: false,
                    ..
                }
            )
    }

    /// Requests in flight, without Asynchronous Event Requests that the target core holds.
    pub(crate) fn requests_in_flight(&self) -> usize {
        self.slots.active() + self.unsent_inline
    }

    /// Whether the connection waits for data of a request that has begun.
    pub(crate) fn awaits_host_data(&self) -> bool {
        let is_between = matches!(self.expecting, Expecting::Header) || self.receives_nothing();
        !is_between || self.slots.iter().any(is_fetching)
    }

    /// Handles a deadline that has passed.
    pub(crate) fn check_deadline(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        if self.deadline().is_none_or(|deadline| cx.now < deadline) {
            return Ok(());
        }
        match self.phase {
            Phase::Closing { until, .. } if until <= cx.now => Err(Ended::Closed),
            // Queued PDUs are still sent, and may borrow device memory.
            Phase::Closing { .. } => self.stop_borrowing(cx),
            Phase::Held if self.queue.is_none() => Err(Ended::SetupTimeout),
            Phase::Initialising | Phase::Connecting => Err(Ended::SetupTimeout),
            Phase::Serving | Phase::Held => {
                if self.borrows_until.is_some_and(|until| until <= cx.now) {
                    self.stop_borrowing(cx)?;
                }
                if self.progress_check_at.is_some_and(|at| at <= cx.now) {
                    self.check_progress(cx)?;
                }
                Ok(())
            }
        }
    }

    /// Receives and handles available bytes; returns the number of receives that returned data.
    pub(crate) fn receive(&mut self, cx: &mut Context<'_>) -> Result<u32, Ended> {
        cx.buffers.attach_buffer(&mut self.receiver);
        let received = self.receive_into_buffer(cx);
        cx.buffers.detach_buffer(&mut self.receiver, self.account);
        received
    }

    /// Returns the buffer and discards its contents, because the connection ends.
    pub(crate) fn release_buffer(&mut self, cx: &mut Context<'_>) {
        cx.buffers.release(&mut self.receiver, self.account);
    }

    fn receive_into_buffer(&mut self, cx: &mut Context<'_>) -> Result<u32, Ended> {
        let mut arrivals = 0;
        for _ in 0..RECEIVES_PER_POLL_MAX {
            // A connection that is being closed has no buffer.
            if self.is_stalled() || !self.receiver.has_buffer() {
                break;
            }
            cx.counters.receives.add(1);
            let (offered, outcome) = self.fill(cx);
            match outcome {
                Transferred::Bytes(bytes) => {
                    arrivals += 1;
                    self.last_arrival = cx.now;
                    cx.counters.bytes_received.add(bytes as u64);
                    self.consume(cx);
                    if bytes < offered {
                        break;
                    }
                }
                Transferred::WouldBlock => break,
                Transferred::Closed => return Err(Ended::Closed),
                Transferred::Failed(_) => return Err(Ended::Broken),
            }
        }
        Ok(arrivals)
    }

    /// Whether in-capsule data waits for a lease, so that nothing behind it can be received.
    pub(super) fn is_stalled(&mut self) -> bool {
        match self.expecting {
            Expecting::Data {
                sink: Sink::Slot(slot),
                ..
            } => {
                matches!(
                    self.slots.state(slot),
                    SlotState::AwaitingBuffer(_) | SlotState::AwaitingRate(..)
                )
            }
            Expecting::Data {
                sink: Sink::Nothing,
                ..
            } => true,
            Expecting::Data { .. } | Expecting::Digest { .. } | Expecting::Header => false,
        }
    }

    /// Makes one vectored receive: awaited data directly into its device or lease, and what follows
    /// into the buffer.
    fn fill(&mut self, cx: &mut Context<'_>) -> (usize, Transferred) {
        // Solicited data most likely follows. Data received together with its header must be
        // copied, so the receive is kept short.
        let buffered = self.receiver.buffered().len();
        let mut room_bytes = cx.buffers.room_max(buffered, self.account);
        if self.solicited > 0 {
            room_bytes = room_bytes.min(ROOM_BEFORE_DATA_BYTES);
        }
        if let Some(received) = self.receive_into_device(cx, room_bytes) {
            return received;
        }
        if let Expecting::Data {
            sink: Sink::Slot(slot),
            remaining,
            ..
        } = &mut self.expecting
            && let SlotState::FetchingData(fetch) = self.slots.state(*slot)
            && self.receiver.buffered().is_empty()
        {
            let lease = &mut fetch.lease[fetch.filled..fetch.filled + *remaining];
            let room = first(self.receiver.room(), room_bytes);
            let (lease_bytes, offered) = (lease.len(), lease.len() + room.len());
            let mut buffers = [IoSliceMut::new(lease), IoSliceMut::new(room)];
            let outcome = self.stream.receive_into_private(&mut buffers);
            if let Transferred::Bytes(bytes) = outcome {
                self.data_at = cx.now;
                let placed = bytes.min(lease_bytes);
                fetch.filled += placed;
                *remaining -= placed;
                cx.counters.bytes_placed.add(placed as u64);
                self.receiver.filled(bytes - placed);
            }
            return (offered, outcome);
        }
        let room = first(self.receiver.room(), room_bytes);
        let offered = room.len();
        let mut buffers = [IoSliceMut::new(room)];
        let outcome = self.stream.receive_into_private(&mut buffers);
        if let Transferred::Bytes(bytes) = outcome {
            self.receiver.filled(bytes);
        }
        (offered, outcome)
    }

    /// Handles all complete PDUs in the buffer.
    fn consume(&mut self, cx: &mut Context<'_>) {
        loop {
            let is_served = !matches!(self.phase, Phase::Closing { .. } | Phase::Held);
            if !is_served && !self.consume_unserved(cx) {
                return;
            }
            let advanced = match self.expecting {
                Expecting::Header => self.take_header(cx),
                Expecting::Data {
                    sink,
                    bytes,
                    remaining,
                    digest,
                } => self.take_data(cx, sink, bytes, remaining, digest),
                Expecting::Digest { sink, bytes } => self.take_digest(cx, sink, bytes),
            };
            match advanced {
                Ok(true) => {}
                Ok(false) => return,
                Err(violation) => self.terminate(cx, &violation),
            }
        }
    }

    /// Handles buffered bytes of a connection that is being closed or held. Returns whether the next
    /// ones belong to a request that has begun, and are handled as those of a served connection.
    #[cold]
    #[inline(never)]
    fn consume_unserved(&mut self, cx: &mut Context<'_>) -> bool {
        if matches!(self.phase, Phase::Closing { .. }) {
            let buffered = self.receiver.buffered().len();
            self.receiver.consume(buffered);
            false
        } else {
            self.consume_held(cx)
        }
    }

    fn take_header(&mut self, cx: &mut Context<'_>) -> Result<bool, Box<Violation>> {
        let Some(pdu) = self.receiver.next_pdu(&self.rules)? else {
            return Ok(false);
        };
        match pdu {
            Pdu::Initialise(request) => self.initialise(cx, &request)?,
            Pdu::Command(payload) => match self.queue {
                Some(queue) => self.admit(cx, queue, payload)?,
                None => self.begin_connect(cx, payload),
            },
            Pdu::HostData(header, payload) => self.begin_host_data(&header, payload)?,
            Pdu::Terminate(request) => {
                if let Some(withheld) = cx.log.admit(cx.now) {
                    let status = request.fatal_error();
                    let host = self.stream.host_address();
                    tracing::warn!(?host, %status, withheld, "a host terminated its connection");
                }
                self.close(cx);
            }
        }
        Ok(true)
    }

    fn expect_payload(&mut self, sink: Sink, payload: Option<Payload>) {
        if let Some(Payload { bytes, digest }) = payload {
            let bytes = bytes as usize;
            self.expecting = Expecting::Data {
                sink,
                bytes,
                remaining: bytes,
                digest,
            };
        }
    }

    fn take_data(
        &mut self,
        cx: &mut Context<'_>,
        sink: Sink,
        bytes: usize,
        remaining: usize,
        digest: bool,
    ) -> Result<bool, Box<Violation>> {
        let copied = match sink {
            // Held connections keep bytes before they call this function.
            Sink::Discard | Sink::Aside | Sink::Nothing => {
                let discarded = remaining.min(self.receiver.buffered().len());
                self.receiver.consume(discarded);
                discarded
            }
            Sink::Connect => match &mut self.pending_connect {
                Some(pending) => {
                    let filled = pending.filled;
                    let copied = self
                        .receiver
                        .copy_into(&mut pending.data[filled..filled + remaining]);
                    pending.filled += copied;
                    copied
                }
                None => unreachable!("the Connect sink is set with its buffer"),
            },
            Sink::Slot(slot) => match self.slots.state(slot) {
                SlotState::FetchingData(fetch) => {
                    let filled = fetch.filled;
                    let copied = self
                        .receiver
                        .copy_into(&mut fetch.lease[filled..filled + remaining]);
                    fetch.filled += copied;
                    if copied > 0 {
                        self.data_at = cx.now;
                    }
                    cx.counters.bytes_copied.add(copied as u64);
                    copied
                }
                SlotState::AwaitingBuffer(_) | SlotState::AwaitingRate(..) => return Ok(false),
                SlotState::Free
                | SlotState::AwaitingCopyBuffer(..)
                | SlotState::Executing
                | SlotState::Held
                | SlotState::AwaitingFetch(_)
                | SlotState::Responding(_) => {
                    unreachable!("a slot stays with its data until all has arrived")
                }
            },
        };
        let remaining = remaining - copied;
        if remaining > 0 {
            self.expecting = Expecting::Data {
                sink,
                bytes,
                remaining,
                digest,
            };
            return Ok(false);
        }
        if digest {
            self.expecting = Expecting::Digest { sink, bytes };
        } else {
            self.payload_complete(cx, sink);
        }
        Ok(true)
    }

    fn take_digest(
        &mut self,
        cx: &mut Context<'_>,
        sink: Sink,
        bytes: usize,
    ) -> Result<bool, Box<Violation>> {
        let Some(found) = self.receiver.take_digest() else {
            return Ok(false);
        };
        // A wrong data digest fails the command, not the connection (TCP 1.1 §3.3.1.1).
        let matches = match sink {
            Sink::Discard | Sink::Aside | Sink::Nothing => true,
            Sink::Connect => match &mut self.pending_connect {
                Some(pending) => {
                    pending.corrupt = digest(&pending.data[..pending.filled]) != found;
                    !pending.corrupt
                }
                None => unreachable!("the Connect sink is set with its buffer"),
            },
            Sink::Slot(slot) => match self.slots.state(slot) {
                SlotState::FetchingData(fetch) => {
                    let arrived = &fetch.lease[fetch.filled - bytes..fetch.filled];
                    let matches = digest(arrived) == found;
                    fetch.corrupt |= !matches;
                    matches
                }
                SlotState::Free
                | SlotState::AwaitingRate(..)
                | SlotState::AwaitingBuffer(_)
                | SlotState::AwaitingCopyBuffer(..)
                | SlotState::Executing
                | SlotState::Held
                | SlotState::AwaitingFetch(_)
                | SlotState::Responding(_) => {
                    unreachable!("a slot stays with its data until its digest has arrived")
                }
            },
        };
        if !matches {
            cx.counters.data_digest_errors.add(1);
        }
        self.payload_complete(cx, sink);
        Ok(true)
    }

    fn payload_complete(&mut self, cx: &mut Context<'_>, sink: Sink) {
        self.expecting = Expecting::Header;
        match sink {
            Sink::Discard | Sink::Aside | Sink::Nothing => {}
            Sink::Connect => self.connect(cx),
            Sink::Slot(slot) => {
                let complete = match self.slots.state(slot) {
                    SlotState::FetchingData(fetch) => fetch.missing() == 0 && !fetch.awaits_rate,
                    SlotState::Free
                    | SlotState::AwaitingRate(..)
                    | SlotState::AwaitingBuffer(_)
                    | SlotState::Executing
                    | SlotState::AwaitingCopyBuffer(..)
                    | SlotState::Held
                    | SlotState::AwaitingFetch(_)
                    | SlotState::Responding(_) => false,
                };
                if complete {
                    self.step(cx, slot, Event::Fetched);
                }
            }
        }
    }

    /// Handles the ICReq and queues the ICResp (TCP 1.1 §3.1).
    fn initialise(&mut self, cx: &Context<'_>, request: &IcReq) -> Result<(), Box<Violation>> {
        let terms = self.settings.terms(cx.config.host_data_bytes_max);
        let (response, framing) = terms.agree(request).map_err(|(status, information)| {
            Violation::new(status, information, request.as_bytes())
        })?;
        self.transmitter.push_control(response.as_bytes());
        self.operate(framing);
        Ok(())
    }

    /// The initialisation is complete: Connect is next.
    fn operate(&mut self, framing: Framing) {
        self.transmitter.negotiate(framing);
        self.rules.operate(framing);
        self.receiver.clear_expected_header();
        self.phase = Phase::Connecting;
    }

    /// Handles the first command of the connection, which must be Connect.
    fn begin_connect(&mut self, cx: &mut Context<'_>, payload: Option<Payload>) {
        let sqe = *self.receiver.command();
        let data = Box::new([0; CONNECT_DATA_BYTES]);
        self.pending_connect = Some(PendingConnect {
            sqe,
            data,
            filled: 0,
            corrupt: false,
        });
        match payload {
            Some(payload) if payload.bytes as usize == CONNECT_DATA_BYTES => {
                self.expect_payload(Sink::Connect, Some(payload));
            }
            other => {
                self.expect_payload(Sink::Discard, other);
                self.connect(cx);
            }
        }
    }

    fn connect(&mut self, cx: &mut Context<'_>) {
        let Some(PendingConnect {
            sqe,
            data,
            filled,
            corrupt,
        }) = self.pending_connect.take()
        else {
            return;
        };
        if corrupt {
            // Like any refused Connect, this ends the connection. Otherwise the number of attempts
            // would need a limit.
            let status = Status::TRANSIENT_TRANSPORT_ERROR;
            self.push_response(&Cqe::new(sqe.cid.get(), status), Finishes::Nothing);
            return self.close(cx);
        }
        let arrival = Arrival {
            transport: cx.transport,
            port: self.port,
            connection: u32::from(self.token.connection()),
            local_address: self.stream.local_address(),
            peer_address: self.stream.host_address().map(|address| address.ip()),
            in_capsule_max: self.settings.in_capsule_bytes,
            channel: self.stream.channel().cloned(),
        };
        match cx.core.connect(&arrival, &sqe, &data[..filled], cx.now) {
            ConnectOutcome::Accepted {
                queue,
                response,
                info,
            } => {
                self.serve(cx, queue, &info);
                self.push_response(&response, Finishes::Nothing);
            }
            ConnectOutcome::Rejected(response) => {
                self.push_response(&response, Finishes::Nothing);
                self.close(cx);
            }
        }
    }

    /// Serves the queue that Connect, or a hand-over, created.
    fn serve(&mut self, cx: &Context<'_>, queue: QueueId, info: &QueueInfo) {
        self.queue = Some(queue);
        self.account = info.account;
        if !info.discovery {
            self.attached = true;
            let (placement, reactor) = cx.placement;
            placement.remove_evictable(*reactor);
        }
        self.serves_io = !info.admin;
        self.slots = SlotTable::new(info.depth);
        // TCP 1.1 §3.6.2.9, SUCCESS: without a response capsule the host receives no SQHD, so only
        // a host that disabled SQ flow control permits it.
        self.success_flag = cx.config.success_flag && !info.flow_control;
        let reserved = usize::from(if info.admin {
            info.depth.min(RESERVED_RESPONSES_MAX)
        } else {
            info.depth
        });
        self.deferred_timings.reserve(reserved);
        self.transmitter.reserve(reserved);
        self.rules.in_capsule_bytes_max = info.in_capsule_max;
        self.receiver.clear_expected_header();
        self.phase = match self.is_held() {
            true => Phase::Held,
            false => Phase::Serving,
        };
    }

    /// The pool granted a lease to a request that waited for one.
    pub(crate) fn granted(&mut self, cx: &mut Context<'_>, slot: u16, lease: Lease) {
        cx.buffers.attach_buffer(&mut self.receiver);
        self.step(cx, slot, Event::Granted(lease));
        // Continue with what is buffered behind this request.
        self.consume(cx);
        cx.buffers.detach_buffer(&mut self.receiver, self.account);
    }

    /// The wait of a request for a rate has ended.
    #[cold]
    pub(crate) fn rate_released(&mut self, cx: &mut Context<'_>, slot: u16, released: Released) {
        cx.buffers.attach_buffer(&mut self.receiver);
        self.released(cx, slot, released);
        // Continue with what is buffered behind this request.
        self.consume(cx);
        cx.buffers.detach_buffer(&mut self.receiver, self.account);
    }

    /// The target core completed a request.
    pub(crate) fn completed(&mut self, cx: &mut Context<'_>, slot: u16, done: Completed) {
        self.step(cx, slot, Event::Completed(done));
    }

    /// Sends what is queued. Returns `Ok(true)` if it must be called again when the stream is
    /// writable.
    pub(crate) fn flush(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let outcome = {
            let Self {
                transmitter,
                stream,
                slots,
                unsent_inline,
                deferred_timings,
                ..
            } = self;
            let (core, now) = (&mut *cx.core, cx.now);
            transmitter.flush(stream, |finishes| match finishes {
                Finishes::Slot(slot) => {
                    if let Some(timing) = slots.sent(slot) {
                        core.sent(timing, now);
                    }
                }
                Finishes::Inline(_) => {
                    *unsent_inline -= 1;
                    if let Some(timing) = deferred_timings.pop_front() {
                        core.sent(timing, now);
                    }
                }
                Finishes::Nothing => {}
            })
        };
        cx.counters.sends.add(self.transmitter.take_sends());
        if matches!(outcome, Flushed::Blocked | Flushed::Yielded) {
            for state in self.slots.iter_mut() {
                if let SlotState::Responding(timing) = state {
                    cx.core.response_deferred(timing);
                }
            }
            self.defer_inline_timings(cx);
        }
        if let Phase::Closing {
            until,
            finished_sending: false,
        } = self.phase
            && outcome == Flushed::Empty
        {
            self.stream.finish_sending();
            self.phase = Phase::Closing {
                until,
                finished_sending: true,
            };
        }
        match outcome {
            Flushed::Empty => {
                self.borrows_until = None;
                self.is_slow = false;
                Ok(false)
            }
            Flushed::Yielded => Ok(false),
            Flushed::Blocked => {
                self.send_blocked(cx);
                Ok(true)
            }
            Flushed::Broken => Err(Ended::Broken),
        }
    }

    /// Notifies the core of commands that completed inline and whose responses are not sent in this
    /// turn.
    #[cold]
    fn defer_inline_timings(&mut self, cx: &mut Context<'_>) {
        let Some(queue) = self.queue else { return };
        let known = self.deferred_timings.len();
        let deferred_timings = self.transmitter.inline_timings().skip(known);
        self.deferred_timings
            .extend(deferred_timings.map(|timing| cx.core.inline_response_deferred(queue, timing)));
    }

    /// Ends the connection after a protocol violation: sends a C2HTermReq and nothing after it (TCP
    /// 1.1 §3.6.2.5).
    fn terminate(&mut self, cx: &mut Context<'_>, violation: &Violation) {
        cx.counters.violations.add(1);
        if let Some(withheld) = cx.log.admit(cx.now) {
            let (status, information) = (violation.status, violation.information);
            let host = self.stream.host_address();
            let hint = violation.hint();
            tracing::warn!(?host, %status, information, withheld, "a host broke the protocol{hint}");
        }
        if violation.status == FatalError::HEADER_DIGEST_ERROR {
            cx.counters.header_digest_errors.add(1);
        }
        self.transmitter.discard_unsent();
        self.unsent_inline = self.transmitter.inline_timings().count();
        self.deferred_timings.truncate(self.unsent_inline);
        self.transmitter
            .push_control(&termination_request(violation));
        self.close(cx);
    }

    /// Ends the connection after what is queued has been sent. Its requests are abandoned and their
    /// leases return to the pool.
    pub(crate) fn close(&mut self, cx: &mut Context<'_>) {
        if matches!(self.phase, Phase::Closing { .. }) {
            return;
        }
        self.release_queue(cx);
        self.release_buffer(cx);
        let until = cx.now.saturating_add(cx.config.close_timeout);
        self.phase = Phase::Closing {
            until,
            finished_sending: false,
        };
        self.expecting = Expecting::Header;
        self.held_back = None;
    }

    /// Closes the target core's queue and frees every buffer that is not queued for sending.
    pub(crate) fn release_queue(&mut self, cx: &mut Context<'_>) {
        let queue = self.queue.take();
        self.close_queue(cx, queue);
        self.slots = SlotTable::default();
        self.solicited = 0;
    }
}

impl RequestContext for Context<'_> {
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

impl<S: ByteStream> nvme_fabrics::Connection for Connection<S> {
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

    fn wants_flush(&self) -> bool {
        !self.awaits_writable && self.has_output()
    }

    fn deadline(&self) -> Option<Nanos> {
        match self.phase {
            Phase::Initialising | Phase::Connecting => Some(self.setup_deadline),
            Phase::Held if self.queue.is_none() => Some(self.setup_deadline),
            Phase::Serving | Phase::Held => match (self.borrows_until, self.progress_check_at) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            },
            Phase::Closing { until, .. } => {
                Some(self.borrows_until.map_or(until, |other| other.min(until)))
            }
        }
    }
}

/// The first `bytes` bytes of `room`, or all of it.
fn first(room: &mut [u8], bytes: usize) -> &mut [u8] {
    let bytes = room.len().min(bytes);
    &mut room[..bytes]
}
