//! A COMPOUND that is being executed: its place in the request, its current objects, and the reply
//! that is being written. It can be suspended while data move or a change becomes durable.

use std::net::{IpAddr, Ipv4Addr};

use files_spec::Status;
use files_spec::compound::Tag;
use files_spec::operations::{OperationNumber, OperationResult, ReadOk, SequenceArgs};
use files_spec::rpc::{AcceptStatus, Fragment, MARK_BYTES, Reply};
use files_spec::types::{Stable, StateId};
use files_spec::xdr::{EncodeError, Encoder, HOLES_MAX, Hole, Payload, UNIT_BYTES, Xdr, padding};
use files_store::{InodeId, MovePiece, Range, Ticket, WriteId};

use crate::caller::Header;
use crate::limits::{
    CHANGE_RESULT_BYTES_MAX, FAILED_RESULT_BYTES, REPLY_BEGINNING_BYTES, REPLY_BYTES_MAX,
};
use crate::place::{Place, VolumeIndex};
use crate::refusal::Refusal;
use crate::table::Key;

/// Length of the header of an RPC reply whose call is accepted.
const REPLY_HEADER_BYTES: usize = 24;

/// What a reply without a tag begins with: the header of an accepted call, the status, the length of
/// the tag and the number of results.
const BEGINNING_WITHOUT_TAG: [u8; REPLY_HEADER_BYTES + 12] = {
    let mut bytes = [0; REPLY_HEADER_BYTES + 12];
    // The record is a reply; the call is accepted with AUTH_NONE, and everything has succeeded.
    bytes[7] = 1;
    bytes
};

/// Length of the reply to SEQUENCE, PUTFH and READ without the data and their padding.
pub(crate) const READ_REPLY_BYTES: usize = REPLY_BEGINNING_BYTES + 8 + 16;

const _: () = assert!(REPLY_BEGINNING_BYTES == BEGINNING_WITHOUT_TAG.len() + 44);

/// What the caller does next with an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<'r> {
    /// Send [`Execution::reply`].
    Reply,
    /// The record is no call: there is nothing to send.
    Ignore,
    /// Read the ranges [`Execution::ranges`] of the device into memory for the next hole of the
    /// reply. The data are part of the reply if it has this hole after the resumption. Otherwise the
    /// file has changed, and the blocks may have become part of another one.
    Read {
        /// The volume.
        volume: VolumeIndex,
        /// Whether no operation follows, so that nothing of the request waits for a device any more
        /// that could be kept from a write by the reply.
        is_last: bool,
    },
    /// Write data to the parts [`Execution::pieces`] of the device.
    Write {
        /// The volume.
        volume: VolumeIndex,
        /// The data: in the record, or where the caller has received them.
        data: Payload<'r>,
    },
    /// Carry out the requests of the volumes, and store the records of clients, until
    /// [`crate::Server::is_durable`].
    AwaitDurable,
    /// Continue after the end of another execution or of a request of a volume.
    AwaitVolume,
}

/// How what a [`Step`] asked for has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumption {
    /// It is done.
    Done,
    /// The device has failed.
    DeviceFailed,
    /// The device is gone, or did not execute it when it was asked again.
    DeviceGone,
    /// The data of a WRITE, which were in memory of the client, cannot be had any more. A part of
    /// them may be on the device.
    DataLost,
}

/// The session and slot of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldSlot {
    pub(crate) session: Key,
    pub(crate) client: Key,
    pub(crate) slot: u32,
    pub(crate) is_cached: bool,
}

/// Why an execution does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// It runs.
    No,
    /// Woken by the end of a READ, whose ranges the execution keeps.
    Read(PendingRead),
    /// Woken by the end of the data of a WRITE.
    Write(PendingWrite),
    /// The data of a WRITE are on the device. Woken when the log has room.
    Record(PendingWrite),
    /// Woken when the volume can execute the operation.
    Volume,
    /// All operations are executed. Woken when their changes are durable.
    Durable(Status),
}

