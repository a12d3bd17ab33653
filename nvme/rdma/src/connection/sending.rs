//! Answers on their way: data to the host's memory, and the response behind it in the same post.
//!
//! The response of the newest answer is held back until another one follows or the turn ends. So
//! the last of a turn, and no other, has a completion, and every answer of the turn comes home with
//! it (see [`posted`](crate::posted)).

use nvme_spec::completion::StatusField;
use nvme_spec::{Cqe, Status};
use nvme_target::{KeyedBlock, KeyedBlocks};
use rdma::{Payload, Provider, QueuePair, RemoteAddress, SendOperation, SendRequest, Sge, SgeList};
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
    /// Answers the request in `slot`, at once or as soon as the send queue has room.
    #[inline]
    pub(super) fn answer(&mut self, cx: &mut Context<'_, P>, slot: u16, answer: Answer) {
        if self.waiting_sends.is_empty() {
            match self.try_answer(cx, slot, answer) {
                None => return self.slots.release(slot),
                Some(answer) => *self.slots.state(slot) = SlotState::AwaitingSend(answer),
            }
        } else {
            *self.slots.state(slot) = SlotState::AwaitingSend(answer);
        }
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
            if let Some(answer) = self.try_answer(cx, slot, answer) {
                *self.slots.state(slot) = SlotState::AwaitingSend(answer);
                return;
            }
            self.waiting_sends.pop_front();
            self.slots.release(slot);
        }
    }

    /// Answers, or gives the answer back when there is no room.
    #[inline]
    fn try_answer(&mut self, cx: &mut Context<'_, P>, slot: u16, answer: Answer) -> Option<Answer> {
        let Answer {
            response,
            data,
            bytes,
        } = answer;
        let remote = &self.slots.at(slot).remote;
        let invalidate = remote.invalidate;
        let data = data.filter(|_| bytes > 0 && response.status().is_success());
        let writes = match &data {
            Some(_) => blocks_for(remote, bytes),
            None => 0,
        };
        if self.sends.vacant() < writes + 1 {
            return Some(Answer {
                response,
                data,
                bytes,
            });
        }
        self.post_held_back(cx, false);
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
            invalidate,
        });
        None
    }

    /// Queues the writes of an answer's data; `false` when its memory is not the device's to read,
    /// which is this program's mistake.
    #[inline]
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
        let id = self.work_id(sequence, false);
        let Self {
            slots, queue_pair, ..
        } = self;
        let mut written = 0;
        for block in &slots.at(slot).remote.blocks {
            let KeyedBlock {
                address,
                key,
                length,
            } = *block;
            let length = length.min(bytes - written);
            if length == 0 {
                break;
            }
            let Some(memory) = cx.map.gather(start + written as usize, length as usize) else {
                tracing::error!("memory of a device is not registered");
                return false;
            };
            let remote = RemoteAddress { address, rkey: key };
            let write = SendOperation::Write(remote);
            let request = SendRequest::new(id, write, Payload::Memory(memory)).signalled(false);
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
    #[inline]
    pub(super) fn post_held_back(&mut self, cx: &Context<'_, P>, signalled: bool) {
        let Some(held_back) = self.held_back.take() else {
            return;
        };
        let HeldBack {
            sequence,
            response,
            invalidate,
        } = held_back;
        let operation = match invalidate {
            Some(rkey) => {
                cx.counters.invalidations.add(1);
                SendOperation::SendWithInvalidate { rkey }
            }
            None => SendOperation::Send,
        };
        let id = self.work_id(sequence, true);
        let payload = match &self.responses {
            None => Payload::Inline(response.as_bytes()),
            Some(responses) => {
                let places = self.sends.capacity().next_power_of_two();
                let place = (sequence & (places - 1)) as usize * RESPONSE_BYTES;
                responses.write(place, response.as_bytes());
                let address = responses.address() + place;
                match cx.map.gather(address, RESPONSE_BYTES) {
                    Some(memory) => Payload::Memory(memory),
                    None => Payload::Memory(unregistered(address)),
                }
            }
        };
        let request = SendRequest::new(id, operation, payload).signalled(signalled);
        if self.queue_pair.queue_send(&request).is_err() {
            self.refused = true;
        }
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

/// Memory that the device will refuse, which then ends the connection.
fn unregistered(address: usize) -> SgeList {
    SgeList::one(Sge {
        address: address as u64,
        length: RESPONSE_BYTES as u32,
        lkey: 0,
    })
}
