//! Data of a write received straight into its device's memory.
//!
//! A block changes as a whole, whatever the host or another reactor does: the device gives its
//! memory only for whole blocks that it holds for nobody else, only for the time of one receive, and
//! only as many blocks as the stream already has all the bytes of. What has come of the block
//! behind them goes into the request's lease, and is copied from there when the block is complete.
//! Where the device does not give its memory, because a reader holds the range, the lease takes the
//! data as it does for other devices. Data under a digest always goes there, since it must not
//! reach the device before the digest was found right.

use std::io::IoSliceMut;

use nvme_target::{DataSource, QueueId, Work};
use reactors::sim::planted;
use rustix::io::Errno;

use super::{Connection, Context, Expecting, Sink, first};
use crate::slot::{Fetch, SlotState};
use crate::stream::{ByteStream, Transferred};

impl<S: ByteStream> Connection<S> {
    /// Bytes of a block, where a write's data may be received into its device.
    pub(super) fn block_to_receive(&self, cx: &Context<'_>, work: &Work) -> Option<usize> {
        let solicited = !matches!(work.source(), DataSource::InCapsule { .. });
        let has_digest = self.rules.framing.data_digest && !planted("fill-before-digest");
        let is_plain = solicited && !has_digest;
        cx.core
            .block_to_fill(self.queue.filter(|_| is_plain)?, work)
    }

    /// One vectored receive: whole blocks of the data that is awaited straight into its device, the
    /// rest of it into its lease, what follows into the buffer. `None`: nothing was received.
    pub(super) fn receive_into_device(
        &mut self,
        cx: &mut Context<'_>,
        room_bytes: usize,
    ) -> Option<(usize, Transferred)> {
        let Expecting::Data {
            sink: Sink::Slot(slot),
            remaining,
            ..
        } = &mut self.expecting
        else {
            return None;
        };
        let SlotState::FetchingData(fetch) = self.slots.state(*slot) else {
            return None;
        };
        let (queue, block_bytes) = (self.queue?, fetch.block_bytes?);
        if !self.receiver.buffered().is_empty() {
            return None;
        }
        // What waits in the lease belongs to the first of these blocks.
        let waiting = fetch.filled - fetch.placed;
        let there = waiting + self.stream.available().min(*remaining);
        let whole = there - there % block_bytes;
        let missing = whole.checked_sub(waiting).filter(|bytes| *bytes > 0)?;
        let leased = &mut fetch.lease[fetch.placed..fetch.filled + *remaining];
        let (begun, rest) = leased.split_at_mut(whole);
        let room = first(self.receiver.room(), room_bytes);
        let offered = missing + rest.len() + room.len();
        let (stream, mut outcome) = (&mut self.stream, Transferred::WouldBlock);
        let taken = cx
            .core
            .place_directly(queue, &mut fetch.work, whole, &mut |range| {
                let (before, blocks) = range.split_at_mut(waiting);
                let buffers = [&mut *blocks, &mut *rest, &mut *room];
                outcome = stream.receive(&mut buffers.map(IoSliceMut::new));
                if matches!(outcome, Transferred::Bytes(_)) {
                    before.copy_from_slice(&begun[..waiting]);
                }
            });
        if !taken {
            return None;
        }
        match outcome {
            Transferred::Bytes(bytes) if bytes >= missing => {
                self.data_at = cx.now;
                let placed = bytes.min(*remaining);
                fetch.placed += whole;
                fetch.filled += placed;
                *remaining -= placed;
                cx.counters.bytes_filled.add(missing as u64);
                cx.counters.bytes_placed.add((placed - missing) as u64);
                self.receiver.filled(bytes - placed);
                Some((offered, outcome))
            }
            Transferred::Failed(_) => Some((offered, outcome)),
            Transferred::Bytes(_) | Transferred::WouldBlock | Transferred::Closed => {
                debug_assert!(false, "what is available can be received");
                Some((offered, Transferred::Failed(Errno::IO)))
            }
        }
    }

    /// Brings what is left of a write in its lease to its device, where that goes at once; else to
    /// the front of the lease, which has to hold exactly what is left.
    pub(super) fn place_rest(
        &self,
        cx: &mut Context<'_>,
        queue: QueueId,
        mut fetch: Fetch,
    ) -> Fetch {
        if fetch.placed == 0 {
            return fetch;
        }
        let left = &fetch.lease[fetch.placed..];
        let bytes = left.len();
        let taken = bytes > 0
            && cx
                .core
                .place_directly(queue, &mut fetch.work, bytes, &mut |range| {
                    if !planted("filled-rest-lost") {
                        range.copy_from_slice(left);
                    }
                });
        if taken {
            fetch.placed += bytes;
        }
        fetch.lease.copy_within(fetch.placed.., 0);
        fetch.lease.resize(fetch.lease.len() - fetch.placed);
        fetch
    }
}