/// A READ whose data move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingRead {
    pub(crate) volume: VolumeIndex,
    pub(crate) inode: InodeId,
    pub(crate) offset: u64,
    pub(crate) count: u64,
    pub(crate) eof: bool,
    pub(crate) length: u32,
    /// Counts the steps of the server.
    pub(crate) step: u64,
    /// Whether no operation follows.
    pub(crate) is_last: bool,
}

/// A WRITE whose data move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingWrite {
    pub(crate) volume: VolumeIndex,
    pub(crate) id: WriteId,
    pub(crate) length: u32,
    pub(crate) stable: Stable,
    /// Whether no operation follows.
    pub(crate) is_last: bool,
}

/// The current or saved object with its state identifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Current {
    pub(crate) place: Option<Place>,
    pub(crate) state: Option<StateId>,
}

/// A COMPOUND that is being executed. It can be used again after its reply was sent.
#[derive(Debug)]
pub struct Execution {
    /// Room for the mark of a record, and behind it for the longest reply.
    memory: Box<[u8]>,
    at: usize,
    holes: [Hole; HOLES_MAX],
    hole_count: usize,
    hole_bytes: usize,
    /// Limit of the reply with holes in bytes.
    limit: usize,
    /// The status of a reply that exceeds the limit.
    too_big: Status,
    count_at: usize,
    results: u32,
    /// Behind the result of SEQUENCE.
    sequence_end: usize,
    /// Index of the operation that is executed.
    pub(crate) next: usize,
    pub(crate) minor_version: u32,
    /// Its sender.
    pub(crate) header: Header,
    /// The address of the client.
    pub(crate) address: IpAddr,
    pub(crate) slot: Option<HeldSlot>,
    pub(crate) current: Current,
    pub(crate) saved: Current,
    /// The file that an OPEN has created before it had to wait.
    pub(crate) created: Option<InodeId>,
    /// Open states that it has created, which end with it if its changes do not become durable.
    pub(crate) opened: Vec<(Key, StateId)>,
    pub(crate) awaited: Vec<(VolumeIndex, Ticket)>,
    /// The version of the records of clients that the reply waits for.
    pub(crate) records: u64,
    /// The ranges of a READ whose data move.
    pub(crate) ranges: Vec<Range>,
    /// Memory for the ranges after that.
    pub(crate) ranges_after: Vec<Range>,
    /// Where the data of a WRITE go.
    pub(crate) pieces: Vec<MovePiece>,
    pub(crate) waiting: Waiting,
}

impl Default for Execution {
    fn default() -> Self {
        Self::new()
    }
}

impl Execution {
    /// An execution with memory for the longest reply.
    #[must_use]
    pub fn new() -> Self {
        Self {
            memory: vec![0; MARK_BYTES + REPLY_BYTES_MAX].into_boxed_slice(),
            at: 0,
            holes: [Hole::default(); HOLES_MAX],
            hole_count: 0,
            hole_bytes: 0,
            limit: REPLY_BYTES_MAX,
            too_big: Status::REP_TOO_BIG,
            count_at: 0,
            results: 0,
            sequence_end: 0,
            next: 0,
            minor_version: 0,
            header: Header::NONE,
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            slot: None,
            current: Current::default(),
            saved: Current::default(),
            created: None,
            opened: Vec::new(),
            awaited: Vec::new(),
            records: 0,
            ranges: Vec::new(),
            ranges_after: Vec::new(),
            pieces: Vec::new(),
            waiting: Waiting::No,
        }
    }

    /// The reply without the bytes of its holes.
    #[must_use]
    pub fn reply(&self) -> &[u8] {
        &self.marked_reply()[MARK_BYTES..]
    }

    /// The reply behind its mark, once [`Self::mark`] has written that.
    #[must_use]
    pub fn marked_reply(&self) -> &[u8] {
        &self.memory[..MARK_BYTES + self.at]
    }

    /// Writes the mark of the reply as one record, with its holes. Returns the length of the mark and
    /// the record in bytes.
    pub fn mark(&mut self) -> usize {
        let bytes = self.message_bytes();
        self.memory[..MARK_BYTES].copy_from_slice(&Fragment::whole(bytes).encode());
        MARK_BYTES + bytes
    }

    /// The memory for the reply.
    fn room_of_reply(&mut self) -> &mut [u8] {
        &mut self.memory[MARK_BYTES..]
    }

