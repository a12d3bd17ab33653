//! Answers on their way: data to the host's memory, and the response behind it in the same post.
//!
//! The response of the newest answer is held back until another one follows or the turn ends. So
//! the last of a turn, and no other, has a completion, and every answer of the turn comes home with
//! it (see [`posted`](crate::posted)).

use hugemem::DmaBuffer;
use nvme_spec::completion::StatusField;
use nvme_spec::{Cqe, Status};
use nvme_target::KeyedBlocks;
use rdma::{
    MemoryMap, Payload, Provider, QueuePair, RemoteAddress, SendOperation, SendRequest, Sge,
    SgeList,
};
use zerocopy::IntoBytes;

use super::{Cause, Connection, Context};
use crate::plan::RESPONSE_BYTES;
use crate::posted::PostedKind;
use crate::slot::{Answer, SlotState};

/// A response that is not queued yet. Its place in the send queue is taken.
#[derive(Debug)]
pub(super) struct HeldBack {
    sequence: u32,
    response: Cqe,
    invalidate: Option<u32>,
}

impl<P: Provider> Connection<P> {
    /// Answers the request in `slot`, which is in no state, at once or as soon as the send queue
    /// has room.
    #[inline(always)]
    pub(super) fn answer(&mut self, cx: &mut Context<'_, P>, slot: u16, answer: Answer) {
        let writes = self.writes_of(slot, &answer);
        if self.sends.vacant() <= writes || !self.waiting_sends.is_empty() {
            return self.await_send(cx, slot, answer);
        }
        self.post_answer(cx, slot, writes, answer);
        self.slots.release(slot);
    }

    #[cold]
    fn await_send(&mut self, cx: &mut Context<'_, P>, slot: u16, answer: Answer) {
        *self.slots.state(slot) = SlotState::AwaitingSend(answer);
        cx.counters.send_waits.add(1);
        self.waiting_sends.push_back(slot);
    }

    /// Posts answers that waited, in their order, for as long as there is room.
    pub(super) fn pump_sends(&mut self, cx: &mut Context<'_, P>) {
        while let Some(&slot) = self.waiting_sends.front() {
            let answer = match self.slots.take_state(slot) {
                SlotState::AwaitingSend(answer) => answer,
                other => {
                    debug_assert!(false, "slot {slot} waits to be answered in {other:?}");
                    *self.slots.state(slot) = other;
                    self.waiting_sends.pop_front();
                    continue;
                }
            };
            let writes = self.writes_of(slot, &answer);
            if self.sends.vacant() <= writes {
                *self.slots.state(slot) = SlotState::AwaitingSend(answer);
                return;
            }
            self.waiting_sends.pop_front();
            self.post_answer(cx, slot, writes, answer);
            self.slots.release(slot);
        }
    }

    /// Writes that an answer takes, beside its response.
    #[inline(always)]
    fn writes_of(&mut self, slot: u16, answer: &Answer) -> u32 {
        match answer.data {
            Some(_) => blocks_for(&self.slots.at(slot).remote, answer.bytes),
            None => 0,
        }
    }

    /// Queues an answer that there is room for.
    #[inline(always)]
    fn post_answer(&mut self, cx: &mut Context<'_, P>, slot: u16, writes: u32, answer: Answer) {
        let Answer {
            response,
            data,
            bytes,
        } = answer;
        self.queue_held_back(cx, false);
        let sequence = self.sends.next_sequence();
        let mut outcome = response;
        if let Some(data) = &data
            && !self.write_data(cx, slot, sequence, data, bytes)
        {
            outcome.status = StatusField::from_status(Status::DATA_TRANSFER_ERROR);
        }
        self.sends.push(writes + 1, PostedKind::Answer { data });
        self.held_back = Some(HeldBack {
            sequence,
            response: outcome,
            invalidate: self.slots.at(slot).remote.invalidate,
        });
    }

