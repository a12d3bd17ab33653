//! Hand-over of a connection to a new process (`ARCHITECTURE.md` §9.1).
//!
//! A connection that is *held* completes its requests and admits no commands. Data that its requests
//! wait for may be behind commands in the stream, so these are received and kept as they are, as
//! many as the queue has entries. When no request waits for data, nothing more is received: what the
//! host sends stays in the socket. The bytes that were kept are part of the record, and so are those
//! of responses that the host has not received.
//!
//! A connection whose stream belongs to the process, because it has keys, is not continued. It
//! completes its requests like the others, sends the responses, and is closed then, so that its host
//! connects to the process that serves.
//!
//! A connection that is *resumed*, in the old process or in the new one, interprets the kept bytes
//! before it receives others. The old process may resume it at any moment: data of a request that
//! has begun are received to their end first, because the kept bytes are before them in the stream.

use arrayvec::ArrayVec;
use nvme_handover::{Bytes, QueueRecord, SkippedData, State, TcpConnectionRecord, TcpPhase};
use nvme_spec::tcp::{DATA_ALIGNMENT_MAX_Z, FatalError, Framing, PDU_DATA_MAX_BYTES};
use nvme_target::{HandoverError, RestoredConnection};
use zerocopy::IntoBytes;

use super::{Connection, Context, Expecting, Phase, Sink};
use crate::config::IN_CAPSULE_BYTES_MAX;
use crate::digest::DIGEST_BYTES;
use crate::receive::{Order, PARTIAL_HEADER_BYTES_MAX, Pdu, Violation};
use crate::slot::{SlotState, SlotTable};
use crate::stream::ByteStream;

/// Smallest limit for the data of an H2CData PDU, in bytes (TCP 1.1 §3.6.2.3, MAXH2CDATA).
const HOST_DATA_BYTES_MIN: u32 = 4096;

/// Nothing is received.
const RECEIVES_NOTHING: Expecting = Expecting::Data {
    sink: Sink::Nothing,
    bytes: 0,
    remaining: 0,
    digest: false,
};

/// What a held connection has received and not interpreted.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    /// The rest of data that is discarded, before the bytes.
    skipped: Option<SkippedData>,
    bytes: Vec<u8>,
    /// Number of command capsules in the bytes.
    commands: usize,
    stage: Stage,
}

/// How far a hold is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Bytes are kept.
    #[default]
    Keeping,
    /// As before, until the kept bytes can be interpreted: [`Connection::resume`] was called.
    Ending,
    /// This number of the kept bytes is interpreted.
    Interpreting(usize),
}