    /// The holes of the reply, one for the data of each READ.
    #[must_use]
    pub fn holes(&self) -> &[Hole] {
        &self.holes[..self.hole_count]
    }

    /// The ranges of the device that [`Step::Read`] asks for, in their order.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// The parts of the device that [`Step::Write`] writes, in the order of the data.
    #[must_use]
    pub fn pieces(&self) -> &[MovePiece] {
        &self.pieces
    }

    /// Length of the reply with its holes in bytes.
    #[must_use]
    pub fn message_bytes(&self) -> usize {
        self.at + self.hole_bytes
    }

    /// Whether it waits for a resumption.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.waiting != Waiting::No
    }

    /// Begins again with an empty reply. What an earlier request left in the memory is not read, and its
    /// header is replaced before the first operation.
    pub(crate) fn reset(&mut self) {
        self.at = 0;
        (self.hole_count, self.hole_bytes) = (0, 0);
        (self.limit, self.too_big) = (REPLY_BYTES_MAX, Status::REP_TOO_BIG);
        (self.count_at, self.results, self.sequence_end) = (0, 0, 0);
        (self.next, self.minor_version) = (0, 0);
        self.address = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        self.slot = None;
        (self.current, self.saved) = (Current::default(), Current::default());
        self.created = None;
        self.opened.clear();
        self.awaited.clear();
        self.records = 0;
        self.waiting = Waiting::No;
    }

    /// Writes a reply of RPC without results.
    pub(crate) fn refuse(&mut self, reply: &Reply<'_>) {
        let mut to = Encoder::new(self.room_of_reply());
        reply.encode(&mut to).expect("a header fits");
        self.at = to.written().len();
    }

    /// Begins the reply to a COMPOUND.
    pub(crate) fn begin(&mut self, xid: u32, tag: Tag<'_>) {
        if tag.0.is_empty()
            && let Some(beginning) = self.room_of_reply().first_chunk_mut()
        {
            *beginning = BEGINNING_WITHOUT_TAG;
            beginning[..4].copy_from_slice(&xid.to_be_bytes());
            self.count_at = BEGINNING_WITHOUT_TAG.len() - 4;
            self.at = BEGINNING_WITHOUT_TAG.len();
            return;
        }
        self.refuse(&Reply::accepted(xid, AcceptStatus::Success));
        debug_assert_eq!(self.at, REPLY_HEADER_BYTES);
        self.count_at = self.at + 4 + 4 + tag.0.len() + padding(tag.0.len());
        let at = self.at;
        let mut to = Encoder::new(&mut self.room_of_reply()[at..]);
        let written = Status::OK
            .encode(&mut to)
            .and_then(|()| tag.encode(&mut to))
            .and_then(|()| 0_u32.encode(&mut to));
        written.expect("a bounded tag fits");
        self.at = self.count_at + 4;
    }

    /// Writes the whole reply to SEQUENCE, PUTFH and READ, with a hole for the data. None of them
    /// fails, and the length is not 0.
    pub(crate) fn reply_to_read(
        &mut self,
        xid: u32,
        (sequence, highest_slot): (&SequenceArgs, u32),
        (eof, length): (bool, u32),
    ) {
        let memory = self.room_of_reply();
        let reply = memory.first_chunk_mut::<{ READ_REPLY_BYTES + UNIT_BYTES }>();
        let reply = reply.expect("other replies are longer");
        reply[..36].copy_from_slice(&BEGINNING_WITHOUT_TAG);
        let mut put = |at: usize, word: u32| reply[at..at + 4].copy_from_slice(&word.to_be_bytes());
        put(0, xid);
        put(32, 3);
        put(36, OperationNumber::SEQUENCE.0);
        put(40, Status::OK.0);
        put(60, sequence.sequenceid);
        put(64, sequence.slotid);
        put(68, highest_slot);
        put(72, highest_slot);
        put(76, 0);
        put(80, OperationNumber::PUTFH.0);
        put(84, Status::OK.0);
        put(88, OperationNumber::READ.0);
        put(92, Status::OK.0);
        put(96, u32::from(eof));
        put(100, length);
        // The padding behind the data.
        put(READ_REPLY_BYTES, 0);
        reply[44..60].copy_from_slice(&sequence.sessionid);
        self.at = READ_REPLY_BYTES + padding(length as usize);
        self.holes[0] = Hole {
            at: READ_REPLY_BYTES,
            length,
        };
        (self.hole_count, self.hole_bytes) = (1, length as usize);
        (self.slot, self.waiting) = (None, Waiting::No);
        self.awaited.clear();
    }

    /// Limits the reply to what the session and the replay cache accept.
    pub(crate) fn set_limit(&mut self, limit: u32, too_big: Status) {
        self.limit = limit as usize;
        self.too_big = too_big;
    }

    /// Room for results with their payload, without that of a failure.
    fn room(&self) -> usize {
        let used = self.message_bytes() + FAILED_RESULT_BYTES;
        self.limit.saturating_sub(used)
    }

    /// Room for results in memory, without that of a failure.
    pub(crate) fn memory_room(&self) -> usize {
        let used = self.at + FAILED_RESULT_BYTES;
        self.room().min(REPLY_BYTES_MAX.saturating_sub(used))
    }

    /// Checks that the result of a change will fit, before the change.
    ///
    /// # Errors
    /// `NFS4ERR_REP_TOO_BIG` or `NFS4ERR_REP_TOO_BIG_TO_CACHE`.
    pub(crate) fn check_room(&self) -> Result<(), Refusal> {
        match self.memory_room() >= CHANGE_RESULT_BYTES_MAX {
            true => Ok(()),
            false => Err(self.too_big.into()),
        }
    }

    /// Appends a result.
    ///
    /// # Errors
    /// `NFS4ERR_REP_TOO_BIG` or `NFS4ERR_REP_TOO_BIG_TO_CACHE` if it does not fit.
    pub(crate) fn push(&mut self, result: &OperationResult<'_>) -> Result<(), Refusal> {
        self.push_with(|to| result.encode(to))
    }

    /// Appends the result of an operation that has succeeded.
    ///
    /// # Errors
    /// As [`Self::push`].
    #[inline]
    pub(crate) fn push_ok<'a>(
        &mut self,
        number: OperationNumber,
        body: &impl Xdr<'a>,
    ) -> Result<(), Refusal> {
        self.push_with(|to| {
            number.encode(to)?;
            Status::OK.encode(to)?;
            body.encode(to)
        })
    }

    /// Appends a result that `encode` writes.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub(crate) fn push_with(
        &mut self,
        encode: impl FnOnce(&mut Encoder<'_>) -> Result<(), EncodeError>,
    ) -> Result<(), Refusal> {
        let (room, memory) = (self.room(), self.memory_room());
        let mut to = Encoder::new(&mut self.memory[MARK_BYTES + self.at..][..memory]);
        encode(&mut to).map_err(|error| match error {
            EncodeError::NoSpace | EncodeError::TooManyHoles => self.too_big,
            EncodeError::Value => Status::SERVERFAULT,
        })?;
        let length = to.written().len();
        if to.holes().is_empty() {
            // It fits into the room, too, which is not smaller.
            self.at += length;
            self.results += 1;
            return Ok(());
        }
        let bytes = to.message_bytes();
        if bytes > room || self.hole_count + to.holes().len() > HOLES_MAX {
            return Err(self.too_big.into());
        }
        for hole in to.holes() {
            self.holes[self.hole_count] = Hole {
                at: self.at + hole.at,
                length: hole.length,
            };
            self.hole_count += 1;
        }
        self.at += length;
        self.hole_bytes += bytes - length;
        self.results += 1;
        Ok(())
    }

    /// Appends the result of READ, with a hole for its data.
    pub(crate) fn push_read(&mut self, eof: bool, length: u32) -> Result<(), Refusal> {
        let data = Payload::Elsewhere(length);
        self.push_ok(OperationNumber::READ, &ReadOk { eof, data })
    }

    /// Whether a READ of this many bytes fits into the reply, with its result.
    pub(crate) fn check_read(&self, length: u32) -> Result<(), Refusal> {
        let length = length as usize;
        let result = 16 + length + padding(length);
        match result <= self.room() && self.hole_count < HOLES_MAX {
            true => Ok(()),
            false => Err(self.too_big.into()),
        }
    }

    /// Appends the result of an operation that fails.
    pub(crate) fn push_failure(&mut self, number: OperationNumber, status: Status) {
        let at = self.at;
        let mut to = Encoder::new(&mut self.room_of_reply()[at..]);
        let failed = OperationResult::failed(number, status);
        failed.encode(&mut to).expect("room for it is reserved");
        self.at += to.written().len();
        self.results += 1;
    }

    /// Remembers where the result of SEQUENCE ends.
    pub(crate) fn end_sequence(&mut self) {
        self.sequence_end = self.at;
    }

    /// Replaces all results behind that of SEQUENCE by one failure.
    pub(crate) fn fail_all(&mut self, number: OperationNumber, status: Status) {
        self.at = self.sequence_end;
        self.results = 1;
        (self.hole_count, self.hole_bytes) = (0, 0);
        self.push_failure(number, status);
    }

    /// Sets the status and the number of the results.
    pub(crate) fn end(&mut self, status: Status) {
        let status_at = REPLY_HEADER_BYTES;
        let (count_at, count) = (self.count_at, self.results.to_be_bytes());
        let reply = self.room_of_reply();
        reply[status_at..status_at + 4].copy_from_slice(&status.0.to_be_bytes());
        reply[count_at..count_at + 4].copy_from_slice(&count);
    }

    /// What a replay cache keeps: the results of the procedure, without the header of RPC.
    pub(crate) fn results(&self) -> &[u8] {
        &self.reply()[REPLY_HEADER_BYTES..]
    }

    /// Replaces the reply by kept results.
    pub(crate) fn replay(&mut self, results: &[u8]) {
        self.at = REPLY_HEADER_BYTES + results.len();
        self.room_of_reply()[REPLY_HEADER_BYTES..][..results.len()].copy_from_slice(results);
    }

    /// The client of the session.
    ///
    /// # Errors
    /// `NFS4ERR_OP_NOT_IN_SESSION` without a session.
    pub(crate) fn client(&self) -> Result<Key, Refusal> {
        let slot = self.slot.ok_or(Status::OP_NOT_IN_SESSION)?;
        Ok(slot.client)
    }

    /// The current object.
    ///
    /// # Errors
    /// `NFS4ERR_NOFILEHANDLE` without one (RFC 8881 §15.1.2.5).
    pub(crate) fn place(&self) -> Result<Place, Refusal> {
        Ok(self.current.place.ok_or(Status::NOFILEHANDLE)?)
    }

    /// Makes an object the current one, without a state identifier (RFC 8881 §16.2.3.1.2).
    pub(crate) fn go_to(&mut self, place: Place) {
        self.current = Current {
            place: Some(place),
            state: None,
        };
    }

    /// Waits for a change before the reply.
    pub(crate) fn await_durable(&mut self, volume: VolumeIndex, ticket: Ticket) {
        match self.awaited.iter_mut().find(|it| it.0 == volume) {
            Some(awaited) => awaited.1 = awaited.1.max(ticket),
            None => self.awaited.push((volume, ticket)),
        }
    }
}

#[cfg(test)]
mod tests {
    use files_spec::xdr::Opaque;

    use super::*;

    #[test]
    fn a_reply_without_a_tag_begins_as_the_encoder_writes_it() {
        let mut x = Execution::new();
        x.refuse(&Reply::accepted(0x0102_0304, AcceptStatus::Success));
        let header = x.reply().to_vec();
        for tag in [b"".as_slice(), b"tag"] {
            let mut x = Execution::new();
            x.memory.fill(0xee);
            x.begin(0x0102_0304, Opaque(tag));
            let mut memory = [0; 64];
            let mut to = Encoder::new(&mut memory);
            Status::OK.encode(&mut to).expect("room");
            Opaque::<64>(tag).encode(&mut to).expect("room");
            0_u32.encode(&mut to).expect("room");
            assert_eq!(x.reply(), [&header, to.written()].concat());
            assert_eq!(x.count_at, x.reply().len() - 4);
        }
    }
}
