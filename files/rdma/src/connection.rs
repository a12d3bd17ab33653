//! A connection: the calls that it receives, the data that are read from and written to memory of
//! its client, and the replies that it sends.

use std::collections::VecDeque;

use files_service::limits::BORROWED_MS;
use files_service::{ConnectionKey, Fetch, FileCore, JobKey, PayloadPart};
use files_spec::compound::{PayloadSearch, find_payload};
use files_spec::rdma::{CallChunks, Header, HeaderError};
use files_spec::xdr::{Encoder, Placement, UNIT_BYTES, padding};
use hugemem::{Data, Lease};
use rdma::{
    Connection as _, Payload, Provider, QueuePair, ReceiveRequest, SendOperation, SendRequest,
    SgeList, WorkCompletion,
};
use reactors::Nanos;

use crate::context::{Context, Fault, request_bytes_max};
use crate::limits::{
    ESTABLISH_MS, IDLE_MS, ITEM_BYTES_MAX, LENT_MS, MESSAGE_BYTES, PROGRESS_MS, REPLY_REQUESTS_MAX,
    SEND_REQUESTS_MAX,
};
use crate::messages::Messages;
use crate::posted::{Ended, GENERATION_MASK, Purpose, QueueDestroyed, SendQueue, WorkId};
use crate::remote::Remote;
use crate::reply::{Form, ReplyPlan, is_placed, parts};

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// The call itself is being read. Ends with the completion.
    PullingMessage,
    /// An item of it is being read. Ends with the completion.
    PullingItem,
    /// It is complete. Woken when the service admits another request.
    Ready,
    /// It is executed. Ends with its reply.
    Executing,
}

/// A call.
#[derive(Debug)]
struct Call {
    stage: Stage,
    header: Header,
    chunks: CallChunks,
    /// The call without the data that are in memory of the client.
    record: Vec<u8>,
    placement: Option<Placement>,
}

/// The parts of a new connection.
pub(crate) struct Parts<P: Provider> {
    pub(crate) queue_pair: P::QueuePair,
    pub(crate) connection: P::Connection,
    pub(crate) key: ConnectionKey,
    /// Its place in the table, with the generation.
    pub(crate) place: (u16, u16),
    /// The place of its device.
    pub(crate) device: usize,
    /// The number of the listener that it came through.
    pub(crate) listener: u32,
    pub(crate) receives: Messages,
    pub(crate) sends: Messages,
    /// Limit of the messages that its client receives, in bytes.
    pub(crate) send_bytes: usize,
    /// Whether its client lets messages invalidate its keys.
    pub(crate) invalidates: bool,
}

/// A connection.
pub(crate) struct Connection<P: Provider> {
    pub(crate) parts: Parts<P>,
    is_established: bool,
    began: Nanos,
    /// When the last call was taken.
    called_at: Nanos,
    free_sends: Vec<u16>,
    /// Receives with calls that wait, and their lengths.
    arrived: VecDeque<(u16, u32)>,
    calls: Vec<Call>,
    free_calls: Vec<u16>,
    ready: VecDeque<u16>,
    /// Complete replies that wait for room.
    replies: VecDeque<JobKey>,
    /// Data to read that wait for room.
    fetches: VecDeque<Fetch>,
    queue: SendQueue,
    has_queued: bool,
}

impl<P: Provider> Connection<P> {
    /// A connection with its receives posted.
    pub(crate) fn new(
        parts: Parts<P>,
        cx: &mut Context<'_, P>,
    ) -> Result<Self, Box<(Self, Fault)>> {
        let credits = parts.receives.count() as u16;
        let call = || Call {
            stage: Stage::Free,
            header: HeaderError::Chunk { xid: 0 }
                .answer(0)
                .expect("it has an answer"),
            chunks: CallChunks::default(),
            record: Vec::new(),
            placement: None,
        };
        let mut connection = Self {
            is_established: false,
            began: cx.now,
            called_at: cx.now,
            free_sends: (0..parts.sends.count() as u16).rev().collect(),
            arrived: VecDeque::with_capacity(usize::from(credits)),
            calls: (0..credits).map(|_| call()).collect(),
            free_calls: (0..credits).rev().collect(),
            ready: VecDeque::with_capacity(usize::from(credits)),
            replies: VecDeque::with_capacity(usize::from(credits)),
            fetches: VecDeque::new(),
            queue: SendQueue::new(SEND_REQUESTS_MAX),
            has_queued: false,
            parts,
        };
        let posted = (0..credits).try_for_each(|index| connection.post_receive(cx, index));
        match posted.and_then(|()| connection.flush()) {
            Ok(()) => Ok(connection),
            Err(fault) => Err(Box::new((connection, fault))),
        }
    }

