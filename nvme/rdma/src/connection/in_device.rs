//! Reads and writes whose data is in memory of a device, such as a drive's controller memory buffer:
//! RDMA writes from there to the host, and RDMA reads from the host into it.
//!
//! Such a request has a lease of that memory, which the table of its connection keeps while the
//! transport has it: until it is posted, by slot, and then until its work requests have completed or
//! the queue pair is destroyed. Posted work requests are requests of a neighbour on the lease, so that
//! none begins after the memory has ended, and the drive is not reset before they are done, or their
//! registration is destroyed. Work requests in flight then fail, and end the connection.

use hugemem::{DeviceLease, DeviceMemory};
use nvme_fabrics::{Connection as _, Requests};
use nvme_spec::Status;
use nvme_spec::completion::StatusField;
use nvme_target::{
    Completed, Direction, KeyedBlock, KeyedBlocks, TransferReason, Work, WorkProgress,
};
use rdma::{Payload, Provider, QueuePair, RemoteAddress, SendOperation, SendRequest, Sge};

use super::{Connection, Context};
use crate::posted::{PostedKind, QueueDestroyed};
use crate::slot::{Fetch, Response, SlotState, SlotTable};

/// Requests of one connection with data in memory of devices at most, posted ones included: the
/// slices of a drive are for all hosts.
const REQUESTS_MAX: usize = 16;

// Free places are the bits of a word.
const _: () = assert!(REQUESTS_MAX == u16::BITS as usize);
// Every in-capsule request is too small.
const _: () = assert!(crate::config::IN_CAPSULE_BYTES_MAX < nvme_target::DEVICE_TRANSFER_BYTES_MIN);

/// The status of a request whose memory has ended before it was accessed: the host sends it again.
const LOST: Status = Status::COMMAND_INTERRUPTED;

/// The user of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    /// The request in a slot.
    Slot(u16),
    /// Posted work, whose slot is free.
    Post,
}

#[derive(Debug)]
struct Entry {
    user: User,
    /// The local key of the memory.
    key: u32,
    /// `None` while the target core has it.
    lease: Option<DeviceLease>,
}

/// No place in the table.
const NOWHERE: u8 = u8::MAX;

/// The memory of devices that a connection's requests use.
#[derive(Debug, Default)]
pub(super) struct DeviceTable {
    entries: Box<[Option<Entry>]>,
    /// Places without an entry, a bit each.
    free: u16,
    used: usize,
    /// By slot: the place of its request's entry, or [`NOWHERE`].
    places: Box<[u8]>,
}

impl DeviceTable {
    /// The table of a connection of an I/O queue with this number of slots. Other connections have none.
    pub(super) fn for_queue(slots: usize) -> Self {
        Self {
            entries: (0..REQUESTS_MAX).map(|_| None).collect(),
            free: u16::MAX,
            used: 0,
            places: std::iter::repeat_n(NOWHERE, slots).collect(),
        }
    }

