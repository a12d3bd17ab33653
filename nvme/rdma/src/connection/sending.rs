//! Sending of responses: writes of data to host memory and the response capsule, in one post.
//!
//! Work requests are queued unsignalled. The last one of a turn is signalled when the turn's work
//! is posted, and its completion completes all responses of the turn (see
//! [`posted`](crate::posted)).

use std::slice;

use hugemem::{Data, DmaBorrow, DmaBuffer, DmaData};
use nvme_spec::completion::StatusField;
use nvme_spec::{Cqe, Sqe, Status};
use nvme_target::{InlineCompletion, KeyedBlock, KeyedBlocks, QueueId};
use rdma::{
    DeviceMemory, MemoryMap, Payload, Provider, QueuePair, RemoteAddress, SendOperation,
    SendRequest, Sge, SgeList,
};
use zerocopy::IntoBytes;

use super::{Cause, Connection, Context};
use crate::plan::RESPONSE_BYTES;
use crate::posted::{PostedKind, TargetDma};
use crate::slot::{Response, SlotState};

/// Send queue entries of the response to an inline read: a write and the response capsule.
const INLINE_READ_REQUESTS: u32 = 2;

impl<P: Provider> Connection<P> {
    /// Posts the response to the request in `slot`, or queues it until the send queue has room.
    #[inline(always)]
    pub(super) fn send_response(&mut self, cx: &mut Context<'_, P>, slot: u16, response: Response) {
        let writes = self.writes_of(slot, &response);
        if self.sends.vacant() <= writes || !self.waiting_sends.is_empty() {
            return self.await_send(cx, slot, response);
        }
        self.post(cx, slot, writes, response);
        self.slots.release(slot);
    }

    #[cold]
    fn await_send(&mut self, cx: &mut Context<'_, P>, slot: u16, mut response: Response) {
        cx.core.response_deferred(&mut response.timing);
        *self.slots.state(slot) = SlotState::Responding(response);
        cx.counters.send_waits.add(1);
        self.waiting_sends.push_back(slot);
    }

    /// Posts queued responses in order, as long as the send queue has room.
    pub(super) fn pump_sends(&mut self, cx: &mut Context<'_, P>) {
        while let Some(&slot) = self.waiting_sends.front() {
            let response = match self.slots.take_state(slot) {
                SlotState::Responding(response) => response,
                other => {
                    debug_assert!(false, "slot {slot} waits to send a response in {other:?}");
                    *self.slots.state(slot) = other;
                    self.waiting_sends.pop_front();
                    continue;
                }
            };
            let writes = self.writes_of(slot, &response);
            if self.sends.vacant() <= writes {
                *self.slots.state(slot) = SlotState::Responding(response);
                return;
            }
            self.waiting_sends.pop_front();
            self.post(cx, slot, writes, response);
            self.slots.release(slot);
        }
    }

    /// Number of writes that a response's data takes.
    #[inline(always)]
    fn writes_of(&self, slot: u16, response: &Response) -> u32 {
        match response.data {
            Some(_) => blocks_for(&self.remotes[usize::from(slot)], response.bytes),
            None if response.bytes > 0 => self.writes_in_device(slot, response.bytes),
            None => 0,
        }
    }

    /// Queues a response that the send queue has room for.
    #[inline]
    fn post(&mut self, cx: &mut Context<'_, P>, slot: u16, writes: u32, response: Response) {
        if response.data.is_none() && response.bytes > 0 {
            return self.post_in_device(cx, slot, response);
        }
        let Response {
            mut capsule,
            data,
            bytes,
            timing,
        } = response;
        let sequence = self.sends.next_sequence();
        let invalidate = self.remotes[usize::from(slot)].invalidate;
        let data = data.map(Data::into_dma::<TargetDma>);
        if let Some(data) = &data
            && !self.write_data(cx, slot, sequence, data, bytes)
        {
            capsule.status = StatusField::from_status(Status::DATA_TRANSFER_ERROR);
        }
        self.post_response(cx, sequence, &capsule, invalidate);
        self.sends
            .push(writes + 1, PostedKind::Response, data, cx.now);
        cx.core.sent(timing, cx.now);
    }

    /// Queues the writes of a response's data; returns `false` like [`write`](Self::write).
    fn write_data(
        &mut self,
        cx: &Context<'_, P>,
        slot: u16,
        sequence: u32,
        data: &DmaData<TargetDma>,
        bytes: u32,
    ) -> bool {
        debug_assert!(bytes as usize <= data.len());
        let mut written = 0;
        for place in 0..self.remotes[usize::from(slot)].blocks.len() {
            let block = self.remotes[usize::from(slot)].blocks[place];
            if written == bytes {
                break;
            }
            let length = block.length.min(bytes - written);
            let part = (written as usize, length);
            let remote = RemoteAddress {
                address: block.address,
                rkey: block.key,
            };
            if !self.write(cx, sequence, remote, data, part) {
                return false;
            }
            written += length;
        }
        true
    }