    /// The calls that its client may have outstanding.
    fn credits(&self) -> u32 {
        self.calls.len() as u32
    }

    /// Whether something waits that a later turn may do.
    pub(crate) fn is_waiting(&self) -> bool {
        let is_waiting = !self.arrived.is_empty()
            || !self.ready.is_empty()
            || !self.replies.is_empty()
            || !self.fetches.is_empty();
        self.is_established && is_waiting
    }

    /// Whether requests wait to be posted.
    pub(crate) fn has_queued(&self) -> bool {
        self.has_queued
    }

    /// Messages can be sent from now on.
    pub(crate) fn established(&mut self) {
        self.is_established = true;
    }

    /// A call has been received.
    pub(crate) fn received(&mut self, index: u32, bytes: u32) {
        if index < self.credits() {
            self.arrived.push_back((index as u16, bytes));
        }
    }

    /// Queues a complete reply.
    pub(crate) fn reply(&mut self, job: JobKey) {
        self.replies.push_back(job);
    }

    /// Queues data to read.
    pub(crate) fn fetch(&mut self, fetch: Fetch) {
        self.fetches.push_back(fetch);
    }

    /// Does everything that can be done now.
    pub(crate) fn work(&mut self, cx: &mut Context<'_, P>) -> Result<(), Fault> {
        if !self.is_established {
            return Ok(());
        }
        while let Some(&job) = self.replies.front() {
            if !self.send_reply(cx, job)? {
                break;
            }
            self.replies.pop_front();
        }
        while let Some(fetch) = self.fetches.pop_front() {
            if let Some(waiting) = self.post_fetch(cx, fetch)? {
                self.fetches.push_front(waiting);
                break;
            }
        }
        while let Some(&(index, bytes)) = self.arrived.front() {
            if !self.take_call(cx, index, bytes as usize)? {
                break;
            }
            self.arrived.pop_front();
            self.post_receive(cx, index)?;
        }
        self.admit(cx);
        Ok(())
    }

    /// Posts what was queued.
    pub(crate) fn flush(&mut self) -> Result<(), Fault> {
        match std::mem::take(&mut self.has_queued) {
            true => Ok(self.parts.queue_pair.flush()?),
            false => Ok(()),
        }
    }

    fn id(&self, number: u32) -> WorkId {
        let (place, generation) = self.parts.place;
        WorkId::new()
            .with_number(number)
            .with_place(place)
            .with_generation(generation & GENERATION_MASK)
    }

    fn post_receive(&mut self, cx: &Context<'_, P>, index: u16) -> Result<(), Fault> {
        let memory = self.parts.receives.piece(cx.map, index, MESSAGE_BYTES);
        let id = self.id(u32::from(index)).with_is_receive(true);
        self.has_queued = true;
        Ok(self.parts.queue_pair.queue_receive(&ReceiveRequest {
            wr_id: id.into_bits(),
            memory: memory.ok_or(Fault::NotRegistered)?,
        })?)
    }