    /// Bytes of its own storage.
    pub(super) fn own_bytes(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.places)
    }

    /// Whether any request uses memory of a device.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.used > 0
    }

    fn has_room(&self) -> bool {
        self.free != 0
    }

    /// Adds the memory of the request in `slot`, which has none. Without a lease: the target core gets it.
    fn insert(&mut self, slot: u16, key: u32, lease: Option<DeviceLease>) {
        let place = self.free.trailing_zeros() as usize;
        debug_assert!(self.has_room() && self.place_of(slot).is_none());
        let of_slot = self.places.get_mut(usize::from(slot));
        if let (Some(entry), Some(of_slot)) = (self.entries.get_mut(place), of_slot) {
            *entry = Some(Entry {
                user: User::Slot(slot),
                key,
                lease,
            });
            // Fewer than `REQUESTS_MAX`.
            *of_slot = place as u8;
            self.free &= self.free - 1;
            self.used += 1;
        }
    }

    fn place_of(&self, slot: u16) -> Option<usize> {
        let place = *self.places.get(usize::from(slot))?;
        (place != NOWHERE).then_some(usize::from(place))
    }

    /// The request in `slot` has no entry any more.
    fn leave(&mut self, slot: u16) {
        if let Some(place) = self.places.get_mut(usize::from(slot)) {
            *place = NOWHERE;
        }
    }

    fn of_slot(&mut self, slot: u16) -> Option<&mut Entry> {
        let place = self.place_of(slot)?;
        self.entries[place].as_mut()
    }

    /// Removes an entry whose lease no device accesses.
    fn remove(&mut self, place: usize) {
        let Some(of_place) = self.entries.get_mut(place) else {
            return;
        };
        let Some(entry) = of_place else { return };
        let user = entry.user;
        if let Some(lease) = &mut entry.lease {
            lease.complete();
        }
        *of_place = None;
        self.used -= 1;
        self.free |= 1 << place;
        if let User::Slot(slot) = user {
            self.leave(slot);
        }
    }

    /// Removes the memory of a request of which no work request is in flight.
    pub(super) fn release(&mut self, slot: u16) {
        if let Some(place) = self.place_of(slot) {
            self.remove(place);
        }
    }

    /// Handles the completion of posted work.
    #[inline(never)]
    pub(super) fn end_post(&mut self, place: u8) {
        self.remove(usize::from(place));
    }

    /// The requests were abandoned: keeps the memory of those that are being fetched, which the device
    /// may still write, or whose responses are kept.
    pub(super) fn abandon(&mut self, slots: &mut SlotTable) {
        for place in 0..self.entries.len() {
            if let Some(Entry {
                user: User::Slot(slot),
                ..
            }) = self.entries[place]
                && !matches!(
                    slots.find(slot),
                    Some(SlotState::FetchingData(_) | SlotState::Responding(_))
                )
            {
                self.remove(place);
            }
        }
    }

    /// The queue pair was destroyed, so no work request is in flight.
    pub(super) fn queue_destroyed(&mut self, _proof: &QueueDestroyed) {
        (0..self.entries.len()).for_each(|place| self.remove(place));
    }
}

impl<P: Provider> Connection<P> {
    /// Begins a command with memory of its device; returns it if there is none.
    pub(super) fn begin_with_device_memory(
        &mut self,
        cx: &mut Context<'_, P>,
        slot: u16,
        mut work: Work,
    ) -> Option<Work> {
        let Some(queue) = self.queue else {
            return Some(work);
        };
        let blocks = self.remotes[usize::from(slot)].blocks.len();
        let (map, has_room) = (cx.map, self.in_device.has_room());
        let mut key = None;
        let check = |memory: &DeviceMemory| {
            key = map.device_key(memory);
            match (key, has_room) {
                (None, _) => Err(TransferReason::Unregistered),
                (_, false) => Err(TransferReason::Exhausted),
                (Some(_), true) => Ok(()),
            }
        };
        let taken = cx.core.take_device_memory(&mut work, blocks, check);
        let (Some(lease), Some(key)) = (taken, key) else {
            return Some(work);
        };
        if work.direction() == Direction::ToHost {
            self.in_device.insert(slot, key, None);
            self.execute_with_memory(cx, slot, work, lease);
            return None;
        }
        self.in_device.insert(slot, key, Some(lease));
        let now = cx.now;
        cx.core
            .record_progress(queue, &mut work, WorkProgress::Fetches, now);
        if self.reads_free == 0 {
            cx.counters.read_waits.add(1);
        }
        *self.slots.state(slot) = SlotState::AwaitingFetch(Fetch::in_device(work));
        self.waiting_reads.push_back(slot);
        self.pump_reads(cx);
        None
    }

    /// Executes a command whose data is in memory of its device.
    #[inline(never)]
    pub(super) fn execute_in_device(&mut self, cx: &mut Context<'_, P>, slot: u16, work: Work) {
        let entry = self.in_device.of_slot(slot);
        let Some(mut lease) = entry.and_then(|it| it.lease.take()) else {
            debug_assert!(false, "slot {slot} has no memory");
            return;
        };
        // The reads of the host's memory have completed.
        lease.complete();
        self.execute_with_memory(cx, slot, work, lease);
    }

