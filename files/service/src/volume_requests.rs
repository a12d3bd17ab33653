//! The requests of a durable volume, its log and checkpoints: each becomes requests to the device,
//! in pieces.
//!
//! One block of memory is kept for them, so that changes become durable also while requests of
//! clients have all other memory.

use block::{ClientId, DeviceError, DeviceSet, Operation, Request};
use files_store::limits::BLOCK_BYTES;
use files_store::{DiskCompletion, DiskRequest, Operation as DiskOperation, Volume};
use hugemem::{Data, Lease, Pool};

use crate::job::VOLUME_TAG;
use crate::limits::{PIECES_IN_FLIGHT_MAX, REPEATS_MAX};
use crate::transfer::{Device, is_interruption};

/// Bits of a tag for the identifier of the volume's request.
const ID_BITS: u32 = 32;

/// Every write of a volume has whole blocks.
const BLOCK: usize = BLOCK_BYTES as usize;

/// A request of the volume that has not ended.
#[derive(Debug)]
struct Moving {
    request: DiskRequest,
    /// Bytes that the device has, or whether it has the flush.
    submitted: usize,
    /// Requests in the device.
    outstanding: usize,
    has_failed: bool,
    /// Whether it has to be submitted again from its beginning, when the device has nothing of it.
    must_repeat: bool,
    repeats: u8,
}

impl Moving {
    fn new(request: DiskRequest) -> Self {
        Self {
            request,
            submitted: 0,
            outstanding: 0,
            has_failed: false,
            must_repeat: false,
            repeats: 0,
        }
    }

    /// Begins again after an interruption, when the device has nothing of it any more. The bytes and
    /// their places are the same, so it does not matter what the device has executed.
    fn repeat(&mut self) {
        if self.must_repeat && self.outstanding == 0 && !self.has_failed {
            self.must_repeat = false;
            self.repeats += 1;
            self.submitted = 0;
        }
    }

    /// Bytes of the request; 1 for a flush.
    fn length(&self) -> usize {
        match &self.request.operation {
            DiskOperation::Write { data, .. } => data.len(),
            DiskOperation::Flush | DiskOperation::Read { .. } => 1,
        }
    }

    fn is_submitted(&self) -> bool {
        self.has_failed || self.must_repeat || self.submitted >= self.length()
    }

    /// Whether it is repeated after an interruption.
    fn may_repeat(&self, keeps_cache: bool) -> bool {
        let is_flush = matches!(self.request.operation, DiskOperation::Flush);
        self.repeats < REPEATS_MAX && (keeps_cache || !is_flush)
    }

    fn is_over(&self) -> bool {
        let has_ended = self.has_failed || !self.must_repeat && self.is_submitted();
        has_ended && self.outstanding == 0
    }

    /// The next piece: as long as the memory, or a flush.
    fn next(&mut self, device: &Device, memory: Option<Lease>) -> Request {
        let begin = self.submitted;
        let length = memory.as_ref().map_or(1, Lease::len);
        self.submitted += length;
        self.outstanding += 1;
        let (operation, lba, blocks, data) = match (&self.request.operation, memory) {
            (DiskOperation::Write { offset, data }, Some(mut lease)) => {
                lease.copy_from_slice(&data[begin..][..length]);
                let (lba, blocks) = device.blocks(offset + begin as u64, length);
                (Operation::Write { fua: false }, lba, blocks, Some(lease))
            }
            _ => (Operation::Flush, 0, 0, None),
        };
        Request {
            tag: 0,
            operation,
            lba,
            blocks,
            data,
        }
    }

    /// The tag of its requests to the device.
    fn tag(&self, volume: usize) -> u64 {
        let id = self.request.id.0 & ((1 << ID_BITS) - 1);
        VOLUME_TAG | (volume as u64) << ID_BITS | id
    }

    fn end(self) -> DiskCompletion {
        let data = match self.request.operation {
            DiskOperation::Write { data, .. } => data,
            DiskOperation::Flush | DiskOperation::Read { .. } => Vec::new(),
        };
        DiskCompletion {
            id: self.request.id,
            is_ok: !self.has_failed,
            data,
        }
    }
}

/// The volume of a tag; `None` if a job has it.
pub(crate) fn volume_of_tag(tag: u64) -> Option<usize> {
    (tag & VOLUME_TAG != 0).then_some(((tag & !VOLUME_TAG) >> ID_BITS) as usize)
}

/// What carrying out requests has led to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Carried {
    /// Requests that the device has got.
    pub(crate) submitted: usize,
    /// Whether a request of the volume has ended.
    pub(crate) has_ended: bool,
    /// Whether a request waits for memory.
    pub(crate) awaits_memory: bool,
}

