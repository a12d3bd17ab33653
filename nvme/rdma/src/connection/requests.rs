//! The requests of an NVMe/RDMA connection: admission of a command capsule, reads of the host's
//! memory, and the response.

use hugemem::{Account, Lease};
use nvme_fabrics::{Event, Requests};
use nvme_spec::{Cqe, Status};
use nvme_target::{Admission, Completed, DataSource, Direction, QueueId, Timing, Work};
use rdma::{Payload, Provider, QueuePair, RemoteAddress, SendOperation, SendRequest};

use super::{Capsule, Cause, Connection, Context, Phase};
use crate::posted::PostedKind;
use crate::receives::Receives;
use crate::slot::{Fetch, Response, SlotState, SlotTable};

impl<P: Provider> Connection<P> {
    /// Admits a command of a connected queue.
    #[inline(always)]
    pub(super) fn admit(
        &mut self,
        cx: &mut Context<'_, P>,
        receives: &mut Receives<P>,
        capsule: Capsule<'_>,
    ) {
        let Some(queue) = self.queue else { return };
        if capsule.carried > self.in_capsule_max {
            let violation = Cause::Violation("a capsule is longer than its queue's capsules");
            return self.abort(cx, violation);
        }
        // Each path copies the command and checks its copy; the inline path reads little of it.
        if self.respond_from_borrow(cx, queue, receives.command(capsule.receive)) {
            cx.counters.commands.add(1);
            return;
        }
        self.admit_any(cx, receives, capsule, queue);
    }

    /// Admits a command that takes a slot.
    #[inline(never)]
    fn admit_any(
        &mut self,
        cx: &mut Context<'_, P>,
        receives: &mut Receives<P>,
        capsule: Capsule<'_>,
        queue: QueueId,
    ) {
        let Some(slot) = self.slots.take() else {
            // The host sent more commands than its queue has entries.
            let violation = Cause::Violation("more commands outstanding than the queue's entries");
            return self.abort(cx, violation);
        };
        cx.counters.commands.add(1);
        let sqe = receives.command(capsule.receive);
        let remote = &mut self.remotes[usize::from(slot)];
        remote.blocks.clear();
        remote.invalidate = None;
        let tag = self.token.with_slot(slot).into_bits();
        match cx.core.admit(queue, tag, &sqe, cx.now) {
            Admission::Respond(response) => self.respond_without_data(cx, slot, response),
            Admission::Held => {
                self.slots.hold(slot);
            }
            Admission::Work(work) => match self.locate(cx, receives, capsule, slot, &work) {
                Ok(None) => self.begin(cx, slot, work),
                Ok(Some(lease)) => self.execute(cx, slot, work, Some(lease)),
                Err(status) => {
                    let response = cx.core.reject(queue, work, status);
                    self.respond_without_data(cx, slot, response);
                }
            },
            Admission::Copy => self.admit_copy(cx, receives, capsule, queue, slot),
            Admission::Throttled => self.admit_throttled(cx, receives, capsule, queue, slot),
        }
    }

    /// Begins a Copy that was admitted.
    #[cold]
    fn admit_copy(
        &mut self,
        cx: &mut Context<'_, P>,
        receives: &mut Receives<P>,
        capsule: Capsule<'_>,
        queue: QueueId,
        slot: u16,
    ) {
        let Some(work) = cx.core.take_set_aside() else {
            return;
        };
        match self.locate(cx, receives, capsule, slot, &work) {
            Ok(list) => self.begin_copy(cx, slot, work, list),
            Err(status) => {
                let response = cx.core.reject(queue, work, status);
                self.respond_without_data(cx, slot, response);
            }
        }
    }

    /// Lets a command wait that a rate limit delays. The lease with in-capsule data stays with it.
    #[cold]
    fn admit_throttled(
        &mut self,
        cx: &mut Context<'_, P>,
        receives: &mut Receives<P>,
        capsule: Capsule<'_>,
        queue: QueueId,
        slot: u16,
    ) {
        let Some(work) = cx.core.take_set_aside() else {
            return;
        };
        match self.locate(cx, receives, capsule, slot, &work) {
            Ok(lease) => self.await_rate(cx, slot, work, lease, true),
            Err(status) => {
                let response = cx.core.reject(queue, work, status);
                self.respond_without_data(cx, slot, response);
            }
        }
    }