    /// Executes a command with the memory where its data is, or will be. No request is in flight there.
    #[inline]
    fn execute_with_memory(
        &mut self,
        cx: &mut Context<'_, P>,
        slot: u16,
        work: Work,
        lease: DeviceLease,
    ) {
        let Some(queue) = self.queue else { return };
        let tag = self.token().with_slot(slot).into_bits();
        match cx.core.execute_in_device(queue, tag, work, lease, cx.now) {
            Some(done) => Requests::respond(self, cx, slot, done),
            None => self.slots.set(slot, SlotState::Executing),
        }
    }

    /// Posts as many reads of one request as may be outstanding, into memory of its device. Returns
    /// false if that has ended before the first one.
    #[inline(never)]
    pub(super) fn post_reads_in_device(
        &mut self,
        cx: &Context<'_, P>,
        slot: u16,
        fetch: &mut Fetch,
    ) -> bool {
        let allowed = u32::from(self.reads_free).min(self.sends.vacant());
        let sequence = self.sends.next_sequence();
        let bytes = fetch.work.bytes();
        let mut requests = 0;
        while requests < allowed && !fetch.is_posted() {
            let (offset, missing) = (fetch.posted_bytes, bytes - fetch.posted_bytes);
            let entry = self.in_device.of_slot(slot);
            let Some((key, lease)) = entry.and_then(|it| Some((it.key, it.lease.as_mut()?))) else {
                self.refused = true;
                break;
            };
            if offset == 0 && !lease.begin_all_by_neighbour() {
                return false;
            }
            let remotes = &self.remotes[usize::from(slot)];
            let part = block_at(remotes, offset).and_then(|(remote, left)| {
                let most = left.min(missing);
                let piece = cx.map.piece_in_device(key, lease, offset as usize, most)?;
                Some((remote, piece))
            });
            let Some((remote, piece)) = part else {
                self.refused = true;
                break;
            };
            let length = piece.length();
            let last = requests + 1 == allowed || length == missing;
            let request = SendRequest::new(
                self.work_id(sequence, last),
                SendOperation::Read(remote),
                Payload::Memory(std::slice::from_ref(&piece)),
            );
            let request = request.signalled(last);
            if self.queue_pair.queue_send(&request).is_err() {
                self.refused = true;
                break;
            }
            requests += 1;
            fetch.posted_bytes += length;
            cx.counters.bytes_into_devices.add(u64::from(length));
        }
        self.reads_posted(cx, slot, fetch, requests);
        true
    }

    /// Fails a write whose memory has ended before it was fetched.
    #[cold]
    pub(super) fn fail_in_device(&mut self, cx: &mut Context<'_, P>, slot: u16, work: Work) {
        cx.counters.device_memory_lost.add(1);
        self.in_device.release(slot);
        if let Some(queue) = self.queue {
            let response = cx.core.reject(queue, work, LOST);
            self.respond_without_data(cx, slot, response);
        }
    }