/// Carries out the requests of one volume.
#[derive(Debug)]
pub(crate) struct VolumeRequests {
    volume: usize,
    device: Device,
    moving: Vec<Moving>,
    /// Whether the device is gone.
    is_gone: bool,
    /// How often it was gone before.
    absences: u32,
    /// Memory for one block, while no request has it.
    kept: Option<Lease>,
}

impl VolumeRequests {
    /// Those of the volume with this index, which is durable.
    pub(crate) fn new(volume: usize, device: Device, set: &DeviceSet, pool: &Pool) -> Self {
        Self {
            volume,
            device,
            moving: Vec::new(),
            is_gone: false,
            absences: set.absences(device.place),
            kept: pool.take_permanent(BLOCK),
        }
    }

    /// Whether the volume has no request.
    pub(crate) fn is_idle(&self) -> bool {
        self.moving.is_empty()
    }

    /// Whether the device is gone, or was since the volume was opened: what the volume has in memory
    /// may not be what the device has.
    pub(crate) fn is_lost(&self, set: &DeviceSet) -> bool {
        self.is_gone || set.absences(self.device.place) != self.absences
    }

    /// Forgets the requests of a lost volume that the device does not have. Returns whether it has
    /// none.
    pub(crate) fn end(&mut self) -> bool {
        self.moving.retain(|it| it.outstanding > 0);
        self.moving.is_empty()
    }

    /// Submits as much as possible, and tells the volume what has ended.
    pub(crate) fn carry_out(
        &mut self,
        volume: &mut Volume,
        client: ClientId,
        set: &DeviceSet,
        pool: &Pool,
    ) -> Carried {
        let mut carried = Carried::default();
        loop {
            while let Some(request) = volume.poll() {
                self.moving.push(Moving::new(request));
            }
            carried.awaits_memory = false;
            for index in 0..self.moving.len() {
                self.moving[index].repeat();
                self.submit(index, client, set, pool, &mut carried);
            }
            let Some(ended) = self.moving.iter().position(Moving::is_over) else {
                return carried;
            };
            carried.has_ended = true;
            volume.complete(self.moving.remove(ended).end());
        }
    }

    /// Submits the next pieces of a request.
    fn submit(
        &mut self,
        index: usize,
        client: ClientId,
        set: &DeviceSet,
        pool: &Pool,
        carried: &mut Carried,
    ) {
        let moving = &mut self.moving[index];
        while !moving.is_submitted() && moving.outstanding < PIECES_IN_FLIGHT_MAX {
            let memory = match &moving.request.operation {
                DiskOperation::Write { data, .. } => {
                    let rest = data.len() - moving.submitted;
                    let bytes = rest.min(self.device.piece_bytes as usize);
                    let Some(lease) = pool.take(bytes).or_else(|| self.kept.take()) else {
                        carried.awaits_memory |= moving.outstanding == 0;
                        return;
                    };
                    Some(lease)
                }
                DiskOperation::Flush => None,
                DiskOperation::Read { .. } => {
                    // A volume in use reads nothing.
                    moving.has_failed = true;
                    return;
                }
            };
            let mut request = moving.next(&self.device, memory);
            request.tag = moving.tag(self.volume);
            match set.submit(client, self.device.place, request) {
                Ok(_) => carried.submitted += 1,
                Err(error) => {
                    moving.outstanding -= 1;
                    moving.has_failed = true;
                    self.is_gone |= error == DeviceError::Removed;
                }
            }
        }
    }

    /// A request to the device has completed.
    pub(crate) fn completed(
        &mut self,
        tag: u64,
        result: Result<(), DeviceError>,
        data: Option<Data>,
    ) {
        if let Some(Data::Lease(lease)) = data
            && self.kept.is_none()
            && lease.len() == BLOCK
        {
            self.kept = Some(lease);
        }
        let (volume, keeps_cache) = (self.volume, self.device.keeps_cache);
        let found = self.moving.iter_mut().find(|it| it.tag(volume) == tag);
        if let Some(moving) = found {
            moving.outstanding = moving.outstanding.saturating_sub(1);
            match result {
                Ok(()) => {}
                Err(error) if is_interruption(error) && moving.may_repeat(keeps_cache) => {
                    moving.must_repeat = true;
                }
                Err(error) => {
                    moving.has_failed = true;
                    let is_over = is_interruption(error) && keeps_cache;
                    self.is_gone |= error == DeviceError::Removed || is_over;
                }
            }
        }
    }

    /// The device at a place was removed: its requests do not complete.
    pub(crate) fn device_removed(&mut self, place: usize) {
        if self.device.place != place {
            return;
        }
        self.is_gone = true;
        for moving in &mut self.moving {
            moving.outstanding = 0;
            moving.has_failed = true;
        }
    }
}
