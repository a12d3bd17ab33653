//! The request that clients read with, executed from its bytes to its reply if everything succeeds
//! at once.
//!
//! It is the most frequent one, SEQUENCE, PUTFH and READ, and decoding each operation, suspending
//! the request and continuing it costs more than the rest of it. Whatever is different here has no
//! effect, and the request is executed like every other one, with its exact errors.

use files_spec::operations::{OperationNumber, SequenceArgs};
use files_spec::types::StateId;
use files_spec::xdr::padding;
use files_store::Range;

use crate::caller::Caller;
use crate::execution::{Execution, READ_REPLY_BYTES};
use crate::limits::FAILED_RESULT_BYTES;
use crate::operations::data::readable;
use crate::place::{HANDLE_BYTES, VolumeIndex, in_share};
use crate::server::{Fingerprint, Now, Record, Server};

/// A device that can lend its memory.
pub trait Lender {
    /// Whether the device of a volume lends at all.
    fn lends(&self, volume: VolumeIndex) -> bool;

    /// Lends the data of a range for the next hole of the reply. Returns false, without an effect, if
    /// it cannot lend all of them now.
    fn lend(&mut self, volume: VolumeIndex, range: Range) -> bool;
}

/// Where SEQUENCE ends in the arguments, behind the empty tag, the minor version and the number of
/// operations.
const SEQUENCE_END: usize = 12 + 36;

/// Length of the arguments, with PUTFH and READ.
const ARGS_BYTES: usize = SEQUENCE_END + (8 + HANDLE_BYTES) + 32;

/// The arguments of the request.
#[derive(Clone, Copy)]
struct Args<'r> {
    sequence: SequenceArgs,
    handle: &'r [u8; HANDLE_BYTES],
    state: StateId,
    offset: u64,
    count: u32,
}

impl<'r> Args<'r> {
    /// Decodes the arguments; `None` if they are those of another request, or if the reply is to be
    /// kept.
    #[inline]
    fn decode(bytes: &'r [u8; ARGS_BYTES]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<12>()?;
        let (sequence, rest) = rest.split_first_chunk::<36>()?;
        let (file, rest) = rest.split_first_chunk::<{ 8 + HANDLE_BYTES }>()?;
        let read = rest.first_chunk::<32>()?;
        let is_read = word(head, 0) == 0
            && files_spec::compound::MINOR_VERSIONS.contains(&word(head, 4))
            && word(head, 8) == 3
            && word(sequence, 0) == OperationNumber::SEQUENCE.0
            && word(sequence, 32) == 0
            && word(file, 0) == OperationNumber::PUTFH.0
            && word(file, 4) == HANDLE_BYTES as u32
            && word(read, 0) == OperationNumber::READ.0;
        is_read.then_some(Self {
            sequence: SequenceArgs {
                sessionid: *sequence[4..].first_chunk()?,
                sequenceid: word(sequence, 20),
                slotid: word(sequence, 24),
                highest_slotid: word(sequence, 28),
                cachethis: false,
            },
            handle: file[8..].first_chunk()?,
            state: StateId {
                seqid: word(read, 4),
                other: *read[8..].first_chunk()?,
            },
            offset: u64::from(word(read, 20)) << 32 | u64::from(word(read, 24)),
            count: word(read, 28),
        })
    }
}

/// The word at a position of an array.
#[inline(always)]
fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Server {
    /// Executes a request that reads what a device lends. Returns false if it is another request or
    /// does not succeed at once: it has had no effect then, and [`Self::begin`] executes it.
    #[inline]
    pub fn read_at_once(
        &mut self,
        x: &mut Execution,
        record: &Record<'_>,
        caller: &Caller,
        now: &Now,
        lender: &mut impl Lender,
    ) -> bool {
        self.try_read(x, record, caller, now, lender).is_some()
    }

    fn try_read(
        &mut self,
        x: &mut Execution,
        record: &Record<'_>,
        caller: &Caller,
        now: &Now,
        lender: &mut impl Lender,
    ) -> Option<()> {
        let (xid, header) = caller.recognize(record.bytes)?;
        let bytes: &[u8; ARGS_BYTES] = record.bytes[header.bytes..].try_into().ok()?;
        if record.placement.is_some() {
            return None;
        }
        let args = Args::decode(bytes)?;
        let (share, handle) = in_share(args.handle, &self.shares, record.client).ok()?;
        let share = &self.shares[share];
        if !lender.lends(share.volume) {
            return None;
        }
        let next = self.next_request(&args.sequence, record.bytes.len(), READ_OPERATIONS.len())?;
        let client = self.clients.get_mut(next.client)?;
        // Every way of execution begins with this.
        (client.renewed_ms, client.address) = (now.monotonic_ms, record.client);
        let needs_record =
            client.needs_record() || !self.records.is_stored(self.records.required());
        let (_, state) = self.state_of_client(Some(next.client), &args.state).ok()?;
        let file = (share.volume, handle.inode);
        let is_open = self.states.is_open(state, file);
        if needs_record || !is_open {
            return None;
        }
        let view = self.volumes[share.volume.0].file_of(&handle).ok()?;
        let (length, eof) = readable(view.size(), args.offset, args.count);
        let padded = length as usize + padding(length as usize);
        let room = READ_REPLY_BYTES + padded + FAILED_RESULT_BYTES;
        if view.share() != share.part || length == 0 || room > next.reply_bytes_max {
            return None;
        }
        let end = args.offset + length;
        let range = view.range(args.offset, end).ok()?;
        if range.length != length || !lender.lend(share.volume, range) {
            return None;
        }
        // From here on it succeeds.
        share.counters.count_read(length);
        x.reply_to_read(
            xid,
            (&args.sequence, next.highest_slot),
            (eof, length as u32),
        );
        self.answer_at_once(
            &next,
            &args.sequence,
            Fingerprint::of(header, &bytes[SEQUENCE_END..], None),
        );
        self.counters.requests.add(1);
        for number in READ_OPERATIONS {
            self.counters.count(number, true);
        }
        Some(())
    }
}

/// The operations of the request.
const READ_OPERATIONS: [OperationNumber; 3] = [
    OperationNumber::SEQUENCE,
    OperationNumber::PUTFH,
    OperationNumber::READ,
];