    /// Queues one write. The memory must not change until its sequence number completes. Returns
    /// `false` if the memory is not registered, which is a defect of this program.
    #[inline(always)]
    fn write(
        &mut self,
        cx: &Context<'_, P>,
        sequence: u32,
        remote: RemoteAddress,
        data: &impl DeviceMemory,
        (offset, length): (usize, u32),
    ) -> bool {
        let Some(piece) = cx
            .map
            .piece(&mut self.registration_hint, data, offset, length)
        else {
            return self.write_gathered(cx, sequence, remote, data, (offset, length));
        };
        self.queue_write(cx, sequence, remote, slice::from_ref(&piece), length)
    }

    /// The same for memory in several registrations.
    #[cold]
    fn write_gathered(
        &mut self,
        cx: &Context<'_, P>,
        sequence: u32,
        remote: RemoteAddress,
        data: &impl DeviceMemory,
        (offset, length): (usize, u32),
    ) -> bool {
        let Some(pieces) = cx.map.gather(data, offset, length as usize) else {
            tracing::error!("memory of a device is not registered");
            return false;
        };
        self.queue_write(cx, sequence, remote, pieces.as_slice(), length)
    }

    #[inline(always)]
    pub(super) fn queue_write(
        &mut self,
        cx: &Context<'_, P>,
        sequence: u32,
        remote: RemoteAddress,
        pieces: &[Sge],
        length: u32,
    ) -> bool {
        let request = SendRequest {
            wr_id: self.work_id(sequence, false),
            operation: SendOperation::Write(remote),
            payload: Payload::Memory(pieces),
            signalled: false,
            solicited: false,
            fence: false,
        };
        if self.queue_pair.queue_send(&request).is_err() {
            self.refused = true;
            return false;
        }
        cx.counters.writes.add(1);
        cx.counters.bytes_written.add(u64::from(length));
        true
    }

    /// Queues a response capsule, behind its data.
    #[inline(always)]
    pub(super) fn post_response(
        &mut self,
        cx: &Context<'_, P>,
        sequence: u32,
        response: &Cqe,
        invalidate: Option<u32>,
    ) {
        let staged;
        let payload = match &self.responses {
            None => Payload::Inline(response.as_bytes()),
            Some(responses) => {
                let places = self.sends.capacity().next_power_of_two();
                let place = (sequence & (places - 1)) as usize * RESPONSE_BYTES;
                let Some(memory) = put_response(responses, place, response, cx.map) else {
                    self.refused = true;
                    return;
                };
                staged = memory;
                Payload::Memory(staged.as_slice())
            }
        };
        let operation = match invalidate {
            Some(rkey) => {
                cx.counters.invalidations.add(1);
                SendOperation::SendWithInvalidate { rkey }
            }
            None => SendOperation::Send,
        };
        let request = SendRequest {
            wr_id: self.work_id(sequence, true),
            operation,
            payload,
            // The last one of the turn is signalled when it is posted.
            signalled: false,
            solicited: false,
            fence: false,
        };
        if self.queue_pair.queue_send(&request).is_err() {
            self.refused = true;
        }
        cx.counters.sends.add(1);
        self.queued = true;
    }

    /// Completes a read inline, with borrowed data and without a slot. Returns `false` without
    /// effect if it cannot.
    #[inline]
    pub(super) fn respond_from_borrow(
        &mut self,
        cx: &mut Context<'_, P>,
        queue: QueueId,
        sqe: Sqe,
    ) -> bool {
        let can_post = self.sends.vacant() >= INLINE_READ_REQUESTS && self.waiting_sends.is_empty();
        // An inline command takes no slot, but counts towards the queue's entries.
        if !can_post || self.slots.vacant() == 0 {
            return false;
        }
        let Some(InlineCompletion {
            mut response,
            data: Some(data),
            keyed,
            ..
        }) = cx.core.complete_inline(queue, &sqe, None, cx.now)
        else {
            return false;
        };
        let sequence = self.sends.next_sequence();
        let data = data.into_dma::<TargetDma>();
        let piece = keyed.and_then(|(block, _)| {
            let length = block.length;
            cx.map.piece(&mut self.registration_hint, &data, 0, length)
        });
        let (Some(piece), Some((block, invalidate))) = (piece, keyed) else {
            self.respond_from_borrow_gathered(cx, &mut response, data, keyed);
            return true;
        };
        let data = Some(DmaData::Borrow(data));
        self.sends
            .push(INLINE_READ_REQUESTS, PostedKind::Response, data, cx.now);
        let remote = RemoteAddress {
            address: block.address,
            rkey: block.key,
        };
        let pieces = slice::from_ref(&piece);
        if !self.queue_write(cx, sequence, remote, pieces, block.length) {
            response.status = StatusField::from_status(Status::DATA_TRANSFER_ERROR);
        }
        let invalidate = invalidate.then_some(block.key);
        self.post_response(cx, sequence, &response, invalidate);
        true
    }