/// The reason for which a connection cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The table of connections is full.
    #[error("there is no room for another connection")]
    Full,
    /// The record is invalid.
    #[error("the record of a connection is invalid: {0}")]
    Record(&'static str),
    /// The target refuses its queue.
    #[error(transparent)]
    Target(#[from] HandoverError),
}

impl<S: ByteStream> Connection<S> {
    /// Whether [`export`](Self::export) has nothing to export, because the connection ends.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing { .. })
    }

    /// Whether it ends because no other process can continue its stream, and has something to send.
    pub(crate) fn is_finishing(&self) -> bool {
        let is_sending = matches!(
            self.phase,
            Phase::Closing {
                finished_sending: false,
                ..
            }
        );
        is_sending && self.stream.belongs_to_process()
    }

    /// Closes the connection when its requests are completed, and an admin queue after the I/O queues
    /// of its controller, if no other process can continue its stream. Returns whether it is such a
    /// connection.
    pub(crate) fn finish_if_bound(&mut self, cx: &mut Context<'_>) -> bool {
        let is_bound = self.stream.belongs_to_process();
        if is_bound {
            let is_needed = self.queue.is_some_and(|queue| cx.core.has_io_queues(queue));
            if self.is_quiet(cx) && !is_needed {
                self.close(cx);
            }
        }
        is_bound
    }

    /// Whether it is held and not resumed.
    pub(super) fn is_held(&self) -> bool {
        let held_back = self.held_back.as_ref();
        held_back.is_some_and(|it| !matches!(it.stage, Stage::Interpreting(_)))
    }

    /// Whether it waits to be resumed before it receives anything.
    pub(super) fn receives_nothing(&self) -> bool {
        let expecting = &self.expecting;
        matches!(
            expecting,
            Expecting::Data {
                sink: Sink::Nothing,
                ..
            }
        )
    }

    /// Begins to hold the connection, unless kept bytes of an earlier hold are to be interpreted first.
    pub(crate) fn hold(&mut self, cx: &mut Context<'_>) {
        match self.phase {
            Phase::Closing { .. } | Phase::Held => return,
            Phase::Initialising | Phase::Connecting | Phase::Serving => {}
        }
        self.phase = Phase::Held;
        self.held_back = Some(Box::default());
        self.consume_in_buffer(cx);
    }

    fn consume_in_buffer(&mut self, cx: &mut Context<'_>) {
        cx.buffers.attach_buffer(&mut self.receiver);
        self.consume(cx);
        cx.buffers.detach_buffer(&mut self.receiver, self.account);
    }

    /// The phase of a held connection without the hold.
    fn resumed_phase(&self) -> Phase {
        if self.queue.is_some() {
            Phase::Serving
        } else if self.rules.order == Order::Operate {
            Phase::Connecting
        } else {
            Phase::Initialising
        }
    }

    /// Whether a request waits for data of the stream, or may do so later.
    fn needs_input(&self) -> bool {
        let is_waiting = |state: &SlotState| {
            matches!(
                state,
                SlotState::AwaitingRate(..)
                    | SlotState::AwaitingBuffer(_)
                    | SlotState::AwaitingCopyBuffer(..)
                    | SlotState::AwaitingFetch(_)
                    | SlotState::FetchingData(_)
            )
        };
        self.pending_connect.is_some() || self.slots.iter().any(is_waiting)
    }

    /// Handles the buffered bytes of a held connection, up to those of a request that has begun.
    /// Returns whether there may be such bytes.
    pub(super) fn consume_held(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_held() {
            self.interpret(cx);
            return false;
        }
        while self.phase == Phase::Held {
            if self.end_hold() {
                self.interpret(cx);
                return false;
            }
            if !self.needs_input() {
                self.receive_nothing();
                return false;
            }
            let advanced = match self.expecting {
                Expecting::Header => self.keep_commands(cx),
                Expecting::Data {
                    sink: Sink::Nothing,
                    ..
                } => return false,
                Expecting::Data {
                    sink: Sink::Aside,
                    bytes,
                    remaining,
                    digest,
                } => Ok(self.keep_data(bytes, remaining, digest)),
                Expecting::Digest {
                    sink: Sink::Aside, ..
                } => Ok(self.keep_digest()),
                Expecting::Data { .. } | Expecting::Digest { .. } => return true,
            };
            match advanced {
                Ok(true) => {}
                Ok(false) => return false,
                Err(violation) => self.terminate(cx, &violation),
            }
        }
        false
    }

    /// Keeps all buffered bytes, and receives no more.
    fn receive_nothing(&mut self) {
        let skipped = match self.expecting {
            Expecting::Data {
                sink: Sink::Discard,
                remaining,
                digest,
                ..
            } => Some((remaining, digest)),
            Expecting::Digest {
                sink: Sink::Discard,
                ..
            } => Some((0, true)),
            Expecting::Data { .. } | Expecting::Digest { .. } | Expecting::Header => None,
        };
        self.expecting = RECEIVES_NOTHING;
        let buffered = self.receiver.buffered().len();
        let taken = self.keep(buffered);
        debug_assert_eq!(taken, buffered);
        if let (Some((remaining, digest)), Some(held_back)) = (skipped, &mut self.held_back) {
            held_back.skipped = Some(SkippedData {
                // Not truncated: the length of a PDU.
                remaining: remaining as u32,
                digest,
            });
        }
    }

    /// Keeps up to `bytes` of the buffered bytes; returns their number.
    fn keep(&mut self, bytes: usize) -> usize {
        let buffered = self.receiver.buffered();
        let kept = &buffered[..bytes.min(buffered.len())];
        let count = kept.len();
        if let Some(held_back) = &mut self.held_back {
            held_back.bytes.extend_from_slice(kept);
        }
        self.receiver.consume(count);
        count
    }

    /// Keeps the data of a command; returns whether all of it has arrived.
    fn keep_data(&mut self, bytes: usize, remaining: usize, digest: bool) -> bool {
        let sink = Sink::Aside;
        let remaining = remaining - self.keep(remaining);
        self.expecting = match (remaining, digest) {
            (0, true) => Expecting::Digest { sink, bytes },
            (0, false) => Expecting::Header,
            (remaining, digest) => Expecting::Data {
                sink,
                bytes,
                remaining,
                digest,
            },
        };
        remaining == 0
    }

    /// Keeps a data digest; returns whether it has arrived.
    fn keep_digest(&mut self) -> bool {
        let has_arrived = self.receiver.buffered().len() >= DIGEST_BYTES;
        if has_arrived {
            self.keep(DIGEST_BYTES);
            self.expecting = Expecting::Header;
        }
        has_arrived
    }

    /// Takes a header: keeps a command, and handles any other PDU.
    fn keep_commands(&mut self, cx: &mut Context<'_>) -> Result<bool, Box<Violation>> {
        let buffered = self.receiver.buffered();
        let before: ArrayVec<u8, PARTIAL_HEADER_BYTES_MAX> = buffered
            .iter()
            .copied()
            .take(PARTIAL_HEADER_BYTES_MAX)
            .collect();
        let buffered_bytes = buffered.len();
        let Some(pdu) = self.receiver.next_pdu(&self.rules)? else {
            return Ok(false);
        };
        match pdu {
            Pdu::Command(payload) => {
                let header = &before[..buffered_bytes - self.receiver.buffered().len()];
                let room = self.slots.vacant().saturating_sub(self.unsent_inline);
                let kept = self.held_back.as_mut().filter(|it| it.commands < room);
                let Some(held_back) = kept else {
                    // The host sent more commands than its queue has entries.
                    let command = self.receiver.command().as_bytes();
                    return Err(Violation::new(FatalError::SEQUENCE_ERROR, 0, command));
                };
                held_back.commands += 1;
                held_back.bytes.extend_from_slice(header);
                self.expect_payload(Sink::Aside, payload);
            }
            Pdu::HostData(header, payload) => self.begin_host_data(&header, payload)?,
            // Not in order once there are requests, so it was refused before.
            Pdu::Initialise(_) => {}
            Pdu::Terminate(_) => self.close(cx),
        }
        Ok(true)
    }

    /// The record of a held connection; `None` while it has requests that are not completed.
    pub(crate) fn export(&mut self, cx: &mut Context<'_>) -> Option<TcpConnectionRecord> {
        if !self.is_quiet(cx) {
            return None;
        }
        let phase = match (self.queue, self.resumed_phase()) {
            (Some(queue), _) => {
                let (controller_id, qid) = cx.core.queue_name(queue)?;
                TcpPhase::Serving { controller_id, qid }
            }
            (None, Phase::Connecting) => TcpPhase::Connecting,
            (None, _) => TcpPhase::Initialising,
        };
        let unsent = self.transmitter.unsent_bytes()?;
        let held_back = self.held_back.as_ref()?;
        let framing = self.rules.framing;
        Some(TcpConnectionRecord {
            // Not truncated: reactors have 16-bit numbers elsewhere.
            reactor: cx.core.reactor() as u32,
            port: self.port.0,
            phase,
            header_digest: framing.header_digest,
            data_digest: framing.data_digest,
            host_alignment_z: framing.alignment_z,
            host_data_max_bytes: self.rules.host_data_bytes_max,
            in_capsule_max_bytes: self.rules.in_capsule_bytes_max,
            success_flag: self.success_flag,
            skipped: held_back.skipped,
            received: Bytes(held_back.bytes.clone()),
            unsent: Bytes(unsent),
        })
    }

    /// Whether nothing but sending is left to do.
    fn is_quiet(&mut self, cx: &mut Context<'_>) -> bool {
        // It was not held if it was still being resumed when the hold began.
        self.hold(cx);
        if self.phase == Phase::Held && !self.is_stalled() {
            self.consume_in_buffer(cx);
        }
        let is_over = |state: &SlotState| {
            matches!(
                state,
                SlotState::Free | SlotState::Held | SlotState::Responding(_)
            )
        };
        self.is_held() && self.receives_nothing() && self.slots.iter().all(is_over)
    }

    /// Ends the hold: interprets what was kept, and then receives again.
    pub(crate) fn resume(&mut self, cx: &mut Context<'_>) {
        if let Some(held_back) = &mut self.held_back
            && held_back.stage == Stage::Keeping
        {
            held_back.stage = Stage::Ending;
            self.consume_in_buffer(cx);
        }
    }

    /// Begins to interpret the kept bytes if the hold is to end and they are what is next. Returns
    /// whether it does.
    fn end_hold(&mut self) -> bool {
        let held_back = self.held_back.as_ref();
        let Some(held_back) = held_back.filter(|it| it.stage == Stage::Ending) else {
            return false;
        };
        let (skipped, is_empty) = (held_back.skipped, held_back.bytes.is_empty());
        self.expecting = match self.expecting {
            Expecting::Data {
                sink: Sink::Nothing,
                ..
            } => expecting_skipped(skipped),
            // A command whose data have not arrived is interpreted from its header on.
            Expecting::Header
            | Expecting::Data {
                sink: Sink::Aside, ..
            }
            | Expecting::Digest {
                sink: Sink::Aside, ..
            } => {
                self.keep(self.receiver.buffered().len());
                Expecting::Header
            }
            // Data of a request that has begun.
            expecting if is_empty => expecting,
            Expecting::Data { .. } | Expecting::Digest { .. } => return false,
        };
        if let Some(held_back) = &mut self.held_back {
            held_back.stage = Stage::Interpreting(0);
        }
        true
    }

    /// Interprets kept bytes, until none is left or the stream has to wait for a lease. The
    /// connection stays held in the latter case.
    fn interpret(&mut self, cx: &mut Context<'_>) {
        loop {
            let buffered = self.receiver.buffered().len();
            let room_bytes = cx.buffers.room_max(buffered, self.account);
            let Some(held_back) = &mut self.held_back else {
                return;
            };
            let Stage::Interpreting(done) = held_back.stage else {
                return;
            };
            let left = &held_back.bytes[done..];
            let room = self.receiver.room();
            let count = left.len().min(room.len()).min(room_bytes);
            room[..count].copy_from_slice(&left[..count]);
            self.receiver.filled(count);
            held_back.stage = Stage::Interpreting(done + count);
            let is_last = count == left.len();
            self.phase = self.resumed_phase();
            if is_last {
                self.held_back = None;
            }
            self.consume(cx);
            if is_last || self.is_closing() {
                return;
            }
            // The phase may have become that of a queue.
            self.phase = Phase::Held;
            if self.is_stalled() {
                return;
            }
            debug_assert!(count > 0, "an unfinished header leaves room");
        }
    }

    /// Continues a connection of an earlier process, which stays held until it is resumed.
    ///
    /// # Errors
    /// The problem. The target has no queue of the connection then.
    pub(crate) fn restore(
        &mut self,
        cx: &mut Context<'_>,
        state: &State,
        record: &TcpConnectionRecord,
    ) -> Result<(), RestoreError> {
        check(record).map_err(RestoreError::Record)?;
        self.rules.host_data_bytes_max = record.host_data_max_bytes;
        if record.phase != TcpPhase::Initialising {
            self.operate(Framing {
                header_digest: record.header_digest,
                data_digest: record.data_digest,
                alignment_z: record.host_alignment_z,
            });
        }
        if let TcpPhase::Serving { controller_id, qid } = record.phase {
            let is_it = |it: &&QueueRecord| (it.controller_id, it.qid) == (controller_id, qid);
            let queue = state.queues.iter().find(is_it);
            let queue = queue.ok_or(RestoreError::Record("its queue does not exist"))?;
            self.restore_queue(cx, state, queue)?;
            self.rules.in_capsule_bytes_max = record.in_capsule_max_bytes;
            self.success_flag = record.success_flag;
        }
        if !record.unsent.0.is_empty() {
            self.transmitter.push_control(&record.unsent.0);
        }
        self.phase = Phase::Held;
        self.expecting = RECEIVES_NOTHING;
        self.held_back = Some(Box::new(HeldBack {
            skipped: record.skipped,
            bytes: record.received.0.clone(),
            commands: 0,
            stage: Stage::Keeping,
        }));
        Ok(())
    }

    fn restore_queue(
        &mut self,
        cx: &mut Context<'_>,
        state: &State,
        record: &QueueRecord,
    ) -> Result<(), RestoreError> {
        let connection = RestoredConnection {
            transport: cx.transport,
            connection: u32::from(self.token.connection()),
        };
        let (token, now) = (self.token, cx.now);
        let mut slots = SlotTable::new(record.depth);
        let mut new_tag = || {
            let slot = slots.take()?;
            slots.hold(slot);
            Some(token.with_slot(slot).into_bits())
        };
        let restored = cx
            .core
            .restore_queue(state, record, connection, &mut new_tag, now);
        let (queue, info) = restored?;
        self.serve(cx, queue, &info);
        self.slots = slots;
        Ok(())
    }
}