    /// Takes a call from its receive. Returns false if it has to wait.
    fn take_call(
        &mut self,
        cx: &mut Context<'_, P>,
        index: u16,
        bytes: usize,
    ) -> Result<bool, Fault> {
        let can_answer = !self.free_sends.is_empty() && self.queue.vacant() > 0;
        let Some(&call) = self.free_calls.last().filter(|_| can_answer) else {
            return Ok(false);
        };
        self.called_at = cx.now;
        let message = &mut cx.scratch[..bytes.min(MESSAGE_BYTES)];
        self.parts.receives.read(index, message);
        let decoded = Header::decode(message).and_then(|(header, at)| {
            let chunks = header.call(message.len() - at)?;
            Ok((header, chunks, at))
        });
        let (header, chunks, at) = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                cx.counters.calls.add(1);
                return self.refuse(cx, error).map(|()| true);
            }
        };
        let own = &mut self.calls[usize::from(call)];
        (own.header, own.chunks, own.placement) = (header, chunks, None);
        own.record.clear();
        own.record.extend_from_slice(&message[at..]);
        let xid = header.xid;
        let taken = match chunks.message.segments().is_empty() {
            true => self.place_item(cx, call)?,
            false => self.pull(cx, call, Stage::PullingMessage)?,
        };
        match taken {
            Taken::Waits => return Ok(false),
            Taken::Refused => self.refuse(cx, HeaderError::Chunk { xid })?,
            Taken::Done => {
                self.free_calls.pop();
            }
        }
        cx.counters.calls.add(1);
        Ok(true)
    }

    /// Finds out where the item of a call belongs whose data are in memory of the client: those of a
    /// WRITE stay there until the device takes them, others are read first.
    fn place_item(&mut self, cx: &mut Context<'_, P>, call: u16) -> Result<Taken, Fault> {
        let own = &mut self.calls[usize::from(call)];
        // A record is at most as long.
        let bytes = own.chunks.data.bytes() as usize;
        if bytes == 0 {
            self.ready(call);
            return Ok(Taken::Done);
        }
        let at = own.chunks.data_at;
        let record_bytes = own.record.len() + bytes + padding(bytes);
        let found = find_payload(&own.record[..at], record_bytes);
        // Clients may send the padding, too.
        let is_whole =
            |it: &Placement| bytes == it.length || bytes == it.length + padding(it.length);
        match found {
            PayloadSearch::At(placement) if placement.at == at && is_whole(&placement) => {
                own.placement = Some(placement);
                let zeroes = [0; UNIT_BYTES];
                let padding = &zeroes[..padding(placement.length)];
                own.record.splice(at..at, padding.iter().copied());
                self.ready(call);
                Ok(Taken::Done)
            }
            _ if bytes > ITEM_BYTES_MAX => Ok(Taken::Refused),
            _ => self.pull(cx, call, Stage::PullingItem),
        }
    }

    fn ready(&mut self, call: u16) {
        self.calls[usize::from(call)].stage = Stage::Ready;
        self.ready.push_back(call);
    }

    /// Reads a call, or an item of it, from memory of the client.
    fn pull(&mut self, cx: &mut Context<'_, P>, call: u16, stage: Stage) -> Result<Taken, Fault> {
        let own = &self.calls[usize::from(call)];
        let chunk = match stage {
            Stage::PullingMessage => own.chunks.message,
            _ => own.chunks.data,
        };
        let bytes = chunk.bytes() as usize;
        if bytes > cx.core.pool().max_transfer() {
            return Ok(Taken::Refused);
        }
        if self.queue.vacant() < chunk.segments().len() {
            return Ok(Taken::Waits);
        }
        let Some(lease) = cx.core.pool().take(bytes) else {
            return Ok(Taken::Waits);
        };
        self.calls[usize::from(call)].stage = stage;
        let number = self.queue.begin(Purpose::Pull { call }, cx.now);
        self.post_read(cx, number, lease, (0, bytes), Remote::new(&chunk, 0))?;
        Ok(Taken::Done)
    }

    /// Reads memory of the client into a part of a lease.
    fn post_read(
        &mut self,
        cx: &Context<'_, P>,
        number: u32,
        lease: Lease,
        (skip, bytes): (usize, usize),
        mut remote: Remote<'_>,
    ) -> Result<(), Fault> {
        let memory = self.queue.keep(Data::Lease(lease));
        let mut done = 0;
        while let Some((address, length)) = remote.take(bytes - done).filter(|_| done < bytes) {
            let pieces = self.pieces(cx, Some(memory), skip + done, length)?;
            self.post(number, SendOperation::Read(address), &pieces)?;
            done += length;
        }
        self.parts.queue_pair.signal_last();
        cx.counters.bytes_read.add(bytes as u64);
        Ok(())
    }

    /// The pieces of a part of memory that the last group keeps, or of zeroes.
    fn pieces(
        &self,
        cx: &Context<'_, P>,
        memory: Option<usize>,
        offset: usize,
        bytes: usize,
    ) -> Result<SgeList, Fault> {
        let pieces = match memory {
            Some(index) => {
                let memory = self.queue.memory(index);
                memory.and_then(|it| cx.map.gather(it, offset, bytes))
            }
            None => cx.map.gather(cx.zeroes, 0, bytes),
        };
        pieces.ok_or(Fault::NotRegistered)
    }

    fn post(
        &mut self,
        number: u32,
        operation: SendOperation,
        pieces: &SgeList,
    ) -> Result<(), Fault> {
        let payload = Payload::Memory(pieces.as_slice());
        let request = SendRequest::new(self.id(number).into_bits(), operation, payload);
        self.queue.count();
        self.has_queued = true;
        Ok(self
            .parts
            .queue_pair
            .queue_send(&request.signalled(false))?)
    }

    /// Begins the requests that are complete.
    fn admit(&mut self, cx: &mut Context<'_, P>) {
        while cx.core.may_admit(self.parts.key) && !self.ready.is_empty() {
            let Some(mut job) = cx.core.jobs().unused() else {
                return;
            };
            let Some(call) = self.ready.pop_front() else {
                return;
            };
            let own = &mut self.calls[usize::from(call)];
            own.stage = Stage::Executing;
            job.record.extend_from_slice(&own.record);
            job.placement = own.placement;
            job.transport_slot = u32::from(call);
            cx.core.admit(self.parts.key, job, None, cx.now);
        }
    }

    /// A request does not need its call any more.
    fn end_call(&mut self, call: u32) {
        if let Some(own) = self.calls.get_mut(call as usize)
            && own.stage != Stage::Free
        {
            own.stage = Stage::Free;
            self.free_calls.push(call as u16);
        }
    }

    /// Reads data of a WRITE. Returns them if they have to wait.
    fn post_fetch(
        &mut self,
        cx: &mut Context<'_, P>,
        fetch: Fetch,
    ) -> Result<Option<Fetch>, Fault> {
        let Some(call) = cx.core.jobs().get(fetch.job).map(|it| it.transport_slot) else {
            // The request has ended without its data.
            return Ok(None);
        };
        let Some(chunk) = self.calls.get(call as usize).map(|it| it.chunks.data) else {
            return Ok(None);
        };
        if self.queue.vacant() <= chunk.segments().len() {
            return Ok(Some(fetch));
        }
        let Fetch {
            job,
            piece,
            lease,
            skip,
            data_at,
            length,
            ..
        } = fetch;
        let number = self.queue.begin(Purpose::Fetch { job, piece }, cx.now);
        let remote = Remote::new(&chunk, data_at);
        self.post_read(cx, number, lease, (skip, length), remote)?;
        Ok(None)
    }

    /// A group of work requests has ended.
    pub(crate) fn completed(
        &mut self,
        cx: &mut Context<'_, P>,
        completion: &WorkCompletion,
    ) -> Result<(), Fault> {
        if !completion.is_success() {
            return Err(Fault::Failed(completion.status));
        }
        while let Some(Ended { purpose, lease }) = self.queue.end_next(completion) {
            match purpose {
                Purpose::Reply { held_bytes, buffer } => {
                    self.free_sends.push(buffer);
                    if let Some(link) = cx.core.link(self.parts.key) {
                        link.held_bytes -= held_bytes;
                    }
                }
                Purpose::Fetch { job, piece } => cx.core.fetched(job, piece, lease, cx.now),
                Purpose::Pull { call } => self.pulled(cx, call, lease)?,
            }
        }
        Ok(())
    }

    fn pulled(
        &mut self,
        cx: &mut Context<'_, P>,
        call: u16,
        lease: Option<Lease>,
    ) -> Result<(), Fault> {
        let own = &mut self.calls[usize::from(call)];
        let Some(lease) = lease else {
            return Ok(());
        };
        if own.stage == Stage::PullingItem {
            let at = own.chunks.data_at;
            let padding = padding(lease.len());
            let item = lease.iter().copied();
            let item = item.chain(std::iter::repeat_n(0, padding));
            own.record.splice(at..at, item);
            self.ready(call);
            return Ok(());
        }
        cx.counters.long_calls.add(1);
        own.record.clear();
        own.record.extend_from_slice(&lease);
        drop(lease);
        let taken = self.place_item(cx, call)?;
        if matches!(taken, Taken::Done) {
            return Ok(());
        }
        // Only data of a WRITE are outside of a call that is itself outside of its message.
        let xid = self.calls[usize::from(call)].header.xid;
        self.end_call(u32::from(call));
        self.refuse(cx, HeaderError::Chunk { xid })
    }

    /// Answers a message that is not a valid call.
    fn refuse(&mut self, cx: &mut Context<'_, P>, error: HeaderError) -> Result<(), Fault> {
        cx.counters.calls_refused.add(1);
        let Some(answer) = error.answer(self.credits()) else {
            return Ok(());
        };
        // Without room the client has more outstanding than it may have, and gets no answer.
        let buffer = self.free_sends.pop().filter(|_| self.queue.vacant() > 0);
        let Some(buffer) = buffer else {
            return Ok(());
        };
        let purpose = Purpose::Reply {
            held_bytes: 0,
            buffer,
        };
        let number = self.queue.begin(purpose, cx.now);
        let length = encode(&answer, cx.scratch);
        self.post_message(cx, number, buffer, length, None)
    }

    /// Sends a message that is in the scratch memory, as the last request of a group.
    fn post_message(
        &mut self,
        cx: &Context<'_, P>,
        number: u32,
        buffer: u16,
        length: usize,
        invalidated: Option<u32>,
    ) -> Result<(), Fault> {
        self.parts.sends.write(buffer, &cx.scratch[..length]);
        let pieces = self.parts.sends.piece(cx.map, buffer, length);
        let operation = match invalidated {
            Some(rkey) => SendOperation::SendWithInvalidate { rkey },
            None => SendOperation::Send,
        };
        self.post(number, operation, &pieces.ok_or(Fault::NotRegistered)?)?;
        self.parts.queue_pair.signal_last();
        Ok(())
    }

    /// Sends a reply. Returns false if it has to wait.
    fn send_reply(&mut self, cx: &mut Context<'_, P>, key: JobKey) -> Result<bool, Fault> {
        let Some(job) = cx.core.jobs().get(key) else {
            return Ok(true);
        };
        let slot = job.transport_slot;
        let Some(call) = self.calls.get(slot as usize).map(|it| it.header) else {
            return Ok(true);
        };
        let execution = &job.execution;
        let zeroes = cx.zeroes;
        let requests = |part: &PayloadPart| {
            let most = request_bytes_max(part.data.is_none(), zeroes);
            part.length.div_ceil(most)
        };
        let parts = (0..execution.holes().len()).flat_map(|it| job.payload(it));
        let requests = parts.map(requests).sum::<usize>() + REPLY_REQUESTS_MAX;
        let plan = match requests <= SEND_REQUESTS_MAX as usize {
            true => ReplyPlan::new(execution, &call, self.credits(), self.parts.send_bytes),
            // The device takes tiny transfers only, and the client reads very fragmented files.
            false => ReplyPlan::refused(&call, self.credits()),
        };
        let has_room = self.queue.vacant() >= requests.min(SEND_REQUESTS_MAX as usize);
        if !has_room || self.free_sends.is_empty() {
            return Ok(false);
        }
        let mut long = None;
        if plan.form == Form::Long {
            let bytes = execution.reply().len();
            let Some(mut lease) = cx.core.pool().take(bytes) else {
                return Ok(false);
            };
            if let Some(job) = cx.core.jobs().get(key) {
                lease.copy_from_slice(job.execution.reply());
            }
            long = Some(lease);
        }
        let Some(buffer) = self.free_sends.pop() else {
            return Ok(false);
        };
        let Some(mut job) = cx.core.jobs().take(key) else {
            self.free_sends.push(buffer);
            return Ok(true);
        };
        let held_bytes = std::mem::take(&mut job.held_bytes);
        let purpose = Purpose::Reply { held_bytes, buffer };
        let number = self.queue.begin(purpose, cx.now);
        let posted = self.post_reply(cx, number, &mut job, (&call, &plan), long);
        cx.core.end_request(key, job);
        let length = posted?;
        self.end_call(slot);
        let invalidated = match plan.form {
            Form::Refused => None,
            _ => call
                .chunks
                .first_handle()
                .filter(|_| self.parts.invalidates),
        };
        if invalidated.is_some() {
            cx.counters.invalidations.add(1);
        }
        self.post_message(cx, number, buffer, length, invalidated)?;
        Ok(true)
    }

    /// Writes the data of a reply, and its results if they are in memory of the client. Makes its
    /// message; returns the length.
    fn post_reply(
        &mut self,
        cx: &mut Context<'_, P>,
        number: u32,
        job: &mut files_service::Job,
        (call, plan): (&Header, &ReplyPlan),
        long: Option<Lease>,
    ) -> Result<usize, Fault> {
        let mut length = encode(&plan.header, cx.scratch);
        if plan.form == Form::Refused {
            cx.counters.calls_refused.add(1);
            return Ok(length);
        }
        let mut holes = [files_spec::xdr::Hole::default(); files_spec::xdr::HOLES_MAX];
        let hole_count = job.execution.holes().len();
        holes[..hole_count].copy_from_slice(job.execution.holes());
        let holes = &holes[..hole_count];
        for (index, hole) in holes.iter().enumerate().filter(|it| is_placed(call, it.0)) {
            let mut remote = Remote::new(&call.chunks.writes()[index], 0);
            self.write_payload(cx, number, job, index, &mut remote)?;
            cx.counters.bytes_written.add(u64::from(hole.length));
        }
        let reply_bytes = job.execution.reply().len();
        let rest = plan.header.chunks.reply.unwrap_or_default();
        let mut rest = Remote::new(&rest, 0);
        let long = long.map(|lease| self.queue.keep(Data::Lease(lease)));
        if long.is_some() {
            cx.counters.long_replies.add(1);
            cx.counters.bytes_written.add(plan.body_bytes as u64);
        }
        for (range, hole) in parts(reply_bytes, holes, call) {
            match long {
                Some(memory) => {
                    let (begin, bytes) = (range.start, range.len());
                    self.write(cx, number, Some(memory), (begin, bytes), &mut rest)?;
                }
                None => {
                    let bytes = &job.execution.reply()[range];
                    cx.scratch[length..][..bytes.len()].copy_from_slice(bytes);
                    length += bytes.len();
                }
            }
            let Some(hole) = hole.filter(|&it| !is_placed(call, it)) else {
                continue;
            };
            if long.is_some() {
                self.write_payload(cx, number, job, hole, &mut rest)?;
                continue;
            }
            for part in job.payload(hole) {
                cx.scratch[length..][..part.length].copy_from_slice(part.bytes());
                length += part.length;
                let copied = &cx.core.counters().read_bytes_copied;
                copied.add(part.length as u64);
            }
        }
        Ok(length)
    }

    /// Writes the data of a hole into memory of the client, from where they are.
    fn write_payload(
        &mut self,
        cx: &Context<'_, P>,
        number: u32,
        job: &mut files_service::Job,
        hole: usize,
        remote: &mut Remote<'_>,
    ) -> Result<(), Fault> {
        for part in job.take_payload(hole) {
            let memory = part.data.map(|it| self.queue.keep(it));
            self.write(cx, number, memory, (part.skip, part.length), remote)?;
        }
        Ok(())
    }

    /// Writes a part of memory into memory of the client.
    fn write(
        &mut self,
        cx: &Context<'_, P>,
        number: u32,
        memory: Option<usize>,
        (skip, bytes): (usize, usize),
        remote: &mut Remote<'_>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < bytes {
            // The plan has made sure that there is room.
            let most = request_bytes_max(memory.is_none(), cx.zeroes);
            let Some((address, length)) = remote.take(most.min(bytes - done)) else {
                break;
            };
            let pieces = self.pieces(cx, memory, skip + done, length)?;
            self.post(number, SendOperation::Write(address), &pieces)?;
            done += length;
        }
        Ok(())
    }

    /// Checks what takes too long.
    pub(crate) fn check(&mut self, now: Nanos) -> Result<(), Fault> {
        let since = Nanos(now.0.saturating_sub(self.began.0));
        if !self.is_established && since > Nanos::from_millis(ESTABLISH_MS) {
            return Err(Fault::NotEstablished);
        }
        let age = self.queue.oldest_age(now).unwrap_or(Nanos::ZERO);
        let is_stalled = age > Nanos::from_millis(PROGRESS_MS);
        let lends = age > Nanos::from_millis(LENT_MS) && self.queue.delays_writer();
        match is_stalled || lends {
            true => Err(Fault::Stalled),
            false => Ok(()),
        }
    }

    /// Whether its client has not used it for so long that it may be gone.
    pub(crate) fn is_unused(&self, now: Nanos) -> bool {
        let since = Nanos(now.0.saturating_sub(self.called_at.0));
        let has_ended = self.free_calls.len() == self.calls.len() && self.arrived.is_empty();
        has_ended && since > Nanos::from_millis(IDLE_MS)
    }

    /// Copies what waiting replies have borrowed, so that writers go on.
    pub(crate) fn copy_borrowed(&mut self, core: &mut FileCore) {
        let mut copied = 0;
        for &key in &self.replies {
            if let Some(mut job) = core.jobs().take(key) {
                // Without memory it is tried again.
                let _ = job.copy_borrowed(core.pool(), &mut copied);
                core.jobs().put(key, job);
            }
        }
        core.counters().read_bytes_copied.add(copied);
    }

    /// Ends the connection: its queue pair is destroyed, and its memory is free.
    pub(crate) fn end(mut self, core: &mut FileCore, now: Nanos) {
        let _ = self.parts.connection.disconnect();
        core.disconnect(self.parts.key);
        let mut lost = Vec::new();
        match QueueDestroyed::of(&mut self.parts.queue_pair) {
            Ok(proof) => {
                while let Some(ended) = self.queue.destroyed(&proof) {
                    if let Purpose::Fetch { job, piece } = ended.purpose {
                        lost.push((job, piece));
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, "a queue pair was not destroyed: its memory is given up");
                self.parts.receives.give_up();
                self.parts.sends.give_up();
                lost.extend(self.queue.fetches());
            }
        }
        lost.extend(self.fetches.drain(..).map(|it| (it.job, it.piece)));
        for (job, piece) in lost {
            core.fetched(job, piece, None, now);
        }
        for key in self.replies.drain(..) {
            if let Some(job) = core.jobs().take(key) {
                core.end_request(key, job);
            }
        }
    }
}

/// What became of a call.
enum Taken {
    /// It has its place in the table.
    Done,
    /// Its chunks cannot be used.
    Refused,
    /// Memory or room is missing.
    Waits,
}

fn encode(header: &Header, into: &mut [u8; MESSAGE_BYTES]) -> usize {
    let mut to = Encoder::new(into);
    header
        .encode(&mut to)
        .expect("a message has room for a header");
    to.written().len()
}

const _: () = assert!(BORROWED_MS <= LENT_MS);