    /// Takes the memory with the data of a completed read back, and sends the response.
    #[inline(never)]
    pub(super) fn respond_in_device(
        &mut self,
        cx: &mut Context<'_, P>,
        slot: u16,
        mut done: Completed,
    ) {
        let bytes = done.bytes;
        let can_post = self.sends.vacant() > 1 && self.waiting_sends.is_empty();
        let Some(place) = self.in_device.place_of(slot) else {
            return self.send_from_device(cx, slot, done);
        };
        let remotes = &self.remotes[usize::from(slot)];
        let (Some(entry), Some(block)) =
            (&mut self.in_device.entries[place], remotes.blocks.first())
        else {
            return self.send_from_device(cx, slot, done);
        };
        (cx.core).take_read_memory(cx.transport, done.tag, &mut entry.lease);
        // Most responses have one write.
        let is_one = |lease: &&mut DeviceLease| {
            bytes <= block.length && bytes as usize <= lease.memory().slice_bytes()
        };
        let lease = entry.lease.as_mut().filter(is_one);
        let begun = lease.and_then(|it| (can_post && it.begin_all_by_neighbour()).then_some(it));
        let Some(lease) = begun else {
            return self.send_from_device(cx, slot, done);
        };
        entry.user = User::Post;
        let piece = cx.map.piece_in_device(entry.key, lease, 0, bytes);
        let (invalidate, remote) = (
            remotes.invalidate,
            RemoteAddress {
                address: block.address,
                rkey: block.key,
            },
        );
        self.in_device.leave(slot);
        let sequence = self.sends.next_sequence();
        let is_written = piece.is_some_and(|piece| {
            self.queue_write(cx, sequence, remote, std::slice::from_ref(&piece), 0)
        });
        if is_written {
            cx.counters.bytes_from_devices.add(u64::from(bytes));
        } else {
            // The connection ends with this turn; its host must not believe in the data.
            self.refused = true;
            done.response.status = StatusField::from_status(Status::DATA_TRANSFER_ERROR);
        }
        self.post_response(cx, sequence, &done.response, invalidate);
        // Fewer than `REQUESTS_MAX`.
        let place = place as u8;
        let kind = PostedKind::ResponseInDevice { place };
        self.sends
            .push(u32::from(is_written) + 1, kind, None, cx.now);
        cx.core.sent(done.timing, cx.now);
        self.slots.release(slot);
    }

    /// Sends the response of a read with several writes, or whose memory has ended, or when the send queue has
    /// room.
    #[inline(never)]
    fn send_from_device(&mut self, cx: &mut Context<'_, P>, slot: u16, done: Completed) {
        self.send_response(cx, slot, done.into());
    }

    /// Number of writes for a response whose data is in memory of a device.
    #[inline(never)]
    pub(super) fn writes_in_device(&self, slot: u16, bytes: u32) -> u32 {
        let place = self.in_device.place_of(slot);
        let entry = place.and_then(|it| self.in_device.entries[it].as_ref());
        let slice_bytes = entry.and_then(|it| Some(it.lease.as_ref()?.memory().slice_bytes()));
        let Some(slice_bytes) = slice_bytes else {
            return 0;
        };
        let remotes = &self.remotes[usize::from(slot)];
        let (mut offset, mut writes) = (0, 0);
        while offset < bytes
            && let Some((_, left)) = block_at(remotes, offset)
        {
            // Slices are smaller than 4 GiB.
            let behind = slice_bytes as u32 - offset % slice_bytes as u32;
            offset += left.min(behind).min(bytes - offset);
            writes += 1;
        }
        writes
    }

    /// Queues a response with its data, which is in memory of a device. The send queue has room.
    #[inline(never)]
    pub(super) fn post_in_device(
        &mut self,
        cx: &mut Context<'_, P>,
        slot: u16,
        response: Response,
    ) {
        let Response {
            mut capsule,
            data: _no_data,
            bytes,
            timing,
        } = response;
        let sequence = self.sends.next_sequence();
        let invalidate = self.remotes[usize::from(slot)].invalidate;
        let place = self.in_device.place_of(slot);
        let written = place.and_then(|place| self.write_from_device(cx, slot, place, bytes));
        let (requests, kind) = match (written, place) {
            (Some(writes), Some(place)) => {
                // Fewer than `REQUESTS_MAX`.
                let place = place as u8;
                if self.refused {
                    // The connection ends with this turn; its host must not believe in the data.
                    capsule.status = StatusField::from_status(Status::DATA_TRANSFER_ERROR);
                }
                (writes + 1, PostedKind::ResponseInDevice { place })
            }
            _ => {
                cx.counters.device_memory_lost.add(1);
                self.in_device.release(slot);
                capsule.status = StatusField::from_status(LOST);
                (1, PostedKind::Response)
            }
        };
        self.post_response(cx, sequence, &capsule, invalidate);
        self.sends.push(requests, kind, None, cx.now);
        cx.core.sent(timing, cx.now);
    }