    /// The same for data in several registrations, or in none.
    #[cold]
    fn respond_from_borrow_gathered(
        &mut self,
        cx: &Context<'_, P>,
        response: &mut Cqe,
        data: DmaBorrow<TargetDma>,
        keyed: Option<(KeyedBlock, bool)>,
    ) {
        let sequence = self.sends.next_sequence();
        let is_written = keyed.is_some_and(|(block, _)| {
            let remote = RemoteAddress {
                address: block.address,
                rkey: block.key,
            };
            self.write_gathered(cx, sequence, remote, &data, (0, block.length))
        });
        let data = Some(DmaData::Borrow(data));
        self.sends
            .push(INLINE_READ_REQUESTS, PostedKind::Response, data, cx.now);
        if !is_written {
            response.status = StatusField::from_status(Status::DATA_TRANSFER_ERROR);
        }
        let invalidate = keyed.and_then(|(block, invalidate)| invalidate.then_some(block.key));
        self.post_response(cx, sequence, response, invalidate);
    }

    /// Sends the response of Connect, which has no slot. Nothing is posted before it.
    pub(super) fn respond(
        &mut self,
        cx: &mut Context<'_, P>,
        response: Cqe,
        invalidate: Option<u32>,
    ) {
        if self.sends.vacant() == 0 {
            self.refused = true;
            return;
        }
        let sequence = self.sends.next_sequence();
        self.post_response(cx, sequence, &response, invalidate);
        self.sends.push(1, PostedKind::Response, None, cx.now);
    }

    /// Probes the host's device with an RDMA write of zero bytes, which the device acknowledges
    /// without checking a key (InfiniBand Architecture Specification, volume 1, C9-88). It consumes
    /// no receive of the host.
    pub(super) fn post_probe(&mut self, cx: &Context<'_, P>) {
        if self.sends.vacant() == 0 {
            return;
        }
        let nowhere = RemoteAddress {
            address: 0,
            rkey: 0,
        };
        let sequence = self.sends.next_sequence();
        let request = SendRequest::new(
            self.work_id(sequence, true),
            SendOperation::Write(nowhere),
            Payload::Memory(&[]),
        );
        if self.queue_pair.queue_send(&request).is_err() {
            self.refused = true;
            return;
        }
        self.sends.push(1, PostedKind::Response, None, cx.now);
        self.queued = true;
        cx.counters.probes.add(1);
    }

    /// Whether a response that waits for room in the send queue borrows blocks that a writer waits
    /// for.
    pub(super) fn queued_response_delays_writer(&mut self) -> bool {
        let Self {
            waiting_sends,
            slots,
            ..
        } = self;
        waiting_sends.iter().any(|slot| match slots.state(*slot) {
            SlotState::Responding(response) => {
                matches!(&response.data, Some(Data::Borrow(borrow)) if borrow.is_awaited())
            }
            _ => false,
        })
    }

    /// Posts queued work, with the last work request signalled: its completion completes all of it.
    #[inline]
    pub(super) fn post_queued(&mut self) {
        self.queue_pair.signal_last();
        if self.queue_pair.flush().is_err() {
            self.refused = true;
        }
        self.queued = false;
    }

    /// Posts queued work at the end of a turn.
    #[inline]
    pub(crate) fn flush(&mut self, cx: &mut Context<'_, P>) {
        if self.queued {
            cx.counters.doorbells.add(1);
            self.post_queued();
            self.expect_progress(cx.now);
        }
        if std::mem::take(&mut self.refused) {
            self.abort(cx, Cause::Post);
        }
    }
}

/// Number of blocks of host memory that `bytes` bytes occupy.
#[inline]
fn blocks_for(remote: &KeyedBlocks, bytes: u32) -> u32 {
    match remote.blocks.first() {
        Some(first) if first.length >= bytes => u32::from(bytes > 0),
        _ => several_blocks_for(remote, bytes),
    }
}

#[inline(never)]
fn several_blocks_for(remote: &KeyedBlocks, bytes: u32) -> u32 {
    let mut left = bytes;
    let mut blocks = 0;
    for block in &remote.blocks {
        if left == 0 {
            break;
        }
        left -= block.length.min(left);
        blocks += 1;
    }
    blocks
}

/// Copies a response into memory from which the device sends it, for devices that do not take it
/// inline.
#[inline(never)]
fn put_response<P: Provider>(
    responses: &DmaBuffer,
    place: usize,
    response: &Cqe,
    map: &MemoryMap<P>,
) -> Option<SgeList> {
    responses.write(place, response.as_bytes());
    map.gather(responses, place, RESPONSE_BYTES)
}