    /// Queues the writes of an answer's data; `false` when its memory is not the device's to read,
    /// which is this program's mistake.
    #[inline(always)]
    fn write_data(
        &mut self,
        cx: &Context<'_, P>,
        slot: u16,
        sequence: u32,
        data: &[u8],
        bytes: u32,
    ) -> bool {
        let start = data.as_ptr().addr();
        debug_assert!(bytes as usize <= data.len());
        let wr_id = self.work_id(sequence, false);
        let Self {
            slots,
            queue_pair,
            near,
            ..
        } = self;
        let mut written = 0;
        for block in &slots.at(slot).remote.blocks {
            if written == bytes {
                break;
            }
            let length = block.length.min(bytes - written);
            let begin = start + written as usize;
            let memory = match cx.map.local_key(near, begin, length as usize) {
                Some(lkey) => SgeList::one(Sge {
                    address: begin as u64,
                    length,
                    lkey,
                }),
                None => match cx.map.gather(begin, length as usize) {
                    Some(memory) => memory,
                    None => return not_registered(),
                },
            };
            // In place, since a request is too large to be handed on.
            let request = SendRequest {
                wr_id,
                operation: SendOperation::Write(RemoteAddress {
                    address: block.address,
                    rkey: block.key,
                }),
                payload: Payload::Memory(memory),
                signalled: false,
                solicited: false,
                fence: false,
            };
            if queue_pair.queue_send(&request).is_err() {
                self.refused = true;
                return false;
            }
            cx.counters.writes.add(1);
            written += length;
        }
        cx.counters.bytes_written.add(u64::from(written));
        true
    }

    /// Queues the response that is held back.
    pub(super) fn post_held_back(&mut self, cx: &Context<'_, P>, signalled: bool) {
        self.queue_held_back(cx, signalled);
    }

    #[inline(always)]
    fn queue_held_back(&mut self, cx: &Context<'_, P>, signalled: bool) {
        let Some(HeldBack {
            sequence,
            response,
            invalidate,
        }) = &self.held_back
        else {
            return;
        };
        let (sequence, invalidate) = (*sequence, *invalidate);
        let operation = match invalidate {
            Some(rkey) => {
                cx.counters.invalidations.add(1);
                SendOperation::SendWithInvalidate { rkey }
            }
            None => SendOperation::Send,
        };
        let payload = match &self.responses {
            None => Payload::Inline(response.as_bytes()),
            Some(responses) => {
                let places = self.sends.capacity().next_power_of_two();
                let place = (sequence & (places - 1)) as usize * RESPONSE_BYTES;
                Payload::Memory(put_response(responses, place, response, cx.map))
            }
        };
        let request = SendRequest {
            wr_id: self.work_id(sequence, true),
            operation,
            payload,
            signalled,
            solicited: false,
            fence: false,
        };
        if self.queue_pair.queue_send(&request).is_err() {
            self.refused = true;
        }
        self.held_back = None;
        cx.counters.sends.add(1);
        self.queued = true;
    }

    /// Sends a response that belongs to no slot: that of Connect, before which nothing is posted.
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
        self.post_held_back(cx, false);
        let sequence = self.sends.next_sequence();
        self.sends.push(1, PostedKind::Answer { data: None });
        self.held_back = Some(HeldBack {
            sequence,
            response,
            invalidate,
        });
    }

    /// Ends a turn: posts what is queued, the last answer signalled.
    #[inline]
    pub(crate) fn flush(&mut self, cx: &mut Context<'_, P>) {
        self.post_held_back(cx, true);
        if std::mem::take(&mut self.queued) {
            cx.counters.doorbells.add(1);
            if self.queue_pair.flush().is_err() {
                self.refused = true;
            }
        }
        if std::mem::take(&mut self.refused) {
            self.break_off(cx, Cause::Post);
        }
    }
}

/// Pieces of the host's memory that `bytes` bytes take.
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

#[cold]
fn not_registered() -> bool {
    tracing::error!("memory of a device is not registered");
    false
}

/// Copies a response to where the device fetches it, for devices that take none inline.
#[inline(never)]
fn put_response<P: Provider>(
    responses: &DmaBuffer,
    place: usize,
    response: &Cqe,
    map: &MemoryMap<P>,
) -> SgeList {
    responses.write(place, response.as_bytes());
    let address = responses.address() + place;
    // Without a key the device refuses it, which then ends the connection.
    map.gather(address, RESPONSE_BYTES).unwrap_or_else(|| {
        SgeList::one(Sge {
            address: address as u64,
            length: RESPONSE_BYTES as u32,
            lkey: 0,
        })
    })
}