    /// Queues the writes of a response's data. Returns their number, `None` if the memory has ended and
    /// nothing is queued.
    fn write_from_device(
        &mut self,
        cx: &Context<'_, P>,
        slot: u16,
        place: usize,
        bytes: u32,
    ) -> Option<u32> {
        let sequence = self.sends.next_sequence();
        let entry = self.in_device.entries[place].as_mut()?;
        if !entry.lease.as_mut()?.begin_all_by_neighbour() {
            return None;
        }
        entry.user = User::Post;
        self.in_device.leave(slot);
        let (mut offset, mut writes) = (0, 0);
        while offset < bytes && !self.refused {
            let Some((remote, piece)) = self.part_of(cx, slot, place, (offset, bytes)) else {
                self.refused = true;
                break;
            };
            let length = piece.length();
            let pieces = std::slice::from_ref(&piece);
            if self.queue_write(cx, sequence, remote, pieces, 0) {
                cx.counters.bytes_from_devices.add(u64::from(length));
                writes += 1;
            }
            offset += length;
        }
        Some(writes)
    }

    /// The memory of the host, and that of the device, of the longest part of a request from `offset` on
    /// that one work request moves.
    #[inline]
    fn part_of(
        &self,
        cx: &Context<'_, P>,
        slot: u16,
        place: usize,
        (offset, bytes): (u32, u32),
    ) -> Option<(RemoteAddress, Sge)> {
        let entry = self.in_device.entries[place].as_ref()?;
        let (remote, left) = block_at(&self.remotes[usize::from(slot)], offset)?;
        let most = left.min(bytes - offset);
        let lease = entry.lease.as_ref()?;
        let piece = (cx.map).piece_in_device(entry.key, lease, offset as usize, most)?;
        Some((remote, piece))
    }
}

/// Where the byte at `offset` of a request's data is in the host's memory, and the number of bytes from
/// there to the end of its block.
fn block_at(remotes: &KeyedBlocks, offset: u32) -> Option<(RemoteAddress, u32)> {
    let mut within = offset;
    for KeyedBlock {
        address,
        key,
        length,
    } in &remotes.blocks
    {
        if within < *length {
            let remote = RemoteAddress {
                // A host's range that wraps is refused by its own device.
                address: address.wrapping_add(u64::from(within)),
                rkey: *key,
            };
            return Some((remote, length - within));
        }
        within -= length;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remotes(lengths: &[u32]) -> KeyedBlocks {
        let mut remotes = KeyedBlocks::default();
        for (at, length) in (1..).zip(lengths) {
            remotes.blocks.push(KeyedBlock {
                address: at * 0x10_0000,
                key: at as u32,
                length: *length,
            });
        }
        remotes
    }

    #[test]
    fn bytes_are_found_in_their_blocks() {
        let remotes = remotes(&[512, 4096, 512]);
        for (offset, address, rkey, left) in [
            (0, 0x10_0000, 1, 512),
            (511, 0x10_01ff, 1, 1),
            (512, 0x20_0000, 2, 4096),
            (4607, 0x20_0fff, 2, 1),
            (4608, 0x30_0000, 3, 512),
        ] {
            let expected = (RemoteAddress { address, rkey }, left);
            assert_eq!(block_at(&remotes, offset), Some(expected));
        }
        assert_eq!(block_at(&remotes, 5120), None);
        assert_eq!(block_at(&KeyedBlocks::default(), 0), None);
    }

    #[test]
    fn addresses_that_wrap_do_not_panic() {
        let mut remotes = remotes(&[4096]);
        remotes.blocks[0].address = u64::MAX;
        let found = block_at(&remotes, 1).map(|(remote, _)| remote.address);
        assert_eq!(found, Some(0));
    }
}
