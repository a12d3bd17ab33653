//! The requests of an NVMe/TCP connection: admission of a command capsule, data from the host, and
//! the response PDUs.

use hugemem::{Account, Data, Lease};
use nvme_fabrics::{Event, Requests};
use nvme_spec::tcp::{C2hData, C2hEnd, CapsuleResp, FatalError, H2cData, R2t, offset};
use nvme_spec::{Cqe, Status};
use nvme_target::{
    Admission, Completed, DataSource, Direction, InlineCompletion, QueueId, Timing, Work,
};
use zerocopy::{IntoBytes, transmute};

use super::{Connection, Context, Sink};
use crate::digest::{DIGEST_BYTES, digest};
use crate::receive::{Payload, Violation};
use crate::slot::{Fetch, SlotState, SlotTable};
use crate::stream::ByteStream;
use crate::transmit::Finishes;

impl<S: ByteStream> Connection<S> {
    /// Admits a command of a connected queue.
    #[inline]
    pub(super) fn admit(
        &mut self,
        cx: &mut Context<'_>,
        queue: QueueId,
        payload: Option<Payload>,
    ) -> Result<(), Box<Violation>> {
        // An inline command takes no slot, but counts towards the queue's entries.
        if self.slots.vacant() <= self.unsent_inline {
            return Err(self.too_many_commands());
        }
        let completed_inline = match payload {
            None => self.read_inline(cx, queue),
            Some(payload) => self.write_inline(cx, queue, payload),
        };
        if completed_inline {
            return Ok(());
        }
        self.admit_in_slot(cx, queue, payload)
    }

    /// Completes a read inline, with borrowed data. Returns `false` without effect if it cannot.
    #[inline]
    fn read_inline(&mut self, cx: &mut Context<'_>, queue: QueueId) -> bool {
        let sqe = self.receiver.command();
        let Some(InlineCompletion {
            response,
            data: Some(data),
            inline_timing,
            ..
        }) = cx.core.complete_inline(queue, sqe, None, cx.now)
        else {
            return false;
        };
        cx.counters.commands.add(1);
        self.unsent_inline += 1;
        let bytes = data.len();
        let finishes = Finishes::Inline(inline_timing);
        self.push_data_response(cx, &response, Data::Borrow(data), bytes, finishes);
        if self.awaits_writable {
            self.defer_inline_timings(cx);
            self.suspend_if_slow(cx);
        }
        true
    }

    /// Completes a write inline, with its data in the receive buffer. Returns `false` without
    /// effect if it cannot.
    #[inline]
    fn write_inline(&mut self, cx: &mut Context<'_>, queue: QueueId, payload: Payload) -> bool {
        let bytes = payload.bytes as usize;
        let Some((data, behind)) = self.receiver.buffered().split_at_checked(bytes) else {
            return false;
        };
        let digest_bytes = if payload.digest { DIGEST_BYTES } else { 0 };
        // A wrong digest is handled where the data is received into a lease.
        if payload.digest && behind.first_chunk() != Some(&digest(data)) {
            return false;
        }
        let sqe = self.receiver.command();
        let Some(InlineCompletion {
            response,
            data: None,
            inline_timing,
            ..
        }) = cx.core.complete_inline(queue, sqe, Some(data), cx.now)
        else {
            return false;
        };
        self.receiver.consume(bytes + digest_bytes);
        cx.counters.commands.add(1);
        self.unsent_inline += 1;
        self.push_response(&response, Finishes::Inline(inline_timing));
        if self.awaits_writable {
            self.defer_inline_timings(cx);
        }
        true
    }

    /// Admits a command that takes a slot.
    #[inline(never)]
    fn admit_in_slot(
        &mut self,
        cx: &mut Context<'_>,
        queue: QueueId,
        payload: Option<Payload>,
    ) -> Result<(), Box<Violation>> {
        let Some(slot) = self.slots.take() else {
            return Err(self.too_many_commands());
        };
        let sqe = self.receiver.command();
        cx.counters.commands.add(1);
        let tag = self.token.with_slot(slot).into_bits();
        match cx.core.admit(queue, tag, sqe, cx.now) {
            Admission::Respond(response) => {
                self.expect_payload(Sink::Discard, payload);
                self.queue_response(cx, slot, &response, Timing::NONE, None);
            }
            Admission::Held => {
                self.expect_payload(Sink::Discard, payload);
                self.slots.hold(slot);
            }
            Admission::Copy => self.admit_copy(cx, queue, slot, payload),
            Admission::Throttled => self.admit_throttled(cx, queue, slot, payload),
            Admission::Work(work) => match in_capsule_fault(&work, payload) {
                Some(status) => {
                    self.expect_payload(Sink::Discard, payload);
                    let response = cx.core.reject(queue, work, status);
                    self.queue_response(cx, slot, &response, Timing::NONE, None);
                }
                None => {
                    let sink = match (work.direction(), work.source()) {
                        (Direction::FromHost, DataSource::InCapsule { .. }) => Sink::Slot(slot),
                        _ => Sink::Discard,
                    };
                    self.expect_payload(sink, payload);
                    self.begin(cx, slot, work);
                }
            },
        }
        Ok(())
    }