    /// Locates a command's data: returns the lease with in-capsule data, or records the addresses
    /// in host memory.
    #[inline]
    fn locate(
        &mut self,
        cx: &Context<'_, P>,
        receives: &mut Receives<P>,
        capsule: Capsule<'_>,
        slot: u16,
        work: &Work,
    ) -> Result<Option<Lease>, Status> {
        match (work.direction(), work.source()) {
            (Direction::None, _) => Ok(None),
            (_, DataSource::Keyed { .. }) => {
                work.keyed_blocks(&[], &mut self.remotes[usize::from(slot)])?;
                Ok(None)
            }
            (_, DataSource::KeyedSegment { offset, length }) => {
                // Both are within the capsule size of the queue, but this capsule is smaller.
                if capsule.carried < offset + length {
                    return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR.with_dnr());
                }
                let (begin, end) = (offset as usize, (offset + length) as usize);
                let remote = &mut self.remotes[usize::from(slot)];
                receives.read_data(capsule.receive, |data| {
                    work.keyed_blocks(data.get(begin..end).unwrap_or(&[]), remote)
                })?;
                Ok(None)
            }
            (_, DataSource::InCapsule { offset }) => {
                take_in_capsule_data(cx, receives, capsule, offset, work.bytes(), self.account)
                    .map(Some)
            }
            // The core admits it only on transports without keys.
            (_, DataSource::TransportSgl) => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr()),
        }
    }

    /// Posts reads for waiting requests, in order, as long as the host permits more outstanding
    /// reads and the send queue has room.
    pub(super) fn pump_reads(&mut self, cx: &mut Context<'_, P>) {
        while let Some(&slot) = self.waiting_reads.front() {
            if self.reads_free == 0 || self.sends.vacant() == 0 || self.refused {
                return;
            }
            let mut fetch = match self.slots.take_state(slot) {
                SlotState::AwaitingFetch(fetch) | SlotState::FetchingData(fetch) => fetch,
                other => {
                    debug_assert!(false, "slot {slot} waits for a read in {other:?}");
                    *self.slots.state(slot) = other;
                    self.waiting_reads.pop_front();
                    continue;
                }
            };
            if fetch.is_in_device {
                if !self.post_reads_in_device(cx, slot, &mut fetch) {
                    self.waiting_reads.pop_front();
                    self.fail_in_device(cx, slot, fetch.work);
                    continue;
                }
            } else {
                self.post_reads(cx, slot, &mut fetch);
            }
            if fetch.is_posted() {
                self.waiting_reads.pop_front();
            }
            *self.slots.state(slot) = SlotState::FetchingData(fetch);
        }
    }

    /// Posts as many reads of one request as may be outstanding. The last of them is signalled.
    fn post_reads(&mut self, cx: &mut Context<'_, P>, slot: u16, fetch: &mut Fetch) {
        let allowed = u32::from(self.reads_free).min(self.sends.vacant());
        let sequence = self.sends.next_sequence();
        let mut requests = 0;
        while requests < allowed && !fetch.is_posted() {
            let blocks = &self.remotes[usize::from(slot)].blocks;
            let block = blocks.get(usize::from(fetch.blocks));
            let missing = fetch.work.bytes() - fetch.posted_bytes;
            let Some(block) = block.copied() else {
                self.refused = true;
                break;
            };
            let bytes = block.length.min(missing);
            let offset = fetch.posted_bytes as usize;
            let buffer = fetch.buffer.memory();
            let memory = buffer.and_then(|it| cx.map.gather(it, offset, bytes as usize));
            let Some(memory) = memory else {
                self.refused = true;
                break;
            };
            let last = requests + 1 == allowed || bytes == missing;
            let remote = RemoteAddress {
                address: block.address,
                rkey: block.key,
            };
            let request = SendRequest::new(
                self.work_id(sequence, last),
                SendOperation::Read(remote),
                Payload::Memory(memory.as_slice()),
            );
            if self
                .queue_pair
                .queue_send(&request.signalled(last))
                .is_err()
            {
                self.refused = true;
                break;
            }
            requests += 1;
            fetch.blocks += 1;
            fetch.posted_bytes += bytes;
            cx.counters.bytes_read.add(u64::from(bytes));
        }
        self.reads_posted(cx, slot, fetch, requests);
    }

    /// Records reads of one request that were posted together.
    #[inline]
    pub(super) fn reads_posted(
        &mut self,
        cx: &Context<'_, P>,
        slot: u16,
        fetch: &mut Fetch,
        requests: u32,
    ) {
        if requests == 0 {
            return;
        }
        cx.counters.reads.add(u64::from(requests));
        // Not truncated: at most `reads_free`.
        let taken = requests as u8;
        let read = PostedKind::Read {
            slot,
            requests: taken,
        };
        self.sends.push(requests, read, None, cx.now);
        self.reads_free -= taken;
        fetch.buffer.begin();
        self.queued = true;
    }

    /// Handles reads of one request that have completed or were flushed.
    pub(super) fn read_done(&mut self, cx: &mut Context<'_, P>, slot: u16, requests: u8) {
        self.reads_free += requests;
        let SlotState::FetchingData(fetch) = self.slots.state(slot) else {
            debug_assert!(false, "slot {slot} reads nothing");
            return;
        };
        if !fetch.buffer.end() {
            return;
        }
        match self.phase {
            Phase::Serving | Phase::Finishing { .. } if fetch.is_posted() => {
                self.step(cx, slot, Event::Fetched);
            }
            Phase::Serving | Phase::Finishing { .. } => {}
            // The request was abandoned.
            Phase::Connecting { .. }
            | Phase::Closing { .. }
            | Phase::Draining { .. }
            | Phase::Finished => {
                *self.slots.state(slot) = SlotState::Free;
                self.in_device.release(slot);
            }
        }
    }

    /// Sends a response without data.
    #[inline(never)]
    pub(super) fn respond_without_data(
        &mut self,
        cx: &mut Context<'_, P>,
        slot: u16,
        capsule: Cqe,
    ) {
        let response = Response {
            capsule,
            data: None,
            bytes: 0,
            timing: Timing::NONE,
        };
        self.send_response(cx, slot, response);
    }
}

