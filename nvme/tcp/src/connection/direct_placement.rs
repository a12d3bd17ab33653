//! Direct data placement: data of a write is received directly into its device's memory.
//!
//! A block must change atomically, whatever the host or another reactor does. Therefore the device
//! gives access only to whole blocks without range locks, only for the time of one receive, and
//! only to as many blocks as the stream has received completely. The received part of the next
//! block is stored in the request's lease, and copied from there when the block is complete. If the
//! device refuses, because a reader holds a range lock, the data is received into the lease as for
//! other devices. So is data with a digest, since it must not reach the device before the digest is
//! verified.

use std::io::IoSliceMut;

use nvme_target::{DataSource, QueueId, Work};
use rustix::io::Errno;

use super::{Connection, Context, Expecting, Sink, first};
use crate::slot::{Fetch, SlotState};
use crate::stream::{ByteStream, Transferred};

impl<S: ByteStream> Connection<S> {
    /// Block size in bytes, if a write's data may be received directly into its device.
    pub(super) fn block_to_receive(&self, cx: &Context<'_>, work: &Work) -> Option<usize> {
        let solicited = !matches!(work.source(), DataSource::InCapsule { .. });
        let is_plain = solicited && !self.rules.framing.data_digest;
        cx.core
            .block_to_fill(self.queue.filter(|_| is_plain)?, work)
    }

    /// Makes one vectored receive: whole blocks of awaited data directly into the device, the rest
    /// of the data into its lease, and what follows into the buffer. Returns `None` if nothing was
    /// received.
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
        // Data in the lease that is not placed belongs to the first of these blocks.
        let waiting = fetch.filled - fetch.placed;
        let available = waiting + self.stream.available().min(*remaining);
        let whole = available - available % block_bytes;
        let awaited = whole.checked_sub(waiting).filter(|bytes| *bytes > 0)?;
        let leased = &mut fetch.lease[fetch.placed..fetch.filled + *remaining];
        let (leased_blocks, leased_after) = leased.split_at_mut(whole);
        let room = first(self.receiver.room(), room_bytes);
        let offered = awaited + leased_after.len() + room.len();
        let (stream, mut outcome) = (&mut self.stream, Transferred::WouldBlock);
        let is_placed = cx
            .core
            .place_directly(queue, &mut fetch.work, whole, &mut |range| {
                let (waiting_range, blocks) = range.split_at_mut(waiting);
                let buffers = [&mut *blocks, &mut *leased_after, &mut *room];
                outcome = stream.receive(&mut buffers.map(IoSliceMut::new));
                if matches!(outcome, Transferred::Bytes(_)) {
                    waiting_range.copy_from_slice(&leased_blocks[..waiting]);
                }
            });
        if !is_placed {
            return None;
        }
        match outcome {
            Transferred::Bytes(bytes) if bytes >= awaited => {
                self.data_at = cx.now;
                let placed = bytes.min(*remaining);
                fetch.placed += whole;
                fetch.filled += placed;
                *remaining -= placed;
                cx.counters.bytes_filled.add(awaited as u64);
                cx.counters.bytes_placed.add((placed - awaited) as u64);
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

    /// Copies the rest of a partly placed write from its lease to its device, if that completes
    /// inline. Otherwise moves it to the front of the lease, which must contain exactly the rest.
    pub(super) fn place_remaining(
        &self,
        cx: &mut Context<'_>,
        queue: QueueId,
        mut fetch: Fetch,
    ) -> Fetch {
        let remaining = &fetch.lease[fetch.placed..];
        let bytes = remaining.len();
        let is_placed = bytes > 0
            && cx
                .core
                .place_directly(queue, &mut fetch.work, bytes, &mut |range| {
                    range.copy_from_slice(remaining);
                });
        if is_placed {
            fetch.placed += bytes;
        }
        fetch.lease.copy_within(fetch.placed.., 0);
        fetch.lease.resize(fetch.lease.len() - fetch.placed);
        fetch
    }
}