    /// The host sent more commands than its queue has entries.
    #[cold]
    fn too_many_commands(&self) -> Box<Violation> {
        let sqe = self.receiver.command();
        Violation::new(FatalError::SEQUENCE_ERROR, 0, sqe.as_bytes())
    }

    /// The work that the target core has set aside, unless the data in its capsule is invalid: the
    /// command is refused then.
    #[cold]
    fn take_set_aside(
        &mut self,
        cx: &mut Context<'_>,
        queue: QueueId,
        slot: u16,
        payload: Option<Payload>,
    ) -> Option<Work> {
        let work = cx.core.take_set_aside()?;
        let Some(status) = in_capsule_fault(&work, payload) else {
            return Some(work);
        };
        self.expect_payload(Sink::Discard, payload);
        let response = cx.core.reject(queue, work, status);
        self.queue_response(cx, slot, &response, Timing::NONE, None);
        None
    }

    /// Begins a Copy that was admitted.
    #[cold]
    fn admit_copy(
        &mut self,
        cx: &mut Context<'_>,
        queue: QueueId,
        slot: u16,
        payload: Option<Payload>,
    ) {
        let Some(work) = self.take_set_aside(cx, queue, slot, payload) else {
            return;
        };
        match work.source() {
            DataSource::InCapsule { .. } => {
                // The list has a small lease of its own. If the stream waited for the large one, and
                // an earlier request of this connection had that, its data would be behind the list.
                self.expect_payload(Sink::Slot(slot), payload);
                self.begin(cx, slot, work);
            }
            _ => {
                self.expect_payload(Sink::Discard, payload);
                self.begin_copy(cx, slot, work, None);
            }
        }
    }

    /// Lets a command wait that a rate limit delays. In-capsule data stays in the stream.
    #[cold]
    fn admit_throttled(
        &mut self,
        cx: &mut Context<'_>,
        queue: QueueId,
        slot: u16,
        payload: Option<Payload>,
    ) {
        let Some(work) = self.take_set_aside(cx, queue, slot, payload) else {
            return;
        };
        let is_in_capsule = matches!(
            (work.direction(), work.source()),
            (Direction::FromHost, DataSource::InCapsule { .. })
        );
        let sink = if is_in_capsule {
            Sink::Slot(slot)
        } else {
            Sink::Discard
        };
        self.expect_payload(sink, payload);
        self.await_rate(cx, slot, work, None, !is_in_capsule);
        if is_in_capsule {
            self.watch_progress(cx.now);
        }
    }

    /// Checks an H2CData PDU against its R2T (TCP 1.1 §3.6.2.8).
    pub(super) fn begin_host_data(
        &mut self,
        header: &H2cData,
        payload: Payload,
    ) -> Result<(), Box<Violation>> {
        let violation =
            |status, information| Violation::new(status, information, header.as_bytes());
        let invalid = |offset| violation(FatalError::INVALID_HEADER_FIELD, offset);
        let slot = header.ttag.get();
        let Some(SlotState::FetchingData(fetch)) = self.slots.find(slot) else {
            return Err(invalid(offset::TTAG));
        };
        if !fetch.solicited {
            return Err(invalid(offset::TTAG));
        }
        if fetch.work.command_id() != header.cccid.get() {
            return Err(invalid(offset::CCCID));
        }
        let (begin, bytes) = (header.datao.get() as usize, payload.bytes as usize);
        if begin != fetch.filled || bytes > fetch.missing() {
            return Err(violation(FatalError::DATA_OUT_OF_RANGE, 0));
        }
        let is_last = bytes == fetch.missing();
        if header.ch.flags.last_pdu() != is_last {
            return Err(invalid(offset::FLAGS));
        }
        self.expect_payload(Sink::Slot(slot), Some(payload));
        Ok(())
    }

    #[inline]
    fn push_r2t(&mut self, slot: u16, command_id: u16, bytes: u32) {
        let request = R2t::new(command_id, slot, 0, bytes, self.rules.framing);
        self.transmitter
            .push_header(transmute!(request), Finishes::Nothing);
    }

    /// Queues the data, if any, and the response capsule unless the data PDU has the SUCCESS flag.
    #[inline]
    fn queue_response(
        &mut self,
        cx: &Context<'_>,
        slot: u16,
        response: &Cqe,
        timing: Timing,
        data: Option<(Data, usize)>,
    ) {
        *self.slots.state(slot) = SlotState::Responding(timing);
        let Some((data, bytes)) = data else {
            return self.push_response(response, Finishes::Slot(slot));
        };
        if bytes == 0 || !response.status().is_success() {
            return self.push_response(response, Finishes::Slot(slot));
        }
        self.push_slot_data_response(cx, slot, response, data, bytes);
        if self.is_slow {
            self.suspend_if_slow(cx);
        }
    }