impl<P: Provider> Requests<Context<'_, P>> for Connection<P> {
    type Fetch = Fetch;
    type Response = Response;

    const ACCESSES_DEVICE_MEMORY: bool = true;

    #[inline(never)]
    fn begin_in_device(&mut self, cx: &mut Context<'_, P>, slot: u16, work: Work) -> Option<Work> {
        self.begin_with_device_memory(cx, slot, work)
    }

    #[inline]
    fn slots(&mut self) -> &mut SlotTable {
        &mut self.slots
    }

    #[inline]
    fn account(&self) -> Account {
        self.account
    }

    fn fetch(&mut self, cx: &mut Context<'_, P>, slot: u16, work: Work, lease: Lease) {
        if self.reads_free == 0 {
            cx.counters.read_waits.add(1);
        }
        *self.slots.state(slot) = SlotState::AwaitingFetch(Fetch::new(work, lease));
        self.waiting_reads.push_back(slot);
        self.pump_reads(cx);
    }

    fn fetched(&mut self, cx: &mut Context<'_, P>, slot: u16, fetch: Fetch) {
        if fetch.is_in_device {
            return self.execute_in_device(cx, slot, fetch.work);
        }
        let Fetch {
            work, mut buffer, ..
        } = fetch;
        if let Some(lease) = buffer.take() {
            self.execute(cx, slot, work, Some(lease));
        }
    }

    fn released_early(&mut self, _cx: &mut Context<'_, P>, _slot: u16) {
        // Its connection is being closed.
    }

    #[inline(always)]
    fn respond(&mut self, cx: &mut Context<'_, P>, slot: u16, done: Completed) {
        if self.in_device.is_used() {
            if done.data.is_none() && done.bytes > 0 {
                return self.respond_in_device(cx, slot, done);
            }
            self.in_device.release(slot);
        }
        self.send_response(cx, slot, done.into());
    }
}

/// Takes the lease with in-capsule data out of its receive, for the command. Base 2.1 §4.3.2
/// defines the errors.
fn take_in_capsule_data<P: Provider>(
    cx: &Context<'_, P>,
    receives: &mut Receives<P>,
    capsule: Capsule<'_>,
    offset: u32,
    bytes: u32,
    account: Account,
) -> Result<Lease, Status> {
    let Capsule { receive, carried } = capsule;
    if carried != offset + bytes {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    let Some(mut lease) = receives.take_data(receive) else {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    };
    if offset > 0 {
        lease.copy_within(offset as usize..carried as usize, 0);
        cx.counters.bytes_copied.add(u64::from(bytes));
    }
    lease.resize(bytes as usize);
    // The lease that replaces it in the receive is charged to the reserved amount.
    lease.charge(account);
    cx.counters.bytes_in_capsule.add(u64::from(bytes));
    Ok(lease)
}