/// What is next in the stream of a connection that has received nothing since: the rest of data that
/// is discarded, or a header.
fn expecting_skipped(skipped: Option<SkippedData>) -> Expecting {
    let sink = Sink::Discard;
    match skipped {
        Some(SkippedData {
            remaining: 0,
            digest: true,
        }) => Expecting::Digest { sink, bytes: 0 },
        Some(SkippedData { remaining, digest }) if remaining > 0 => Expecting::Data {
            sink,
            bytes: remaining as usize,
            remaining: remaining as usize,
            digest,
        },
        Some(_) | None => Expecting::Header,
    }
}

/// Checks what a record states by itself.
fn check(record: &TcpConnectionRecord) -> Result<(), &'static str> {
    if record.host_alignment_z > DATA_ALIGNMENT_MAX_Z {
        return Err("the data alignment is invalid");
    }
    if !(HOST_DATA_BYTES_MIN..=PDU_DATA_MAX_BYTES).contains(&record.host_data_max_bytes) {
        return Err("the limit of an H2CData PDU is invalid");
    }
    if record.in_capsule_max_bytes > IN_CAPSULE_BYTES_MAX {
        return Err("the limit of in-capsule data is invalid");
    }
    let skipped = record.skipped.map_or(0, |it| it.remaining);
    if skipped > PDU_DATA_MAX_BYTES {
        return Err("the data to discard is longer than a PDU");
    }
    Ok(())
}