    /// [`push_data_response`](Self::push_data_response) for a request with a slot. A separate
    /// function, so that the call for inline reads is inlined alone.
    #[inline(never)]
    fn push_slot_data_response(
        &mut self,
        cx: &Context<'_>,
        slot: u16,
        response: &Cqe,
        data: Data,
        bytes: usize,
    ) {
        self.push_data_response(cx, response, data, bytes, Finishes::Slot(slot));
    }

    /// Queues data, and the response capsule unless the data PDU has the SUCCESS flag.
    #[inline(always)]
    fn push_data_response(
        &mut self,
        cx: &Context<'_>,
        response: &Cqe,
        data: Data,
        bytes: usize,
        finishes: Finishes,
    ) {
        cx.counters.bytes_sent.add(bytes as u64);
        let (command_id, length) = (response.cid.get(), bytes as u32);
        // SUCCESS replaces a response without a result (TCP 1.1 §3.6.2.9).
        if self.success_flag && response.result() == 0 {
            let header = self.transmitter.success_header(command_id, length);
            self.transmitter
                .push_data(transmute!(header), data, bytes, finishes);
        } else {
            let header = C2hData::new(command_id, 0, length, C2hEnd::Last, self.rules.framing);
            self.transmitter
                .push_data(transmute!(header), data, bytes, Finishes::Nothing);
            self.push_response(response, finishes);
        }
    }

    #[inline(always)]
    pub(super) fn push_response(&mut self, response: &Cqe, finishes: Finishes) {
        let capsule = CapsuleResp::new(*response, self.rules.framing);
        self.transmitter.push_header(transmute!(capsule), finishes);
    }
}

impl<S: ByteStream> Requests<Context<'_>> for Connection<S> {
    type Fetch = Fetch;
    type Response = Timing;

    #[inline]
    fn slots(&mut self) -> &mut SlotTable {
        &mut self.slots
    }

    #[inline]
    fn account(&self) -> Account {
        self.account
    }

    #[inline]
    fn fetch(&mut self, cx: &mut Context<'_>, slot: u16, work: Work, lease: Lease) {
        let solicited = !matches!(work.source(), DataSource::InCapsule { .. });
        self.begin_fetch(cx.now);
        if solicited {
            self.solicited += 1;
            self.push_r2t(slot, work.command_id(), work.bytes());
        }
        let block_bytes = self.block_to_receive(cx, &work);
        let fetch = Fetch {
            work,
            lease,
            filled: 0,
            placed: 0,
            block_bytes,
            solicited,
            corrupt: false,
            awaits_rate: false,
        };
        self.slots.set(slot, SlotState::FetchingData(fetch));
    }

    #[inline]
    fn fetched(&mut self, cx: &mut Context<'_>, slot: u16, fetch: Fetch) {
        self.solicited -= usize::from(fetch.solicited);
        let Some(queue) = self.queue else { return };
        if fetch.corrupt {
            let status = Status::TRANSIENT_TRANSPORT_ERROR;
            let response = cx.core.reject(queue, fetch.work, status);
            return self.queue_response(cx, slot, &response, Timing::NONE, None);
        }
        let Fetch { work, lease, .. } = match fetch.placed {
            0 => fetch,
            _ => self.place_remaining(cx, queue, fetch),
        };
        if lease.capacity() < work.lease_bytes() as usize {
            return self.begin_copy(cx, slot, work, Some(lease));
        }
        self.execute(cx, slot, work, Some(lease));
    }

    fn released_early(&mut self, cx: &mut Context<'_>, slot: u16) {
        let Some(SlotState::FetchingData(fetch)) = self.slots.find(slot) else {
            return;
        };
        fetch.awaits_rate = false;
        if fetch.missing() == 0 {
            self.step(cx, slot, Event::Fetched);
        }
    }

    #[inline]
    fn respond(&mut self, cx: &mut Context<'_>, slot: u16, done: Completed) {
        let Completed {
            response,
            data,
            bytes,
            timing,
            ..
        } = done;
        let data = data.map(|data| (data, bytes as usize));
        self.queue_response(cx, slot, &response, timing, data);
    }
}

/// The status for invalid in-capsule data, if the command uses in-capsule data (Base 2.1 §4.3.2).
fn in_capsule_fault(work: &Work, payload: Option<Payload>) -> Option<Status> {
    match (work.direction(), work.source()) {
        (Direction::FromHost, DataSource::InCapsule { offset }) => {
            let carried = payload.map_or(0, |payload| payload.bytes);
            if offset != 0 {
                Some(Status::SGL_OFFSET_INVALID.with_dnr())
            } else if carried != work.bytes() {
                Some(Status::DATA_SGL_LENGTH_INVALID.with_dnr())
            } else {
                None
            }
        }
        _ => None,
    }
}
